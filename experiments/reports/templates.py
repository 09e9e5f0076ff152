"""Templates of pages, whose compiled form is cached between runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from jinja2.bccache import Bucket, BytecodeCache

from topologies.files import kept_files

FOLDER = "page"


def packaged(name: str) -> str:
    """Return the text of a file of the package, the only source of templates."""
    return (files("experiments.reports") / FOLDER / name).read_text(encoding="utf-8")


def render(name: str, values: Mapping[str, Any]) -> str:
    """Fill in a template of the package; a name without a value is an error.

    ``name``: file of the template. ``values``: values that are filled in; text is escaped.
    """
    templates = jinja2.Environment(
        loader=jinja2.FunctionLoader(packaged),
        undefined=jinja2.StrictUndefined,
        bytecode_cache=_Kept(),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return templates.get_template(name).render(values)


class _Kept(BytecodeCache):
    """Cache of compiled templates in files; compiling takes a third of the time of a page."""

    def load_bytecode(self, bucket: Bucket) -> None:
        """Read the code that an earlier run has compiled, if any."""
        content = kept_files.read(_file(bucket))
        if content is not None:
            bucket.bytecode_from_string(content)

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Write the code that this run has compiled."""
        kept_files.keep(_file(bucket), bucket.bytecode_to_string(), replaces="template-*.code")


def _file(bucket: Bucket) -> str:
    """File name with a digest of everything that determines the code of a template.

    This includes the text of this module, because it has the options of the environment.
    """
    options = Path(__file__).read_bytes()
    ingredients = (bucket.key, bucket.checksum, options, jinja2.__version__, sys.version)
    return f"template-{kept_files.digest(*ingredients)}.code"
