"""Experiments: each answers a question with ``run(...) -> DataFrame`` and ``plot(frame)``."""
