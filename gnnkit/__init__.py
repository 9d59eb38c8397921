"""Train graph neural networks on several workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnkit.errors import UserError

if TYPE_CHECKING:
    from torch import nn

    from gnnkit.graph import Graph
    from gnnkit.leader.result import Result
    from gnnkit.model.program import Program

__all__ = ["UserError", "train"]


def train(
    graph: Graph | Any = None,
    *,
    strategy: str | Mapping[str, Any],
    model: str | Mapping[str, Any] | nn.Module | Program | Callable[[int, int], nn.Module] = "gcn",
    overrides: Sequence[str] = (),
    folder: str | Path | None = None,
    **keys: Any,
) -> Result:
    """Runs one job, like `python -m gnnkit`.

    Raises `UserError` for mistakes of the caller. Otherwise raises `RuntimeError` with
    the failed rank's error.

    Args:
        graph: A `Graph`, or PyG's `Data`, to train on instead of a data set.
        strategy: Name of the strategy, or a mapping with name and keys.
        model: Name of a model, or a module, a program, or a function of (in_features,
            num_classes) that returns a module.
        overrides: Further keys, spelt as on the command line.
        folder: The run folder, not yet there. Default: `outputs/<date>/<time>`.
        **keys: Sections of the configuration. A section is the name of an option or a
            mapping: `partition="2d"`, `trainer={"max_epochs": 5}`.

    Returns:
        The figures of `result.json`, as a mapping.
    """
    from gnnkit import config, jobs, settings

    if graph is not None and "dataset" in keys:
        raise UserError("graph and dataset are given, one of them is enough")
    named = isinstance(model, str | Mapping)
    chosen = {"strategy": strategy, **({"model": model} if named else {}), **keys}
    settled = settings.settle(config.compose([*config.as_overrides(chosen), *overrides]))
    if graph is not None:
        from gnnkit.graph import Graph

        graph = Graph.of(graph)
        settled = settings.with_choice(settled, settings.Choice("dataset", "graph", {}))
    if not named:
        name = getattr(model, "__name__", type(model).__name__)
        settled = settings.with_choice(settled, settings.Choice("model", name, {}))
    return jobs.start(settled, folder, graph=graph, model=None if named else model)  # type: ignore[arg-type]
