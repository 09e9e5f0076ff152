"""Mutants of core rooms: does a test fail when a line is wrong?"""
