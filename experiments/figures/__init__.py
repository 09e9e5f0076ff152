"""Figures: from tables of results to matplotlib figures."""
