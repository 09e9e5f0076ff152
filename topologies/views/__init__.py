"""Views of a cluster: networkx graph, tables and graph measures."""
