"""Kernels and communications of one rank for each kind of layer of a model."""
