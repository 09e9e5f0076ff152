"""The command line ``cluster-sim``: a thin layer over the library.

Command modules import the library inside their functions, because ``cluster-sim --help`` must
answer before numpy, pandas and numba could be loaded.
"""

from experiments.cli.main import main

__all__ = ["main"]
