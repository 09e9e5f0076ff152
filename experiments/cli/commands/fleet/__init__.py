"""``cluster-sim fleet``: a fleet that serves by day and trains by night."""
