"""Policies that decide how many units serve."""
