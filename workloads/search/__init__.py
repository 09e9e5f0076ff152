"""Search for parallel plans: candidates that fit in memory, estimates, and simulations."""

from workloads.search.candidates import Candidates, candidates
from workloads.search.estimate import best_estimates, estimate
from workloads.search.fit import Fit, fit
from workloads.search.search import Agreement, Aim, Finalist, Search, agreement, search

__all__ = [
    "Agreement",
    "Aim",
    "Candidates",
    "Finalist",
    "Fit",
    "Search",
    "agreement",
    "best_estimates",
    "candidates",
    "estimate",
    "fit",
    "search",
]
