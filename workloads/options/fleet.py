"""Options of a fleet: its machines, its models and jobs, and all groups of options together.

``cluster-sim fleet`` and ``lend`` make options of the described fields, ``cs.run_fleet`` and
``cs.lend`` take them as keywords. Nothing large is imported here, so that the command line starts
quickly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from topologies.options import option
from workloads.options.bounds import MOST
from workloads.options.demand import DemandInputs
from workloads.options.money import MoneyInputs
from workloads.options.policy import LimitInputs, PolicyInputs
from workloads.options.speculation import SPECULATION


@dataclass(frozen=True)
class FleetInputs:
    """The fleet, the model that it serves, and the jobs that it trains."""

    cluster: str = field(
        default="rainier",
        metadata=option("Cluster whose scale-up domains change between serving and training"),
    )
    model: str = field(
        default="llama-3.1-405b",
        metadata=option(
            "Model that is served, and trained by the default jobs; several are written with "
            "their shares of the requests: llama-3.1-405b=20%,llama-3.1-8b=80%"
        ),
    )
    tp: int | None = field(
        default=None,
        metadata=option(
            "Tensor-parallel degree of a replica",
            least=1,
            default="the chips of a server, or more where the model does not fit",
        ),
    )
    precision: str = field(
        default="auto",
        metadata=option(
            "Precision of serving: auto is bf16, or fp8 where the weights do not fit",
            choices=("auto", "bf16", "fp8", "mxfp8", "fp4", "mxfp4"),
        ),
    )
    slo: str = field(
        default="ttft=6s,tpot=175ms",
        metadata=option(
            "Limits of time to first token and time per output token, and the share of requests "
            "that must keep them, such as ttft=2s,tpot=50ms,share=99.9%"
        ),
    )
    prefill: str = field(
        default="auto",
        metadata=option(
            "Processing of prompts: chunked (in pieces, together with decoding), separate (whole, "
            "while decoding waits), or auto: on Neuron machines groups of up to 3:1, see "
            "--disaggregate, or separate where a unit holds one replica; elsewhere chunked",
            choices=("auto", "separate", "chunked"),
        ),
    )
    chunk: int | None = field(
        default=None,
        metadata=option(
            "Tokens of an iteration with chunked prefill; 0 is --prefill separate",
            least=0,
            most=MOST,
            default="512, for mixtures of experts 8192",
        ),
    )
    prefix_cache: str | None = field(
        default=None,
        metadata=option(
            "Share of the prompt tokens that a replica's prefix cache holds once it is full, such "
            "as 50%; the cache is empty after a change of role",
            metavar="SHARE",
            default="none",
        ),
    )
    speculate: str | None = field(
        default=None,
        metadata=option(
            SPECULATION,
            metavar="TOKENS:ACCEPTANCE[:DRAFT]",
            default="none",
        ),
    )
    disaggregate: str | None = field(
        default=None,
        metadata=option(
            "Disaggregated serving: prefill and decode replicas of a group, such as 1:3; groups "
            "fill a unit or take several",
            metavar="P:D",
            default="by --prefill",
        ),
    )
    unit_rate: float | None = field(
        default=None,
        metadata=option(
            "Requests that a unit serves, in place of the model's capacity",
            unit="requests/s",
            most=MOST,
        ),
    )
    training: Path | None = field(
        default=None,
        metadata=option(
            "Training jobs",
            metavar="FILE.csv",
            default="pre-training runs, post-training gangs and evaluation",
        ),
    )
    post_training: str | None = field(
        default=None,
        metadata=option(
            "Run the default post-training jobs as reinforcement learning, whose rollouts wait for "
            "the newest weights, or use those of the step before",
            choices=("lockstep", "one-behind"),
            default="plain training",
        ),
    )
    failures: str = field(
        default="on",
        metadata=option(
            "Failures of single servers; with domains also of racks, scale-up domains and power "
            "feeds, and of links, switches and software that stop training",
            choices=("on", "off", "domains"),
        ),
    )
    cache: Path | None = field(
        default=None,
        metadata=option(
            "Folder for capacity tables, in place of the cache of the package", metavar="DIR"
        ),
    )


@dataclass(frozen=True)
class Question:
    """All options of a fleet, by group."""

    fleet: FleetInputs = field(default_factory=FleetInputs)
    demand: DemandInputs = field(default_factory=DemandInputs)
    policy: PolicyInputs = field(default_factory=PolicyInputs)
    limits: LimitInputs = field(default_factory=LimitInputs)
    money: MoneyInputs = field(default_factory=MoneyInputs)
