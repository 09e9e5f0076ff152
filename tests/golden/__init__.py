"""Recorded answers of the command line, which a change of the code's shape must not move."""
