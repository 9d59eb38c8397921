"""From a configuration, or what the user gave instead, to a model."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from gnnkit import plugins
from gnnkit.graph import Graph
from gnnkit.model.program import Program
from gnnkit.partition.shard import Shard

ModelFactory = Callable[[int, int], nn.Module]  # (in_features, num_classes)
Given = nn.Module | ModelFactory | Program | None  # by the user, instead of the model that the config names


def make_program(config: dict[str, Any], given: Given) -> Program | None:
    """A new program, if that is what was given or configured; None if it is a model that is trained."""
    if isinstance(given, Program):
        return copy.deepcopy(given)  # ranks may be threads
    chosen = plugins.load("model", config["model"]["name"]) if given is None else given
    if not (isinstance(chosen, type) and issubclass(chosen, Program)):
        return None
    program: Program = chosen() if given else plugins.create("model", config["model"])
    return program


def make_model(config: dict[str, Any], given: Given, data: Graph | Shard) -> nn.Module:
    """A new model for that data: `given`, or else the configured one, which learns the width of edge features if it asks.

    Raises `ValueError` for a module that does not say how many adjacencies it reads.
    """
    assert not isinstance(given, Program)
    model = _make(config, given, data)
    if not isinstance(getattr(model, "num_layers", None), int):
        raise ValueError(f"model={type(model).__name__} needs an attribute num_layers: how many adjacencies it reads")
    return model


def _make(config: dict[str, Any], given: nn.Module | ModelFactory | None, data: Graph | Shard) -> nn.Module:
    widths = {"in_features": data.features.shape[1], "num_classes": data.num_classes}
    if isinstance(given, nn.Module):
        return copy.deepcopy(given)  # ranks may be threads
    if given is not None:
        return given(*widths.values())
    if "edge_width" in inspect.signature(plugins.load("model", config["model"]["name"])).parameters:
        widths["edge_width"] = 0 if data.edge_features is None else data.edge_features.shape[1]
    model: nn.Module = plugins.create("model", config["model"], **widths)
    return model
