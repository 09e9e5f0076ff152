"""Durations of collectives: simulated, folded, by flows, or in closed form."""
