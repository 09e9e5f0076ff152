"""Code and texts that several experiments use, and claims that one of them compares with."""
