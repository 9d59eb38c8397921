"""Layers of PyG on deferred rows: results of plain PyG, and no row per edge."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from lazyedges import Backend, EdgeKernels, edges, pieces
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import nn as pyg
from torch_geometric.utils import softmax

from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.engine import Engine, ShardAdjacency
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.kernels import lazy
from gnnkit.model.edge_index import edge_set_of
from gnnkit.model.unchanged import EdgeIndexModel, adapted
from gnnkit.partition import Grid, Partition, cut_all

NODES, WIDTH, OUT = 19, 6, 4
SCALERS, DEGREES = ["identity", "amplification", "attenuation"], torch.tensor([2, 3, 4, 3, 2, 1])
Edgewise = Callable[[Tensor, Tensor], Tensor]


class Of(nn.Module):
    """A function of rows and edges, with a weight."""

    def __init__(self, function: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.rand(WIDTH)), function

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.function(x * self.weight, edge_index, self.weight)


def mlp(a: int, b: int) -> nn.Module:
    return nn.Sequential(nn.Linear(a, 5), nn.ReLU(), nn.Linear(5, b))


class Pair(nn.Module):
    """A layer that reads sources and destinations separately."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.conv((x, x * 2), edge_index)
        return out


class Attends(pyg.MessagePassing):
    """Attention with one head, scored by the product of both ends."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__(aggr="add")
        self.lin = nn.Linear(width, out)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.propagate(edge_index, x=self.lin(x))
        return out

    def message(self, x_i: Tensor, x_j: Tensor, index: Tensor, size_i: int) -> Tensor:
        return softmax((x_i * x_j).sum(-1), index, num_nodes=size_i).view(-1, 1) * x_j


LAYERS: dict[str, Callable[[int, int], nn.Module]] = {
    "GCNConv": pyg.GCNConv,
    "SAGEConv": pyg.SAGEConv,
    "SAGEConv project": lambda a, b: pyg.SAGEConv(a, b, project=True, normalize=True),
    "GINConv": lambda a, b: pyg.GINConv(mlp(a, b), train_eps=True),
    "GraphConv": pyg.GraphConv,
    "SGConv": lambda a, b: pyg.SGConv(a, b, K=2),
    "TAGConv": pyg.TAGConv,
    "GATConv": lambda a, b: pyg.GATConv(a, b // 2, heads=2),
    "GATConv mean of heads": lambda a, b: pyg.GATConv(a, b, heads=3, concat=False, negative_slope=0.1),
    "GATConv without loops": lambda a, b: pyg.GATConv(a, b, add_self_loops=False),
    "GATConv p=0": lambda a, b: pyg.GATConv(a, b, heads=1, dropout=0.0),
    "GATConv bipartite": lambda a, b: Pair(pyg.GATConv((a, a), b // 2, heads=2, add_self_loops=False)),
    "TransformerConv": lambda a, b: pyg.TransformerConv(a, b // 2, heads=2, beta=True),
    "GATv2Conv": lambda a, b: pyg.GATv2Conv(a, b // 2, heads=2),
    "GATv2Conv of shared weights": lambda a, b: pyg.GATv2Conv(a, b, heads=3, concat=False, share_weights=True),
    "SAGEConv max": lambda a, b: pyg.SAGEConv(a, b, aggr="max"),
    "SAGEConv of several": lambda a, b: pyg.SAGEConv(a, b, aggr=["mean", "max", "min", "std"]),
    "SAGEConv softmax": lambda a, b: pyg.SAGEConv(a, b, aggr=pyg.SoftmaxAggregation(learn=True)),
    "PNAConv": lambda a, b: pyg.PNAConv(a, b, ["mean", "min", "max", "std", "sum"], SCALERS, DEGREES),
    "PNAConv of towers": lambda a, b: pyg.PNAConv(
        a, b, ["mean", "max", "var"], ["identity"], DEGREES, towers=2, pre_layers=2, divide_input=True
    ),
    "EdgeConv": lambda a, b: pyg.EdgeConv(mlp(2 * a, b)),
    "ResGatedGraphConv": pyg.ResGatedGraphConv,
    "GENConv": pyg.GENConv,
    "one head": Attends,
    "APPNP": lambda a, b: pyg.Sequential("x, e", [(nn.Linear(a, b), "x -> x"), (pyg.APPNP(3, 0.1), "x, e -> x")]),
}


class Two(nn.Module):
    def __init__(self, make: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.conv1, self.conv2 = make(WIDTH, 8), make(8, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.conv2(self.conv1(x, edge_index).relu(), edge_index)
        return out


@functools.cache
def make_graph() -> Graph:
    """Directed, with loops, parallel edges, and nodes without (in-)edges."""
    rng = np.random.default_rng(4)
    src, dst = rng.integers(0, NODES - 2, 70), rng.integers(0, NODES - 4, 70)
    keep = src != dst
    src, dst = np.append(src[keep], [0, 3, 3]), np.append(dst[keep], [0, 5, 5])
    return Graph.from_edges(src, dst, NODES, features=rng.standard_normal((NODES, WIDTH)))


def edges_of(graph: Graph) -> Tensor:  # [2, num_edges]
    dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))
    return torch.from_numpy(np.stack([np.asarray(graph.csc.indices, np.int64), dst]))


def plainly(model: nn.Module, dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
    """The outputs and gradients of plain torch."""
    model = copy.deepcopy(model).to(dtype)
    out = model(torch.from_numpy(make_graph().features).to(dtype), edges_of(make_graph()))
    return out.detach(), gradients(model, out)


def gradients(model: nn.Module, out: Tensor) -> list[Tensor]:
    if out.requires_grad:
        (out * torch.linspace(-1, 1, out.shape[1], dtype=out.dtype)).sum().backward()
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]


def in_gnnkit(
    model: nn.Module, ranks: int, dtype: torch.dtype, owners: np.ndarray | None = None
) -> tuple[Tensor, list[Tensor], EdgeIndexModel]:
    """The outputs, the sums of gradients, and the first rank's model."""
    owners = np.random.default_rng(1).integers(0, ranks, NODES).astype(np.int32) if owners is None else owners
    shards = list(cut_all(make_graph(), Partition(owners, None, Grid(ranks, 1, 1))))

    def part(comm: Communicator) -> Any:
        replica, shard = adapted(copy.deepcopy(model).to(dtype)), shards[comm.rank]
        layers = ShardAdjacency.layers(Engine(shard, comm, dtype), 1, 0)
        out = replica(torch.tensor(np.asarray(shard.features), dtype=dtype), layers)
        return out.detach(), [comm.all_reduce(g.clone()) for g in gradients(replica, out)], replica

    parts = Threads.run(part, ranks)
    order = torch.argsort(torch.cat([torch.from_numpy(shard.owned.astype(np.int64)) for shard in shards]))
    return torch.cat([rows for rows, _, _ in parts])[order], parts[0][1], parts[0][2]


def compare(
    model: nn.Module, ranks: int = 1, dtype: torch.dtype = torch.float64, owners: np.ndarray | None = None
) -> EdgeIndexModel:
    """Compares outputs and gradients with plain torch's. Returns the model."""
    reference, expected_gradients = plainly(model, dtype)
    out, actual, replica = in_gnnkit(model, ranks, dtype, owners)
    exact = dtype == torch.float64
    torch.testing.assert_close(out, reference, rtol=1e-10 if exact else 3e-6, atol=1e-12 if exact else 3e-7)
    scale = max([1.0, *(float(gradient.abs().max()) for gradient in expected_gradients)])
    for mine, theirs in zip(actual, expected_gradients, strict=True):
        assert float((mine - theirs).abs().max()) <= (1e-10 if exact else 2e-6) * scale
    return replica


IN_PIECES = ["GATv2Conv", "SAGEConv max", "SAGEConv of several", "PNAConv of towers", "EdgeConv"]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", IN_PIECES)
def test_layers_are_exact_on_any_number_of_pieces(name: str, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "NUMBERS", 1)
    counts: list[int] = []

    def counted(kernels: EdgeKernels, backend: Backend, width: int) -> list[pieces.Piece]:
        parts = pieces.pieces_of(kernels, backend, width)
        counts.append(len(parts))
        assert sum(len(piece.source) for piece in parts) == len(kernels.indices)
        return parts

    monkeypatch.setattr(edges, "pieces_of", counted)
    torch.manual_seed(0)
    assert compare(Two(LAYERS[name]), ranks).fallbacks == {}
    assert min(counts) > 2


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_layers_give_the_results_of_pyg_without_a_row_per_edge(name: str) -> None:
    torch.manual_seed(0)
    model = Two(LAYERS[name])
    assert compare(model).fallbacks == {}
    assert compare(model, ranks=3).fallbacks == {}
    compare(model, dtype=torch.float32)


def add_up(x: Tensor, edges: Tensor, change: Callable[[Tensor], Tensor] = lambda rows: rows) -> Tensor:
    return torch.zeros_like(x).index_add_(0, edges[1], change(x[edges[0]]))


def largest(x: Tensor, edges: Tensor, change: Callable[[Tensor], Tensor] = lambda rows: rows) -> Tensor:
    index = edges[1][:, None].expand(-1, WIDTH)
    return torch.zeros_like(x).scatter_reduce(0, index, change(x[edges[0]]), "amax", include_self=False)


def norm(edges: Tensor, x: Tensor) -> Tensor:
    return torch.ones(x.size(0)).to(x).index_add_(0, edges[1], torch.ones(edges.size(1)).to(x)).pow(-0.5)


FUSED: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "index_add": lambda x, e, w: torch.zeros_like(x).index_add(0, e[1], x[e[0]]),
    "index_add_ to rows": lambda x, e, w: x.clone().index_add_(0, e[1], x[e[0]]),
    "scatter_add": lambda x, e, w: x.new_zeros(x.shape).scatter_add(0, e[1][:, None].expand(-1, WIDTH), x[e[0]]),
    "edge factors": lambda x, e, w: add_up(x, e, lambda rows: rows * torch.arange(e.size(1))[:, None].to(x) * 2),
    "divided": lambda x, e, w: add_up(x, e, lambda rows: rows / (1 + torch.arange(e.size(1)).to(x).view(-1, 1))),
    "factors with gradient": lambda x, e, w: add_up(x, e, lambda rows: x.detach()[e[0]][:, :1] * 0 + rows * w),
    "learned factors": lambda x, e, w: add_up(x, e, lambda rows: rows * w.mean().expand(e.size(1), 1)),
    "heads": lambda x, e, w: add_up(
        x.view(-1, 2, 3), e, lambda rows: rows * w[:2].expand(e.size(1), 2)[..., None]
    ).view(-1, WIDTH),
    "functions of a row": lambda x, e, w: add_up(
        x, e, lambda rows: (rows.relu() * w + 1).view(-1, 2, 3)[:, :, :].flatten(1)
    ),
    "linear": lambda x, e, w: add_up(x, e, lambda rows: F.linear(rows, w.diag(), w).tanh() @ w.diag()),
    "square": lambda x, e, w: add_up(x, e, lambda rows: rows * rows),
    "two reads": lambda x, e, w: add_up(x, e) + add_up(x.exp(), e),
    "selected": lambda x, e, w: add_up(x, e[:, e[0] != e[1]]),
    "loops": lambda x, e, w: add_up(x, torch.cat([e, torch.arange(x.size(0)).expand(2, -1)], 1)),
    "ones": lambda x, e, w: x / (1 + x.new_zeros(x.size(0)).index_add_(0, e[1], x[e[0]].new_ones(e.size(1))))[:, None],
    "p=0": lambda x, e, w: add_up(x, e, lambda rows: F.dropout(rows, 0.0)),
    "gradient of ties": lambda x, e, w: largest(x / x.detach(), e),
    "largest of a function": lambda x, e, w: largest(x, e, lambda rows: (rows - x[e[1]]).abs()),
    "change of counts": lambda x, e, w: (
        add_up(x, e) / x.new_zeros(x.size(0)).index_add_(0, e[1], x[e[0]].new_ones(e.size(1))).clamp_(min=1).view(-1, 1)
    ),
    "values of both ends": lambda x, e, w: add_up(
        x, e, lambda rows: (norm(e, x)[e[0]] * torch.ones(e.size(1)).to(x) * norm(e, x)[e[1]]).view(-1, 1) * rows
    ),
    "values of both ends and weights": lambda x, e, w: add_up(
        x, e, lambda rows: rows * (norm(e, x)[e[0]] * (1 + x.detach().exp()[e[0]][:, 0]) * norm(e, x)[e[1]])[:, None]
    ),
    "values of both ends and a function": lambda x, e, w: add_up(
        x, e, lambda rows: (rows * norm(e, x)[e[0]].unsqueeze(-1)).tanh() * (norm(e, x)[e[1]] + 1)[:, None]
    ),
    "values of one end, of edges and of both": lambda x, e, w: add_up(
        x,
        e,
        lambda rows: (
            (rows * w.mean().expand(e.size(1), 1))
            * norm(e, x)[e[1]].view(-1, 1)
            * (norm(e, x)[e[0]] * norm(e, x)[e[0]]).view(-1, 1)
        ),
    ),
    "both ends": lambda x, e, w: add_up(x, e, lambda rows: (rows - 2 * x[e[1]]).tanh() * w),
    "values of edges": lambda x, e, w: add_up(
        x, e, lambda rows: (rows + torch.arange(e.size(1) * WIDTH).to(x).view(-1, WIDTH)).sin()
    ),
    "joined": lambda x, e, w: add_up(x, e, lambda rows: torch.cat([rows[:, 3:], rows[:, :3]], 1)),
    "weighted, then a function": lambda x, e, w: add_up(
        x, e, lambda rows: (rows * w.mean().expand(e.size(1), 1)).exp()
    ),
    "without gradient": lambda x, e, w: add_up(x, e, lambda rows: (rows + x[e[1]]).detach() + rows * rows.sigmoid()),
    "scores": lambda x, e, w: add_up(x, e, lambda rows: rows * ((rows + x[e[1]]).relu() * w).sum(-1, keepdim=True)),
    "largest of ties": lambda x, e, w: x + largest(x.detach().sign(), e),
    "evaluated": lambda x, e, w: add_up(x, e, lambda rows: F.dropout(rows, 0.5, training=False)),
}


ORDERED = ("edge factors", "divided", "values of edges")  # by the order of one process's edges


@pytest.mark.parametrize("name", FUSED)
def test_sums_by_hand_are_fused(name: str) -> None:
    torch.manual_seed(0)
    replica = compare(Of(FUSED[name]))
    assert replica.fallbacks == {} or name == "factors with gradient"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FUSED if name not in ORDERED])
def test_sums_by_hand_are_exact_on_several_ranks(name: str) -> None:
    torch.manual_seed(0)
    compare(Of(FUSED[name]), ranks=3)


def narrow_values(x: Tensor, edges: Tensor, _: Tensor) -> Tensor:
    """Reads narrow rows beside edge values, then others, which it sums first."""
    narrow, others = x[:, :2][edges[0]], x.exp()[edges[0]]
    values = narrow + torch.ones(edges.size(1), 2, dtype=x.dtype)
    total = torch.zeros_like(x).index_add_(0, edges[1], others)
    return total + torch.zeros_like(x[:, :2]).index_add_(0, edges[1], values).repeat(1, 3)


@pytest.mark.slow
@pytest.mark.parametrize("model", [Of(narrow_values), pyg.GATv2Conv(WIDTH, 2, heads=3), pyg.GCNConv(WIDTH, OUT)])
def test_a_rank_with_few_edges_exchanges_in_the_same_order(model: nn.Module) -> None:
    degrees = np.diff(make_graph().csc.indptr)
    for degree in (0, degrees[degrees > 0].min()):
        owners = np.zeros(NODES, np.int32)
        owners[np.flatnonzero(degrees == degree)[0]] = 1
        compare(model, 2, owners=owners)


class Doubled(torch.autograd.Function):
    """A function of its own, which torch calls without asking its arguments."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        return rows * rows

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (rows,) = ctx.saved_tensors
        return 2 * rows * grad


def in_place(x: Tensor, e: Tensor, w: Tensor) -> Tensor:
    rows = x[e[0]]
    rows *= 2
    rows[:, 0] = 1
    return torch.zeros_like(x).index_add_(0, e[1], rows)


def changed_between(change: Callable[[Tensor], object]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def function(x: Tensor, e: Tensor, w: Tensor) -> Tensor:
        h = x * 1
        rows = h[e[0]] * 2
        change(h)
        return torch.zeros_like(x).index_add_(0, e[1], rows) + h

    return function


def changed_factors(x: Tensor, e: Tensor, w: Tensor) -> Tensor:
    factors = torch.ones(e.size(1), 1, dtype=x.dtype)
    rows = x.detach()[e[0]] * factors
    factors.mul_(5)
    return torch.zeros_like(x).index_add_(0, e[1], rows) + x


def own_of_sum(x: Tensor, e: Tensor) -> Tensor:
    rows = x[e[0]]
    sums = rows.new_zeros(x.shape)
    assert not sums.requires_grad
    assert not rows.detach().requires_grad
    sums.index_add_(0, e[1], rows * 2)
    out: Tensor = Doubled.apply(sums)
    return out + sums


COMPUTED: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "own function": lambda x, e, w: add_up(x, e, Doubled.apply),
    "own function of factors": lambda x, e, w: add_up(
        x, e, lambda rows: Doubled.apply(rows * w.mean().expand(e.size(1), 1))
    ),
    "own function of a sum": lambda x, e, w: own_of_sum(x, e),
    "own function of constants": lambda x, e, w: add_up(x, e, lambda rows: rows * Doubled.apply(rows.detach() * 2)),
    "own function beside a sum": lambda x, e, w: add_up(x, e) + add_up(x, e, Doubled.apply),
    "in place": in_place,
    "changed between": changed_between(lambda h: h.mul_(3)),
    "set between": changed_between(lambda h: h.__setitem__(0, 0)),
    "added between": changed_between(lambda h: h.__iadd__(1)),
    "relu between": changed_between(lambda h: F.relu(h, inplace=True)),
    "leaky relu between": changed_between(lambda h: F.leaky_relu(h, 0.1, True)),
    "view changed between": changed_between(lambda h: h[:, 1].zero_()),
    "factors changed": changed_factors,
    "sorted": lambda x, e, w: add_up(x, e, lambda rows: rows.sort(dim=1).values),
    "product": lambda x, e, w: torch.zeros_like(x).scatter_reduce(
        0, e[1][:, None].expand(-1, WIDTH), 1 + x[e[0]] * 0, "prod", include_self=False
    ),
    "views of a weight": lambda x, e, w: sum(
        add_up(x, e, lambda rows, part=part: rows * part)
        for part in (w[:1].expand(e.size(1), 1), w[1:2].expand(e.size(1), 1), w.repeat(e.size(1))[: e.size(1), None])
    ),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_functions_that_compute_rows_give_the_results_of_torch(name: str) -> None:
    torch.manual_seed(0)
    compare(Of(COMPUTED[name]))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in COMPUTED if name not in ("set between", "views of a weight")])
def test_functions_that_compute_rows_are_exact_on_several_ranks(name: str) -> None:
    torch.manual_seed(0)
    compare(Of(COMPUTED[name]), ranks=2)


@pytest.mark.slow
def test_functions_that_compute_rows_are_counted_by_layer() -> None:
    assert compare(Of(COMPUTED["sorted"])).fallbacks == {"Of.sort": 1}
    median = Two(lambda a, b: pyg.SAGEConv(a, b, aggr="median"))
    assert set(in_gnnkit(median, 1, torch.float64)[2].fallbacks) == {"MedianAggregation.sort"}
    dropped = Of(lambda x, e, w: add_up(x, e, lambda rows: F.dropout(rows, 0.5)))
    assert in_gnnkit(dropped, 1, torch.float64)[2].fallbacks == {"Of.dropout": 1}


def test_a_hidden_change_between_read_and_sum_is_refused() -> None:
    def function(x: Tensor, e: Tensor, w: Tensor) -> Tensor:
        h = x.detach().clone()
        rows = h[e[0]]
        torch._foreach_mul_([h], 2)  # only its version shows the change
        return torch.zeros_like(x).index_add_(0, e[1], rows)

    with pytest.raises(UserError, match="model=Of: Of changes rows in place after it read them by edge: change a copy"):
        in_gnnkit(Of(function), 1, torch.float64)


def test_rows_used_beyond_the_pass_are_those_of_the_pass_or_refused() -> None:
    tensors: list[Tensor] = []

    def function(x: Tensor, e: Tensor, w: Tensor) -> Tensor:
        rows, others = x[e[0]], x.exp()[e[0]]
        assert "tensor" in repr(rows)  # computes them
        tensors[:] = [rows.relu(), others]
        return torch.zeros_like(x).index_add_(0, e[1], rows)

    model = compare(Of(function))
    assert model.fallbacks == {"Of.repr": 1}
    assert bool(tensors[0].isfinite().all())
    with pytest.raises(UserError, match="reads edges of an earlier step"):
        tensors[1].sum()


def test_edges_that_a_layer_derives_are_the_same_in_the_next_pass() -> None:
    (shard,) = cut_all(make_graph(), Partition(np.zeros(NODES, np.int32), None, Grid(1, 1, 1)))

    def part(comm: Communicator) -> list[Any]:
        engine, model = Engine(shard, comm, torch.float32), adapted(Two(pyg.GCNConv))
        base = edge_set_of(engine.topology.rank_graph)
        kernels = []
        for _ in range(2):
            model(torch.tensor(np.asarray(shard.features, np.float32)), ShardAdjacency.layers(engine, 1, 0))
            kernels.append(base.select(base.loopless()).with_loops(torch.arange(NODES)).kernels)
        return kernels

    first, second = Threads.run(part, 1)[0]
    assert first is second


class WithEdges(nn.Module):
    """Attention that reads values of edges, in their order."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.conv = pyg.GATConv(WIDTH, 3, heads=2, edge_dim=2, dropout=p)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        values = torch.arange(2 * edge_index.size(1), dtype=x.dtype).view(-1, 2).sin()
        out: Tensor = self.conv(x, edge_index, values)
        return out


def test_attention_reads_edge_features() -> None:
    torch.manual_seed(0)
    assert compare(WithEdges(0.0)).fallbacks == {}


@pytest.mark.parametrize("ranks", [1, 2])
def test_dropped_attention_is_the_same_where_no_kernel_serves(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model: nn.Module = WithEdges(0.5) if ranks == 1 else Two(lambda a, b: pyg.GATConv(a, b // 2, heads=2, dropout=0.5))
    out, gradients_of_kernel, replica = in_gnnkit(model, ranks, torch.float64)
    assert replica.fallbacks == {}
    monkeypatch.setattr(lazy, "serves", lambda held, rows: False)
    again, others, _ = in_gnnkit(model, ranks, torch.float64)
    torch.testing.assert_close(out, again, rtol=1e-10, atol=1e-12)
    for mine, theirs in zip(gradients_of_kernel, others, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(out, in_gnnkit(model.eval(), ranks, torch.float64)[0])


def gradient_of_both_ends(x: Tensor, e: Tensor, w: Tensor) -> Tensor:
    if not x.requires_grad:
        return x
    out = add_up(x, e, lambda rows: (rows - x[e[1]]).tanh() * w)
    (gradient,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    return gradient


def test_a_gradient_with_a_gradient_of_rows_that_both_ends_read_is_that_of_torch() -> None:
    torch.manual_seed(0)
    compare(Of(gradient_of_both_ends))
