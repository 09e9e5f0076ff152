"""``cluster-sim collective``: one collective operation at one or many sizes."""
