"""Experiments that compare steps and collectives, at toy size: rows, figures and titles."""

import pandas as pd
import pytest

from cluster_sim.collectives import rows, whole
from experiments.scripts import collectives, generations, scaling, training
from experiments.scripts.support import Replica, Steps, with_collective_ends
from tests.support.small_models import TOY_CONFIG, config_file
from topologies.clusters.names import cluster
from topologies.support.errors import InputError
from workloads.confidence.answers import collective_interval
from workloads.models.huggingface import named
from workloads.training.iteration import iteration
from workloads.training.usual_plan import complete

SERVER = "trn2.48xlarge"
DENSE = {**TOY_CONFIG, "num_hidden_layers": 8, "num_attention_heads": 16}
MIXTURE = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}


@pytest.fixture
def config(tmp_path):
    return config_file(tmp_path / "config.json", DENSE)


def scaled(frame):
    assert set(frame.chips) == {16, 32}
    assert (frame.global_batch == 32).all()
    for _, steps in frame.groupby(["overlap", "jitter"], sort=False):
        assert steps.efficiency.iloc[0] == 1 > steps.efficiency.iloc[1] > 0
    uneven, even = (frame[frame.jitter == kind].iteration_s.to_numpy() for kind in ("typical", "0"))
    assert (uneven > even).all()
    drawn = scaling.draw_strong_scaling(frame).axes[0].get_lines()
    assert max(max(line.get_ydata()) for line in drawn) == pytest.approx(100)
    kept = frame[frame.chips == 32].efficiency
    return f"each is {kept.min():.0%} to {kept.max():.0%} as fast as on 16"


def disturbed(frame):
    *kinds, straggler = frame.case
    assert kinds == ["equal", "typical", "chips", "0.05"]
    assert straggler == "rank 0 takes 1.5 times as long"
    assert (frame[frame.case != "equal"].slowdown > 0).all()
    drawn = frame[frame.case.isin(("typical", "chips"))]
    assert (drawn.iteration_s <= drawn.p90_s).all()
    assert (drawn.p90_s <= drawn.p99_s).all()
    return f"(typical) make a step {drawn.slowdown.iloc[0]:.1%} longer on 32 chips"


def placed(frame):
    """A group of all chips cannot be placed apart."""
    pairs = frame.pivot_table(index="tp", columns="placement", values="iteration_s")
    assert pairs.loc[16, "neighbours"] == pytest.approx(pairs.loc[16, "apart"])
    assert (pairs.loc[2] != pairs.loc[2, "apart"]).any()
    return "is the fastest that fits"


def faster_z(frame):
    assert (frame[frame.z == 1].gain == 0).all()
    assert (frame[frame.z == 2].gain > 0).all()
    (line,) = collectives.draw_half_rate_z(frame).axes[0].get_lines()
    assert line.get_xdata().tolist() == [1, 4]  # MiB
    return "saves time: all-to-all"


def offloaded(frame):
    assert frame.slower.tolist()[0] == 0 < frame.slower.tolist()[1]
    return "make a step"


def overlapped(frame):
    assert frame["overlap"].tolist() == ["none", "dp", "all"]
    assert frame["iteration_s"].is_monotonic_decreasing
    return ""


@pytest.mark.parametrize(("script", "name", "options", "check"), [
    (training, "step_time_breakdown",
     {"cluster": SERVER, "tp": (4,), "pp": (2,), "global_batch": 16, "seq": 512}, overlapped),
    (scaling, "strong_scaling",
     {"domains": (1, 2, 64), "replica": Replica(tp=2, pp=2, microbatches=8, seq=512)}, scaled),
    (scaling, "stragglers_and_jitter",
     {"domains": (2,), "cases": ("typical", "chips", "0.05", "0:1.5"),
      "replica": Replica(tp=2, microbatches=2, seq=512)}, disturbed),
    (training, "tp_on_torus", {"tp": (2, 4, 16), "global_batch": 16, "seq": 512}, placed),
    (training, "collective_offload",
     {"tp": (4,), "shares": (0.0, 0.5), "global_batch": 8, "seq": 65536}, offloaded),
    (collectives, "half_rate_z", {"ops": ("all-to-all",), "sizes": "1MiB:4MiB:4"}, faster_z),
])  # fmt: skip
def test_an_experiment_answers_its_question(script, name, options, check, config):
    if script is not collectives:
        first = {"models": (config,)} if "cluster" in options else {"model": config}
        where = "machine" if script is scaling else "cluster"
        options = {where: SERVER, **first, **options}
    frame = getattr(script, name)(**options)
    figure = getattr(script, f"draw_{name}")(frame)
    assert figure.axes
    assert check(frame) in (figure.get_suptitle() or figure.axes[0].get_title(loc="left"))


@pytest.mark.slow
def test_schedules_idle_less_with_more_microbatches(config):
    frame = training.pipeline_schedules(config, SERVER, tp=2, pp=4, microbatches=(4, 8), seq=512)
    share = frame.pivot_table(index="schedule", columns="microbatches", values="bubble_share")
    assert (share[4] > share[8]).all()
    title = training.draw_pipeline_schedules(frame).get_suptitle()
    assert "idles" in title
    assert "with 4 microbatches" in title


def test_experts_on_machines_of_equal_ranks(tmp_path):
    config = config_file(tmp_path / "config.json", {**TOY_CONFIG, **MIXTURE})
    shape = {"tp": 2, "pp": 1, "ep": (1, 4), "global_batch": 16, "seq": 512}
    frame = training.moe_on_torus_and_switch(config, (SERVER, "dgx-h100:2"), **shape)
    assert frame.ep.tolist() == [1, 4, 1, 4]
    assert (frame[frame.ep == 4].exposed_ep_s > 0).all()
    assert "Exposed exchange" in training.draw_moe_on_torus_and_switch(frame).get_suptitle()
    with pytest.raises(InputError, match="clusters of different sizes"):
        training.moe_on_torus_and_switch(config, (SERVER, "dgx-h100"))


@pytest.mark.slow
def test_generations_stand_beside_their_vendors_claims(config):
    where = ("trn1.32xlarge", SERVER, "p5en.48xlarge:2")
    frame = generations.generations(config, where, global_batch=32, seq=512, finalists=1)
    assert frame.tokens_per_usd.notna().all()
    # Trn1 is 9.532 USD an hour by Capacity Block, and 21.50 on demand, its default.
    assert set(frame.price) == {"by Capacity Block"}
    first = frame.iloc[0]
    assert first.tokens_per_usd == pytest.approx(first.tokens_per_s_per_chip / 9.532 * 16 * 3600)
    beside = generations.claims(frame).set_index("claim")
    per_dollar = beside.loc["trn2 over h200, tokens a dollar"]
    assert per_dollar.ours == pytest.approx(per_dollar.faster / per_dollar.dearer)
    # A chip-hour of a Trn2 Capacity Block is 16 chips for 35.76 USD, of a P5en one 8 for 63.16.
    assert per_dollar.dearer == pytest.approx(35.76 / 16 / (63.16 / 8))
    verdicts = beside.verdict
    assert verdicts["trn3 over trn2, tokens a joule (chips)"] == "not known"
    assert beside.per["trn3 over trn2, tokens a joule (chips)"] == "power"
    assert " x the price): " in generations.verdicts(frame)[0]
    assert set(frame.precision) == {"bf16", "fp8"}
    assert frame.groupby("cluster").best.sum().eq(1).all()
    assert verdicts[beside.index.str.startswith("trn2, use of")].tolist() == ["ours is higher"]
    words = ("agrees", "ours is lower", "ours is higher")
    assert verdicts["trn2 over trn1, tokens a second"] in words
    figure = generations.draw_generations(frame)
    assert len(figure.axes) == 3
    assert figure.get_suptitle().startswith("Most tokens per second per chip: ")
    assert not any(tick.get_text().endswith("*") for tick in figure.axes[0].get_yticklabels())
    guessed = generations.draw_generations(frame.assign(kernels="assumed"))
    assert all(tick.get_text().endswith("*") for tick in guessed.axes[0].get_yticklabels())
    assert guessed.get_supxlabel().startswith("* a chip that is not built")
    otherwise = generations.draw_generations(frame.assign(price="on demand"))
    assert otherwise.axes[2].texts[0].get_text() == " 1.00 on demand"
    assert "per dollar" not in otherwise.get_suptitle()


def test_a_claim_of_one_chip_is_judged_by_itself():
    """Of 16,384 cubed on Trn3 a core reaches 0.84 of its rate alone, and 0.93 of that in a job."""
    rates = dict.fromkeys(("tokens_per_s_per_chip", "tokens_per_joule", "tokens_per_usd"), 1.0)
    row = {"chip": "trn3", "cluster": "trn3-gen1", "precision": "fp8", "best": True, **rates}
    beside = generations.claims(pd.DataFrame([row]))
    of_one = beside[beside.claim.str.contains("tensor engines")]
    assert of_one.verdict.tolist() == ["not known", "agrees"]
    alone = 2 * 16_384**3 / 0.016641 / 630e12  # one logical core, trainium2_kernels
    assert of_one.ours.iloc[1] == pytest.approx(0.93 * alone, rel=0.01)
    assert set(beside.verdict) == {"not known", "agrees"}  # no ratio without its other chip


def test_a_claim_that_the_catalogue_took_over_confirms_nothing():
    rates = dict.fromkeys(("tokens_per_s_per_chip", "tokens_per_joule", "tokens_per_usd"), 1.0)
    pair = [
        {"chip": chip, "cluster": where, "precision": "fp8", "best": True, **rates}
        for chip, where in (("trn3", "trn3-gen1"), ("trn4", "trn4-ultraserver"))
    ]
    beside = generations.claims(pd.DataFrame(pair)).set_index("claim")
    taken = beside[beside.index.str.startswith("trn4 over trn3")]
    assert taken.ours.tolist() == pytest.approx([6, 3, 4])
    assert set(taken.verdict) == {"taken as claimed"}


def test_verdicts_leave_a_margin():
    verdicts = [generations.verdict(ours, 1.3, 1.4) for ours in (1.0, 1.2, 1.35, 1.6, 1.7)]
    assert verdicts == ["ours is lower", "agrees", "agrees", "agrees", "ours is higher"]


def test_an_all_to_all_of_64_chips_runs_twice_as_fast_over_switches():
    how = {"ops": ("all-to-all",), "sizes": "4MiB", "ideal": True}
    frame = collectives.torus_vs_neuronswitch(clusters=("trn2-ultraserver", "trn3-gen1"), **how)
    rate = frame.set_index("cluster").busbw_bytes_per_s
    assert 1.9 < rate["trn3-gen1"] / rate["trn2-ultraserver"] < 2.1
    assert (frame.share <= 1).all()
    assert (frame.time_s >= frame.lower_bound_s).all()
    torus = frame.set_index("cluster").injection_bytes_per_s["trn2-ultraserver"]
    assert torus == 4 * 128_000_000_000 + 2 * 64_000_000_000


def test_the_pick_is_ringed_and_every_algorithm_is_in_the_legend_once():
    frame = collectives.algorithm_switch_points(clusters=("trn2.48xlarge",), sizes="1KiB:64KiB:64")
    figure = collectives.draw_algorithm_switch_points(frame)
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert sorted(names) == sorted([*frame.algorithm.unique(), "auto picks"])


def test_rows_for_every_algorithm_and_a_figure():
    frame = collectives.busbw_vs_size(op="all-to-all", sizes="1KiB:1MiB:32", ideal=True)
    assert set(frame.algorithm) == {"torus", "per-axis", "direct", "dimension-ordered"}
    assert (frame.time_s >= frame.lower_bound_s).all()
    (axes,) = collectives.draw_busbw_vs_size(frame).axes
    assert {line.get_label() for line in axes.lines} >= {"direct", "dimension-ordered"}
    assert axes.get_ylabel() == "bus bandwidth [GB/s]"


PLAN = {"tp": 4, "dp": 2, "global_batch": 8, "seq": 2048}


def test_rows_of_steps_have_the_interval_of_the_step(other_plans):
    model, machine = named("llama-3.1-8b"), cluster("dgx-h100")
    row = Steps(model, machine).row(PLAN)
    ends = iteration(model, machine, complete(PLAN, model, machine)).interval
    assert (row["low_s"], row["high_s"]) == pytest.approx((ends.low, ends.high), rel=1e-6)
    assert row["low_s"] < row["iteration_s"] < row["high_s"]


@pytest.mark.parametrize("ideal", [False, True])
def test_rows_of_collectives_have_the_interval_of_the_collective(ideal):
    machine = cluster("trn2.48xlarge")
    table = rows("all-reduce", whole(machine), [2**16, 2**26], "ring", ideal=ideal)
    for row in with_collective_ends(table, machine, ideal=ideal).to_dict("records"):
        sides = (row["ranks"], row["size_bytes"], row["time_s"])
        ends = collective_interval(machine, *sides, ideal=ideal)
        assert (row["low_s"], row["high_s"]) == (ends.low, ends.high)
        assert (row["low_s"] < row["time_s"] < row["high_s"]) is not ideal
