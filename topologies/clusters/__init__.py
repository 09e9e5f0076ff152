"""Clusters: named machines, plain shapes, and descriptions in files."""
