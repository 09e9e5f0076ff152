"""Options of a command for click, generated from the dataclasses that the command takes.

A command is a function of a few dataclasses whose fields are described with
:func:`topologies.support.options.option`::

    def topology(call: Invocation, machine: MachineInputs, graph: GraphInputs) -> None: ...

:func:`as_options` returns a click command with one option for each field. A parameter
``Annotated[Mapping[str, Any], Stated(Plan)]`` receives only the fields that the user stated, for a
dataclass that the library completes.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import click

from topologies.support.errors import InputError
from topologies.support.options import Option, described, in_words

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


LARGEST = 2**63 - 1
"""Largest whole number of an option that states no limit; numpy's arrays hold no larger one."""
UNREACHED = 10**9
"""Largest value that no sensible number comes near; the help page leaves such a limit out."""
UNNAMEABLE = re.compile("[\0\ud800-\udc7f\udd00-\udfff]")
"""Letters that no name of a file can have; the other halves stand for bytes that are no UTF-8."""
REQUIRED = inspect.Parameter.empty  # default of a value that must be stated
LAST_HEADING = "Every command"
"""Heading of options that no group of a command has, such as ``--help``."""


def click_parameter(key: str, kind: Any, option: Option, default: Any) -> click.Parameter:
    """Return the argument or option of a described field."""
    many = get_origin(kind) is list
    plain = get_args(kind)[0] if many else kind
    read = Number(plain, option.least, option.most) if plain in (int, float) else Text(plain)
    placeholder = "name" if option.choices else "time" if option.plain == "s" else read.name
    attributes: dict[str, Any] = {
        "required": default is REQUIRED,
        "metavar": option.metavar or (key.upper() if option.argument else f"<{placeholder}>"),
        "shell_complete": _completion(option.choice_texts),
    }
    if default is not REQUIRED:
        attributes["default"] = None if default == () else default
    if option.argument:
        nargs = -1 if many else 1
        return DescribedArgument([key], described=option, type=read, nargs=nargs, **attributes)
    spelled = (option.name or key).replace("_", "-")
    if plain is bool:
        both = "" if default is False else f"/--no-{spelled}"
        flags = [f"--{spelled}{both}", key]
        return DescribedOption(flags, described=option, shown=default, is_flag=True, **attributes)
    attributes |= {"type": read, "multiple": many}
    return DescribedOption([f"--{spelled}", key], described=option, shown=default, **attributes)


def _digits(text: str) -> str:
    """Return how a number is written that carries a per cent sign, a prefix, a unit or a separator.

    >>> _digits("20%"), _digits("8,192"), _digits("1e3"), _digits("30d")
    ('0.2', '8192', '1000', 'digits alone, without a unit')
    >>> _digits("128k")
    '131072 for 128 x 1024, or 128000 for 128 x 1000'
    """
    if scaled := re.fullmatch(r"(\d{1,6})([kKM])i?", text):
        times = 1 if scaled[2] in "kK" else 2
        both = (
            f"{int(scaled[1]) * base**times} for {scaled[1]} x {base**times}"
            for base in (1024, 1000)
        )
        return ", or ".join(both)
    number = text.removesuffix("%").strip()
    if re.fullmatch(r"\d{1,3}(,\d{3})+", number):
        number = number.replace(",", "")
    try:
        share = float(number)
    except ValueError:
        return "digits alone, without a unit"
    if text.endswith("%"):
        return f"{share / 100:.12g}"
    return f"{share:.0f}" if share.is_integer() else number


def _check_value(kind: click.ParamType, value: Any, param: Any, ctx: Any) -> None:  # type: ignore[type-arg]
    """Refuse an option in the place of another one's value."""
    options = ctx.command.params if ctx is not None and str(value).startswith("-") else ()
    if any(value in (*each.opts, *each.secondary_opts) for each in options):
        kind.fail(f"has no value: {value} is an option of its own", param, ctx)


class Number(click.ParamType):  # type: ignore[type-arg]
    """Type of a number, whole or not, between two limits."""

    def __init__(self, kind: Callable[[str], Any], least: Any = None, most: Any = None):
        self.kind, self.least, self.most = kind, least, most
        self.name = kind.__name__

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Read a number within the limits."""
        _check_value(self, value, param, ctx)
        try:
            number = self.kind(value)
        except ValueError:
            what = "whole number" if self.kind is int else "number"
            # A share of a whole number is no such number.
            written = _digits(value if self.kind is float else value.rstrip("%"))
            remedy = "" if written == value else f"; write {written}"
            if "," in value:
                remedy = remedy.removesuffix(", without a unit")
                remedy += " for one number, and name several one at a time"
            counted = getattr(param, "described", None)
            of_what = f" ({counted.help[0].lower()}{counted.help[1:]})" if counted else ""
            self.fail(f"{value!r} must be a {what}{of_what}{remedy}", param, ctx)
        most = LARGEST if self.most is None and self.kind is int else self.most
        if most is not None and not number <= most:
            limit = f"{most:,}" if most == LARGEST else f"{most:.12g}"
            self.fail(f"{value!r} must be less than or equal to {limit}", param, ctx)
        if self.least is not None and not number >= self.least:
            self.fail(f"{value!r} must be greater than or equal to {self.least:.12g}", param, ctx)
        return number

    def limits(self) -> str:
        """Text of the limits as inequalities; empty without limits."""
        least = "" if self.least is None else f"{self.least:.12g}<="
        most = "" if self.most is None or self.most >= UNREACHED else f"<={self.most:.12g}"
        if least and most:
            return f"{least}x{most}"
        return f"x>={self.least:.12g}" if least else f"x{most}" if most else ""


class Text(click.ParamType):  # type: ignore[type-arg]
    """Type of a word or a path."""

    def __init__(self, kind: type[str] | type[Path]):
        self.kind = kind
        self.name = "path" if kind is Path else "str"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Read a word or a path, which must be neither empty nor another option."""
        if isinstance(value, str):
            if not value.strip() and value != getattr(param, "default", None):
                self.fail(f"{value!r} is empty; give it a value, or leave it out", param, ctx)
            if UNNAMEABLE.search(value):
                self.fail(f"{value!r} holds a zero byte or half a letter; leave it out", param, ctx)
            _check_value(self, value, param, ctx)
        return self.kind(value)

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        """Let the shell complete a path."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="file")] if self.kind is Path else []


class DescribedOption(click.Option):
    """An option whose line on the help page is built when the page is shown, and is stated once."""

    def __init__(self, *declared: Any, described: Option, shown: Any, **details: Any):
        super().__init__(*declared, **details)
        self.described, self.usual = described, shown

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Let the parser keep every value that is stated, where click's would keep the last."""
        many, self.multiple = self.multiple, True
        super().add_to_parser(parser, ctx)
        self.multiple = many

    def handle_parse_result(self, ctx: click.Context, opts: Any, args: list[str]) -> Any:
        """Take the one value that is stated; refuse several, but for a switch set twice alike."""
        values = opts.get(self.name)
        if values and not self.multiple:
            if len(set(values) if self.is_flag else values) > 1 and not ctx.resilient_parsing:
                words = ["on" if one is True else "off" if one is False else one for one in values]
                stated = in_words(tuple(f"{one!r}" for one in words), "and")
                raise click.BadParameter(f"is given as {stated}; state it once", ctx, self)
            opts = {**opts, self.name: values[-1]}
        return super().handle_parse_result(ctx, opts, args)

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the spelling and the text of the line."""
        limits = self.type.limits() if isinstance(self.type, Number) else ""
        marks = [mark for mark in (limits, "required" if self.required else "") if mark]
        # The text below has the mark beside the limits; click would add it a second time.
        required, self.required = self.required, False
        self.help = with_default(self.described, self.usual) + _in_brackets(marks)
        record = super().get_help_record(ctx)
        self.required = required
        return record


class HelpFormatter(click.HelpFormatter):
    """Formatter of help pages whose lines break between words only, never at hyphens."""

    # Takes a hyphen's place while lines are broken; no text has it, and it is no white space.
    JOINER = "\x1a"

    def write_text(self, text: str) -> None:
        """Write a paragraph."""
        super().write_text(self._joined(text))

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        """Write names and their descriptions side by side."""
        joined = [(name, self._joined(text)) for name, text in rows]
        super().write_dl(joined, col_max, col_spacing)

    def _joined(self, text: str) -> str:
        return text.replace("-", self.JOINER)

    def getvalue(self) -> str:
        """Return the page."""
        return super().getvalue().replace(self.JOINER, "-")


class HelpContext(click.Context):
    """Context of commands whose help page uses :class:`HelpFormatter`."""

    formatter_class = HelpFormatter


class DescribedArgument(click.Argument):
    """An argument with a line on the help page."""

    def __init__(self, *declared: Any, described: Option, **details: Any):
        super().__init__(*declared, **details)
        self.described = described

    def line(self) -> tuple[str, str]:
        """Return name and text for the help page."""
        marks = ["required"] if self.required else []
        text = with_default(self.described, REQUIRED) + _in_brackets(marks)
        return self.human_readable_name, text


FIRST: Mapping[str, str] = {
    "train": "model cluster tp pp global_batch seq framework plan tokens compare",
    "plan": "model cluster global_batch seq tokens days with_plan framework objective write",
    "serve": "model cluster tp requests max_rate slo search prompt output deployment",
    "run-job": "model cluster tokens days global_batch plan "
    "checkpoint_interval spares failures framework",
    "fleet": "model cluster demand days policy training tp slo power_cap price",
    "collective": "size algorithm clusters ranks group runtime compare matrix fault bandwidth",
    "queue": "jobs discipline place study failures checkpoint_interval "
    "repair quota reserve neighbours",
    "lend": "model cluster demand confidence begin until block tp slo follow",
}
"""Options of commands with many that the help page describes; it names the others."""


class CommandWithArguments(click.Command):
    """A command whose help page describes its arguments, and its options under their headings."""

    context_class = HelpContext

    def __init__(self, name: str, *, headings: Mapping[str, str], **details: Any):
        super().__init__(name, **details)
        self.headings = headings
        self.first = FIRST.get(name, "").split()
        flag = {"is_flag": True, "expose_value": False}
        if any(each.name == "variant" for each in self.params):
            why = "Say which options were not stated, and what was read from the catalogue."
            self.params.append(click.Option(["-v", "--verbose"], callback=_note, help=why, **flag))
        full, call = "Show all options, with what each does.", self._help_in_full
        every = click.Option(["--help-all"], is_eager=True, callback=call, help=full, **flag)
        every.hidden = not self.first
        self.params.append(every)

    def _help_in_full(self, ctx: click.Context, _option: click.Parameter, stated: bool) -> None:
        if stated and not ctx.resilient_parsing:
            self.first = []
            click.echo(ctx.get_help())
            ctx.exit()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the arguments, then the options of each heading, of many the most used in full."""
        lines = [param.line() for param in self.params if isinstance(param, DescribedArgument)]
        if lines:
            with formatter.section("Arguments"):
                formatter.write_dl(lines)
        sections: dict[str, list[tuple[str, str]]] = {}
        others: dict[str, list[str]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record and record[0].startswith("-"):
                heading = self.headings.get(str(param.name), LAST_HEADING)
                if self.first and heading != LAST_HEADING:
                    if param.name not in self.first:
                        others.setdefault(heading, []).append(param.opts[0])
                        continue
                    heading = f"Used most, of {len(self.params)} options (--help-all shows all)"
                sections.setdefault(heading, []).append(record)
        last = [(LAST_HEADING, sections.pop(LAST_HEADING, []))]
        for heading, options in [*sections.items(), *last]:
            for heading_of_others, names in others.items() if heading == LAST_HEADING else ():
                with formatter.section(heading_of_others):
                    formatter.write_text(", ".join(names))
            with formatter.section(heading):
                formatter.write_dl(options)


def _note(ctx: click.Context, _option: click.Parameter, stated: bool) -> None:
    from experiments.cli.options.inputs import WHY

    ctx.meta[WHY] = stated


def with_default(option: Option, default: Any) -> str:
    """Help text of an option, with its default."""
    text = option.default or shown(default)
    return f"{option.sentence().rstrip('.')}; default {text}." if text else option.sentence()


def shown(default: Any) -> str:
    """Text of a default for the help page; empty where there is none."""
    if isinstance(default, bool):
        return "on" if default else ""
    if default is REQUIRED or default is None or default in ((), ""):
        return ""
    return "-".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _in_brackets(marks: list[str]) -> str:
    return f"  [{'; '.join(marks)}]" if marks else ""


def _completion(choices: Callable[[], tuple[str, ...]]) -> Any:
    """Return a function that completes an option by its choices, for the shell."""

    def complete(ctx: Any, parameter: click.Parameter, incomplete: str) -> list[Any]:
        fitting = [choice for choice in choices() if incomplete in choice]
        return fitting or parameter.type.shell_complete(ctx, parameter, incomplete)

    return complete


def parameters(command: Any) -> dict[str, click.Parameter]:
    """Return the parameters of a command by name, positional ones first and in order."""
    by_name = {}
    for item in sorted(command.params, key=lambda item: str(item.param_type_name)):
        flags = [flag for flag in item.opts if flag.startswith("--")]
        name = flags[-1].removeprefix("--").replace("-", "_") if flags else str(item.name)
        by_name[name] = item
    return by_name


Command = Callable[..., int | None]
PLAIN = (bool, int, float, str, Path)


@dataclass(frozen=True)
class Stated:
    """Mark of a mapping parameter that receives the stated fields of a dataclass."""

    kind: type
    # without, searched: fields that the command does not take, and fields whose values it searches,
    # so that they have no default
    # Defaults of this command, in words, where they are not those of the dataclass
    defaults: Mapping[str, str] = dataclasses.field(default_factory=dict)
    without: tuple[str, ...] = ()
    searched: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Group:
    """Options of one parameter of a command, and the function that builds its argument."""

    kind: type  # the parameter's dataclass, whose first line is the heading on the help page
    options: Mapping[str, Option]
    parameters: tuple[click.Parameter, ...]
    build: Callable[[Mapping[str, Any]], Any]

    @property
    def heading(self) -> str:
        """Line above the options on the help page."""
        first, *_ = (self.kind.__doc__ or "Options").strip().splitlines()
        return first.partition(":")[0].rstrip(".").replace("``", "")


def as_options(name: str, command: Command, *, begins: bool = False) -> click.Command:
    """Return a click command with an option for each field of a function's dataclasses."""
    # A parameter may be Stated fields, or the Invocation, which receives the inputs of all others.
    # With ``begins`` the command checks --out itself, which may be a file or an unfinished run.
    from experiments.cli.options.inputs import Invocation  # the help of all commands needs none

    hints = get_type_hints(command, include_extras=True)
    groups = {key: _group(hints[key]) for key in inspect.signature(command).parameters}
    parameters = [parameter for group in groups.values() for parameter in group.parameters]
    options = [item for group in groups.values() for item in group.options.items()]
    recorded = [key for key, option in options if option.recorded]
    if len({parameter.name for parameter in parameters}) < len(parameters):
        raise TypeError(f"command {name} has two options of one name")

    def call(**stated: Any) -> int | None:
        """Answer the command with what click read."""
        # click gives an empty tuple where an option that may be repeated is not stated
        values = {
            key: list(value) or None if isinstance(value, tuple) else value
            for key, value in stated.items()
        }
        try:
            arguments = {key: group.build(values) for key, group in groups.items()}
            inputs = {key: values[key] for key in recorded}
            for key, value in arguments.items():
                if isinstance(value, Invocation):
                    arguments[key] = dataclasses.replace(value, command=name, inputs=inputs)
                    if not begins:
                        value.begin()
            return command(**arguments)
        except InputError as mistake:
            # A field that no option states is that of a file, and keeps its name.
            spelled = {
                str(each.name): flag
                for each in parameters
                if values.get(str(each.name)) is not None
                for flag in each.opts
                if flag.startswith("--")
            }
            raise InputError(with_option_names(str(mistake), spelled)) from None

    headings = {key: group.heading for group in groups.values() for key in group.options}
    return CommandWithArguments(
        name.rpartition(" ")[2],
        callback=call,
        params=parameters,
        help=command.__doc__,
        headings=headings,
    )


def _group(hint: Any) -> _Group:
    marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    stated = next((mark for mark in marks if isinstance(mark, Stated)), None)
    kind = stated.kind if stated else hint
    if not dataclasses.is_dataclass(kind) or not isinstance(kind, type):
        raise TypeError(f"{kind} is no dataclass, so no option can be made of it")
    options, hints = described(kind), get_type_hints(kind)
    defaults = {
        field.name: REQUIRED if field.default is MISSING else field.default
        for field in dataclasses.fields(kind)
    }
    if stated:
        words = {key: option.default or shown(defaults[key]) for key, option in options.items()}
        words |= dict.fromkeys(stated.searched, "searched") | dict(stated.defaults)
        options = {
            key: dataclasses.replace(option, default=words[key])
            for key, option in options.items()
            if key not in stated.without
        }
        defaults = dict.fromkeys(options)
    parameters = tuple(
        click_parameter(key, _kind(hints[key], option), option, defaults[key])
        for key, option in options.items()
    )

    def build(entered: Mapping[str, Any]) -> Any:
        """Build what the command receives from what was entered."""
        values = {key: entered[key] for key in options}
        if stated:
            return {key: value for key, value in values.items() if value is not None}
        lists = [key for key in options if get_origin(without_none(hints[key])) is tuple]
        return kind(**values | {key: tuple(values[key] or ()) for key in lists})

    return _Group(kind, options, parameters, build)


def _kind(hint: Any, option: Option) -> Any:
    """Type of an option's value: the field's, a list for a tuple, text for a literal."""
    bare = option.kind or without_none(hint)
    if get_origin(bare) is tuple:
        return list[get_args(bare)[0]]  # type: ignore[misc]
    if get_origin(bare) is Literal:
        bare = str
    if bare not in PLAIN:
        raise TypeError(f"an option cannot have the type {hint}")
    return bare


def without_none(hint: Any) -> Any:
    """Return a type without the None that it may also be."""
    if get_origin(hint) in (UnionType, Union):
        return next(part for part in get_args(hint) if part is not NoneType)
    return hint


def with_option_names(message: str, spelled: Mapping[str, str]) -> str:
    """Return a message whose subject, if it is a field, is spelled as its option.

    Other places keep their words: a field inside a file is no option.

    >>> with_option_names("seq_len is 0; give 1 or more.", {"seq_len": "--seq-len"})
    '--seq-len is 0; give 1 or more.'
    >>> with_option_names("plan.yaml: seq_len is 0.", {"seq_len": "--seq-len"})
    'plan.yaml: seq_len is 0.'
    """
    subject = re.match(r"(\w+)(?= (is|names|sum) )", message)
    if subject is None or subject[1] not in spelled:
        return message
    return spelled[subject[1]] + message[subject.end() :]
