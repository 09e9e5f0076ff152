"""Experiments by name; the module of an experiment is loaded when it runs."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True)
class Experiment:
    """A module of this package with ``run(...) -> DataFrame`` and ``plot(frame) -> Figure``."""

    name: str
    question: str

    def load(self) -> ModuleType:
        """Import the module."""
        return importlib.import_module(f"experiments.scripts.{self.name}")


EXPERIMENTS = (
    Experiment("algorithm_switch_points", "Which algorithm is the fastest at each size?"),
    Experiment("busbw_vs_size", "How does bus bandwidth grow with the size of a collective?"),
    Experiment(
        "collective_offload", "What does a step gain when collectives need no compute cores?"
    ),
    Experiment("generations", "Which generation trains most at equal chips, power and dollars?"),
    Experiment("half_rate_z", "What does the thinner third axis of an UltraServer cost?"),
    Experiment("moe_on_torus_and_switch", "Does a mixture of experts want a torus or a switch?"),
    Experiment(
        "pipeline_schedules", "Which pipeline schedule idles least, at how many microbatches?"
    ),
    Experiment("plan_ranking", "Do estimates rank plans in the order of their measured times?"),
    Experiment("policy_frontier", "How much training does each policy win at which attainment?"),
    Experiment("role_change_value", "How many chips can be lent, by the time a change takes?"),
    Experiment("step_time_across_models", "Where does a step's time go across models?"),
    Experiment("step_time_breakdown", "What does overlap hide of a training step?"),
    Experiment("stragglers_and_jitter", "What do uneven chips cost at each scale?"),
    Experiment(
        "strong_scaling", "What remains of a chip's speed when one batch is spread thinner?"
    ),
    Experiment("torus_vs_neuronswitch", "What does a chip get of a torus, what of a switch?"),
    Experiment("tp_on_torus", "Which tensor-parallel degree, and which chips for a group?"),
    Experiment("weak_scaling", "Does a chip train as fast among a million as among a thousand?"),
)

NOW_COMMANDS = {
    "demo": "train --model llama-3.1-405b --cluster trn2-ultraserver:16 --tp 32 --pp 2 "
    "--global-batch 256 --seq 8192 --overlap all",
    "fleet_week": "fleet --cluster rainier --demand azure-code",
    "plan_comparison": "plan --model llama-3.1-405b --cluster trn2-ultraserver:16 "
    "--global-batch 256 --seq 8192 --each tp,pp",
}
"""Commands whose ``--out`` has the table and the figure of an experiment that there was."""


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
