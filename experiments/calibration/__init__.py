"""Fits of the catalogue: of the shipped constants to published tables, and of users' overlays."""
