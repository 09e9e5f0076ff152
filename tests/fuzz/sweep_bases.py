"""Base commands of the sweep over all options, and the files beside them."""

import json
from collections.abc import Mapping
from pathlib import Path

from experiments.calibration.fit import COLUMNS
from tests.fuzz.seeds import CONFIG, files, lines
from topologies.catalogue.catalogue import shipped_catalogue

MIXTURE = {**CONFIG, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
LINKS = "--bandwidth 100GB/s --latency 1us"
TRN2 = "--model config.json --cluster trn2.48xlarge"
H100 = "--model config.json --cluster dgx-h100:2"
EXPERTS = "--model moe.json --cluster dgx-h100:2"
DAY = "--cluster trn2-ultraserver:8 --demand demand.csv --days 0.5"
FLEET = f"{DAY} --start-day 1 --unit-rate 0.7"
NIGHT = "--cluster trn2-ultraserver:8 --demand history.csv"

QUICK = lines(f"""
topology trn2.48xlarge
topology torus:2x3 {LINKS}
topology graph.json --latency 1us
replay traces --cluster ring:2 {LINKS}
replay profile.json --cluster dgx-h100
list models
doctor
""")
"""Commands whose options are swept in seconds."""
SLOW = lines(f"""
collective all-reduce trn2.48xlarge --size 1MiB
collective all-reduce torus:2x3 --size 1MiB {LINKS}
collective all-gather dgx-h100:2 --size 64KiB
collective all-to-all-v dgx-h100:2 --size 1MiB --skew 0.5
train {TRN2} --tp 4 --global-batch 32
train {H100} --tp 2 --pp 2 --global-batch 32 --overlap dp
train {EXPERTS} --tp 2 --ep 2 --global-batch 32
train --model config.json --cluster trn1.32xlarge --tp 2 --cp 2 --global-batch 32
share trn2.48xlarge:2 --jobs jobs.yaml
queue trn2-ultraserver:2 --jobs queue.csv
queue trn2-ultraserver:2 --jobs teams.csv --quota a=32 --quota b=64 --reserve b=64@6h+2h
queue trn2-ultraserver:2 --jobs queue.csv --discipline preempt --failures 40
plan {TRN2} --global-batch 32 --top 3
plan {EXPERTS} --global-batch 32 --top 3
run-job {TRN2} --tp 4 --global-batch 64 --days 3 --runs 2
run-job {EXPERTS} --ep 2 --global-batch 64 --days 300 --runs 2
serve {TRN2} --requests poisson:300 --count 50
serve --model moe.json --cluster dgx-h100 --requests requests.csv
serve --model moe.json --cluster dgx-h100 --requests mooncake.jsonl
replay traces --cluster dgx-h100
fleet {FLEET}
fleet {FLEET} --price prices.csv --training jobs.csv --batch-share 20% --policy price \\
    --token-price 2
fleet {FLEET} --policy threshold --no-compare
fleet {FLEET} --policy clock --no-compare
fleet {FLEET} --policy static --no-compare
fleet {FLEET} --policy power-cap --power-cap 0.2 --no-compare
lend {NIGHT} --unit-rate 0.7
lend {NIGHT} --unit-rate 0.7 --batch-share 20%
lend {NIGHT} --model config.json
calibrate log.txt --cluster dgx-h100
calibrate kernels.csv report.json --cluster trn2.48xlarge
validate --file rows.csv --workers 1
validate --file collective_rows.csv --workers 1
list variants
list prices
""")
"""Commands whose options are swept in minutes."""
BINDING = lines("""
collective all-reduce trn2.48xlarge --size 32MiB --algorithm multi-ring --ranks-per-chip 4
plan --model llama-3.1-8b --cluster trn2.48xlarge --global-batch 32
fleet --cluster trn2-ultraserver:64 --demand demand.csv --days 1.5 --start-day 0 --unit-rate \\
    0.05 --policy threshold --no-compare
calibrate log.txt --cluster trn2.48xlarge
""")
"""Larger commands, in which options bind that change nothing in the others."""
NOT_SWEPT = {
    "experiment": "a group, whose commands have options of their own",
    "sweep": "its options say where rows run; the study has the others",
    "measure-kit": "writes a folder",
    "explore": "serves a page until it is stopped",
    "serve-api": "answers requests until it is stopped",
    "compare": "its only inputs are directories",
    "report": "its only input is a directory",
}
"""Commands without a base, with the reason."""


def write_files(folder: Path) -> None:
    """Write every input file, one of each format, to a folder."""
    extra: Mapping[str, bytes] = {
        "moe.json": json.dumps(MIXTURE).encode(),
        "everything.csv": _slower_machines().encode(),
        "holidays.txt": b"2024-05-09\n2024-12-25\n",
        "order.txt": b"0 5 10 15 1 6 11 12 2 7 8 13 3 4 9 14\n",
    }
    for name, content in {**files(), **extra}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _slower_machines() -> str:
    """Return a catalogue in which every rate of memory and links is a tenth lower."""
    rows = [
        f"{row.part},{row.quantity},,{row.value * 0.9:.12g},B/s,assumed,me,,,"
        for row in shipped_catalogue().rows
        if row.unit == "B/s" and not row.variant
    ]
    return "\n".join([",".join(COLUMNS), *rows]) + "\n"
