"""Clusters by name, as plain shapes, or from a YAML file."""
