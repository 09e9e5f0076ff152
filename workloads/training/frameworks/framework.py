"""The noun ``Framework``: what a training stack does that a plan does not say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

from topologies.catalogue.catalogue import NEURON, Catalogue, chip_family
from topologies.clusters.cluster import Cluster
from topologies.support.arguments import check_fields, check_names
from topologies.support.errors import InputError, suggestion
from topologies.support.files.yaml_documents import read_yaml
from topologies.support.options import in_words
from workloads.models.model import Model
from workloads.training.plan.plan import PLAN_FIELDS, check_field, framework_names

LARGEST_FILE_BYTES = 2**16
DATE = r"(19|20)\d\d(-(0[1-9]|1[0-2])(-\d\d)?)?"
"""A year, a month or a day: the setting that chooses a release."""
LATER = "later"  # end of the releases of today, which sorts behind every date
OF_THE_CHIP = "kernels.CHIP."
"""Prefix of a variant of the kernels of whichever chip runs the plan, where it has the variant."""
RUNS = ("tp", "pp", "cp", "ep", "etp", "vpp", "schedule", "zero")
"""Fields of a plan of which a stack may have some values alone; a search leaves out the others."""
CLUSTERS_KEPT = 256
names = framework_names  # function that returns the names of the shipped frameworks

Variants = Mapping[str, str]  # names of catalogue variants by ``PART.QUANTITY``


@dataclass(frozen=True, eq=False)
class Framework:
    """A training stack: the choices that a plan leaves to it."""

    name: str  # name, and for a file of a user's own its path
    title: str  # the stack and its years in a few words
    # Collective runtimes of the chips that it trains on, as the catalogue names them: ``nccl``,
    # ``rccl``, ``neuron``, ``xla`` or ``other``
    runtimes: tuple[str, ...]
    # Values of fields of a plan where they are not stated
    plan: Mapping[str, Any] = field(default_factory=dict)
    # Meaning of *selective* recomputation: the core of attention (Megatron), or every other layer
    # (frameworks of FSDP)
    selective: str = "attention"
    # Values that it can run of fields of a plan; of fields without an entry, all
    runs: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    # Layers of a model chunk where a pipeline's chunks are not stated, of ``dense`` models and of
    # those with ``experts``; without an entry a stage is one chunk
    layers_of_a_chunk: Mapping[str, int] = field(default_factory=dict)
    numbers: Variants = field(default_factory=dict)  # catalogue variants that describe the stack
    # Further variants for models without experts
    dense_numbers: Variants = field(default_factory=dict)
    # Further variants by the name of a setting that a user may add
    settings: Mapping[str, Variants] = field(default_factory=dict)
    experts_may: tuple[str, ...] = ()  # settings that many of those have who exchange tokens
    # (str, mapping, mapping): Ends of the periods of its releases, ascending, each with variants of
    # the period and values that it gives to fields of a plan that nobody states. The setting of a
    # date chooses one; without a date none applies.
    releases: tuple[tuple[str, Variants, Mapping[str, Any]], ...] = ()
    # Kinds of plans that it is used for today: ``divided`` by tensor or pipeline parallelism, by
    # ``tensor`` parallelism alone, ``sharded`` by data parallelism alone, or ``unfused``, with
    # separate attention kernels
    usual_for: tuple[str, ...] = ()
    usual_on: tuple[str, ...] = ()  # runtimes where it is usual, if it is not on all of its own
    assumes: str = ""  # the choices in words
    source: str = ""  # where they are known from
    chosen: tuple[str, ...] = ()  # settings in force

    @property
    def text(self) -> str:
        """Name and settings, as :func:`framework` reads them."""
        return f"{self.name}:{','.join(self.chosen)}" if self.chosen else self.name

    def variants(self, chip: str, base: Catalogue, *, dense: bool) -> dict[str, str]:
        """Return the catalogue variants of the stack and its settings on a chip."""
        # A release comes first: what else was chosen holds whatever the release is.
        layers = [self.numbers, self.dense_numbers if dense else {}]
        layers += [variants for variants, _ in self._of_date()]
        layers += [self.settings[word] for word in self.chosen if word in self.settings]
        named = {path: name for layer in layers for path, name in layer.items()}
        return dict(_on_the_chip(named, chip, base))

    def has(self, setting: str) -> bool:
        """Return whether a word is a setting of the stack, as every date is."""
        return setting in self.settings or re.fullmatch(DATE, setting) is not None

    @property
    def usual(self) -> dict[str, Any]:
        """Values of fields of a plan that nobody states, by its release where a date is chosen."""
        usual = dict(self.plan)
        for _, plan in self._of_date():
            usual |= plan
        return usual

    def _of_date(self) -> list[tuple[Variants, Mapping[str, Any]]]:
        """Variants, and values of a plan, of the release that each chosen date means."""
        dates = [word for word in self.chosen if word not in self.settings]
        periods = [[period[1:] for period in self.releases if date < period[0]] for date in dates]
        return [within[0] for within in periods if within]

    def lacks(self, plan: Any) -> Iterator[tuple[str, Any]]:
        """Yield the fields of a plan, with their values, that the stack cannot run so."""
        # One stage has no schedule, and one replica shards nothing.
        idle = {"schedule": plan.pp == 1, "zero": plan.sharding == 0}
        for name, values in self.runs.items():
            value = getattr(plan, name)
            if value not in values and not idle.get(name):
                yield name, value

    def check_plan(self, plan: Any, cluster: Cluster) -> None:
        """Refuse a plan with a value that the stack cannot run."""
        for name, value in self.lacks(plan):
            stacks = [each for each in map(framework, names()) if each.trains_on(cluster)]
            able = [each.name for each in stacks if value in each.runs.get(name, [value])]
            raise InputError(
                f"framework {self.name} cannot run {name} {value}, only "
                f"{' or '.join(map(str, self.runs[name]))}. "
                + (f"{', '.join(able)} can." if able else "Leave the framework out.")
            )

    def on(self, cluster: Cluster, model: Model) -> Cluster:
        """Return the cluster with the numbers of the stack in force that trains a model."""
        # A variant that the cluster's catalogue chose already, as by ``--variant``, stays.
        dense = model.experts is None
        return _with_numbers(self, cluster, dense) if cluster.chip else cluster

    def trains_on(self, cluster: Cluster) -> bool:
        """Return whether the stack trains on the chips of a cluster."""
        return chip_family(cluster.chip, cluster.catalogue).runtime in self.runtimes

    def check_chip(self, cluster: Cluster) -> None:
        """Refuse a cluster whose chips the stack does not train on, or has no set value for."""
        if not self.trains_on(cluster):
            runtime = chip_family(cluster.chip, cluster.catalogue).runtime
            others = ", ".join(name for name in names() if runtime in framework(name).runtimes)
            raise InputError(
                f"framework {self.name} does not train on {cluster.chip} of {cluster.name}. "
                f"Use one of {others}."
            )
        base = cluster.numbers
        for word in self.chosen:
            if word in self.settings and not _on_the_chip(self.settings[word], cluster.chip, base):
                raise InputError(
                    f"setting {word} of framework {self.name} changes nothing on {cluster.chip}, "
                    "whose kernels have no such numbers. Leave it out."
                )


def _on_the_chip(named: Variants, chip: str, base: Catalogue) -> list[tuple[str, str]]:
    """Paths and names of variants; those of kernels only where this chip's kernels have them."""
    kernels, of_chip = chip_family(chip, base).kernels, []
    for path, name in named.items():
        if not path.startswith(OF_THE_CHIP):
            if path.startswith(f"{kernels}.") or not path.startswith("kernels."):
                of_chip.append((path, name))
            continue
        quantity = path.removeprefix(OF_THE_CHIP)
        if base.has(kernels, f"{quantity}_{chip}"):
            quantity = f"{quantity}_{chip}"  # a number of this chip alone precedes its family's
        if base.has(kernels, quantity) and any(
            row.variant == name for row in base.variants(kernels, quantity)
        ):
            of_chip.append((f"{kernels}.{quantity}", name))
    return of_chip


@lru_cache(CLUSTERS_KEPT)
def _with_numbers(stack: Framework, cluster: Cluster, dense: bool) -> Cluster:
    base = cluster.numbers
    already = {f"{part}.{quantity}" for part, quantity, _ in base.chosen}
    wanted = stack.variants(cluster.chip, base, dense=dense)
    left = {path: name for path, name in wanted.items() if path not in already}
    changed = base.with_variants(left) if left else base
    return cluster if changed == base else replace(cluster, catalogue=changed)


def framework(text: str) -> Framework:
    """Return a framework by name or file with settings, such as ``megatron-core:graphs``."""
    name, _, added = text.partition(":")
    is_file = name.endswith((".yaml", ".yml"))
    if not is_file and name not in names():
        raise InputError(
            f"framework {name[:40]!r} is none of {', '.join(names())}.{_meant(name)} A file of "
            "your own ends in .yaml."
        )
    stack = _read(name) if is_file else _shipped(name)
    chosen = tuple(word.strip() for word in added.split(",") if word.strip())
    for setting in chosen:
        if not stack.has(setting):
            settings = ", ".join(stack.settings) or "none but a date"
            near = suggestion(setting, stack.settings)
            raise InputError(
                f"framework {name} has no setting {setting[:40]!r}.{near} It has {settings}; a "
                "date such as 2024-06 chooses a release."
            )
    return replace(stack, chosen=chosen) if chosen else stack


def _meant(word: str) -> str:
    """Return the frameworks whose titles have a word, such as that of a tool that runs on them."""
    tool = re.escape(word.rstrip("0123456789"))
    of_tool = tuple(
        name
        for name in names()
        if tool and re.search(rf"\b{tool}\b", f"{name} {_shipped(name).title}", re.IGNORECASE)
    )
    return f" Did you mean {in_words(of_tool)}?" if of_tool else suggestion(word, names())


@cache
def _shipped(name: str) -> Framework:
    folder = files("workloads.training") / "frameworks"
    return _read(str(folder / f"{name}.yaml"), name)


def _read(path: str, name: str = "") -> Framework:
    """Read a framework's file, whose keys are the fields of the noun."""
    document = read_yaml(path, limit_bytes=LARGEST_FILE_BYTES, content="keys of a framework")
    keys = [entry.name for entry in fields(Framework) if entry.name not in ("name", "chosen")]
    check_names(f"{path}: a framework", map(str, document), keys)
    for key in ("title", "runtimes"):
        if not document.get(key):
            raise InputError(f"{path}: a framework needs {key}. Add it.")
    stated = {key: value for key, value in document.items() if value is not None}
    try:
        stated["releases"] = [
            (
                str(release.get("before", LATER)),
                release.get("numbers") or {},
                release.get("plan") or {},
            )
            for release in stated.get("releases", ())
        ]
    except (AttributeError, TypeError):
        raise InputError(
            f"{path}: a release has before and numbers. Write {{before: 2024-06, numbers: {{}}}}."
        ) from None
    try:
        check_fields(Framework, stated)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    if stated.get("selective", "attention") not in ("attention", "layers"):
        raise InputError(f"{path}: selective is attention or layers. Correct it.")
    plans = [stated.get("plan", {}), *(plan for _, _, plan in stated["releases"])]
    for part, names_of, choices in (
        *(("a plan", PLAN_FIELDS, {key: [value] for key, value in plan.items()}) for plan in plans),
        ("runs", RUNS, stated.get("runs", {})),
    ):
        check_names(f"{path}: {part}", choices, names_of)
        for key, values in choices.items():
            for value in values:
                check_field(key, value)
    for key in ("runtimes", "usual_for", "usual_on", "releases", "experts_may"):
        stated[key] = tuple(stated.get(key, ()))
    stated["usual_on"] = stated["usual_on"] or stated["runtimes"]
    return Framework(name=name or path, **stated)


def usual_framework(cluster: Cluster, stated: Mapping[str, Any]) -> str:
    """Return the framework that a plan is predicted with where none is named."""
    # It follows from the machine and the kind of plan: sharded parameters are PyTorch's FSDP,
    # separate attention kernels date from the Megatron-LM of 2020 to 2022, a Trainium host that
    # issues operations runs torch-neuronx, and a machine of one Trainium chip PyTorch itself if
    # nobody states how work is issued. On one GPU nobody divides anything, and models are
    # trained there by Transformers, and adapted by it, in bf16, on any number that only divide
    # the batch or shard the parameters. NxD shards no parameters, and FSDP has no pipeline.
    runtime = chip_family(cluster.chip, cluster.catalogue).runtime
    if runtime == NEURON:
        if stated.get("runtime") in ("eager", "xla"):
            return "torch-neuronx"
        if cluster.chips == 1 and "runtime" not in stated:
            return "torchneuron"
        return "axlearn" if stated.get("zero") == 3 else "neuronx"
    if runtime == "xla":
        return "maxtext"
    if stated.get("attention") == "unfused":
        return "megatron-lm"
    divided = any(stated.get(axis, 1) > 1 for axis in ("tp", "pp", "cp"))
    adapted = bool(stated.get("lora_rank")) and stated.get("precision", "bf16") == "bf16"
    one_rank = (stated.get("dp") or stated.get("chips") or cluster.chips) == 1
    if not divided and (adapted or (one_rank and stated.get("zero") != 3)):
        return "transformers"
    # Beside a pipeline only PyTorch's FSDP shards gradients: Megatron's optimizer shards its states
    # alone, and DeepSpeed refuses stages 2 and 3 there (deepspeed/runtime/pipe/engine.py).
    if stated.get("pp", 1) > 1 and (stated.get("zero") or 0) >= 2:
        return "torchtitan"
    if stated.get("zero") == 3:
        return "fsdp"
    return "megatron-core"


def framework_text(text: str, cluster: Cluster, stated: Mapping[str, Any]) -> str:
    """Return the text of a plan's framework, with the usual name where it has only settings."""
    name, colon, settings = text.partition(":")
    return f"{name or usual_framework(cluster, stated)}{colon}{settings}"


def framework_of(plan: Any, cluster: Cluster) -> Framework:
    """Return the framework that runs a plan on a cluster: the one it names, or the usual one."""
    stack = framework(framework_text(plan.framework, cluster, vars(plan)))
    stack.check_chip(cluster)
    if plan.names_framework:
        stack.check_plan(plan, cluster)
    return stack
