"""Execution traces of other tools, read as recordings, replayed on a cluster, or written."""
