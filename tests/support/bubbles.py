"""Closed forms of pipeline bubbles from the papers, against which tests hold the schedules."""


def bubble_fraction(pp: int, microbatches: int, vpp: int = 1) -> float:
    """Return idle time over working time of GPipe and 1F1B with equal stages: (p − 1) / (v m).

    arXiv 2104.04473, sections 2.2.1 and 2.2.2.

    Examples
    --------
    >>> bubble_fraction(4, 12), bubble_fraction(4, 12, vpp=2)
    (0.25, 0.125)
    """
    return (pp - 1) / (vpp * microbatches)


def zero_bubble_s(pp: int, forward_s: float, backward_s: float, weight_s: float) -> float:
    """Return the idle time of ZB-H1 with equal stages [s]: (p − 1) (F + B − W).

    arXiv 2401.10241, table 2.
    """
    return (pp - 1) * (forward_s + backward_s - weight_s)
