"""The model that a serving row names: a shipped one, a config, or one shipped for a table."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from workloads.models.huggingface import model
from workloads.models.model import Model


def model_for(name: str) -> Model:
    """Return the model of a row.

    Raises
    ------
    InputError
        For an unknown name.

    Examples
    --------
    >>> model_for("trinity-nano").layers, model_for("llama-3.1-8b").layers
    (56, 32)
    """
    return model(_of_tables().get(name.lower(), name))


@cache
def _of_tables() -> dict[str, str]:
    """Files of the models that come with the tables, by name."""
    folder = files("experiments.validation") / "models_of_tables"
    return {item.name.removesuffix(".json"): str(item) for item in folder.iterdir()}
