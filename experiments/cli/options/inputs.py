"""Inputs that several commands share (catalogue, cluster, model), and the output of an answer."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cluster_sim.progress import progress
from experiments.cli.output.printing import print_json, print_rows
from experiments.cli.output.side_by_side import cluster_names
from experiments.reports.certainty import paid
from experiments.reports.formatting import Column, sentence
from experiments.reports.result_checks import check_results
from experiments.reports.run_record import check_replaceable
from topologies.catalogue.catalogue import LIKE, Catalogue, choose
from topologies.catalogue.reader import NAME, is_reference, read_entries
from topologies.clusters.cluster import Cluster
from topologies.clusters.machines import machine_of
from topologies.clusters.names import cluster, machine
from topologies.support.errors import InputError, check_choice, printable
from topologies.support.options import required, setting
from workloads.economics import Economics, one_kind_of_price, with_prices

if TYPE_CHECKING:
    from experiments.reports.run_directory import Run
    from workloads.confidence.sensitivity import NotingCatalogue, Sensitivity
    from workloads.models.model import Model


WHY, READ = "why", "catalogue"
"""Keys in a command's context: whether ``-v`` is stated, and the catalogue that notes reads."""


@dataclass(frozen=True)
class CatalogueInputs:
    """Changes to the hardware catalogue."""

    variant: tuple[str, ...] = setting(
        (),
        "Use a named alternative of a contested value (`cluster-sim list variants` shows them), or "
        "a factor on any value, such as trn2.hbm_bandwidth=x1.5; may be repeated",
        metavar="PART.QUANTITY=NAME|xFACTOR",
    )
    catalogue: Path | None = setting(
        None, "Catalogue rows that replace the shipped ones", metavar="FILE.csv"
    )

    @property
    def changes(self) -> bool:
        """True for a catalogue other than the shipped one."""
        return bool(self.variant or self.catalogue)

    def read(self, *clusters: str) -> Catalogue:
        """Read the catalogue with these changes."""
        return choose(self.variant, self.catalogue)

    def watched(self, *clusters: str) -> Catalogue:
        """Read the catalogue, and say after the answer which changes nothing read."""
        catalogue, context = self.read(*clusters), click.get_current_context(silent=True)
        if context is None or not (self.changes or context.meta.get(WHY)):
            return catalogue
        from workloads.confidence.sensitivity import noting

        noted = context.meta[READ] = noting(catalogue)
        context.with_resource(self._naming_idle(noted))
        return noted

    @contextmanager
    def _naming_idle(self, noted: NotingCatalogue) -> Iterator[None]:
        yield  # an error of the answer ends here
        if noted.copies:
            return  # another process may have read them
        if idle := self._idle(noted):
            verb, those = ("change", "them") if len(idle) > 1 else ("changes", "it")
            sys.stderr.write(
                f"{', '.join(idle)} {verb} nothing here: the answer does not read {those}.\n"
            )

    def _idle(self, noted: NotingCatalogue) -> list[str]:
        """Changes that nothing read."""
        changes, lenders = {}, {part for part, *_ in noted.read}
        for text in self.variant:
            path, _, name = text.partition("=")
            part, _, quantity = path.strip().rpartition(".")
            changes[part, quantity, name.strip()] = f"--variant {text}"
        if self.catalogue is not None:
            for _, row in read_entries(self.catalogue, str(self.catalogue)):
                if row.quantity == LIKE and row.written in lenders:
                    continue  # rows of the part that it names were read in its place
                changes[row[:3]] = f"{row.part}.{row.quantity} of {self.catalogue}"
        read = {
            (row.part, row.quantity, name)
            for row in noted.read.values()
            if row.unit == NAME or not is_reference(row.part, row.quantity, row.unit)
            for name in (row.variant, row.written.partition(" of ")[0])  # a factor is written first
        }
        return [words for key, words in changes.items() if key not in read]


@dataclass(frozen=True)
class PricedInputs(CatalogueInputs):
    """Changes to the hardware catalogue, and the price of the machines."""

    price_basis: str | None = setting(
        None,
        "Way to pay for the machines; owned is the capital, staff and electricity of your own; "
        "train, plan, serve and run-job take several, such as on-demand,spot",
        choices="workloads.economics:PRICES",
        default="that of the catalogue's default price",
    )

    @property
    def changes(self) -> bool:
        """True for a catalogue other than the shipped one."""
        return super().changes or self.price_basis is not None

    def read(self, *clusters: str) -> Catalogue:
        """Read the catalogue with these changes, which are about the machines of clusters."""
        catalogue = super().read()
        if self.price_basis is None:
            return catalogue
        machines = _machines(clusters, catalogue).values()
        first, *_ = [with_prices(catalogue, way, machines) for way in self._ways(clusters)]
        return first

    def check_one_way(self) -> None:
        """Refuse several ways to pay, for a command that takes one."""
        if "," in str(self.price_basis):
            raise InputError(
                f"--price-basis {self.price_basis}: train, plan, serve and run-job take several. "
                "Name one way to pay."
            )

    def _ways(self, clusters: Sequence[str]) -> list[str]:
        ways = str(self.price_basis).split(",")
        if len(ways) > 1 and (len(clusters) > 1 or len(set(ways)) < len(ways)):
            why = "several are for one cluster" if len(clusters) > 1 else "one appears twice"
            raise InputError(f"--price-basis {self.price_basis}: {why}. Name one way to pay.")
        return ways

    def _idle(self, noted: NotingCatalogue) -> list[str]:
        priced = self.price_basis is None or any(key[1] == "price" for key in noted.read)
        return super()._idle(noted) + ([] if priced else [f"--price-basis {self.price_basis}"])

    def read_side_by_side(self, names: Sequence[str]) -> tuple[Catalogue, str]:
        """Read a catalogue with prices of one kind, unless the user chose, and a sentence on it."""
        catalogue = self.watched(*names)
        machines = _machines(names, catalogue)
        stated = self.catalogue or self.price_basis
        # A factor holds for every kind of price, and a name chooses one.
        if stated or any(".price=" in text and ".price=x" not in text for text in self.variant):
            return catalogue, ""
        return one_kind_of_price(catalogue, machines)

    def other_prices(
        self, results: Mapping[str, Any], catalogue: Catalogue, cluster: str
    ) -> dict[str, Any]:
        """Return the entry of a document with its prices by other ways to pay; empty for none."""
        from workloads.confidence.sensitivity import Uncertain

        ways = (self.price_basis or "").split(",")[1:]
        if ways and "budget_usd" in results.get("job", {}):
            raise InputError("--budget buys as much as one price allows. Name one --price-basis.")
        where, entries = machine(cluster, catalogue=catalogue), {}
        for way in ways:
            changed = with_prices(catalogue, way, [where])
            other, mine = Economics.of(replace(where, catalogue=changed)), Economics.of(where)
            factor = other.usd_per_chip_s / mine.usd_per_chip_s
            usd, ends = paid(results)
            ranges = Uncertain(*other.price_ends), Uncertain(*mine.price_ends)
            moved = {place: ranges[0].times(usd[place], ends[place], ranges[1]) for place in ends}
            entries[way] = {
                **{place: factor * value for place, value in usd.items()},
                "price_basis": other.price_basis,
                "interval": {
                    place: {end: factor * value for end, value in each.items()}
                    for place, each in moved.items()
                },
            }
        return {"other_prices": entries} if entries else {}


def _machines(clusters: Sequence[str], catalogue: Catalogue) -> dict[str, Cluster]:
    """Clusters by the names of their machines, each once."""
    every = [machine(each, catalogue=catalogue) for each in clusters]
    return {machine_of(each): each for each in every}


@dataclass(frozen=True)
class MachineInputs:
    """A cluster of any form, plain shapes included."""

    cluster: str = required(
        "Named machine (trn2-ultraserver:16), plain shape (ring:8) or YAML file",
        metavar="CLUSTER",
        argument=True,
    )
    bandwidth: str | None = setting(
        None, "Bandwidth of each directed link of a plain shape, such as 100GB/s"
    )
    latency: str | None = setting(None, "Latency of each link of a plain shape, such as 1us")

    def read(self, catalogue: Catalogue) -> Cluster:
        """Build the cluster."""
        return cluster(
            self.cluster, bandwidth=self.bandwidth, latency=self.latency, catalogue=catalogue
        )


@dataclass(frozen=True)
class SeveralMachines(MachineInputs):
    """One cluster of any form, or several to compare."""

    cluster: str = setting(
        "",
        "Named machine (trn2-ultraserver:16), plain shape (ring:8) or YAML file; several, "
        "written A,B,C, are compared side by side",
        metavar="CLUSTER",
        argument=True,
    )
    clusters: str | None = setting(
        None, "Clusters as an option, in place of the argument", name="cluster", metavar="A,B,C"
    )

    def __post_init__(self) -> None:
        if bool(self.cluster) == bool(self.clusters):
            both = "are both given" if self.cluster else "are both missing"
            raise InputError(f"CLUSTER and --cluster {both}. Give one, such as trn2.48xlarge.")

    @property
    def name(self) -> str:
        """Text of the argument or option that names the clusters."""
        return self.cluster or self.clusters or ""

    @property
    def names(self) -> list[str]:
        """Names of all clusters."""
        return cluster_names(self.name)

    def read(self, catalogue: Catalogue) -> Cluster:
        """Build the only cluster, as :meth:`MachineInputs.read` does."""
        single = MachineInputs(self.name, self.bandwidth, self.latency)
        return single.read(catalogue)


MOST_HEADS = 16
"""Most prediction heads of a trained model: several times those of any that is published."""


@dataclass(frozen=True)
class ModelOnCluster:
    """A model and the cluster that runs it."""

    model: str = required("Named model (`cluster-sim list models`) or path of a config.json")
    cluster: str = required("Named machine or YAML file, such as trn2-ultraserver:16")

    def read_model(self) -> Model:
        """Read the model."""
        from workloads.models.huggingface import model

        return model(self.model)

    def read_cluster(self, catalogue: Catalogue) -> Cluster:
        """Build the cluster, which must have chips that compute."""
        return machine(self.cluster, catalogue=catalogue)


@dataclass(frozen=True)
class TrainedModel(ModelOnCluster):
    """A model and the cluster that runs it."""

    prediction_heads: int = setting(
        0,
        "Layers on the last stage that each predict a token further ahead (multi-token "
        "prediction); a config states their number as num_nextn_predict_layers",
        least=0,
        most=MOST_HEADS,
    )

    def read_model(self) -> Model:
        """Read the model, with its prediction heads."""
        return super().read_model().with_prediction_heads(self.prediction_heads)


SHOWN = 15  # numbers that are printed; JSON and the run directory have all with an effect


@dataclass(frozen=True)
class SensitivityInputs:
    """Effect of the catalogue's numbers on the answer."""

    sensitivity: bool = setting(False, "Rank the catalogue's numbers by their effect on the answer")

    def rank(
        self,
        answer: Callable[[Catalogue], float],
        catalogue: Catalogue,
        call: Invocation,
        what: str,
        *,
        jumps: bool = False,
    ) -> list[Ranking]:
        """Vary every number that ``what`` reads, in wider steps where it ``jumps``."""
        if not self.sensitivity:
            return []
        from workloads.confidence.sensitivity import STEP, WIDE_STEP, sensitivity

        watch, step = partial(call.watch, task="sensitivity"), WIDE_STEP if jumps else STEP
        return [Ranking(tuple(sensitivity(answer, catalogue, watch, step)), what)]


@dataclass(frozen=True)
class Ranking:
    """Numbers of the catalogue with an effect on an answer, the largest effect first."""

    rows: tuple[Sensitivity, ...]
    what: str  # name of the answer, such as ``the time of the first size``
    # Key in the command line's JSON, and name of the table in a run directory
    key: str = "sensitivity"
    # Further keys of the JSON, with the answer itself where the results do not have it
    expected: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> Mapping[str, Any]:
        """Return the keys of the command line's JSON."""
        from workloads.confidence.sensitivity import sensitivity_frame

        return {**self.expected, self.key: sensitivity_frame(self.rows).to_dict("records")}

    def show(self) -> None:
        """Print the numbers with the largest effect."""
        hidden = len(self.rows) - SHOWN
        more = f"; {hidden} more in --json and --out" if hidden > 0 else ""
        rows = [vars(row) for row in self.rows[:SHOWN]]
        print_rows(f"What {self.what} depends on{more}", RANKED, rows, left=2)

    def write(self, run: Run) -> None:
        """Add the table and a tornado plot to a run directory."""
        from experiments.figures.sensitivity import tornado
        from workloads.confidence.sensitivity import sensitivity_frame

        picture, title = self.key.replace("sensitivity", "tornado"), f"Sensitivity of {self.what}"
        run.table(self.key, sensitivity_frame(self.rows), title=title)
        run.figure(picture, tornado(self.rows, self.what), title=title)


def _percent(change: float | None) -> str:
    return "–" if change is None else f"{100 * change:+.1f}"


RANKED = (
    Column("input", "number"),
    Column("grade", "grade"),
    Column("elasticity", "per 1 % more [%]", write="{:+.3f}".format),
    Column("change_low", "at low [%]", write=_percent),
    Column("change_high", "at high [%]", write=_percent),
)
ENGINES = ("fast", "reference")
QUIET = "CLUSTER_SIM_QUIET"
"""Environment variable that suppresses notices about functions being compiled."""


@dataclass(frozen=True)
class Invocation:
    """Every command: output, seed and engine of a call."""

    json: bool = setting(False, "Print one JSON document, in SI units", recorded=False)
    out: Path | None = setting(
        None,
        "Write a run directory with a record, tables, figures and a report; an earlier run there "
        "is replaced, and a folder with other files refused",
        metavar="DIR",
        recorded=False,
    )
    seed: int = setting(0, "Seed of all random draws", least=0, recorded=False)
    engine: str = setting(
        "fast", "Simulation engine, compiled or SimPy, with equal results", choices=ENGINES
    )
    quiet: bool = setting(False, "Show no progress on stderr", recorded=False)
    command: str = ""
    # All options on which results depend, as a run directory records them
    inputs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice("engine", self.engine, ENGINES)

    def watch(self, items: Sequence[Any], task: str) -> Iterator[Any]:
        """Yield the items of a task, and draw a bar of how many are done, but for ``--quiet``."""
        return progress(items, task, quiet=self.quiet)

    @property
    def program(self) -> click.Command | None:
        """Program to which the command belongs; None outside a command line."""
        context = click.get_current_context(silent=True)
        return None if context is None else context.find_root().command

    def begin(self) -> None:
        """Check that ``--out`` has no other files; ``--quiet`` mutes the compiler."""
        if self.quiet:
            os.environ[QUIET] = "1"  # processes that this one starts are quiet, too
        if self.out is not None:
            check_replaceable(self.out)

    def answer(
        self,
        document: Mapping[str, Any],
        show: Callable[[Mapping[str, Any]], None],
        write: Callable[[Run, Mapping[str, Any]], None],
        *,
        inputs: Mapping[str, Any] | None = None,
        rankings: Sequence[Ranking] = (),
        notes: Sequence[str] = (),
    ) -> None:
        """Write the run directory if ``--out`` names one, then print JSON or tables."""
        # The document of --json is given to ``show``, for people, and ``write``, for the directory,
        # which records ``inputs``, by default the stated options. ``rankings`` come last in every
        # output.
        results = dict(document)
        for ranking in rankings:
            results |= ranking.document()
        check_results(results)
        if self.out is not None:
            from experiments.reports.run_directory import run_directory

            with run_directory(
                self.out,
                command=self.command,
                inputs=self.inputs if inputs is None else inputs,
                seed=self.seed,
                program=self.program,
            ) as run:
                write(run, document)
                for ranking in rankings:
                    ranking.write(run)
        if self.json:
            print_json(results)
        else:
            show(document)
            for ranking in rankings:
                ranking.show()
        context = click.get_current_context(silent=True)
        if context is not None and context.meta.get(WHY):
            from experiments.cli.options.why import print_why

            read = context.meta[READ].read.values() if READ in context.meta else ()
            print_why(document, read)
        for note in filter(None, (*notes, self._left_out())):
            sys.stderr.write(f"{printable(sentence(note))}\n")

    def _left_out(self) -> str:
        """Sentence on what of the command's model is not simulated; empty if all of it is."""
        named = self.inputs.get("model")
        if not isinstance(named, str) or self.command == "train":  # which says it among its results
            return ""
        from workloads.models.huggingface import model

        try:
            left_out = model(named).left_out
        except InputError:  # several models, as a fleet may have
            return ""
        return f"Left out of {named}: {', '.join(left_out)}." if left_out else ""


def target_of(write: str, usual: str) -> Path:
    """Return the file of ``--write TOOL[:PATH]``, which has its usual name in a folder."""
    # A file that the user named is replaced; one of the usual name may be another's.
    tool, _, place = write.partition(":")
    path = Path(place or ".")
    if not path.is_dir() and not place.endswith("/"):
        return path
    path /= usual
    if path.exists():
        raise InputError(f"{path} exists already. To replace it, name it: --write {tool}:{path}.")
    return path
