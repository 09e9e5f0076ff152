"""The command line; commands import inside functions, as ``--help`` must not wait for numpy."""

from experiments.cli.main import main

__all__ = ["main"]
