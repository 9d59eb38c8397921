"""The contract of tasks."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from gnnkit.graph import Graph, Split
from gnnkit.partition import Grid
from gnnkit.sampler.links import Links
from gnnkit.sampler.targets import Targets, count_outputs
from gnnkit.strategy import Worker
from gnnkit.task import Task
from gnnkit_testing.arguments import check_maker
from gnnkit_testing.graphs import check_graph
from gnnkit_testing.ranks import GRIDS, ONE, assert_close, on_ranks


def check_task(make: Callable[[], Task], graph: Graph | None = None) -> None:
    """Checks a task on a graph with suitable labels, with one rank that owns nothing.

    `prepare` must return the same in a second call, `head` the same module, and
    `num_outputs` a width. A row's loss must not depend on other rows, and must have
    finite gradients. Metrics must be those in `names`, and be independent of the number
    of ranks. Predictions must be returned on the leader only, and also be independent
    of it. `columns` must return a value per prediction.

    Args:
        graph: A graph with labels for the task. If None, a graph with classes. Its
            edges get the labels of their destinations, unless they have labels.
    """
    check_maker(make, Task)
    task = make()
    prepared, links = _check_prepare(task, make(), _with_edge_labels(check_graph() if graph is None else graph))
    if isinstance(links, Targets):
        task.size_head(links.num_classes, 0 if prepared.edge_features is None else prepared.edge_features.shape[1])
    if (head := task.head()) is not None:
        assert task.head() is head, "head gives another module in the second call"
        head.double()
    assert task.metrics, "a task needs a metric"
    width = task.num_outputs(prepared.num_classes)
    assert isinstance(width, int), f"num_outputs gives {width!r}, not a width"
    assert width > 0, f"num_outputs gives {width!r}, not a width"
    _check_losses(task, prepared, links, width)
    _check_figures(task, prepared, links, width)


def _with_edge_labels(graph: Graph) -> Graph:
    """Returns a graph whose edges have the labels of their destinations, if none."""
    if graph.edge_labels is not None:
        return graph
    ends = np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))
    return graph.evolve(edge_labels=graph.labels[ends], edge_split=graph.split[ends])


def _check_prepare(task: Task, other_task: Task, graph: Graph) -> tuple[Graph, Links | Targets | None]:
    """Returns the prepared graph and edges to predict, which must be reproducible."""
    (prepared, links), (again, links_again) = task.prepare(graph), other_task.prepare(graph)
    for name in ("labels", "split", "features"):
        one, other = getattr(prepared, name), getattr(again, name)
        same = np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
        assert same, f"the second call of prepare gives other {name}"
    assert np.array_equal(prepared.csc.indices, again.csc.indices), "the second call of prepare gives other edges"
    assert (links is None) == (links_again is None), "the second call of prepare gives other edges to predict"
    return prepared, links


def _check_figures(task: Task, prepared: Graph, links: Links | Targets | None, width: int) -> None:
    """Checks metrics and predictions on several layouts against those of one rank."""
    outputs = torch.randn(prepared.num_nodes, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ((expected, rows),) = _measured(task, prepared, links, outputs, ONE)
    assert rows is not None, "predictions gives nothing on the leader"
    num_rows = len(links) if isinstance(links, Targets) else prepared.num_nodes
    _check_columns(task, rows, num_rows, count_outputs(links) or width)
    unknown = set(expected) - set(task.names)
    assert not unknown, f"measure gives {sorted(unknown)}, which are not in names"
    assert set(expected) & {name for name in task.names if name.endswith(task.metrics[0])}, "measure gives nothing"
    for grid in GRIDS[:2]:
        measured = _measured(task, prepared, links, outputs, grid)
        for rank, (figures, _) in enumerate(measured):
            assert figures.keys() == expected.keys(), f"measure gives other figures on rank {rank} of {grid}"
            values = torch.tensor([list(metrics.values()) for metrics in (figures, expected)], dtype=torch.float64)
            assert_close(values[0], values[1], f"figures on rank {rank} of {grid}, against one rank")
        assert measured[0][1] is not None, f"predictions gives nothing on the leader of {grid}"
        assert_close(measured[0][1].double(), rows.double(), f"predictions on {grid}, against one rank")
        assert all(other is None for _, other in measured[1:]), f"predictions gives rows to other ranks of {grid}"


def _check_columns(task: Task, rows: Tensor, num_nodes: int, width: int) -> None:
    """Checks the tables of a run, with and without ids and class names."""
    names = [f"class {number}" for number in range(width)]
    for ids, classes in ((np.arange(num_nodes), None), (np.array([f"n{i}" for i in range(num_nodes)]), names)):
        lengths = {name: len(column) for name, column in task.columns(rows.numpy(), ids, classes).items()}
        assert set(lengths.values()) == {len(rows)}, f"columns gives {lengths} rows for {len(rows)} predictions"
        titles = task.output_names(classes)
        assert titles is None or len(titles) == width, f"output_names gives {titles} for {width} outputs"


def _check_losses(task: Task, graph: Graph, links: Links | Targets | None, width: int) -> None:
    labels, shape = _rows(graph, links)
    width = count_outputs(links) or width
    outputs = torch.randn((len(labels), *shape, width), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    outputs.requires_grad_()
    losses = task.losses(outputs, labels)
    assert losses.shape == (len(labels),), f"losses gives shape {tuple(losses.shape)} for {len(labels)} rows"
    alone = torch.cat([task.losses(outputs[i : i + 1], labels[i : i + 1]) for i in range(len(labels))])
    assert_close(losses.detach(), alone.detach(), "losses of rows together, against each row alone")
    assert task.losses(outputs[:0], labels[:0]).shape == (0,), "losses fails without rows, which a rank may have"
    torch.autograd.backward(losses.sum())
    assert outputs.grad is not None, "losses gives no gradient"
    assert bool(outputs.grad.isfinite().all()), "losses gives a gradient that is not finite"


def _rows(graph: Graph, links: Links | Targets | None) -> tuple[Tensor, tuple[int, ...]]:
    """Returns labels of some rows, and a row's shape before the width."""
    if isinstance(links, Targets):
        return torch.from_numpy(links.label[links.of_split(Split.TRAIN)]), ()
    if links is not None:
        return torch.arange(6, dtype=torch.float32) % 2, (2,)
    nodes = np.flatnonzero((graph.split == Split.TRAIN) & graph.labelled)
    return torch.from_numpy(graph.labels[nodes]), ()


def _measured(
    task: Task, graph: Graph, links: Links | Targets | None, outputs: Tensor, grid: Grid
) -> list[tuple[dict[str, float], Tensor | None]]:
    """Returns each rank's metrics and predictions."""

    def work(worker: Worker) -> tuple[dict[str, float], Tensor | None]:
        owned, of_nodes = copy.deepcopy(task), outputs[torch.from_numpy(worker.owned.astype(np.int64))]
        logits = owned.row_outputs(of_nodes, worker)
        return owned.measure(logits, worker), owned.predictions(logits, worker)

    return on_ranks(graph, grid, work, links=links)
