"""Confidence: intervals around predictions, from the residuals of published measurements."""
