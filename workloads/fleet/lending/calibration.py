"""Margins that keep a stated share of nights: conformal quantiles of past errors, and feedback.

The error of a night is the least factor by which its expectation would have had to be multiplied.
With n earlier errors, the (1 − risk)(n + 1)-th smallest covers the next one with probability
1 − risk if nights are exchangeable (split conformal prediction: Vovk, Gammerman, Shafer,
*Algorithmic Learning in a Random World*, 2005). Where n is too small, the tail is Student's
prediction interval of the logarithms. Because nights are not exchangeable (growth, seasons), the
risk is corrected after each night by its outcome (Gibbs and Candès, *Adaptive conformal inference
under distribution shift*, NeurIPS 2021).
"""

from __future__ import annotations

import math

import numpy as np

from topologies.arrays import FloatArray

AIM = 0.85
"""Share of the allowed risk that the answers aim at, so that a few unlucky nights do not break the
stated confidence: of 22 kinds of traces over 60 nights, 97 % then miss on 1 to 4 nights at 95 %."""
FEEDBACK = 0.06
"""Step of the correction of the risk after each night."""
LEAST_RISK, MOST_RISK = 0.004, 0.5
"""Bounds on the corrected risk; an allowed risk outside of them widens them."""


def margin_log(errors: FloatArray, risk: float) -> float:
    """Logarithm of the factor that covers the next error with probability ``1 - risk``.

    Parameters
    ----------
    errors : float array (nights,)
        Logarithms of past errors, at least two.
    risk : float
        Probability that the next error exceeds the factor, in (0, 1).

    Examples
    --------
    Of 19 errors the largest covers the next with probability 95 %:

    >>> margin_log(np.arange(1.0, 20.0), 0.05)
    19.0
    """
    count = len(errors)
    ordered = np.sort(errors)
    rank = (1 - risk) * (count + 1)
    if rank <= count + 1e-9:
        below = max(int(rank + 1e-9), 1)
        part = max(rank - below, 0.0)
        after = ordered[min(below, count - 1)]
        return float(ordered[below - 1] + (after - ordered[below - 1]) * part)
    from scipy import special  # slow to import, and few need it

    spread = float(errors.std(ddof=1)) * math.sqrt(1 + 1 / count)
    tail = float(errors.mean()) + float(special.stdtrit(count - 1, 1 - risk)) * spread
    return max(float(ordered[-1]), tail)


def corrected(risk: float, wanted_risk: float, *, violated: bool) -> float:
    """Return the risk for the next night, less after a night that was violated.

    Examples
    --------
    >>> [round(corrected(0.05, 0.05, violated=broken), 5) for broken in (False, True)]
    [0.05255, -0.00745]
    """
    return risk + FEEDBACK * (AIM * wanted_risk - violated)


def bounded(risk: float, wanted_risk: float) -> float:
    """Return the corrected risk within its bounds."""
    return min(max(risk, min(LEAST_RISK, wanted_risk)), max(MOST_RISK, wanted_risk))


def surest(nights: int) -> float:
    """Highest confidence that a number of earlier nights supports without a fitted tail.

    Examples
    --------
    >>> surest(19)
    0.95
    """
    return nights / (nights + 1)
