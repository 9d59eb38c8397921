"""The comparison with plain torch in one process, by the package gnnkit-witness."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.partition import Grid
from gnnkit_testing.ranks import GRIDS

_MODULE = "gnnkit_witness"


def check_witness(
    make: Callable[[int, int], nn.Module], grids: Sequence[Grid] = GRIDS, graph: Graph | None = None, **keys: Any
) -> None:
    """Trains a model on several ranks, and in plain torch in one process.

    The second run uses no kernel or exchange of the engine, so an error there cannot go
    unnoticed. Losses, parameters, buffers and logits must be equal after each epoch.
    Raises `AssertionError` for the first difference, and `UserError` if the package
    gnnkit-witness is not installed.

    Args:
        make: Makes the model from (in_features, num_classes).
        grids: Process grids. The last of several ranks owns nothing. Default: one of
            each kind.
        graph: Some dozens of nodes with classes. Default: a directed, weighted graph
            with edge features of width 2, isolated nodes, loops and parallel edges.
        **keys: Further fields of `gnnkit_witness.Plan`, such as `strategy`, `sync` and
            `sampler`. The result must be exactly that of one process: a strategy reads
            each training node once per epoch, and a sampler draws all in-edges, without
            relations.
    """
    witness().check_witness(make, grids, graph, **keys)


def is_installed() -> bool:
    """Returns whether the package gnnkit-witness is installed."""
    return importlib.util.find_spec(_MODULE) is not None


def witness() -> Any:
    """Imports the package. Raises `UserError` if it is missing."""
    if not is_installed():
        raise UserError(
            "gnnkit_testing.witness: the package gnnkit-witness is not installed: pip install gnnkit-witness"
        )
    return importlib.import_module(_MODULE)
