"""The command ``replay``: its document, table and run directory."""

import pytest

from tests.support.commands import document_of, printed_by, refusal_of
from tests.support.small_models import TOY_CONFIG, config_file
from tests.support.small_traces import GOAL, et, job, kineto, node, profile, step
from workloads.traces import chakra_schema as schema


def test_the_document_has_the_promised_keys_and_the_table_says_what_is_unknown(tmp_path):
    job(tmp_path)
    line = f"replay {tmp_path} --cluster ring:4 --bandwidth 50GB/s --latency 1us"
    document = document_of(line, f"--out={tmp_path / 'run'}")
    promised = {"ranks", "nodes", "iteration_s", "breakdown_s", "unmapped", "interval"}
    assert promised <= set(document)
    assert (tmp_path / "run" / "report.html").exists()


def test_a_table_for_people_and_chakra_out(tmp_path):
    paths = " ".join(str(path) for path in job(tmp_path))
    line = f"replay {paths} --cluster ring:4 --bandwidth 50GB/s --latency 1us"
    assert "where the time goes" in printed_by(f"{line} --chakra {tmp_path / 'et'}")
    assert len(list((tmp_path / "et").glob("*.et"))) == 4
    unknown = "kernel times     recorded on an unknown chip; --recorded-on CHIP scales to trn2\n"
    assert unknown in printed_by(f"replay {paths} --cluster trn2.48xlarge")


def test_one_rank_of_a_data_parallel_job_is_replayed_on_other_numbers(tmp_path):
    document = profile(world=2)
    for place, late in ((6, 1820), (7, 1830)):
        document["traceEvents"][place]["ts"] = late
    document["traceEvents"][0]["dur"] = 1000
    path = kineto(tmp_path / "one.json", document)
    two, many = (
        document_of(f"replay {path} --cluster dgx-h100:{servers} --ranks {ranks}")
        for servers, ranks in ((1, 2), (4, 32))
    )
    assert (two["world"], many["world"], many["ranks"]) == (2, 32, 1)
    exposed = "exposed_communication"
    assert many["breakdown_s"][exposed] > two["breakdown_s"][exposed]
    shown = " ".join(printed_by(f"replay {path} --cluster trn2.48xlarge").split())
    assert "There is no trace of 1 of the job's 2 ranks" in shown
    assert "That host issued kernels to a100-80gb; trn2 is driven by another runtime" in shown


def test_communication_has_the_interval_that_collective_gives_it(tmp_path):
    paths = " ".join(str(path) for path in job(tmp_path, 8))
    interval = document_of(f"replay {paths} --cluster dgx-h100")["interval"]
    row = document_of("collective all-reduce dgx-h100 --size 1MB")["rows"][0]
    for end in ("low", "high"):
        assert interval[end] == pytest.approx(17e-6 + 5e-6 + row[end])


@pytest.mark.parametrize(
    ("ranks", "reason"), [(2, "has rank 3"), (0, "--ranks '0' must be greater")]
)
def test_ranks_that_a_trace_cannot_have_are_refused(ranks, reason, tmp_path):
    paths = " ".join(str(path) for path in job(tmp_path))
    assert reason in refusal_of(f"replay {paths} --cluster dgx-h100 --ranks {ranks}")


def test_groups_of_some_ranks_do_not_grow(tmp_path):
    (goal := tmp_path / "ring.goal").write_text(GOAL)
    refusal = refusal_of(f"replay {goal} --cluster dgx-h100 --ranks 8")
    assert "the trace has no collective" in refusal
    send = node(4, schema.SEND, comm_dst=1, comm_size=8)
    alone = et(tmp_path / "job.0.et", *step(0), send)
    refusal = refusal_of(f"replay {alone} --cluster dgx-h100 --ranks 8")
    assert "no groups of the trace's" in refusal
    document = profile(world=4)
    document["traceEvents"][4]["args"] |= {"Process Group Ranks": "[0, 1]", "Group size": 2}
    path = kineto(tmp_path / "one.json", document)
    refusal = refusal_of(f"replay {path} --cluster dgx-h100 --ranks 8")
    assert "no groups of the trace's 4 ranks join replicas of equal blocks" in refusal


@pytest.mark.parametrize("degrees", ["--tp 2 --pp 2", "--tp 4"])
def test_replicas_grow_to_the_very_time_of_a_trace_with_as_many(degrees, tmp_path):
    """Groups of tensor and pipeline parallelism keep their size, and later stages move."""
    inner, model = 4, config_file(tmp_path / "tiny.json", TOY_CONFIG)
    line = f"train --model {model} --cluster trn2.48xlarge {degrees} --seq 128 --zero 0 --unfolded"
    for dp in (2, 4):
        shape = f"--dp {dp} --global-batch {4 * dp} --microbatch 1 --chips {inner * dp}"
        document_of(f"{line} {shape} --level collective --chakra {tmp_path / str(dp)}")
    few, many = (f"replay {tmp_path / str(dp)} --cluster trn2.48xlarge" for dp in (2, 4))
    recorded, grown = document_of(many), document_of(f"{few} --ranks {4 * inner}")
    assert grown["iteration_s"] == recorded["iteration_s"] != document_of(few)["iteration_s"]
    assert (grown["ranks"], grown["world"]) == (2 * inner, 4 * inner)
    shown = " ".join(printed_by(f"{few} --ranks {4 * inner}").split())
    apart = inner // 2 if "pp" in degrees else inner
    assert f"groups of 2 ranks, {apart} apart, as of data parallelism, grow" in shown
    refusal = refusal_of(f"{few} --ranks {4 * inner - 1}")
    assert f"replicas of the trace are of {inner} ranks. State a multiple" in refusal
    assert "Name fewer files" in refusal_of(f"{few} --ranks {inner}")
    assert "has 16 chips" in refusal_of(f"{few} --ranks {10**12 * inner}")
    assert "grown" not in document_of(f"{few} --ranks {2 * inner}")
