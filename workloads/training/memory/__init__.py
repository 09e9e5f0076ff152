"""Memory of a training plan, by part."""
