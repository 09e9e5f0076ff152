"""Figures that are drawn with matplotlib from tables of results."""
