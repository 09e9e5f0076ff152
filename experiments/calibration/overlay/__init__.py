"""Fit of the catalogue to measurements of a user, as an overlay: ``cluster-sim calibrate``."""
