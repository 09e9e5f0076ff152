"""The exception for a user's mistake, and the wording of messages about names and files."""

from __future__ import annotations

import errno
from collections.abc import Iterable


class InputError(ValueError):
    """Error for a user's mistake; the message names the thing, the value, the limit, the remedy.

    Commands print it in one line and exit with status 2; from Python it is a ``ValueError``.

    Examples
    --------
    >>> from topologies.clusters.names import cluster
    >>> try:
    ...     cluster("trn2.48xlrge")
    ... except InputError as mistake:
    ...     print(str(mistake)[:65])
    unknown cluster 'trn2.48xlrge'. Did you mean trn2.48xlarge? There
    """


def suggestion(value: str, choices: Iterable[str]) -> str:
    """Return `` Did you mean X?`` if one of the choices is close to the value, else nothing.

    >>> suggestion("trn2.48xlrge", ["trn1.32xlarge", "trn2.48xlarge"])
    ' Did you mean trn2.48xlarge?'
    >>> suggestion("DGX-H100", ["dgx-h100", "dgx-h200"])
    ' Did you mean dgx-h100?'
    >>> suggestion("zebra", ["trn2"])
    ''
    """
    from difflib import get_close_matches

    by_lower_case = {choice.lower(): choice for choice in choices}
    close = get_close_matches(value.lower(), list(by_lower_case), n=1)
    return f" Did you mean {by_lower_case[close[0]]}?" if close else ""


MOST_LISTED = 24  # choices that a message names; the command line cuts a longer line


def check_choice(what: str, value: object, choices: Iterable[str]) -> None:
    """Refuse a value that is none of the choices.

    >>> check_choice("kind", "ring", ["ring", "tree"])
    >>> check_choice("kind", "rnig", ["ring", "tree"])
    Traceback (most recent call last):
    topologies.support.errors.InputError: kind 'rnig' is none of ring, tree. Did you mean ring?
    """
    names = [*choices]
    if value not in names:
        text = str(value)
        near = suggestion(text, names)
        more = f" and {len(names) - MOST_LISTED:,} more" if len(names) > MOST_LISTED else ""
        listed = ", ".join(names[:MOST_LISTED]) + more
        raise InputError(f"{what} {shown(text, 40)!r} is none of {listed}.{near}")


def check_type(argument: str, value: object, types: type | tuple[type, ...], remedy: str) -> None:
    """Refuse an argument of another type than a function takes.

    >>> check_type("cluster", "trn2.48xlarge", str, "Pass a name.")
    >>> check_type("cluster", 16, str, "Pass a name, such as 'trn2.48xlarge'.")
    Traceback (most recent call last):
    topologies.support.errors.InputError: cluster is 16 (int). Pass a name, such as 'trn2.48xlarge'.
    """
    if not isinstance(value, types):
        raise wrong_type(argument, value, remedy)


def wrong_type(argument: str, value: object, remedy: str) -> InputError:
    """Return the error for an argument of another type than a function takes, in one line."""
    text = " ".join(repr(value).split())
    return InputError(f"{argument[:40]} is {shown(text, 80)} ({type(value).__name__}). {remedy}")


REMEDIES = {
    errno.ENOENT: "Correct the path.",
    errno.ENOTDIR: "Correct the path.",
    errno.EISDIR: "Name a file in it.",
    errno.EACCES: "Change its permissions, or choose another place.",
    errno.EPERM: "Change its permissions, or choose another place.",
    errno.EROFS: "Choose another place.",
    errno.ENOSPC: "Free some space, or choose another place.",
    errno.EDQUOT: "Free some space, or choose another place.",
    errno.ELOOP: "Name the file itself.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
    errno.EMFILE: "Run fewer at once.",
}


def system_reason(fault: OSError | ValueError) -> str:
    """Say why the system refused a file, and what to do about it.

    >>> system_reason(OSError(2, "No such file or directory", "out/run.json"))
    'No such file or directory. Correct the path.'
    """
    cause = fault if isinstance(fault, OSError) else OSError()
    why = cause.strerror or str(fault)
    return f"{why}. {REMEDIES.get(cause.errno or 0, 'Choose another file.')}"


def file_fault(fault: OSError) -> str:
    """Write a message on an error of the system: the file, the reason and the remedy.

    >>> file_fault(OSError(28, "No space left on device", "out/run.json"))
    'out/run.json: No space left on device. Free some space, or choose another place.'
    """
    where = "" if fault.filename is None else f"{fault.filename}: "
    return where + system_reason(fault)


LONGEST_NAME = 100  # most characters of a name from outside that a message repeats


def printable(text: str) -> str:
    """Escape characters in a text from outside that would move the cursor or change colours.

    These are control characters, marks of writing direction and broken surrogates; line ends and
    tabs stay.

    >>> printable("red \\x1b[31mname")
    'red \\\\x1b[31mname'
    """
    if text.isprintable():
        return text
    return "".join(
        letter
        if letter.isprintable() or letter in "\n\t"
        else letter.encode("unicode_escape").decode()
        for letter in text
    )


def shown(text: str, limit: int = LONGEST_NAME) -> str:
    """Return a name from outside for use in a message: on one line, and cut if it is long.

    >>> shown("a" * 200, 10)
    'aaaaaaaaa…'
    """
    one_line = " ".join(printable(text[: 2 * limit]).split(" "))
    one_line = one_line.replace("\n", "\\n").replace("\t", "\\t")
    return one_line if len(one_line) <= limit else one_line[: limit - 1] + "…"


EXCERPT = 40  # characters of a value that a message repeats


def excerpt(value: object) -> str:
    """Return a value as an error message repeats it: a long one is cut off."""
    if isinstance(value, int) and abs(value) >= 10**EXCERPT:
        # repr of a number of over 4,300 digits raises, so its digits are counted from its bits.
        return f"a number of {value.bit_length() * 0.30103:,.0f} digits"
    text = " ".join(repr(value).split())
    return text if len(text) <= EXCERPT else f"{text[:EXCERPT]}…"
