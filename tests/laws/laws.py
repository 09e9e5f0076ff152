"""All laws, a row each: what is drawn, what is changed, and how the answers stand to each other."""

from dataclasses import replace

from cluster_sim.collectives.algorithms import registry
from tests.laws import draws
from tests.laws.changes import (
    TRAINIUM,
    bigger,
    catalogue,
    clone,
    drawn_on,
    framework_named,
    in_its_framework,
    in_other_units,
    jobs_changed,
    layers,
    minutes,
    on_torus,
    one_gpu,
    one_unit_more,
    own,
    plain,
    quantity,
    rewritten,
    shifted_columns,
    shuffled,
    times,
    to,
    to_one_of,
    wider,
    with_peak,
    with_peaks,
    without_unit,
    zero_two_of_the_usual,
)
from tests.laws.law import ROUNDING, Law

ALGORITHMS = sorted(registry.ALGORITHMS)
STEP = ("iteration_s",)
PARTS = ("iteration_s", "breakdown_s", "memory_bytes")
TIME = ("rows.0.time_s",)
FIRST_TOKEN, LATER_TOKENS = ("ttft_s.p50",), ("tpot_s.p50",)
SERVED = ("ttft_s.mean", "tpot_s.mean", "tokens_per_s")
FLEET = ("served_tokens", "training_tokens", "slo_attainment", "chip_hours_by_role")
JOB = ("goodput", "tokens", "iteration_s", "checkpoint_stall_s")
LENT = ("lent_unit_hours", "usd", "training_tokens")
BEST = ("rows.0.iteration_s", "fitting")
WAITS = ("mean_wait_s", "longest_wait_s")
QUEUED = (*WAITS, "end_s", "used", "idle_beside_waiting", "scattered")
ORDER = 0.01
"""Share by which a step may move against its order: greedy dispatch is not monotone (Graham 1969),
so that an op which is ready earlier may be started before one that more waits for."""
PIECES = 0.02
"""Share of a step of milliseconds that further starts may take: of collectives, if parameters are
gathered in pieces, and of products, of which an adapter's gradients have two for a weight's one."""
CHOICE = 0.1
"""Share of its time by which a collective or a step may get slower when its links get faster: NCCL
chooses between rings and trees by figures of its own, and may change to the slower."""


idle = plain(draws.serve, requests="poisson:0.01")
own_idle = own(draws.serve, requests="poisson:0.01")
one_replica = plain(draws.train, chips=8, tp=4, pp=2, dp=1, zero=1)
dense_one = drawn_on(("dgx-h100", "dgx-a100"), draws.train, from_file=False, tp=4, pp=2, dp=1)

COLLECTIVES = (
    *(
        Law(f"{what} a collective by {algorithm}", draw, change, holds, TIME)
        for algorithm, draw in (
            ("ring", plain(draws.collective, algorithm="ring")),
            ("auto", plain(draws.collective, algorithm="auto")),
            ("the best algorithm", plain(draws.collective, algorithm="best")),
            ("any algorithm", lambda rng: draws.collective(rng, algorithm=rng.choice(ALGORITHMS))),
        )
        for what, change, holds in (
            ("faster links do not slow",
             rewritten("bandwidth", without_unit("GB/s", "GB/s", 2)), "<="),
            ("lower latency does not slow",
             rewritten("latency", without_unit("ns", "ns", 0.5)), "<="),
            ("more bytes do not speed", rewritten("size", without_unit("B", "B", 3)), ">="),
        )
    ),
    Law("gigabytes are thousands of megabytes", draws.collective,
        rewritten("bandwidth", without_unit("GB/s", "MB/s", 1e3)), "==", TIME),
    Law("microseconds are thousands of nanoseconds", draws.collective,
        rewritten("latency", without_unit("ns", "us", 1e-3)), "==", TIME),
    Law("a byte is eight bits on a link", draws.collective,
        rewritten("bandwidth", without_unit("GB/s", "Gbit/s", 8)), "==", TIME),
    Law("both engines time a collective alike", draws.collective, to(engine="reference"), "==",
        TIME),
    Law("the best algorithm is no slower than auto", draws.collective, to(algorithm="best"), "<=",
        TIME),
    Law("links alone are no slower than all costs", own(draws.collective), to(ideal=True), "<=",
        TIME),
    Law("a cluster file of another name times alike", own(draws.collective), clone, "==", TIME),
    Law("half an adapter's latency does not slow", own(draws.collective),
        quantity("scale_out", "latency", 0.5), "<=", TIME, CHOICE),
    Law("twice the adapters do not slow", own(draws.collective),
        quantity("scale_out", "bandwidth_per_chip", 2), "<=", TIME, CHOICE),
    Law("twice the scale-up links do not slow", own(draws.collective),
        quantity("scale_up", "bandwidth", 2), "<=", TIME, CHOICE),
    Law("half the scale-up latency does not slow", own(draws.collective),
        quantity("scale_up", "latency", 0.5), "<=", TIME, CHOICE),
    Law("a domain nobody uses changes nothing", own(draws.collective, ranks=4), wider, "==", TIME),
    Law("one rank has nobody to talk to", own(draws.collective, ranks=1), to(size="3MiB"), "==",
        TIME),
    Law("a seed changes no collective", own(draws.collective), to(seed=9), "==", TIME),
    Law("a torus shifted onto itself times alike", on_torus, shifted_columns, "==", TIME),
    Law("a machine in other units times alike", own(draws.collective), in_other_units, "==", TIME),
    Law("two halves are no faster than the whole", plain(draws.collective, algorithm="ring"),
        rewritten("size", without_unit("B", "B", 0.5)), ">=", TIME,
        factor=lambda first, second: 0.5),
    Law("chips of a switch are alike",
        lambda rng: replace(draws.collective(rng), words=("collective", "all-to-all", "switch:8")),
        lambda line, rng: line.but(order=",".join(map(str, rng.sample(range(8), 8)))), "==", TIME),
    Law("an all-to-all-v of equal parts is an all-to-all", draws.exchange,
        lambda line, rng: replace(line.but(skew=0), words=("collective", "all-to-all-v",
                                                           line.words[2])), "==", TIME),
    Law("a group of the first chips is as many ranks", own(draws.collective, ranks=8),
        to(ranks=None, group="0-7"), "==", TIME),
    Law("a slow link speeds no collective",
        lambda rng: draws.exchange(rng, rng.choice(("all-reduce", "all-gather", "all-to-all")),
                                   ("trn2.48xlarge", "trn1.32xlarge")),
        to(fault="link:0-1@0s:slow=1/2"), ">=", TIME),
    Law("skew speeds no all-to-all-v",
        lambda rng: draws.exchange(rng, "all-to-all-v", ("p5.48xlarge", "dgx-h100:2"), skew=0),
        to_one_of("skew", 0.5, 1, 2), ">=", TIME, 1e-6),
)  # fmt: skip
EXPOSED = tuple(f"breakdown_s.exposed_{axis}" for axis in ("tp", "dp", "pp"))
NETWORK = tuple(
    Law(f"{what} do not slow a step{words}", own(draws.train, **stated), change, "<=", STEP,
        CHOICE, share_of=EXPOSED)
    for words, stated in (("", {}), (" with ZeRO 3", {"zero": 3}))
    for what, change in (
        ("twice the scale-up links", quantity("scale_up", "bandwidth", 2)),
        ("twice the adapters", quantity("scale_out", "bandwidth_per_chip", 2)),
        ("half the scale-up latencies", quantity("scale_up", "latency", 0.5)),
        ("half the scale-out latencies", quantity("scale_out", "latency", 0.5)),
    )
)  # fmt: skip
LEVELS = tuple(
    Law(f"level {level} is within {apart:.0%} of collective on Trainium with overlap, ZeRO {zero}",
        drawn_on(("trn2.48xlarge", "trn2.48xlarge:2", "trn1.32xlarge"), draws.train,
                 from_file=False, overlap="all", level="collective", zero=zero),
        to(level=level), "==", STEP, apart)
    for zero, level, apart in (
        (1, "rank-vector", 0.02), (1, "flow", 0.1), (1, "chunk", 0.25),
        (2, "rank-vector", 0.02), (2, "flow", 0.3), (2, "chunk", 0.5),
    )
)  # fmt: skip
"""What the levels share differs (memory, links), and so do their times, within bounds; most where
ZeRO 2 reduces gradients beside the collectives of tensor parallelism."""
TRAINING = (
    *NETWORK,
    *LEVELS,
    Law("twice the memory bandwidth does not slow a step", own(draws.train),
        quantity("chip", "hbm_bandwidth", 2), "<=", STEP, ORDER),
    Law("a renamed machine trains alike", own(draws.train), clone, "==", PARTS),
    Law("a machine in other units trains alike", own(draws.train), in_other_units, "==", PARTS),
    Law("the usual framework is the one that is named", catalogue(draws.train, from_file=False),
        framework_named, "==", PARTS),
    Law("one GPU is predicted with Transformers",
        lambda rng: one_gpu(draws.train(rng, tp=1, pp=1, chips=1)), framework_named, "==", PARTS),
    Law("weights know no sequence", draws.train, times("seq", 2), "==",
        ("memory_bytes.weights", "memory_bytes.optimizer", "memory_bytes.gradients")),
    Law("unfolded ranks take the times of folded ones", draws.train, to(unfolded=True), "==", PARTS,
        1e-6),
    Law("both engines time a step alike", draws.train, to(engine="reference"), "==", PARTS),
    *(
        Law(f"{what} under {schedule}", plain(draws.train, pp=2, schedule=schedule, **more), change,
            "==", PARTS, 1e-6)
        for schedule, more in (
            ("gpipe", {}), ("interleaved", {"vpp": 2}), ("zero-bubble", {}), ("1f1b", {"zero": 3}),
        )
        for what, change in (
            ("unfolded ranks take the times of folded ones", to(unfolded=True)),
            ("both engines time a step alike", to(engine="reference")),
        )
    ),
    Law("a seed changes no step without chance", draws.train, to(seed=5), "==", PARTS),
    Law("no jitter is jitter of zero", draws.train, to(jitter=0), "==", PARTS),
    Law("jitter speeds no step much", draws.train, to(jitter=0.05), ">=", STEP, ORDER),
    Law("a straggler of factor one is none", draws.train, to(straggler="0:1"), "==", STEP, 1e-6),
    Law("a straggler speeds no step", draws.train, to(straggler="1:1.5"), ">=", STEP, ORDER),
    Law("two iterations have the memory of one", draws.train, to(iterations=2), "==",
        ("memory_bytes",)),
    Law("one pipeline stage has no schedule", plain(draws.train, pp=1),
        to_one_of("schedule", "gpipe", "zero-bubble", "dualpipe"), "==", PARTS),
    Law("without tensor parallelism no sequence is split", plain(draws.train, tp=1),
        to(sequence_parallel=True), "==", PARTS),
    Law("one microbatch in a row keeps its work", plain(draws.train, pp=1, tp=4, dp=4),
        times("global_batch", 2), ">=", STEP),
    Law("a batch shares its ends", plain(draws.train, pp=1), times("global_batch", 2), "<=", STEP,
        1e-6, lambda first, second: 2.0),
    Law("more microbatches take longer", draws.train, times("global_batch", 2), ">=", STEP),
    Law("longer sequences take longer", draws.train, times("seq", 2), ">=", STEP),
    Law("longer sequences need more memory", draws.train, times("seq", 2), ">=",
        ("memory_bytes.total",)),
    Law("larger microbatches need more memory", plain(draws.train, microbatch=1), to(microbatch=2),
        ">=", ("memory_bytes.total",)),
    Law("a larger batch needs no less memory", draws.train, times("global_batch", 2), ">=",
        ("memory_bytes.weights", "memory_bytes.optimizer")),
    Law("more layers take longer", draws.train, layers(2), ">=", STEP),
    Law("more layers need more memory", draws.train, layers(2), ">=", ("memory_bytes.total",)),
    # With overlap the wider one may fill a bucket before the last layers, which then hide it.
    Law("a wider feed-forward takes longer where nothing overlaps",
        plain(draws.train, overlap="none"), bigger("intermediate_size", 2), ">=", STEP),
    Law("a larger vocabulary takes longer", draws.train, bigger("vocab_size", 2), ">=", STEP,
        ORDER),
    Law("ZeRO 1 holds no more than ZeRO 0", plain(draws.train, zero=0), to(zero=1), "<=",
        ("memory_bytes.optimizer", "memory_bytes.weights", "memory_bytes.gradients")),
    Law("ZeRO 2 holds no more gradients than ZeRO 1", plain(draws.train, zero=1), to(zero=2), "<=",
        ("memory_bytes.gradients", "memory_bytes.optimizer")),
    Law("ZeRO 3 holds no more weights than ZeRO 2", plain(draws.train, zero=2, pp=1), to(zero=3),
        "<=", ("memory_bytes.weights", "memory_bytes.optimizer")),
    Law("one replica shards nothing", dense_one, to_one_of("zero", 1, 2), "==",
        ("memory_bytes.weights", "memory_bytes.gradients", "memory_bytes.optimizer")),
    # Without a name, ZeRO 2 on GPUs would be run by another framework.
    Law("one replica steps alike under ZeRO 1 and 2", one_replica,
        zero_two_of_the_usual, "==", STEP, 1e-6),
    Law("one replica has no data parallelism", one_replica, to(bucket="1MB"), "==", STEP, 1e-6),
    Law("one replica exchanges nothing with replicas", one_replica, lambda line, rng: line, "==",
        ("breakdown_s.exposed_dp",), factor=lambda first, second: 0.0),
    Law("one replica overlaps no data parallelism",
        plain(draws.train, chips=1, tp=1, pp=1, dp=1, overlap="none"), to(overlap="dp"), "==",
        PARTS),
    Law("fewer recomputed activations do not slow", plain(draws.train, recompute="full"),
        to(recompute="none"), "<=", STEP, ORDER),
    Law("recomputation saves memory", plain(draws.train, recompute="none"), to(recompute="full"),
        "<=", ("memory_bytes.total",)),
    Law("overlap of gradients does not slow by more than the starts of its pieces",
        plain(draws.train, overlap="none"), to(overlap="dp"), "<=", STEP, PIECES),
    Law("overlap of all does not slow", plain(draws.train, overlap="dp"), to(overlap="all"), "<=",
        STEP, ORDER),
    Law("overlap of all does not slow wide layers", plain(draws.divided, overlap="dp"),
        to(overlap="all"), "<=", STEP, ORDER),
    Law("overlap of gradients does not slow wide layers", plain(draws.divided, overlap="none"),
        to(overlap="dp"), "<=", STEP, PIECES),
    # Beside sharded gradients, pipelines with and without the kernel are of two frameworks.
    Law("fused attention does not slow", plain(draws.train, attention="unfused", zero=1),
        to(attention="fused"), "<=", STEP, ORDER),
    Law("packed samples take no longer", plain(draws.train, attention="fused", sample_tokens=0),
        to(sample_tokens=192), "<=", STEP, ORDER),
    # Without a name, adapters would be trained by another framework.
    Law("adapters need less memory", in_its_framework, to(lora_rank=8), "<=",
        ("memory_bytes.total",)),
    Law("wider adapters need no less memory", lambda rng: in_its_framework(rng).but(lora_rank=4),
        to(lora_rank=64), ">=", ("memory_bytes.total",)),
    Law("wider adapters are no faster",
        drawn_on(("dgx-h100:2", "dgx-a100:2"), draws.train, from_file=False, overlap="none",
                 zero=0, lora_rank=4),
        to(lora_rank=64), ">=", STEP, ORDER),
    # Alone, adapters would run in another framework than the whole model does.
    Law("adapters take no longer",
        drawn_on(("dgx-h100:2", "dgx-a100:2"), draws.train, from_file=False, overlap="none",
                 zero=0, pp=1, framework="megatron-core"),
        to(lora_rank=2), "<=", STEP, 0.2),
    # Each weight of an adapter is issued on its own, which long sequences hide, and its products
    # stay in bf16.
    *(
        Law(f"adapters of wide layers in {precision} take no longer",
            drawn_on(("dgx-h100:2", "dgx-b200:2", "dgx-h200"), draws.divided, overlap="none",
                     zero=0, pp=1, seq=8192, framework="megatron-core", precision=precision),
            to(lora_rank=16), "<=", STEP, tolerance)
        for precision, tolerance in (("bf16", 0.05), ("fp8", 0.1))  # reads in bf16 beside fp8
    ),
    # The host issues adapters too: eager and traced steps that wait for it take longer with them.
    # With overlap of all, exchanges of tp hide behind gradients that frozen weights do not have.
    Law("adapters of compiled steps on Trainium take no longer",
        drawn_on((*TRAINIUM, "trn1.32xlarge", "trn3-gen1"), draws.train, from_file=False,
                 runtime="compiled", overlap="dp"),
        to(lora_rank=16), "<=", STEP, PIECES),
    Law("training a part takes no longer than the whole", draws.train,
        to_one_of("train_only", "attention", "mlp", "output"), "<=", STEP, ORDER),
    Law("single operations are no faster than microbatches",
        catalogue(draws.train, from_file=False),
        lambda line, rng: line.but(runtime="eager", cluster=line.options["cluster"]), ">=", STEP,
        ORDER),
    Law("torch-xla is no faster than compiled microbatches",
        drawn_on(TRAINIUM, draws.train, from_file=False), to(runtime="xla"), ">=", STEP, ORDER),
    # torch-xla's compiler takes no time for recomputation under adapters, of each layer or of every
    # second (selective); others run it, so that its order holds against steps without.
    *(
        Law(f"{slower} with adapters is no faster than {faster}",
            plain(draws.divided, lora_rank=16, runtime=runtime, **stated), change, ">=", STEP,
            ORDER)
        for faster, runtime, stated, slower, change in (
            ("compiled microbatches", "compiled", {}, "issuing single operations",
             to(runtime="eager")),
            ("single operations", "eager", {"recompute": "none"}, "torch-xla",
             lambda line, rng: line.but(
                 runtime="xla", recompute=rng.choice(("none", "selective", "full")))),
            ("compiled microbatches without recomputation", "compiled", {"recompute": "none"},
             "torch-xla",
             lambda line, rng: line.but(
                 runtime="xla", recompute=rng.choice(("none", "selective", "full")))),
        )
    ),
    Law("every layer recomputed is no faster than every second",
        plain(draws.train, recompute="full", recompute_every=2), to(recompute_every=1), ">=", STEP,
        ORDER),
    Law("the chunk level gives the memory of the collective level",
        plain(draws.train, level="collective"), to(level="chunk"), "==", ("memory_bytes",)),
    Law("the chunk level is near the collective level",
        plain(draws.train, level="collective", overlap="none"), to(level="chunk"), ">=", STEP,
        0.18),
    Law("the flow level is near the collective level",
        plain(draws.train, from_file=False, level="collective", overlap="none"), to(level="flow"),
        "==", STEP, 0.08),
    Law("auto is the collective level where ranks are few", plain(draws.train, level="auto"),
        to(level="collective"), "==", STEP),
    Law("a rank vector is the collective level without overlap",
        plain(draws.train, level="collective", overlap="none"), to(level="rank-vector"), "==", STEP,
        1e-9),
    Law("twice the rate of products does not slow a step", with_peaks(own(draws.train)),
        with_peak(2), "<=", STEP, ORDER),
    Law("less power does not speed a step",
        drawn_on(("dgx-h100:2",), draws.train, from_file=False, power_limit_w=700),
        to(power_limit_w=450), ">=", STEP, ORDER),
    Law("products in fewer bits do not slow wide layers", plain(draws.divided, precision="bf16"),
        to(precision="fp8"), "<=", STEP, PIECES),
    Law("torch-xla is no faster than single operations",
        drawn_on(TRAINIUM, draws.train, from_file=False, runtime="eager"), to(runtime="xla"),
        ">=", STEP, ORDER),
    Law("a job of twice the tokens takes twice as long, and as much",
        drawn_on(("trn2.48xlarge", "trn1.32xlarge"), draws.train, from_file=False, tokens=10**9),
        to(tokens=2 * 10**9), "==", ("job.days", "job.cost_usd", "job.energy_joules"),
        factor=lambda first, second: 2.0),
    *(
        Law(f"{what} changes nothing", plain(draws.train, zero=1), to(**option), "==", PARTS)
        for what, option in (
            ("no prediction head", {"prediction_heads": 0}),
            ("one virtual stage", {"vpp": 1}),
            ("one rank of a context", {"cp": 1}),
            ("adapters of rank zero", {"lora_rank": 0}),
            ("no limit of servers for a token", {"routed_nodes": 0}),
            ("the way to exchange contexts that nobody shares", {"cp_exchange": "all-gather"}),
        )
    ),
    Law("a measured time and a number of tokens leave a step", draws.composed,
        to(compare="1s", tokens=10**9), "==", PARTS),
    Law("the step of a job is that of training", plain(draws.train, from_file=False),
        lambda line, rng: replace(line.but(days=3, runs=1), words=("run-job",)), "==", STEP),
    Law("precision changes no count of parameters", draws.train, to(precision="fp8"), "==",
        ("parameters",)),
)  # fmt: skip
COMPOSED = (
    *(
        Law(f"of steps with seldom options, {what}", plain(draws.composed, without=without), change,
            holds, keys, apart)
        for what, without, change, holds, keys, apart in (
            ("both engines time one alike", (), to(engine="reference"), "==", PARTS, ROUNDING),
            ("unfolded ranks take the times of folded ones", ("level",), to(unfolded=True), "==",
             PARTS, 1e-6),
            ("a seed changes none", (), to(seed=5), "==", PARTS, ROUNDING),
            ("a price changes none", (), to(price_basis="on-demand"), "==", PARTS, ROUNDING),
            ("a fault after the end is none", ("fault",), to(fault="chip:1@1000s:slow=1/2"), "==",
             STEP, ROUNDING),
            ("a slow chip speeds none", ("fault",), to(fault="chip:1@0s:slow=1/2"), ">=", STEP,
             ORDER),
            ("a slow server speeds none", ("fault",), to(fault="server:0@0s:slow=1/2"), ">=", STEP,
             ORDER),
            ("a slow adapter speeds none", ("fault",), to(fault="adapter:0@0s:slow=1/2"), ">=",
             STEP, ORDER),
            ("slower memory and links speed none", (), to(catalogue="everything.csv"), ">=", STEP,
             PIECES),
            ("output layers alone take no longer", ("train-only", "lora-rank", "lora-on"),
             to(train_only="output"), "<=", STEP, PIECES),
            ("a rank vector is the collective level", ("level", "fault"),
             to(level="rank-vector"), "==", STEP, 0.01),
        )
    ),
)  # fmt: skip
EXPERTS = (
    Law("skewed tokens speed no step", plain(draws.train, experts=True, ep=2, tp=2, routing_skew=1),
        to_one_of("routing_skew", 1.5, 2), ">=", STEP, ORDER),
    Law("more capacity for tokens speeds no step",
        plain(draws.train, experts=True, ep=2, tp=2, capacity_factor=1), to(capacity_factor=1.5),
        ">=", STEP, ORDER),
    Law("one expert rank has no skew", plain(draws.train, experts=True, ep=1, tp=2), to(etp=2),
        "==", STEP),
    Law("folded experts are unfolded ones", plain(draws.train, experts=True, ep=2),
        to(unfolded=True), "==", PARTS, 1e-6),
)  # fmt: skip
SERVING = (
    Law("longer prompts have no earlier first token", idle, times("prompt", 2), ">=", FIRST_TOKEN),
    Law("longer answers take longer", draws.serve, times("output", 3), ">=", ("iterations",)),
    Law("both engines serve alike", plain(draws.serve, engine="fast"), to(engine="reference"), "==",
        SERVED),
    Law("a cache of nothing is no cache", draws.serve, to(prefix_cache="0%"), "==", SERVED),
    Law("a cache delays no first token", idle, to(prefix_cache="50%"), "<=", FIRST_TOKEN, 0.001),
    Law("one expert rank is none", draws.serve, to(ep=1), "==", SERVED),
    Law("a looser limit is kept as often", plain(draws.serve, slo="ttft=1ms,tpot=1ms"),
        to(slo="ttft=2s,tpot=1s"), ">=", ("slo_attainment",)),
    Law("milliseconds are thousandths", plain(draws.serve, slo="ttft=5ms,tpot=2ms"),
        to(slo="ttft=0.005s,tpot=0.002s"), "==", ("slo_attainment",)),
    Law("an idle replica answers as early with more slots", idle, to(slots=128), "==", FIRST_TOKEN),
    Law("more layers serve slower", idle, layers(2), ">=", LATER_TOKENS),
    Law("weights count no slots", draws.serve, to(slots=8), "==", ("weights_bytes",)),
    *(
        Law(f"{what} delay no token", own_idle,
            quantity(part, key, factor), "<=", (*FIRST_TOKEN, *LATER_TOKENS), apart)
        for what, part, key, factor, apart in (
            ("twice the memory bandwidth", "chip", "hbm_bandwidth", 2, 1e-9),
            ("twice the memory", "chip", "hbm_bytes", 2, 1e-9),
            ("twice the scale-up links", "scale_up", "bandwidth", 2, CHOICE),
            ("half the scale-up latencies", "scale_up", "latency", 0.5, CHOICE),
        )
    ),
    *(
        Law(f"{what} serves alike", own(draws.serve), change, "==", SERVED)
        for what, change in (
            ("a renamed machine", clone),
            ("a machine in other units", in_other_units),
            ("a machine with a domain more", wider),
        )
    ),
    *(
        Law(f"{what} serves no fewer tokens", own(draws.serve),
            quantity(part, key, 2), ">=", SERVED[2:], apart)
        for what, part, key, apart in (
            ("twice the memory bandwidth", "chip", "hbm_bandwidth", 1e-6),
            ("twice the scale-up links", "scale_up", "bandwidth", CHOICE),
        )
    ),
    Law("twice the rate of products delays no token", with_peaks(own_idle), with_peak(2), "<=",
        (*FIRST_TOKEN, *LATER_TOKENS)),
    Law("more users get no fewer tokens", plain(draws.serve, concurrency=2), to(concurrency=8),
        ">=", SERVED[2:], 1e-6),
    Law("one group of attention is none", draws.serve, to(attention_dp=1), "==", SERVED),
    Law("narrower cached values delay no token", plain(draws.serve, cache_precision="bf16"),
        to(cache_precision="fp8"), "<=", LATER_TOKENS, 1e-6),
    Law("fewer users wait no longer for a token", plain(draws.serve, concurrency=8),
        to(concurrency=2), "<=", ("tpot_s.mean", "ttft_s.mean")),
    Law("more requests are answered no sooner", plain(draws.serve, requests="poisson:1"),
        to(requests="poisson:100"), ">=", ("ttft_s.mean",)),
    Law("a larger cache delays no first token",
        plain(draws.serve, requests="poisson:0.01", prefix_cache="20%"), to(prefix_cache="60%"),
        "<=", FIRST_TOKEN, 0.001),
    Law("weights of half the bytes delay no token",
        lambda rng: bigger("intermediate_size", 16)(
            draws.serve(rng, requests="poisson:0.01", precision="bf16"), rng),
        to(precision="fp8"), "<=", LATER_TOKENS),
    Law("the stored precision of a cache is the one that is named",
        plain(draws.serve, precision="bf16"), to(cache_precision="bf16"), "==",
        (*SERVED, "kv_peak_bytes")),
    Law("prompts on a cluster of the same kind run as beside",
        plain(draws.serve, requests="poisson:1", disaggregate="1:1"),
        lambda line, rng: line.but(prefill_cluster=line.options["cluster"]), "==", SERVED),
    Law("prompts run on as many ranks as decoding where nobody says",
        plain(draws.serve, requests="poisson:1", disaggregate="1:1"),
        lambda line, rng: line.but(prefill_tp=line.options["tp"]), "==", SERVED),
    Law("proposals that are accepted more often delay no token",
        plain(draws.serve, requests="poisson:0.01", speculate="3:0.4"), to(speculate="3:0.9"),
        "<=", LATER_TOKENS),
    Law("narrower cached values hold no more", draws.serve, to(cache_precision="fp8"), "<=",
        ("kv_peak_bytes",)),
)  # fmt: skip
FLEETS = (
    Law("revenue follows the price", plain(draws.fleet, token_price=2), to(token_price=4), "==",
        ("revenue_usd",), factor=lambda first, second: 2.0),
    Law("a seed changes no fleet without chance", draws.fleet, to(seed=3), "==", FLEET),
    Law("what is not compared is run alike", draws.fleet, to(no_compare=None), "==", FLEET),
    Law("noise of zero is no noise", draws.fleet, to(noise=0), "==", FLEET),
    Law("faster units serve as much", draws.fleet, times("unit_rate", 2), ">=",
        ("slo_attainment",)),
    Law("a faster unit has twice the capacity", draws.fleet, times("unit_rate", 2), "==",
        ("capacity_requests_per_s",), factor=lambda first, second: 2.0),
    Law("a day is twenty-four hours of chips", draws.fleet, times("days", 2), "==", ("chip_hours",),
        factor=lambda first, second: 2.0),
    Law("growth of nothing is none", draws.fleet, to(what_if="growth=0%"), "==", FLEET),
    Law("growth offers more", draws.fleet, to(what_if="growth=30%"), ">=", ("offered_tokens",)),
    Law("minutes are sixtieths of hours", plain(draws.fleet, change_time="30min"),
        to(change_time="0.5h"), "==", FLEET),
    Law("units more serve as much", plain(draws.fleet, policy="static"),
        lambda line, rng: one_unit_more(one_unit_more(line, rng), rng), ">=", ("served_tokens",)),
    Law("one unit more serves as much, as well", draws.fleet, one_unit_more, ">=",
        ("served_tokens", "slo_attainment")),
    Law("one unit more trains as much", plain(draws.fleet, policy="oracle"), one_unit_more, ">=",
        ("training_tokens",)),
    Law("a floor serves as much", plain(draws.fleet, floor=0), to(floor=3), ">=",
        ("served_tokens", "slo_attainment")),
    Law("a limit of power that nothing reaches is the forecast",
        plain(draws.fleet, policy="forecast"), to(policy="power-cap", power_cap=100), "==", FLEET,
        0.01),
    Law("slower changes train no more", plain(draws.fleet, change_time="10min"),
        to(change_time="60min"), "<=", ("training_tokens",), 1e-6),
    Law("one kind of units is a cluster", draws.fleet,
        lambda line, rng: line.but(cluster=None, kind=line.options["cluster"]), "==", FLEET),
    Law("growth trains no more", plain(draws.fleet, policy="oracle"), to(what_if="growth=40%"),
        "<=", ("training_tokens",)),
    Law("a dearer token leaves more", plain(draws.fleet, token_price=2), to(token_price=3), ">=",
        ("margin_usd",)),
    *(
        Law(f"{what} breaks the SLO in no more nights", plain(draws.lend, **before), to(**after),
            "<=", ("backtest.violated", "backtest.worst_night_missed_share", "lent_unit_hours"))
        for what, before, after in (
            ("a reserve", {"reserve": 0}, {"reserve": 2}),
            ("more confidence", {"confidence": 0.6}, {"confidence": 0.85}),
        )
    ),
    Law("growth that faster units match changes nothing", plain(draws.fleet, noise=0),
        lambda line, rng: times("unit_rate", 1.5)(line, rng).but(what_if="growth=50%"), "==",
        ("slo_attainment", "training_tokens", "chip_hours_by_role"), 1e-6),
    Law("units that change in pairs lend no more", draws.lend, to(block=2), "<=",
        ("lent_unit_hours",)),
    Law("a later morning lends no less", plain(draws.lend, until="06:00"), to(until="07:00"),
        ">=", ("lent_unit_hours",)),
    Law("slower changes lend no more", plain(draws.lend, change_time="10min"),
        to(change_time="60min"), "<=", ("lent_unit_hours",)),
    Law("a floor lends no more", plain(draws.lend, floor=0), to(floor=4), "<=",
        ("lent_unit_hours",)),
    Law("one unit more lends no less", draws.lend, one_unit_more, ">=", ("lent_unit_hours",)),
    Law("a seed lends alike", draws.lend, to(seed=4), "==", LENT),
    Law("faster units lend no less", draws.lend, times("unit_rate", 1.5), ">=",
        ("lent_unit_hours",)),
    Law("an average of an hour is one of sixty minutes", plain(draws.lend, average="1h"),
        to(average="60min"), "==", LENT),
)  # fmt: skip
JOBS = (
    *(
        Law(f"{what} runs a job alike", own(draws.job), change, "==", JOB)
        for what, change in (
            ("a renamed machine", clone),
            ("a machine in other units", in_other_units),
        )
    ),
    Law("twice the failures gain nothing",
        plain(draws.job, failures="1", checkpoint_interval="1h", days=30), to(failures="4"), "<=",
        ("goodput",), 0.01),
    Law("no failures waste no goodput", draws.job, to(failures="0.000001"), ">=", ("goodput",)),
    Law("a job keeps the time of its step", plain(draws.job, failures="0.000001"), times("days", 2),
        "==", STEP),
    Law("a job of twice the days trains as much a day",
        plain(draws.job, failures="0.000001", checkpoint_interval="1h"), times("days", 2), "==",
        ("tokens",), 0.01, lambda first, second: 2.0),
    Law("a job without chance has no seed", plain(draws.job, failures="0.000001"), to(seed=8), "==",
        JOB),
    Law("spares cost no goodput", plain(draws.job, spares=0), to(spares=1), ">=", ("goodput",),
        0.01),
    *(
        Law(f"{what} gain nothing", plain(draws.job, checkpoint_interval="1h", days=30, **before),
            to(**after), "<=", ("goodput",), 0.01)
        for what, before, after in (
            ("eight times the failures", {"failures": "0.5"}, {"failures": "4"}),
            ("longer repairs", {"failures": "4", "repair": "1h", "spares": 1}, {"repair": "48h"}),
            ("fewer spares", {"failures": "4", "spares": 2}, {"spares": 1}),
        )
    ),
    Law("no other interval of checkpoints beats the best", plain(draws.job, failures="4", days=30),
        to_one_of("checkpoint_interval", "10min", "5h"), "<=", ("goodput",), 0.01),
    Law("an hour between checkpoints is sixty minutes", plain(draws.job, checkpoint_interval="1h"),
        to(checkpoint_interval="60min"), "==", JOB),
    Law("downtime after the end of a job is none", draws.job,
        to(maintenance="out/3000d+4h=1"), "==", JOB),
    Law("spares with their processes started cost no goodput",
        plain(draws.job, failures="4", checkpoint_interval="1h", spares=2, days=30,
              standby="cold"),
        to(standby="warm"), ">=", ("goodput",), 0.005),
    Law("a slower restart gains nothing",
        plain(draws.job, restart="5min", checkpoint_interval="1h"), to(restart="60min"), "<=",
        ("goodput",)),
)  # fmt: skip
PLANS = (
    *(
        Law(f"a search {what}", draws.plan, change, "==", BEST)
        for what, change in (
            ("on a renamed machine ends alike", clone),
            ("on a machine in other units ends alike", in_other_units),
            ("for a longer list has the same best", to(top=4)),
            ("with another seed ends alike", to(seed=3)),
        )
    ),
    *(
        Law(f"a search with {name} {value} alone finds none faster", draws.plan,
            to(**{name: value}), ">=", BEST[:1], ORDER)
        for name, value in (
            ("tp", 4), ("pp", 2), ("dp", 4), ("zero", 1), ("microbatch", 1), ("recompute", "full"),
        )
    ),
    Law("simulating more plans finds none slower", plain(draws.plan, finalists=4),
        to(finalists=16), "<=", BEST[:1]),
    *(
        Law(f"{what} does not slow the best plan", with_peaks(draws.plan), change, "<=", BEST[:1],
            apart)
        for what, change, apart in (
            ("twice the rate of products", with_peak(2), ORDER),
            ("twice the memory bandwidth", quantity("chip", "hbm_bandwidth", 2), ORDER),
            ("twice the memory", quantity("chip", "hbm_bytes", 2), ORDER),
            ("twice the scale-up links", quantity("scale_up", "bandwidth", 2), CHOICE),
        )
    ),
)  # fmt: skip
REPLAYS = (
    *(
        Law(f"{what} replay alike", draws.replay, change, "==", PARTS[:2])
        for what, change in (
            ("megabytes", rewritten("bandwidth", without_unit("GB/s", "MB/s", 1e3))),
            ("microseconds", rewritten("latency", without_unit("ns", "us", 1e-3))),
            ("seeds", to(seed=3)),
        )
    ),
    Law("faster links do not slow a replay", draws.replay,
        rewritten("bandwidth", without_unit("GB/s", "GB/s", 2)), "<=", STEP),
    Law("lower latency does not slow a replay", draws.replay,
        rewritten("latency", without_unit("ns", "ns", 0.5)), "<=", STEP),
)  # fmt: skip
QUEUES = (
    Law("a job alone waits for nothing", draws.queue,
        lambda line, rng: replace(line, jobs=line.jobs[3:4]), "==",
        ("longest_wait_s", "idle_beside_waiting"), factor=lambda first, second: 0.0),
    Law("jobs of one size wait no longer where there is more",
        plain(draws.queue, alike=("chips",), discipline="fifo", place="any"),
        lambda line, rng: replace(line, words=("queue", f"trn2-ultraserver:{rng.choice((4, 6))}")),
        "<=", WAITS),
    Law("longer jobs of one size end no sooner in order of arrival",
        plain(draws.queue, alike=("chips",), discipline="fifo", place="any"),
        jobs_changed(lambda job: minutes(job, 1.5, "min", "time", "limit")), ">=",
        (*WAITS, "end_s")),
    Law("every discipline does the same work", draws.queue,
        to_one_of("discipline", "fifo", "backfill", "priority", "shortest"), "==", ("used*end_s",)),
    Law("the order of rows is none of jobs", draws.queue, shuffled, "==", QUEUED),
    Law("jobs in seconds wait as in minutes", draws.queue,
        jobs_changed(lambda job: minutes(job, 60, "s")), "==", QUEUED),
    Law("a queue twice as slow waits twice as long", draws.queue,
        jobs_changed(lambda job: minutes(job, 2)), "==", (*WAITS, "end_s"),
        factor=lambda first, second: 2.0),
    Law("a queue that begins later waits alike", draws.queue,
        jobs_changed(lambda job: {**job, "submit": f"{int(job['submit'][:-3]) + 600}min"}), "==",
        QUEUED),
    Law("equal priorities are backfill",
        plain(draws.queue, alike=("priority",), discipline="backfill"), to(discipline="priority"),
        "==", QUEUED),
    Law("equal priorities preempt nobody",
        plain(draws.queue, alike=("priority",), discipline="backfill"), to(discipline="preempt"),
        "==", QUEUED),
    Law("no failures are none, whatever a restart takes", draws.queue,
        to(failures=0, restart="9min"), "==", QUEUED),
    Law("the shortest of equal times is the first",
        plain(draws.queue, alike=("time",), discipline="backfill"), to(discipline="shortest"), "==",
        QUEUED),
    Law("no later job of one size gets ahead",
        plain(draws.queue, alike=("chips",), discipline="fifo"), to(discipline="backfill"), "==",
        QUEUED),
    Law("jobs of one server are in one domain", plain(draws.queue, most=16, place="any"),
        to(place="domain"), "==", QUEUED),
    Law("a study leaves the answer", draws.queue, to(study=True), "==", QUEUED),
    Law("a later job delays none before it in order of arrival",
        plain(draws.queue, discipline="fifo"),
        lambda line, rng: replace(line, jobs=(*line.jobs, {**line.jobs[0], "submit": "121min"})),
        "==", tuple(f"jobs.{place}.start_s" for place in range(12))),
)  # fmt: skip
LAWS = (
    *(*COLLECTIVES, *TRAINING, *COMPOSED, *EXPERTS, *SERVING, *FLEETS, *JOBS),
    *(*PLANS, *REPLAYS, *QUEUES),
)
