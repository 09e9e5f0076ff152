"""Schedules, collectives, engines, traces and metrics of accelerator clusters."""

__version__ = "0.1.0"
