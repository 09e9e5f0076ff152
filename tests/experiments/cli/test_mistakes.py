"""Mistakes of a user: each is one line that names it, exit status 2, and leaves nothing behind."""

import re
import shlex

import pytest

from tests.fuzz.cases import Case
from tests.fuzz.seeds import files
from tests.support.commands import refusal_of
from tests.support.small_models import SMALL_CONFIG, config_file

ON = "--model=llama-3.1-8b --cluster=trn2.48xlarge"
SERVE = f"serve {ON} --tp=4"
LOAD = f"{SERVE} --requests=poisson:2 --count=60"
RING = "collective all-reduce ring:4 --bandwidth=100GB/s --latency=1us --size=1MiB"
PLAN = "plan --model=tiny.json --cluster=trn2.48xlarge --global-batch=32 --seq=1024"
FOLLOW = (
    "lend --follow=history.csv --state=state --cluster=trn2-ultraserver:40 --unit-rate=1 "
    "--failures=off --model=gpt2"
)
SEVERAL = "collective all-reduce --size=1MiB,64MiB --ranks=8"
REDUCE = "collective all-reduce trn2.48xlarge --size=1MiB"
UNEVEN = "collective all-to-all-v trn2.48xlarge --size=1MiB --unrestricted"
TRAIN = "train --model=tiny.json --cluster=trn2.48xlarge --tp=4 --pp=2 --out=run"
MISTAKES = {
    "": (
        ("collective all-reduce ring:8 --size 1MiB --ranks abc", "--ranks 'abc'.* whole number"),
        (f"run-job {ON} --stragglers on", r"argument \(on\): a switch has no value; write --NA"),
        (f"serve {ON} --requests poison:1", r"requests 'poison:1'. Did you mean poisson:1\?"),
        (f"fleet {ON} --demand poisson:1", "deepseek-day. Rates are for serve --requests"),
        (f"train {ON} --tp 3", "Use degrees whose product divides them, such as 2, or state dp"),
        ("lend --model=gpt2 --unit-rate=1 --days 1", "a history of 24 h holds no whole night of 6"),
        (f"train {ON} --budget=lots", "--budget 'lots' is not a number; write it as 500k or 2M"),
        (f"plan {ON} --global-batch=64 --days=9", "state --tokens or --budget too"),
        (f"train {ON} --slo=ttft=1s", "No such option '--slo'; it is for serve, fleet and lend"),
        (f"train {ON} --tokens 15 T", r"argument \(T\); a number stands with its unit, as 15T"),
        (f"train {ON} --tp --quiet", "--tp has no value: --quiet is an option of its own"),
        (f"train {ON} --tp=2 --seq=512 --tp=4", "--tp is given as '2' and '4'; state it once"),
        (f"serve {ON} --seed=1 --seed=1", "--seed is given as '1' and '1'; state it once"),
        (f"train {ON} --sequence-parallel --no-sequence-parallel", "as 'on' and 'off'; state it"),
        (f"train {ON} --global-batch=1e3", r"whole number \(.*\); write 1000"),
        (f"train {ON} --global-batch=8%", r"whole number \(.*\); write 8"),
        (f"serve {ON} --precision=bf16,fp8", "is several, of which --search finds the best"),
        (f"serve {ON} --requests=5", "--requests '5' is no log; write a rate as poisson:5"),
        (f"serve {ON} --requests=poisson:5/h", "'5/h' is not a rate in requests/s. Write poisson:"),
        ("fleet --cluster=trn2-ultraserver,dgx-h100", "Name one here; train, plan, serve and coll"),
        (f"run-job {ON} --days 0", "a run of 0 days; .* Lengthen it"),
        ("fleet --seed -1", "--seed '-1'.* equal to 0"),
        ("fleet --peak 2", "'--peak'; here it is --scale-to-peak"),
        ("fleet --weight x", "--weight 'x'.* number"),
        (f"train {ON} --tp 2,4", r"; write digits alone for one number, and name several one"),
        ("plan --global-batch 64,128", r"write 64128 for one number, and name several one at a"),
        ("plan --global-batch 7.5", r"'7.5' must be a whole number \(sequences.*\)\. See"),
        ("run-job --days -1", "--days '-1'.* equal to 0"),
        ("fleet --days nan", "--days 'nan'.* equal to 36525"),
        ("sweep study.yaml --workers 0", "--workers '0'.* equal to 1"),
        ("fleet --start-day inf", "--start-day 'inf'.* equal to 36525"),
        ("fleet --weight nan", "--weight 'nan'.* equal to 1000000000"),
        ("nope", "'nope'.*--help"),
        ("topology", "CLUSTER.*--help"),
        ("topology ring:8 --jsn", "--jsn.*--json"),
        ("topology ring:8 --graph=3", "--graph.* does not take a value"),
        ("topology ring:8 --engine simpy", "engine 'simpy' is none of fast, reference"),
        ("report nowhere", r"is no run directory: it has no run\.json"),
        ("replay nowhere.et --cluster=dgx-h100", "nowhere.et"),
        ("replay traces --cluster=dgx-h100 --compute=guessed", "none of auto, recorded, scaled"),
        ("list models lama-405b", r"none of the \d+ models contains 'lama-405b'. Did you mean"),
        ("topology torus:4x4x4 --price-basis=owned", "No such option '--price-basis'"),
        ("list prices --price-basis=owned", "No such option '--price-basis'"),
        ("calibrate plan.yaml --price-basis=spot", "No such option '--price-basis'"),
        ("fleet --kind=p5.48xlarge:1 --kind=trn3-gen2:1 --price-basis=spot",
         "no such price of trn3-gen2; state owned, or give"),
        ("list models --variant=trn2.48xlarge.price=spot", "the list of models is not from it"),
        ("calibrate plan.yaml --cluster=dgx-h100", "no table"),
        ("validate --file=nowhere.csv", "nowhere.csv"),
        ("validate --table=atention", r"Did you mean attention\?"),
        ("validate --table=attention --file=x.csv", "Use one of them"),
        ("train --model=config.json --cluster=trn2.48xlarge --stage-layers=1-2",
         "--stage-layers names 2 chunks"),
        (f"train {ON} --tp=8 --tokens=15x", "is not a number"),
        (f"train {ON} --tp=8 --tokens=1e99", "--tokens '1e99': 1e99 is beyond 1e±40"),
        (f"train {ON} --tp=8 --tokens=1k", "are less than a step of"),
        ("train --model=llama-3.1-70b --cluster=p5.48xlarge:8 --level=chunk",
         r"Use --level collective\.$"),
        ("fleet --cluster=trn2-ultraserver:2 --demand=azure-conv --days=0.02 --unit-rate=30 "
         "--scale-to-peak=9 --no-compare --sensitivity", "lends nothing"),
    ),
    RING: (
        ("--fault=link:0-3@0s", r"is not RESOURCE@TIME:dead|slow=P/Q"),
        ("--fault=link:0-2@0s:dead", "no resource link:0-2 in this run"),
    ),
    "collective all-reduce dgx-h100 --size=1MiB": (
        ("--fault=link:0-8@0s:slow=1/2", "closed form without links. Name an algorithm"),
        ("--algorithm=ring --fault=nic:0@0s:dead", "no resource nic:0.*or write .*adapter:0"),
    ),
    SEVERAL: (
        ("", "are both missing"),
        ("ring:8 --cluster=ring:8", "are both given"),
        ("ring:8,ring:8", "appears twice"),
        ("ring:8,", "empty name"),
        ("ring:2,ring:4", "ring:2 needs the bandwidth"),
        ("ring:8,mesh:8 --sensitivity", "for one cluster"),
        ("trn2.48xlarge,p5.48xlarg", r"unknown cluster 'p5.48xlarg'. Did you mean p5.48xlarge\?"),
    ),
    "collective": (
        ("all-reduce trn2.48xlarge --size=1", "size '1' has no unit"),
        ("all-sum trn2.48xlarge --size=1GiB", "collective 'all-sum' is none of"),
        ("all-to-all trn2.48xlarge --size=1GiB --algorithm=ring",
         "these do: auto, best, torus, per-axis, direct, dimension-ordered"),
        ("all-reduce trn2.48xlarge --size=1MiB:1KiB:4", "a range needs"),
        ("all-reduce ring:8 --size=1GiB", "--bandwidth 100GB/s"),
        ("all-reduce trn2.48xlarge", "no size is given; add --size"),
        ("all-gather-v trn2.48xlarge --size=1MiB", "Did you mean all-gather"),
        ("all-reduce dgx-h100 --size=1MiB --runtime=eager", "--runtime eager is a way to issue"),
        ("all-gather dgx-h100 --compare=log.txt",
         "measures all-reduce, the command simulates all-gather"),
        ("all-reduce ring:4 --bandwidth=1GB/s --latency=1us --compare=log.txt",
         "measured on 16 ranks, the command simulates 4; add --ranks 16"),
        ("all-reduce dgx-h100:2 --compare=log.txt --size=3KiB", "none of the sizes asked for"),
        ("permute trn2.48xlarge --size=1MiB --order=0,5,1,4 --group=0,1,4,5",
         "permute from chip 0 to chip 5: no link joins them"),
    ),
    REDUCE: (
        ("--engine=quick", "engine 'quick' is none of"),
        ("--ranks=4 --group=0-3", "--ranks 4 and --group 0-3 both say"),
        ("--ranks=17", "17 ranks on trn2.48xlarge"),
        ("--ranks=6 --ranks-per-chip=4", "6 ranks are not whole chips of 4 ranks; use 4"),
        ("--ranks-per-chip=9", "9 ranks a chip; trn2 has 8 NeuronCores. Use 1 to 8"),
        ("--ranks-per-chip=0", "0 ranks per chip; use 1 to 256"),
        ("--ranks-per-chip=0 --group=0-3", "0 ranks per chip; use 1 to 256"),
        ("--ranks-per-chip=1000000000", "1000000000 ranks per chip; use 1 to 256"),
        ("--group=0-16", "chip 16 is not one of the 16 of trn2.48xlarge; the last is 15"),
        ("--group=0-999999999", "chip 999,999,999 is not one of"),
        ("--group=5-2", "the range 5-2 goes down; write 2-5"),
        ("--group=0,x", "'x' is no chip and no range"),
        ("--group=", "--group '' is empty; give it a value, or leave it out"),
        ("--group=0-3,", "'' is no chip and no range"),
        ("--group='0-3;'", "'' is no chip and no range"),
        ("--group=0,0", "chip 0 is named twice"),
        ("--group='0-3;3-6'", "chip 3 is in two groups"),
        ("--group='0-3;4-6'", "has groups of 3 and of 4 chips"),
        ("--group=0-15,0-15", "names 32 chips, trn2.48xlarge has 16"),
        ("--group='0-3;4-7' --order=0,1,2,3", "--order is for one group, --group names 2"),
        ("--group=0-3 --order=0,1,2", "lacks 1 of the group's 4 chips, the first is chip 3"),
        ("--group=0-3 --order=0,1,2,4", "names chip 4, which is not in the group"),
        ("--order=no-such-file.txt", "--order no-such-file.txt cannot be read"),
        ("--compare=no-such.txt", "no-such.txt cannot be read"),
        ("--skew=1", "--skew is for all-to-all-v, not for all-reduce"),
        ("--bytes=m.csv", "--bytes is for all-to-all-v, not for all-reduce"),
        ("--size=57MiB --sbuf", "a buffer of 57 MiB does not fit in the SBUF of a rank, 56 MiB"),
    ),
    UNEVEN: (
        ("", "all-to-all-v needs --bytes FILE, or --size with --skew"),
        ("--skew=1 --bytes=m.csv", "--bytes m.csv and --skew both say"),
        ("--skew=-1", "--skew -1.0 is not between 0"),
        ("--skew=nan", "--skew nan is not between 0"),
        ("--skew=1 --algorithm=ring", "These do: auto, best, dimension-ordered, direct"),
        ("--skew=1 --group='0-3;4-7'", "runs in one group, --group names 2"),
        ("--skew=1 --sbuf", "all-to-all-v in SBUF: the runtime wants its operands in"),
    ),
    TRAIN: (
        ("--level=chunk --engine=reference --global-batch=4096",
         "makes .* ops of this iteration; at most"),
        ("--level=colective", r"none of auto, .* Did you mean collective\?"),
        ("--dp=3", "dp 3 × tp 4 × pp 2 = 24 ranks, but the cluster has 16 chips. Reduce dp"),
        ("--global-batch=3", "global batch 3 is not a multiple"),
        ("--jitter=9", "jitter 9 is outside 0 to 0.25"),
        ("--straggler=99:2", "straggler 99 is no rank of the plan"),
        ("--vpp=3 --schedule=gpipe", "gpipe has one chunk a stage, not vpp 3"),
        ("--recompute=ful", r"Did you mean full\?"),
        *(
            (f"--{name}=0", f"--{name} is 0; it must be a whole number of at least 1.")
            for name in ("tp", "pp", "vpp", "dp", "cp", "ep", "microbatch", "global-batch", "seq")
        ),
    ),
    "train --model=llama-3.1-8b --tp=8 --global-batch=32": (
        ("--cluster=trn2.48xlarge,dgx-h100 --explain", "for one cluster"),
        ("--cluster=ring:8,mesh:8", "ring:8"),
        ("--cluster=trn2.48xlarge,p5.48xlarg", r"Did you mean p5.48xlarge\?"),
    ),
    PLAN: (
        ("--tp=3", "16 attention heads of tiny are not divisible by tp 3"),
        ("--global-batch=0", "--global-batch is 0; it must be a whole number"),
        ("--top=0", "--top"),
        ("--each=tpp", r"a plan has no 'tpp'. Did you mean tp\?"),
        ("--cluster=trn2.48xlarg", r"Did you mean trn2.48xlarge\?"),
        ("--cluster=trn2.48xlarge,p5.48xlarg", r"Did you mean p5.48xlarge\?"),
        ("--seq=16000000", "plans for tiny fits on trn2.48xlarge: the nearest, tp 16"),
        ("--order=tp-dp", "rank order tp-dp"),
        ("--capacity-factor=1.5", "capacity factor 1.5 is the room of experts, but"),
        ("--with='--tpp 8'", "--with '--tpp 8': No such option '--tpp'.*such as '--tp 8 --pp 4'"),
        ("--with=\"--tp 'x\"", "No closing quotation"),
        ("--tensor_model_parallel_size=8", "tensor_model_parallel_size'; here it is --tp."),
        ("--nodes=2", "here it is --cluster, such as --cluster trn2.48xlarge:4. See"),
        ("--with=missing.yaml", "missing.yaml cannot be read"),
        ("--with='--seq 2048'", "the plan of --with has seq 2048, and --seq is 1024"),
        ("--with='--tp 5'", "your own plan: .*tp 5"),
        ("--cluster=trn2.48xlarge,dgx-h100 --with='--tp 4'",
         r"--with is for one cluster, not several\. Name one\."),
    ),
    f"run-job {ON}:4 --tp=4 --global-batch=64 --days=20 --runs=2": (
        ("--elastic", "add --checkpoint peer"),
        ("--pp=4 --order=dp-tp-cp-pp --elastic --checkpoint=peer",
         "so that none can go on. Use a larger --dp"),
        ("--days=0", "0 days"),
        ("--days=nan", "'nan' must be greater than or equal to 0"),
        ("--days=1e9", "at most 7,305 days"),
        ("--checkpoint-interval=soon", "--checkpoint-interval"),
        ("--checkpoint-interval=0s", "at least"),
        ("--checkpoint-stall=5s --checkpoint=peer", "leave it out, or --checkpoint peer"),
        ("--checkpoint-interval=30", "'30' has no unit. Write it as 30ms or 30s"),
        ("--checkpoint-interval=-5min", "the least is 0"),
        ("--spares=many", "whole number"),
        ("--spares=-1", "whole number"),
        ("--failures=often", "often"),
        ("--failures=1e9", "failures are expected"),
        ("--repair=-1h", "the least is 0"),
        ("--checkpoint=lazy", "none of async, blocking, peer"),
        ("--runs=0", "runs"),
    ),
    LOAD: (
        ("--prefill-cluster=p5.48xlarge", "State how many there are"),
        ("--prefix-cache=all", "--prefix-cache 'all'"),
        ("--prefix-cache=trace", "needs --requests FILE"),
        ("--speculate=4", "two numbers"),
        ("--prompt=0", "--prompt 0: a request has at least 1 token"),
        ("--attention-dp=3", "on trn2 is served by Neuron's engine, which has no such groups"),
        ("--speculate=4:1.5", "--speculate 4:1.5: an acceptance of 1.5"),
        ("--speculate=4:0.5:no-such-model", "unknown model"),
        ("--speculate=4:0.5:llama-3.1-405b", "GB"),
        ("--disaggregate=1", "write 1:3"),
        ("--disaggregate=3:3", "take 24 chips"),
        ("--disaggregate=0:3", "use 1 to"),
        ("--precision=mxfp4", "cannot serve in mxfp4 on trn2"),
    ),
    SERVE: (
        ("--max-rate --requests=requests.csv", "requests.csv states when requests arrive"),
        ("--max-rate --rate=3", "--rate 3 states when requests arrive, and the highest rate is"),
        ("--max-rate --slo=ttft=1ms", "keeps ttft 1 ms for only 0.0%"),
        ("--max-rate --prefix-cache=trace", "--prefix-cache trace needs --requests FILE"),
        ("--search --concurrency=3", "state their rate instead, --requests poisson:RATE, where"),
        ("--max-rate --concurrency=3", "--concurrency and --max-rate exclude each other; for N"),
        ("--search --sensitivity", "--sensitivity is for stated replicas"),
        ("--search --requests=poisson:0", "--requests poisson:0"),
        ("--concurrency=3 --disaggregate=1:1", "leave --disaggregate out"),
        ("--concurrency=3 --requests=poisson:3", "poisson:3 states when requests arrive"),
        ("--concurrency=3 --rate=3", "exclude each other; give one of them"),
        ("--shortest-lengths=0.8", "state --prompt and --output, or leave it out"),
        ("--shortest-lengths=0.8 --requests=requests.csv", "is for poisson:RATE; requests.csv"),
        ("--cluster=trn2.48xlarge,dgx-h100 --sensitivity", "--sensitivity is for one cluster"),
        ("--cluster=dgx-h100 --requests=requests.csv --output=5",
         "requests.csv states the tokens of every answer; leave --output 5 out"),
    ),
    "serve --model=llama-3.1-70b --cluster=trn2.48xlarge": (
        ("--requests=poisson:fast", "Write poisson:0.5"),
        ("--requests=none.csv", "there is no such file"),
        ("--prefill=chunky", "Did you mean chunked"),
        ("--slo=latency=2s", "not of the form"),
        ("--tp=99", "within one scale-up domain of 16 chips. Use 1 to 16 chips, or up to 64"),
        ("--tp=3", "tp 3 divides neither the 64 heads of llama-3.1-70b nor the 16 chips"),
        ("--tp=33", "Use 1, 2, 4, 8, 16 chips"),
        ("--cluster=ring:8", "ring:8 is a plain shape without chips"),
        ("--precision=fp4", "cannot serve in fp4 on trn2; it computes in bf16, fp16, fp8"),
        ("--slo=ttft=2s,ttft=3s", "names ttft twice"),
        ("--requests=poisson:inf", r"the rate must be above 0 and below 1e\+09"),
        ("--requests=poisson:1e-9", "take over 1,000,000,000 s"),
        ("--service=chat", "service 'chat' is none of"),
        ("--prefill=separate --chunk=64", "--chunk 64 cuts prompts"),
        ("--model=llama-3.1-70", "Did you mean llama-3.1-70b"),
    ),
    "fleet --cluster=trn2-ultraserver:20 --unit-rate=2 --no-compare --days=0.05": (
        ("--policy=treshold", "Did you mean threshold"),
        ("--demand=azure-cod", "Did you mean azure-code"),
        ("--failures=maybe", "choose from on, off, domains"),
        ("--noise=loud", "write none, measured"),
        ("--night=late", "write hours such as 22-6"),
        ("--days=9", "choose fewer days"),
        ("--what-if=flood", "unknown what-if"),
        ("--weights=disk", "choose from store, nvme"),
        ("--scale-to-peak=0", "peak share of 0"),
        ("--training=none.csv", "there is no such file"),
        ("--cluster=ring:8", "ring:8 is a plain shape without chips"),
        ("--block=100", "a block of 100 units: the fleet has 20"),
        ("--average=inf", "--average inf is not a whole number of minutes"),
        ("--average=90s", "--average 90s is not a whole number of minutes"),
        ("--change-time=5", "--change-time '5' has no unit"),
        ("--price-cap=50", "--price-cap 50 without prices; add --price FILE.csv."),
        ("--price=none.csv", "price file none.csv cannot be read: there is no such file"),
    ),
    "share trn2.48xlarge --jobs=jobs.yaml": (("--placement=spred", "spread"), ("--steps=0", "--s")),
    "topology --out=run": (
        ("trn2.48xlrge", r"Did you mean trn2.48xlarge\?"),
        ("torus:0x4", "torus:0x4: a size of 0 is not between 1"),
        ("ring:8 --bandwidth=100", "bandwidth '100' has no unit"),
        ("trn2.48xlarge --bandwidth=1GB/s", "are for plain shapes"),
        ("trn2.48xlarge --variant=trn2.hbm_bandwidth=none", "no variant 'none'"),
        ("trn2.48xlarge --catalogue=none.csv", "none.csv cannot be read"),
        ("rainier:65", "use rainier:64"),
    ),
    "train --model=tiny.json --price-basis=owned": (
        ("--cluster=trn4-ultraserver", "no capital of trn4; give a --catalogue with it"),
        ("--cluster=tpu7x-pod", "no capital of tpu7x"),
        ("--cluster=ring:8", "ring:8 is a plain shape without chips"),
    ),
    "train --model=tiny.json --cluster=dgx-h100": (
        ("--price-basis=monthly", "--price-basis 'monthly' is none of on-demand, capacity-block,"),
    ),
    "train --model=tiny.json --price-basis=spot": (
        ("--cluster=tpu7x-pod", "no price of tpu7x-pod; give a --catalogue with it"),
        ("--cluster=dgx-b200,p5en.48xlarge,gb200-nvl72",
         "no such price of gb200-nvl72; state on-demand, capacity-block or owned, or give"),
    ),
    FOLLOW: (
        ("--demand=azure-code", "--demand is for a history that is read at once"),
        ("--start-day=1", "--start-day is for a history"),
        ("--batch-share=20%", "--batch-share is for a history"),
        ("--out=run", "--state keeps them all"),
        ("--poll=0s", "--poll 0s is under a second"),
        ("--once --poll=2min", "changes nothing beside --once"),
        ("--query=up", "--query is for a server"),
        ("--confidence=2", "write a share such as 99.9%"),
    ),
}  # fmt: skip
"""For the words that lines begin with, what is mistaken after them and a pattern of the message."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("inputs")
    Case(0, (), files()).write(place)
    config_file(place / "tiny.json", SMALL_CONFIG)
    return place


@pytest.mark.parametrize(
    ("line", "more", "message"),
    [(base, more, message) for base, rest in MISTAKES.items() for more, message in rest],
)
def test_a_mistake_is_one_line_that_names_it(line, more, message, folder, monkeypatch):
    monkeypatch.chdir(folder)
    before = sorted(folder.rglob("*"))
    refusal = refusal_of(line, *shlex.split(more))
    assert re.search(message, refusal), refusal
    assert sorted(folder.rglob("*")) == before
