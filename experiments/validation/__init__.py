"""Predictions beside published measurements, with the error of every row."""
