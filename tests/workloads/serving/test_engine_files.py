"""Replicas in files of serving engines: fields that are read, keys that are named, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from topologies.clusters.names import cluster
from topologies.errors import InputError
from workloads.serving.engine_files import launch_command, read_engine_file

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


@pytest.mark.parametrize(
    ("name", "text", "fields", "may", "cannot"),
    [
        ("serve.sh", SCRIPT, {
            "scheduler": "vllm", "tp": 4, "slots": 128, "chunk": 4096, "ep": 4,
            "precision": "fp8", "cache_precision": "fp8",
        }, ("gpu-memory-utilization",), ("port",)),
        ("pod.yaml", MANIFEST, {"scheduler": "vllm", "tp": 4, "slots": 32}, (), ("model",)),
        ("serve.sh", TENSORRT, {
            "scheduler": "tensorrt-llm", "tp": 8, "ep": 4, "slots": 512, "chunk": 8192,
            "cache_precision": "fp8", "gather": "20:0.9", "attention_dp": 8,
        }, ("extra-llm-api-options",), ()),
        ("serve.sh", SGLANG, {
            "scheduler": "sglang", "tp": 8, "slots": 256, "chunk": 16384, "poll": 10,
        }, ("disable-radix-cache",), ("log-level", "model-path")),
        ("serve.sh", f"{SGLANG} --enable-dp-attention --dp 4", {
            "scheduler": "sglang", "tp": 8, "slots": 64, "chunk": 16384, "poll": 10,
            "attention_dp": 4,
        }, ("disable-radix-cache",), ("log-level", "model-path")),
        ("vllm.yaml", "model: m\ntensor-parallel-size: 2\nmax_num_seqs: 64\nport: 8000\n",
         {"scheduler": "vllm", "tp": 2, "slots": 64}, (), ("model", "port")),
        ("extra.yaml", "tensor_parallel_size: 8\nkv_cache_config: {dtype: auto}\n"
         "batch_wait_timeout_iters: 0\nbatch_wait_max_tokens_ratio: 0.9\n",
         {"scheduler": "tensorrt-llm", "tp": 8}, ("kv-cache-config.dtype = auto",),
         ("batch-wait-timeout-iters = 0",)),
        ("serve.txt", "vllm serve m -tp 2 -dp 1",
         {"scheduler": "vllm", "tp": 2, "attention_dp": 1}, (), ()),
        ("compose.yaml", "services: {a: {image: i, entrypoint: vllm serve m -tp 2}}",
         {"scheduler": "vllm", "tp": 2}, (), ()),
    ],
)  # fmt: skip
def test_a_replica_is_read_and_other_keys_are_named(
    tmp_path: Path,
    name: str,
    text: str,
    fields: dict[str, Any],
    may: tuple[str, ...],
    cannot: tuple[str, ...],
) -> None:
    path = tmp_path / name
    path.write_text(text)
    read = read_engine_file(path)
    assert dict(read.fields) == fields
    assert read.may_change_time == may
    assert tuple(key for key in read.ignored if key not in may) == cannot


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.sh", "vllm serve m --tensor-parallel-size $TP", r"\$TP, which.*'TP=8 a.sh'"),
        ("a.sh", "vllm serve m --pipeline-parallel-size 2", "must be 1, as a replica is divided"),
        ("a.sh", "vllm serve m --quantization awq", "'awq', of which no precision can be made"),
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
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_engine_file(path)


def test_what_is_stated_beside_a_file_may_be_open_in_it(tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    path.write_text("vllm serve m --tensor-parallel-size $TP --num-speculative-tokens 3")
    assert dict(read_engine_file(path, {"tp", "speculate"}).fields) == {"scheduler": "vllm"}
    set_before = read_engine_file(Path(f"TP=8 {path}"), {"speculate"})
    assert set_before.fields["tp"] == 8
    path.write_text("vllm serve m --data-parallel-size 8 --enable-expert-parallel")
    stated = {"tp", "ep", "attention_dp"}
    assert dict(read_engine_file(path, stated).fields) == {"scheduler": "vllm"}


def test_a_file_leaves_open_what_it_does_not_state(tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    path.write_text("vllm serve m")
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
    },
)


@examples(50)
@given(
    engine=st.sampled_from(["vllm", "sglang", "tensorrt-llm"]),
    fields=FIELDS,
    divided=st.booleans(),
    precision=st.sampled_from([None, "fp8", "fp4"]),
)
def test_a_written_launch_is_read_as_the_replica(
    tmp_path_factory: pytest.TempPathFactory,
    engine: str,
    fields: dict[str, Any],
    divided: bool,
    precision: str | None,
) -> None:
    stated = dict(fields)
    if divided and fields["tp"] > 1:
        stated["ep"] = fields["tp"]
    if precision and engine != "tensorrt-llm":
        stated["precision"] = precision
    path = tmp_path_factory.mktemp("launch") / "serve.sh"
    path.write_text(launch_command(engine, {**stated, "poll": 1}, "org/model"))
    assert dict(read_engine_file(path).fields) == {"scheduler": engine, **stated}


def test_what_an_engine_has_no_option_for_is_not_written() -> None:
    assert '"num_speculative_tokens": 3' in launch_command("vllm", {"speculate": "3:0.7"}, "m")
    assert '"model": "d"' in launch_command("vllm", {"speculate": "3:0.7:d"}, "m")
    with pytest.raises(InputError, match=r"no launch of vllm is written with --gather 20:0\.9"):
        launch_command("vllm", {"tp": 2, "gather": "20:0.9"}, "m")
    with pytest.raises(InputError, match="written with --ep 2"):
        launch_command("vllm", {"tp": 4, "ep": 2}, "m")
    with pytest.raises(InputError, match="sglang is written with --attention-dp 8"):
        launch_command("sglang", {"tp": 8, "attention_dp": 8}, "m")
    with pytest.raises(InputError, match="runs as sglang"):
        launch_command("vllm", {"scheduler": "sglang"}, "m")


@pytest.mark.parametrize(
    ("words", "precision"),
    [
        ("nvidia/Llama-3.1-70B-Instruct-FP8 --max-num-seqs 128", "fp8"),
        ("--model RedHatAI/Qwen3-32B-NVFP4", "fp4"),
        ("meta-llama/Llama-3.1-70B-Instruct", None),
        ("nvidia/Llama-3.1-70B-Instruct-FP8 --quantization mxfp8", "mxfp8"),
    ],
)
def test_the_name_of_a_checkpoint_tells_its_precision(
    tmp_path: Path, words: str, precision: str | None
) -> None:
    path = tmp_path / "launch.sh"
    path.write_text(f"vllm serve {words} --tensor-parallel-size 4\n")
    assert read_engine_file(path).fields.get("precision") == precision
    assert "precision" not in read_engine_file(path, {"precision": "bf16"}).fields
