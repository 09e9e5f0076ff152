"""Replicas as vLLM, SGLang and TensorRT-LLM launch them: their files, read and written."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from topologies.catalogue.catalogue import chip_family
from topologies.clusters.cluster import Cluster
from topologies.support.errors import InputError, check_choice
from topologies.support.files.tool_files import Unknown, file_or_command, flattened, script_options
from topologies.support.files.yaml_documents import yaml_mapping
from workloads.models.model import Model
from workloads.options.tool_keys import (
    Key,
    ToolFile,
    choice,
    fields_of_keys,
    number,
    tool_of,
    whole,
    written,
)
from workloads.serving.deployment import Deployed

LARGEST_FILE_BYTES = 2**18
Keys = Mapping[str, Any]
GPU_ALONE = ("scheduler", "chunk", "gather", "poll")
"""Fields of a scheduler on GPUs, which Neuron's engine does not have."""


class EngineFile(ToolFile):
    """A replica that an engine's file states; ``tool`` is a ``--scheduler`` of ``serve``."""

    @property
    def noun(self) -> str:
        """Kind of thing that the file states, in a word."""
        return "deployment"

    @property
    def title(self) -> str:
        """Name of the engine in a sentence."""
        return {"vllm": "vLLM", "sglang": "SGLang"}.get(self.tool, "TensorRT-LLM")

    @staticmethod
    def cannot_change_time(key: str) -> bool:
        """Return whether a key cannot change the time of requests, by its words."""
        name = key.partition(" =")[0].lower()
        if name in MODEL or name.startswith("$"):  # a model or options that nobody can see
            return False
        words = re.sub(r"[._-]", " ", name)
        return bool(WITHOUT_TIME.search(words)) and not WITH_TIME.search(words)

    def beside(self, model: Model) -> EngineFile:
        """Return the file with its model among what differs, if its name is not this one's."""
        # A checkpoint's name holds that of its model, beside an owner, a precision or a date; a
        # folder's may be any, and so may that of a config.json.
        if model.name.endswith(".json"):
            return self
        filed = str(self.values.get("model", ""))
        names = (name.lower().replace("_", ".") for name in (model.name, filed))
        parts, has = (set(NAME_PARTS.findall(name)) for name in names)
        unlike = re.fullmatch(r"[\w-]+/[\w.-]+", filed) and parts - has
        return replace(self, differs=(f"model is {filed}",)) if unlike else self

    def options(self, stated: Keys, cluster: Cluster) -> dict[str, Any]:
        """Return stated options, then the file's; :data:`GPU_ALONE` only on GPUs."""
        fields = {"tp": 1, "scheduler": self.tool, **self.fields}
        if is_neuron(cluster) or "prefill" in stated:
            fields = {name: value for name, value in fields.items() if name not in GPU_ALONE}
        return {**fields, **stated}


def is_neuron(cluster: Cluster) -> bool:
    """Return whether Neuron's own engine serves on the chips of a cluster."""
    return chip_family(cluster.chip, cluster.catalogue).is_neuron


MODEL = ("checkpoint", "model", "model-path")
"""Options that name the checkpoint, and the name under which a command's first word is read."""
POSITIONAL = re.compile(
    r"\b(vllm serve|trtllm-serve(?: serve)?)((?:\s|\\\n)+)(?=[\"']?(?:[\w./]|\$\{?\w*MODEL))"
)
"""Commands whose first word is the checkpoint; a variable of another name may hold options."""
NAME_PARTS = re.compile(r"[a-z]+|\d+(?:\.\d+)?")
"""Words and numbers in the name of a model."""
WITHOUT_TIME = re.compile(
    r"\b(host|port|model|name|tokenizer|template|key|log|logs|logging|requests|trust|download|dir|"
    r"seed|parser|choice|revision|ssl|origins|cors|metrics?|path|watchdog|timeout|format|"
    r"grpc|proxy|title|uvicorn|usage|stats|print|exit|family|config format|addr|node rank)\b|^trust"
)
"""Words of keys about names, files, logs and the server, but not the work of a replica."""
WITH_TIME = re.compile(r"\b(len|length|max|num|draft|speculative|load balance|cache)\b")
"""Words with which a key may change the time although it has one of ``WITHOUT_TIME``."""


def _alone(*allowed: str, why: str) -> Key:
    """Key that must have one of a few values, and is no field."""

    def read(value: Any, _all: Keys) -> str:
        """Refuse any other value."""
        if str(value).lower() not in allowed:
            raise ValueError(f"{' or '.join(allowed)}, as {why}")
        return str(value)

    return Key("", read)


ONE_STAGE = _alone("1", why="a replica is divided by tensor parallelism alone")
SIXTEEN_BITS = _alone(
    "auto", "bfloat16", "float16", "half", "bf16", "fp16", why="others are not predicted"
)


def _groups(value: Any, keys: Keys) -> int | None:
    """Groups that divide the requests of SGLang; of copies that share nothing one is simulated."""
    if number(value) > 1 and str(keys.get("enable-expert-parallel")).lower() == "true":
        raise ValueError(
            "1 where ranks share experts; beside it, state --tp, --ep and --attention-dp of all"
        )
    divided = str(keys.get("enable-dp-attention")).lower() == "true"
    return number(value) if divided or number(value) == 1 else None


def _slots(value: Any, keys: Keys) -> int:
    """Requests of one group, of those that SGLang states for all."""
    groups = next((_groups(keys[name], keys) for name in DATA if name in keys), None)
    return max(1, number(value) // (groups or 1))


GROUPS = Key("attention_dp", _groups)
TENSOR = ("tensor-parallel-size", "tp-size", "tp")
DATA = ("dp-size", "data-parallel-size", "dp")
QUANTIZATION = {
    "fp8": "fp8", "modelopt": "fp8", "w8a8_fp8": "fp8", "modelopt_fp4": "fp4", "nvfp4": "fp4",
    "mxfp4": "mxfp4", "mxfp8": "mxfp8", "fp8_block_scales": "fp8",
    "compressed-tensors": None, "petit_nvfp4": "fp4", "modelopt_mixed": None,
}  # fmt: skip
"""Precision of weights by an engine's word."""
CACHE = {"fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "bfloat16": "bf16", "bf16": "bf16"}


def _all_ranks(value: Any, keys: Keys) -> int | None:
    """Number of groups where every rank of a replica is one."""
    if str(value).lower() not in ("true", "false"):
        raise ValueError("a flag without a value")
    degree = next((keys[name] for name in TENSOR if name in keys), 1)
    return number(degree) if str(value).lower() == "true" else None


EXPERTS = Key(
    "ep", _all_ranks, lambda ep, fields: True if ep > 1 and ep == fields.get("tp") else None
)
MORE_GROUPS = whole("ep", least=2)


def _proposals(value: Any, _all: Keys) -> Any:
    """Refuse proposals whose share that is accepted no file states."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = json.loads(value).get("num_speculative_tokens", 1)
    raise InputError(
        f"the file proposes {number(value)} tokens a pass, and no file says how many are accepted. "
        f"State it, as --speculate {number(value)}:0.7."
    )


PROPOSALS = Key("speculate", _proposals)


def _proposed(text: Any, _fields: Keys) -> str:
    """Value of vLLM's speculative configuration."""
    tokens, *rest = str(text).split(":", 2)
    draft = rest[1] if len(rest) > 1 else "0"
    if re.fullmatch(r"[\d.]+", draft):
        how = {"method": "mtp" if float(draft) else "ngram"}
    else:
        how = {"model": draft}
    return json.dumps({**how, "num_speculative_tokens": int(tokens)})


def _waits(value: Any, keys: Keys) -> str | None:
    """Passes for which TensorRT-LLM's prompts wait, with the share that ends the wait."""
    share = keys.get("batch-wait-max-tokens-ratio", 0)
    return f"{number(value)}:{float(share):g}" if str(value) != "0" and float(share) else None


def _share(value: Any, _all: Keys) -> float:
    """Share of a chip's memory."""
    if not 0.01 <= float(value) <= 1:
        raise ValueError("a number from 0.01 to 1")
    return float(value)


MEMORY = Key("memory_share", _share, lambda share, _fields: share)
VLLM: Mapping[str, Key] = {
    "tensor-parallel-size": whole("tp"),
    "pipeline-parallel-size": ONE_STAGE,
    "data-parallel-size": GROUPS,
    "enable-expert-parallel": EXPERTS,
    "max-num-seqs": whole("slots"),
    "max-num-batched-tokens": whole("chunk"),
    "quantization": choice("precision", QUANTIZATION),
    "dtype": SIXTEEN_BITS,
    "kv-cache-dtype": choice("cache_precision", CACHE),
    "gpu-memory-utilization": MEMORY,
    "speculative-config": PROPOSALS._replace(write=_proposed),
    "speculative-config.num-speculative-tokens": PROPOSALS,
    "num-speculative-tokens": PROPOSALS,
}
SGLANG: Mapping[str, Key] = {
    **dict.fromkeys(TENSOR, whole("tp")),
    **dict.fromkeys(("pp-size", "pipeline-parallel-size"), ONE_STAGE),
    **dict.fromkeys(DATA, GROUPS),
    "enable-dp-attention": Key("", lambda _value, _all: "read with the groups"),
    **dict.fromkeys(("ep-size", "expert-parallel-size", "ep"), MORE_GROUPS),
    "enable-ep-moe": Key("ep", _all_ranks),
    "max-running-requests": whole("slots")._replace(read=_slots),
    # -1 is SGLang's for whole prompts.
    "chunked-prefill-size": whole("chunk", unset="-1"),
    "quantization": choice("precision", QUANTIZATION),
    "dtype": SIXTEEN_BITS,
    "kv-cache-dtype": choice("cache_precision", {"fp8_e4m3": "fp8", **CACHE}),
    "mem-fraction-static": MEMORY,
    "scheduler-recv-interval": whole("poll", least=2),
    "speculative-num-steps": PROPOSALS,
}
TENSORRT: Mapping[str, Key] = {
    **dict.fromkeys(("tp-size", "tensor-parallel-size"), whole("tp")),
    **dict.fromkeys(("pp-size", "pipeline-parallel-size"), ONE_STAGE),
    **dict.fromkeys(("ep-size", "moe-expert-parallel-size"), MORE_GROUPS),
    "enable-attention-dp": Key("attention_dp", _all_ranks),
    "max-batch-size": whole("slots"),
    "max-num-tokens": whole("chunk"),
    # A file of its own, which a command names, has this; a checkpoint in fp8 needs no option.
    "quant-config.quant-algo": Key("precision", choice("precision", QUANTIZATION).read),
    "dtype": SIXTEEN_BITS,
    "kv-cache-dtype": choice("cache_precision", CACHE),
    "kv-cache-config.dtype": choice("cache_precision", CACHE),
    "kv-cache-free-gpu-memory-fraction": MEMORY,
    "kv-cache-config.free-gpu-memory-fraction": MEMORY,
    "batch-wait-timeout-iters": Key("gather", _waits),
    "batch-wait-max-tokens-ratio": Key("", lambda _value, _all: "read with the passes"),
    "speculative-config.max-draft-len": PROPOSALS,
    "speculative-config.num-nextn-predict-layers": PROPOSALS,
}
TABLES = {"vllm": VLLM, "sglang": SGLANG, "tensorrt-llm": TENSORRT}
"""Keys of each engine and the options that they stand for, one table an engine."""
FLAGS = frozenset(
    {"enable-expert-parallel", "enable-ep-moe", "enable-dp-attention", "trust-remote-code"}
)
LAUNCHES = {
    "vllm": r"\bvllm serve\b|\bvllm\.entrypoints\.\w+|\bdynamo\.vllm\b|\bvllm/vllm-openai\b",
    "sglang": r"\bsglang\.launch_server\b|\bsglang serve\b|\bdynamo\.sglang\b",
    "tensorrt-llm": r"\btrtllm-serve\b|\bdynamo\.trtllm\b",
}
"""Commands that launch an engine."""
MARKS = {
    "sglang": ("mem-fraction-static", "chunked-prefill-size", "max-running-requests"),
    "tensorrt-llm": (
        "kv-cache-config", "cuda-graph-config", "enable-attention-dp", "max-num-tokens",
        "moe-expert-parallel-size", "moe-config",
    ),
    "vllm": (
        "max-num-seqs", "max-num-batched-tokens", "gpu-memory-utilization", "max-model-len",
        "tensor-parallel-size",
    ),
}  # fmt: skip
"""Keys of an engine's own YAML, without a command."""
SHORT = {
    "tp": "tensor-parallel-size", "pp": "pipeline-parallel-size", "dp": "data-parallel-size",
}  # fmt: skip
"""Options of vLLM with one hyphen."""
KSERVE = re.compile(r"(?m)^kind: LLMInferenceService\s*$")
KSERVE_ARGS = "VLLM_ADDITIONAL_ARGS"  # variable of a container with further options
OF_KSERVE = {
    "tensor": "tensor-parallel-size", "pipeline": "pipeline-parallel-size",
    "data": "data-parallel-size",
}  # fmt: skip
"""Options by the names of degrees in KServe's services of language models."""
HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?[^\n]*\n(.*?)^\s*\1\s*$", re.DOTALL | re.MULTILINE)


def read_engine_file(path: Path, stated: Collection[str] = ()) -> EngineFile:
    """Read a replica from an engine's file, perhaps behind values as in ``TP=8 launch.sh``."""
    limit_bytes, remedy = LARGEST_FILE_BYTES, "Name an engine's file."
    path, text, environment = file_or_command(path, limit_bytes=limit_bytes, remedy=remedy)
    is_yaml = path.suffix in (".yaml", ".yml")
    command = "\n".join(_commands(path, text)) if is_yaml else text
    engines = [name for name, launch in LAUNCHES.items() if re.search(launch, _code(command))]
    if len(engines) > 1:
        raise InputError(f"{path} launches {' and '.join(engines)}. Keep one of them.")
    if engines:
        engine, keys = engines[0], _options(path, command, environment)
    else:
        keys = {key.replace("_", "-"): value for key, value in flattened(path, text, FLAGS).items()}
        engine = tool_of(keys, MARKS) or ""
    if not engine:
        raise InputError(
            f"{path} is no launch of vLLM, SGLang or TensorRT-LLM, nor their YAML. Name a file "
            "with the command that starts the server."
        )
    whole_table = TABLES[engine]
    named = [keys.pop(name) for name in MODEL if isinstance(keys.get(name), str)]
    values = {"model": named[0]} if named else {}
    keys = {_unabbreviated(key, whole_table): value for key, value in keys.items()}
    table = {key: rule for key, rule in whole_table.items() if rule.field not in stated}
    left = {key: keys[key] for key in keys if key in table or key not in whole_table}
    fields, ignored = fields_of_keys(left, table, path)
    # An engine takes the precision of a checkpoint from its own files; here its name tells it.
    if engines and not {"precision", "quantization"} & {*fields, *stated, *keys}:
        names = rf"\w/[\w.-]*[-_]({'|'.join(QUANTIZATION)})\b"
        suffix = re.search(names, _code(command), re.IGNORECASE)
        if precision := suffix and QUANTIZATION[suffix[1].lower()]:
            fields["precision"] = precision
    return EngineFile(engine, {"scheduler": engine, **fields}, tuple(sorted(ignored)), values)


def _unabbreviated(key: str, table: Mapping[str, Key]) -> str:
    """Key of a table for an option without its last letters, as ``max-num-seq``."""
    near = [name for name in table if name.startswith(key) and len(name) - len(key) <= 3]
    return near[0] if len(near) == 1 and key not in table and len(key) > 5 else key


def _code(text: str) -> str:
    """Text of a script without its comments."""
    return re.sub(r"(?m)^\s*#.*$", "", text)


def _options(path: Path, text: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Options of a launch, with those of YAML that the script itself writes."""
    keys: dict[str, Any] = {}
    for _, body in HEREDOC.findall(text):
        if re.match(r"[\w-]+:(\s|$)", body):
            inner = flattened(path.with_suffix(".yaml"), body)
            keys |= {key.replace("_", "-"): _literal(value) for key, value in inner.items()}
    plain = re.sub(r"(?<=\s)-(tp|pp|dp)(?=[ =])", lambda each: f"--{SHORT[each[1]]}", text)
    plain = POSITIONAL.sub(r"\1 --checkpoint ", plain)
    try:
        options = script_options(HEREDOC.sub("\n", plain), FLAGS, environment)
    except InputError as mistake:
        raise InputError(f"{path}: {mistake}") from None
    code = _code(plain).replace("\\\n", " ")
    start = min(match.end() for each in LAUNCHES.values() for match in re.finditer(each, code))
    line = code[start:].partition("\n")[0]
    # Options elsewhere are those of docker, of an installer or of a client, unless the command
    # takes options from a variable, which is neither its model nor the value of an option.
    words = line.split()
    pairs = pairwise(words)
    hidden = any(after.strip('"').startswith("$") and before[:2] != "--" for before, after in pairs)
    launch = (code if hidden else line).replace("_", "-")
    tables = {key for table in TABLES.values() for key in table}
    named = {key for key in options if f"--{key}" in launch or key in tables}
    named |= {key for key in options if key.startswith("$") and key in line}
    return {**keys, **{key: value for key, value in options.items() if key in named}}


def _literal(value: Any) -> Any:
    """Value of YAML within a script, which may hold the script's variables."""
    if isinstance(value, str) and "$" in value:
        return Unknown(f"{value}, which the script's YAML does not state as a literal")
    return value


def _commands(path: Path, text: str) -> Iterator[str]:
    """Yield the commands of a manifest's containers, or of a task, that launch an engine."""
    for part in re.split(r"(?m)^---\s*$", text):
        if KSERVE.search(part):
            yield _by_kserve(yaml_mapping(part, path, content="containers"), path)
        elif any(re.search(launch, part) for launch in LAUNCHES.values()):
            document = yaml_mapping(part, path, content="containers")
            run = document.get("run")  # of a task of SkyPilot
            tasks = [run] if isinstance(run, str) else []
            for command in (*tasks, *_of_containers(document)):
                if any(re.search(launch, command) for launch in LAUNCHES.values()):
                    yield command


def _section(document: Keys, name: str) -> Keys:
    value = document.get(name)
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _mappings(value: Any) -> list[Keys]:
    return [each for each in _list(value) if isinstance(each, Mapping)]


def _by_kserve(document: Any, path: Path) -> str:
    """Return the command that KServe's service of a language model makes of its fields."""
    spec = _section(document, "spec")
    if "prefill" in spec:
        raise InputError(
            f"{path} runs prompts on replicas of their own, which are several launches. State "
            "--disaggregate, and the launch of one kind."
        )
    degrees = _section(spec, "parallelism")
    containers = _mappings(_section(spec, "template").get("containers"))
    words = [str(word) for each in containers for word in _list(each.get("args"))]
    variables = [pair for each in containers for pair in _mappings(each.get("env"))]
    extra = [str(pair.get("value")) for pair in variables if pair.get("name") == KSERVE_ARGS]
    options = [f"--{key} {degrees[name]}" for name, key in OF_KSERVE.items() if name in degrees]
    options += ["--enable-expert-parallel"] * bool(degrees.get("expert"))
    checkpoint = str(_section(spec, "model").get("uri", "unnamed"))
    return " ".join(["vllm serve", shlex.quote(checkpoint), *options, *extra, *words])


def _of_containers(document: Any) -> Iterator[str]:
    """Yield image, command and arguments of each mapping that has a command or arguments."""
    if isinstance(document, Mapping):
        words = [document.get(name) for name in ("image", "entrypoint", "command", "args")]
        if any(words[1:]):
            yield " ".join(
                shlex.join(map(str, word)) if isinstance(word, list) else str(word)
                for word in words
                if word
            )
        for value in document.values():
            yield from _of_containers(value)
    elif isinstance(document, list):
        for value in document:
            yield from _of_containers(value)


# Files that are written.

COMMANDS = {
    "vllm": "vllm serve {model}",
    "sglang": "python -m sglang.launch_server --model-path {model}",
    "tensorrt-llm": "trtllm-serve {model}",
}


def engine_on(cluster: Cluster, engine: str) -> dict[str, str]:
    """Return the option of an engine's scheduler; empty on Neuron chips, which have their own."""
    check_choice("engine", engine, TABLES)
    return {} if is_neuron(cluster) else {"scheduler": engine}


def launched(options: Keys, deployed: Deployed, model: Model) -> dict[str, Any]:
    """Return the options of a replica as it was run, searched ones among them."""
    searched = deployed.search.ranked[0].words if deployed.search else {}
    words = {**options, **searched}
    if "disaggregate" in words:
        raise InputError(
            f"--disaggregate {words['disaggregate']} is several launches. Leave it out, or state "
            "--scheduler for replicas that do both."
        )
    replica, batching = deployed.deployment.profile, deployed.deployment.batching
    alike = ("ep", "attention_dp", "cache_precision", "memory_share", "speculate", "gather")
    same = {name: words.get(name) for name in alike}
    return {
        "scheduler": words.get("scheduler"),
        "tp": words.get("tp", replica.chips),
        "precision": replica.precision if replica.precision != model.precision else None,
        "slots": batching.slots,
        "chunk": batching.chunk_tokens or None,
        "poll": batching.poll_passes,
        **same,
    }


def launch_command(engine: str, fields: Keys, model: str) -> str:
    """Return the command by which ``vllm``, ``sglang`` or ``tensorrt-llm`` serves a model."""
    scheduler = fields.get("scheduler")
    if scheduler not in (None, engine):
        raise InputError(f"the replica runs as {scheduler}. Write {scheduler}, or leave it out.")
    stated = {name: value for name, value in fields.items() if value is not None}
    keys = written(TABLES[engine], stated)
    has = {TABLES[engine][key].field for key in keys} | {"scheduler"}
    lacking = [
        f"--{name.replace('_', '-')} {value}"
        for name, value in stated.items()
        if name not in has and (name, value) not in {("ep", 1), ("attention_dp", 1), ("poll", 1)}
    ]
    if lacking:
        raise InputError(
            f"no launch of {engine} is written with {', '.join(lacking)}. Leave it out."
        )
    names = {key: key.replace("-", "_") if engine == "tensorrt-llm" else key for key in keys}
    words = [
        f"--{names[key]}" if value is True else f"--{names[key]} {shlex.quote(str(value))}"
        for key, value in keys.items()
    ]
    start = COMMANDS[engine].format(model=shlex.quote(model))
    return "#!/bin/bash\n" + " \\\n  ".join([start, *words]) + "\n"
