"""Comparison of predictions with published values: errors, residuals and a constant predictor."""
