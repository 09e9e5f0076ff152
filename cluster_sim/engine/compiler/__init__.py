"""Compiler of the engine's functions, whose machine code is kept on disk between runs."""
