"""Proofs, lower bounds and limits that collectives are held to."""
