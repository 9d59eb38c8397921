"""The contract of tasks."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from gnnkit.graph import Graph, Split, labelled
from gnnkit.partition import Grid
from gnnkit.sampler.targets import TaskRows
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

    Examples:
        >>> from gnnkit.task.node_classification import NodeClassification
        >>> from gnnkit.testing import check_task
        >>> check_task(NodeClassification)
    """
    check_maker(make, Task)
    task = make()
    task_graph, task_rows = _check_prepare(task, make(), _with_edge_labels(check_graph() if graph is None else graph))
    if task_rows.num_outputs:
        task.size_head(
            task_rows.num_outputs, 0 if task_graph.edge_features is None else task_graph.edge_features.shape[1]
        )
    if (head := task.head()) is not None:
        assert task.head() is head, "head gives another module in the second call"
        head.double()
    assert task.metrics, "a task needs a metric"
    width = task.num_outputs(task_graph.num_classes)
    assert isinstance(width, int), f"num_outputs gives {width!r}, not a width"
    assert width > 0, f"num_outputs gives {width!r}, not a width"
    _check_losses(task, task_graph, task_rows, width)
    _check_figures(task, task_graph, task_rows, width)


def _with_edge_labels(graph: Graph) -> Graph:
    """Returns a graph whose edges have the labels of their destinations, if none."""
    if graph.edge_labels is not None:
        return graph
    ends = np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))
    return graph.evolve(edge_labels=graph.labels[ends], edge_split=graph.split[ends])


def _check_prepare(task: Task, other_task: Task, graph: Graph) -> tuple[Graph, TaskRows]:
    """Returns the prepared graph and rows to predict, which must be reproducible."""
    (task_graph, task_rows), (again, rows_again) = task.prepare(graph), other_task.prepare(graph)
    for name in ("labels", "split", "features"):
        value, value_again = getattr(task_graph, name), getattr(again, name)
        is_same = np.array_equal(value, value_again, equal_nan=value.dtype.kind == "f")
        assert is_same, f"the second call of prepare gives other {name}"
    assert np.array_equal(task_graph.csc.indices, again.csc.indices), "the second call of prepare gives other edges"
    assert type(task_rows) is type(rows_again), "the second call of prepare gives other rows to predict"
    return task_graph, task_rows


def _check_figures(task: Task, task_graph: Graph, task_rows: TaskRows, width: int) -> None:
    """Checks metrics and predictions on several layouts against those of one rank."""
    outputs = torch.randn(task_graph.num_nodes, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ((reference, rows),) = _measure(task, task_graph, task_rows, outputs, ONE)
    assert rows is not None, "predictions gives nothing on the leader"
    num_rows = task_rows.num_rows(task_graph.num_nodes)
    _check_columns(task, rows, num_rows, task_rows.num_outputs or width)
    unknown = set(reference) - set(task.names)
    assert not unknown, f"measure gives {sorted(unknown)}, which are not in names"
    assert set(reference) & {name for name in task.names if name.endswith(task.metrics[0])}, "measure gives nothing"
    for grid in GRIDS[:2]:
        results = _measure(task, task_graph, task_rows, outputs, grid)
        for rank, (figures, _) in enumerate(results):
            assert figures.keys() == reference.keys(), f"measure gives other figures on rank {rank} of {grid}"
            values = torch.tensor([list(metrics.values()) for metrics in (figures, reference)], dtype=torch.float64)
            assert_close(values[0], values[1], f"figures on rank {rank} of {grid}, against one rank")
        assert results[0][1] is not None, f"predictions gives nothing on the leader of {grid}"
        assert_close(results[0][1].double(), rows.double(), f"predictions on {grid}, against one rank")
        assert all(output is None for _, output in results[1:]), f"predictions gives rows to other ranks of {grid}"


def _check_columns(task: Task, rows: Tensor, num_nodes: int, width: int) -> None:
    """Checks the tables of a run, with and without ids and class names."""
    names = [f"class {number}" for number in range(width)]
    for ids, classes in ((np.arange(num_nodes), None), (np.array([f"n{i}" for i in range(num_nodes)]), names)):
        lengths = {name: len(column) for name, column in task.columns(rows.numpy(), ids, classes).items()}
        assert set(lengths.values()) == {len(rows)}, f"columns gives {lengths} rows for {len(rows)} predictions"
        titles = task.output_names(classes)
        assert titles is None or len(titles) == width, f"output_names gives {titles} for {width} outputs"


def _check_losses(task: Task, graph: Graph, rows: TaskRows, width: int) -> None:
    labels, shape = _labels(graph, rows)
    width = rows.num_outputs or width
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


def _labels(graph: Graph, rows: TaskRows) -> tuple[Tensor, tuple[int, ...]]:
    """Returns labels of some rows, and a row's shape before the width."""
    if rows.drawn:
        return torch.arange(6, dtype=torch.float32) % 2, (2,)
    label, split, _ = rows.values(graph)
    return torch.from_numpy(label[labelled(label) & (split == Split.TRAIN)]), ()


def _measure(
    task: Task, graph: Graph, rows: TaskRows, outputs: Tensor, grid: Grid
) -> list[tuple[dict[str, float], Tensor | None]]:
    """Returns each rank's metrics and predictions."""

    def work(worker: Worker) -> tuple[dict[str, float], Tensor | None]:
        task_copy, of_nodes = copy.deepcopy(task), outputs[torch.from_numpy(worker.owned.astype(np.int64))]
        logits = task_copy.row_outputs(of_nodes, worker)
        return task_copy.measure(logits, worker), task_copy.predictions(logits, worker)

    return on_ranks(graph, grid, work, rows=rows)
