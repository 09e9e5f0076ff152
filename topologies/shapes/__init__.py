"""Shapes of scale-up domains and of scale-out fabrics: their links and measures as arithmetic."""
