"""Largest values of options that must be finite."""

MOST_DAYS = 36_525.0
"""Longest run: a century of days."""
MOST = 1e9
"""Largest value of shares, counts, prices and powers."""
