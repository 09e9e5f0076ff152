"""Nodes that were measured as slow are named in the order in which a job gains without them."""

import numpy as np
import pytest

from tests.support.refusals import refused
from tests.support.toy_training import TOY, plan
from topologies.clusters.names import cluster
from workloads.training.detail import Detail
from workloads.training.iteration import iteration
from workloads.training.nodes import drained, read_nodes

CLUSTER = cluster("trn2.48xlarge:8")


@pytest.fixture
def nodes(tmp_path):
    """Function that reads lines of a table as measured nodes."""

    def read(*lines):
        (tmp_path / "nodes.csv").write_text("\n".join(lines) + "\n")
        return read_nodes(tmp_path / "nodes.csv")

    return read


def asked(measured):
    """The drain of a step of 32 replicas without stages, and the step on equal nodes."""
    step = iteration(TOY, CLUSTER, plan(tp=4, dp=32))
    return drained(step, measured, Detail()), step


def test_rates_and_times_are_shares_of_the_median_node(nodes):
    rates = nodes("Host Name,TFLOPS,rack", "a,100,1", "b,50,1", "c,100,2", "d,125,2", "e,100,2")
    assert rates.slower["kernels"] == pytest.approx([0, 1, 0, -0.2, 0])
    assert (rates.outliers, rates.names[1], rates.unread) == ([1], "b", ("rack",))
    times = nodes("node,time_s", "a,2", "b,2", "c,3", "a,2", "b,2", "c,5")
    assert times.slower["kernels"] == pytest.approx([0, 0, 1])
    # Of four repeated measurements three further ones tell the scatter of a median of two.
    assert times.sigma["kernels"] == pytest.approx(np.sqrt(2 * 0.25**2 / 3 / 2))


def test_the_second_slowest_gains_only_after_the_slowest(nodes):
    measured = nodes("node,speed", "a,1", "b,0.5", "c,1", "d,0.8", "e,1", "f,1", "g,1")
    drain, step = asked(measured)
    assert [each.node for each in drain.order] == ["b", "d"]
    assert drain.order[-1].step_s == drain.usual_s == step.iteration_s
    first, second = drain.order
    assert drain.step_s - first.gain_s == pytest.approx(first.step_s)
    assert first.step_s - second.gain_s == pytest.approx(step.iteration_s)
    assert second.alone_s == pytest.approx(second.gain_s)
    assert first.alone_s == pytest.approx(first.gain_s + second.gain_s)
    assert drain.verdict.startswith("Drain b and d together: the step is ")
    assert drain.document()["nodes"]["drain"][0]["slower"] == {"kernels": 1.0}


def test_slow_adapters_lengthen_only_collectives_between_domains(nodes):
    drain, step = asked(nodes("node,between_gb_s", "a,10", "b,5", "c,10", "d,10"))
    expected_s = step.iteration_s + step.breakdown_s["exposed_dp"]
    assert step.iteration_s < drain.step_s <= expected_s * (1 + 1e-9)
    inside, _ = asked(nodes("node,within_gb_s", "a,10", "b,5", "c,10", "d,10"))
    assert inside.step_s == pytest.approx(step.iteration_s + step.breakdown_s["exposed_tp"])


def test_equal_nodes_need_no_drain(nodes):
    drain, step = asked(nodes("node,speed", "a,1", "b,1", "c,1", "d,1"))
    assert (drain.order, drain.step_s) == ((), step.iteration_s)
    assert drain.verdict == (
        "None of the 4 nodes stands apart: none is slower than the median by more than 3 robust "
        "standard deviations (kernels)."
    )


def test_the_slowest_is_named_where_two_slow_ones_of_few_hide_each_other(nodes):
    drain, _ = asked(nodes("node,time_s", "a,1", "b,1", "c,1.1", "d,1.26"))
    assert drain.order == ()
    assert drain.verdict.endswith(
        "(kernels). The slowest, d, takes 20.0% longer than the median; two slow ones among so "
        "few can hide each other, so measure more nodes."
    )
    many = [f"n{at},{1 + at % 5 / 100}" for at in range(8)]
    drain, _ = asked(nodes("node,time_s", *many))
    assert drain.verdict.endswith(" The slowest, n4, takes 2.5% longer than the median.")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("gpu,speed", "a,1"), "has no column of nodes: its columns are 'gpu', 'speed'. Head"),
        (("node,rack", "a,1"), "has no measured column"),
        (("node,busbw", "a,1"), "column busbw does not say which links it measures. Head it wi"),
        (("node,speed,tflops", "a,1,1"), "columns speed and tflops both measure kernels. Keep"),
        (("node,speed", "a,1", "b,1"), "has 2 nodes; which of them is slow shows from 3 on."),
        (("node,speed", "a,1", "b,0", "c,1"), "speed of b is '0'; it must be a number above 0."),
        (("node,speed", "a,1", ",1", "c,1"), "a row has no name in column node. Add it."),
    ],
)
def test_tables_that_say_nothing_are_refused(nodes, lines, message):
    refused(message, nodes, *lines)


def test_more_nodes_than_servers_are_refused(nodes):
    many = nodes("node,speed", *(f"{name},1" for name in "abcdefghi"))
    refused("has 9 nodes, and the job runs on 8 servers of trn2.48xlarge:8. Leave", asked, many)
