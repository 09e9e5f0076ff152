"""Fixtures of the tests in this folder."""

from tests.support.quick_steps import other_plans, quick_steps

__all__ = ["other_plans", "quick_steps"]
