"""Hostile command lines: each is one line on stderr with status 2, and leaves nothing behind.

The table names, for each command, a line that is valid and what is put in its place: wrong units,
negative, zero, huge and missing values, no numbers, no text, other alphabets, directories, pipes
and files that are no files.
"""

import os
import stat

import pytest

from experiments.cli.registry import COMMANDS
from tests.fuzz.cases import Case
from tests.fuzz.seeds import files
from tests.support.commands import refusal_of

ON = ("--model=config.json", "--cluster=trn2.48xlarge")
FLEET = ("--cluster=trn2-ultraserver:8", "--model=config.json", "--unit-rate=4")
VALID = {
    "topology": ("trn2.48xlarge",),
    "collective": ("all-reduce", "trn2.48xlarge", "--size=1MiB"),
    "train": (*ON, "--tp=4", "--global-batch=16"),
    "plan": (*ON, "--global-batch=16"),
    "run-job": (*ON, "--tp=4", "--days=3", "--runs=1"),
    "share": ("trn2.48xlarge", "--jobs=jobs.yaml", "--steps=1"),
    "queue": ("trn2-ultraserver:2", "--jobs=queue.csv"),
    "serve": (*ON, "--requests=requests.csv"),
    "replay": ("traces", "--cluster=dgx-h100"),
    "fleet": (*FLEET, "--demand=demand.csv", "--days=0.5"),
    "lend": (*FLEET, "--demand=history.csv"),
    "experiment": ("algorithm_switch_points",),
    "sweep": ("study.yaml", "--workers=1"),
    "validate": ("--file=rows.csv", "--workers=1"),
    "calibrate": ("log.txt", "--cluster=dgx-h100"),
    "measure-kit": ("kit-for-me", "--chip=trn2"),
    "compare": ("run", "run"),
    "explore": ("run", "--json"),
    "serve-api": ("--json",),
    "report": ("run",),
    "list": ("models",),
    "doctor": (),
}
EVERYWHERE = (
    "--out=log.txt", "--out=log.txt/below", "--out=folder-of-others", "--out=loop", "--out=loop/x",
    "--out=pipe", "--out=/dev/null", "--out=/proc/nowhere/x", "--out=a\x00b", "--out", "--seed=-1",
    "--seed=nan", "--seed=1.5", "--seed=", "--seed=١٢x", "--engine=", "--engine=simpy",
    "--engine=\x1b[31m", "--engine=" + "x" * 3000, "--out=" + "x" * 300, "--jsn", "--json=yes",
    "one-argument-too-many\u202e",
)  # fmt: skip
"""Words that no command takes, whatever else is on its line."""
ON_A_MODEL = (
    "--model=", "--model=folder", "--model=pipe", "--model=/dev/zero", "--model=log.txt",
    "--model=loop", "--model=gtp2", "--model=é", "--cluster=", "--cluster=pipe", "--cluster=folder",
    "--cluster=log.txt", "--cluster=trn2.48xlarge:0", "--cluster=trn2.48xlarge:-1",
    "--cluster=trn2.48xlarge:1e9", "--cluster=nan", "--catalogue=pipe", "--catalogue=folder",
    "--catalogue=rows.csv", "--catalogue=nowhere.csv", "--variant=x", "--variant=trn2.=",
    "--variant=[/x]", "--price-basis=", "--price-basis=rented",
)  # fmt: skip
PLAN = (
    "--tp=0", "--tp=-4", "--tp=3", "--tp=nan", "--tp=1e3", "--tp=4B", "--tp=", "--pp=999999999",
    "--dp=" + "9" * 400, "--zero=7", "--seq=0", "--seq=-1", "--microbatch=0", "--global-batch=0",
    "--global-batch=inf", "--schedule=x", "--recompute=x", "--overlap=x", "--precision=fp5",
    "--routing-skew=0.5", "--routing-skew=nan", "--order=tp", "--stage-layers=a-b", "--bucket=1s",
    "--capacity-factor=-1", "--capacity-factor=nan", "--bucket=-1B", "--plan=pipe", "--plan=folder",
    "--plan=log.txt", "--plan=nowhere.yaml", "--lnc=-1", "--etp=-1", "--vpp=0", "--cp=0", "--ep=0",
    "--ranks-per-chip=0", "--lora-rank=-1", "--train-only=x", "--runtime=x", "--attention=x",
    "--cp-exchange=x",
)  # fmt: skip
OWN = {
    "topology": (
        "=", "=trn9", "=ring:0", "=ring:-1", "=ring:nan", "=ring:" + "9" * 60, "=torus:4x",
        "=torus:x", "=mesh:99999", "=clos:64:3", "=clos:64", "=switch:1e3", "=trn2.48xlarge:",
        "=trn2.48xlarge:0", "=trn2.48xlarge:x", "=pipe", "=folder", "=log.txt", "=rows.csv",
        "=nowhere.yaml", "=\x00", "--bandwidth=1us", "--bandwidth=-1GB/s", "--bandwidth=0GB/s",
        "--bandwidth=nan", "--latency=1GB/s", "--latency=-1us", "--latency=inf", "--catalogue=pipe",
        "--catalogue=log.txt", "--variant=x",
    ),
    "collective": (
        "--size=0", "--size=-1B", "--size=nan", "--size=inf", "--size=1GB/s", "--size=1us",
        "--size=", "--size=,", "--size=1KiB:1B:4", "--size=1KiB:1GiB:1", "--size=1KiB:1GiB:0",
        "--size=1KiB:1GiB:nan", "--size=" + "9" * 400 + "B", "--size=1EB", "--algorithm=",
        "--algorithm=rong", "--algorithm=direct", "--ranks=0", "--ranks=-1", "--ranks=1.5",
        "--ranks-per-chip=99", "--group=0-99", "--group=5-1", "--group=a", "--group=;",
        "--order=0,0", "--order=@pipe", "--order=folder", "--runtime=x", "--bytes=matrix.csv",
        "--skew=1", "--fault=x", "--fault=link:0-9@0s:dead", "--fault=link:0-1@-1s:dead",
        "--fault=link:0-1@0s:slow=0/0", "--fault=link:0-1@0s:slow=2/1", "--compare=pipe",
        "--compare=folder", "--compare=study.yaml", "--bandwidth=1GB/s",
    ),
    "train": (
        *ON_A_MODEL, *PLAN, "--level=x", "--level=", "--jitter=-1", "--jitter=nan", "--jitter=2",
        "--jitter=chip", "--jitter=chips,,", "--straggler=0", "--straggler=0:0.5",
        "--straggler=0:nan", "--straggler=a:b", "--fault=x", "--fault=engine:99@0s:dead",
        "--fault=engine:0@x:dead", "--iterations=0", "--iterations=-1", "--iterations=99999999999",
        "--chakra=log.txt", "--later-stages=x", "--later-stages=,", "--later-stages=ring:8",
        "--later-stages=pipe", "--compare=0s", "--compare=-1s", "--compare=nan", "--compare=3.2",
        "--compare=1e400s", "--compare=pipe", "--compare=folder", "--compare=study.yaml",
    ),
    "plan": (
        *ON_A_MODEL, "--global-batch=-1", "--global-batch=nan", "--global-batch=" + "9" * 400,
        "--objective=x", "--memory-margin=-1", "--memory-margin=2", "--memory-margin=nan",
        "--top=-1", "--tp=0", "--seq=0", "--precision=x",
    ),
    "run-job": (
        *ON_A_MODEL[::3], *PLAN[::5], "--days=-1", "--days=inf", "--checkpoint-interval=-1s",
        "--checkpoint-interval=1GB", "--checkpoint-interval=x", "--checkpoint=x", "--spares=x",
        "--failures=-1", "--failures=nan", "--failures=pipe", "--failures=folder",
        "--failures=log.txt", "--repair=-1s", "--repair=1GB", "--restart=x", "--restart=-1s",
        "--runs=1001", "--runs=1.5",
    ),
    "queue": (
        "=", "=ring:8", "=trn9", "=pipe", "=log.txt", "--jobs=", "--jobs=pipe", "--jobs=folder",
        "--jobs=log.txt", "--jobs=plan.yaml", "--jobs=jobs.yaml", "--jobs=nowhere.csv",
        "--discipline=x", "--discipline=", "--place=x", "--place=", "--catalogue=pipe",
        "--variant=x", "--failures=-1", "--failures=nan", "--failures=pipe", "--failures=folder",
        "--failures=log.txt", "--failures=x", "--restart=x", "--restart=-1s", "--repair=-1s",
        "--repair=1GB", "--checkpoint-interval=0s", "--checkpoint-interval=1GB", "--quota=",
        "--quota=a", "--quota=a=", "--quota==1", "--quota=a=-1", "--quota=a=1e9", "--quota=pipe",
        "--quota=folder", "--quota=log.txt", "--quota=nowhere.yaml", "--reserve=", "--reserve=a",
        "--reserve=a=1@1h", "--reserve=a=1@x+1h",
    ),
    "share": (
        "=", "=ring:8", "=trn9", "=pipe", "=log.txt", "--jobs=", "--jobs=pipe", "--jobs=folder",
        "--jobs=log.txt", "--jobs=plan.yaml", "--jobs=study.yaml", "--jobs=nowhere.yaml",
        "--placement=x", "--placement=", "--steps=-1", "--steps=nan", "--steps=9999999",
        "--catalogue=pipe", "--variant=x",
    ),
    "serve": (
        *ON_A_MODEL, "--requests=", "--requests=pipe", "--requests=folder", "--requests=log.txt",
        "--requests=nowhere.csv", "--requests=poisson:-1", "--requests=poisson:nan",
        "--requests=poisson:x", "--requests=poisson:", "--tp=0", "--tp=-1", "--tp=3.5", "--slo=",
        "--slo=x", "--slo=ttft=2GB", "--slo=ttft=-1s", "--slo=ttft=0s,ttft=1s", "--count=0",
        "--count=-1", "--count=nan", "--rate=-1", "--rate=nan", "--chunk=-1", "--precision=x",
    ),
    "replay": (
        "=folder", "=pipe", "=log.txt", "=", "=/dev/zero", "=loop", "=config.json", "--cluster=",
        "--cluster=pipe", "--cluster=x", "--cluster=ring:2", "--compute=x", "--communication=x",
        "--chakra=log.txt", "--recorded-on=x", "--bandwidth=1us", "--latency=1B",
        "--catalogue=pipe", "--variant=x", "--chakra=\ud800",
    ),
    "fleet": (
        "--cluster=", "--cluster=pipe", "--demand=", "--demand=pipe", "--demand=folder",
        "--demand=log.txt", "--demand=nowhere.csv", "--demand=azure-cnv", "--days=0", "--days=-1",
        "--days=nan", "--days=1e9", "--days=1e400", "--policy=x", "--policy=pipe",
        "--policy=folder", "--policy=nowhere.py", "--training=pipe", "--training=log.txt",
        "--failures=x", "--scale-to-peak=-1", "--scale-to-peak=nan", "--what-if=x",
        "--what-if=growth=", "--what-if=growth=-200%", "--what-if=spike@2dx3",
        "--what-if=failover@9d", "--what-if=zones=0", "--slo=x", "--slo=share=200%", "--price=pipe",
        "--price=x", "--model=x", "--model=gpt2=50%", "--unit-rate=0", "--unit-rate=-1",
        "--unit-rate=nan", "--noise=x", "--start-day=-1", "--step=0", "--kind=x", "--kind=ring:8",
        "--kind=trn2-ultraserver:0", "--serve-on=x", "--serve-on=", "--maintenance=x",
        "--maintenance=out@0d01:00+1h=-1", "--maintenance=out@0d01:00+1h=1e9", "--region=x",
        "--region=us=nan:1%", "--region=us=-8:60%", "--round-trip=x", "--round-trip=us/eu=1s",
        "--kind=trn2-ultraserver:4@us", "--kind=trn2-ultraserver:4@",
    ),
    "lend": (
        "--demand=", "--demand=pipe", "--demand=folder", "--demand=log.txt", "--demand=nowhere.csv",
        "--until=25:00", "--until=x", "--until=", "--until=6", "--from=-1:00", "--confidence=0",
        "--confidence=2", "--confidence=nan", "--confidence=x", "--window=0s", "--window=-1h",
        "--window=1GB", "--window=nan", "--cluster=", "--cluster=ring:8", "--model=x", "--tp=0",
        "--precision=x", "--slo=x", "--chunk=-1", "--unit-rate=0", "--unit-rate=-1",
        "--unit-rate=nan", "--training=pipe", "--training=log.txt", "--follow=history.csv",
        "--follow=http://host", "--query=up", "--prompt-query=up", "--output-query=up",
        "--state=folder", "--once", "--poll=2min", "--poll=x", "--metrics=x.prom",
    ),
    "experiment": (
        "=nope", "=", "=[/x]", "=../x", "--op=x", "--op=", "--clusters=x", "--clusters=",
        "--clusters=trn2.48xlarge:0", "--sizes=x", "--sizes=1KiB:1B:4", "--sizes=0",
        "--ranks-per-chip=0", "--ranks-per-chip=x", "--ranks-per-chip=-1", "--clusters=pipe",
    ),
    "sweep": (
        "=nowhere.yaml", "=pipe", "=folder", "=log.txt", "=", "=/dev/zero", "=loop", "=rows.csv",
        "--workers=0", "--workers=-1", "--workers=nan", "--workers=1e9", "--workers=", "--dask=",
        "--dask=x",
    ),
    "validate": (
        "--file=", "--file=pipe", "--file=folder", "--file=log.txt", "--file=/dev/zero",
        "--file=config.json", "--table=x", "--table=", "--workers=0", "--workers=-1", "--workers=x",
        "--catalogue=pipe", "--catalogue=rows.csv", "--catalogue=nowhere.csv", "--variant=x",
        "--variant=a.b=c", "--out=a\x00b",
    ),
    "calibrate": (
        "=nowhere.txt", "=pipe", "=folder", "=study.yaml", "=", "=/dev/zero", "=loop",
        "=config.json", "--cluster=", "--cluster=x", "--cluster=ring:8", "--overlay=folder",
        "--overlay=nowhere/x.csv", "--overlay=pipe", "--ranks=0", "--ranks=-1", "--collective=x",
        "--catalogue=pipe", "--catalogue=log.txt",
    ),
    "measure-kit": (
        "=log.txt", "=folder-of-others", "=", "=loop", "=log.txt/x", "=/proc/x/y", "--chip=",
        "--chip=x", "--chip=trn9", "--chip=trn2.48xlarge", "--chip=[/x]", "--chip=" + "x" * 2000,
        "--chip=é",
    ),
    "compare": (
        "=nowhere", "=folder", "=log.txt", "=", "=pipe", "=loop", "=/dev/null", "=kit", "=é",
    ),
    "explore": (
        "=nowhere", "=folder", "=log.txt", "=", "=pipe", "=loop", "=run", "--port=0", "--port=-1",
        "--port=99999", "--port=x", "--knobs=-1", "--knobs=x", "--knobs=99",
    ),
    "serve-api": (
        "--port=0", "--port=-1", "--port=x", "--workers=0", "--workers=x", "--workers=1e9",
        "--time-limit=x", "--time-limit=", "--token-file=pipe", "--address=", "--host=",
    ),
    "report": (
        "=folder", "=log.txt", "=", "=pipe", "=loop", "=/dev/null", "=/", "=kit", "=" + "x" * 300,
        "=é", "=\x1b[2J",
    ),
    "list": ("=", "=model", "=[/x]", "=" + "x" * 2000, "=\x1b[31m", "=nope", "=0", "=/"),
    "doctor": ("more", "--size=1", "--cluster=x"),
}  # fmt: skip
"""Options and values by command; ``=WORD`` takes the place of the first argument."""


def lines():
    """Every hostile line of each command, and a third of those that no command takes."""
    for number, (name, valid) in enumerate(VALID.items()):
        for word in (*OWN[name], *EVERYWHERE[number % 3 :: 3]):
            if word.startswith("="):
                yield (name, word[1:], *valid[1:])
                continue
            option = word.partition("=")[0]
            yield (name, *(one for one in valid if one.partition("=")[0] != option), word)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Seeds of every format, a pipe, a link to itself, and a folder that holds something else."""
    place = tmp_path_factory.mktemp("hostile")
    Case(0, (), files()).write(place)
    (place / "folder-of-others").mkdir()
    (place / "folder-of-others" / "letter.txt").write_text("keep me")
    return place


def contents(folder):
    """Every file below a folder with its size and the time of its last change."""
    entries = {}
    for base, names, others in os.walk(folder):
        for name in (*names, *others):
            status = os.lstat(os.path.join(base, name))
            size = status.st_size if stat.S_ISREG(status.st_mode) else 0
            entries[os.path.join(base, name)] = (size, status.st_mtime_ns if size else 0)
    return entries


def test_every_command_has_hostile_lines():
    assert VALID.keys() == OWN.keys() == {command.name for command in COMMANDS}
    for name in VALID:
        assert len(OWN[name]) + len(EVERYWHERE) >= 24, name


@pytest.mark.parametrize("words", list(lines()), ids=lambda words: ascii(" ".join(words))[:80])
def test_a_hostile_line_is_refused_in_one_line(words, folder, monkeypatch):
    monkeypatch.chdir(folder)
    before = contents(folder)
    refusal = refusal_of(words, "--quiet")
    assert len(refusal) <= 1100
    assert max(len(word) for word in refusal.split()) <= (250 if "/" in refusal else 100)
    assert contents(folder) == before
