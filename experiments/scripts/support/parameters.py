"""Parameters that several experiments have, each described once.

The docstring of an experiment describes its other parameters, and those of these names that mean
something else there. Both become the help of its options.
"""

PARAMETERS = {
    "cluster": "Named machine or cluster file",
    "days": "Simulated time; by default a week, to include weekdays and a weekend [d]",
    "global_batch": "Sequences of one optimizer step, all replicas together",
    "ideal": "Use the rates and latencies of links alone, without efficiencies and launches",
    "machine": "Machine of one scale-up domain, several of which form a cluster",
    "model": "Name of a shipped model, or path of a config.json",
    "models": "Names of shipped models, or paths of config.json files",
    "op": "Collective operation, such as all-reduce",
    "overlap": "Communication that overlaps compute: none, dp or all",
    "pp": "Pipeline stages",
    "ranks_per_chip": "Ranks on each chip",
    "replica": "Plan of one replica of the model, which is repeated over the chips",
    "seq": "Length of a sequence [tokens]",
    "sizes": "First and last size of the buffer, and the factor between two sizes; by default from "
    "launch-bound to bandwidth-bound [B]",
    "tp": "Tensor-parallel degree [ranks]",
    "watch": "Shows the progress, see :func:`experiments.scripts.support.points.each`",
}
