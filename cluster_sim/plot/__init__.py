"""Pictures of a trace and files for timeline viewers."""
