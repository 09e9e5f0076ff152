"""Replicas that several tests of serving measure."""

import pytest

from topologies.clusters.names import cluster
from workloads.models.huggingface import named
from workloads.serving import Profile, profile


@pytest.fixture(scope="package")
def served_70b() -> Profile:
    """A replica of Llama-3.1-70B on a Trn2 server."""
    return profile(named("llama-3.1-70b"), cluster("trn2.48xlarge"))
