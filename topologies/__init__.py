"""Hardware catalogue, cluster graphs, routing and graph measures."""
