"""Fixtures of the tests in this folder."""

from tests.support.quick_steps import other_plans, quick_steps
from tests.support.quick_tables import quick_tables

__all__ = ["other_plans", "quick_steps", "quick_tables"]
