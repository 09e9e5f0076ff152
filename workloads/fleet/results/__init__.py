"""Results of a fleet run: summary and timeline."""
