"""Runs side by side with sliders for the numbers that matter, on a local page."""
