"""Experiments by name; the module of an experiment is loaded when it runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class Script(NamedTuple):
    """An experiment: parameters to rows, rows to a figure, and claims of others beside them."""

    run: Callable[..., pd.DataFrame]
    plot: Callable[[pd.DataFrame], Figure]
    claims: Callable[[pd.DataFrame], pd.DataFrame] | None = None


@dataclass(frozen=True)
class Experiment:
    """Functions ``NAME(...) -> DataFrame`` and ``draw_NAME(frame) -> Figure`` of a module here."""

    name: str
    module: str
    question: str

    def load(self) -> Script:
        """Import the module, and return the functions."""
        module: Any = importlib.import_module(f"experiments.scripts.{self.module}")
        functions = getattr(module, self.name), getattr(module, f"draw_{self.name}")
        return Script(*functions, getattr(module, "claims", None))


QUESTIONS = {
    "collectives": {
        "algorithm_switch_points": "Which algorithm is the fastest at each size?",
        "busbw_vs_size": "How does bus bandwidth grow with the size of a collective?",
        "half_rate_z": "What does the thinner third axis of an UltraServer cost?",
        "torus_vs_neuronswitch": "What does a chip get of a torus, what of a switch?",
    },
    "fleet": {
        "policy_frontier": "How much training does each policy win at which attainment?",
        "role_change_value": "How many chips can be lent, by the time a change takes?",
    },
    "generations": {
        "generations": "Which generation trains most at equal chips, power and dollars?"
    },
    "plan_ranking": {
        "plan_ranking": "Do estimates rank plans in the order of their measured times?"
    },
    "scaling": {
        "stragglers_and_jitter": "What do uneven chips cost at each scale?",
        "strong_scaling": "What remains of a chip's speed when one batch is spread thinner?",
        "weak_scaling": "Does a chip train as fast among a million as among a thousand?",
    },
    "training": {
        "collective_offload": "What does a step gain when collectives need no compute cores?",
        "moe_on_torus_and_switch": "Does a mixture of experts want a torus or a switch?",
        "pipeline_schedules": "Which pipeline schedule idles least, at how many microbatches?",
        "step_time_across_models": "Where does a step's time go across models?",
        "step_time_breakdown": "What does overlap hide of a training step?",
        "tp_on_torus": "Which tensor-parallel degree, and which chips for a group?",
    },
}
"""Questions by the module and the name of the experiment that answers them."""
EXPERIMENTS = tuple(
    Experiment(name, module, question)
    for name, module, question in sorted(
        (name, module, question)
        for module, named in QUESTIONS.items()
        for name, question in named.items()
    )
)


PARAMETERS = {
    "cluster": "Named machine or cluster file",
    "days": "Simulated time; by default a week, to include weekdays and a weekend [d]",
    "jitter": "Standard deviations of kernel times or causes of uneven chips; 0 for equal chips",
    "global_batch": "Sequences of one optimizer step, all replicas together",
    "ideal": "Use the rates and latencies of links alone, without efficiencies and launches",
    "machine": "Machine of one scale-up domain, several of which form a cluster",
    "model": "Name of a shipped model, or path of a config.json",
    "models": "Names of shipped models, or paths of config.json files",
    "op": "Collective operation, such as all-reduce",
    "overlap": "Communication that overlaps compute: none, dp or all",
    "pp": "Pipeline stages",
    "ranks_per_chip": "Ranks on each chip",
    "replica": "Plan of one replica of the model, which is repeated over the chips",
    "seq": "Length of a sequence [tokens]",
    "sizes": "First and last size of the buffer, and the factor between two sizes; by default from "
    "launch-bound to bandwidth-bound [B]",
    "tp": "Tensor-parallel degree [ranks]",
    "watch": "Shows the progress, see :func:`experiments.scripts.support.each`",
}
