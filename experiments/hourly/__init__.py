"""Lending hour by hour: demand as it comes, a statement for each hour, and what became of it."""
