"""LightGCN, against PyG's class and against one process."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.nn import LightGCN as Reference

from gnnkit.graph.edge_order import with_inverse_edges
from gnnkit.model.lightgcn import LightGCN
from gnnkit.partition import Grid
from gnnkit.sampler.links import pairs_of
from gnnkit.strategy.vertex_centric import VertexCentric
from gnnkit.task.link_prediction import LinkPrediction
from gnnkit.testing import check_model
from tests.graphs import shop
from tests.task.steps import make_workers, run_steps

GRAPH = shop(12, 9, 4, num_buys=50)
WIDTH = GRAPH.features.shape[1]


@pytest.mark.slow
@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_outputs_are_those_of_pyg(num_layers: int) -> None:
    pairs = torch.from_numpy(pairs_of(GRAPH.csc).T.copy())
    x = torch.randn(GRAPH.num_nodes, 8, dtype=torch.float64)
    reference = Reference(GRAPH.num_nodes, 8, num_layers).double()
    reference.embedding.weight.data = x
    expected = reference.get_embedding(torch.cat([pairs, pairs.flip(0)], 1))
    torch.testing.assert_close(LightGCN(8, 8, num_layers=num_layers).double()(x, pairs), expected)


def test_only_features_of_another_width_have_a_weight() -> None:
    assert [name for name, _ in LightGCN(8, 8).named_parameters()] == ["share"]
    assert LightGCN(8, 4).project.shape == (8, 4)  # type: ignore[union-attr]


@pytest.mark.slow
def test_it_is_a_model() -> None:
    check_model(LightGCN)


@pytest.mark.slow
@pytest.mark.parametrize("grid", [Grid(2, 1, 1), Grid(3, 1, 1), Grid(2, 2, 1), Grid(2, 1, 2)])
def test_ranks_compute_the_loss_and_gradient_of_one_process(grid: Grid) -> None:
    task = LinkPrediction(width=4, relation="user-buys-item", loss="softmax", negatives=2)
    graph, links = task.prepare(GRAPH)
    assert links is not None
    links, graph = links.with_inverse_edges(graph.num_relations), with_inverse_edges(graph)
    model = LightGCN(WIDTH, 4, graph.num_relations).double()
    many, one = (make_workers(graph, layout, whole=False, rows=links) for layout in (grid, Grid(1, 1, 1)))
    together = run_steps(VertexCentric(), task, model, many, grid.world_size)
    torch.testing.assert_close(together, run_steps(VertexCentric(), task, model, one, 1), rtol=1e-10, atol=1e-10)
    assert together[:, 1:].abs().max() > 1e-6
