"""Error for a schedule that the proof refuses."""

from __future__ import annotations


class ProofError(ValueError):
    """Error for a schedule that does not compute its collective; names chunk, rank and mistake."""
