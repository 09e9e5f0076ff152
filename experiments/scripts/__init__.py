"""Experiments: each answers a question with ``run(...) -> DataFrame`` and ``plot(frame)``.

Parameters of ``run`` that several experiments have are described in
:mod:`experiments.scripts.registry`, the others in its docstring.
"""
