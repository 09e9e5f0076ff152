"""Groups as text, refusals of the Neuron runtime, uneven exchanges, and the map of links."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_sim.collectives import CollectiveCall as Call
from cluster_sim.collectives import Group, compose, prove, whole
from cluster_sim.collectives.group import _places_in_interval
from cluster_sim.collectives.group_parsing import ordered, parse_groups
from cluster_sim.collectives.results import bus_factor_v, compose_v, lower_bound_v, skewed
from cluster_sim.collectives.verify.neuron_limits import along_ring, check_restrictions
from cluster_sim.plot.links import link_load, link_map
from cluster_sim.trace.trace import run
from tests.support.examples import examples
from topologies.clusters.names import cluster
from topologies.shapes.links import domain_links
from topologies.support.errors import InputError

SERVER = cluster("trn2.48xlarge")
RING = cluster("ring:5", bandwidth="100GB/s", latency="1us")
SWITCHED = cluster("trn3-gen1")


@given(st.permutations(range(16)), st.sampled_from([1, 2, 4, 8]))
def test_groups_are_read_as_they_are_written(chips, count):
    cut = np.array(chips).reshape(count, -1)
    text = ";".join(",".join(map(str, row)) for row in cut.tolist())
    assert [one.chips.tolist() for one in parse_groups(text, SERVER)] == cut.tolist()
    assert ordered(whole(SERVER), ",".join(map(str, chips))).chips.tolist() == list(chips)
    low, high = min(chips[:2]), max(chips[:2])
    (several,) = parse_groups(f"{low}-{high}", SERVER)
    assert several.chips.tolist() == list(range(low, high + 1))
    with pytest.raises(InputError, match="goes down"):
        parse_groups(f"{high}-{low}", SERVER)


@given(st.text(alphabet="0123456789-,; x", max_size=12))
def test_any_text_is_groups_or_one_line_of_refusal(text):
    try:
        groups = parse_groups(text, SERVER)
    except InputError as mistake:
        refusal = str(mistake)
    else:
        chips = np.concatenate([one.chips for one in groups])
        assert len(np.unique(chips)) == len(chips) <= 16
        refusal = "none"
    assert len(refusal.splitlines()) == 1


def refused(op, machine, chips, ranks_per_chip=1):
    with pytest.raises(InputError) as caught:
        check_restrictions(op, Group(cluster(machine), np.array(chips), ranks_per_chip))
    assert str(caught.value).endswith("Or simulate it all the same with --unrestricted.")
    return str(caught.value)


def test_permute_needs_a_physical_ring():
    check_restrictions("permute", Group(SERVER, np.array([0, 4, 8, 12])))
    check_restrictions("permute", along_ring(whole(SERVER)))
    for machine in (RING, cluster("dgx-h100")):  # which no runtime restricts
        check_restrictions("permute", Group(machine, np.array([0, 2, 1])))
        assert along_ring(whole(machine)).chips.tolist() == list(range(machine.chips))
    assert "chip 2 to chip 0" in refused("permute", "trn2.48xlarge", [0, 1, 2])
    assert "different domains" in refused("permute", "trn2.48xlarge:2", [0, 16])


def test_groups_across_nodes_are_symmetric():
    check_restrictions("all-reduce", Group(cluster("trn2.48xlarge:2"), np.array([0, 3, 19, 16])))
    assert "2 chips in domain 0 and 1 in domain 1" in refused(
        "all-reduce", "trn2.48xlarge:2", [0, 1, 16]
    ).replace("1 chips in domain 1 and 2 in domain 0", "2 chips in domain 0 and 1 in domain 1")
    refusal = refused("all-gather", "trn2.48xlarge:2", [0, 1, 16, 18])
    assert "chip 2 of domain 1 but not of domain 0" in refusal


def test_uneven_collectives_have_rules_of_their_own():
    check_restrictions("all-to-all-v", Group(cluster("trn2.48xlarge:3"), np.array([5, 21, 37])))
    assert "same local number" in refused("all-to-all-v", "trn2.48xlarge", [0, 1])
    check_restrictions("all-to-all-v", whole(SWITCHED, 4))
    assert "all 4 ranks of each" in refused("all-to-all-v", "trn3-gen1", [0, 1], 2)
    assert "several chips" in refused("all-to-all-v", "trn3-gen1", [0], 4)
    assert "trn2 has 8 NeuronCores" in refused("all-reduce", "trn2.48xlarge", [0], 9)


@examples(30)
@given(st.data())
def test_an_uneven_exchange_delivers_every_byte_in_no_less_than_its_bound(data):
    machine = data.draw(st.sampled_from([RING, SERVER, SWITCHED]))
    ranks = data.draw(st.integers(1, 5))
    sizes = st.lists(st.sampled_from([0, 1, 999, 2**20]), min_size=ranks**2, max_size=ranks**2)
    sent = np.array(data.draw(sizes), np.int64).reshape(ranks, ranks)
    group = Group(machine, np.arange(ranks))
    collective = compose_v(group, sent, data.draw(st.sampled_from(["auto", "direct"])), ideal=True)
    assert prove(collective) == "proven"
    what = collective.schedule.labels["what"]
    last = np.array([name in ("copy", "reduce") for name in what])
    assert collective.schedule.size_bytes[last].sum() == sent.sum() - np.trace(sent)
    assert run(collective.schedule).total_ps >= lower_bound_v(group, sent).time_ps


def test_without_skew_it_is_the_all_to_all():
    group = whole(SERVER)
    even = compose_v(group, skewed(16, 2**20, 0.0), ideal=True)
    plain = compose(Call("all-to-all", group, 2**20), "dimension-ordered", ideal=True)
    assert run(even.schedule).total_ps == run(plain.schedule).total_ps
    assert bus_factor_v(skewed(16, 2**20, 0.0)) == 15 / 16


def test_the_load_of_the_links_is_that_of_the_run():
    trace = run(compose(Call("all-reduce", whole(RING), 5 * 10**6), "ring").schedule)
    links = domain_links(RING.shape)
    load = link_load(trace, RING, links)
    up = (links.dst - links.src) % 5 == 1
    # Eight steps of 10 us on the wire and 1 us of latency, one way round only.
    assert load[up] == pytest.approx(np.full(5, 80 / 88))
    assert (load[~up] == 0).all()


@pytest.mark.parametrize("text", ["ring:5", "torus:2x2x3", "torus:4x4", "torus:2x3x2x3"])
def test_a_line_each_way_of_every_cable(text):
    machine = cluster(text, bandwidth="100GB/s", latency="1us")
    trace = run(compose(Call("all-to-all", whole(machine), 1000), "direct").schedule)
    figure = link_map(trace, machine)
    drawn = figure.axes[0].collections[0]
    links = len(domain_links(machine.shape))
    assert links <= len(drawn.get_segments()) <= 2 * links
    figure.canvas.draw()
    with pytest.raises(InputError, match="mesh:4 is no torus"):
        link_map(trace, cluster("mesh:4", bandwidth="100GB/s", latency="1us"))


@pytest.mark.parametrize(
    ("coordinates", "places"),
    [([2, 3], [0, 1]), ([3, 0], [0, 1]), ([0, 1, 2, 3], [0, 1, 2, 3]), ([0, 2], None)],
)
def test_an_interval_of_an_axis_may_wrap_and_has_one_gap(coordinates, places):
    counted = _places_in_interval(np.array(coordinates), 4)
    assert (None if counted is None else counted.tolist()) == places
