"""Remark on a run that drew more power than its cap."""

from __future__ import annotations

import numpy as np

from topologies.arrays import FloatArray


def over_cap_note(draw_w: FloatArray, cap_w: float) -> str:
    """Sentence about the minutes above the cap; empty if there are none.

    Policies keep the cap by training less. What serving, changes of role and idle units draw stays.

    Parameters
    ----------
    draw_w : float array (minutes,)
        Power of the site in each minute [W].
    cap_w : float
        Most that the site may draw [W].

    Examples
    --------
    >>> over_cap_note(np.array([8e5, 9.5e5, 1.04e6]), 9e5)[:65]
    'the site drew more than --power-cap 0.9 MW in 2 of 3 minutes, at '
    >>> over_cap_note(np.array([8e5]), 9e5)
    ''
    """
    over = int(np.count_nonzero(draw_w > cap_w * (1 + 1e-9)))
    if not over:
        return ""
    return (
        f"the site drew more than --power-cap {cap_w / 1e6:g} MW in {over:,} of {len(draw_w):,} "
        f"minutes, at most {draw_w.max() / 1e6:.4g} MW: policies train less to keep the cap, but "
        "units that serve, change roles or idle draw the rest."
    )
