"""Lending of units: how many can be lent tonight, for how long, and with which confidence.

Start with :func:`lend`. It needs a history of demand and nothing else: it cuts the history into
nights, states the expected demand of each from the nights before it, and calibrates a margin on top
of the expectation until the nights of the history bear out the stated confidence.
"""

from workloads.fleet.lending.answer import Loan, Night, Terms, lend
from workloads.fleet.lending.backtest import Backtest, backtest
from workloads.fleet.lending.lead_times import lead_times
from workloads.fleet.lending.nights import Nights, cut_nights
from workloads.fleet.lending.on_cluster import lead_times_on, lend_on, terms_on
from workloads.fleet.lending.windows import Window

__all__ = [
    "Backtest",
    "Loan",
    "Night",
    "Nights",
    "Terms",
    "Window",
    "backtest",
    "cut_nights",
    "lead_times",
    "lead_times_on",
    "lend",
    "lend_on",
    "terms_on",
]
