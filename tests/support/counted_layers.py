"""Layers whose times count FLOPs, for the tests of training."""

from tests.support.toy_training import plan
from topologies.catalogue.catalogue import shipped_catalogue
from workloads.kernels.chip_share import Timing
from workloads.training.layers.steps import RankShapes


class CountedShapes(RankShapes):
    """RankShapes whose products take as many seconds as they have FLOPs, and all else none."""

    def gemm(self, m, n, k, batch=1, precision=""):
        return Timing(2.0 * m * n * k * batch, "assumed")

    def beside(self, timing):
        return timing

    def stream(self, size_bytes, work="streaming"):
        return Timing(0.0, "assumed")


def counted(model, **changes):
    """Counted layers of a rank of a plan, which the changes alter."""
    return CountedShapes(model, plan(**changes), "h100", shipped_catalogue())


def product_flops(steps):
    """FLOPs of all products, without the attention core and the scores of an indexer."""
    scores = ("attention.index", "attention.index.weight")
    return sum(x.seconds for x in steps if ".core" not in x.name and x.name not in scores)
