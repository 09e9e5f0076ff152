"""Validation in one call: a shipped table or a file of measurements."""

from __future__ import annotations

from pathlib import Path

from experiments.validation.reading.rows import read_file
from experiments.validation.reading.tables import table
from experiments.validation.validate import Result
from experiments.validation.validate import validate as compare
from topologies.arguments import checked


@checked()
def validate(table_or_file: str | Path, *, workers: int = 1) -> Result:
    """Compare predictions with measurements.

    Parameters
    ----------
    table_or_file : str or path
        Name of a shipped table such as ``"mlperf"``, or a CSV file of your own rows, or JSON of a
        load generator that states model, cluster and degree.
    workers : int, default 1
        Processes at most.

    Returns
    -------
    Result
        ``summary`` with the median and 90th percentile of the errors (predicted over measured
        time, less one), ``frame()`` row by row.

    Raises
    ------
    InputError
        For an unknown table or a file that cannot be read.

    Examples
    --------
    >>> validate("korthikanti_layers").summary["rows"]
    10
    """
    if str(table_or_file).endswith((".csv", ".json", ".jsonl")):
        rows = read_file(table_or_file)
        return compare(rows, Path(table_or_file).name, workers=workers)
    named = table(str(table_or_file))
    return compare(named.rows(), named.name, workers=workers)
