"""Backtest of lending: the answer for every night of the history, compared with its demand.

The error of a night is the least factor by which its expectation would have had to be multiplied.
With n earlier errors, the (1 − risk)(n + 1)-th smallest covers the next one with probability
1 − risk if nights are exchangeable (split conformal prediction: Vovk, Gammerman, Shafer,
*Algorithmic Learning in a Random World*, 2005). A confidence for which n is too small is refused;
on the nights before, and where the risk is corrected below it, the tail is Student's prediction
interval of the logarithms. Because nights are not exchangeable (growth, seasons), the
risk is corrected after each night by its outcome (Gibbs and Candès, *Adaptive conformal inference
under distribution shift*, NeurIPS 2021).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from topologies.support.arrays import FloatArray, IntArray
from topologies.support.errors import InputError
from workloads.demand.trace import MINUTES_PER_DAY, period_means

SMOOTHING = 15
"""Minutes over which demand is averaged before the largest value of a window is taken."""
BEFORE = 60  # minutes before the decision whose mean need is the level of the day


UNLIKE = 1.5
"""Factor from the usual need of a weekday beyond which a night counts as a holiday by itself."""
NORMAL_MEDIAN = 1.4826
"""Standard deviation of a normal variable over the median of its absolute value."""


@dataclass(frozen=True, eq=False)
class Nights:
    """Nights of a history, and the coming night, which has no demand yet."""

    need: FloatArray  # (nights, minutes): units that each minute of a past night needed
    edges: IntArray  # (windows + 1,): minutes of the night at which its windows begin and end
    busiest: FloatArray  # (nights, windows): largest 15-minute mean of the need in each window
    # (nights + 1,): mean need of the hour before the decision; the coming night comes last
    level: FloatArray
    weekday: IntArray  # (nights + 1,): day of the week in the middle of the night, 0 for Monday
    # (nights + 1,): whether the middle of the night lies on a day of the calendar
    holiday: npt.NDArray[np.bool_]
    # (nights + 1,): number of earlier nights that had ended when this night was decided on
    ended: IntArray

    def __len__(self) -> int:
        return len(self.need)

    @property
    def minutes(self) -> int:
        """Length of a night [minutes]."""
        return int(self.edges[-1])

    @property
    def unlike(self) -> npt.NDArray[np.bool_]:
        """Past nights that needed much less, or more, than others of their weekday; (nights,)."""
        # They stand for holidays where there is no calendar: their mean need differs from the
        # median of their weekday by a factor of more than 1.5, and by three times as much as usual.
        logs, weekday = np.log(self.need.mean(axis=1) + 1e-9), self.weekday[:-1]
        medians = [np.median(logs[weekday == day]) for day in weekday]
        differences = np.abs(logs - np.array(medians))
        usual = NORMAL_MEDIAN * float(np.median(differences))
        return np.asarray(differences > max(math.log(UNLIKE), 3 * usual))


def cut_nights(
    need: FloatArray,
    *,
    start: pd.Timestamp,
    lead: int,
    minutes: int,
    window: int = 60,
    holidays: Collection[str] = (),
) -> Nights:
    """Cut a history that begins at ``start`` and ends at the moment of decision into nights."""
    if not 1 <= minutes <= MINUTES_PER_DAY or lead < 0 or window < 1:
        raise InputError(
            f"a night of {minutes} minutes, {lead} after the history, in windows of {window}; "
            "it lasts 1 to 1,440 minutes and begins at the end of the history or later."
        )
    begin = _begins(len(need), lead, minutes)
    past = begin[:-1]
    rows = np.stack([need[first : first + minutes] for first in past])
    edges = np.unique(np.append(np.arange(0, minutes, window), minutes))
    smooth = period_means(rows, min(SMOOTHING, minutes))
    decided = begin - lead
    sums = np.concatenate([[0.0], np.cumsum(need)])
    middle = start + pd.to_timedelta(begin + minutes // 2, unit="min")
    return Nights(
        need=rows,
        edges=edges,
        busiest=np.maximum.reduceat(smooth, edges[:-1], axis=1),
        level=(sums[decided] - sums[np.maximum(decided - BEFORE, 0)])
        / np.minimum(BEFORE, np.maximum(decided, 1)),
        weekday=np.asarray(middle.day_of_week, np.int64),
        holiday=np.isin(middle.strftime("%Y-%m-%d"), list(holidays)),
        ended=np.searchsorted(past + minutes, decided, side="right"),
    )


def _begins(length: int, lead: int, minutes: int) -> IntArray:
    """First minutes of all nights in order of time, the coming night last."""
    coming = length + lead
    back = np.arange((coming // MINUTES_PER_DAY) + 1)[::-1]
    begin = coming - back * MINUTES_PER_DAY
    decided = begin - lead
    inside = (decided >= 1) & ((begin + minutes <= length) | (back == 0))
    if inside.sum() < 2:
        raise InputError(
            f"a history of {length / 60:.3g} h holds no whole night of {minutes / 60:.3g} h; give "
            "at least five days."
        )
    return np.asarray(begin[inside], np.int64)


AIM = ((0.01, 0.05), (0.7, 0.85))
"""Share of the allowed risk that the answers aim at, at a risk of 1 % and of 5 %, so that a few
unlucky nights do not break the stated confidence: of 22 kinds of traces over 60 nights, 97 % then
miss on 1 to 4 nights at 95 %. At 99 %, 0.84 % of 5,970 nights broke; with 0.85 it were 1.02 %."""
FEEDBACK = 0.06  # step of the correction of the risk after each night
LEAST_RISK, MOST_RISK = 0.004, 0.5
"""Bounds on the corrected risk; an allowed risk outside of them widens them."""


def margin_log(errors: FloatArray, risk: float) -> float:
    """Logarithm of the factor that covers the next error with probability ``1 - risk``.

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

    >>> [round(corrected(0.05, 0.05, violated=broken), 5) for broken in (False, True)]
    [0.05255, -0.00745]
    """
    return risk + FEEDBACK * (aimed_at(wanted_risk) - violated)


def aimed_at(wanted_risk: float) -> float:
    """Return the risk that the answers aim at, below the allowed one."""
    return float(np.interp(wanted_risk, *AIM)) * wanted_risk


def surest(nights: int) -> float:
    """Highest confidence that a number of earlier nights supports without a fitted tail.

    >>> surest(19)
    0.95
    """
    return nights / (nights + 1)


def errors_for(confidence: float) -> int:
    """Return the number of earlier errors that bear out a confidence by themselves.

    >>> errors_for(0.95), errors_for(0.99)
    (19, 99)
    """
    return math.ceil(confidence / (1 - confidence) - 1e-9)


def borne_out(stated: float | None, errors: int) -> float:
    """Return the stated confidence, or the usual one as far as a number of errors bears it out.

    A level that the history does not bear out would rest on the shape of a tail that nobody has
    seen, so it is refused.

    >>> borne_out(0.9, 30), borne_out(None, 30), borne_out(None, 6)
    (0.9, 0.95, 0.85)
    """
    most = math.floor(100 * surest(errors) + 1e-9) / 100
    if stated is None:
        return min(USUAL, most)
    wanted = errors_for(stated)
    if wanted > errors:
        raise InputError(
            f"--confidence {100 * stated:.6g}%: the errors of {errors} nights bear out "
            f"{most:.0%} at most. State --confidence {most:.0%}, or give a history that is "
            f"{wanted - errors} nights longer ({wanted} errors)."
        )
    return stated


USUAL = 0.95  # confidence where none is stated and the history bears it out
RECENT, WEEKS = 5, 3
"""Nights in an average: the last ones of the same kind, and of the same weekday."""
SMALLEST = 0.02
"""Share of the typical need that is added to every expectation, so that none is zero."""

FORMS = ("last week", "recent nights", "both", "both, by level", "both, mostly by level")
"""Names of the forms, in the order of the rows that :func:`expectations` returns."""


def expectations(nights: Nights, number: int) -> FloatArray:
    """Expected need of each window of one night by every form; (forms, windows) [units]."""
    # ``last week`` is the last night of the same weekday (of the same kind, working day or weekend,
    # where there is none); ``recent nights`` is the mean of the last five of the same kind;
    # ``both`` is the mean of these five and the last three of the same weekday. Holidays of a
    # calendar are of the kind of weekends. The last two forms multiply ``both`` by the load of the
    # hour before the decision over the load of the same hour on those nights (their geometric
    # mean), to the power of 0.5 and 0.8.
    earlier = np.arange(nights.ended[number])
    weekday = nights.weekday
    weekend = (weekday >= 5) | nights.holiday
    alike = earlier[weekend[earlier] == weekend[number]]
    alike = alike if len(alike) else earlier
    same_day = alike[weekday[alike] == weekday[number]]
    both = np.concatenate([same_day[-WEEKS:], alike[-RECENT:]])
    last = same_day[-1] if len(same_day) else alike[-1]
    least = SMALLEST * float(nights.need[earlier].mean())
    level = nights.level + max(least, 1e-12)
    busier = float(np.exp(np.mean(np.log(level[number] / level[both]))))
    mean = nights.busiest[both].mean(axis=0)
    forms = np.stack(
        [
            nights.busiest[last],
            nights.busiest[alike[-RECENT:]].mean(axis=0),
            mean,
            mean * busier**0.5,
            mean * busier**0.8,
        ]
    )
    return np.asarray(forms + max(least, 1e-12))


FEWEST = 3  # least number of past errors from which a margin is learned
MEMORY = 0.95  # factor by which the loss of a form counts less with every night
FADING = 0.5  # factor by which an excess that is added to the margin shrinks with every night


@dataclass(frozen=True, eq=False)
class Backtest:
    """Answers for the nights of a history, each from the nights before it alone."""

    # (answered,): numbers of the nights that could be answered, counted from the first of the
    # history
    number: npt.NDArray[np.int64]
    capacity: FloatArray  # (answered, windows): units kept for serving
    # (answered,): whether demand exceeded the capacity in more minutes than the SLO allows
    violated: npt.NDArray[np.bool_]
    missed: FloatArray  # (answered,): share of the night's demand beyond the capacity
    # (windows,): units to keep in the coming night. They may exceed the fleet, as expected demand
    # may
    coming: FloatArray
    form: str  # form of the expectation that the coming night uses
    # (answered,): whether the nights before bore out the confidence by themselves
    borne: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.number)


@dataclass(frozen=True, eq=False)
class NightErrors:
    """Expectations for all nights, and the errors of the past ones as logarithms."""

    nights: Nights
    share: float  # share of a night's minutes in which demand has to stay within the capacity
    first: int  # first night that has an earlier one to derive an expectation from
    # (forms, windows): expected need from night ``first`` on, the coming night last
    expected: list[FloatArray]
    # (nights - first, forms): logarithm of the least factor that each night needed on each
    # expectation
    errors: FloatArray

    @property
    def known(self) -> int:
        """Number of nights from whose errors the margin of the coming night is learned."""
        return len(self.before(len(self.nights)))

    def before(self, number: int) -> FloatArray:
        """Errors of the nights that had ended when a night was decided on; (nights, forms)."""
        return self.errors[: max(int(self.nights.ended[number]) - self.first, 2)]


def night_errors(nights: Nights, share: float) -> NightErrors:
    """Return every night's expectation from the nights before it, and its error."""
    first = int(np.argmax(nights.ended >= 1))
    if len(nights) < first + FEWEST + 1 or not nights.ended[first]:
        raise InputError(
            f"the history has {len(nights)} whole nights; at least {first + FEWEST + 1} are needed "
            "to state a confidence. Give a longer history."
        )
    expected = [expectations(nights, number) for number in range(first, len(nights) + 1)]
    errors = np.stack(
        [
            log_errors(nights.need[number], expected[number - first], nights.edges, share)
            for number in range(first, len(nights))
        ]
    )
    return NightErrors(nights, share, first, expected, errors)


def backtest(nights_errors: NightErrors, confidence: float, fewest: float, most: float) -> Backtest:
    """Answer every night from those before it, and the coming night from all."""
    # Among the forms of the expectation, each night uses the one with the least loss on the nights
    # before. The loss of a night is the capacity kept, plus the excess of demand over it divided by
    # the risk (the pinball loss of a quantile), both as logarithms. The risk is corrected after
    # each night by whether its answer was exceeded. The excess itself is added to the next margins,
    # half as much every night, because demand that has risen once often goes on rising.
    nights, wanted_risk = nights_errors.nights, 1 - confidence
    risk, loss, excess = aimed_at(wanted_risk), np.zeros(len(FORMS)), np.zeros(len(FORMS))
    answers: list[_Answer] = []
    judged = 0
    for number in range(nights_errors.first + FEWEST, len(nights) + 1):
        # Only nights that had ended by then correct the answer.
        while judged < len(answers) and answers[judged].number < nights.ended[number]:
            answer = answers[judged]
            over = nights_errors.errors[answer.number - nights_errors.first] - answer.margins
            risk = corrected(risk, wanted_risk, violated=bool(over[answer.form] > 0))
            night_loss = np.log(answer.kept.mean(axis=1)) + np.maximum(over, 0.0) / wanted_risk
            loss = MEMORY * loss + night_loss
            excess = np.maximum(FADING * excess, over)
            judged += 1
        past = nights_errors.before(number)
        aimed = min(max(risk, min(LEAST_RISK, wanted_risk)), max(MOST_RISK, wanted_risk))
        margins = excess + [margin_log(errors, aimed) for errors in past.T]
        kept = np.exp(margins)[:, None] * nights_errors.expected[number - nights_errors.first]
        answers.append(_Answer(number, int(np.argmin(loss)), margins, kept))
    # Every answer is compared with the demand of its night; the last night is still to come.
    wanted, earlier = errors_for(confidence), answers[:-1]
    borne = [len(nights_errors.before(answer.number)) >= wanted for answer in earlier]
    tested = np.array([answer.number for answer in earlier], np.int64)
    capacity = np.clip(np.stack([answer.kept[answer.form] for answer in earlier]), fewest, most)
    need = nights.need[tested]
    # Demand that the whole fleet could not serve is no fault of the answer.
    over = np.minimum(need, most) - np.repeat(capacity, np.diff(nights.edges), axis=1)
    within = (over <= 1e-9).mean(axis=1)
    return Backtest(
        number=tested,
        capacity=capacity,
        violated=within < nights_errors.share,
        missed=np.maximum(over, 0.0).sum(axis=1) / np.maximum(need.sum(axis=1), 1e-12),
        coming=answers[-1].kept[answers[-1].form],
        form=FORMS[answers[-1].form],
        borne=np.array(borne, bool),
    )


@dataclass(frozen=True, eq=False)
class _Answer:
    """Answer for one night: the form used, and the margin and kept units of every form."""

    number: int
    form: int
    margins: FloatArray
    kept: FloatArray


def log_errors(need: FloatArray, expected: FloatArray, edges: IntArray, share: float) -> FloatArray:
    """Logarithm of the least factor that a night needed on each expectation; (forms,)."""
    # With that factor the share of minutes within capacity is at least ``share``.
    ratio = np.sort(need / np.repeat(expected, np.diff(edges), axis=1), axis=-1)
    minutes = ratio.shape[-1]
    allowed = min(int((1 - share) * minutes + 1e-9), minutes - 1)
    return np.asarray(np.log(np.maximum(ratio[..., minutes - 1 - allowed], 1e-9)))
