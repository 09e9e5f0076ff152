"""Kernel times: matrix products, attention and streaming operations by shape."""
