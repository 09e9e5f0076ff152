"""The experiments on collectives at toy sizes: their tables, and what their figures show."""

from __future__ import annotations

from experiments.scripts import collectives


def test_an_all_to_all_of_64_chips_runs_twice_as_fast_over_switches():
    frame = collectives.torus_vs_neuronswitch(
        clusters=("trn2-ultraserver", "trn3-gen1"), ops=("all-to-all",), sizes="4MiB", ideal=True
    )
    rate = frame.set_index("cluster").busbw_bytes_per_s
    assert 1.9 < rate["trn3-gen1"] / rate["trn2-ultraserver"] < 2.1
    assert (frame.share <= 1).all()
    assert (frame.time_s >= frame.lower_bound_s).all()
    torus = frame.set_index("cluster").injection_bytes_per_s["trn2-ultraserver"]
    assert torus == 4 * 128_000_000_000 + 2 * 64_000_000_000


def test_a_panel_for_each_collective():
    frame = collectives.torus_vs_neuronswitch(clusters=("trn2.48xlarge",), sizes="1KiB:64KiB:64")
    figure = collectives.draw_torus_vs_neuronswitch(frame)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["all-to-all", "all-reduce"]
    labels = [line.get_label() for line in figure.axes[0].lines]
    assert "trn2.48xlarge, 16 chips" in labels


def test_one_algorithm_a_size_is_picked_and_none_beats_the_fastest():
    frame = collectives.algorithm_switch_points(clusters=("trn2.48xlarge",), sizes="1KiB:4MiB:64")
    by_size = frame.groupby("size_bytes")
    assert by_size.picked.sum().tolist() == [1, 1, 1]
    assert (by_size.slowdown.min() == 1).all()
    assert (frame.fastest == (frame.slowdown == 1)).all()
    picked = frame[frame.picked].set_index("size_bytes").algorithm
    assert picked[1024] == "single-step-mesh"
    assert picked[4 * 2**20] == "rdh"


def test_the_pick_is_ringed_and_every_algorithm_is_in_the_legend_once():
    frame = collectives.algorithm_switch_points(clusters=("trn2.48xlarge",), sizes="1KiB:64KiB:64")
    figure = collectives.draw_algorithm_switch_points(frame)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert sorted(names) == sorted([*frame.algorithm.unique(), "auto picks"])


def test_rows_for_every_algorithm_and_a_figure():
    frame = collectives.busbw_vs_size(op="all-to-all", sizes="1KiB:1MiB:32", ideal=True)
    assert set(frame.algorithm) == {"torus", "per-axis", "direct", "dimension-ordered"}
    assert (frame.time_s >= frame.lower_bound_s).all()
    figure = collectives.draw_busbw_vs_size(frame)
    (axes,) = figure.axes
    assert {line.get_label() for line in axes.lines} >= {"direct", "dimension-ordered"}
    assert axes.get_ylabel() == "bus bandwidth [GB/s]"
