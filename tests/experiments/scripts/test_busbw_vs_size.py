"""The experiment on bus bandwidth against size, at toy size."""

from experiments.scripts.busbw_vs_size import plot, run


def test_rows_for_every_algorithm_and_a_figure():
    frame = run(op="all-to-all", sizes="1KiB:1MiB:32", ideal=True)
    assert set(frame.algorithm) == {"torus", "per-axis", "direct", "dimension-ordered"}
    assert (frame.time_s >= frame.lower_bound_s).all()
    figure = plot(frame)
    (axes,) = figure.axes
    assert {line.get_label() for line in axes.lines} >= {"direct", "dimension-ordered"}
    assert axes.get_ylabel() == "bus bandwidth [GB/s]"
