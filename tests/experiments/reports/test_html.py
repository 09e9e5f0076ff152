"""The report page stands alone, shows every result, escapes all of it, and keeps its templates."""

import base64
import hashlib
import json
from html.parser import HTMLParser

import jinja2
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from experiments.reports import html
from experiments.reports.formatting import heading, number, table_text, value_text
from experiments.reports.html import report_html, write_report
from experiments.reports.run_directory import run_directory
from tests.support.examples import examples
from topologies.support.errors import InputError

VOID = {"meta", "img", "link", "br", "hr", "input"}


class _Page(HTMLParser):
    """Text, images and links of a page; checks that tags are balanced."""

    def __init__(self, text):
        super().__init__()
        self.open, self.words, self.sources, self.scripts, self.values = [], [], [], [], []
        self.tags, self.policy = set(), ""
        self.feed(text)
        (script,) = self.scripts
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"script-src 'sha256-{digest}'" in self.policy
        assert "default-src 'none'" in self.policy

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        attributes = dict(attrs)
        self.policy += str(attributes.get("content")) if attributes.get("http-equiv") else ""
        self.kind = str(attributes.get("type", "script")) if tag == "script" else ""
        self.sources += [str(value) for name, value in attrs if name in ("src", "href")]
        assert not [name for name, _ in attrs if name.startswith("on")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            (self.scripts if self.kind == "script" else self.values).append(data)
        else:
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


@pytest.fixture
def folder(tmp_path):
    figure = Figure()
    figure.subplots().plot([1, 2])
    inputs = {"model": "llama", "tp": 32, "path": "<script>alert(1)</script>"}
    with run_directory(tmp_path / "out", command="train", inputs=inputs, seed=7) as run:
        result = {
            **{"iteration_s": 1.25, "ranks": 1024, "mfu": 0.41},
            "breakdown_s": {"compute": 1.0, "exposed_tp": 0.25},
            "reclaim_latency_s": {"p50": 784.0, "max": 807.0, "n": 24_658},
            "notes": ["the forecast knows <no> earlier day"],
            "memory_bytes": {"weights": 2**30, "total": 2**31},
            "rows": [{"size_bytes": 1024, "time_s": 1e-6}],
        }
        run.json("result", result, title="Result")
        run.figure("breakdown", figure, title="Where the time goes", note="Mean over <b>ranks</b>.")
        run.table("metrics", pd.DataFrame({"name": ["<i>&"], "time_s": [0.5]}), title="Rows")
    return tmp_path / "out"


def test_the_page_is_whole_needs_nothing_else_and_can_be_read(folder):
    page = _Page(report_html(folder))
    assert page.open == []
    assert page.sources
    assert all(source.startswith("data:image/svg+xml;base64,") for source in page.sources)
    assert page.tags.isdisjoint({"iframe", "object", "b2", "link"})
    assert len(page.scripts) == 1
    for words in (
        "iteration 1.25 s", "ranks 1,024", "compute 1 s 80.0%", "exposed tp 250 ms 20.0%",
        "weights 1.074 GB", "p50 13.07 min max 13.45 min n 24,658", "size time 1 KiB 1 us",
        "Remarks The forecast knows <no> earlier day", "Where the time goes", "model llama tp 32",
        "seed 7", "breakdown.png",
    ):  # fmt: skip
        assert words in page.text, words


def test_nothing_that_was_given_is_markup_and_nothing_runs(folder):
    (folder / "breakdown.svg").write_text("<svg onload='alert(1)'><script/></svg>")
    page = _Page(report_html(folder))
    assert "svg" not in page.tags
    assert len(page.scripts) == 1
    for text in ("<script>alert(1)</script>", "<i>&", "Mean over <b>ranks</b>."):
        assert text in page.text


def test_a_heavy_drawing_is_shown_as_png(folder, monkeypatch):
    monkeypatch.setattr(html, "SVG_AT_MOST_BYTES", 10)
    (source,) = _Page(report_html(folder)).sources
    assert source.startswith("data:image/png;base64,iVBOR")


def test_missing_and_changed_files_are_said(folder):
    (folder / "breakdown.svg").unlink()
    (folder / "metrics.csv").write_text("name\nx\n")
    text = _Page(report_html(folder)).text
    assert "Cannot be shown: there is no file breakdown.svg" in text
    assert "metrics.csv Rows (changed since the run)" in text


def test_a_record_cannot_lead_out_of_the_folder(folder, tmp_path):
    (tmp_path / "secret.csv").write_text("password\nhunter2\n")
    (folder / "link.csv").symlink_to(tmp_path / "secret.csv")
    record = json.loads((folder / "run.json").read_text())
    record["contents"] = [
        {"kind": "table", "file": "../secret.csv", "title": "a"},
        {"kind": "table", "file": "link.csv", "title": "b"},
        {"kind": "surprise", "file": "x", "title": "c"},
    ]
    (folder / "run.json").write_text(json.dumps(record))
    assert "hunter2" not in report_html(folder)


def test_long_tables_are_cut_and_say_so(folder, monkeypatch):
    monkeypatch.setattr(html, "MOST_ROWS", 2)
    (folder / "metrics.csv").write_text("x\n1\n2\n33\n")
    page = _Page(report_html(folder))
    assert "The first 2 rows; all of them are in metrics.csv" in page.text
    assert "33" not in page.words


@pytest.mark.parametrize("text", ["", "x" * 10, "[1]", "\x00\x01"])
def test_files_that_are_not_what_they_say_do_not_break_the_page(folder, text):
    (folder / "result.json").write_text(text)
    (folder / "metrics.csv").write_text("" if text == "" else "a,b\n1,2,3,4\n")
    page = _Page(report_html(folder))
    assert page.open == []
    assert "Cannot be shown" in page.text


NAMES = st.sampled_from(["a", "x_s", "x_bytes", "rows", "<b>"])
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
text = st.text(max_size=5)
entries = st.fixed_dictionaries(
    {"kind": st.sampled_from(["json", "table", "figure"]), "file": st.just("x.json")},
    optional={"title": anything, "note": anything},
)
records = st.fixed_dictionaries(
    {"cluster_sim_run": st.just(1) | anything},
    optional={
        **dict.fromkeys(("command", "inputs", "seed", "version", "results_digest"), anything),
        "files": anything | st.dictionaries(text, text, max_size=2),
        "contents": anything | st.lists(entries, max_size=2),
    },
)


@given(record=records, document=anything)
@examples(60)
def test_whatever_a_stranger_writes_gives_a_page_or_one_line(record, document, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stranger")
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "x.json").write_text(json.dumps(document))
    try:
        page = _Page(write_report(folder).read_text(encoding="utf-8"))
    except InputError:
        return
    assert page.open == []


@pytest.mark.parametrize(("name", "value", "text"), [
    ("time_s", 0.0188, "18.8 ms"),
    ("size_bytes", 2**28, "256 MiB"),
    ("busbw_bytes_per_s", 128e9, "128 GB/s"),
    ("model_flops_per_s_per_chip", 1.0, "1"),
    ("flops_per_s", 667e12, "667 TFLOP/s"),
    ("flops_per_s", 5.0, "5 FLOP/s"),
    ("tokens_per_s", 12345.6, "12,350 /s"),
    ("busy_ps", 1234567, "1,234,567 ps"),
    ("mfu", 0.412345, "41.23 %"),
    ("ranks", 499968, "499,968"),
    ("lost_work", 0.006309, "0.6309 %"),
    ("breakdown.maintenance", 0.25, "25 %"),
    ("maintenance", 1280, "1,280"),
    ("breakdown_s.bubble", 0.5, "500 ms"),
    ("x", 1e30, "1e+30"),
    ("served_tokens", 6_416_127_680_889, "6.416 T"),
    ("power_peak_w", 396_700_000.0, "396.7 MW"),
    ("energy_joules", 8.702e13, "24.17 GWh"),
    ("reclaim_latency_s.n", 24_658, "24,658"),
    ("x", float("nan"), "-"),
    ("x", None, "-"),
    ("x", float("inf"), "∞"),
    ("x", -(10**400), "beyond 1e300"),
    ("x", True, "yes"),
    ("s", 2.0, "2 s"),
])  # fmt: skip
def test_values_carry_the_unit_of_their_name(name, value, text):
    assert value_text(name, value) == text


def test_a_file_among_the_inputs_is_named_by_path_and_the_start_of_its_digest():
    file = {"path": "my.yaml", "sha256": "0123456789abcdef"}
    assert html.plain_text("model", file) == "my.yaml (sha256 0123456789ab…)"


def test_tables_for_people_keep_named_indices_and_drop_units_from_headings():
    frame = pd.DataFrame({"busy_s": [1.0]}, index=pd.Index(["link:0-1"], name="resource"))
    assert table_text(frame) == (["resource", "busy"], [["link:0-1", "1 s"]])
    assert heading("p99_s") == "p99"
    assert number(-1234.5) == "-1,234"
    assert table_text(pd.DataFrame({"x": []})) == (["x"], [])


def test_a_name_without_a_value_is_an_error():
    with pytest.raises(jinja2.UndefinedError, match="nobody"):
        html.template("report.html.j2").environment.from_string("{{ nobody }}").render()
