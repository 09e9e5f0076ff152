"""Names of a wrong type are refused in one line at the front door."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import cluster_sim as cs


@pytest.mark.parametrize("value", [5, None, ["trn2.48xlarge"], Path("pod.yaml")])
def test_a_cluster_is_named_by_text(value: Any) -> None:
    with pytest.raises(cs.InputError, match=r"^cluster is .*Pass a name"):
        cs.cluster(value)


@pytest.mark.parametrize("value", [5, None, ["gpt2"]])
def test_a_model_is_named_by_text_or_path(value: Any) -> None:
    with pytest.raises(cs.InputError, match=r"^model is .*Pass a name"):
        cs.model(value)
