"""Plans: refusals, defaults, the chips they take, and fields that change nothing."""

import random
import re
from dataclasses import replace

import numpy as np
import pytest

from cluster_sim.collectives.group import Group
from experiments.reports.training import document
from tests.support.refusals import refused
from tests.support.toy_training import SPARSE, TOY, plan, sixteen
from topologies.clusters.names import cluster
from topologies.support.errors import InputError
from workloads.economics import step_cost
from workloads.models.huggingface import named
from workloads.training import usual_plan
from workloads.training.iteration import iteration
from workloads.training.layers.steps import LayerOp
from workloads.training.plan import stages
from workloads.training.plan.other_tools import read_any_plan
from workloads.training.plan.placement import place
from workloads.training.plan.plan import ORDER, PLAN_FIELDS, ParallelPlan
from workloads.training.plan.schedules.registry import schedule_names
from workloads.training.program.groups import GroupCosts, group_ps
from workloads.training.usual_plan import _changes, _savings, _with_room, complete

ODD = replace(TOY, heads=12, kv_heads=6, hidden=960, ffn=3840)
REFUSED = [
    ({"tp": 0}, None, "tp is 0; it must be a whole number of at least 1"),
    ({"tp": True}, None, "tp is True"),
    ({"etp": int("9" * 400)}, None, "etp is a number of 400 digits; it must be"),
    ({"schedule": "1f1"}, None, r"must be one of gpipe, 1f1b, .*Did you mean 1f1b\?"),
    ({"zero": 4}, None, "zero is 4; it must be one of 0, 1"),
    ({"vpp": 2}, None, "vpp 2 divides the stages of a pipeline, but pp is 1. Use vpp 1"),
    ({"pp": 2, "vpp": 2, "schedule": "gpipe"}, None, "gpipe has one chunk a stage, not vpp 2."),
    ({"pp": 2, "stage_layers": (8,)}, None, "stage_layers names 1 chunks, but pp 2 × vpp 1 = 2"),
    ({"ep": 3, "dp": 8}, None, "does not divide the tp 1 × cp 1 × dp 8 = 8 .* ep 2"),
    ({"etp": 4, "tp": 2, "pp": 4}, None, "etp 4 = 4 does not divide the tp 2 .* Use etp 2"),
    ({"etp": 3, "ep": 2, "dp": 8}, None, r"etp 3 = 6 does not divide .* Use etp 2\."),
    ({"ep": 8, "tp": 4, "dp": 2}, None, "ep 8 × etp 4 = 32 does not divide .* ep 2 or etp 1"),
    ({"routing_skew": 0.5}, None, "routing_skew is 0.5; it must be at least 1"),
    ({"capacity_factor": -1}, None, "capacity_factor is -1; it must be 0, for no limit, or"),
    ({"capacity_factor": "x"}, None, "capacity_factor is 'x'; it must be a number"),
    ({"fp8_recipe": "rowise"}, None, r"fp8_recipe is 'rowise'; .* Did you mean rowwise\?"),
    ({"fp8_recipe": "rowwise"}, None, "rowwise is about scales in fp8, but precision is bf16"),
    ({"dp": 16, "global_batch": 8}, None, "global batch 8 is not a multiple .* = 16. Use 16\\.$"),
    ({"dp": 3, "global_batch": 8}, None, "8 is not a multiple of dp 3 × .* = 3. Use 6 or 9"),
    ({"order": ("tp", "dp")}, None, "rank order tp-dp does not name each of"),
    ({"lora_rank": 16, "train_only": "mlp"}, None, "lora rank 16 freezes all weights"),
    ({"lora_on": "attention"}, None, "lora on attention says where adapters are"),
    ({"optimizer": "muon", "lora_rank": 8}, None, "optimizer muon updates the matrices"),
    ({"optimizer": "muon", "train_only": "output"}, None, "optimizer muon updates the matrices"),
    ({"routed_nodes": 1}, None, r"but ep is 1\. Use ep above 1"),
    ({"fp8_exchange": True}, None, r"but ep is 1\. Use ep above 1"),
    ({"sample_tokens": 2048}, None, "sample_tokens 2048 is more than the 1024 tokens"),
    ({"sample_tokens": 256, "attention": "unfused"}, None, "unfused kernels compute the scores"),
    ({"sample_tokens": 7, "cp": 4}, None, "cannot be divided over cp 4.*at least 8"),
    # what the model cannot be divided by
    ({"tp": 3}, TOY, "16 attention heads of toy are not divisible by tp 3. Use tp 2"),
    ({"tp": 4}, ODD, "tp 4 neither divides the 6 key-value heads"),
    ({"ep": 2, "dp": 2}, TOY, "ep 2 divides experts, but toy has none. Use ep 1"),
    ({"capacity_factor": 1.25}, TOY, "capacity factor 1.25 is the room of experts, but"),
    ({"cp": 2, "attention": "unfused"}, TOY, "cp 2 needs fused attention"),
    ({"cp": 3}, TOY, "1,024 tokens of a sequence of toy are not divisible by 2 × cp 6"),
    ({"pp": 2, "stage_layers": (4, 5)}, TOY, "stage_layers sum to 9, but toy has 8 layers"),
    ({"pp": 16}, TOY, "16 stages, but toy has 8 layers. Use pp 8 or less"),
    ({"pp": 4, "vpp": 4}, TOY, "16 stages, but toy has 8 layers. Use vpp 2 or less"),
    ({"tp": 16, "seq": 1000}, TOY, "1,000 tokens .* are not divisible by tp 16. Use tp 8"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "model", "message"), REFUSED)
def test_a_plan_that_cannot_be_is_refused(changes, model, message):
    refused(message, lambda: stages.check_model(plan(**changes), model or TOY))


def test_ranks_must_be_those_of_the_cluster():
    how = plan(dp=8, tp=4, pp=3)
    stages.check_ranks(how, 96)
    rest = r"but the cluster has 64 chips\. Reduce dp to 5 or use 96 chips\.$"
    for one, chips, message in (
        (how, 64, rf"^dp 8 × tp 4 × pp 3 = 96 ranks, {rest}"),
        (how, 192, "Raise dp to 16 or use 96 chips"),
        (
            replace(how, ranks_per_chip=2),
            64,
            r"64 chips of 2 ranks\. Raise dp to 10 or use 48 chips",
        ),
    ):
        refused(message, stages.check_ranks, one, chips)


def test_a_plan_may_leave_ranks_of_a_single_chip_idle():
    chip, two = cluster("trn2.3xlarge"), plan(tp=2, dp=1)
    idle = "A plan of 2 ranks leaves some of the trn2's 4 or 8 idle. State ranks per chip or fill"
    refused(idle, complete, {"dp": 2}, TOY, chip)
    assert complete({"dp": 2}, TOY, chip, lnc=2).ranks == 2
    some, every = replace(two, ranks_per_chip=4), replace(two, dp=2, ranks_per_chip=4)
    stages.check_ranks(some, 1)
    refused(r"2 chips of 4 ranks\. Raise dp to 4 or use 1 chip\.$", stages.check_ranks, some, 2)
    refused(r"1 chip\. Change tp or pp or use 2 chips\.$", stages.check_ranks, two, 1)
    three = replace(some, tp=1, dp=5, global_batch=5)
    refused(r"of 4 ranks\. Raise dp to 8\.$", stages.check_ranks, three, 2)
    few, many = (
        iteration(TOY, chip, replace(each, global_batch=4 * each.dp)) for each in (some, every)
    )
    assert few.plan.microbatches == many.plan.microbatches
    assert 0 < few.iteration_s <= many.iteration_s
    # Ranks without work send nothing beside the others, and draw idle power.
    summed, pair = LayerOp("", "tp", 0, 0.0, 2**26, "tp", "all-reduce"), np.zeros(2, np.int64)
    for how, beside in ((some, 1), (every, 2)):
        alone_ps = group_ps(Group(chip, pair[:1], 2), "all-reduce", beside * 2**26)
        assert GroupCosts(chip).times_ps(pair, [summed], how, 1) == [alone_ps]
    costs = [step_cost(chip, 1, few.plan.tokens, few.breakdown_s, used) for used in (0, 0.5, 1)]
    none, half, full = (each.energy_joules for each in costs)
    assert none < half == pytest.approx((none + full) / 2)
    assert few.cost == costs[1]


def test_defaults_fit_the_cluster_and_the_model(tmp_path):
    filled = complete({"tp": 4, "pp": None}, TOY, sixteen())
    assert (filled.dp, filled.microbatches, filled.sequence_parallel) == (4, 16, True)
    assert filled.zero == 1
    assert complete({}, TOY, cluster("trn1.32xlarge")).ranks_per_chip == 2
    assert complete({}, TOY, sixteen(), lnc=2).ranks == 64
    assert complete({}, named("gpt2"), sixteen()).seq == 1024
    assert complete({"order": "dp-tp-cp-pp"}, TOY, sixteen()).order[0] == "dp"
    assert complete({"pp": 8}, TOY, cluster("dgx-h100")).vpp == 1  # a layer a stage
    saved = complete({"tp": 8}, named("llama-3.1-70b"), cluster("dgx-h100:2"))
    assert (saved.recompute, "recompute" in saved.assumed) == ("full", True)
    stages.check_model(plan(tp=16), TOY)  # key-value heads replicate
    (tmp_path / "plan.yaml").write_text("tp: 4\nglobal-batch: 32\n")
    fields = read_any_plan(tmp_path / "plan.yaml").fields
    assert complete(fields, TOY, sixteen()) == ParallelPlan(tp=4, dp=4, global_batch=32, seq=4096)
    assert stages.filling_dp(4, 2, 1, 64, 1) == 8
    refused(r"tp 3 .* do not divide the 64 ranks", stages.filling_dp, 3, 1, 1, 64, 1)
    # 6 is nearer, but a model that tp 8 divides is not divided by it.
    refused("such as 4, or state dp", stages.filling_dp, 8, 1, 1, 12, 1)


def test_an_open_microbatch_is_the_largest_usual_one_that_fits_where_parameters_are_whole():
    def size(machine="dgx-h100", **stated):
        return complete({"tp": 4, **stated}, TOY, cluster(machine)).microbatch

    assert [size(global_batch=batch) for batch in (2, 4, 6, 8, 64)] == [1, 2, 1, 4, 4]
    assert size(global_batch=64, tp=1) == size(global_batch=64, zero=3) == 4
    for one in ({}, {"global_batch": 64, "pp": 2}, {"global_batch": 64, "tp": 1, "zero": 3}):
        assert size(**one) == 1
    assert size("trn2.48xlarge", global_batch=64) == 1
    large = complete({"tp": 8, "global_batch": 4}, named("llama-3.1-405b"), cluster("dgx-h100"))
    assert large.microbatch == 1  # none fits


def test_logical_cores_are_checked():
    refused("--lnc 3 does not divide the 8 cores of trn2", complete, {}, TOY, sixteen(), lnc=3)
    refused("--lnc is for Trainium, not for h100", complete, {}, TOY, cluster("dgx-h100"), lnc=1)
    one = cluster("trn2.3xlarge")
    assert [complete({"dp": dp}, TOY, one).ranks_per_chip for dp in (1, 4, 8)] == [1, 4, 8]
    assert complete({"tp": 2}, TOY, one).ranks_per_chip == 4
    assert complete({"tp": 4}, TOY, sixteen()).ranks_per_chip == 1
    refused("dp 9 × .* the cluster has 1 chip. Reduce dp to 1", complete, {"dp": 9}, TOY, one)
    with pytest.raises(InputError, match="--lnc 2 makes 4 ranks a chip, but ranks_per_chip is 1"):
        complete({"ranks_per_chip": 1}, TOY, sixteen(), lnc=2)


@pytest.mark.parametrize(("content", "message"), [
    (None, "cannot be read"),
    (b"tpp: 4", r"a plan has no 'tpp'. Did you mean tp\?"),
    (b"- 4", "holds no fields"),
    (b"tp: [", "is not YAML"),
    (b"\xff\xfe\x00", "line 1: not UTF-8 text"),
    (b"a" * 2**18, "is over the limit of 128 KiB"),
    (b"!!python/object/apply:os.system ['true']", "is not YAML"),
    (b"routing_skew: abc", "routing_skew is 'abc'; it must be a number of at least 1"),
    (b"tp: 0", "tp is 0; it must be a whole number of at least 1"),
    (b"reshard: maybe", "reshard is 'maybe'; it must be true or false"),
    (b"schedule: [1]", "it must be one of gpipe"),
    (b"order: tp-tp", "rank order tp-tp does not name each of tp, cp, dp, pp once"),
    (b"stage_layers: 8-" + b"9" * 5000, "… are not numbers. Write them as"),
    (b"stage_layers: [1, x]", "stage_layers is 'x'; it must be a whole number"),
])  # fmt: skip
def test_a_bad_plan_file_is_one_line_with_its_name(tmp_path, content, message):
    path = tmp_path / "plan.yaml"
    if content is not None:
        path.write_bytes(content)
    refused(re.escape(str(path)) + ".*" + message, read_any_plan, path)


@pytest.mark.parametrize(("machine", "changes", "each"), [
    ("gb200-nvl72:4", {"pp": 2, "dp": 128, "ep": 32}, [64, 64, 64, 64]),
    ("gb200-nvl72:2", {"dp": 100}, [50, 50]),
    ("gb200-nvl72:2", {"tp": 4, "dp": 25}, [72, 28]),  # halves would cut a group of tp
    ("gb200-nvl72:2", {"dp": 73}, [72, 1]),  # does not divide
    ("gb200-nvl72:2", {"dp": 144}, [72, 72]),
    ("dgx-h100:2", {"dp": 12}, [8, 4]),  # servers are filled
    ("trn2-ultraserver:2", {"dp": 96}, [64, 32]),  # and so are tori
])  # fmt: skip
def test_racks_are_used_alike_unless_that_cuts_a_group(machine, changes, each):
    where = cluster(machine)
    chips = place(plan(**changes), where).chip
    assert (np.diff(chips) > 0).all()
    assert np.bincount(chips // where.chips_per_domain).tolist() == each


@pytest.mark.parametrize(("fields", "zeros"), [
    ({"dp": 8}, [3]),
    ({"dp": 1}, []),  # no other replica has the rest
    ({"dp": 8, "tp": 2}, []),
    ({"dp": 8, "zero": 3}, []),
])  # fmt: skip
def test_memory_is_saved_by_sharding_then_by_recomputation(fields, zeros):
    open_plan = ParallelPlan(**fields, global_batch=8, assumed=("zero", "recompute"))
    sharding = [{"zero": zero} for zero in zeros]
    (always,) = sharding or [{}]
    recomputing = [{**always, "recompute": name} for name in ("selective", "full")]
    assert list(_savings(open_plan)) == sharding + recomputing
    assert list(_savings(replace(open_plan, assumed=("zero",)))) == sharding
    assert list(_savings(replace(open_plan, lora_rank=8))) == sharding


def test_chunks_that_nobody_stated_go_where_they_alone_do_not_fit(monkeypatch):
    monkeypatch.setattr(usual_plan, "fits", lambda _model, chunks, _cluster: chunks.vpp == 1)
    chunked = ParallelPlan(pp=4, vpp=2, schedule="interleaved", global_batch=8)
    for assumed, vpp in ((("vpp", "schedule"), 1), (("vpp",), 2), ((), 2)):
        assert _with_room(replace(chunked, assumed=assumed), TOY, sixteen()).vpp == vpp
    monkeypatch.setattr(usual_plan, "fits", lambda *_: False)
    assert _with_room(replace(chunked, assumed=("vpp", "schedule")), TOY, sixteen()).vpp == 2


NO_EXPERTS = "the model has no experts"
OF_1F1B = "1f1b with vpp 1 has the same passes"
NO_ORDER = "an axis of one rank has no order"
EACH = [
    (TOY, {"dp": 8, "tp": 2}, {"etp": 1}, NO_EXPERTS),
    (SPARSE, {"dp": 8, "tp": 2, "ep": 4}, {"etp": 2}, "tp is 2 as well"),
    (TOY, {"dp": 16}, {"routing_skew": 1.5}, NO_EXPERTS),
    (SPARSE, {"dp": 16}, {"routing_skew": 1.5}, "ep is 1"),
    (SPARSE, {"dp": 16, "ep": 2, "capacity_factor": 2.0}, {"routing_skew": 1.5},
     "the capacity factor sets the load of experts"),
    (TOY, {"dp": 16}, {"cp_exchange": "all-gather"}, "cp is 1"),
    (TOY, {"dp": 16}, {"recompute": "none"}, "attention is fused"),
    (TOY, {"dp": 16}, {"recompute_every": 2}, "recompute is selective"),
    (TOY, {"dp": 16}, {"reshard": False}, "zero is 1"),
    (TOY, {"dp": 16, "reshard": False}, {"zero": 2}, "without resharding it acts as ZeRO-1"),
    (TOY, {"dp": 16}, {"schedule": "interleaved"}, "pp is 1"),
    (TOY, {"dp": 16}, {"schedule": "zero-bubble"}, "pp is 1"),
    (TOY, {"dp": 8, "pp": 2}, {"schedule": "interleaved"}, OF_1F1B),
    (TOY, {"dp": 16}, {"stage_layers": (8,)}, "pp is 1"),
    (TOY, {"dp": 8, "pp": 2}, {"stage_layers": (4, 4)}, "layers are divided so by default"),
    (TOY, {"dp": 16}, {"sequence_parallel": False}, "tp is 1"),
    (TOY, {"dp": 16}, {"sample_tokens": 1024}, "a sample fills its sequence"),
    (TOY, {"dp": 16}, {"order": ("pp", "tp", "cp", "dp")}, NO_ORDER),
    (TOY, {"dp": 8, "tp": 2}, {"order": ("pp", "tp", "dp", "cp")},
     f"tp and dp keep their order, and {NO_ORDER}"),
    (TOY, {"dp": 16, "overlap": "dp"}, {"overlap": "all"}, "tp, pp and ep are 1"),
    (TOY, {"dp": 16, "overlap": "dp", "zero": 2}, {"schedule": "gpipe"}, "pp is 1"),
    (TOY, {"dp": 16}, {"bucket_bytes": 10**6}, "overlap is none"),
    (TOY, {"dp": 16, "zero": 3, "overlap": "dp"}, {"bucket_bytes": 10**6},
     "under ZeRO-3 each layer is a bucket"),
    (TOY, {"tp": 4, "pp": 4, "overlap": "dp"}, {"bucket_bytes": 10**6}, "dp and cp are 1"),
]  # fmt: skip
WITH_EFFECT = [
    (SPARSE, {"dp": 8, "tp": 2, "ep": 4}, {"etp": 1}),
    (SPARSE, {"dp": 16, "ep": 4}, {"routing_skew": 1.5}),
    (TOY, {"dp": 8, "cp": 2}, {"cp_exchange": "all-gather"}),
    (TOY, {"dp": 16, "attention": "unfused"}, {"recompute": "none"}),
    (TOY, {"dp": 16, "recompute": "full"}, {"recompute_every": 2}),
    (TOY, {"dp": 16, "zero": 3}, {"reshard": False}),
    (TOY, {"dp": 16, "reshard": False}, {"zero": 3}),
    (TOY, {"dp": 8, "pp": 2}, {"schedule": "zero-bubble"}),
    (SPARSE, {"dp": 16, "ep": 4}, {"schedule": "combined-1f1b"}),
    (TOY, {"dp": 8, "pp": 2}, {"stage_layers": (5, 3)}),
    (TOY, {"dp": 8, "tp": 2}, {"sequence_parallel": False}),
    (TOY, {"dp": 16}, {"sample_tokens": 256}),
    (TOY, {"tp": 2, "cp": 2, "dp": 2, "pp": 2}, {"order": ("pp", "cp", "dp", "tp")}),
    (TOY, {"dp": 8, "tp": 2, "overlap": "dp"}, {"overlap": "all"}),
    (TOY, {"dp": 16, "overlap": "dp"}, {"overlap": "none"}),
    (TOY, {"dp": 16, "overlap": "dp"}, {"bucket_bytes": 10**6}),
]
LEFT_OUT = ("plan", "without_effect", "build_s", "simulate_s", "peak_rss_bytes")
VARIED = {
    "vpp": (1, 2), "microbatch": (1, 2), "zero": (0, 1, 2, 3), "reshard": (True, False),
    "sequence_parallel": (True, False), "schedule": schedule_names(),
    "recompute": ("none", "selective", "full"), "recompute_every": (1, 2, 3),
    "precision": ("bf16", "fp8"), "overlap": ("none", "dp", "all"),
    "attention": ("fused", "unfused"), "cp_exchange": ("ring", "all-gather"),
    "order": (ORDER, ("pp", "tp", "cp", "dp"), ("tp", "cp", "pp", "dp"), ("dp", "tp", "cp", "pp")),
    "routing_skew": (1.0, 1.5), "capacity_factor": (0.0, 1.25), "bucket_bytes": (0, 10**6, 10**8),
    "lora_rank": (0, 8), "train_only": ("", "attention", "mlp"), "etp": (0, 1, 2),
}  # fmt: skip
"""Values of the fields of random plans."""
RANDOM_PLANS = 50


@pytest.fixture(autouse=True, scope="module")
def no_remarks():
    """Leave out remarks: that on a faster neighbour names the fields in which that plan differs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("experiments.reports.training.remarks_entry", lambda step: {})
        yield


def results(model, how):
    """Results of a step on sixteen chips, without its inputs and what was measured of the run."""
    step = iteration(model, sixteen(), how, allow_oversized=True)
    return {name: value for name, value in document(step, "fast").items() if name not in LEFT_OUT}


@pytest.mark.parametrize(("model", "base", "idle", "reason"), EACH)
def test_a_field_that_changes_nothing_is_named_with_the_reason(model, base, idle, reason):
    before, after = plan(**base), plan(**{**base, **idle})
    (name,) = idle
    assert stages.idle_fields(after, model)[name] == reason
    assert name not in stages.idle_fields(before, model)
    assert results(model, after) == results(model, before)


@pytest.mark.parametrize(("model", "base", "change"), WITH_EFFECT)
def test_a_field_that_changes_the_step_is_not_named(model, base, change):
    before, after = plan(**base), plan(**{**base, **change})
    assert not change.keys() & stages.idle_fields(after, model)
    assert results(model, after) != results(model, before)


def test_every_field_of_a_plan_has_a_case():
    """All others always change the step, or are refused where they cannot."""
    always = {
        *("tp", "pp", "dp", "cp", "ep", "vpp", "microbatch", "global_batch", "seq"),
        *("precision", "fp8_recipe", "attention", "ranks_per_chip", "capacity_factor"),
        *("routed_nodes", "fp8_exchange", "lora_rank", "lora_on", "train_only", "runtime"),
        "framework",  # tested by itself, as what it changes depends on the chip
        "optimizer",
    }
    named = {name for _, _, idle, _ in EACH for name in idle}
    assert named == {name for _, _, change in WITH_EFFECT for name in change}
    assert named | always == set(PLAN_FIELDS)
    assert not named & always


@pytest.mark.slow
def test_no_random_plan_names_a_field_that_changes_it():
    rng, named = random.Random(0), 0
    for model, how in _random_plans(rng):
        for name in stages.idle_fields(how, model):
            try:
                usual = results(model, replace(how, **{name: getattr(stages.DEFAULTS, name)}))
            except InputError:  # the default contradicts another field
                continue
            named += 1
            assert results(model, how) == usual, (name, how)
    assert named > RANDOM_PLANS


def _random_plans(rng):
    """Plans of sixteen ranks that can be simulated."""
    drawn = []
    while len(drawn) < RANDOM_PLANS:
        model = rng.choice((TOY, SPARSE))
        tp, cp, pp = rng.choice((1, 1, 2, 4)), rng.choice((1, 1, 2)), rng.choice((1, 1, 2))
        ep, dp = rng.choice((1, 2, 4)) if model is SPARSE else 1, 16 // (tp * cp * pp)
        changes = {
            name: rng.choice(values) for name, values in VARIED.items() if rng.random() < 0.35
        }
        try:
            how = plan(tp=tp, cp=cp, pp=pp, dp=dp, ep=ep, **changes)
            results(model, how)
        except InputError:
            continue
        drawn.append((model, how))
    return drawn


def test_a_field_is_idle_in_a_search_if_it_is_in_every_plan():
    fused = ParallelPlan(recompute="none", cp_exchange="all-gather")
    unfused = replace(fused, attention="unfused")
    assert set(stages.idle_fields_in_all([fused, fused], TOY)) == {"cp_exchange", "recompute"}
    assert set(stages.idle_fields_in_all([unfused, fused], TOY)) == {"cp_exchange"}


@pytest.mark.parametrize(("chips", "runtimes"), [(1, {"eager", "xla"}), (2, set())])
def test_other_runtimes_are_plausible_on_one_chip(chips, runtimes):
    model, machine = named("gpt2"), cluster("trn1.32xlarge")
    how = complete({"tp": 2, "global_batch": 64}, model, machine, chips=chips)
    assert {each["runtime"] for each in _changes(how, model, machine) if "runtime" in each} == (
        runtimes
    )
