"""Experiments: each answers a question with ``NAME(...) -> DataFrame`` and ``draw_NAME(frame)``.

Parameters that several experiments have are described in :mod:`experiments.scripts.registry`, the
others in the docstring of the function.
"""
