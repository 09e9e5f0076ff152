"""Execution traces of other tools: read as recorded work, replayed on any cluster, written back."""
