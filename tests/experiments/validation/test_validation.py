"""Validation: reading foreign rows, errors, summaries, shipped tables and predictors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.figures.validation import scatter
from experiments.validation import long_steps, training
from experiments.validation.baseline import baseline, training_work, wire_bytes
from experiments.validation.collectives import predict as predict_collective
from experiments.validation.compare import compare, condensed, error, summary
from experiments.validation.kernels import predict as predict_kernel
from experiments.validation.layers import length_s
from experiments.validation.machines import machines_for
from experiments.validation.outcome import Outcome, infeasible, unsupported
from experiments.validation.predictors import predictor
from experiments.validation.recipes import recipe, recipes
from experiments.validation.row_defaults import filled
from experiments.validation.rows import read_file, read_text
from experiments.validation.tables import misses, table, tables
from experiments.validation.training import fitting, model_of, plan_of
from experiments.validation.validate import validate
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster
from topologies.errors import InputError
from workloads.training.iteration import iteration
from workloads.training.layers.steps import CC, ENGINE, PREVIOUS, LayerOp

COLLECTIVES = "collective,cluster,chips,size_bytes,time_s,mine\n"
TRAINING = "name,cluster,chips,layers,hidden,heads,seq,tp,pp,dp,global_batch,iteration_s\n"


def rows_of(text):
    return read_text(text, "mine.csv")


# Reading


def test_kinds_are_told_by_their_columns():
    assert rows_of(COLLECTIVES).kind.name == "collective"
    assert rows_of(TRAINING).kind.name == "training"
    assert rows_of("kernel,chip,m,n,k,kernel_s\n").kind.name == "kernel"
    serving = "model,cluster,chips,tp,prompt_tokens,output_tokens,concurrency,tpot_s\n"
    assert rows_of(serving).kind.name == "serving"


def test_a_file_of_no_known_kind_says_what_the_nearest_lacks():
    with pytest.raises(InputError, match=r"mine.csv line 1: .*collective file also needs size_"):
        rows_of("collective,cluster,chips,sizebytes\n")


def test_bad_cells_are_named_with_column_value_and_remedy_and_the_row_stays():
    read = rows_of(COLLECTIVES + "all-reduce,dgx-h100,eight,1024,1e-5,x\n,dgx-h100,8,1.5,-1,x\n")
    assert len(read) == 2
    assert read.rows[0].mistakes == ("chips 'eight' is not a number. Write digits only.",)
    assert read.rows[1].mistakes == (
        "collective is empty. State it.",
        "size_bytes '1.5' is not a whole number. Write it as digits.",
        "time_s '-1' is not above 0 and finite. State it in SI units.",
    )


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        ("selectve", "is none of none, selective, full. Did you mean selective?"),
        ("x" * 2000, "over 1000 characters"),
    ],
)
def test_a_choice_must_be_one_of_its_words(cell, why):
    read = rows_of(TRAINING.strip() + ",recompute\nm,dgx-h100,8,2,64,2,64,1,1,8,8,1.0," + cell)
    assert why in read.rows[0].mistakes[0]


def test_short_and_long_rows_are_mistakes_not_shifts():
    read = rows_of(COLLECTIVES + "all-reduce,dgx-h100,8\n")
    assert "3 cells, the header names 6" in read.rows[0].mistakes[0]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b"\xff\xfe\x00a", "not UTF-8"),
        (b"a,a\n", "stands twice"),
        (b"a,b\n1,2\n", "no known kind"),
        (b'collective,"x\n' + b"y" * 200_000, "not CSV"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path, content, why):
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=why) as refused:
        read_file(path)
    assert "\n" not in str(refused.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_file(tmp_path / "none.csv")


@given(st.text(max_size=200))
def test_no_text_breaks_the_reader(text):
    try:
        read = rows_of(COLLECTIVES + text)
    except InputError:
        return
    compare(read, lambda values: Outcome({"time_s": 1.0}))


# Errors and summaries


def test_errors_and_their_summary_are_exact():
    text = COLLECTIVES + "".join(f"all-reduce,dgx-h100,8,1024,{t},x\n" for t in (1, 2, 4, 8))
    answers = iter([Outcome({"time_s": v}) for v in (1.1, 2.0, 3.0)] + [infeasible("too big")])
    compared = compare(rows_of(text), lambda values: next(answers))
    assert [row["error"] for row in compared] == pytest.approx([0.1, 0.0, -0.25, None])
    numbers = summary(compared)
    counts = (numbers["rows"], numbers["ok"], numbers["unsupported"], numbers["infeasible"])
    assert counts == (4, 3, 0, 1)
    assert numbers["median_abs_error"] == pytest.approx(0.1)
    assert numbers["mean_abs_error"] == pytest.approx(0.35 / 3)
    assert numbers["p90_abs_error"] == pytest.approx(np.quantile([0.1, 0, 0.25], 0.9))
    assert numbers["bias"] == pytest.approx(-0.05)
    assert numbers["kendall_tau"] == pytest.approx(1.0)


def test_other_columns_are_carried_through_unchanged():
    compared = compare(
        rows_of(COLLECTIVES + "all-reduce,dgx-h100,8,1024,1e-5, 007 é\n"),
        lambda values: Outcome({"time_s": 1e-5}),
    )
    assert compared[0]["mine"] == " 007 é"
    assert compared[0]["chips"] == 8
    assert compared[0]["size_bytes"] == 1024


def test_mistakes_of_rows_and_of_models_are_reported_by_line():
    def fails(values):
        if values["chips"] == 4:
            raise InputError("4 chips are too few. Use 8.")
        raise ZeroDivisionError("oops")

    read = rows_of(
        COLLECTIVES + "all-reduce,dgx-h100,4,1,1,\nall-reduce,dgx-h100,8,1,1,\n,dgx-h100,8,1,1,\n"
    )
    why = [row["why"] for row in compare(read, fails)]
    assert why[0] == "line 2: 4 chips are too few. Use 8."
    assert "line 3: internal fault, ZeroDivisionError" in why[1]
    assert why[2] == "line 4: collective is empty. State it."


def test_of_several_published_values_the_first_counts_and_the_others_stand_beside():
    text = "model,cluster,prompt_tokens,output_tokens,ttft_s,tpot_s\nm,dgx-h100,10,10,2.0,0.1\n"
    outcome = Outcome({"ttft_s": 3.0, "tpot_s": 0.11})
    row = compare(rows_of(text), lambda values: outcome)[0]
    assert row["quantity"] == "tpot_s"
    assert row["error"] == pytest.approx(0.1)
    assert row["error_ttft_s"] == pytest.approx(0.5)


def test_a_row_without_a_measurement_is_predicted_without_an_error():
    read = rows_of("collective,cluster,chips,size_bytes\nall-reduce,dgx-h100,8,1024\n")
    row = compare(read, predict_collective)[0]
    assert row["predicted"] > 0
    assert row["published"] is None
    assert row["error"] is None


def test_small_pieces():
    assert error(None, 1.0) is None
    assert error(float("inf"), 1.0) is None
    assert condensed(np.empty(0))["bias"] is None
    assert unsupported("a\n b").why == "a b"


# The constant predictor


def test_the_constant_predictor_is_right_at_the_median_of_its_own_table():
    text = COLLECTIVES + "".join(
        f"all-gather,dgx-h100,8,{8 * 2**20},{t},\n" for t in (1.0, 2.0, 4.0)
    )
    read = rows_of(text)
    compared = compare(read, lambda values: Outcome({"time_s": 1.0}))
    errors = baseline(read, compared)
    assert errors["median_abs_error"] == pytest.approx(0.5)
    assert errors["bias"] == pytest.approx((1.0 + 0.0 - 0.5) / 3)


def test_work_is_counted_as_published():
    dense = {"layers": 96, "hidden": 12288, "heads": 96, "seq": 2048, "vocab": 51200}
    values = {**dense, "gated_mlp": 0, "global_batch": 1536, "chips": 1024}
    narayanan = 72 * 1536 * 2048 * 96 * 12288**2 / 1024
    assert training_work(values) == pytest.approx(narayanan * 1.05, rel=0.03)
    experts = {**values, "experts": 8, "experts_per_token": 2, "moe_ffn": 49152}
    assert training_work(experts) > 1.5 * training_work(values)
    ring = {"collective": "all-reduce", "ranks": 8, "size_bytes": 800}
    assert wire_bytes(ring) == 1400


# Shipped tables


@pytest.mark.parametrize("name", list(tables()))
def test_every_shipped_table_is_whole_and_credited(name):
    one = table(name)
    read = one.rows()
    assert len(read) > 5
    assert one.licence
    assert one.credit
    assert 0 < one.median_tolerance <= one.p90_tolerance
    wrong = [why for row in read.rows for why in row.mistakes if "is empty" not in why]
    assert not wrong
    assert sum(not row.mistakes for row in read.rows) > 0.8 * len(read)
    assert all(row.cells.get("source") for row in read.rows)


def test_an_unknown_table_is_refused_with_the_list():
    with pytest.raises(InputError, match=r"Did you mean mlperf\?"):
        table("mlperv")


def test_a_table_outside_its_tolerance_says_by_how_much():
    one = table("mlperf")
    inside = {"median_abs_error": 0.01, "p90_abs_error": 0.02}
    assert misses(one, inside) == ""
    assert "p90_abs_error 90.0% is over" in misses(one, {**inside, "p90_abs_error": 0.9})
    assert "no row" in misses(one, {"median_abs_error": None, "p90_abs_error": None})


@pytest.mark.parametrize(
    ("name", "median", "p90"),
    [
        ("vidur_gemm", 0.10, 0.25),
        ("attention", 0.05, 0.12),
        ("nccl_aic", 0.08, 0.25),
    ],
)
def test_tables_that_the_kernels_and_collectives_must_meet(name, median, p90):
    result = validate(table(name).rows(), name)
    assert result.summary["ok"] == result.summary["rows"]
    assert result.summary["median_abs_error"] < median
    assert result.summary["p90_abs_error"] < p90
    assert result.summary["kendall_tau"] > 0.9


def test_large_messages_are_met_within_five_percent():
    result = validate(table("nccl_aic").rows(), "nccl_aic")
    large = [abs(row["error"]) for row in result.rows if row["size_bytes"] >= 2**22]
    small = [abs(row["error"]) for row in result.rows if row["size_bytes"] < 2**16]
    assert np.median(large) < 0.05
    assert np.quantile(large, 0.9) < 0.15
    assert np.median(small) < 0.20
    assert result.baseline["median_abs_error"] > 2 * result.summary["median_abs_error"]


# Training rows


def row(**cells):
    names = TRAINING.strip().split(",")
    plain = dict.fromkeys(names, "") | {
        "name": "toy",
        "cluster": "dgx-a100",
        "chips": 8,
        "layers": 4,
        "hidden": 1024,
        "heads": 16,
        "seq": 1024,
        "iteration_s": 1.0,
    }
    merged = plain | cells
    text = ",".join(merged) + "\n" + ",".join(str(value) for value in merged.values())
    return rows_of(text).rows[0].values


def test_empty_cells_take_what_is_usual_and_are_counted():
    stated = filled(row(tp=2))
    assert stated.values["dp"] == 4
    assert stated.values["ffn"] == 2816
    assert stated.values["kv_heads"] == 16
    assert {"dp", "ffn", "pp", "schedule"} <= set(stated.assumed)
    assert "tp" not in stated.assumed
    with pytest.raises(InputError, match="not a multiple of tp 3"):
        filled(row(tp=3))


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({"heads": 25, "hidden": 1600, "tp": 2}, {"heads": 26, "kv_heads": 26, "head_dim": 64}),
        ({"heads": 40, "kv_heads": 10, "tp": 8}, {"kv_heads": 8}),
        ({"heads": 18, "kv_heads": 10, "tp": 8}, {"heads": 24, "kv_heads": 8}),
        ({"ffn": 1365, "tp": 2}, {"ffn": 1366}),
        ({"seq": 1001, "tp": 2}, {"seq": 1001, "sequence_parallel": 0}),
        ({"seq": 1001, "cp": 2}, {"seq": 1004}),
        ({"experts": 60, "moe_ffn": 255, "ep": 8}, {"experts": 64, "ffn": 255}),
        ({"experts": 8, "tp": 2, "ep": 4, "dp": 1}, {"dp": 4}),
        ({"tp": 2, "cp": 2, "dp": 4}, {"dp": 2}),
        ({"dp": 8, "global_batch": 100, "microbatch": 4}, {"global_batch": 96, "microbatch": 4}),
        ({"dp": 8, "global_batch": 32, "microbatch": 64}, {"global_batch": 32, "microbatch": 4}),
        ({"dp": 8, "global_batch": 4}, {"global_batch": 8, "microbatch": 1}),
        ({"vpp": 2}, {"vpp": 1, "schedule": "1f1b"}),
        ({"pp": 2, "vpp": 2, "schedule": "zero-bubble"}, {"vpp": 1}),
        ({"pp": 2, "global_batch": 4}, {"vpp": 1, "schedule": "1f1b"}),
        ({"ffn": 4096}, {"gated_mlp": 0}),
        ({"ffn": 4096, "kv_heads": 4}, {"gated_mlp": 1}),
        ({"kv_heads": 4}, {"ffn": 3584, "gated_mlp": 1}),
        ({"gated_mlp": 0, "cluster": "dgx-a100"}, {"ffn": 4096, "overlap": "none"}),
        ({"gated_mlp": 0, "cluster": "dgx-h100"}, {"overlap": "dp"}),
    ],
)
def test_a_measured_plan_is_not_refused_for_a_remainder(cells, expected):
    stated = filled(row(**cells))
    assert {name: stated.values[name] for name in expected} == expected
    assert set(expected) - set(cells) <= {*stated.assumed, "microbatch", *cells}
    iteration(
        model_of(stated.values), cluster("dgx-h100"), plan_of(stated.values), allow_oversized=True
    )


@pytest.mark.parametrize(("batch", "schedule"), [(2048, "interleaved"), (8192, "1f1b")])
def test_large_runs_interleave_where_the_bubble_would_be_large(batch, schedule):
    stated = filled(row(chips=2048, pp=2, global_batch=batch))
    assert stated.values["schedule"] == schedule
    assert {"schedule", "vpp"} <= set(stated.assumed)


MIXTURE = {"experts": 8, "experts_per_token": 2, "gated_mlp": 1, "chips": 128, "dp": 8, "zero": 1}


@pytest.mark.parametrize(
    ("cells", "vpp"),
    [
        ({"layers": 56, "pp": 8}, 7),
        ({"layers": 56, "pp": 8, "schedule": "1f1b"}, 7),
        ({"layers": 56, "pp": 8, "schedule": "1f1b", "vpp": 1}, 1),
        ({"layers": 56, "pp": 8, "schedule": "gpipe"}, 1),
        ({"layers": 16, "pp": 16, "dp": 8}, 1),
        ({"layers": 56, "pp": 8, "schedule": "interleaved", "experts": 0}, 7),
        ({"layers": 96, "pp": 8, "schedule": "interleaved", "experts": 0}, 6),
    ],
)
def test_pipelines_of_experts_interleave_where_a_row_states_no_chunks(cells, vpp):
    assert filled(row(**MIXTURE | {"global_batch": 256, **cells})).values["vpp"] == vpp


@pytest.mark.parametrize(("seq", "vpp"), [(2048, 7), (65536, 1)])
def test_who_lacks_memory_for_chunks_does_without(seq, vpp):
    cells = {"layers": 56, "pp": 8, "global_batch": 256, "ep": 8, "recompute": "none", "seq": seq}
    stated = filled(row(**MIXTURE | cells))
    assert fitting(stated).values["vpp"] == vpp


def test_who_overlaps_all_on_a100_runs_newer_software():
    older, newer = (filled(row(gated_mlp=0, overlap=how)).values for how in ("dp", "all"))
    assert (plan_of(older).attention, plan_of(newer).attention) == ("unfused", "fused")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("recompute", "Selective (attention)", "selective"),
        ("recompute", "core_attn", "selective"),
        ("recompute", "off", "none"),
        ("schedule", "Interleaved 1F1B", "interleaved"),
        ("schedule", "zb-h1", "zero-bubble"),
        ("overlap", "DP", "dp"),
        ("overlap", "tp+dp", "all"),
        ("sequence_parallel", "True", 1),
        ("vocab", '"128,256"', 128256),
        ("vpp", "0", None),
        ("etp", "0", None),
    ],
)
def test_cells_are_read_as_people_spell_them(name, text, expected):
    assert row(**{name: text})[name] == expected


def test_a_row_that_ran_takes_what_makes_it_fit():
    dense = {"layers": 32, "hidden": 4096, "heads": 32, "vocab": 128256, "microbatch": 16}
    alone = fitting(filled(row(**dense)))
    assert (alone.values["zero"], alone.values["recompute"]) == (1, "full")
    large = fitting(filled(row(**dense | {"layers": 80, "chips": 64})))
    assert large.values["zero"] == 3
    stated = filled(row(**dense | {"layers": 80, "zero": 1, "recompute": "none"}))
    assert fitting(stated) == stated


def test_models_and_plans_follow_the_columns():
    gpt = model_of(filled(row(gated_mlp=0, tied_embeddings=1)).values)
    assert (gpt.norm, gpt.positions, gpt.tied_embeddings) == ("layer", 1024, True)
    llama = model_of(filled(row()).values)
    assert (llama.norm, llama.positions) == ("rms", 0)
    moe = model_of(filled(row(experts=8, experts_per_token=2, moe_ffn=512)).values)
    assert moe.experts is not None
    assert (moe.experts.count, moe.experts.ffn) == (8, 512)
    neuron = filled(row(cluster="trn1.32xlarge", chips=16, tp=8, dp=4))
    assert plan_of(neuron.values).ranks_per_chip == 2
    with pytest.raises(InputError, match="not a multiple of chips 16"):
        plan_of(filled(row(cluster="trn1.32xlarge", chips=16, tp=8, dp=3)).values)


def test_rows_of_a_table_with_one_step_simulate_it_once(monkeypatch):
    simulated = []

    def counted(model, machine, plan, **changes):
        simulated.append(plan)
        return iteration(model, machine, plan, **changes)

    monkeypatch.setattr(long_steps, "iteration", counted)
    rows = [row(chips=8, tp=2, dp=4, global_batch=batch, gated_mlp=0) for batch in (8, 16, 8)]
    predict = predictor(rows_of(TRAINING).kind)
    outcomes = [predict(values, None) for values in rows]
    assert [plan.global_batch for plan in simulated] == [8, 16]
    assert outcomes == [training.predict(values) for values in rows]


def test_chips_become_machines_of_which_the_last_may_be_used_in_part():
    assert machines_for("dgx-h100", 4).chips == 8
    assert machines_for("dgx-h100", 32).domains == 4
    assert machines_for("dgx-h100", 12).domains == 2


def test_a_source_that_repeats_another_gets_the_recipe_of_the_other():
    """``llm-analysis`` carries rows of Megatron-LM in fp16 and of MT-NLG, summed in fp32."""
    sums = {
        row.values["name"]: dict(recipe(row.values).variants)["training.accumulation_bytes"]
        for name in ("megatron_sc21", "megatron_more")
        for row in table(name).rows().rows
        if "llm-analysis" in row.cells["source"]
    }
    assert sums == {"GPT 174.6B": "separate", "GPT 529.6B": "separate", "MT-NLG 530B": "fp32"}


def test_sums_in_fp32_cost_what_two_published_pairs_differ_by():
    """Pairs of BLOOM's trials that differ in fp16 or bf16, and in nothing else."""
    rows = [row.values for row in table("megatron_deepspeed").rows().rows]
    for heads in (64, 96):
        narrow, wide = (
            next(
                row
                for row in rows
                if (row["layers"], row["heads"], row["microbatch"]) == (106, heads, 2)
                and row["source"].endswith(kind)
            )
            for kind in ("fp16", "bf16")
        )
        published = wide["iteration_s"] / narrow["iteration_s"]
        first, second = (training.predict(row).predicted["iteration_s"] for row in (narrow, wide))
        assert second / first == pytest.approx(published, abs=0.01)


def test_recipes_name_variants_that_exist():
    for one in recipes():
        one.numbers()
    assert recipe({"source": "github VIA-Research/vTrain data"}).attention == "unfused"
    titan = recipe({"source": "pytorch/torchtitan", "cluster": "dgx-h100"}).numbers()
    limited = titan.value("kernels.h100", "gemm_sustained")
    assert limited < shipped_catalogue().value("kernels.h100", "gemm_sustained")


@pytest.mark.parametrize(
    ("cluster_name", "gated", "zero", "attention", "selective"),
    [
        ("dgx-a100", 0, 1, "unfused", "attention"),
        ("dgx-a100", 1, 1, "fused", "attention"),
        ("p4de.24xlarge", 0, 3, "fused", "layers"),
        ("dgx-h100", 1, 3, "fused", "layers"),
        ("dgx-h200", 1, 3, "fused", "layers"),
        ("dgx-h100", 0, 1, "fused", "attention"),
        ("trn2.48xlarge", 1, 3, "fused", "attention"),
    ],
)
def test_rows_of_unknown_sources_get_the_recipe_of_their_kind(
    cluster_name, gated, zero, attention, selective
):
    plain = {"gated_mlp": gated, "zero": zero, "overlap": "none", "source": "mine"}
    used = recipe({"cluster": cluster_name, **plain})
    assert (used.match, used.attention, used.selective) == ("", attention, selective)


def test_a_layer_takes_its_kernels_and_what_is_not_hidden_behind_them():
    machine = cluster("dgx-a100")

    def product(name, seconds, after=PREVIOUS):
        return LayerOp(name, "compute", ENGINE, seconds, after=after)

    gather = LayerOp("gather", "tp", CC, 0.0, 2**26, "tp", "all-gather")
    wire = length_s([gather], machine, 8)
    assert length_s([product("a", 1.0), product("b", 2.0)], machine, 8) == 3.0
    between = [product("a", 1.0), gather, product("b", 2.0)]
    assert length_s(between, machine, 8) == pytest.approx(3.0 + wire, rel=1e-12)
    beside = [product("a", 1.0), gather, product("b", 2.0, after="a")]
    assert length_s(beside, machine, 8) == 3.0


def test_layer_rows_predict_both_passes():
    read = rows_of(
        "cluster,chips,layers,hidden,heads,seq,tp,microbatch,experts,forward_s,backward_s\n"
        "dgx-a100,8,48,6144,64,2048,8,4,,0.0077,0.0119\ndgx-a100,8,48,6144,64,2048,8,4,8,1,1\n"
    )
    assert read.kind.name == "layer"
    dense, sparse = compare(read, predictor(read.kind))
    assert 1.3 < dense["predicted_backward_s"] / dense["predicted"] < 2.2
    assert (sparse["status"], "experts" in sparse["why"]) == ("unsupported", True)


def test_kernel_rows_say_what_they_need():
    read = rows_of("kernel,chip,m,n,k,kernel_s\ngemm,h100,8,8,,1\ngemm,h100,8,8,8,1\n")
    missing, whole = compare(read, predict_kernel)
    assert "needs k" in missing["why"]
    assert whole["status"] == "ok"


def test_the_scatter_draws_every_predicted_row():
    compared = compare(
        rows_of(COLLECTIVES + "all-reduce,dgx-h100,8,1024,1e-5,a\n,dgx-h100,8,1,1,b\n"),
        lambda values: Outcome({"time_s": 2e-5}),
    )
    figure = scatter(compared, "title", group="mine")
    plane = figure.axes[0]
    assert plane.collections[0].get_offsets().tolist() == [[1e-5, 2e-5]]
    assert scatter([], "nothing").axes


def test_spellings_of_a_precision_run_at_one_rate():
    spellings = ("fp16 mixed", "BFloat16", "mxfp8", "fp8-hybrid", "fp32")
    rates = [filled(row(precision=text)).values["precision"] for text in spellings]
    assert rates == ["bf16", "bf16", "fp8", "fp8", "fp32"]


def test_rows_of_trn1_count_cores_where_dp_is_not_stated():
    assert filled(row(cluster="trn1.32xlarge", chips=16, tp=8)).values["dp"] == 4
    assert filled(row(cluster="trn2.48xlarge", chips=16, tp=8)).values["dp"] == 2


@pytest.mark.parametrize(
    ("name", "value"), [("chips", 2**21), ("layers", 10**6), ("hidden", 10**9), ("seq", 10**9)]
)
def test_rows_beyond_every_machine_and_model_are_refused(name, value):
    with pytest.raises(InputError, match=f"{name} {value:,} are over the limit"):
        filled(row(**{name: value}))


def test_other_libraries_are_told_apart_by_source():
    values = {
        "collective": "all-reduce",
        "cluster": "dgx-h100",
        "chips": 2,
        "ranks": 2,
        "algorithm": None,
        "size_bytes": 2**10,
    }
    own = predict_collective(values).predicted["time_s"]
    torch = predict_collective({**values, "source": "microsoft/vidur data/profiling/network"})
    assert torch.predicted["time_s"] > own
    assert predict_collective({**values, "source": "NVSHMEM all-to-all"}).status == "unsupported"


def test_slices_of_tables_are_machines_too():
    slice_ = machines_for("tpu-v6e-128", 128)
    assert (slice_.chip, slice_.chips) == ("tpu-v6e", 128)
    assert [axis.wrap for axis in slice_.shape.axes] == [False, True]
    with pytest.raises(InputError, match="unknown cluster 'tpu-v9-4'"):
        machines_for("tpu-v9-4", 4)


def test_slices_have_the_links_of_the_catalogue():
    from experiments.validation.machines import shipped

    for name in shipped():
        machine = machines_for(name, 1)
        for axis in machine.shape.axes:
            rate = shipped_catalogue().integer(machine.chip, "link_bandwidth")
            assert axis.bandwidth_bytes_per_s == rate
            assert axis.latency_ps == shipped_catalogue().ps(machine.chip, "link_latency")
