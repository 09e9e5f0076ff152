"""Engines that serve: how each admits and batches, and the launches that it reads."""

from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cluster_sim as cs
from tests.support.examples import examples
from tests.support.refusals import refused
from tests.support.toy_serving import requests_of, toy_replica
from topologies.catalogue.catalogue import shipped_catalogue, usable_hbm_bytes
from topologies.clusters.names import cluster
from workloads.serving import Batching, ServingOptions, batching_from, serve
from workloads.serving.batching import BESIDE, FIRST, WHOLE, engine_batching, engine_numbers
from workloads.serving.engine_files import launch_command, read_engine_file
from workloads.serving.profile import profile
from workloads.serving.speculation import Speculation

SHIPPED = shipped_catalogue()


def _flat():
    """A toy replica whose cache costs nothing."""
    return toy_replica(name="flat", decode_kv_s=0.0, kv_bytes_per_token=1.0, kv_budget_bytes=1e6)


def test_prompts_that_run_first_make_decode_stand_still():
    """Pieces of 4, 4 and 2 tokens take 1.4, 1.4 and 1.2 s in which the first request waits."""
    load = requests_of((0.0, 4, 3), (0.1, 10, 1))
    first = serve(_flat(), load, Batching(4, 4, prompts=FIRST))
    assert first.first_token_s.tolist() == pytest.approx([1.4, 1.4 + 4.0])
    assert first.end_s[0] == pytest.approx(1.4 + 4.0 + 2 * 1.1)
    assert first.gap_s.max() == pytest.approx(4.0 + 1.1)
    beside = serve(_flat(), load, Batching(4, 5))
    assert beside.end_s[0] == pytest.approx(1.4 + 2 * 1.5)


BUSY, NONE_ACCEPTED = (0.0, 2, 20), Speculation(3, 0.0)
"""A request whose first token takes 1.2 s and every later one 1.1 s, and 1.4 s with proposals."""
POLLS = Batching(4, 100, poll_passes=4)


@pytest.mark.parametrize(("rows", "how", "guess", "first_token_s"), [
    # Two prompts of 3 tokens fit into one pass of 8; a third begins in it and ends later.
    ([(0.0, 3, 1)] * 2 + [(0.0, 6, 1)], Batching(4, 8), None, [1.8, 1.8, 1.8 + 1.4]),
    # Several prompts run first together, the third of them in the next pass.
    ([(0.0, 3, 1)] * 3, Batching(4, 6, prompts=FIRST), None, [1.6, 1.6, 1.6 + 1.3]),
    # Whole prompts are not cut: two do not fit into 6, and one alone may be longer than that.
    ([(0.0, 4, 1)] * 2 + [(0.0, 9, 1)], Batching(4, 6, prompts=WHOLE), None,
     [1.4, 2.8, 2.8 + 1.9]),
    ([(0.0, 4, 1)] * 2 + [(0.0, 9, 1)], Batching(4, 6), None, [1.6, 3.2, 3.2 + 1.5]),
    # A scheduler that polls looks after passes 4 and 8, and at once where it is idle.
    ([BUSY, (2.0, 3, 1)], POLLS, None, [1.2, 1.2 + 4 * 1.1 + 1.4]),
    ([BUSY, (6.0, 3, 1)], POLLS, None, [1.2, 1.2 + 8 * 1.1 + 1.4]),
    ([(0.0, 2, 2), (50.0, 3, 1)], Batching(4, 100, poll_passes=30), None, [1.2, 51.3]),
    ([BUSY, (2.0, 3, 1)], POLLS, NONE_ACCEPTED, [1.2, 1.2 + 4 * 1.4 + 1.7]),
    # The request arrives during a pass that ends at 2.3 s; the next, to 3.4 s, is planned.
    ([BUSY, (2.0, 3, 1)], Batching(4, 100), None, [1.2, 1.2 + 1.1 + 1.4]),
    ([BUSY, (2.0, 3, 1)], Batching(4, 100, overlapped=True), None, [1.2, 1.2 + 2 * 1.1 + 1.4]),
    # Prompts of 2 tokens are gathered for three passes, or until there are 1 + 2 + 2 tokens.
    *(
        ([BUSY, (1.0, 2, 1), (3.0, 2, 1)],
         Batching(4, 100, gather_passes=3, gather_tokens=tokens), None,
         [1.2, *[1.2 + passes * 1.1 + 1.5] * 2])
        for tokens, passes in ((5, 2), (100, 3))
    ),
    ([BUSY, (2.0, 3, 1)], Batching(4, 100, gather_passes=2, gather_tokens=100), NONE_ACCEPTED,
     [1.2, 1.2 + 3 * 1.4 + 1.7]),
    ([(0.0, 2, 1)], Batching(4, 100, gather_passes=30, gather_tokens=100), None, [1.2]),
])  # fmt: skip
def test_first_tokens_come_as_the_scheduler_lets_prompts_run(rows, how, guess, first_token_s):
    served = serve(_flat(), requests_of(*rows), how, speculation=guess)
    assert served.first_token_s.tolist() == pytest.approx(first_token_s)


@pytest.mark.parametrize(("engine", "machine", "prompts", "chunk", "slots"), [
    ("vllm", "dgx-h100", BESIDE, 8192, 1024),
    ("vllm", "dgx-a100", BESIDE, 2048, 256),
    ("vllm", "tpu-v5p-pod", BESIDE, 257, 256),
    ("vllm", "tpu-v6e-pod", BESIDE, 1024, 256),
    ("vllm", "tpu7x-pod", BESIDE, 2048, 256),
    ("sglang", "dgx-h200", FIRST, 8192, 2048),
    ("sglang", "dgx-b200", FIRST, 16_384, 2048),
    ("sglang", "dgx-a100-40gb", FIRST, 4096, 2048),
    ("sglang", "tpu7x-pod", FIRST, 4096, 2048),
    ("tensorrt-llm", "dgx-b200", WHOLE, 8192, 2048),
])  # fmt: skip
def test_defaults_of_engines(engine, machine, prompts, chunk, slots):
    how = batching_from(cs.cluster(machine), scheduler=engine)
    assert (how.prompts, how.chunk_tokens, how.overlapped) == (prompts, chunk, True)
    assert how.slots == slots
    assert batching_from(cs.cluster(machine), chunk=128, scheduler=engine).slots == 127


@pytest.mark.parametrize(
    ("engine", "iteration_s", "request_s"),
    [("vllm", 1.1e-3, 10e-6), ("sglang", 0.2e-3, 10e-6), ("tensorrt-llm", 0.8e-3, 10e-6)],
)
def test_an_engine_brings_its_overheads(engine, iteration_s, request_s):
    model, machine = cs.model("llama-3.1-8b"), cs.cluster("dgx-h100")
    options = ServingOptions(engine_batching(machine, engine, 8))
    of_engine = options.deployment(model, machine, tp=1, precision=None).profile
    plain = ServingOptions().deployment(model, machine, tp=1, precision=None).profile
    added_s = of_engine.linear(8) - plain.linear(8)
    assert added_s == pytest.approx(iteration_s - 1.2e-3, abs=1e-12)
    assert of_engine.decode_request_s - plain.decode_request_s == pytest.approx(request_s - 10e-6)


def test_the_host_of_an_engine_sets_the_least_time_of_a_prompt():
    model, machine, shipped = cs.model("llama-3.1-70b"), cs.cluster("dgx-h200"), shipped_catalogue()
    eager = {f"serving.gpu.{name}": "vllm-0.7" for name in ("graph_tokens", "layer_host")}
    variants = (engine_numbers(shipped, "vllm"), shipped.with_variants(eager))
    compiled, issued = (profile(model, machine, tp=8, catalogue=each) for each in variants)
    assert issued.prefill_s(200) == pytest.approx(80 * 0.8e-3 + issued.prefill_extra_s(200, 0))
    assert compiled.prefill_s(200) < 0.5 * issued.prefill_s(200)
    assert issued.prefill_s(8192) == pytest.approx(compiled.prefill_s(8192), rel=0.01)
    assert issued.linear(8) < issued.prompt_linear(8)


def test_overheads_that_a_user_measured_stay():
    shipped = shipped_catalogue()
    row = shipped.entry("serving.gpu", "iteration_overhead")
    mine = shipped.with_rows([row._replace(exact=Fraction(5, 1000))])
    assert engine_numbers(mine, "tensorrt-llm").value("serving.gpu", "iteration_overhead") == 5e-3
    assert engine_numbers(shipped, "") == shipped


@pytest.mark.parametrize(("chip", "total_mib", "tokens"), [
    ("a100-40gb", 40_441.375, 4096),
    ("h100", 81_559, 8192),
    ("h200", 143_771, 8192),
    ("b200", 183_359, 16_384),
])  # fmt: skip
def test_sglang_keeps_memory_for_the_tokens_of_an_iteration(chip, total_mib, tokens):
    """1.5 MiB for each, and 2.5 GiB, of what the driver reports."""
    share = engine_numbers(SHIPPED, "sglang", chip).value("serving.gpu", "memory_share")
    assert share == pytest.approx(1 - (1.5 * tokens + 2560) / total_mib, rel=1e-5)


@pytest.mark.parametrize(("engine", "machine", "model", "rows"), [
    ("vllm", "dgx-a100", "qwen3-14b", 64),
    ("vllm", "dgx-h100", "qwen3-14b", 0),
    ("tensorrt-llm", "dgx-a100", "qwen3-14b", 0),
    ("vllm", "dgx-a100", "gpt-oss-20b", 0),
    ("vllm", "dgx-a100", "deepseek-v2-lite", 0),
])  # fmt: skip
def test_decode_beside_prompts_takes_blocks_of_their_kernel(engine, machine, model, rows):
    """A block of FlashAttention-2 has 64 rows of one head; windows and latents have kernels."""
    place = cs.cluster(machine)
    numbers = engine_numbers(SHIPPED, engine, place.chip)
    replica = profile(cs.model(model), place, tp=1, catalogue=numbers)
    assert replica.mixed_rows == rows
    beside = replica.mixed_attention_s(10, 20_000)
    padded = rows * replica.prefill_square_s * 20_000
    assert beside == max(replica.attention_s(10, 20_000), padded)
    assert (beside > replica.attention_s(10, 20_000)) == bool(rows)


def test_decode_in_iterations_of_its_own_packs_heads():
    """vLLM before 0.8 ran prompts and decode apart."""
    older = engine_numbers(SHIPPED, "vllm", "a100-80gb", "2025-02")
    place = cs.cluster("dgx-a100")
    assert profile(cs.model("qwen3-14b"), place, tp=1, catalogue=older).mixed_rows == 0


def test_groups_that_divide_requests_keep_more_memory():
    """Eight groups: 8 x 2.25 GiB more of an H200's 143,771 MiB."""
    one, eight = (
        engine_numbers(SHIPPED, "sglang", "h200", "", groups).value("serving.gpu", "memory_share")
        for groups in (1, 8)
    )
    assert one - eight == pytest.approx(8 * 2.25 * 1024 / 143_771)


def test_weights_beyond_the_usual_share_of_sglang_take_the_most_that_is_stated():
    """DeepSeek-V3 in FP8 is 671 of 769 GB on four B200: 0.85 of them are too few, 0.95 enough."""
    place = cs.cluster("dgx-b200")
    numbers = engine_numbers(SHIPPED, "sglang", "b200")
    deepseek = {"tp": 4, "precision": "fp8", "cache_precision": "bf16"}
    replica = profile(cs.model("deepseek-v3"), place, catalogue=numbers, **deepseek)
    whole = 4 * 183_359 * 2**20
    assert replica.kv_budget_bytes + replica.weights_bytes == pytest.approx(0.95 * whole, rel=1e-5)


def test_a_share_of_memory_is_stated_raised_or_refused():
    place, numbers = cluster("dgx-h100"), engine_numbers(SHIPPED, "sglang", "h100")
    whole = 2 * usable_hbm_bytes("h100", SHIPPED)
    usual = numbers.value("serving.gpu", "memory_share")

    def held(model, **share):
        replica = profile(cs.model(model), place, tp=2, catalogue=numbers, **share)
        return (replica.kv_budget_bytes + replica.weights_bytes) / whole, replica.raised_share

    assert held("llama-3.1-8b") == (pytest.approx(usual), 0)
    assert held("llama-3.1-8b", memory_share=0.5) == (pytest.approx(0.5), 0)
    assert held("llama-3.1-70b") == (pytest.approx(0.95), 0.95)
    assert held("llama-3.1-70b", memory_share=0.9) == (pytest.approx(0.9), 0)
    refused("a --memory-share above 0.83, or more", held, "llama-3.1-70b", memory_share=0.8)
    refused("fp8, or a cluster of chips with more", held, "llama-3.1-405b", memory_share=1.0)
    how = {"scheduler": "sglang", "count": 20}
    remarks = cs.serve("llama-3.1-70b", place, tp=2, **how).remarks
    assert any("launch it with --mem-fraction-static 0.95" in remark for remark in remarks)
    apart = cs.serve("llama-3.1-70b", place, tp=4, disaggregate="1:1", prefill_tp=2, **how).remarks
    raised = [remark for remark in apart if "--mem-fraction-static" in remark]
    assert ["where prompts run alone, does not hold" in remark for remark in raised] == [True]


def test_tensorrt_llms_share_of_memory_is_one_of_what_the_weights_leave():
    place, whole = cluster("dgx-h100"), 2 * usable_hbm_bytes("h100", SHIPPED)

    def cache(share):
        stated = {"memory_share": share, "of_free": True, "catalogue": SHIPPED}
        return profile(cs.model("llama-3.1-70b"), place, tp=2, **stated)

    usual = cache(None)
    assert usual.kv_budget_bytes + usual.weights_bytes == pytest.approx(0.9 * whole)
    assert cache(0.9).kv_budget_bytes == usual.kv_budget_bytes
    assert cache(0.45).kv_budget_bytes == pytest.approx(usual.kv_budget_bytes / 2)
    how = {"tp": 2, "scheduler": "tensorrt-llm", "count": 2}
    served = cs.serve("llama-3.1-70b", place, memory_share=0.45, **how)
    assert served.replica.kv_budget_bytes == pytest.approx(usual.kv_budget_bytes / 2)
    stated = {"memory_share": 0.5, "of_free": True, "catalogue": SHIPPED}
    refused("fp8, or a cluster of", profile, cs.model("llama-3.1-405b"), place, tp=8, **stated)


def test_a_stated_share_of_memory_and_that_of_other_engines_stay():
    part, stated = "serving.gpu", SHIPPED.entry("serving.gpu", "memory_share")
    mine = SHIPPED.with_rows([stated._replace(exact=Fraction(3, 4))])
    assert engine_numbers(mine, "sglang", "h100").value(part, "memory_share") == 0.75
    for engine, chip in (("vllm", "h100"), ("sglang", "tpu-v6e"), ("sglang", "")):
        assert engine_numbers(SHIPPED, engine, chip).value(part, "memory_share") == 0.9


SCRIPT = r"""
#!/bin/bash
# vllm serve other --tensor-parallel-size 2
pip install -q vllm --upgrade
TP=4
vllm serve meta-llama/Llama-3.1-70B-Instruct --port $PORT \
    --tensor-parallel-size $TP --max-num-seq 128 --max-num-batched-tokens=4096 \
    --enable-expert-parallel --quantization fp8 --kv-cache-dtype fp8_e4m3 --dtype bfloat16 \
    --gpu-memory-utilization 0.92 > server.log 2>&1 &
vllm bench serve --model x --num-prompts 100
"""
MANIFEST = """
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
      - name: server
        image: vllm/vllm-openai:latest
        command: ["python3", "-m", "vllm.entrypoints.openai.api_server"]
        args: ["--model=google/gemma-2-27b", "--tensor-parallel-size=4", "--max-num-seqs", "32"]
---
kind: Service
"""
TENSORRT = """
cat > config.yml <<EOF
kv_cache_config:
    dtype: fp8
    free_gpu_memory_fraction: 0.8
batch_wait_timeout_iters: 20
batch_wait_max_tokens_ratio: 0.9
enable_attention_dp: true
EOF
trtllm-serve nvidia/model --tp_size 8 --ep_size 4 --max_batch_size 512 --max_num_tokens 8192 \\
    --extra_llm_api_options config.yml
"""
SGLANG = (
    "python3 -m sglang.launch_server --model-path m --tp 8 --chunked-prefill-size 16384 "
    "--max-running-requests 256 --scheduler-recv-interval 10 --disable-radix-cache --log-level info"
)


@pytest.mark.parametrize(("name", "text", "fields", "may", "cannot"), [
    ("serve.sh", SCRIPT, {
        "scheduler": "vllm", "tp": 4, "slots": 128, "chunk": 4096, "ep": 4,
        "precision": "fp8", "cache_precision": "fp8", "memory_share": 0.92,
    }, (), ("port",)),
    ("pod.yaml", MANIFEST, {"scheduler": "vllm", "tp": 4, "slots": 32}, (), ()),
    ("serve.sh", TENSORRT, {
        "scheduler": "tensorrt-llm", "tp": 8, "ep": 4, "slots": 512, "chunk": 8192,
        "cache_precision": "fp8", "gather": "20:0.9", "attention_dp": 8, "memory_share": 0.8,
    }, ("extra-llm-api-options",), ()),
    ("serve.sh", SGLANG, {
        "scheduler": "sglang", "tp": 8, "slots": 256, "chunk": 16384, "poll": 10,
    }, ("disable-radix-cache",), ("log-level",)),
    ("serve.sh", f"{SGLANG} --mem-fraction-static 0.8", {
        "scheduler": "sglang", "tp": 8, "slots": 256, "chunk": 16384, "poll": 10,
        "memory_share": 0.8,
    }, ("disable-radix-cache",), ("log-level",)),
    ("serve.sh", f"{SGLANG} --enable-dp-attention --dp 4", {
        "scheduler": "sglang", "tp": 8, "slots": 64, "chunk": 16384, "poll": 10,
        "attention_dp": 4,
    }, ("disable-radix-cache",), ("log-level",)),
    ("vllm.yaml", "model: m\ntensor-parallel-size: 2\nmax_num_seqs: 64\nport: 8000\n",
     {"scheduler": "vllm", "tp": 2, "slots": 64}, (), ("port",)),
    ("extra.yaml", "tensor_parallel_size: 8\nkv_cache_config: {dtype: auto}\n"
     "batch_wait_timeout_iters: 0\nbatch_wait_max_tokens_ratio: 0.9\n",
     {"scheduler": "tensorrt-llm", "tp": 8}, ("kv-cache-config.dtype = auto",),
     ("batch-wait-timeout-iters = 0",)),
    ("serve.txt", "vllm serve m -tp 2 -dp 1",
     {"scheduler": "vllm", "tp": 2, "attention_dp": 1}, (), ()),
    ("compose.yaml", "services: {a: {image: i, entrypoint: vllm serve m -tp 2}}",
     {"scheduler": "vllm", "tp": 2}, (), ()),
])  # fmt: skip
def test_a_replica_is_read_and_other_keys_are_named(tmp_path, name, text, fields, may, cannot):
    (path := tmp_path / name).write_text(text)
    read = read_engine_file(path)
    assert dict(read.fields) == fields
    assert read.may_change_time == may
    assert tuple(key for key in read.ignored if key not in may) == cannot


@pytest.mark.parametrize(("text", "named", "may"), [
    (SCRIPT, "meta-llama/Llama-3.1-70B-Instruct", ()),
    ("vllm serve RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8", "", ()),
    ("vllm serve owner/Llama-3_1-8B", "", ()),
    ("M=llama-3.1-8b\nvllm serve $M", "", ()),
    ('MODEL=${MODEL:-openai/gpt-oss-120b}\nvllm serve \\\n "$MODEL"', "openai/gpt-oss-120b", ()),
    ("vllm serve $MODEL", "", ("checkpoint",)),
    ("vllm serve $ARGS", "", ("$ARGS",)),
    ("trtllm-serve serve /models/current", "", ()),
    ("sglang.launch_server --model-path Qwen/Qwen3-8B", "Qwen/Qwen3-8B", ()),
])  # fmt: skip
def test_a_launch_of_another_model_is_named(tmp_path, text, named, may):
    (tmp_path / "a.sh").write_text(text)
    read = read_engine_file(tmp_path / "a.sh").beside(cs.model("llama-3.1-8b"))
    assert read.differs == ((f"model is {named}",) if named else ())
    assert (f"model is {named}." in read.sentence) == bool(named)
    assert read.may_change_time == may


@pytest.mark.parametrize(("name", "text", "message"), [
    ("a.sh", "vllm serve m --tensor-parallel-size $TP", r"\$TP, which.*'TP=8 a.sh'"),
    ("a.sh", "vllm serve m --pipeline-parallel-size 2", "must be 1, as a replica is divided"),
    ("a.sh", "vllm serve m --quantization awq", "'awq', which is no valid precision"),
    ("a.sh", "vllm serve m --dtype float32", "float32.*others are not predicted"),
    ("a.sh", """vllm serve m --speculative-config '{"num_speculative_tokens": 3}'""",
     "proposes 3 tokens a pass.*--speculate 3:0.7"),
    ("a.sh", "vllm serve m --data-parallel-size 8 --enable-expert-parallel",
     "beside it, state --tp, --ep and --attention-dp of all"),
    ("a.sh", "vllm serve m\npython -m sglang.launch_server --tp 2", "launches vllm and sglang"),
    ("a.sh", "vllm serve m -tp 2\nvllm serve n -tp 4", "stated as 2 and as 4"),
    ("a.sh", "echo hello --port 1", "is no launch of vLLM, SGLang or TensorRT-LLM"),
    ("values.yaml", "image: vllm/vllm-openai\nvllmConfig: {tensorParallelSize: 2}",
     "is no launch of vLLM"),
    ("a.sh", "vllm serve 'm", "No closing quotation"),
])  # fmt: skip
def test_what_cannot_be_read_is_refused(tmp_path, name, text, message):
    (path := tmp_path / name).write_text(text)
    refused(message, read_engine_file, path)


KSERVE = """apiVersion: serving.kserve.io/v1alpha2
kind: LLMInferenceService
spec:
  model: {uri: "hf://org/Model-FP8"}
  parallelism: {tensor: 4, expert: true}
  template:
    containers:
    - name: main
      env: [{name: VLLM_ADDITIONAL_ARGS, value: --max-num-seqs 64}]
      args: [--kv-cache-dtype=fp8]
"""


def test_a_service_of_kserve_is_read_by_its_fields(tmp_path):
    (path := tmp_path / "service.yaml").write_text(KSERVE)
    file = read_engine_file(path)
    fields = {"tp": 4, "ep": 4, "slots": 64, "cache_precision": "fp8", "precision": "fp8"}
    assert fields.items() <= file.fields.items()
    path.write_text("kind: LLMInferenceService\nspec: {template: [1], parallelism: 2}")
    assert read_engine_file(path).fields == {"scheduler": "vllm"}
    path.write_text(KSERVE + "  prefill: {replicas: 1}")
    refused("replicas of their own", read_engine_file, path)


def test_what_is_stated_beside_a_file_may_be_open_in_it(tmp_path):
    path = tmp_path / "a.sh"
    path.write_text("vllm serve m --tensor-parallel-size $TP --num-speculative-tokens 3")
    assert dict(read_engine_file(path, {"tp", "speculate"}).fields) == {"scheduler": "vllm"}
    set_before = read_engine_file(Path(f"TP=8 {path}"), {"speculate"})
    assert set_before.fields["tp"] == 8
    path.write_text("vllm serve m --data-parallel-size 8 --enable-expert-parallel")
    stated = {"tp", "ep", "attention_dp"}
    assert dict(read_engine_file(path, stated).fields) == {"scheduler": "vllm"}


def test_a_file_leaves_open_what_it_does_not_state(tmp_path):
    (path := tmp_path / "a.sh").write_text("vllm serve m")
    read = read_engine_file(path)
    gpu = cluster("dgx-h100")
    assert read.options({}, gpu) == {"tp": 1, "scheduler": "vllm"}
    assert read.options({"slots": 8, "tp": 4}, gpu) == {"tp": 4, "scheduler": "vllm", "slots": 8}
    assert read.options({}, cluster("trn2.48xlarge")) == {"tp": 1}


FIELDS = st.fixed_dictionaries(
    {"tp": st.sampled_from([1, 2, 4, 8]), "slots": st.integers(1, 512)},
    optional={
        "chunk": st.integers(1024, 8192),
        "cache_precision": st.sampled_from(["fp8", "bf16"]),
        "memory_share": st.sampled_from([0.5, 0.92]),
    },
)


@examples(50)
@given(
    engine=st.sampled_from(["vllm", "sglang", "tensorrt-llm"]), fields=FIELDS,
    divided=st.booleans(), precision=st.sampled_from([None, "fp8", "fp4"]),
)  # fmt: skip
def test_a_written_launch_is_read_as_it_was(tmp_path_factory, engine, fields, divided, precision):
    stated = dict(fields)
    if divided and fields["tp"] > 1:
        stated["ep"] = fields["tp"]
    if precision and engine != "tensorrt-llm":
        stated["precision"] = precision
    path = tmp_path_factory.mktemp("launch") / "serve.sh"
    path.write_text(launch_command(engine, {**stated, "poll": 1}, "org/model"))
    assert dict(read_engine_file(path).fields) == {"scheduler": engine, **stated}


def test_proposals_are_written_with_their_draft():
    assert '"num_speculative_tokens": 3' in launch_command("vllm", {"speculate": "3:0.7"}, "m")
    assert '"model": "d"' in launch_command("vllm", {"speculate": "3:0.7:d"}, "m")


@pytest.mark.parametrize(("words", "precision"), [
    ("nvidia/Llama-3.1-70B-Instruct-FP8 --max-num-seqs 128", "fp8"),
    ("--model RedHatAI/Qwen3-32B-NVFP4", "fp4"),
    ("meta-llama/Llama-3.1-70B-Instruct", None),
    ("nvidia/Llama-3.1-70B-Instruct-FP8 --quantization mxfp8", "mxfp8"),
])  # fmt: skip
def test_the_name_of_a_checkpoint_tells_its_precision(tmp_path, words, precision):
    (path := tmp_path / "launch.sh").write_text(f"vllm serve {words} --tensor-parallel-size 4\n")
    assert read_engine_file(path).fields.get("precision") == precision
    assert "precision" not in read_engine_file(path, {"precision": "bf16"}).fields


def test_a_command_may_stand_in_place_of_its_file():
    read = read_engine_file(Path("TP=4 vllm serve a/b -tp $TP --max-num-seqs 64"))
    assert (read.tool, read.fields["tp"], read.fields["slots"]) == ("vllm", 4, 64)
    refused("the command is no launch of vLLM", read_engine_file, Path("ls -la"))


def test_a_task_of_skypilot_is_read_by_what_it_runs(tmp_path):
    (path := tmp_path / "task.yaml").write_text(
        "resources: {gpus: 'H100:8'}\nnum_nodes: 2\nsetup: |\n  pip install 'sglang[all]'\n"
        "run: |\n  source venv/bin/activate\n  python3 -m sglang.launch_server --model-path a/b "
        "--tp 16 --enable-dp-attention --dp 2\n"
    )
    read = read_engine_file(path)
    assert (read.tool, read.fields["tp"], read.fields["attention_dp"]) == ("sglang", 16, 2)
