"""Demand traces that ship with the package; origin and licences in ``DATA_LICENCES.md``."""
