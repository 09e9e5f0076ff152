"""Fixtures of the tests in this folder."""

from tests.support.quick_tables import quick_tables

__all__ = ["quick_tables"]
