"""Search for parallel plans: candidates that fit in memory, estimates, and simulations."""
