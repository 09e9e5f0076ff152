"""Views of a cluster: its networkx graph, tables of links, and measures."""
