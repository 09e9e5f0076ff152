"""Experiments: each answers a question with ``NAME(...) -> DataFrame`` and ``draw_NAME(frame)``."""
