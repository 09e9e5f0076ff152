"""Frameworks: training stacks, each a file that says what a plan leaves open, and the default."""
