"""Schedulers of serving engines: prompts before or beside decode, whole, polled and gathered."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

import cluster_sim as cs
from tests.support.toy_serving import requests_of, toy_replica
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.errors import InputError
from workloads.serving import ServingOptions, batching_from, serve
from workloads.serving.batching import (
    BESIDE,
    FIRST,
    WHOLE,
    Batching,
    engine_batching,
    engine_numbers,
)
from workloads.serving.profile import Profile, profile
from workloads.serving.replica import closed_loop
from workloads.serving.speculation import Speculation


def _flat() -> Profile:
    """A toy replica whose cache costs nothing."""
    return toy_replica(name="flat", decode_kv_s=0.0, kv_bytes_per_token=1.0, kv_budget_bytes=1e6)


def test_prompts_that_run_first_make_decode_stand_still() -> None:
    """Pieces of 4, 4 and 2 tokens take 1.4, 1.4 and 1.2 s in which the first request waits."""
    load = requests_of((0.0, 4, 3), (0.1, 10, 1))
    first = serve(_flat(), load, Batching(4, 4, prompts=FIRST))
    assert first.first_token_s.tolist() == pytest.approx([1.4, 1.4 + 4.0])
    assert first.end_s[0] == pytest.approx(1.4 + 4.0 + 2 * 1.1)
    assert first.gap_s.max() == pytest.approx(4.0 + 1.1)
    beside = serve(_flat(), load, Batching(4, 5))
    assert beside.end_s[0] == pytest.approx(1.4 + 2 * 1.5)


def test_several_prompts_run_first_together() -> None:
    load = requests_of((0.0, 3, 1), (0.0, 3, 1), (0.0, 3, 1))
    served = serve(_flat(), load, Batching(4, 6, prompts=FIRST))
    assert served.first_token_s.tolist() == pytest.approx([1.6, 1.6, 1.6 + 1.3])


def test_whole_prompts_are_not_cut() -> None:
    """Prompts of 4 tokens: two do not fit into 6, and one alone may be longer than that."""
    load = requests_of((0.0, 4, 1), (0.0, 4, 1), (0.0, 9, 1))
    whole = serve(_flat(), load, Batching(4, 6, prompts=WHOLE))
    assert whole.first_token_s.tolist() == pytest.approx([1.4, 2.8, 2.8 + 1.9])
    cut = serve(_flat(), load, Batching(4, 6))
    assert cut.first_token_s.tolist() == pytest.approx([1.6, 3.2, 3.2 + 1.5])


def test_a_scheduler_that_polls_sees_a_request_at_its_next_look() -> None:
    """Passes of 1.1 s after a first token at 1.2 s: looks follow passes 4 and 8."""
    load = requests_of((0.0, 2, 20), (2.0, 3, 1))
    served = serve(_flat(), load, Batching(4, 100, poll_passes=4))
    assert served.first_token_s[1] == pytest.approx(1.2 + 4 * 1.1 + 1.4)
    late = serve(_flat(), requests_of((0.0, 2, 20), (6.0, 3, 1)), Batching(4, 100, poll_passes=4))
    assert late.first_token_s[1] == pytest.approx(1.2 + 8 * 1.1 + 1.4)


def test_an_idle_scheduler_that_polls_sees_a_request_at_once() -> None:
    load = requests_of((0.0, 2, 2), (50.0, 3, 1))
    served = serve(_flat(), load, Batching(4, 100, poll_passes=30))
    assert served.first_token_s[1] == pytest.approx(50.0 + 1.3)


def test_an_overlapped_scheduler_plans_one_iteration_ahead() -> None:
    """The request arrives during a pass that ends at 2.3 s; the next, to 3.4 s, is planned."""
    load = requests_of((0.0, 2, 20), (2.0, 3, 1))
    plain = serve(_flat(), load, Batching(4, 100))
    ahead = serve(_flat(), load, Batching(4, 100, overlapped=True))
    assert plain.first_token_s[1] == pytest.approx(1.2 + 1.1 + 1.4)
    assert ahead.first_token_s[1] == pytest.approx(1.2 + 2 * 1.1 + 1.4)


@pytest.mark.parametrize(("tokens", "passes"), [(0, 0), (5, 2), (100, 3)])
def test_prompts_are_gathered_for_passes_or_until_there_are_enough(
    tokens: int, passes: int
) -> None:
    """The second prompt of 2 tokens comes within the second pass: 1 + 2 + 2 tokens are 5."""
    load = requests_of((0.0, 2, 20), (1.0, 2, 1), (3.0, 2, 1))
    how = Batching(4, 100, gather_passes=3, gather_tokens=tokens)
    served = serve(_flat(), load, how)
    took = 1.3 if passes == 0 else 1.5
    assert served.first_token_s[1] == pytest.approx(1.2 + passes * 1.1 + took)


def test_prompts_wait_for_nothing_where_nothing_decodes() -> None:
    how = Batching(4, 100, gather_passes=30, gather_tokens=100)
    assert serve(_flat(), requests_of((0.0, 2, 1)), how).first_token_s[0] == pytest.approx(1.2)


def test_proposals_are_polled_and_gathered_as_single_tokens_are() -> None:
    """No proposal is accepted, so each pass gives one token of four computed: 1.4 s."""
    load = requests_of((0.0, 2, 20), (2.0, 3, 1))
    none_accepted = Speculation(3, 0.0)
    polled = serve(_flat(), load, Batching(4, 100, poll_passes=4), speculation=none_accepted)
    assert polled.first_token_s[1] == pytest.approx(1.2 + 4 * 1.4 + 1.7)
    how = Batching(4, 100, gather_passes=2, gather_tokens=100)
    gathered = serve(_flat(), load, how, speculation=none_accepted)
    assert gathered.first_token_s[1] == pytest.approx(1.2 + 3 * 1.4 + 1.7)


@pytest.mark.parametrize(
    ("engine", "machine", "prompts", "chunk", "slots"),
    [
        ("vllm", "dgx-h100", BESIDE, 8192, 1024),
        ("vllm", "dgx-a100", BESIDE, 2048, 256),
        ("sglang", "dgx-h200", FIRST, 8192, 2048),
        ("sglang", "dgx-b200", FIRST, 16_384, 2048),
        ("tensorrt-llm", "dgx-b200", WHOLE, 8192, 2048),
    ],
)
def test_defaults_of_engines(
    engine: str, machine: str, prompts: str, chunk: int, slots: int
) -> None:
    how = batching_from(cs.cluster(machine), scheduler=engine)
    assert (how.prompts, how.chunk_tokens, how.overlapped) == (prompts, chunk, True)
    assert how.slots == slots
    assert batching_from(cs.cluster(machine), chunk=128, scheduler=engine).slots == 127


def test_more_requests_are_served_at_once_than_by_a_fixed_number() -> None:
    """128 users of an H100 wait for no slot, and a search states the slots of its answer."""
    words = {"concurrency": 128, "prompt": 64, "output": 32, "count": 256, "tp": 1}
    users = cs.serve("llama-3.2-1b", "dgx-h100", **words).summary
    assert users["batch_mean"] > 64
    assert users["slots"] == 1024
    few = {"search": True, "prompt": 64, "output": 32, "count": 64, "tp": 1}
    assert " --slots " in cs.serve("llama-3.2-1b", "dgx-h100", **few).summary["options"]


def test_equal_requests_of_a_closed_loop_come_in_waves_where_prompts_run_first() -> None:
    """Four prompts of 4 tokens take 1.4 s each while decode pauses, so all four end together."""
    load = requests_of(*[(0.0, 4, 3)] * 12)
    waves = closed_loop(_flat(), load, 4, Batching(4, 4, prompts=FIRST))
    assert waves.ttft_s.tolist() == pytest.approx([1.4, 2.8, 4.2, 5.6] * 3)
    mixed = closed_loop(_flat(), load, 4, Batching(4, 8))
    assert mixed.ttft_s[4:].mean() < 0.7 * waves.ttft_s.mean()


def test_mixed_chunks_run_prompts_beside_decode() -> None:
    how = engine_batching(cs.cluster("dgx-h200"), "sglang", 64, chunk_tokens=4096, mixed_chunk=True)
    assert (how.prompts, how.chunk_tokens, how.engine) == (BESIDE, 4096, "sglang")


def test_serve_takes_an_engine_and_its_waits() -> None:
    def mean_s(**words: Any) -> float:
        load: dict[str, Any] = {
            "count": 60,
            "prompt": 1024,
            "output": 64,
            "tp": 4,
            "scheduler": "sglang",
        }
        served = cs.serve("llama-3.1-8b", "dgx-h100", "poisson:20", **load, **words)
        return served.ttft_s["mean"] or 0.0

    assert mean_s(poll=30) > 1.5 * mean_s()


@pytest.mark.parametrize(
    ("engine", "iteration_s", "request_s"),
    [("vllm", 1.1e-3, 10e-6), ("sglang", 2e-3, 10e-6), ("tensorrt-llm", 0.8e-3, 10e-6)],
)
def test_an_engine_brings_its_overheads(engine: str, iteration_s: float, request_s: float) -> None:
    model, machine = cs.model("llama-3.1-8b"), cs.cluster("dgx-h100")
    options = ServingOptions(engine_batching(machine, engine, 8))
    of_engine = options.deployment(model, machine, tp=1, precision=None).profile
    plain = ServingOptions().deployment(model, machine, tp=1, precision=None).profile
    added_s = of_engine.linear(8) - plain.linear(8)
    assert added_s == pytest.approx(iteration_s - 1.2e-3, abs=1e-12)
    assert of_engine.decode_request_s - plain.decode_request_s == pytest.approx(request_s - 10e-6)


def test_the_host_of_an_engine_sets_the_least_time_of_a_prompt() -> None:
    model, machine, shipped = cs.model("llama-3.1-70b"), cs.cluster("dgx-h200"), shipped_catalogue()
    eager = {f"serving.gpu.{name}": "vllm-0.7" for name in ("graph_tokens", "layer_host")}
    variants = (engine_numbers(shipped, "vllm"), shipped.with_variants(eager))
    compiled, issued = (profile(model, machine, tp=8, catalogue=each) for each in variants)
    assert issued.prefill_s(200) == pytest.approx(80 * 0.8e-3 + issued.prefill_extra_s(200, 0))
    assert compiled.prefill_s(200) < 0.5 * issued.prefill_s(200)
    assert issued.prefill_s(8192) == pytest.approx(compiled.prefill_s(8192), rel=0.01)
    assert issued.linear(8) < issued.prompt_linear(8)


def test_overheads_that_a_user_measured_stay() -> None:
    shipped = shipped_catalogue()
    row = shipped.entry("serving.gpu", "iteration_overhead")
    mine = shipped.with_rows([row._replace(value=5e-3, exact=Fraction(5, 1000))])
    assert engine_numbers(mine, "tensorrt-llm").value("serving.gpu", "iteration_overhead") == 5e-3
    assert engine_numbers(shipped, "") == shipped


def test_decode_replicas_of_their_own_have_no_prompts_to_run() -> None:
    load: dict[str, Any] = {"count": 20, "prompt": 512, "output": 16, "tp": 1}
    load["disaggregate"] = "1:3"
    apart = cs.serve("llama-3.1-8b", "dgx-h100", "poisson:5", **load, scheduler="vllm")
    plain = cs.serve("llama-3.1-8b", "dgx-h100", "poisson:5", **load)
    assert apart.tpot_s["mean"] == pytest.approx(plain.tpot_s["mean"], rel=0.05)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"scheduler": "vlm"}, "scheduler 'vlm' is none of vllm"),
        ({"scheduler": "vllm", "prefill": "chunked"}, "leave --prefill chunked out"),
        ({"scheduler": "tensorrt-llm", "gather": "20"}, "write 20:0.9"),
        ({"scheduler": "tensorrt-llm", "gather": "20:1.5"}, "write 20:0.9"),
        ({"prefill": "separate", "gather": "20:0.9"}, "leave --gather out"),
        ({"prefill": "chunked", "poll": 0}, "every 0 passes"),
    ],
)
def test_settings_that_mean_nothing_are_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        batching_from(cs.cluster("dgx-h100"), **words)


def test_neuron_has_its_own_engine() -> None:
    with pytest.raises(InputError, match=r"trn2 is served by Neuron's engine.*Leave the scheduler"):
        engine_batching(cs.cluster("trn2.48xlarge"), "vllm", 4)


def test_separate_prompts_are_neither_first_nor_gathered() -> None:
    with pytest.raises(InputError, match="separate prompts run one at a time"):
        Batching(4, prompts=FIRST)
    with pytest.raises(InputError, match="prompts 'besides' is none of"):
        Batching(4, 100, prompts="besides")
