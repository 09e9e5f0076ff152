"""The explorer repeats recorded runs, and moved sliders change their answers."""

import asyncio
import contextlib
import hashlib
import http.client
import importlib.util
import io
import json
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace

import pandas as pd
import pytest
from tornado.websocket import websocket_connect

import cluster_sim as cs
from experiments.cli.commands.serve_api import HOST, check_free
from experiments.cli.main import run
from experiments.explore import page as explored
from experiments.explore.page import answer_table, moved, pictures, read_runs
from tests.support.browser import CHROMIUM, WHY_NOT
from tests.support.refusals import refused
from tests.support.small_models import TOY_CONFIG, config_file
from topologies.catalogue.catalogue import shipped_catalogue

PATIENCE_S = 60.0
"""Longest wait for what a page should come to; a loaded machine is slow."""


class LivePage:
    """An open page: expressions are evaluated in it, keys pressed, complaints collected."""

    def __init__(self, socket):
        self.complaints = []
        self._socket, self._number = socket, 0

    async def command(self, method, **parameters):
        """Send a command of the protocol and wait for its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        await self._socket.write_message(json.dumps(message))
        while True:
            reply = json.loads(str(await self._socket.read_message()))
            self._listen(reply)
            if reply.get("id") == self._number:
                assert "error" not in reply, reply
                return dict(reply["result"])

    def _listen(self, event):
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(parameters["exceptionDetails"]))
        is_said = event.get("method") == "Runtime.consoleAPICalled"
        if is_said and parameters["type"] in ("error", "warning"):
            self.complaints.append(str(parameters["args"]))

    async def evaluate(self, expression):
        """Return the value of a JavaScript expression in the page."""
        result = await self.command("Runtime.evaluate", expression=expression, returnByValue=True)
        return result["result"].get("value")

    async def press(self, key):
        """Press and release a key where the page has its focus."""
        for kind in ("keyDown", "keyUp"):
            await self.command("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    async def until(self, condition):
        """Wait for a condition in JavaScript to hold."""
        end = time.monotonic() + PATIENCE_S
        while not await self.evaluate(condition):
            assert time.monotonic() < end, f"never true: {condition}"
            await asyncio.sleep(0.1)


@asynccontextmanager
async def live_page(address, profile):
    """Open an address in a new browser with an empty profile; both end with the block."""
    browser = subprocess.Popen(
        [
            str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-dev-shm-usage", "--disable-background-networking",
            "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank",
        ],
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        socket = await websocket_connect(await _debugger(profile), max_message_size=2**26)
        page = LivePage(socket)
        await page.command("Runtime.enable")
        await page.command("Page.navigate", url=address)
        yield page
        socket.close()
        while await socket.read_message() is not None:  # until the browser has closed it, too
            pass
    finally:
        browser.terminate()
        browser.wait(10)


async def _debugger(profile):
    """Address of the debugger of the browser's first tab, once it listens."""
    written, end = profile / "DevToolsActivePort", time.monotonic() + PATIENCE_S
    while not (written.exists() and len(written.read_text().split()) > 1):
        assert time.monotonic() < end, "the browser did not start"
        await asyncio.sleep(0.1)
    port = written.read_text().split()[0]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list") as reply:
        tabs = json.load(reply)
    return str(next(tab for tab in tabs if tab["type"] == "page")["webSocketDebuggerUrl"])


NO_PANEL = importlib.util.find_spec("panel") is None
WITH_PANEL = pytest.mark.skipif(NO_PANEL, reason="Panel is not installed")
TOY = {**TOY_CONFIG, "num_hidden_layers": 2}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Directories of a training step and of a collective."""
    base = tmp_path_factory.mktemp("runs")
    config = config_file(base / "config.json", TOY)
    train = ["train", "--model", config, "--cluster", "trn2.48xlarge",
             "--tp", "4", "--pp", "2", "--global-batch", "8", "--seq", "512"]  # fmt: skip
    reduce = ["collective", "all-reduce", "trn2.48xlarge", "--size", "1MiB,64MiB",
              "--algorithm", "ring"]  # fmt: skip
    for name, words in (("train", train), ("reduce", reduce)):
        assert run([*words, "--quiet", "--out", str(base / name)]) == 0
    return [base / "train", base / "reduce"]


@pytest.fixture(scope="module")
def runs(folders):
    return read_runs(folders)[0]


def test_unmoved_numbers_give_what_was_recorded(runs):
    train, reduce = runs
    assert train.ask(shipped_catalogue()) == pytest.approx(train.recorded)
    assert reduce.ask(shipped_catalogue()) == pytest.approx(reduce.recorded, rel=0.05)


def test_another_option_gives_the_answer_of_train(runs):
    train, reduce = runs
    changes = {"model": "llama-3.2-1b", "cluster": "trn2.48xlarge:2", "tp": 2, "global_batch": 64}
    seconds = sum(train.ask(shipped_catalogue(), changes).values())
    step = cs.train("llama-3.2-1b", "trn2.48xlarge:2", tp=2, pp=2, global_batch=64, seq=512)
    assert seconds == pytest.approx(step.time_s)
    apart = reduce.ask(shipped_catalogue(), {"cluster": "trn2.48xlarge:2"})
    assert apart != reduce.ask(shipped_catalogue())
    refused("tp is 'two'", train.ask, shipped_catalogue(), {"tp": "two"})


def test_the_table_says_what_was_asked_found_and_is_now(runs):
    slower = moved(shipped_catalogue(), {"trn2.bf16_matmul": 0.5})
    train, reduce = answer_table(runs, [run.ask(slower) for run in runs]).to_dict("records")
    assert train["question"].endswith(" on trn2.48xlarge, tp 4, pp 2, dp 2, 8 × 512 tokens")
    assert reduce["question"] == "all-reduce on trn2.48xlarge, 2 sizes together, 1 MiB to 64 MiB"
    assert train["change"].startswith("+")
    assert reduce["change"] == "+0.0%"
    assert "–" in train["80 % of measured"]


def test_pictures_and_sliders_say_what_they_show(runs):
    steps, times = pictures(runs, [run.recorded for run in runs])
    assert [bar.get_label() for bar in steps.axes[0].containers]
    names = [line.get_label() for line in times.axes[0].lines]
    assert names == ["reduce, as recorded", "reduce, now"]
    words = explored.number_in_words(shipped_catalogue(), "trn2.hbm_bandwidth", 0.5)
    assert words == "2.9 TB/s × 0.50 (stated)"
    words = explored.number_in_words(shipped_catalogue(), "trn2.collective_efficiency", 1.0)
    assert "may be × " in words


def test_a_moved_number_moves_the_answers_that_read_it(runs):
    train, reduce = runs
    slower = moved(shipped_catalogue(), {"trn2.bf16_matmul": 1.0, "trn2.link_bandwidth": 0.5})
    assert reduce.seconds(slower) > 1.5 * reduce.seconds(shipped_catalogue())
    assert train.ask(slower)["exposed_tp"] > train.ask(shipped_catalogue())["exposed_tp"]
    assert train.ask(slower)["compute"] == train.ask(shipped_catalogue())["compute"]
    faster = moved(shipped_catalogue(), {"trn2.link_bandwidth": 2.0})
    assert reduce.seconds(faster) < 0.75 * reduce.seconds(shipped_catalogue())


def test_sliders_are_for_the_numbers_that_matter_most(runs):
    shipped, (_, reduce) = shipped_catalogue(), runs
    names = explored.knobs([reduce], 2, shipped)
    assert len(names) == 2
    for name in names:
        assert reduce.seconds(moved(shipped, {name: 0.5})) != reduce.seconds(shipped)
    still, lively = (
        replace(reduce, ask=lambda by, of=of, power=power: {"": by.value("trn2", of) ** power})
        for of, power in (("link_latency", 0.01), ("link_bandwidth", 1))
    )
    assert explored.knobs([still, lively], 1, shipped) == ["trn2.link_bandwidth"]


def test_a_run_of_one_size_is_asked_about_that_size(tmp_path):
    words = ["collective", "all-reduce", "trn2.48xlarge", "--size", "1MiB", "--quiet"]
    assert run([*words, "--out", str(tmp_path / "one")]) == 0
    ((one,), _) = read_runs([tmp_path / "one"])
    assert one.question == "all-reduce on trn2.48xlarge, 1 MiB"


@pytest.mark.parametrize(("inputs", "message"), [
    ({"cluster": "trn2.48xlarge", "jitter": 0.01}, "ran with --jitter, which sliders leave"),
    ({"clusters": "trn2.48xlarge,dgx-h100"}, "holds several clusters, trn2.48xlarge,dgx-h100"),
])  # fmt: skip
def test_runs_that_sliders_cannot_answer_are_refused(tmp_path, monkeypatch, inputs, message):
    record = {"command": "train", "inputs": inputs}
    monkeypatch.setattr("experiments.explore.page.read_record", lambda folder: record)
    monkeypatch.setattr("experiments.explore.page.check_unchanged", lambda *_: None)
    refused(message, read_runs, [tmp_path])


@pytest.mark.parametrize("which", [0, 1])
def test_a_run_that_was_changed_is_refused_in_one_line(folders, tmp_path, which):
    """Every input, seed and version is covered, and the file with the answers."""
    answers = ("results.json", "metrics.csv")[which]
    kept = {name: (folders[which] / name).read_text() for name in ("run.json", answers)}
    record = json.loads(kept["run.json"])
    others, inputs = ("other", {"path": "/etc/passwd", "sha256": "0"}), record["inputs"]
    changes = [{"inputs": {**inputs, name: other}} for name in inputs for other in others]
    changes += [{"seed": 7}, {"version": "x"}, {"inputs": []}]
    changed = [{**record, **change} for change in changes]
    texts = [(json.dumps(each), kept[answers]) for each in changed]
    for run_text, answers_text in [*texts, (kept["run.json"], kept[answers] + " ")]:
        (tmp_path / "run.json").write_text(run_text)
        (tmp_path / answers).write_text(answers_text)
        refused(r"was changed since the run|a table of inputs", read_runs, [tmp_path])


def test_a_sweep_is_read_and_refused_when_changed(tmp_path):
    study = tmp_path / "study.yaml"
    study.write_text("command: topology\ngrid: {cluster: [trn2.48xlarge, dgx-h100]}\n")
    out = tmp_path / "sweep"
    assert run(["sweep", str(study), "--out", str(out), "--quiet", "--workers", "1"]) == 0
    _, sweeps = read_runs([out])
    assert len(sweeps["sweep"]) == 2
    (out / "results.csv").write_text("a\n1\n")
    refused(r"results\.csv was changed since the run", read_runs, [out])


def test_a_forged_run_of_another_form_is_refused_in_one_line(folders, tmp_path):
    record = json.loads((folders[0] / "run.json").read_text())
    results = json.loads((folders[0] / "results.json").read_text())
    for name in ("plan", "interval", "breakdown_s", "model"):
        text = json.dumps({key: value for key, value in results.items() if key != name})
        (tmp_path / "results.json").write_text(text)
        record["files"]["results.json"] = hashlib.sha256(text.encode()).hexdigest()
        (tmp_path / "run.json").write_text(json.dumps(record))
        refused(f"cannot be read .KeyError: '{name}'", read_runs, [tmp_path])


@WITH_PANEL
@pytest.mark.filterwarnings("ignore")
def test_the_page_has_a_slider_for_each_number(runs):
    from param import edit_constant

    from experiments.explore.page import page

    left, right = page(runs, {}, lambda: ["trn2.link_bandwidth"], shipped_catalogue())
    *boxes, controls = left[1:]

    _, slider, _, back = controls
    assert slider.name == "trn2.link_bandwidth ×"
    assert len(right) == 1
    with edit_constant(slider):
        slider.param.update(value=0.5, value_throttled=0.5)
    assert right[0].object()[0].object["change"].tolist()[1] != "+0.0%"
    back.clicks += 1
    assert slider.value == slider.value_throttled == 1.0
    cluster = next(box for box in boxes if box.name == "--cluster")
    cluster.value = "trn2.48xlarge:2"
    assert right[0].object()[0].object["change"].tolist()[1] != "+0.0%"
    cluster.value = "<nowhere>"
    assert "unknown cluster &#x27;&lt;nowhere&gt;" in right[0].object().object


@WITH_PANEL
@pytest.mark.filterwarnings("ignore")
def test_names_from_files_are_text(runs):
    from experiments.explore.page import page

    hostile = "<img src=x onerror=alert(1)>"
    frame = pd.DataFrame({hostile: ["=1+1"]})
    renamed = [replace(each, name="a$x_{$") for each in runs]
    _, right = page(renamed, {hostile: frame}, list, shipped_catalogue())
    title, table = right[-1]
    assert hostile not in title.object
    assert "&lt;img" in title.object
    assert list(table.value.columns) == ["&lt;img src=x onerror=alert(1)&gt;"]
    for figure in pictures(renamed, [each.recorded for each in renamed]):
        figure.savefig(io.BytesIO())


@WITH_PANEL
def test_the_page_answers_its_own_names_alone(folders):
    """A foreign Host, a foreign Origin and paths out of the packages reach nothing."""
    with explorer([folders[1]], knobs=1) as port:
        host = f"localhost:{port}"
        socket_words = {"Connection": "Upgrade", "Upgrade": "websocket"}
        socket_words |= {"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "a" * 22 + "=="}
        assert status(port, "/", {"Host": "evil.example"}) == 404
        assert status(port, "/", {"Host": f"{host}.evil.example"}) == 404
        assert status(port, "/ws", {"Host": f"evil.example:{port}", **socket_words}) == 404
        origin = {"Host": host, "Origin": "http://evil.example", **socket_words}
        assert status(port, "/ws", origin) == 403
        for path in ("/../../etc/passwd", "/static/../../../../../../etc/passwd",
                     "/static//etc/passwd", "/static/%2e%2e/%2e%2e/%2e%2e/etc/passwd"):  # fmt: skip
            assert status(port, path, {"Host": host}) in (403, 404)
        with ThreadPoolExecutor(2) as clients:  # at once
            answers = clients.map(lambda _: status(port, "/", {"Host": host}), range(2))
            assert list(answers) == [200, 200]


def status(port, path, headers):
    """Ask the server and return the status of its answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse().status
    connection.close()
    return answer


SHADOWS = """
function below(root) {
    const inside = [...root.querySelectorAll("*")];
    return [...inside, ...inside.flatMap(node => node.shadowRoot ? below(node.shadowRoot) : [])];
}
"""
"""All elements of a page, also those inside the components of Bokeh."""
TEXT = "below(document).filter(node => !node.children.length).map(n => n.textContent).join(' ')"
HANDLES = "below(document).filter(node => node.matches('.noUi-handle'))"


async def move_a_slider(address, profile):
    """Move the first slider by one step, wait for another answer, and try a phone's width."""
    async with live_page(address, profile) as page:
        await page.until("document.title == 'cluster-sim explore'")
        await page.evaluate(SHADOWS)
        await page.until(f"{TEXT}.includes('+0.0%') && {HANDLES}.length == 2")
        await page.evaluate(f"{HANDLES}[0].focus()")
        await page.press("ArrowRight")
        await page.until(f"{TEXT}.includes('× 1.05')")
        await page.until(rf"/[+-]\d+\.[1-9]%/.test({TEXT})")
        for width, mobile in ((390, True), (1280, False)):
            size = {"width": width, "height": 2000, "deviceScaleFactor": 1, "mobile": mobile}
            await page.command("Emulation.setDeviceMetricsOverride", **size)
            await page.until(f"document.documentElement.scrollWidth <= {width}")
        return page.complaints


@pytest.mark.slow
@WITH_PANEL
@pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)
def test_a_browser_moves_a_slider_and_sees_another_answer(folders, tmp_path):
    with explorer(folders, knobs=2) as port:
        complaints = asyncio.run(move_a_slider(f"http://127.0.0.1:{port}", tmp_path / "profile"))
    assert complaints == []


@contextlib.contextmanager
def explorer(folders, knobs):
    """Serve the page of some runs in a process of its own; the port."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    words = ["explore", *map(str, folders), f"--knobs={knobs}", "--quiet", f"--port={port}"]
    server = subprocess.Popen([sys.executable, "-m", "cluster_sim", *words])
    try:
        wait_for_server(port)
        yield port
    finally:
        server.terminate()
        server.wait(10)


def wait_for_server(port):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.1)
    raise AssertionError(f"nothing listens on {port}")


def test_a_port_in_use_is_refused_with_the_option_that_changes_it():
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        port = other.getsockname()[1]
        refused(f"port {port} cannot be used.*--port", check_free, port)
    check_free(port)
