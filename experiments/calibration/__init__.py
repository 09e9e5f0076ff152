"""Procedures that fit the catalogue's measured constants, and that anyone can repeat."""
