"""Traces: schedules with the times that an engine gave their ops."""
