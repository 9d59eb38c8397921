"""Recognises PyG models, and wraps them as models of (x, adjacencies)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gnnkit.model import unchanged
from gnnkit.model.hetero import HeteroModel
from gnnkit.model.hetero_forward import HeteroArguments
from gnnkit.model.pyg_steps import own_steps
from gnnkit.model.unchanged import EdgeIndexModel, EdgeIndexSteps, model_error


def adapted(model: Any) -> Any:
    """Wraps a PyG module as one of (x, adjacencies).

    Returns other values unchanged. Raises `UserError` for a `forward` with an
    unsupported parameter.
    """
    if not isinstance(model, nn.Module) or isinstance(model, EdgeIndexModel):
        return model
    _initialise_rgat(model)
    name = type(model).__name__  # the user's class, for errors
    base = next((base_class for base_class in type(model).__mro__ if base_class.__name__ == "LightningModule"), None)
    if (arguments := HeteroArguments.of(model)) is not None:
        if base is not None and "training_step" in own_steps(type(model), base):
            raise model_error(
                model,
                "training_step reads a HeteroData, which a worker does not have: leave the step out, or train with "
                "Lightning's Trainer and gnnkit.pyg.NeighborLoader",
            )
        return type(name, (HeteroModel,), {})(model, arguments)
    if not unchanged.reads_edges(model):
        return model
    if base is None:
        return type(name, (EdgeIndexModel,), {})(model)
    return type(name, (EdgeIndexSteps, base), own_steps(type(model), base))(model)


def _initialise_rgat(model: nn.Module) -> None:
    """Fills `l2` of PyG's `RGATConv`, which `reset_parameters` leaves uninitialised.

    NaN in this memory would make checkpoints fail, at random. The value is that which
    `reset_parameters` computes without storing it.
    """
    for part in model.modules():
        l2 = getattr(part, "l2", None) if type(part).__name__ == "RGATConv" else None
        if isinstance(l2, nn.Parameter) and not l2.is_meta and not l2.isfinite().all():
            with torch.no_grad():
                l2.fill_(1 / l2.shape[1])


def reads_edges(model: nn.Module) -> bool:
    """Returns whether a module takes edges as PyG's do, rather than adjacencies."""
    return takes_types(model) or unchanged.reads_edges(model)


def takes_types(model: nn.Module) -> bool:
    """Returns whether a module takes rows and edges in dictionaries by type."""
    return HeteroArguments.of(model) is not None


def reads_types(model: object) -> bool:
    """Returns whether a model distinguishes edge types."""
    return unchanged.reads_types(model) or (isinstance(model, nn.Module) and takes_types(model))
