"""``cluster-sim serve``: one replica, simulated token by token."""
