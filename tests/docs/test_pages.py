"""The documents show what their code prints, name every key, and their pictures are compared."""

import functools
import json
import re

import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import Image

from experiments.scripts.registry import EXPERIMENTS
from tests.docs import pictures
from tests.docs.rerun import BLOCK, ROOT, moved, pages, rerun
from tests.golden.record import EXPECTED, commands
from tests.support.refusals import refused
from tools import gallery
from tools.gallery import DOCS, MOST_BYTES, PICTURES

PAGES = [page for page in pages() if re.search("^```(python|console)$", page.read_text(), re.M)]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


# Of the tutorial, the pages that take seconds; all pages are run and compared by the test below.
LONG = ("fleet-day", "plan-search")
TUTORIAL = [page for page in PAGES if page.parent.name == "tutorial" and page.stem not in LONG]


@pytest.mark.parametrize("page", TUTORIAL, ids=lambda page: page.name)
def test_the_tutorial_runs(page):
    rerun(page.read_text(encoding="utf-8"), page.name)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_prints_what_stands_below_it(page):
    text = page.read_text(encoding="utf-8")
    assert list(moved(text, rerun(text, page.name))) == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in LINK.findall(BLOCK.sub("", page.read_text(encoding="utf-8"))):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_site_shows_every_page_once():
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    shown = re.findall(r"^ +- (?:[\w ]+: )?([\w/-]+\.md)$", site, re.MULTILINE)
    docs = ROOT / "docs"
    there = {str(page.relative_to(docs)) for page in docs.rglob("*.md")} - {"about.md"}
    assert sorted(shown) == sorted(there)


def test_a_moved_number_is_told():
    text = "```python\nprint(1 + 1)\n```\n\n```\n3\n```\n"
    assert list(moved(text, rerun(text, "page"))) == ["-3", "+2"]
    assert rerun(text, "page").endswith("```\n2\n```\n")


EXAMPLES = {"FILE.py", "batched_warm_up.py", "recursive_doubling.py"}
"""Files that pages tell a reader to write."""
SOURCE = re.compile(r"`([\w./-]+?(?:\.py|/))`")


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page):
    packages = (
        "topologies", "cluster_sim", "workloads", "experiments", "tests", "benchmarks", "tools",
    )  # fmt: skip
    files = [f"/{path}" for name in packages for path in _below(name)]
    for name in {*SOURCE.findall(page.read_text(encoding="utf-8"))} - EXAMPLES:
        assert any(path.endswith(f"/{name.rstrip('/')}") for path in files), name


@functools.cache
def _below(package):
    """Files and folders of a package, from the root of the repository."""
    return tuple(path.relative_to(ROOT) for path in (ROOT / package).rglob("*"))


PAGE = (ROOT / "docs" / "reference" / "json.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", commands())
def test_every_key_of_an_answer_has_a_meaning(name):
    command = commands()[name][0]
    (section,) = re.findall(rf"^## [^\n]*\b{command}\b[^\n]*\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    named = set(re.findall(r"`(\w+)`", section))
    document = json.loads((EXPECTED / f"{name}.json").read_text(encoding="utf-8"))
    if command == "collective":
        document = document["rows"][0]
    # An answer for each hour has a line each; a refusal is no document.
    answers = document if isinstance(document, list) else [document]
    for answer in answers:
        assert answer.keys() <= named or answer.keys() == {"status", "stderr"}


def _figure(height):
    figure = Figure(figsize=(4, 3))
    figure.subplots().bar([1, 2], [1, height])
    figure.suptitle("Rings win")
    return figure


def test_an_experiment_is_drawn_with_its_finding_and_command(tmp_path, monkeypatch):
    class Module:
        run = staticmethod(lambda height=0.5: pd.DataFrame({"height": [height]}))
        plot = staticmethod(lambda frame: _figure(frame.height[0]))

    one = EXPERIMENTS[0]
    monkeypatch.setattr(type(one), "load", lambda self: Module)
    monkeypatch.setattr(gallery, "SIZES", {one.name: {"height": 0.25}})
    gallery.main([one.name], tmp_path)
    text = (tmp_path / "gallery.md").read_text()
    assert f"## {one.question}\n\n![Rings win" in text
    assert f"```\ncluster-sim experiment {one.name} --height 0.25\n```" in text
    assert dict(pictures.changes(tmp_path, [])) == {one.name: 0.0}
    refused("no picture is called zebra", gallery.main, ["zebra"], tmp_path)


def test_the_gallery_of_the_documents_is_whole_and_small():
    docs = ROOT / DOCS
    drawn = {path.stem: path for path in (docs / PICTURES).glob("*.png")}
    assert set(drawn) <= {one.name for one in gallery.SHOWN}
    assert len(drawn) >= 16
    for path in drawn.values():
        assert path.stat().st_size <= MOST_BYTES, path.name
        with Image.open(path) as image:
            assert len(str(image.info["Title"])) > 10, path.name
            assert image.convert("RGB").getpixel((0, 0)) == (255, 255, 255), path.name
    assert (docs / "gallery.md").read_text(encoding="utf-8") == gallery.page(docs)
