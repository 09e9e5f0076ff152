"""Every notebook runs, with toy parameters where it has a cell for them."""

import re
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.utils import run_sync
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell

from tests.support.small_models import TOY_CONFIG, config_file

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
OURS = re.compile(r"\b(cluster_sim|topologies|workloads|experiments)\b")

TOY = {
    "03_a_training_step": """
model_name = {config!r}
machine = "trn2.48xlarge"
degrees = {{"tp": 4, "pp": 2, "dp": 2}}
batch = {{"global_batch": 8, "seq": 512}}
""",
    "04_rainier": """
model_name = {config!r}
sizes = (64, 1024)
degrees = {{"tp": 4, "pp": 1}}
each = {{"seq": 512}}
""",
    "05_the_fleet": """
machine, model_name, demand, days = "trn2-ultraserver:2", {config!r}, "azure-code", 0.25
""",
    "06_how_true": """
table = "megatron_sc21"
""",
}
"""What stands in for the cell tagged ``parameters``."""


def toy(notebook, name, folder):
    config = config_file(folder / "config.json", TOY_CONFIG)
    for cell in notebook.cells:
        if name in TOY and "parameters" in cell.metadata.get("tags", []):
            cell.source = TOY[name].format(config=config)
    return notebook


@pytest.fixture(scope="module")
def kernel():
    """A kernel for all notebooks, so that the libraries are imported only for the first."""
    manager = AsyncKernelManager(kernel_name="python3")
    yield manager
    run_sync(manager.shutdown_kernel)(now=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", [
    pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem[:2] > "03" else [])
    for path in NOTEBOOKS
])  # fmt: skip
def test_notebook_runs(path, kernel, tmp_path):
    notebook = toy(nbformat.read(path, as_version=4), path.stem, tmp_path)
    nbformat.validate(notebook)
    # No notebook sees the names of an earlier one.
    notebook.cells.insert(0, new_code_cell("%reset -f"))
    place = {"metadata": {"path": str(ROOT)}}
    client = NotebookClient(notebook, kernel, timeout=120, resources=place)
    try:
        done = client.execute()
    finally:
        client.kc.stop_channels()
    outputs = [out for cell in done.cells for out in cell.get("outputs", [])]
    assert [out for out in outputs if out.output_type == "error"] == []
    assert sum("image/png" in out.get("data", {}) for out in outputs) >= 1


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_kept_and_names_are_those_of_the_front_door(path):
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert any(cell.outputs for cell in cells)
    imported = {
        line for cell in cells for line in cell.source.splitlines()
        if line.startswith(("import ", "from ")) and OURS.search(line)
    }  # fmt: skip
    assert imported == {"import cluster_sim as cs"}
