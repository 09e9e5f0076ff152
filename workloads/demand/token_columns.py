"""Tokens of a request from the columns of a demand file, which are means or sums."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from topologies.arrays import FloatArray
from topologies.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

LEAST_MEAN, MOST_MEAN = 1.0, 2e6
"""Least and most mean prompt tokens of a request that are plausible."""
COVERED = {"prompt": "input_tokens_covered", "output": "output_tokens_covered"}
"""Columns with sums over only those requests whose lengths the source publishes."""


def mean_tokens(
    rows: pd.DataFrame,
    slot: npt.NDArray[np.int64],
    requests: FloatArray,
    *,
    which: str,
    default: float,
    sums: bool,
) -> FloatArray:
    """Mean tokens of a request in each period; periods without tokens take the overall mean.

    Parameters
    ----------
    rows : DataFrame
        Rows of one service.
    slot : int array (rows,)
        Period of each row.
    requests : float array (periods,)
        Requests of each period.
    which : {"prompt", "output"}
        Kind of tokens.
    default : float
        Mean tokens where the file has no column of this kind.
    sums : bool
        Whether a column without a suffix holds the tokens of all requests of the row.

    Returns
    -------
    float array (periods,)
    """
    periods = len(requests)
    mean, total, plain = (f"{which}_tokens{suffix}" for suffix in ("_mean", "_sum", ""))
    column = next((name for name in (COVERED[which], total, mean, plain) if name in rows), None)
    if column is None or rows[column].isna().all():
        return np.full(periods, default)
    has_tokens = rows[column].notna().to_numpy()
    values = rows[column].fillna(0.0).to_numpy(float)
    if column == COVERED[which] and "requests_with_lengths" in rows:
        counts = rows["requests_with_lengths"].fillna(0.0).to_numpy(float)
    elif column == mean or (column == plain and not sums):
        # A row's mean is weighted by its requests; a row of a log is one request.
        counts = _row_requests(rows)
        values = values * counts
    else:
        counts = requests[slot] / np.bincount(slot, minlength=periods)[slot]
    tokens = np.bincount(slot, values * has_tokens, periods)
    counted = np.bincount(slot, counts * has_tokens, periods)
    stated = (tokens > 0) & (counted > 0)
    overall = tokens[stated].sum() / counted[stated].sum() if stated.any() else default
    return np.where(stated, tokens / np.where(stated, counted, 1.0), overall)


def check_plausible(mean: FloatArray, requests: FloatArray, file: str) -> None:
    """Check that the mean prompt is plausible: else a sum was read as a mean, or a mean as a sum.

    Raises
    ------
    InputError
        For a mean below one token or above two million; names the column to use.
    """
    overall = float(np.average(mean, weights=requests))
    if overall < LEAST_MEAN:
        raise InputError(
            f"{file}: {overall:.3g} prompt tokens a request, at least 1 is expected; a column of "
            "means is called prompt_tokens_mean."
        )
    if overall > MOST_MEAN:
        raise InputError(
            f"{file}: {overall:,.0f} prompt tokens a request, at most {MOST_MEAN:,.0f} are "
            "expected; a column of sums is called prompt_tokens_sum."
        )


def _row_requests(rows: pd.DataFrame) -> npt.NDArray[Any]:
    """Weights of the rows: their requests or load, 1 for each row of a log."""
    for name in ("requests", "requests_per_s", "load_share"):
        if name in rows:
            return rows[name].to_numpy(float)
    return np.ones(len(rows))
