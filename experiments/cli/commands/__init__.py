"""Commands of ``cluster-sim``: a module each, or a room where tables or inputs fill a second."""
