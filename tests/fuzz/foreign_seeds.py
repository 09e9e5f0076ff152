"""Small valid files of other tools, of a measurement kit and of a run directory."""

import io
import json
import tempfile
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path

import networkx as nx

from tests.support.foreign_plans import DEEPSPEED, MEGATRON, NEMO, NXD, TITAN
from tests.support.request_logs import CHAT, MOONCAKE
from tests.support.small_traces import GOAL, job, profile

ASTRA = b"""topology: [Ring, Switch]
npus_count: [8, 2]
bandwidth: [50.0, 25.0]
latency: [500.0, 1000.0]
"""
SUMMARY = {"total_time": 2e-3, "tensor_engine_active_time": 1e-3, "dma_active_time": 1.5e-3}
NCCOM = {"op": "allr", "nworkers": 4, "results": [{"size": 1024, "time_us": 12.0}]}
KERNELS = b"""kernel,chip,cores,load,runtime,precision,m,n,k,kernel_s,source
gemm,trn2,2,alone,compiled,bf16,4096,4096,4096,0.00145,me
gemm,trn2,2,alone,compiled,bf16,1024,1024,1024,0.00009,me
"""
BENCH = {
    "backend": "vllm", "num_prompts": 32, "request_rate": "inf", "max_concurrency": 8,
    "completed": 32, "total_input_tokens": 16384, "total_output_tokens": 2048,
    "request_throughput": 2.0, "output_throughput": 130.0, "mean_ttft_ms": 90.0,
    "mean_tpot_ms": 9.0,
}  # fmt: skip
VLLM = "TP=4\nvllm serve m --tensor-parallel-size $TP --max-num-seqs 32 --quantization fp8\n"
POD = """containers:
- image: vllm/vllm-openai:latest
  args: ["--model=m", "--tensor-parallel-size=2", "--max-num-seqs", "32"]
"""
POLICY = b"def policy(view):\n    return view.serving\n"
CAUSES = b"cause,per,mtbf,replaces\nchip,chip,50000h,1\nsoftware,job,400h,0\n"


@cache
def foreign_files() -> dict[str, bytes]:
    """Content by name; traces, kit and run directory are written once by what writes them."""
    ring = nx.cycle_graph(4)
    nx.set_edge_attributes(ring, {edge: {"bandwidth": "50GB/s"} for edge in ring.edges})
    texts = {
        "launch.sh": MEGATRON, "job.toml": TITAN, "nemo.yaml": NEMO, "nxd.yaml": NXD,
        "deepspeed.json": DEEPSPEED, "vllm.sh": VLLM, "pod.yaml": POD, "schedule.goal": GOAL,
        "bench.json": json.dumps(BENCH),
        "profile.json": json.dumps(profile()), "summary.json": json.dumps({"n1": SUMMARY}),
        "report.json": json.dumps(NCCOM), "graph.json": json.dumps(nx.node_link_data(ring)),
        "ring.graphml": "\n".join(nx.generate_graphml(ring)),
        "mooncake.jsonl": "\n".join(map(json.dumps, MOONCAKE)), "chat.json": json.dumps(CHAT),
    }  # fmt: skip
    contents = {name: text.encode() for name, text in texts.items()}
    contents |= {"astra.yml": ASTRA, "kernels.csv": KERNELS, "policy.py": POLICY}
    contents |= {"causes.csv": CAUSES}
    return contents | _written()


def _written() -> dict[str, bytes]:
    """Files of folders: execution traces, a kit with results, a run, each under its folder."""
    from experiments.calibration.kit import write_kit
    from experiments.cli.main import run
    from tests.fuzz.seeds import OWN_FILES

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "traces").mkdir()
        job(folder / "traces", 2)
        (folder / "traces" / "comm_group.json").write_text(json.dumps({"1": [0, 1]}))
        write_kit(folder / "kit", "trn2")
        for path in (folder / "kit").rglob("*"):
            if path.is_file() and path.name != "manifest.json":
                path.unlink()
        (folder / "kit" / "results.csv").write_bytes(KERNELS)
        (folder / "kit" / "collectives").mkdir(exist_ok=True)
        (folder / "kit" / "collectives" / "allr_4.log").write_bytes(OWN_FILES["log.txt"])
        step = ("train", "--model", "gpt2", "--cluster", "trn2.48xlarge")
        for question, place in ((("list", "schedules"), "run"), (step, "step")):
            with redirect_stdout(io.StringIO()):
                status = run([*question, "--json", "--quiet", "--out", str(folder / place)])
            if status != 0:
                raise RuntimeError(f"folder {place} of the seeds cannot be written")
        files = filter(Path.is_file, sorted(folder.rglob("*")))
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}
