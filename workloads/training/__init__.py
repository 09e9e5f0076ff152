"""Training: plans, placement, memory, programs, and the iteration that they make."""
