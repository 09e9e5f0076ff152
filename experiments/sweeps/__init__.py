"""Sweeps: tables of independent runs, in processes or on a Dask cluster, resumable."""
