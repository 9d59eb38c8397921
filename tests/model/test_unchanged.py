"""Classes of PyG as they are on several ranks, against PyG on the whole graph."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gnnkit_formats.npz import Npz
from gnnkit_plan import trial
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.utils import degree, dropout_edge, softmax

import gnnkit
from gnnkit import config
from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.config.settings import settle
from gnnkit.engine import Engine, ShardAdjacency
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Split
from gnnkit.jobs.fits import Parts
from gnnkit.jobs.order import Order
from gnnkit.model.exactness import calls, inexact
from gnnkit.model.unchanged import adapted
from gnnkit.partition import Grid, Partition, Shard, cut_all
from tests.cases import few
from tests.graphs import pyg_data
from tests.runs import BARE, train_on_threads, within_process
from tests.turns import turns

NODES, WIDTH, EDGE_WIDTH, HIDDEN, CLASSES = 23, 6, 3, 8, 4
DEGREES = torch.tensor([5, 4, 3, 3, 2, 1, 1])


class Net(nn.Module):
    """Two layers, as a user of PyG writes them."""

    def __init__(self, conv1: nn.Module, conv2: nn.Module) -> None:
        super().__init__()
        self.conv1, self.conv2 = conv1, conv2

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.conv2(self.conv1(x, edge_index).relu(), edge_index)
        return out


class Weighted(Net):
    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:  # type: ignore[override]
        out: Tensor = self.conv2(self.conv1(x, edge_index, edge_weight).relu(), edge_index, edge_weight)
        return out


class Featured(Net):
    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None) -> Tensor:
        out: Tensor = self.conv2(self.conv1(x, edge_index, edge_attr).relu(), edge_index, edge_attr)
        return out


class OfData(Net):
    def forward(self, data: Any) -> Tensor:  # type: ignore[override]
        return super().forward(data.x, data.edge_index)


class Deep(nn.Module):
    """A residual, layers that read their first input again, and several hops."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.out = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, CLASSES)
        self.convs = nn.ModuleList([pyg.GCN2Conv(HIDDEN, 0.1, 0.5, layer) for layer in (1, 2)])
        self.spread, self.norm = pyg.APPNP(3, 0.1), nn.BatchNorm1d(HIDDEN)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        first = h = self.lin(x).relu()
        for conv in self.convs:
            h = h + self.norm(conv(h, first, edge_index)).relu()
        out: Tensor = self.spread(self.out(h), edge_index)
        return out


class ByHand(nn.Module):
    """Sums, degrees and attention that use no layer of PyG."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.lin, self.out, self.p = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, CLASSES), p

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        (source, destination), h = edge_index, self.lin(x)
        keep = source != destination
        edge_index = torch.stack([source[keep], destination[keep]])
        source, destination = edge_index[0], edge_index[1]
        scores = (h[source] * h[destination]).sum(-1) / (1 + degree(destination, x.size(0))[source, None].squeeze(1))
        weights = F.dropout(softmax(scores, destination), self.p)
        z = torch.zeros_like(h).index_add(0, destination, weights[:, None] * h[source])
        out: Tensor = self.out(z + h)
        return out


class Normed(Net):
    """A normalisation over all nodes, between two layers."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__(pyg.SAGEConv(WIDTH, HIDDEN), pyg.SAGEConv(HIDDEN, CLASSES))
        self.norm = norm

    def forward(self, x: Tensor, adj_t: Tensor) -> Tensor:  # as in OGB's examples
        out: Tensor = self.conv2(self.norm(self.conv1(x, adj_t)).relu(), adj_t)
        return out


NORMS: dict[str, Callable[[], nn.Module]] = {
    "GraphNorm": lambda: pyg.GraphNorm(HIDDEN),
    "PairNorm": pyg.PairNorm,
    "PairNorm of each": lambda: pyg.PairNorm(scale=2.0, scale_individually=True),
    "LayerNorm": lambda: pyg.LayerNorm(HIDDEN),
    "LayerNorm plain": lambda: pyg.LayerNorm(HIDDEN, affine=False),
    "InstanceNorm": lambda: pyg.InstanceNorm(HIDDEN),
    "InstanceNorm affine": lambda: pyg.InstanceNorm(HIDDEN, affine=True, track_running_stats=True),
    "MeanSubtractionNorm": pyg.MeanSubtractionNorm,
    "GraphSizeNorm": pyg.GraphSizeNorm,
    "DiffGroupNorm": lambda: pyg.DiffGroupNorm(HIDDEN, 2),
}


def mlp(width: int, out: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 5), nn.ReLU(), nn.Linear(5, out))


def two(make: Callable[[int, int], nn.Module], kind: type[Net] = Net) -> Callable[[], nn.Module]:
    return lambda: kind(make(WIDTH, HIDDEN), make(HIDDEN, CLASSES))


def sequential() -> nn.Module:
    reads = "x, edge_index -> x"
    layers = [(pyg.GCNConv(WIDTH, HIDDEN), reads), nn.ReLU(), (pyg.GATConv(HIDDEN, 5), reads), nn.Linear(5, CLASSES)]
    return pyg.Sequential("x, edge_index", layers)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "GCNConv": two(pyg.GCNConv),
    "SAGEConv": two(pyg.SAGEConv),
    "SAGEConv max": two(functools.partial(pyg.SAGEConv, aggr="max")),
    "GATConv": two(lambda a, b: pyg.GATConv(a, b // 2, heads=2)),
    "GATv2Conv": two(lambda a, b: pyg.GATv2Conv(a, b // 2, heads=2)),
    "TransformerConv": two(lambda a, b: pyg.TransformerConv(a, b // 2, heads=2, beta=True)),
    "GINConv": two(lambda a, b: pyg.GINConv(mlp(a, b), train_eps=True)),
    "GraphConv": two(pyg.GraphConv),
    "TAGConv": two(pyg.TAGConv),
    "SGConv": two(functools.partial(pyg.SGConv, K=2)),
    "ARMAConv": two(lambda a, b: pyg.ARMAConv(a, b, num_stacks=2, num_layers=2)),
    "EdgeConv": two(lambda a, b: pyg.EdgeConv(mlp(2 * a, b))),
    "PNAConv": two(lambda a, b: pyg.PNAConv(a, b, ["mean", "max", "std"], ["identity", "amplification"], DEGREES)),
    "ResGatedGraphConv": two(pyg.ResGatedGraphConv),
    "LEConv": two(pyg.LEConv),
    "GENConv": two(pyg.GENConv),
    "GCN": lambda: pyg.models.GCN(WIDTH, HIDDEN, 3, CLASSES),
    "GraphSAGE": lambda: pyg.models.GraphSAGE(WIDTH, HIDDEN, 3, CLASSES, jk="cat", norm="BatchNorm"),
    "GAT": lambda: pyg.models.GAT(WIDTH, HIDDEN, 2, CLASSES, heads=2, jk="lstm"),
    "GIN": lambda: pyg.models.GIN(WIDTH, HIDDEN, 2, CLASSES),
    "Sequential": sequential,
    "Deep": Deep,
    "ByHand": ByHand,
    "data": two(pyg.GCNConv, OfData),
    "cached": two(functools.partial(pyg.GCNConv, cached=True)),
    "cached hops": two(functools.partial(pyg.SGConv, K=2, cached=True)),
    **{name: functools.partial(lambda make: Normed(make()), make) for name, make in NORMS.items()},
    "edge_weight": two(pyg.GCNConv, Weighted),
    "edge_attr": two(lambda a, b: pyg.GATConv(a, b // 2, heads=2, edge_dim=EDGE_WIDTH), Featured),
}


@functools.cache
def make_graph(weights: bool) -> Graph:
    """Directed, with a loop, parallel edges, and nodes without (in-)edges."""
    rng = np.random.default_rng(4)
    src, dst = rng.integers(0, NODES - 2, 80), rng.integers(0, NODES - 5, 80)
    keep = src != dst
    src, dst = np.append(src[keep], [0, 3, 3]), np.append(dst[keep], [0, 5, 5])
    return Graph.from_edges(
        src,
        dst,
        NODES,
        features=rng.standard_normal((NODES, WIDTH)),
        labels=rng.integers(0, CLASSES, NODES),
        weight=rng.uniform(0.5, 2, len(src)) if weights else None,
        edge_features=rng.standard_normal((len(src), EDGE_WIDTH)) if weights else None,
    )


def edges_of(graph: Graph) -> Tensor:  # [2, num_edges]
    dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))
    return torch.from_numpy(np.stack([np.asarray(graph.csc.indices, np.int64), dst]))


def make_model(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]().double()


def answer(logits: Tensor, labels: Tensor, model: nn.Module) -> tuple[Tensor, list[Tensor]]:
    """The share of the mean loss, and the gradients of the parameters."""
    loss = F.cross_entropy(logits, labels, reduction="sum") / NODES
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach(), [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]


def whole(name: str, graph: Graph) -> tuple[Tensor, list[Tensor]]:
    """PyG by itself."""
    model, x, edge_index = make_model(name), torch.from_numpy(graph.features), edges_of(graph)
    if name == "data":
        return answer(model(Data(x, edge_index)), torch.from_numpy(graph.labels), model)
    more = {"edge_weight": graph.csc.weight, "edge_attr": graph.edge_features}
    options = {name: torch.from_numpy(value) for name, value in more.items() if name in [name_of(model)]}
    return answer(model(x, edge_index, **options), torch.from_numpy(graph.labels), model)


def name_of(model: nn.Module) -> str:
    return {Weighted: "edge_weight", Featured: "edge_attr"}.get(type(model), "")


def on_rank(shards: list[Shard], model: nn.Module, comm: Communicator) -> tuple[Tensor, list[Tensor]]:
    model, shard = adapted(copy.deepcopy(model)), shards[comm.rank]  # ranks are threads
    logits = model(torch.tensor(np.asarray(shard.features)), layers_of(shard, comm))
    loss, gradients = answer(logits, torch.from_numpy(shard.labels), model)
    return comm.all_reduce(loss), [comm.all_reduce(g.clone()) for g in gradients]


def layers_of(shard: Shard, comm: Communicator) -> Any:
    return ShardAdjacency.layers(Engine(shard, comm, torch.float64), 1, 0)


def compare(name: str, ranks: int) -> None:
    graph = make_graph(weights=name.startswith("edge_"))
    owners = np.random.default_rng(1).integers(0, ranks, NODES).astype(np.int32)
    if ranks == 3:
        owners[owners == 1] = 2  # a rank without nodes
    shards = list(cut_all(graph, Partition(owners, None, Grid(ranks, 1, 1))))
    parts = Threads.run(functools.partial(on_rank, shards, make_model(name)), ranks)
    loss, gradients = whole(name, graph)
    for part in parts:
        assert abs(float(part[0] - loss)) <= 1e-12
        for mine, theirs in zip(part[1], gradients, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
@turns(name=list(MODELS), ranks=[3, 2, 1])
def test_a_class_of_pyg_gives_what_pyg_gives(name: str, ranks: int) -> None:
    compare(name, ranks)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["GCNConv", "edge_attr"])
def test_layers_that_add_loops_give_what_pyg_gives(name: str) -> None:
    compare(name, 2)


@pytest.mark.parametrize(("grid", "ranks"), [((2, 2, 1), 4), ((1, 2, 1), 2), ((1, 1, 2), 2)])
def test_several_columns_or_slices_are_refused_with_the_key(grid: tuple[int, int, int], ranks: int) -> None:
    shards = list(cut_all(make_graph(False), Partition((np.arange(NODES) % ranks).astype(np.int32), None, Grid(*grid))))
    with pytest.raises(UserError, match=r"partition\.grid=.*use partition\.grid=1d"):
        Threads.run(functools.partial(on_rank, shards, make_model("GCNConv")), ranks)


class Rows(nn.Module):
    """A layer, and a function of its rows."""

    def __init__(self, conv: nn.Module, function: Callable[[Tensor], Tensor] = F.relu) -> None:
        super().__init__()
        self.conv, self.function = conv, function

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.function(self.conv(x, edge_index))


CONV = functools.partial(pyg.SAGEConv, WIDTH, CLASSES)


class Reading(nn.Module):
    """A model that does something with edges."""

    def __init__(self, read: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.lin, self.read = nn.Linear(WIDTH, CLASSES), read

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self.read(x, edge_index)
        out: Tensor = self.lin(x)
        return out


def run_alone(model: nn.Module) -> Tensor:
    (shard,) = cut_all(make_graph(False), Partition(np.zeros(NODES, np.int32), None, Grid(1, 1, 1)))
    return Threads.run(lambda comm: on_rank([shard], model.double(), comm), 1)[0][0]


def run_apart(model: nn.Module) -> None:
    """Runs a model on the first of two ranks, which has all nodes."""
    shard = next(cut_all(make_graph(False), Partition(np.zeros(NODES, np.int32), None, Grid(2, 1, 1))))
    on_rank([shard], model.double(), trial.Alone(0, 2))


def ring(x: Tensor) -> Tensor:
    rows = torch.arange(len(x))
    return torch.stack([rows, rows.roll(1)])


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (
            lambda x, e: x.new_zeros(NODES).scatter_add_(0, e[0], x[e[0]][:, 0]),
            "Reading calls scatter_add_ on the source",
        ),
        (lambda x, e: e.flip(0), "Reading calls flip on edge_index"),
        (lambda x, e: e[[1, 0]], r"calls edge_index\[index\] on edge_index"),
        (lambda x, e: e.max(), r"calls max on edge_index: pass num_nodes=x\.size\(0\)"),
        (lambda x, e: e[0] * 1.0, "calls mul on the sources"),
        (lambda x, e: e[0] < e[1], "calls lt on the sources"),
        (lambda x, e: e[0] == 0, "calls eq on the sources"),
        (lambda x, e: e.float(), "calls float on edge_index"),
        (lambda x, e: e.to(torch.float), "calls to on edge_index"),
        (lambda x, e: torch.cat([e[0], e[1]]), "calls cat on the sources"),
        (lambda x, e: torch.stack([e[0], e[0]]), "calls stack on the sources"),
        (lambda x, e: torch.cat([e, ring(x)], 1), "adds edges that are no loops at rows of x"),
        (lambda x, e: torch.cat([e, torch.full((2, 1), NODES)], 1), "adds edges that are no loops at rows of x"),
        (lambda x, e: x[:-1][e[0]], f"reads {NODES - 1} rows by edge_index.0., and this worker has {NODES}"),
        (lambda x, e: x[e], r"calls x\[index\] on edge_index"),
        (lambda x, e: F.embedding(e[0], x), "calls embedding on the sources"),
        (lambda x, e: x.clone().__setitem__(e[0], 0), r"calls x\[index\] = value on the sources"),
        (lambda x, e: e.__setitem__(0, 0), r"calls x\[index\] = value on edge_index"),
        (lambda x, e: e[1][e[0]], r"calls x\[index\] on"),
        (lambda x, e: e.tolist(), "calls tolist on edge_index"),
        (lambda x, e: e.index_select(0, torch.tensor([1, 0])), "calls index_select on edge_index"),
        (lambda x, e: e[0].index_select(0, e[1]), "calls index_select on the sources"),
        (lambda x, e: e.unbind(1), "calls unbind on edge_index"),
        (lambda x, e: torch.stack([e[0], e[1][torch.arange(e.size(1)).roll(1)]]), "calls stack on the sources"),
    ],
)
def test_sources_that_reach_another_function_are_refused_by_name(
    read: Callable[[Tensor, Tensor], Any], expected: str
) -> None:
    with pytest.raises(UserError, match=f"model=Reading: .*{expected}"):
        run_apart(Reading(read))


def plain(e: Tensor) -> Tensor:
    """The places of edges that are no loops."""
    return (e[0] != e[1]).nonzero().flatten()


def add_up(x: Tensor, source: Tensor, destination: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, destination, x[source])


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    "read",
    [
        lambda x, e: add_up(x, *e.index_select(1, plain(e))),
        lambda x, e: add_up(x, e[0].index_select(0, plain(e)), e[1].index_select(0, plain(e))),
        lambda x, e: add_up(x, *e.clone()),
        lambda x, e: add_up(x, e[0].contiguous(), e[1].detach()),
        lambda x, e: add_up(x, e[0], torch.stack(e[1].unbind())),
        lambda x, e: x * torch.stack([(e[1] == row).sum() for row in range(len(x))])[:, None],
        lambda x, e: torch.zeros_like(x).index_add(0, torch.stack([e[1], e[1]])[1], x[e[1]]),
    ],
    ids=["chosen edges", "chosen ends", "copy", "copies of ends", "one by one", "compared", "stacked"],
)
def test_forms_of_reading_edges_give_what_torch_gives(read: Callable[[Tensor, Tensor], Tensor], ranks: int) -> None:
    class Reads(nn.Module):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return read(x, edge_index)

    graph = make_graph(False)
    reference = read(torch.from_numpy(graph.features), edges_of(graph))
    torch.testing.assert_close(drop_edges(Reads(), ranks), reference)


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_evaluation_reads_the_statistics_that_training_left(ranks: int) -> None:
    torch.manual_seed(0)
    norm = pyg.InstanceNorm(CLASSES, affine=True, track_running_stats=True)
    norm.running_mean, norm.running_var = torch.randn(CLASSES), torch.rand(CLASSES)
    model, graph = Rows(CONV(), norm).double().eval(), make_graph(False)
    reference = model(torch.from_numpy(graph.features), edges_of(graph)).detach()
    torch.testing.assert_close(drop_edges(model, ranks), reference)


class OfSeveral(Normed):
    def forward(self, x: Tensor, adj_t: Tensor) -> Tensor:
        out: Tensor = self.norm(self.conv1(x, adj_t), torch.arange(len(x)) % 2)
        return out


def test_a_normalisation_that_is_told_of_several_graphs_is_refused() -> None:
    with pytest.raises(UserError, match="model: GraphNorm gets a batch of several graphs, and all nodes are one graph"):
        run_apart(OfSeveral(pyg.GraphNorm(HIDDEN)))


class OfOwnRows(pyg.MessagePassing):
    """Messages that follow from the rows that they lead to, and name no edges."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.propagate(edge_index, x=x)
        return out

    def message(self, x_i: Tensor) -> Tensor:
        return F.dropout(x_i, 0.5)


@pytest.mark.slow
def test_dropout_of_messages_that_read_no_source_is_that_of_torch() -> None:
    torch.manual_seed(0)
    graph = make_graph(False)
    times = drop_edges(OfOwnRows(), 1) / (2 * torch.from_numpy(graph.features))
    degrees = torch.from_numpy(np.diff(graph.csc.indptr))[:, None]
    torch.testing.assert_close(times, times.round())  # each message is left out, or doubled
    assert ((times.round() >= 0) & (times.round() <= degrees)).all()
    assert 0.4 < float(times.sum() / (degrees.sum() * WIDTH)) < 0.6


def test_a_layer_that_adds_up_at_sources_is_named() -> None:
    with pytest.raises(UserError, match="model=Net: ChebConv calls view on the sources of edges"):
        run_apart(two(functools.partial(pyg.ChebConv, K=2))())


def test_edges_of_an_earlier_step_are_refused() -> None:
    kept: list[Tensor] = []

    def read(x: Tensor, edge_index: Tensor) -> None:
        kept.append(edge_index)
        x[kept[0][0]]

    shard = next(cut_all(make_graph(False), Partition(np.zeros(NODES, np.int32), None, Grid(2, 1, 1))))

    def twice(comm: Communicator) -> None:
        model, x = adapted(Reading(read).double()), torch.tensor(np.asarray(shard.features))
        for _ in range(2):
            model(x, layers_of(shard, comm))

    with pytest.raises(UserError, match="Reading reads edges of an earlier step, or in the backward pass: keep none"):
        twice(trial.Alone(0, 2))
    with pytest.raises(UserError, match="model=Reading: the model reads edges of an earlier step"):
        torch.zeros(NODES, 1)[kept[0][0]]


class Asks(nn.Module):
    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return x


class Alone(nn.Module):
    def forward(self, edge_index: Tensor) -> Tensor:
        return edge_index


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (
            Asks,
            "model=Asks: forward asks for batch, and a graph gives x, edge_index, edge_weight, edge_attr, edge_age, edge_type: give",
        ),
        (Alone, r"model=Alone: forward\(edge_index\) takes no rows of features: write forward\(x, edge_index\)"),
        (
            lambda: Net(pyg.GCNConv(2, 2), pyg.BatchNorm(2, allow_single_element=True)),
            r"BatchNorm\(allow_single_element=True\).*use allow_single_element=False",
        ),
        *(
            (
                lambda layer=layer: Net(pyg.GCNConv(2, 2), layer(2, 2, flow="target_to_source")),
                rf"model=Net: {layer.__name__}\(flow='target_to_source'\) reads edges against .*edge_index\.flip\(0\)",
            )
            for layer in (pyg.GCNConv, pyg.SAGEConv, pyg.GATConv)
        ),
    ],
)
def test_what_no_worker_can_compute_is_refused_before(make: Callable[[], nn.Module], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        adapted(make())


@pytest.mark.slow
def test_what_the_graph_lacks_is_named() -> None:
    with pytest.raises(UserError, match="model=Weighted: forward asks for edge_weight, but the graph has none"):
        run_alone(make_model("edge_weight"))

    class Times(OfData):
        def forward(self, data: Any) -> Tensor:  # type: ignore[override]
            return super().forward(data) * data.batch

    with pytest.raises(
        UserError, match=r"model=Times: a step or forward reads data\.batch, and there are x, edge_index"
    ):
        run_alone(two(pyg.GCNConv, Times)())


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (
            lambda: Rows(CONV(), lambda x: (x, x)),
            "forward must return one tensor with a row for each row of x, found tuple",
        ),  # type: ignore[arg-type, return-value]
        (lambda: Rows(CONV(), lambda x: x.sum(0)), r"a row for each row of x, found shape \[4\]"),
    ],
)
def test_an_output_of_another_form_is_named(make: Callable[[], nn.Module], expected: str) -> None:
    with pytest.raises(UserError, match=f"model=Rows: .*{expected}"):
        run_alone(make())


def test_what_a_layer_has_cached_before_is_neither_read_nor_lost() -> None:
    model, graph = two(functools.partial(pyg.GCNConv, cached=True))().double(), make_graph(False)
    fresh, x = copy.deepcopy(model), torch.from_numpy(graph.features)
    model(x, torch.zeros(2, 1, dtype=torch.int64))
    kept = model.conv1._cached_edge_index
    assert kept is not None
    torch.testing.assert_close(run_alone(model), run_alone(fresh))
    assert model.conv1._cached_edge_index is kept
    assert model.conv1.cached


def test_an_adapted_module_has_the_parameters_and_names_of_its_own() -> None:
    module = pyg.models.GraphSAGE(WIDTH, HIDDEN, 2, CLASSES, norm="BatchNorm")
    model = copy.deepcopy(adapted(module))
    assert list(model.state_dict()) == list(module.state_dict())
    assert adapted(model) is model
    model.double().eval()
    assert all(part.dtype == torch.float64 for part in model.module.parameters())
    assert not any(part.training for part in model.modules())
    assert type(model).__name__ == "GraphSAGE"


class Dropped(Rows):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(x, dropout_edge(edge_index, 0.5)[0])


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: Rows(CONV(), F.dropout), None),
        (lambda: Rows(CONV(), nn.BatchNorm1d(CLASSES)), None),
        (lambda: Rows(CONV(), pyg.BatchNorm(CLASSES)), None),
        (lambda: pyg.models.GCN(WIDTH, HIDDEN, 2, CLASSES, dropout=0.5, norm="BatchNorm"), None),
        *((lambda make=make: Normed(make()), None) for make in NORMS.values()),
        (
            lambda: Rows(CONV(), nn.InstanceNorm1d(CLASSES)),
            "function: InstanceNorm1d takes its statistics.*BatchNorm1d",
        ),
        (lambda: Rows(CONV(), lambda x: x - x.mean(0)), "Rows: outputs on several ranks differ.*use nn.BatchNorm1d"),
        (lambda: Rows(CONV(aggr="lstm")), None),
        (lambda: Rows(pyg.TransformerConv(WIDTH, 4, dropout=0.5)), None),
        (lambda: Rows(pyg.GATConv(WIDTH, 4, dropout=0.5)), None),
        (lambda: ByHand(p=0.5), "ByHand: torch's own Dropout differs on every layout"),
        (lambda: Dropped(CONV()), "Dropped: a draw of torch .rand. differs on every layout: draw by nn.Dropout only"),
    ],
)
def test_parts_that_depend_on_the_number_of_workers_are_named(
    make: Callable[[], nn.Module], expected: str | None
) -> None:
    actual = inexact(adapted(make()), WIDTH)
    if expected is None:
        assert actual == []
    else:
        (line,) = actual
        assert re.match(expected, line)


def drop_edges(model: nn.Module, ranks: int) -> Tensor:  # [NODES, width]
    """Computes outputs in training on some ranks."""
    graph = make_graph(False)
    owners = (np.arange(NODES) % ranks).astype(np.int32)
    shards = list(cut_all(graph, Partition(owners, None, Grid(ranks, 1, 1))))

    def part(comm: Communicator) -> Tensor:
        shard = shards[comm.rank]
        out: Tensor = adapted(copy.deepcopy(model))(torch.tensor(np.asarray(shard.features)), layers_of(shard, comm))
        return out.detach()

    rows = Threads.run(part, ranks)
    return torch.cat(rows)[
        torch.argsort(torch.cat([torch.from_numpy(shard.owned.astype(np.int64)) for shard in shards]))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("conv", [pyg.GATConv, pyg.GATv2Conv, pyg.TransformerConv])
def test_dropped_attention_is_that_of_one_process(conv: Any) -> None:
    torch.manual_seed(0)
    model = Net(conv(WIDTH, 3, heads=2, dropout=0.5), conv(6, CLASSES, dropout=0.5)).double()
    actual = drop_edges(model, 3)
    torch.testing.assert_close(actual, drop_edges(model, 1), rtol=1e-10, atol=1e-12)
    assert not torch.allclose(actual, drop_edges(model.eval(), 1))


@pytest.mark.slow
def test_half_of_the_edges_are_dropped_and_the_others_doubled() -> None:
    class Kept(pyg.MessagePassing):  # type: ignore[misc]
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.propagate(edge_index, x=x)  # type: ignore[no-any-return]

        def message(self, x_j: Tensor) -> Tensor:
            values.append(F.dropout(torch.ones_like(x_j), 0.5))
            return x_j

    values: list[Tensor] = []
    run_alone(Rows(Kept(), nn.Linear(WIDTH, CLASSES)))
    assert set(values[0].unique().tolist()) == {0.0, 2.0}
    assert 0.7 < float(values[0].mean()) < 1.3
    assert len(values[0].unique(dim=0)) > 10  # each edge and column has a draw of its own


def test_the_order_of_reads_is_compared_between_ranks() -> None:
    assert calls(adapted(make_model("GATConv")), WIDTH)[:2] == [
        "with_halo of 2 columns in layer 0 of conv1.att_src, conv1.lin.weight",
        "with_halo of 8 columns in layer 0 of conv1.lin.weight",
    ]


class TwoLayers(nn.Module):
    """The model of PyG's introduction."""

    def __init__(self, in_features: int, num_classes: int, p: float = 0.5, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.conv1, self.conv2 = pyg.GCNConv(in_features, hidden), pyg.GCNConv(hidden, num_classes)
        self.norm, self.p = nn.BatchNorm1d(hidden), p

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.norm(self.conv1(x, edge_index)).relu()
        out: Tensor = self.conv2(F.dropout(x, self.p, self.training), edge_index)
        return out


def make_data() -> Data:
    return pyg_data(WIDTH, CLASSES)


def train(tmp_path: Path, model: Any, **keys: Any) -> gnnkit.Result:
    return train_on_threads(make_data(), model, tmp_path / "run", 2, **keys)


@pytest.mark.slow
@few("model", [TwoLayers(WIDTH, CLASSES), TwoLayers], default=1)
def test_training_is_that_of_one_process_with_dropout_and_batch_normalisation(tmp_path: Path, model: Any) -> None:
    result = train(tmp_path, model, job="verify")
    assert result["verified"], result["largest_difference"]
    assert result["note"] is None


@pytest.mark.exhaustive
@pytest.mark.slow
@few("comm", ["threads", "gloo"], default=1)
def test_a_run_is_loaded_into_the_class_of_the_user(tmp_path: Path, comm: str) -> None:
    data, model = make_data(), TwoLayers(WIDTH, CLASSES)
    result = train(tmp_path, model, comm=comm)
    assert (result["exact"], result["inexact"], result["model"]) == (True, [], "TwoLayers")
    trained_model = gnnkit.load(result.folder, TwoLayers(WIDTH, CLASSES))
    assert isinstance(trained_model, TwoLayers)
    folder = tmp_path / "predicted"
    with within_process():
        predictions = gnnkit.predict(result.folder, data, model=model, write=["logits"], folder=folder, comm="threads")
        tested = gnnkit.predict(result.folder, data, model=model, job="test", folder=tmp_path / "test", comm="threads")
    logits = trained_model(data.x, data.edge_index).detach()
    np.testing.assert_allclose(np.load(predictions.folder / "logits.npy"), logits, atol=1e-5)
    assert tested["test_accuracy"] == pytest.approx(result["test_accuracy"])


LLCG: Any = "llcg"
SAMPLED: tuple[Any, ...] = (
    "individual_sample",
    {"name": "individual_sample", "topology": "partitioned"},
    "preset_workload",
    "joint_sample",
)


@pytest.mark.exhaustive
@pytest.mark.slow
@few("strategy", SAMPLED, default=["joint_sample"])
def test_sampled_training_is_that_of_all_workers_in_one_process(tmp_path: Path, strategy: Any) -> None:
    result = train(tmp_path, TwoLayers, strategy=strategy, job="verify")
    assert result["verified"], result["largest_difference"]
    one = strategy == "joint_sample"
    assert result["reference"] == ("one rank with the whole graph" if one else "3 ranks as threads of one process")


@pytest.mark.exhaustive
@pytest.mark.slow
@few("strategy", [*SAMPLED, LLCG], default=["preset_workload"])
def test_a_model_that_was_trained_on_batches_is_evaluated_on_the_whole_graph(tmp_path: Path, strategy: Any) -> None:
    result = train(tmp_path, TwoLayers, strategy=strategy, write=["logits"])
    trained_model, data = gnnkit.load(result.folder, TwoLayers(WIDTH, CLASSES)), make_data()
    reference = trained_model(data.x, data.edge_index).detach()
    np.testing.assert_allclose(np.load(result.folder / "logits.npy"), reference, atol=1e-5)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_batches_of_a_store_train_a_class_of_pyg(tmp_path: Path) -> None:
    data = make_data()
    shape: dict[str, Any] = {"workers": 3, "comm": "threads", "strategy": "individual_sample", **BARE}
    keys: dict[str, Any] = {"model": TwoLayers, "trainer": {"max_epochs": 1}, **shape}
    with within_process():
        gnnkit.train(data, job="partition", folder=tmp_path / "store", **shape)
        first = gnnkit.train(data, folder=tmp_path / "first", **keys)
        store = {"name": "store", "root": str(tmp_path / "store")}
        stored, again = (gnnkit.train(dataset=store, folder=tmp_path / name, **keys) for name in ("stored", "again"))
    for name in ("train_loss", "test_loss"):
        assert again[name] == stored[name]
        assert stored[name] == pytest.approx(first[name], rel=0.01)  # a store does not keep the order of the edge list


@pytest.mark.slow
@few("model", [pyg.models.GCN(WIDTH, 4, 3, CLASSES), lambda a, b: pyg.models.GCN(a, 4, 3, b)], default=1)
def test_convolutions_without_a_hop_of_their_own_are_named(model: Any, capsys: pytest.CaptureFixture[str]) -> None:
    overrides = ["strategy=individual_sample", "sampler.fanouts=[2,2]"]
    Parts.of(Order(settle(config.compose(overrides)), model=model, overrides=overrides)).check()
    assert "has 3 convolutions, and sampler.fanouts has 2 hops" in capsys.readouterr().out
    Parts.of(Order(settle(config.compose([*overrides, "sampler.fanouts=[2,2,2]"])), model=model)).check()
    assert not capsys.readouterr().out


class Means(nn.Module):
    """Two layers of GraphSAGE."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = pyg.SAGEConv(in_features, HIDDEN), pyg.SAGEConv(HIDDEN, num_classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.conv2(self.conv1(x, edge_index).relu(), edge_index)
        return out


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["individual_sample", "joint_sample"])
def test_batches_with_all_neighbours_train_as_pyg_on_the_whole_graph(tmp_path: Path, strategy: str) -> None:
    model, data = Means(WIDTH, CLASSES), make_data()
    alone = copy.deepcopy(model)
    fanouts = {"name": "neighbor", "fanouts": [1000, 1000]}
    trainer = {"max_epochs": 3, "lr": 0.05, "optimizer": "sgd", "weight_decay": 0}
    result = train(tmp_path, model, strategy=strategy, sampler=fanouts, trainer=trainer)
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        nodes = data.train_mask & (data.y >= 0)
        loss = F.cross_entropy(alone(data.x, data.edge_index)[nodes], data.y[nodes])
        loss.backward()
        optimizer.step()
    assert result["train_loss"] == pytest.approx(loss.item(), rel=1e-5)
    trained_model = gnnkit.load(result.folder, Means(WIDTH, CLASSES))
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(trained_model.state_dict()[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_batch_of_all_workers_is_that_of_one_worker(tmp_path: Path) -> None:
    model, trainer = TwoLayers(WIDTH, CLASSES, p=0.0), {"max_epochs": 2}
    keys = {"sampler": {"name": "neighbor", "fanouts": [2, 2]}, "trainer": trainer}
    losses = [
        train(tmp_path / strategy, copy.deepcopy(model), strategy=strategy, workers=workers, **keys)["train_loss"]
        for strategy, workers in (("joint_sample", 3), ("individual_sample", 1))
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.slow
def test_owners_draw_once_for_one_edge_index(tmp_path: Path) -> None:
    sampler = {"name": "neighbor", "fanouts": [2, 2], "options": {"redraw": True}}
    with pytest.raises(UserError, match=r"sampler.options.redraw=true: model=TwoLayers .* remove the option"):
        train(tmp_path, TwoLayers, strategy="joint_sample", sampler=sampler)


@pytest.mark.slow
@few(
    "partition,workers",
    [("2d", 4), ("1.5d", 4), ("3d", 4), ({"name": "1d", "grid": [1, 1, 2]}, 2), ("hdrf", 2)],
    default=1,
)
def test_other_layouts_are_refused_with_what_to_change(tmp_path: Path, partition: Any, workers: int) -> None:
    with pytest.raises(UserError, match=r"^model=TwoLayers|^partition.*use partition\.grid=1d"):
        train(tmp_path, TwoLayers, strategy="vertex_centric", partition=partition, workers=workers)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@turns(
    strategy=[{"name": "preset_workload", "exchange_every": 1}],
    model=[TwoLayers, TwoLayers(WIDTH, CLASSES)],
)
def test_batches_that_workers_share_are_refused_by_name(tmp_path: Path, strategy: Any, model: Any) -> None:
    name = strategy if isinstance(strategy, str) else strategy["name"]
    with pytest.raises(UserError, match=f"strategy={name}: model=TwoLayers reads one edge_index .*individual_sample"):
        train(tmp_path, model, strategy=strategy)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [
        {"exchange": "pipelined"},
        {"exchange": "quantized"},
        {"exchange": "adaptive"},
        {"strategy": {"name": "vertex_centric", "local_iterations": 2}},
        {"sync": "parameter_server"},
        {"task": "link_prediction"},
    ],
    ids=str,
)
def test_other_keys_of_full_graphs_go_with_classes_of_pyg(tmp_path: Path, keys: dict[str, Any]) -> None:
    assert np.isfinite(train(tmp_path, TwoLayers(WIDTH, CLASSES), **keys)["train_loss"])


@pytest.mark.exhaustive
@pytest.mark.slow
def test_accuracy_on_cora_is_that_of_pyg(tmp_path: Path, data_folder: Path) -> None:
    graph = Npz(str(data_folder / "cora.npz")).load()
    epochs, rate = 30, 0.02
    torch.manual_seed(0)
    model = TwoLayers(graph.features.shape[1], graph.num_classes, p=0.0, hidden=16)
    alone = copy.deepcopy(model)
    x, edge_index = torch.from_numpy(np.asarray(graph.features, np.float32)), edges_of(graph)
    labels, split = torch.from_numpy(np.array(graph.labels)), torch.from_numpy(np.array(graph.split))
    optimizer = torch.optim.Adam(alone.parameters(), lr=rate)
    for _ in range(epochs):
        optimizer.zero_grad()
        rows = split == Split.TRAIN
        F.cross_entropy(alone(x, edge_index)[rows], labels[rows]).backward()
        optimizer.step()
    rows = split == Split.TEST
    reference = float((alone.eval()(x, edge_index)[rows].argmax(1) == labels[rows]).float().mean())
    assert reference > 0.6
    keys: dict[str, Any] = {"strategy": "vertex_centric", "comm": "threads", **BARE}
    keys["trainer"] = {"max_epochs": epochs, "lr": rate, "check_val_every_n_epoch": epochs}
    for workers in (1, 4):
        with within_process():
            result = gnnkit.train(graph, model=model, folder=tmp_path / str(workers), workers=workers, **keys)
        assert result["test_accuracy"] == pytest.approx(reference, abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "width", "message"),
    [
        ({}, CLASSES - 1, r"3 outputs, expected 4 \(classes\)"),
        ({"strategy": "individual_sample", "sampler": {"fanouts": [2, 2]}}, 1, r"1 outputs, expected 4 \(classes\)"),
        ({"task": "regression"}, 2, r"2 outputs, expected 1 \(numbers to predict\)"),
        ({"task": {"name": "link_prediction", "decoder": "mlp"}}, 5, r"5 outputs, expected 64 \(task\.width\)"),
        ({}, CLASSES + 1, ""),  # classes that no label has
        ({"task": "link_prediction"}, 5, ""),  # a dot product reads any width
    ],
)
def test_the_output_width_is_checked(tmp_path: Path, keys: dict[str, Any], width: int, message: str) -> None:
    if message:
        with pytest.raises(UserError, match=f"^model=TwoLayers has {message}: change the width of its last layer"):
            train(tmp_path, TwoLayers(WIDTH, width), **keys)
    else:
        assert train(tmp_path, TwoLayers(WIDTH, width), **keys)["epochs"] > 0
