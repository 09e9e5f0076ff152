"""The report in a real browser: its controls work, and the console stays empty."""

import json
import re

import pandas as pd
import pytest
from matplotlib.figure import Figure

from cluster_sim.trace.trace import run as run_schedule
from experiments.reports.drawing import slices
from experiments.reports.run_directory import run_directory
from tests.support.browser import CHROMIUM, WHY_NOT, opened
from tests.support.random_schedules import on_one_link

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Page of a run with all that a page can show."""
    figure = Figure()
    axes = figure.subplots()
    axes.plot([1, 2, 4], [3, 2, 1], label="<ring>")
    axes.bar([1, 2], [1, 2], label="bars")
    axes.set(title="Rings & bars", xlabel="size [B]", ylabel="time [s]")
    trace = run_schedule(on_one_link(3))
    results = {
        "model": "m", "cluster": "c", "chips": 8, "iteration_s": 2.0, "mfu": 0.4,
        "breakdown_s": {"compute": 1.5, "exposed_tp": 0.5},
        "memory_bytes": {"weights": 2**30, "total": 2**30, "capacity": 2**32},
        "interval": {"level": 0.8, "low": 1.5, "high": 3.0, "basis": "9 rows"},
        "provenance": {"gemm": "measured"},
    }  # fmt: skip
    rows = pd.DataFrame({"plan": [f"p{k}" for k in range(12)], "time_s": range(12, 0, -1)})
    folder = tmp_path_factory.mktemp("run") / "out"
    with run_directory(folder, command="train", inputs={"model": "m", "cluster": "c"}) as run:
        run.json("results", results, title="Results")
        run.figure("lines", figure, title="Lines")
        run.figure("timeline", figure, title="Timeline", slices=slices(trace))
        run.table("rows", rows, title="Plans")
    return folder / "report.html"


def test_the_page_says_nothing_on_the_console(page, tmp_path):
    document, console = opened(page, tmp_path)
    assert console == []
    assert 'class="scripted"' in document
    assert document.count("<rect") == 3
    assert document.count('<button type="button" title="sort">') >= 2


def test_a_script_of_a_stranger_is_not_run(page, tmp_path):
    forged = tmp_path / "forged.html"
    script = "<script>document.title = 'owned'</script>"
    forged.write_text(page.read_text().replace("</main>", f"</main>{script}"))
    document, console = opened(forged, tmp_path / "profile")
    assert "<title>owned" not in document
    assert any("Content Security Policy" in line for line in console)


ACTIONS = """
<script>
const told = {};
const figure = document.querySelector("figure.drawing"), image = figure.querySelector("img");
const values = JSON.parse(figure.querySelector("script").textContent);
const box = image.getBoundingClientRect();
function point(x, y) {
  const at = { clientX: box.left + x * box.width, clientY: box.top + y * box.height };
  image.dispatchEvent(new PointerEvent("pointermove", at));
  return document.querySelector(".tip").textContent;
}
told.point = point(values.points[0][0], values.points[0][1]);
const bar = values.boxes[0];
told.bar = point((bar[0] + bar[2]) / 2, bar[3] - 0.001);
const table = [...document.querySelectorAll(".table")].find((one) => "filter" in one.dataset);
const first = () => table.querySelector("tbody tr:not([hidden]) td").textContent;
const heads = table.querySelectorAll("th button");
heads[1].click(); told.sorted = first();
heads[1].click(); told.reversed = first();
const input = table.querySelector("input");
input.value = "plan p7"; input.dispatchEvent(new Event("input"));
told.filtered = [first(), table.querySelector(".count").textContent];
const tools = document.querySelectorAll(".timeline button");
const shown = () => document.querySelector(".timeline .tools span").textContent;
told.whole = shown(); tools[1].click(); told.zoomed = shown();
tools[4].click(); told.back = shown();
const edges = (one) => one.getBoundingClientRect();
const middle = (one) => (edges(one).left + edges(one).right) / 2;
const band = edges(document.querySelector(".interval .band"));
const [low, high] = document.querySelectorAll(".interval .ends span");
told.ends = [middle(low) - band.left, middle(high) - band.right].map(Math.round);
const names = [...document.querySelectorAll(".timeline svg > text")];
const bars = [...document.querySelectorAll(".timeline rect")].map((one) => edges(one).left);
told.apart = Math.max(...names.map((one) => edges(one).right)) <= Math.min(...bars);
told.wide = document.documentElement.scrollWidth <= innerWidth;
document.title = JSON.stringify(told);
</script>
"""


@pytest.mark.parametrize("width", [390, 1200])
def test_values_sorting_filter_and_zoom_work(page, tmp_path, width):
    text = re.sub("<meta http-equiv[^>]*>", "", page.read_text())
    (tried := tmp_path / "tried.html").write_text(text.replace("</body>", f"{ACTIONS}</body>"))
    document, console = opened(tried, tmp_path / "profile", f"--window-size={width},900")
    assert console == []
    answered = json.loads(re.findall("<title>(.*?)</title>", document)[0].replace("&amp;", "&")
                      .replace("&lt;", "<").replace("&gt;", ">"))  # fmt: skip
    assert answered["point"] == "<ring>\nsize: 1 B\ntime: 3 s"
    assert answered["bar"] == "bars\nsize: 1 B\ntime: 1 s"
    assert (answered["sorted"], answered["reversed"]) == ("p11", "p0")
    assert answered["filtered"] == ["p7", "1 of 12 rows"]
    assert answered["whole"] == answered["back"] != answered["zoomed"]
    assert answered["ends"] == [0, 0], "the ends of an interval are not named where they lie"
    assert answered["apart"], "names of lanes run into the bars"
    assert answered["wide"], "the page is wider than the window"


PRINTED_WIDTH = 718
"""Width of an A4 page between margins of 10 mm, at 96 pixels an inch."""
MEASURED = """
<script>
const right = (one) => one.getBoundingClientRect().right;
const cells = [...document.querySelectorAll("th, td")].filter((one) => one.offsetWidth);
const cut = cells.filter((one) => right(one) > innerWidth || one.scrollWidth > one.clientWidth + 1);
const wide = document.documentElement.scrollWidth > innerWidth;
document.title = JSON.stringify([cells.length, cut.length, wide]);
</script>
"""


def test_no_column_is_cut_on_paper(page, tmp_path):
    text = re.sub("<meta http-equiv[^>]*>", "", page.read_text())
    assert "@media print" in text
    paper = tmp_path / "paper.html"
    on_paper = text.replace("@media print", "@media all")
    paper.write_text(on_paper.replace("</body>", f"{MEASURED}</body>"))
    document, _ = opened(paper, tmp_path / "profile", f"--window-size={PRINTED_WIDTH},1000")
    cells, cut, wide = json.loads(re.findall("<title>(.*?)</title>", document)[0])
    assert cells >= 24
    assert (cut, wide) == (0, False)
