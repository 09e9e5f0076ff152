"""Procedures that fit the catalogue's measured constants; each can be run again."""
