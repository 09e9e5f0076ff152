"""``python -m experiments NAME``: run one experiment script, or list them."""

from __future__ import annotations
