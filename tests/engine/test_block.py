"""A block with all in-edges equals the whole graph, and computes what is asked for."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from gnnkit.engine import BlockAdjacency, BlockLayers
from gnnkit.graph import CSC, Block, Graph
from gnnkit.partition import degrees
from gnnkit.partition.degrees import Degrees
from gnnkit.sampler import FullSampler
from tests.engine.reference import OneProcess, whole_graph
from tests.models import MODELS

CPU = torch.device("cpu")
KINDS = {
    "plain": {"num_edges": 60},
    "weighted": {"num_edges": 60, "weighted": True},
    "no edges": {"num_edges": 0, "weighted": True},
}


def make_graph(num_edges: int, weighted: bool = False, num_nodes: int = 12) -> Graph:
    """Loops, parallel edges and isolated nodes are among the edges."""
    rng = np.random.default_rng(num_edges)
    src, dst = rng.integers(0, num_nodes - 2, (2, num_edges))
    return Graph.from_edges(
        src,
        dst,
        num_nodes,
        features=rng.integers(-2, 3, (num_nodes, 4)),  # with equal maxima
        weight=rng.uniform(0.5, 2, num_edges) if weighted else None,
        edge_features=rng.normal(size=(num_edges, 2)),
    )


def of_block(graph: Graph, seeds: list[int], self_loops: bool) -> tuple[BlockAdjacency, Block]:
    (block,) = FullSampler(num_hops=1).sample(graph.csc, np.array(seeds), key=0).blocks
    layers = BlockLayers(graph, SimpleNamespace(self_loops=self_loops), torch.float64, CPU)
    return layers.layers([block], 11)[0], block


def operations(adjacency: BlockAdjacency | OneProcess, x: Tensor) -> dict[str, Tensor]:
    """Everything that a layer may ask for, by row of a destination."""
    column = x[:, :1]
    scores = adjacency.scores(column, column[: adjacency.num_dst])
    attention = adjacency.softmax(scores.sin()).expand(-1, 2)
    features = adjacency.edge_features
    assert features is not None
    results = {mode: adjacency.aggregate(x, reduce=mode) for mode in ("sum", "mean", "max")}  # type: ignore[arg-type]
    return results | {
        "attention": adjacency.aggregate(x.view(-1, 2, 2), weight=attention).flatten(1),
        "messages": adjacency.aggregate_messages(
            x, lambda rows, columns: (rows + features.repeat(1, 2)[:, columns]).relu()
        ),
        "normalized": adjacency.aggregate_normalized(x),
        "mean beside own rows": adjacency.concat_mean(x),
        "in_degree": adjacency.in_degree[:, None],
    }


@pytest.mark.slow
@pytest.mark.parametrize("self_loops", [False, True], ids=["as is", "with loops"])
@pytest.mark.parametrize("seeds", [[5, 0, 11, 3], list(range(12)), []], ids=["some", "all", "none"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_block_of_all_in_edges_equals_the_whole_graph(kind: str, seeds: list[int], self_loops: bool) -> None:
    graph = make_graph(**KINDS[kind])  # type: ignore[arg-type]
    (full_graph,) = whole_graph(graph, SimpleNamespace(self_loops=self_loops, num_layers=1))  # type: ignore[arg-type]
    adjacency, block = of_block(graph, seeds, self_loops)
    x = torch.tensor(graph.features, dtype=torch.float64, requires_grad=True)
    of_whole, of_rows = operations(full_graph, x), operations(adjacency, x[adjacency.src_nodes])  # type: ignore[arg-type]
    for name, reference in of_whole.items():
        torch.testing.assert_close(of_rows[name], reference[seeds], rtol=1e-12, atol=1e-12, msg=name)
        if reference.requires_grad and seeds:
            slopes = [
                torch.autograd.grad(z.sin().sum(), x, retain_graph=True)[0] for z in (of_rows[name], reference[seeds])
            ]
            torch.testing.assert_close(*slopes, rtol=1e-12, atol=1e-12, msg=f"gradient of {name}")
    torch.testing.assert_close(adjacency.out_degree, full_graph.out_degree[adjacency.src_nodes])
    assert adjacency.num_edges == len(adjacency.edge_ids) == len(adjacency.edge_features)
    assert block.num_dst == len(seeds)


def test_a_drawn_edge_counts_as_often_as_its_row_has_edges() -> None:
    csc = CSC(np.array([0, 4, 4]), np.array([0, 1, 1, 0]), np.array([1.0, 2.0, 3.0, 4.0]))
    graph = Graph(csc, np.zeros((2, 1)), np.zeros(2, np.int64), np.ones(2, np.int8))
    layers = BlockLayers(graph, SimpleNamespace(), torch.float64, CPU)
    x = torch.tensor([[10.0], [1.0]], dtype=torch.float64)

    def total(edge_ids: list[int] | None, weight: list[float] | None = None) -> tuple[float, float]:
        ids = None if edge_ids is None else np.array(edge_ids)
        block = Block(
            np.array([0, 2]), np.array([1, 0]), np.array([0, 1]), ids, None if weight is None else np.array(weight)
        )
        adjacency = BlockAdjacency(layers, block, 1)
        return float(adjacency.aggregate(x)), float(adjacency.aggregate_messages(x, lambda rows, columns: rows))

    assert total([1, 3]) == (2 * (2 * 1 + 4 * 10), 2 * (1 + 10))  # two of four
    assert total([1, 3], [3.0, 0.5]) == (3 * 2 * 1 + 0.5 * 4 * 10, 3 * 1 + 0.5 * 10)
    assert total(None, [0.25, 0.75]) == (10 * (0.25 * 1 + 0.75 * 10),) * 2  # any nodes, shares of the in-degree


def test_a_product_comes_first_where_this_costs_less() -> None:
    graph = make_graph(60)
    every_row, _ = of_block(graph, list(range(12)), self_loops=False)
    assert every_row.project_first(100, 40)
    assert not every_row.project_first(40, 100)
    one_row, _ = of_block(graph, [0], self_loops=False)
    assert not one_row.project_first(100, 99)  # of many sources, for one sum


def test_nothing_that_a_model_does_not_ask_for_is_computed() -> None:
    adjacency, _ = of_block(make_graph(60), [1, 2, 3], self_loops=False)
    adjacency.aggregate(torch.ones(adjacency.edges.num_src, 4, dtype=torch.float64), reduce="mean")
    assert not Degrees.of(adjacency._layers.graph.csc)._arrays
    assert "mean_edge_features" not in vars(adjacency._layers)
    assert not {"edge_ids", "_held_ids", "edge_features", "src_nodes"} & vars(adjacency).keys()


@pytest.mark.parametrize("at_a_time", [1, 7, 1000])
def test_loops_are_found_however_many_edges_are_read_at_a_time(at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(degrees, "_EDGES_AT_A_TIME", at_a_time)
    for num_edges in (0, 60):
        csc = make_graph(num_edges).csc
        reference = [v in csc.indices[csc.indptr[v] : csc.indptr[v + 1]] for v in range(csc.num_nodes)]
        assert degrees.looped(csc).tolist() == reference


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("p", [0.3, 0.5])
def test_dropout_in_the_first_sum_has_the_bits_of_dropout_before(p: float, dtype: torch.dtype) -> None:
    adjacency, _ = of_block(make_graph(60), [5, 0, 11, 3], False)
    x = torch.randn(len(adjacency.src_nodes), 37).to(dtype).requires_grad_()
    at_once = adjacency.concat_mean(x, p)
    in_turn = adjacency.concat_mean(adjacency.dropout(x, p, training=True))
    assert torch.equal(at_once, in_turn)
    assert at_once.dtype == dtype
    slopes = [torch.autograd.grad(z.sin().sum(), x)[0] for z in (at_once, in_turn)]
    assert torch.equal(*slopes)


@pytest.mark.parametrize("name", ["gcn", "gat", "gin", "sage", "sage-max"])
def test_models_compute_in_bfloat16_where_their_input_is(name: str) -> None:
    """Rounding moves logits and gradients by some of 8 bits, and nothing else does."""
    graph = make_graph(60)
    torch.manual_seed(3)
    model = MODELS[name](4, 3, hidden=8, dropout=0.3)
    layers = BlockLayers(graph, model, torch.float32, CPU)
    batch = FullSampler(num_hops=2).sample(graph.csc, np.arange(12), key=0)

    def logits_and_slope(x: Tensor, rows: torch.dtype) -> tuple[Tensor, Tensor]:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=rows == torch.bfloat16):
            logits = model(x.to(rows), layers.layers(batch.blocks, 5))
        logits.float().sin().sum().backward()
        assert all(parameter.grad is None or parameter.grad.dtype == torch.float32 for parameter in model.parameters())
        slopes = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
        return logits.detach().float(), torch.cat(slopes)

    x = torch.tensor(graph.features[batch.input_nodes], dtype=torch.float32)
    for exact, rounded in zip(logits_and_slope(x, torch.float32), logits_and_slope(x, torch.bfloat16), strict=True):
        assert (exact - rounded).norm() < 0.05 * exact.norm()
        assert (exact - rounded).norm() > 0
