"""Predictions by kind of row: collectives, kernels, layers, memory, training, serving, jobs."""
