"""Serving: one replica at token level, and what a unit of the fleet can serve."""
