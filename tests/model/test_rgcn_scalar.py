"""Layers of rgcn with a number per relation, against dense matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.model.rgcn import RGCN
from gnnkit.partition import Grid
from gnnkit.sampler.links import pairs_of
from gnnkit.strategy.vertex_centric import VertexCentric
from gnnkit.task.link_prediction import LinkPrediction
from tests.graphs import shop
from tests.task.steps import make_workers, run_steps

GRAPH = shop(12, 9, 4, num_buys=50)
WIDTH = GRAPH.features.shape[1]
RELATIONS = GRAPH.num_relations


def means(graph: Graph) -> list[torch.Tensor]:
    """Returns the mean matrix of each relation, and then of each inverse relation."""
    pairs, n, matrices = pairs_of(graph.csc), graph.num_nodes, []
    for flip in (False, True):
        for relation in range(RELATIONS):
            matrix = np.zeros((n, n))
            for source, destination in pairs[graph.edge_types == relation]:
                ends = (source, destination) if flip else (destination, source)
                matrix[ends] += 1
            matrices.append(torch.from_numpy(matrix / np.maximum(matrix.sum(1, keepdims=True), 1)))
    return matrices


@pytest.mark.slow
def test_a_layer_adds_weighted_means_to_a_node_s_row() -> None:
    model = RGCN(WIDTH, WIDTH, RELATIONS, scalar=True).double().eval()
    numbers = torch.linspace(-1, 2, 2 * RELATIONS, dtype=torch.float64)
    for conv in model.convs:
        conv.weight.data.copy_(numbers)
    x = torch.from_numpy(np.asarray(GRAPH.features, np.float64))
    expected = x
    for _ in range(2):
        sums = sum(number * matrix @ expected for number, matrix in zip(numbers, means(GRAPH), strict=True))
        expected = (expected + sums) / 2
    pairs = torch.from_numpy(pairs_of(GRAPH.csc).T.copy())
    assert GRAPH.edge_types is not None
    types = torch.from_numpy(np.asarray(GRAPH.edge_types, np.int64))
    torch.testing.assert_close(model(x, pairs, edge_type=types), expected)


@pytest.mark.slow
@pytest.mark.parametrize("grid", [Grid(2, 1, 1), Grid(3, 1, 1), Grid(2, 2, 1), Grid(2, 1, 2)])
def test_ranks_compute_the_loss_and_gradient_of_one_process(grid: Grid) -> None:
    task = LinkPrediction(width=WIDTH, relation="user-buys-item", loss="softmax", negatives=2)
    graph, links = task.prepare(GRAPH)
    model = RGCN(WIDTH, WIDTH, RELATIONS, scalar=True, dropout=0.2).double()
    many, one = (make_workers(graph, layout, whole=False, links=links) for layout in (grid, Grid(1, 1, 1)))
    together = run_steps(VertexCentric(), task, model, many, grid.world_size)
    torch.testing.assert_close(together, run_steps(VertexCentric(), task, model, one, 1), rtol=1e-10, atol=1e-10)
    assert together[:, 1:].abs().max() > 1e-6


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"bases": 2}, r"model.scalar=true: layers have no weights and are linear, so model.bases must go"),
        ({"norm": "layer"}, r"so model.norm must go"),
        ({"self_loop": False}, r"so model.self_loop must go"),
        ({"num_classes": 5}, r"3 columns of input rows, expected 5.*embedding=5"),
    ],
)
def test_other_keys_and_widths_are_refused(keys: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        RGCN(**{"in_features": 3, "num_classes": 3, "num_relations": 2, "scalar": True, **keys})  # type: ignore[arg-type]
