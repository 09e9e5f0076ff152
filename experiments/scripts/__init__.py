"""Experiments: one question each, with ``run(...) -> DataFrame`` and ``plot(frame) -> Figure``."""
