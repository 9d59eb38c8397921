"""Train graph neural networks on several workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from gnnkit.graph import Graph
    from gnnkit.model.program import Program

__all__ = ["train"]


def train(
    graph: Graph | None = None,
    *,
    strategy: str | Mapping[str, Any],
    model: str | Mapping[str, Any] | nn.Module | Program | Callable[[int, int], nn.Module] = "gcn",
    overrides: Sequence[str] = (),
    folder: str | Path | None = None,
    **keys: Any,
) -> dict[str, Any]:
    """Runs one job as `python -m gnnkit` does, and returns what its `result.json` holds.

    `graph` is trained on instead of a data set. `model` may also be a module, a program, or a function of (in_features,
    num_classes) that returns a module. The other keys are those of the command line: a section is the name of an option or a mapping, such as
    `partition="2d"`, `trainer={"max_epochs": 5}` or `partition={"name": "2d", "nodes": "hash"}`; `overrides` are spelt as
    there. The run's files go to `folder`, which must not exist yet, or to `outputs/<date>/<time>`.

    Raises `ValueError` for what the caller can mend, `RuntimeError` that shows the failed rank's own error otherwise.
    """
    from gnnkit import config, job

    if graph is not None and "dataset" in keys:
        raise ValueError("graph and dataset are given, one of them is enough")
    named = isinstance(model, str | Mapping)
    chosen = {"strategy": strategy, **({"model": model} if named else {}), **keys}
    settled = job.settle(config.compose([*config.as_overrides(chosen), *overrides]))
    if graph is not None:
        settled["dataset"] = {"name": "graph"}
    if not named:
        settled["model"] = {"name": getattr(model, "__name__", type(model).__name__)}
    return job.start(settled, folder, graph=graph, model=None if named else model)
