"""Every catalogue row about fleets is read by a run, or is marked as kept for reference."""

from __future__ import annotations

from topologies.catalogue.catalogue import shipped_catalogue
from topologies.catalogue.reader import is_reference
from topologies.clusters.names import machine
from topologies.options import described
from workloads.confidence.sensitivity import noting
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.results import summary
from workloads.fleet.scenario import demand_of, models_of, policy_of, run, scenario
from workloads.options.fleet import DemandInputs, FleetInputs, FleetOptions, LimitInputs


def test_no_row_about_fleets_is_read_by_nothing() -> None:
    numbers = noting(shipped_catalogue())
    cluster = machine("trn2-ultraserver:20", catalogue=numbers)
    question = FleetOptions(
        fleet=FleetInputs(model="llama-3.1-8b", failures="domains", post_training="lockstep"),
        demand=DemandInputs(demand=("azure-conv",), days=0.05, batch_share="20%"),
    )
    models = models_of(question.fleet.model)
    built = scenario(cluster, demand_of(question.demand), question, models=models)
    summary(run(built, policy_of("static", built), seed=0))
    for source in described(LimitInputs)["weights"].choice_texts():
        ChangeCosts.of(cluster, source=source)
    rows = [row for row in shipped_catalogue().rows if row.part.startswith("fleet.")]
    read = {(part, quantity) for part, quantity, _ in numbers.read}
    unread = [
        f"{row.part}.{row.quantity}"
        for row in rows
        if (row.part, row.quantity) not in read
        and not is_reference(row.part, row.quantity, row.unit)
    ]
    assert len(rows) > 20
    assert unread == []
