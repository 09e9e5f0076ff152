"""SimPy processes of the fleet: control, moves, failures."""
