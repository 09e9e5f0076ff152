"""One rank's share of a served model, and the time of each kind of its work."""
