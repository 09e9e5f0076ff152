"""Shapes of scale-up domains and of the scale-out fabric, as array arithmetic."""
