"""Templates of pages are compiled once and then read from kept files."""

from __future__ import annotations

from pathlib import Path

import jinja2
import pytest

from experiments.reports import html
from topologies.files import kept_files


def test_a_template_is_compiled_once_for_all_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = []
    compile_template = jinja2.Environment.compile

    def count(environment: jinja2.Environment, *arguments: object, **named: object) -> object:
        compiled.append(arguments)
        return compile_template(environment, *arguments, **named)

    monkeypatch.setattr(jinja2.Environment, "compile", count)
    monkeypatch.setattr(kept_files, "folders", lambda: (tmp_path,))
    monkeypatch.setattr(html, "packaged", lambda name: "<{{ name }}>")
    pages = [html.render("page", {"name": "a & b"}) for _ in range(3)]
    assert pages == ["<a &amp; b>"] * 3
    assert len(compiled) == 1
    monkeypatch.setattr(html, "packaged", lambda name: "({{ name }})")
    assert html.render("page", {"name": 1}) == "(1)", "an edit is seen"
    assert len(list(tmp_path.iterdir())) == 1, "what is of no more use is gone"


def test_a_name_without_a_value_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "packaged", lambda name: "{{ nobody }}")
    with pytest.raises(jinja2.UndefinedError, match="nobody"):
        html.render("page", {})
