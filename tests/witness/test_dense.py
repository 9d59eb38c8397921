"""The witness: noise, operations, and what it does not share with the engine."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gnnkit_export import exported
from gnnkit_testing.graphs import CLASSES, RELATIONS, WIDTH, check_graph
from gnnkit_witness import DenseAdjacency, Plan, dense, noise, serial
from gnnkit_witness.dense import DenseEdges, layers_of
from torch import Tensor, nn
from torch.nn import functional as F

from gnnkit import engine
from gnnkit.engine import Adjacency
from gnnkit.model.rgcn import RGCN
from gnnkit.model.unchanged import adapted
from gnnkit.nn import BatchNorm
from gnnkit.partition import Partition
from tests.models import MODELS

GRAPH = check_graph(14)
FOR_THE_HOUSE = {"weighing", "again", "tensors", "typed_graph", "relation_rows"}  # parts that no layer reads


def test_a_stream_is_splitmix64() -> None:
    """The first numbers of seed 1234567, as the author's program prints them."""
    golden, bits = 0x9E3779B97F4A7C15, 2**64
    results = [noise.mix((1234567 + i * golden) % bits) for i in (1, 2, 3)]
    assert results == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.slow
def test_noise_keeps_the_mean() -> None:
    factors = noise.factors(range(2000), 6, 0.3, key=5)
    assert set(factors.unique().tolist()) == {0.0, 65536 / (65536 - 19661)}
    assert float(factors.mean()) == pytest.approx(1, abs=0.03)


def test_the_witness_has_all_that_a_layer_may_ask_for() -> None:
    names = {name for name in {*vars(Adjacency), *Adjacency.__annotations__} if not name.startswith("_")}
    adjacency = layers_of(DenseEdges.of(GRAPH, self_loops=False), 1, 0)[0]
    missing = sorted(name for name in names - FOR_THE_HOUSE if not hasattr(adjacency, name))
    assert not missing
    for name in names - FOR_THE_HOUSE:
        if inspect.isfunction(getattr(Adjacency, name, None)):
            assert _takes(getattr(DenseAdjacency, name)) == _takes(getattr(Adjacency, name)), name


def _takes(function: Callable[..., Any]) -> list[tuple[str, Any]]:
    return [(parameter.name, parameter.default) for parameter in inspect.signature(function).parameters.values()]


class Sums(nn.Module):
    """A module of (x, edge_index) that adds up rows of sources."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])


def test_a_module_of_edge_index_reads_the_edges_of_the_witness() -> None:
    (adjacency,) = layers_of(DenseEdges.of(GRAPH, self_loops=False), 1, 0)
    x = torch.rand(GRAPH.num_nodes, 3, dtype=torch.float64)
    source, destination = adjacency.rank_graph.edge_index
    reference = torch.zeros_like(x).index_add(0, destination, x[source])
    torch.testing.assert_close(adapted(Sums())(x, [adjacency]), reference)


@pytest.mark.parametrize("module", [dense, exported, noise, serial])
def test_the_witness_imports_no_room_that_computes(module: Any) -> None:
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    named = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    computing = ("_core", "comm", "exchange", "kernels", "partition", "sampler", "strategy", "sync", "training")
    assert not [name for name in named if name.startswith(tuple(f"gnnkit.{room}" for room in computing))]


@pytest.mark.slow
def test_the_witness_runs_no_kernel_and_no_exchange() -> None:
    """It shares how an adjacency composes operations, and the type of a sum."""
    model = MODELS["gat"](WIDTH, CLASSES, hidden=2, norm="batch").double()
    plan = Plan(GRAPH, Partition.__new__(Partition), model, epochs=1)
    folder, ran = Path(engine.__file__).parents[1], set()

    def look(frame: Any, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.parent.parent == folder and path.parent.name in ("engine", "kernels", "comm"):
            ran.add((path.stem, frame.f_code.co_name))

    sys.setprofile(look)
    try:
        serial.train(plan, [[torch.tensor([3, 5])]], None)
    finally:
        sys.setprofile(None)
    assert {name for file, name in ran if file != "adjacency"} <= {"local", "wide"}


def matrices(*, self_loops: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Returns weights by destination and source [n, n], and degrees [n] by both."""
    n, csc = GRAPH.num_nodes, GRAPH.csc
    weight = torch.zeros(n, n, dtype=torch.float64)
    for dst in range(n):
        for edge in range(csc.indptr[dst], csc.indptr[dst + 1]):
            weight[dst, csc.indices[edge]] += float(csc.weight[edge])
    if self_loops:
        weight += torch.diag((weight.diagonal() == 0).double())
    return weight, weight.sum(1), weight.sum(0)


def gcn(model: Any, x: Tensor) -> Tensor:
    weight, into, out = matrices(self_loops=True)
    normal = weight / (into[:, None] * out).sqrt()
    first, second = model.convs
    return normal @ (normal @ x @ first.weight + first.bias).relu() @ second.weight + second.bias


def sage(model: Any, x: Tensor) -> Tensor:
    weight, into, _ = matrices(self_loops=False)
    mean = weight / torch.where(into == 0, 1, into)[:, None]
    for conv in model.convs:
        x = (
            conv.own(x.relu() if conv is not model.convs[0] else x)
            + (mean @ (x.relu() if conv is not model.convs[0] else x)) @ conv.neighbor.weight.T
        )
    return x


def sage_max(model: Any, x: Tensor) -> Tensor:
    weight, into, _ = matrices(self_loops=False)
    for number, conv in enumerate(model.convs):
        x = x.relu() if number else x
        rows = torch.where((weight > 0)[:, :, None], x[None], -torch.inf).amax(1)
        x = conv.own(x) + torch.where(into[:, None] > 0, rows, 0) @ conv.neighbor.weight.T
    return x


def gin(model: Any, x: Tensor) -> Tensor:
    weight, _, _ = matrices(self_loops=False)
    for number, conv in enumerate(model.convs):
        x = x.relu() if number else x
        x = conv.second((((1 + conv.eps) * x + weight @ x) @ conv.first.weight.T + conv.bias).relu())
    return x


def gine(model: Any, x: Tensor) -> Tensor:
    for number, conv in enumerate(model.convs):
        x = x.relu() if number else x
        sums = [(1 + conv.eps) * row for row in x]
        for dst in range(GRAPH.num_nodes):
            for edge in range(GRAPH.csc.indptr[dst], GRAPH.csc.indptr[dst + 1]):
                features = torch.tensor(GRAPH.edge_features[edge])
                sums[dst] = sums[dst] + (x[GRAPH.csc.indices[edge]] + conv.edge(features)).relu()
        x = conv.second(conv.first(torch.stack(sums)).relu())
    return x


def gat(model: Any, x: Tensor) -> Tensor:
    """Each row by itself, from the equations of the paper."""
    csc, n = GRAPH.csc, GRAPH.num_nodes
    for number, conv in enumerate(model.convs):
        x = F.elu(x) if number else x
        heads, width = conv.source.shape
        h, rows = (x @ conv.weight).view(n, heads, width), []
        for dst in range(n):
            sources = [int(u) for u in csc.indices[csc.indptr[dst] : csc.indptr[dst + 1]]]
            features = torch.tensor(GRAPH.edge_features[csc.indptr[dst] : csc.indptr[dst + 1]])
            if dst not in sources:
                mean = features.mean(0, keepdim=True) if sources else torch.zeros(1, features.shape[1]).double()
                sources, features = [*sources, dst], torch.cat([features, mean])
            score = (h[sources] * conv.source).sum(-1) + (h[dst] * conv.destination).sum(-1) + conv.edge(features)
            rows.append((F.leaky_relu(score, conv.negative_slope).softmax(0)[:, :, None] * h[sources]).sum(0))
        z = torch.stack(rows)
        x = (z.flatten(1) if conv.concat else z.mean(1)) + conv.bias
    return x


def rgcn(model: Any, x: Tensor) -> Tensor:
    """Each node and relation by itself, from equation 2 of the paper."""
    csc = GRAPH.csc
    ends = [(int(csc.indices[e]), v, e) for v in range(csc.num_nodes) for e in range(csc.indptr[v], csc.indptr[v + 1])]
    edges = [(u, v, int(GRAPH.edge_types[e]), float(csc.weight[e])) for u, v, e in ends]
    edges += [(v, u, relation + GRAPH.num_relations, weight) for u, v, relation, weight in edges]
    for number, conv in enumerate(model.convs):
        x = x.relu() if number else x
        rows = list(x @ conv.own.weight.T + conv.bias)
        for node in range(csc.num_nodes):
            for relation in {r for _, v, r, _ in edges if v == node}:
                near = [(u, weight) for u, v, r, weight in edges if (v, r) == (node, relation)]
                total = sum(weight for _, weight in near)
                for u, weight in near:
                    rows[node] = rows[node] + weight / total * x[u] @ relation_weight(conv.relations, relation)
        x = torch.stack(rows)
    return x


def relation_weight(relations: Any, relation: int) -> Tensor:
    if relations.coefficients is None:
        return torch.block_diag(*relations.weight[relation])
    return sum(a * v[0] for a, v in zip(relations.coefficients[relation], relations.weight, strict=True))


FORMULAS = {"gcn": gcn, "sage": sage, "sage-max": sage_max, "gin": gin, "gine": gine, "gat": gat}
RELATIONAL = {"free": {}, "bases": {"bases": 2}, "many bases": {"bases": 7}, "blocks": {"blocks": 3}}


@pytest.mark.parametrize("options", RELATIONAL.values(), ids=RELATIONAL)
def test_the_relational_model_is_what_the_paper_says(options: dict[str, int]) -> None:
    torch.manual_seed(0)
    model = RGCN(6, CLASSES, RELATIONS, hidden=9, **options).double()  # type: ignore[arg-type]
    x = torch.randn(GRAPH.num_nodes, 6, dtype=torch.float64)
    actual = model(x, layers_of(DenseEdges.of(GRAPH, self_loops=False), 2, 0))  # type: ignore[arg-type]
    torch.testing.assert_close(actual, rgcn(model, x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", FORMULAS)
def test_models_are_what_the_papers_say(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name](WIDTH, CLASSES, hidden=3, dropout=0.0).double()
    edges = DenseEdges.of(GRAPH, self_loops=getattr(model, "self_loops", False))
    x = torch.tensor(GRAPH.features)
    torch.testing.assert_close(model(x, layers_of(edges, 2, 0)), FORMULAS[name](model, x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bases", [None, 2])
def test_one_hot_rows_are_rows_of_the_first_weights(bases: int | None) -> None:
    """The same weights as matrices give the same logits."""
    torch.manual_seed(0)
    n, width, total = GRAPH.num_nodes, 4, 2 * RELATIONS
    model = RGCN(width * ((bases or total) + 1), CLASSES, RELATIONS, hidden=width, bases=bases, one_hot=True).double()
    x = torch.randn(n, model.convs[0].width * ((bases or total) + 1), dtype=torch.float64)
    blocks = x.view(n, -1, width).movedim(1, 0)  # of relations or bases, then W_0
    written = RGCN(n, CLASSES, RELATIONS, hidden=width, bases=bases).double()
    state = {name: value for name, value in model.state_dict().items() if name.startswith("convs.1")}
    state |= {"convs.0.bias": torch.randn(width).double(), "convs.0.own.weight": blocks[-1].T}
    state["convs.0.relations.weight"] = blocks[:-1, None]
    if bases is not None:
        state["convs.0.relations.coefficients"] = model.convs[0].coefficients
    written.load_state_dict(state)
    with torch.no_grad():
        model.convs[0].bias.copy_(state["convs.0.bias"])
    actual = model(x, layers_of(DenseEdges.of(GRAPH, self_loops=False), 2, 0))  # type: ignore[arg-type]
    torch.testing.assert_close(actual, rgcn(written, torch.eye(n).double()), rtol=1e-12, atol=1e-12)


def test_batch_normalisation_is_torchs() -> None:
    ours, torchs = BatchNorm(WIDTH).double(), nn.BatchNorm1d(WIDTH).double()
    adjacency, x = layers_of(DenseEdges.of(GRAPH, self_loops=False), 1, 0)[0], torch.tensor(GRAPH.features)
    for _ in range(2):
        torch.testing.assert_close(ours(x, adjacency), torchs(x), rtol=1e-12, atol=1e-12)  # type: ignore[arg-type]
    for name, value in torchs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-12, atol=1e-12)


def test_of_equal_maxima_the_lowest_source_gets_the_gradient() -> None:
    adjacency = layers_of(DenseEdges.of(GRAPH, self_loops=False), 1, 0)[0]
    x = torch.ones(GRAPH.num_nodes, 1, dtype=torch.float64, requires_grad=True)
    adjacency.aggregate(x, reduce="max").sum().backward()
    csc = GRAPH.csc
    first = [int(csc.indices[a:b].min()) for a, b in zip(csc.indptr, csc.indptr[1:], strict=False) if b > a]
    assert x.grad is not None
    assert x.grad[:, 0].tolist() == [float(first.count(node)) for node in range(GRAPH.num_nodes)]


def test_a_block_of_seeds_gives_the_rows_of_the_whole_graph() -> None:
    torch.manual_seed(0)
    model = functools.partial(MODELS["gat"], hidden=2)(WIDTH, CLASSES).double()
    edges, x, seeds = DenseEdges.of(GRAPH, self_loops=True), torch.tensor(GRAPH.features), torch.tensor([9, 2])
    part = layers_of(edges, 2, 7, seeds)
    actual, whole = model(x[part[0].src_nodes], part), model(x, layers_of(edges, 2, 7))
    torch.testing.assert_close(actual, whole[seeds], rtol=1e-12, atol=1e-12)
