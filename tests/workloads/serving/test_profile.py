"""Profiles of replicas: published times, bytes of the cache, programs, limits of physics."""

from dataclasses import replace

import numpy as np
import pytest

import cluster_sim as cs
from cluster_sim.collectives import CollectiveCall, Group, duration_ps
from topologies.catalogue.catalogue import shipped_catalogue, usable_hbm_bytes
from topologies.clusters.names import cluster
from workloads.models.huggingface import named
from workloads.serving import profile
from workloads.serving.profile import prompt_overhead_s
from workloads.serving.rank import times
from workloads.serving.rank.share import RankShare

TRN2, SHIPPED = cluster("trn2.48xlarge"), shipped_catalogue()


@pytest.mark.parametrize(("model", "machine", "how", "kv_bytes"), [
    ("llama-3.1-405b", "trn2.48xlarge", {}, 516_096),
    ("llama-3.1-70b", "trn2.48xlarge", {}, 327_680),
    ("llama-3.1-70b", "dgx-h200", {}, 327_680),
    ("llama-3.1-70b", "dgx-h200", {"precision": "fp8"}, 163_840),
    # Every fourth of 48 layers attends, with 2 key-value heads of 256 values in 2 bytes.
    ("qwen3-next-80b-a3b", "dgx-h200", {"tp": 2}, 12 * 2 * 2 * 256 * 2),
])  # fmt: skip
def test_a_token_takes_bytes_of_the_cache(model, machine, how, kv_bytes):
    assert profile(named(model), cluster(machine), **how).kv_bytes_per_token == kv_bytes


def test_whole_heads_and_whole_latent_caches_are_held_by_every_rank_that_needs_them():
    llama, latent = named("llama-3.1-70b"), named("deepseek-v3")
    trn1, h100 = (cluster(name) for name in ("trn1.32xlarge", "dgx-h100"))
    once = 2 * 80 * 8 * 128 * 2

    def bytes_per_token(model, machine, chips):
        return RankShare(model, machine, chips, "bf16", SHIPPED).kv_bytes_per_token()

    assert bytes_per_token(llama, h100, 8) == bytes_per_token(llama, TRN2, 16) == once
    assert bytes_per_token(llama, trn1, 16) == 32 / 8 * once
    assert bytes_per_token(latent, h100, 8) == 8 * 61 * 576 * 2
    odd = replace(llama, heads=40, kv_heads=40)
    assert bytes_per_token(odd, trn1, 16) == 2 * 80 * 64 * 128 * 2
    # Where neither 12 ranks nor 8 heads divide the other, Neuron makes one for each query head.
    odd = replace(llama, heads=48, kv_heads=8)
    assert bytes_per_token(odd, cluster("inf2.48xlarge"), 6) == 48 / 8 * once
    assert bytes_per_token(odd, TRN2, 3) == 48 / 8 * once
    assert bytes_per_token(odd, h100, 6) == 12 / 8 * once
    assert RankShare(odd, TRN2, 3, "bf16", SHIPPED).kv_heads == 4


@pytest.mark.parametrize(
    ("size", "measured_us"),
    [(2**14, 5.3), (2**18, 10.8), (2**19, 15.8), (2**20, 17.3), (2**22, 34.3)],
)
def test_a_direct_all_reduce_takes_what_engines_measured(size, measured_us):
    """Medians of three engines on 8 H100 in CUDA graphs, aiconfigurator's tables."""
    rank = RankShare(named("llama-3.1-70b"), cluster("dgx-h100"), 8, "fp8", SHIPPED)
    (seconds,) = times.direct_reduce_s(rank, np.array([float(size)]), "serving.gpu")
    assert seconds == pytest.approx(measured_us * 1e-6, rel=0.15)


def test_a_library_s_reduction_lies_on_lines_between_powers_of_two():
    rank = RankShare(named("llama-3.1-70b"), cluster("dgx-h100"), 8, "bf16", SHIPPED)
    before, last = times.library_reduce_s(rank, times.SIZES[-2:])
    size = np.array([times.SIZES[0] / 2, times.SIZES[-1] / np.sqrt(2), 3 * times.SIZES[-1]])
    seconds = times.library_reduce_s(rank, size)
    assert seconds == pytest.approx([0.0, np.sqrt(before * last), 3 * last])


def test_products_in_fp8_are_no_slower_than_the_launch_that_they_drop():
    tokens, share = np.array([8.0, 4096.0]), (named("llama-3.1-70b"), cluster("dgx-b200"), 8)
    ranks = (RankShare(*share, precision, SHIPPED) for precision in ("fp8", "bf16"))
    half, whole = (times.products_s(rank, tokens) for rank in ranks)
    assert (half < whole).all()


def test_small_models_take_their_share_of_trainiums_overhead():
    """Llama-3.1-8B on 16 Trn1 chips: 5.86 to 7.04 ms a token at batch 1, AWS Neuron."""
    replica = profile(named("llama-3.1-8b"), cluster("trn1.32xlarge"))
    assert 5.8e-3 < replica.decode_s(1, 4096) < 8.0e-3


def test_a_replica_may_be_a_part_of_a_chip_or_its_physical_cores():
    small = named("llama-3.1-8b")
    half, whole = (profile(small, cluster("trn2.3xlarge"), tp=ranks) for ranks in (2, 4))
    assert half.chips == whole.chips == 1
    assert half.kv_budget_bytes + half.weights_bytes == pytest.approx(
        (whole.kv_budget_bytes + whole.weights_bytes) / 2
    )
    assert half.decode_s(1, 0) > 1.5 * whole.decode_s(1, 0)
    physical = profile(small, cluster("trn2.3xlarge"), tp=8)
    assert physical.chips == 1
    two = profile(small, TRN2, tp=8, chips=2)
    assert (two.chips, profile(small, TRN2, tp=8).chips) == (2, 8)


def test_states_of_a_prompt_are_scanned_chunk_by_chunk():
    from experiments.validation.reading.rows import model_for

    gated = model_for("qwen3.5-9b")
    rank = RankShare(gated, TRN2, 2, "bf16", SHIPPED, 8)
    chunk_s = SHIPPED.value("serving.trn2", "scan_chunk")
    # 24 of 32 layers, 32 heads of 128 x 128 over 8 ranks.
    assert times.scan_token_s(rank) * 512 == pytest.approx(24 * 4 * 4 * chunk_s)
    assert times.scan_token_s(RankShare(named("llama-3.1-8b"), TRN2, 2, "bf16", SHIPPED)) == 0


@pytest.mark.parametrize("machine", ["dgx-h100", "trn2.48xlarge"])
def test_layers_with_windows_read_no_more_of_a_cache(machine):
    """On GPUs; programs of Trainium read whole caches."""
    model = named("llama-3.1-8b")
    models = (model, replace(model, window=128))
    whole, windowed = (profile(each, cluster(machine), tp=8) for each in models)
    requests, short, long = 3, 3 * 100, 3 * 10_000
    most = requests * (128 if machine == "dgx-h100" else 10_000)
    for cached, read in ((short, short), (long, most)):
        expected = pytest.approx(whole.attention_s(requests, read))
        assert windowed.attention_s(requests, cached) == expected


def test_layers_of_mi300x_start_later_where_inputs_are_scaled():
    model, machine = named("llama-3.1-70b"), cluster("mi300x-platform")
    ranks = (RankShare(model, machine, 8, name, SHIPPED) for name in ("bf16", "fp8"))
    plain_s, scaled_s = (times.small_kernels_s(rank, np.ones(1), "serving.gpu") for rank in ranks)
    assert scaled_s - plain_s == pytest.approx(80 * (45e-6 - 15e-6))


def test_prompts_of_trainium_wait_for_all_reduces_of_their_size():
    """A prompt of 128 tokens takes the library's time of 1 MiB on 32 ranks, decode its floor."""
    machine, tokens = cluster("trn1.32xlarge"), np.array([1.0, 128.0])
    rank = RankShare(named("llama-3.1-8b"), machine, 16, "bf16", SHIPPED)
    (one, short), (one_of_decode, as_decode) = (
        times.reduces_s(rank, tokens, "serving.trainium", prompts=of) for of in (True, False)
    )
    group = Group(machine, np.arange(16), 2)
    library_ps = duration_ps(CollectiveCall("all-reduce", group, 2**20))
    assert short == pytest.approx(64 * library_ps * 1e-12)
    assert short > as_decode
    assert one == one_of_decode


def test_query_heads_of_one_key_value_head_are_scored_as_two_at_most():
    """On 8 and 24 ranks Llama-3.1-8B has 4 and 2 query heads beside one key-value head."""
    small, machine = named("llama-3.1-8b"), cluster("inf2.48xlarge")
    eight, wide = (profile(small, machine, tp=chips) for chips in (4, 12))
    assert eight.decode_kv_s == pytest.approx(32 * 2 * 2.3e-9)
    assert eight.decode_kv_s == wide.decode_kv_s
    whole_heads = profile(named("llama-2-7b"), cluster("inf2.48xlarge"), tp=4)
    assert whole_heads.decode_kv_s == pytest.approx(32 * 4 * 2.3e-9)


def test_the_overhead_of_a_prompt_grows_with_the_width_up_to_that_of_large_models():
    for chip, name, each_layer in (
        ("trn1", "llama-3.1-8b", 0.155e-9 * 4096),
        ("trn2", "llama-3.1-8b", 0.1e-9 * 4096),
        ("trn2", "qwen2.5-0.5b", 0.25e-6),  # the least, of narrow models
        ("trn2", "llama-3.1-405b", 0.49e-6),
        ("trn2", "qwen3-235b-a22b", 0.49e-6),
    ):
        model = named(name)
        on = cluster({"trn1": "trn1.32xlarge", "trn2": "trn2.48xlarge"}[chip])
        overhead_s = prompt_overhead_s(RankShare(model, on, 1, "bf16", SHIPPED))
        assert overhead_s == pytest.approx(model.layers * each_layer), (chip, name)


def test_more_tokens_than_a_table_has_take_proportionally_longer():
    replica = profile(named("llama-3.1-8b"), cluster("inf2.48xlarge"), tp=4)
    most = float(replica.tokens[-1])
    assert replica.prompt_linear(1.5 * most) == pytest.approx(1.5 * replica.prompt_linear(most))


MACHINES = {
    "trn1.32xlarge": (4, 16), "inf2.48xlarge": (3, 12), "trn2.48xlarge": (1, 4, 16),
    "trn3-gen1": (1, 4, 16, 64), "trn3-gen2": (1, 4, 36),
}  # fmt: skip
MODELS = ("llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b")
PROMPTS = tuple(2**power for power in range(6, 18))


def _replicas(precision):
    """Profiles of all models and degrees that fit the memory of a machine."""
    replicas = []
    for machine, degrees in MACHINES.items():
        chip = cluster(machine).chip
        if not SHIPPED.has(chip, f"{precision}_peak"):
            continue
        for name in MODELS:
            for tp in degrees:
                weights = named(name).parameters * (2 if precision == "bf16" else 1)
                if weights < 0.8 * tp * usable_hbm_bytes(chip, SHIPPED):
                    served = profile(named(name), cluster(machine), tp=tp, precision=precision)
                    replicas.append((machine, name, tp, served))
    return replicas


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_no_token_comes_before_its_weights_are_read_nor_a_prompt_before_the_peak(precision):
    replicas = _replicas(precision)
    assert len(replicas) >= 20
    for machine, name, _, served in replicas:
        chip, model = cluster(machine).chip, named(name)
        read = model.parameters - model.vocab * model.hidden
        width = 2 if precision == "bf16" else 1
        hbm = served.chips * SHIPPED.value(chip, "hbm_bandwidth")
        assert served.decode_s(1, 1) > width * read / hbm
        peak = served.chips * SHIPPED.value(chip, f"{precision}_peak")
        assert all(served.prefill_s(length) > 2 * read * length / peak for length in PROMPTS)


@pytest.mark.parametrize(("machine", "most"), [("trn2.3xlarge", 4), ("trn1.2xlarge", 2)])
def test_the_degree_of_a_lone_chip_counts_its_cores(machine, most):
    model = named("llama-3.2-1b")
    degrees = [2**power for power in range(most.bit_length())]
    replicas = [profile(model, cluster(machine), tp=tp) for tp in degrees]
    tokens = [served.decode_s(1, 512) for served in replicas]
    assert tokens == sorted(tokens, reverse=True)
    whole = profile(model, cluster(machine))
    assert replicas[-1].decode_s(1, 512) == whole.decode_s(1, 512)
    # A core has its share of the chip's memory, and takes longer than its share of the weights.
    assert replicas[0].kv_budget_bytes < whole.kv_budget_bytes / most
    assert tokens[0] > 1.5 * tokens[-1]


DGX = cs.cluster("dgx-h100")
SPARSE = cs.model("qwen3-235b-a22b")


def test_a_replica_has_the_memory_that_the_driver_reports():
    usable = usable_hbm_bytes("h100", shipped_catalogue())
    assert usable > shipped_catalogue().value("h100", "hbm_bytes")
    held = profile(SPARSE, DGX, precision="fp8")
    assert held.kv_budget_bytes == pytest.approx(0.9 * 8 * usable - held.weights_bytes)
    assert usable_hbm_bytes("trn2", shipped_catalogue()) == 96 * 2**30


def test_a_cache_in_16_bits_is_twice_as_large_and_takes_twice_as_long():
    short, long = (profile(SPARSE, DGX, precision="fp8", cache_precision=p) for p in (None, "bf16"))
    assert long.kv_bytes_per_token == 2 * short.kv_bytes_per_token
    assert long.decode_kv_s == pytest.approx(2 * short.decode_kv_s)
