"""Hardware catalogue: numbers with units, grades and sources, read from CSV files."""
