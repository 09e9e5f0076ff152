"""Hardware catalogue, shapes of clusters, routes, graphs and their measures."""
