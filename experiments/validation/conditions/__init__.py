"""Conditions of a measurement that its row leaves out: recipes, defaults, the timing tool."""
