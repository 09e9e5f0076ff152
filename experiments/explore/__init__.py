"""Explorer: runs side by side on a local page, with sliders for the most important numbers."""
