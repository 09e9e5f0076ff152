"""The documents show the output that their code prints."""

import functools
import re
from pathlib import Path

import pytest

from tests.docs.rerun import BLOCK, ROOT, moved, pages, rerun

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
def _below(package: str) -> tuple[Path, ...]:
    """Files and folders of a package, from the root of the repository."""
    return tuple(path.relative_to(ROOT) for path in (ROOT / package).rglob("*"))
