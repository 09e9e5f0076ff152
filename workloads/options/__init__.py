"""Options of fleets and of lending, in modules that import nothing large.

The command line describes its options without loading a simulator.
"""
