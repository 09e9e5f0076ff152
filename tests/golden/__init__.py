"""Recorded answers of the command line, so that a change of shape cannot move a result."""
