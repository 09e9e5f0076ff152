"""Schedules: tables of ops on resources, how they are built, checked, merged and saved."""
