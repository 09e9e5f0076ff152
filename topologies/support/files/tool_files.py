"""Reader of other tools' files: sections as dotted keys, and the options of launch scripts."""

from __future__ import annotations

import ast
import json
import operator
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from topologies.support.errors import InputError
from topologies.support.files.reading import once_each, read_text

DEEPEST = 8  # sections within sections that are flattened; what lies deeper is left as one value

# A text, which stays, or a comment: DeepSpeed reads its JSON as Hjson, which has comments.
COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|(?://|#)[^\n]*|/\*.*?\*/', re.DOTALL)


@dataclass(frozen=True)
class Unknown:
    """Value that a file leaves open, with the reason as a message gives it."""

    why: str


EMPTY: Mapping[str, str] = {}


def in_environment(path: Path) -> tuple[Path, dict[str, str]]:
    """Part the path of a script from values of its environment before it.

    >>> in_environment(Path("TP=8 PP=2 launch.sh"))
    (PosixPath('launch.sh'), {'TP': '8', 'PP': '2'})
    """
    words, environment = str(path).split(" "), {}
    while len(words) > 1 and (assigned := ASSIGNMENT.fullmatch(words[0])) and not path.exists():
        environment[assigned[1]] = assigned[2]
        words = words[1:]
    return Path(" ".join(words)), environment


def file_or_command(
    path: Path, *, limit_bytes: int, remedy: str
) -> tuple[Path, str, dict[str, str]]:
    """Return the path, the text and the environment of a file, or of a command in its place.

    >>> file_or_command(Path("TP=8 vllm serve m -tp $TP"), limit_bytes=9, remedy="")
    (PosixPath('the command'), 'vllm serve m -tp $TP', {'TP': '8'})
    """
    path, environment = in_environment(path)
    if re.search(r"\s--?[a-z]", str(path)) and not path.exists():
        return Path("the command"), str(path), environment
    return path, read_text(path, limit_bytes=limit_bytes, remedy=remedy), environment


def flattened(
    path: Path,
    text: str,
    flags: frozenset[str] = frozenset(),
    environment: Mapping[str, str] = EMPTY,
) -> dict[str, Any]:
    """Keys of a file, dotted where they lie in sections; of a command line its long options."""
    import tomllib  # here, since most plans are stated by options alone

    from topologies.support.files.yaml_documents import yaml_mapping

    # Compiler flags within YAML look like a command line, so its ending decides.
    sets_keys = bool(SETTINGS.search(text))
    is_manifest = sets_keys and re.search(r"^apiVersion:", text, re.MULTILINE)
    is_yaml = path.suffix in (".yaml", ".yml") and not is_manifest  # which holds a command
    document: Any = None
    try:
        if path.suffix == ".toml":
            document = tomllib.loads(text)
        elif path.suffix == ".json":
            plain = COMMENT.sub(lambda part: part[1] or "", text)
            document = json.loads(plain, object_pairs_hook=once_each)
        elif is_yaml or not (sets_keys or re.search(r"^[^#\n]*--[a-z]", text, re.MULTILINE)):
            document = yaml_mapping(text, path, content="fields")
    except (InputError, ValueError, RecursionError) as mistake:
        if path.suffix in (".toml", ".json"):
            why = " ".join(str(mistake).split())[:100]
            raise InputError(
                f"{path} is not {path.suffix[1:].upper()} ({why}). Correct it."
            ) from None
        if not (is_yaml and OPTION.match(text.lstrip())):
            return {}
    if document is None:
        try:
            options = script_options(text, flags, environment)
        except InputError as mistake:
            raise InputError(f"{path}: {mistake}") from None
        return {name.replace("-", "_") if "." in name else name: options[name] for name in options}
    leaves = dict(leaves_of(document)) if isinstance(document, dict) else {}
    leaves = {key: _with_default(value, environment) for key, value in leaves.items()}
    return {key: _referred(key, value, leaves) for key, value in leaves.items()}


def _with_default(value: Any, environment: Mapping[str, str]) -> Any:
    """Value of ``${NAME:default}`` in the environment, or else its default; others as they are."""
    variable = re.fullmatch(r"\$\{([A-Z][A-Z0-9_]*):([^${}]*)\}", str(value))
    if variable is None:
        return value
    text = environment.get(variable[1], variable[2])
    return None if text in ("", "null") else text


def _referred(key: str, value: Any, leaves: Mapping[str, Any]) -> Any:
    """Value of a key, or of the key that it refers to by ``${model.seq}`` or ``${.seq}``."""
    for _ in range(DEEPEST):
        reference = re.fullmatch(r"\$\{(\.?)([\w.]+)\}", value) if isinstance(value, str) else None
        if reference is None:
            break
        key = f"{key.rpartition('.')[0]}.{reference[2]}" if reference[1] else reference[2]
        value = leaves.get(key, Unknown(f"{value}, which the file does not state"))
    if isinstance(value, str) and "${" in value:
        return Unknown(f"{value}, which is not a literal value")
    return value


def leaves_of(
    document: Mapping[Any, Any], prefix: str = "", depth: int = 0
) -> list[tuple[str, Any]]:
    """Dotted keys of a document of nested sections, with their values."""
    leaves: list[tuple[str, Any]] = []
    for key, value in document.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and depth < DEEPEST:
            leaves += leaves_of(value, f"{name}.", depth + 1)
        else:
            leaves.append((name, value))
    return leaves


# Reader of the options of a launch script, with the script's literal variables put in.

# Variables that stand for variables, and strings within strings, that are followed.
DEEPEST_VARIABLES = 8
VARIABLE = re.compile(r"\$\{?(\w+)(?:\[[@*]\])?(?::?[-=]([^}]*))?\}?")
ARITHMETIC = re.compile(r"\$\(\(([^\n;`]*?)\)\)(?!\))")
# A shell divides towards zero.
OPERATORS: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: int(Fraction(left, right)),
    ast.Mod: lambda left, right: left - right * int(Fraction(left, right)),
}
# The usual value of a variable, as ``: "${TP:=8}"``
USUAL = re.compile(r"(?m)^\s*:\s+[\"']?\$\{([A-Za-z_]\w*):?=([^}{$\s\"']*)\}[\"']?")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
# A variable by whose name it holds options, not the value of the option before it
HIDDEN = re.compile(r"[\"']?\$\{?\w*(?:ARGS|OPTS|OPTIONS|FLAGS)(?:\[[@*]\])?\}?[\"']?")
OPTION = re.compile(r"(^|\s)--[a-z]")
TESTED = re.compile(r"\[ +(?:-\w +)?[\"']?\$\{?(\w+)")  # a variable that is compared
# Commands of MaxText set keys of a file: ``python3 -m MaxText.train base.yml remat_policy=full``.
# Those of NeMo 1 and its like override keys in sections: ``++model.tensor_model_parallel_size=4``.
SETTINGS = re.compile(
    r"\b(per_device_batch_size|max_target_length|remat_policy|ici_\w+_parallelism|"
    r"model\.(?:\w+_model_parallel_size|(?:micro|global)_batch_size))="
)


def script_options(
    text: str, flags: frozenset[str] = frozenset(), environment: Mapping[str, str] = EMPTY
) -> dict[str, str | bool | Unknown]:
    """Return the long options of a command line or script by name; a flag without a value is true.

    Literal assignments such as ``TP=8`` and ``${TP:-8}`` are put in, and integer arithmetic with
    them, such as ``$((TP * 2))``, is computed. A value that a condition, the environment or a
    command decides, and one that is stated twice and differently, is :class:`Unknown`. The word
    after an option of ``flags`` is not its value. Variables of ``environment`` have its values.

    >>> script_options("TP=8\\ntrain --tp $TP --pp $PP --bf16")
    {'tp': '8', 'pp': Unknown(why='$PP, which the file does not state as a literal'), 'bf16': True}
    """
    # A comment ends with its line even where that line ends with a backslash.
    lines = USUAL.sub(r"\1=\2", re.sub(r"(?m)^\s*#.*$", "", text)).replace("\\\n", " ")
    lines = ARITHMETIC.sub(lambda part: re.sub(r"\s", "", part[0]), lines)
    # The words of an array, NAME=(…), and of options in quotes are read as if they stood by
    # themselves, so that what the script sets hides no option, except by its arguments, a command
    # or the environment.
    visible = set(re.findall(r"\b([A-Za-z_]\w*)\+?=(?![\"']?\$[@*\d({])", lines))
    visible.update(re.findall(r"\bfor +(\w+)", lines), re.findall(TESTED, lines))
    try:
        words = list(_words(re.sub(r"\b\w+\+?=\((?!\()", " ", lines)))
    except ValueError as mistake:
        raise InputError(f"the script cannot be read ({mistake}). Close its quotes.") from None
    variables = _variables(words)
    variables |= {name: {each} for name, each in environment.items()}
    options: dict[str, str | bool | Unknown] = {}
    expects_value = follows = False
    sets_keys = bool(SETTINGS.search(text))
    for (word, conditional), (after, _) in zip(words, [*words[1:], ("", False)], strict=True):
        option = re.fullmatch(r"(?:[A-Za-z_]\w*=)?--([\w.-]+)(?:=(.*))?", word, re.DOTALL)
        setting = re.fullmatch(r"\+{0,2}([a-z][\w.]*)=(.*)", word, re.DOTALL) if sets_keys else None
        stated = option or setting
        if stated is None:
            variable = None if "=$" in word else VARIABLE.fullmatch(word)
            takes = expects_value and not HIDDEN.fullmatch(word)
            seen = takes or (sets_keys and not follows)
            if variable and not seen and variable[1] not in visible | set(environment):
                options[word] = True  # options that nobody can see
            follows = sets_keys and word.endswith((".yml", ".yaml"))
            if follows:
                options["base_config"] = word
            expects_value = False
            continue
        follows = setting is not None
        name, value = stated[1] if setting else stated[1].replace("_", "-"), stated[2]
        expects_value = value is None and name not in flags
        may_follow = name not in flags or after.lower() in ("true", "false")
        if value is None and may_follow and after and not re.match(f"--|{HIDDEN.pattern}$", after):
            value = after
        read = True if value is None else _resolved(value, variables)
        if conditional:
            read = Unknown("decided by an if or a case of the script")
        elif name in options and options[name] != read:
            earlier = _text(options[name]).removeprefix("stated as ")
            read = Unknown(f"stated as {earlier} and as {_text(read)}")
        options[name] = read
    return options


def _text(value: str | bool | Unknown) -> str:
    return value.why if isinstance(value, Unknown) else str(value)


def _words(text: str, conditional: bool = False, depth: int = 0) -> Iterator[tuple[str, bool]]:
    """Yield the words of a script, each with whether it stands within a condition."""
    open_conditions = 0
    for word in shlex.split(text, comments=True):
        bare = word if "$((" in word else word.rstrip(");")
        open_conditions += (bare in ("if", "case")) - (bare in ("fi", "esac"))
        within = conditional or open_conditions > 0
        holds = OPTION.search(word) or SETTINGS.search(word)
        if holds and re.search(r"\s", word) and depth < DEEPEST_VARIABLES:
            # Options within quotes, as in ARGS="--bf16 --lr 1" or bash -c "…".
            yield from _words(re.sub(r"^[A-Za-z_]\w*=", "", word), within, depth + 1)
        elif bare:
            yield bare, within


def _variables(words: list[tuple[str, bool]]) -> dict[str, set[str | None]]:
    """Values that each variable of a script is assigned, None for those within a condition."""
    variables: dict[str, set[str | None]] = {}
    for word, conditional in words:
        assigned = ASSIGNMENT.fullmatch(word)
        if assigned:
            variables.setdefault(assigned[1], set()).add(None if conditional else assigned[2])
    return variables


def _resolved(
    value: str, variables: Mapping[str, set[str | None]], depth: int = 0
) -> str | Unknown:
    """Value with its variable put in, if every part of it is stated literally."""
    seen: set[str] = set()
    read: str | None = value
    while read is not None and (variable := VARIABLE.fullmatch(read)):
        name, default = variable.groups()
        # TP=${TP:-8} takes the default, as an environment without TP does.
        assigned = {default} if name in seen else variables.get(name, {default})
        if len(assigned) > 1:
            return Unknown(f"{value}, which the script sets in several ways")
        seen.add(name)
        (read,) = assigned
        if len(seen) > DEEPEST_VARIABLES:
            break
    if read and (arithmetic := ARITHMETIC.fullmatch(read)) and depth < DEEPEST_VARIABLES:
        number = _computed(arithmetic[1], variables, depth + 1)
        read = read if number is None else str(number)
    if read is None or "$" in read or "`" in read:
        return Unknown(f"{value}, which the file does not state as a literal")
    return read


def _computed(text: str, variables: Mapping[str, set[str | None]], depth: int) -> int | None:
    """Return the value of integer arithmetic with literal variables; None where one is open."""

    def value(node: ast.expr) -> int:
        """Value of a node of the expression."""
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.Name(id=name):
                return int(str(_resolved(f"${name}", variables, depth)))
            case ast.BinOp(left=left, op=sign, right=right):
                return OPERATORS[type(sign)](value(left), value(right))
        raise ValueError

    plain = VARIABLE.sub(lambda part: str(_resolved(part[0], variables, depth)), text)
    try:
        return value(ast.parse(plain, mode="eval").body)
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError, RecursionError, MemoryError):
        return None
