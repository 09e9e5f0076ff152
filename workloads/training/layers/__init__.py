"""Layers of a model as operations of one rank."""
