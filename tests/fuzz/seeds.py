"""Small valid files of every input format, from which mutated ones are made."""

import json
import shlex
from collections.abc import Mapping

from tests.fuzz.foreign_seeds import foreign_files
from tests.support.small_models import TOY_CONFIG

CONFIG = {
    **TOY_CONFIG, "num_key_value_heads": 4, "vocab_size": 4096, "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}  # fmt: skip
OWN_FILES: Mapping[str, bytes] = {
    "cluster.yaml": b"""name: pod
chip: {like: trn2, hbm_bandwidth: 3TB/s}
scale_up:
  shape: torus
  axes:
    - {name: Y, size: 2, bandwidth: 64GB/s, latency: 0.4us}
    - {name: X, size: 4, bandwidth: 128GB/s, latency: 0.3us, wrap: false}
domains: 2
scale_out: {name: mine, bandwidth_per_chip: 200Gbit/s, latency: 12us, radix: 32, rails: 2}
""",
    "clos.yaml": b"scale_up: {shape: clos, size: 16, radix: 8, bandwidth: 10GB/s, latency: 1us}\n",
    "plan.yaml": b"tp: 4\npp: 2\nmicrobatch: 1\nglobal_batch: 16\nseq: 512\nzero: 1\n"
    b"order: tp-cp-dp-pp\n",
    "jobs.yaml": b"""jobs:
  - {name: a, model: gpt2, tp: 2, dp: 4, global_batch: 8, seq: 256, placement: server}
  - {name: b, model: gpt2, dp: 4, global_batch: 8, seq: 256, placement: packed}
""",
    "queue.csv": b"""name,submit,chips,time,limit,priority
first,0s,32,100min,2h,0
second,0s,48,60min,2h,0
third,1min,48,10min,1h,0
fourth,2min,128,30min,1h,1
fifth,3min,16,2h,3h,0
sixth,4min,64,50min,55min,2
""",
    "teams.csv": b"""name,submit,chips,time,team
first,0s,96,4h,a
second,1h,64,1h,b
third,90min,64,2h,b
""",
    "kueue.json": b"""{"kind": "List", "items": [
    {"kind": "ClusterQueue", "metadata": {"name": "a"}, "spec": {"cohort": "all",
     "resourceGroups": [{"flavors": [{"resources": [
         {"name": "aws.amazon.com/neuron", "nominalQuota": "64", "borrowingLimit": 32}]}]}]}},
    {"kind": "ClusterQueue", "metadata": {"name": "b"}, "spec": {"cohort": "all",
     "resourceGroups": [{"flavors": [{"resources": [
         {"name": "aws.amazon.com/neuron", "nominalQuota": 64}]}]}]}}
]}
""",
    "sacct.txt": b"""JobID|Submit|Start|End|NNodes|Timelimit|Priority
7|2026-11-02T08:00:00|2026-11-02T08:00:00|2026-11-02T09:00:00|1|02:00:00|10
8|2026-11-02T08:30:00|2026-11-02T09:30:00|2026-11-02T10:00:00|2|1-00:00:00|20
""",
    "pods.json": b"""{"kind": "List", "items": [
    {"kind": "Job", "metadata": {"name": "one", "creationTimestamp": "2026-11-02T08:00:00Z"},
     "spec": {"parallelism": 2, "template": {"spec": {"containers": [
         {"resources": {"limits": {"aws.amazon.com/neuron": 16}}}]}}},
     "status": {"startTime": "2026-11-02T08:10:00Z", "completionTime": "2026-11-02T09:10:00Z"}}]}
""",
    "framework.yaml": b"""title: ours
runtimes: [neuron]
plan: {zero: 1, overlap: dp}
assumes: layers run as separate kernels
source: me
""",
    "study.yaml": b"""command: collective
fixed: {op: all-reduce, size: 1MiB}
grid:
  cluster: [trn2.48xlarge]
  algorithm: [ring, auto]
show: [time_s]
""",
    "overlay.csv": b"""part,quantity,variant,value,unit,grade,source,note,low,high
trn2,link_latency,,250,ns,measured,me,,200,300
trn2,collective_efficiency,,0.7,ratio,measured,me,,,
""",
    "demand.csv": b"time,requests,prompt_tokens_sum,output_tokens_sum\n"
    + b"".join(
        b"2024-05-%02dT%02d:00,%d,90000,9000\n"
        % (10 + hour // 24, hour % 24, 1000 + 600 * (hour % 24))
        for hour in range(48)
    ),
    "history.csv": b"time,requests,prompt_tokens_sum,output_tokens_sum\n"
    + b"".join(
        b"2024-05-%02dT%02d:00,%d,90000,9000\n" % (6 + day, hour, 900 + 600 * (hour % 12) + 7 * day)
        for day in range(8)
        for hour in range(24)
    ),
    "holidays.txt": b"2024-05-09\n2024-12-25\n",
    "requests.csv": b"time_s,prompt_tokens,output_tokens\n"
    + b"".join(f"{second},{200 + second},{20 + second}\n".encode() for second in range(12)),
    "jobs.csv": b"""name,units,min_units,step_units,tokens_per_s,priority,count,evaluation
base,4,2,1,100000,1,1,0
eval,1,1,1,1000,0,1,1
""",
    "prices.csv": b"hour,usd_per_mwh,carbon_g_per_kwh\n"
    + b"".join(f"{hour},{40 + hour},{400 - 9 * hour}\n".encode() for hour in range(24)),
    "rows.csv": b"""\
name,cluster,chips,layers,hidden,ffn,heads,vocab,seq,tp,pp,dp,global_batch,iteration_s
a,dgx-a100,8,4,1024,4096,16,32000,1024,2,1,4,16,0.5
b,trn2.48xlarge,16,4,1024,4096,16,32000,1024,4,2,2,16,0.4
""",
    "collective_rows.csv": b"""collective,cluster,chips,ranks,algorithm,size_bytes,time_s,source
all-reduce,dgx-h100,8,8,,1048576,0.00005,me
all-gather,trn2.48xlarge,16,16,ring,1048576,0.0001,me
""",
    "config.json": json.dumps(CONFIG).encode(),
    "log.txt": b"""# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728
#       size         count      type   redop    root     time   algbw   busbw #wrong
     1048576        262144     float     sum      -1    45.10   23.25   43.59      0
    16777216       4194304     float     sum      -1   200.10   83.84  157.21      0
   134217728      33554432     float     sum      -1  1400.00   95.87  179.75      0
""",
    "steps.log": b"".join(
        b" iteration %d/ 9 | elapsed time per iteration (ms): 51%d.0 | global batch size: 16 |\n"
        % (n, n)
        for n in range(9)
    ),
    "monitor.json": b'{"neuron_runtime_data": [{"report": {"neuroncore_counters": '
    + (
        b'{"neuroncores_in_use": {"0": {"neuroncore_utilization": 42.0, "flops": 5e13}}}}}], '
        b'"neuron_hardware_info": '
        b'{"neuroncore_per_device_count": 4}}\n'
    ),
    "order.txt": b"0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15\n",
    "nodes.csv": b"node,tflops,between_gb_s\na,700,370\nb,650,371\nc,702,250\nd,699,369\n",
    "matrix.csv": b"\n".join(b",".join(b"65536" for _ in range(16)) for _ in range(16)) + b"\n",
}  # fmt: skip
"""Formats of cluster-sim's own by the name under which a case finds them."""


def files() -> Mapping[str, bytes]:
    """Return every input format by the name under which a case finds it."""
    return {**OWN_FILES, **foreign_files()}


def lines(text: str) -> tuple[tuple[str, ...], ...]:
    """Words of command lines, one a line; a backslash joins a line with the next."""
    return tuple(tuple(shlex.split(line)) for line in text.replace("\\\n", "").strip().splitlines())


ON_SEVERAL = "--model config.json --cluster trn2.48xlarge:2 --pp 2"
ON_TRN2 = "--model config.json --cluster trn2.48xlarge"
LINKS = "--bandwidth 100GB/s --latency 1us"
COMMANDS = lines(f"""
topology trn2.48xlarge
topology cluster.yaml
topology clos.yaml
topology torus:2x3 {LINKS}
topology trn2.48xlarge --catalogue overlay.csv
collective all-reduce trn2.48xlarge --size 1MiB
collective all-to-all cluster.yaml --size 64KiB,1MiB
collective all-gather clos.yaml --size 1MiB
collective reduce-scatter ring:6 --size 1000B {LINKS}
collective all-reduce dgx-h100:2 --size 1MiB --compare log.txt
collective all-reduce trn2.48xlarge --size 1MiB --order order.txt
collective all-to-all-v dgx-h100:2 --bytes matrix.csv
train {ON_TRN2} --plan plan.yaml
train --model gpt2 --cluster cluster.yaml --tp 4 --global-batch 64
train --model config.json --cluster dgx-h100 --global-batch 16
train {ON_TRN2} --tp 4 --framework framework.yaml
train {ON_TRN2} --tp 4 --compare monitor.json
train {ON_TRN2} --tp 4 --global-batch 16 --compare steps.log
train --model config.json --cluster trn2.48xlarge:4 --tp 4 --global-batch 64 --nodes nodes.csv
share trn2.48xlarge:2 --jobs jobs.yaml --steps 1
queue trn2-ultraserver:2 --jobs queue.csv
queue trn2-ultraserver:2 --jobs queue.csv --discipline preempt --failures 40 --restart 5min \\
    --checkpoint-interval 20min
queue trn2-ultraserver:2 --jobs teams.csv --quota kueue.json
queue trn2.48xlarge:2 --jobs sacct.txt --study
queue trn2.48xlarge:2 --jobs pods.json --place domain
plan {ON_TRN2} --global-batch 32
serve {ON_TRN2} --requests requests.csv
serve --model config.json --cluster cluster.yaml --count 20
fleet --cluster trn2-ultraserver:8 --demand demand.csv --days 0.5 --training jobs.csv \\
    --unit-rate 4 --price prices.csv
validate --file rows.csv --workers 1
validate --file collective_rows.csv --workers 1
validate --file bench.json --column cluster=dgx-h100 --column tp=2 --column model=llama-3.1-8b
calibrate log.txt --cluster dgx-h100
report run
compare step step
list variants
list jitter
train {ON_TRN2} --tp 4 --jitter chips,heat --iterations 3
train {ON_SEVERAL} --plan launch.sh --vpp 2
train {ON_SEVERAL} --plan job.toml
train {ON_TRN2} --tp 4 --later-stages cluster.yaml
train {ON_TRN2} --plan nemo.yaml
train {ON_SEVERAL} --plan nxd.yaml --tp 4
train {ON_TRN2} --plan deepspeed.json
topology astra.yml
topology graph.json --latency 1us
topology ring.graphml --latency 1us
serve {ON_TRN2} --count 20 --deployment vllm.sh
serve {ON_TRN2} --count 20 --deployment pod.yaml
serve {ON_TRN2} --requests mooncake.jsonl
serve {ON_TRN2} --requests chat.json --rate 2
replay traces --cluster ring:2 {LINKS}
replay traces/job.0.et traces/job.1.et --cluster dgx-h100
replay profile.json --cluster dgx-h100
replay summary.json --cluster trn2.48xlarge
replay schedule.goal --cluster ring:2 {LINKS}
lend --demand history.csv --cluster trn2-ultraserver:8 --unit-rate 4 --model config.json \\
    --holidays holidays.txt
fleet --cluster trn2-ultraserver:8 --demand demand.csv --days 0.2 --unit-rate 4 --policy policy.py
fleet --kind trn2-ultraserver:4 --kind trn3-gen2:2 --demand demand.csv --days 0.2 \\
    --unit-rate 4 --serve-on cheapest --maintenance out@0d01:00+1h=trn3-gen2:1 --no-compare
fleet --kind trn2-ultraserver:4@us --kind trn3-gen2:2@eu --region us=-8:70% --region \\
    eu=+1:30% --round-trip us/eu=145ms --days 1 --demand azure-code --unit-rate 4 --no-compare \\
    --no-intervals
run-job {ON_TRN2}:4 --tp 4 --global-batch 64 --days 3 --runs 2 --failures causes.csv
calibrate kit
calibrate kernels.csv report.json --cluster trn2.48xlarge
measure-kit new-kit --chip trn2
sweep study.yaml --workers 1
experiment algorithm_switch_points --clusters trn1.32xlarge
doctor
""")
"""Command lines that are valid beside the files; each is mutated."""
