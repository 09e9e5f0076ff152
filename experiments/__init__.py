"""Experiment scripts, sweeps, validation, calibration and the command line."""
