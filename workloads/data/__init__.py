"""Demand traces that ship with the package; origin and licences in ``LICENCES.md``."""
