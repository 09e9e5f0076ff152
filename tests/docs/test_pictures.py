"""Pictures of the gallery are small, carry their finding, and are compared pixel by pixel."""

import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import Image

from experiments.scripts.registry import EXPERIMENTS
from tests.docs import pictures
from tests.docs.rerun import ROOT
from tools import gallery
from tools.gallery import DOCS, MOST_BYTES, PICTURES, page
from topologies.errors import InputError


def _figure(height: float) -> Figure:
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
    with pytest.raises(InputError, match="no picture is called zebra"):
        gallery.main(["zebra"], tmp_path)


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
    assert (docs / "gallery.md").read_text(encoding="utf-8") == page(docs)
