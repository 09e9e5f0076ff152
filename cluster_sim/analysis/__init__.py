"""Measures of a trace: use of resources, categories of time, critical path, conservation."""
