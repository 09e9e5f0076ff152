"""Rates of flows that share resources, max-min fair in whole bytes a second (rule 7)."""
