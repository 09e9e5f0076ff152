"""Inputs of the fleet: jobs, prices, costs of role changes."""
