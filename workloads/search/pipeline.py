"""Closed forms of pipelines whose first and last stage differ from those between them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cluster_sim.schedule import BoolArray, IntArray
from workloads.search.talk import FloatArray


@dataclass(frozen=True, eq=False)
class Pipelines:
    """Pipelines of many plans, one element each.

    Attributes
    ----------
    stages, microbatches : int64 array (plans,)
    gpipe : bool array (plans,)
        All forward passes first; otherwise 1F1B.
    forward_s, backward_s : float64 array (3, plans)
        Passes of one microbatch through the first, a middle and the last stage [s].
    hop_s : float64 array (plans,)
        Slowest transfer between two stages [s].
    hops_s : float64 array (plans,)
        Transfers from the first to the last stage, one after the other [s].
    waits : bool array (plans,)
        Whether a stage waits for what it sends.
    """

    stages: IntArray
    microbatches: IntArray
    gpipe: BoolArray
    forward_s: FloatArray
    backward_s: FloatArray
    hop_s: FloatArray
    hops_s: FloatArray
    waits: BoolArray


def through_s(one: Pipelines, passes_s: FloatArray) -> FloatArray:
    """One microbatch through all stages, transfers left out [s]."""
    first, middle, last = passes_s
    many = np.maximum(0, one.stages - 2) * middle
    found: FloatArray = first + many + np.where(one.stages > 1, last, 0.0)
    return found


def pipeline_s(one: Pipelines) -> FloatArray:
    """Time from the first forward pass to the last backward pass [s].

    A microbatch goes through all stages and back; each further one follows after what the slowest
    stage takes for it. In 1F1B a stage also cannot be ahead of the way to the last stage and back
    by more microbatches than there are stages, so that way divided by the stages is another bound.
    A stage that waits for what it sends does so where no receiving comes next: at the end of the
    pipeline that it starts from.
    """
    there, back = through_s(one, one.forward_s), through_s(one, one.backward_s)
    more = one.microbatches - 1
    whole = there + back + 2 * one.hops_s
    sent_s = np.where(one.waits & (one.stages > 1), one.hop_s, 0.0)
    one_way = _slowest(one, _plus(one.forward_s, 0, sent_s))
    other_way = _slowest(one, _plus(one.backward_s, 2, sent_s))
    both_ways = _slowest(one, one.forward_s + one.backward_s)
    a_pair = np.maximum(both_ways, whole / one.stages)
    found: FloatArray = whole + more * np.where(one.gpipe, one_way + other_way, a_pair)
    return found


def _plus(passes_s: FloatArray, stage: int, more_s: FloatArray) -> FloatArray:
    found = passes_s.copy()
    found[stage] += more_s
    return found


def _slowest(one: Pipelines, passes_s: FloatArray) -> FloatArray:
    first, middle, last = passes_s
    ends = np.where(one.stages > 1, np.maximum(first, last), first)
    found: FloatArray = np.where(one.stages > 2, np.maximum(ends, middle), ends)
    return found


def streamed_s(layers: IntArray, work_s: FloatArray, talk_s: FloatArray) -> FloatArray:
    """How long equal communications, one beside each of equal layers, outlast the layers [s].

    Two machines in line: the last of n jobs of lengths w and t ends at w + t + (n − 1) max(w, t).

    Examples
    --------
    >>> streamed_s(np.array([4]), np.array([3.0]), np.array([1.0])).tolist()
    [1.0]
    >>> streamed_s(np.array([4]), np.array([1.0]), np.array([3.0])).tolist()
    [9.0]
    """
    ends = work_s + talk_s + (layers - 1) * np.maximum(work_s, talk_s)
    found: FloatArray = np.where(talk_s > 0, ends - layers * work_s, 0.0)
    return found
