"""Commands in this process: as functions of their options, or as words with a JSON answer."""

import contextlib
import io
import itertools
import json
import shlex

import click

from experiments.cli.main import app, run
from experiments.cli.options.from_fields import as_options
from experiments.cli.registry import COMMANDS


def command(name):
    """Function of a command; arguments may be given by position, options by name."""
    (registered,) = (one for one in COMMANDS if one.name == name)
    command = as_options(name, registered.load())
    assert command.callback is not None
    callback = command.callback
    arguments = [str(one.name) for one in command.params if isinstance(one, click.Argument)]
    usual = {str(one.name): one.default for one in command.params if not one.required}

    def call(*positional, **options):
        return callback(**usual | dict(zip(arguments, positional, strict=False)) | options)

    return call


def _without(words, more):
    """Words without the options that more states again, but for those that may be repeated."""
    again = {word.partition("=")[0] for word in more if word.startswith("--")}
    if again.isdisjoint(word.partition("=")[0] for word in words):
        return words
    params = app.get_command(None, words[0]).params
    again -= {flag for each in params if getattr(each, "multiple", False) for flag in each.opts}
    return [
        word
        for before, word in itertools.pairwise(["", *words])
        if word.partition("=")[0] not in again and (before not in again or word.startswith("--"))
    ]


def ended(words, *more):
    """Exit status, output and errors of a line; what more states again replaces what words do."""
    output, errors = io.StringIO(), io.StringIO()
    line = shlex.split(words) if isinstance(words, str) else list(words)
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        status = run([*_without(line, more), *more])
    return status, output.getvalue(), errors.getvalue()


def printed_by(words, *more):
    """Output of a command line, which must succeed."""
    status, output, errors = ended(words, *more)
    assert status == 0, errors
    return output


def document_of(words, *more):
    """JSON document that a command line prints, which must succeed."""
    return json.loads(printed_by(words, *more, "--json", "--quiet"))


def refusal_of(words, *more):
    """Sentence with which a command line is refused, which must be all that it prints."""
    status, output, errors = ended(words, *more)
    assert (status, output, errors.count("\n")) == (2, "", 1), errors
    assert errors.startswith("cluster-sim: ")
    assert errors.rstrip("\n").isprintable()
    assert "np." not in errors
    assert "NoneType" not in errors
    return errors
