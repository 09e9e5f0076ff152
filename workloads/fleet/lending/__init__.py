"""Lending of units: how many can be lent tonight, for how long, and with which confidence.

:func:`workloads.fleet.lending.answer.lend` needs a history of demand and nothing else: it cuts the
history into nights, states the expected demand of each from the nights before it, and calibrates a
margin on top of the expectation until the nights of the history bear out the stated confidence.
"""
