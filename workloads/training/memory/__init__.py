"""Memory that a training plan needs on each rank, by part."""
