"""Tests of several jobs on one cluster."""
