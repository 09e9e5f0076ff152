"""Sweeps: tables of independent runs, in local processes or on a Dask cluster, resumable."""
