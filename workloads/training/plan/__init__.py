"""Parallel plans: degrees, placement, pipeline order and which rank holds what."""
