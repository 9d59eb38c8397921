"""All classes of PyG as they are, on 1, 2 and 3 workers, beside plain PyG in float64.

Each class stands between two linear layers of a small network, which takes one step of
SGD: by PyG alone, and by `gnnkit.train` with the strategy vertex_centric. The logits
after the step are compared, so that forward pass and gradients count. Outcomes:

- exact: the logits are equal
- refused: `gnnkit.train` raised an error, whose first words are shown
- said: the logits differ, and `exact` in the result is false or null
- silent: the logits differ, and `exact` is true. None may exist
- absent: plain PyG does not run the class here, such as for a missing package

`--groups` and `--names` select classes. Exit code 1: a class is silent, or refused on
one worker. The whole table takes ten minutes on two cores.

    uv run python benchmarks/pyg_classes.py
    uv run python benchmarks/pyg_classes.py --groups norms --workers 1 2
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import nn as pyg
from torch_geometric import utils
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import aggr, conv, norm

import gnnkit
from gnnkit.errors import UserError

NODES, WIDTH, CLASSES, EDGE_WIDTH, RELATIONS = 40, 8, 3, 3, 3
TOLERANCE = 1e-6  # relative to the largest logit; some classes compute in float32
Call = Callable[..., Tensor]  # part, rows, edges -> rows
Maker = Callable[[], nn.Module]


class Outcome(NamedTuple):
    """What training a class did."""

    kind: str
    text: str = ""


def mlp(width: int = WIDTH, out: int = WIDTH) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, out))


@cache
def graph(in_degree: int | None = None) -> Data:
    """Draws a graph whose edges are sorted by destination only.

    It has parallel edges, loops and nodes without edges, unless all have `in_degree`.
    """
    draw = torch.Generator().manual_seed(0)
    degrees = torch.randint(0, 7, (NODES,), generator=draw)
    degrees = degrees if in_degree is None else torch.full_like(degrees, in_degree)
    dst = torch.arange(NODES).repeat_interleave(degrees)
    src = torch.randint(0, NODES, dst.shape, generator=draw)
    data = Data(torch.randn(NODES, 6, generator=draw, dtype=torch.float64), torch.stack([src, dst]))
    data.edge_attr = torch.rand(len(dst), EDGE_WIDTH, generator=draw, dtype=torch.float64)
    data.edge_type = torch.randint(0, RELATIONS, dst.shape, generator=draw)
    data.y = torch.randint(0, CLASSES, (NODES,), generator=draw)
    return with_masks(data, NODES)


def with_masks(store: Any, count: int) -> Any:
    for place, name in enumerate(("train_mask", "val_mask", "test_mask")):
        store[name] = torch.arange(count) % 3 == place
    return store


@cache
def typed_graph() -> HeteroData:
    draw, data = torch.Generator().manual_seed(0), HeteroData()
    for name, count, width in (("a", NODES, 6), ("b", 25, 5)):
        data[name].x = torch.randn(count, width, generator=draw, dtype=torch.float64)
    data["a"].y = torch.randint(0, CLASSES, (NODES,), generator=draw)
    with_masks(data["a"], NODES)
    for source, name, end in (("a", "to", "b"), ("b", "from", "a"), ("a", "self", "a")):
        dst = torch.randint(0, data[end].num_nodes, (90,), generator=draw).sort().values
        src = torch.randint(0, data[source].num_nodes, (90,), generator=draw)
        data[source, name, end].edge_index = torch.stack([src, dst])
    return data


def degrees() -> Tensor:
    return torch.bincount(utils.degree(graph().edge_index[1], NODES, dtype=torch.int64))


class Net(nn.Module):
    """The class between two linear layers."""

    def __init__(self, part: nn.Module, call: Call, data: Data) -> None:
        super().__init__()
        self.part, self.call, self.first = part, call, nn.Linear(data.num_features, WIDTH)
        with torch.no_grad():
            rows = copy.deepcopy(self)._rows(data.x, data.edge_index, data.edge_attr, data.edge_type)
        self.out = nn.Linear(rows.shape[1], CLASSES)

    def _rows(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, edge_type: Tensor) -> Tensor:
        x = self.first(x).tanh()
        return self.call(self.part, x, edge_index, edge_attr, edge_type)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, edge_type: Tensor) -> Tensor:
        return self.out(self._rows(x, edge_index, edge_attr, edge_type))


def net(make: Maker, call: Call = lambda part, x, e: part(x, e), *, reads: int = 0, data: Any = graph) -> Maker:
    """Returns a maker of the network. `reads` 1: edge features too, 2: types too."""
    cut = lambda part, x, e, a, t: call(part, x, e, *(a, t)[:reads])  # noqa: E731
    return lambda: Net(make(), cut, data())


class Weighted(pyg.MessagePassing):
    """A user's layer, whose messages read both ends."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_i: Tensor, x_j: Tensor) -> Tensor:
        return x_j * (x_i - x_j).sigmoid()


def convolutions() -> dict[str, Maker]:
    width = WIDTH
    attributes: Call = lambda part, x, e, a: part(x, e, a)  # noqa: E731
    types: Call = lambda part, x, e, a, t: part(x, e, t)  # noqa: E731
    place: Call = lambda part, x, e: part(x, x[:, :3], e)  # noqa: E731
    plain = {
        name: net(lambda name=name: getattr(pyg, name)(width, width))
        for name in (
            *("GCNConv", "SAGEConv", "CuGraphSAGEConv", "GraphConv", "ResGatedGraphConv", "GATConv", "CuGraphGATConv"),
            *("FusedGATConv", "GATv2Conv", "TransformerConv", "TAGConv", "ARMAConv", "SGConv", "MFConv", "FeaStConv"),
            *("LEConv", "ClusterGCNConv", "GENConv", "FiLMConv", "SuperGATConv", "EGConv", "GeneralConv", "MixHopConv"),
        )
    }
    relational = {
        name: net(lambda name=name: getattr(pyg, name)(width, width, RELATIONS), types, reads=2)
        for name in ("RGCNConv", "FastRGCNConv", "CuGraphRGCNConv", "RGATConv")
    }
    return (
        plain
        | relational
        | {
            "MessagePassing": net(Weighted),
            "SimpleConv": net(lambda: pyg.SimpleConv(combine_root="sum")),
            "ChebConv": net(lambda: pyg.ChebConv(width, width, 3)),
            "GravNetConv": net(lambda: pyg.GravNetConv(width, width, 2, 4, 3), lambda part, x, e: part(x)),
            "GatedGraphConv": net(lambda: pyg.GatedGraphConv(width, 2)),
            "AGNNConv": net(pyg.AGNNConv),
            "GINConv": net(lambda: pyg.GINConv(mlp())),
            "GINEConv": net(lambda: pyg.GINEConv(mlp(), edge_dim=EDGE_WIDTH), attributes, reads=1),
            "SSGConv": net(lambda: pyg.SSGConv(width, width, 0.1, 2)),
            "APPNP": net(lambda: pyg.APPNP(3, 0.1)),
            "SignedConv": net(lambda: pyg.SignedConv(width, 4, True), lambda part, x, e: part(x, e, e)),
            "DNAConv": net(lambda: pyg.DNAConv(width), lambda part, x, e: part(torch.stack([x, x.sin()], 1), e)),
            "PointNetConv": net(lambda: pyg.PointNetConv(mlp(width + 3)), place),
            "GMMConv": net(lambda: pyg.GMMConv(width, width, EDGE_WIDTH, 2), attributes, reads=1),
            "SplineConv": net(lambda: pyg.SplineConv(width, width, EDGE_WIDTH, 2), attributes, reads=1),
            "NNConv": net(lambda: pyg.NNConv(width, width, mlp(EDGE_WIDTH, width**2)), attributes, reads=1),
            "CGConv": net(lambda: pyg.CGConv(width, EDGE_WIDTH), attributes, reads=1),
            "EdgeConv": net(lambda: pyg.EdgeConv(mlp(2 * width))),
            "DynamicEdgeConv": net(lambda: pyg.DynamicEdgeConv(mlp(2 * width), 3), lambda part, x, e: part(x)),
            "XConv": net(lambda: pyg.XConv(width, width, 3, 3), lambda part, x, e: part(x, x[:, :3])),
            "PPFConv": net(lambda: pyg.PPFConv(mlp(width + 4)), lambda part, x, e: part(x, x[:, :3], x[:, 3:6], e)),
            "PointTransformerConv": net(lambda: pyg.PointTransformerConv(width, width), place),
            "HypergraphConv": net(lambda: pyg.HypergraphConv(width, width)),
            "PNAConv": net(
                lambda: pyg.PNAConv(width, width, ["mean", "std"], ["identity", "amplification"], degrees())
            ),
            "GCN2Conv": net(lambda: pyg.GCN2Conv(width, 0.1), lambda part, x, e: part(x, x, e)),
            "PANConv": net(lambda: pyg.PANConv(width, width, 2), lambda part, x, e: part(x, e)[0]),
            "WLConv": net(pyg.WLConv, lambda part, x, e: part(x.argmax(1), e)[:, None].to(x.dtype)),
            "WLConvContinuous": net(pyg.WLConvContinuous),
            "FAConv": net(lambda: pyg.FAConv(width), lambda part, x, e: part(x, x, e)),
            "PDNConv": net(lambda: pyg.PDNConv(width, width, EDGE_WIDTH, 8), attributes, reads=1),
            "HEATConv": net(
                lambda: pyg.HEATConv(width, width, 2, RELATIONS, 4, EDGE_WIDTH, 4),
                lambda part, x, e, a, t: part(x, e, (x[:, 0] > 0).long(), t, a),
                reads=2,
            ),
            "LGConv": net(pyg.LGConv),
            "PointGNNConv": net(lambda: pyg.PointGNNConv(mlp(out=3), mlp(width + 3), mlp()), place),
            "GPSConv": net(lambda: pyg.GPSConv(width, pyg.GCNConv(width, width), heads=2)),
            "AntiSymmetricConv": net(lambda: pyg.AntiSymmetricConv(width)),
            "DirGNNConv": net(lambda: pyg.DirGNNConv(pyg.SAGEConv(width, width))),
            "MeshCNNConv": net(lambda: pyg.MeshCNNConv(width, width), data=lambda: graph(4)),
            **{name: typed_convolutions()[name] for name in ("HGTConv", "HANConv", "HeteroConv")},
        }
    )


def aggregations() -> dict[str, Maker]:
    width, classes = WIDTH, pyg.aggr
    keys: dict[str, Maker] = {
        "MultiAggregation": lambda: classes.MultiAggregation(["mean", "max"]),
        "QuantileAggregation": lambda: classes.QuantileAggregation([0.25, 0.75]),
        "LSTMAggregation": lambda: classes.LSTMAggregation(width, width),
        "GRUAggregation": lambda: classes.GRUAggregation(width, width),
        "Set2Set": lambda: classes.Set2Set(width, 2),
        "DegreeScalerAggregation": lambda: classes.DegreeScalerAggregation("mean", "amplification", degrees()),
        "SortAggregation": lambda: classes.SortAggregation(3),
        "GraphMultisetTransformer": lambda: classes.GraphMultisetTransformer(width, 3, heads=2),
        "AttentionalAggregation": lambda: classes.AttentionalAggregation(mlp(out=1)),
        "EquilibriumAggregation": lambda: classes.EquilibriumAggregation(width, width, [8], 2),
        "MLPAggregation": lambda: classes.MLPAggregation(width, width, 6, num_layers=1),
        "DeepSetsAggregation": lambda: classes.DeepSetsAggregation(mlp(), mlp()),
        "SetTransformerAggregation": lambda: classes.SetTransformerAggregation(width, 2, heads=2),
        "LCMAggregation": lambda: classes.LCMAggregation(width, width),
        "PatchTransformerAggregation": lambda: classes.PatchTransformerAggregation(width, width, 2, 8, 1, heads=2),
        "SoftmaxAggregation": lambda: classes.SoftmaxAggregation(learn=True),
        "PowerMeanAggregation": lambda: classes.PowerMeanAggregation(learn=True),
    }
    names = [name for name in aggr.__all__ if name != "Aggregation"]
    return {
        name: net(lambda make=make: pyg.SimpleConv(make()))
        for name, make in ((name, keys.get(name, getattr(classes, name))) for name in names)
    }


def norms() -> dict[str, Maker]:
    width, kinds = WIDTH, norm
    makers: dict[str, Maker] = {
        "LayerNorm": lambda: kinds.LayerNorm(width),
        "LayerNorm by node": lambda: kinds.LayerNorm(width, mode="node"),
        "InstanceNorm": lambda: kinds.InstanceNorm(width),
        "InstanceNorm affine": lambda: kinds.InstanceNorm(width, affine=True, track_running_stats=True),
        "GraphNorm": lambda: kinds.GraphNorm(width),
        "GraphSizeNorm": kinds.GraphSizeNorm,
        "PairNorm": kinds.PairNorm,
        "PairNorm by node": lambda: kinds.PairNorm(scale_individually=True),
        "MeanSubtractionNorm": kinds.MeanSubtractionNorm,
    }
    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "batch": lambda x: torch.zeros(len(x), dtype=torch.int64),
        "two graphs": lambda x: (torch.arange(len(x)) >= len(x) // 2).long(),
    }
    types: Call = lambda part, x, e: part(x, (x[:, 0] > 0).long())  # noqa: E731
    alone: Call = lambda part, x, e: part(x)  # noqa: E731
    return {
        **{name: net(make, alone) for name, make in makers.items()},
        **{
            f"{name}, {way}": net(make, lambda part, x, e, batch=batch: part(x, batch(x)))
            for name, make in makers.items()
            for way, batch in ways.items()
        },
        "BatchNorm": net(lambda: kinds.BatchNorm(width), alone),
        "HeteroBatchNorm": net(lambda: kinds.HeteroBatchNorm(width, 2), types),
        "HeteroLayerNorm": net(lambda: kinds.HeteroLayerNorm(width, 2), types),
        "MessageNorm": net(lambda: kinds.MessageNorm(True), lambda part, x, e: part(x, x.sin())),
        "DiffGroupNorm": net(lambda: kinds.DiffGroupNorm(width, 2), alone),
        "nn.BatchNorm1d": net(lambda: nn.BatchNorm1d(width), alone),
        "nn.LayerNorm": net(lambda: nn.LayerNorm(width), alone),
    }


class Held(nn.Module):
    """A module with parts that a function combines."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)


def models() -> dict[str, Maker]:
    width, zeros = WIDTH, lambda x: torch.zeros(len(x), dtype=torch.int64)
    gcn: Maker = lambda: pyg.GCNConv(width, width)  # noqa: E731
    meta = lambda part, x, e, a: part(x, e, a)[0]  # noqa: E731
    two: Call = lambda part, x, e: part.parts[2]([part.parts[0](x, e), part.parts[1](x, e)])  # noqa: E731
    basic = {
        name: net(lambda name=name, keys=keys: getattr(pyg, name.split()[0])(width, width, 2, **keys))
        for name, keys in {
            "GCN": {},
            "GraphSAGE": {},
            "GIN": {},
            "GAT": {},
            "GAT v2": {"v2": True},
            "PNA": {"aggregators": ["mean"], "scalers": ["identity"], "deg": degrees()},
            "EdgeCNN": {},
            "GCN jk": {"jk": "lstm"},
            "GCN batch norm": {"norm": "BatchNorm"},
            "GraphSAGE layer norm": {"norm": "LayerNorm"},
        }.items()
    }
    return basic | {
        "MLP": net(lambda: pyg.MLP([width, width, width]), lambda part, x, e: part(x)),
        "JumpingKnowledge": net(lambda: Held(gcn(), gcn(), pyg.JumpingKnowledge("lstm", width, 1)), two),
        "MetaLayer": net(lambda: pyg.MetaLayer(None, NodeModel()), meta, reads=1),
        "GAE": net(lambda: pyg.GAE(gcn()), lambda part, x, e: part.encode(x, e)),
        "VGAE": net(lambda: pyg.VGAE(Held(gcn(), gcn())), lambda part, x, e: part.encoder.parts[0](x, e)),
        "InnerProductDecoder": net(pyg.InnerProductDecoder, lambda part, x, e: x * part(x, e).mean()),
        "DeepGraphInfomax": net(
            lambda: pyg.DeepGraphInfomax(width, gcn(), lambda z, *_: z.mean(0).sigmoid(), lambda x, e: (x.flip(0), e)),
            lambda part, x, e: part(x, e)[0],
        ),
        "SignedGCN": net(lambda: pyg.SignedGCN(width, width, 2), lambda part, x, e: part(x, e, e)),
        "GraphUNet": net(lambda: pyg.GraphUNet(width, width, width, 2)),
        "DeepGCNLayer": net(lambda: pyg.DeepGCNLayer(gcn(), nn.LayerNorm(width), nn.ReLU(), dropout=0.0)),
        "LabelPropagation": net(lambda: pyg.LabelPropagation(2, 0.5), lambda part, x, e: part(x, e)),
        "CorrectAndSmooth": net(
            lambda: pyg.CorrectAndSmooth(2, 0.5, 2, 0.5),
            lambda part, x, e: part.smooth(x.sigmoid(), x[x[:, 0] > 0].argmax(1), x[:, 0] > 0, e),
        ),
        "AttentiveFP": net(
            lambda: pyg.AttentiveFP(width, width, width, EDGE_WIDTH, 2, 1),
            lambda part, x, e, a: x + part(x, e, a, zeros(x)),
            reads=1,
        ),
        "RECT_L": net(lambda: pyg.RECT_L(width, width)),
        "LINKX": net(lambda: pyg.LINKX(NODES, width, width, width, 1)),
        "LightGCN": net(lambda: pyg.LightGCN(NODES, width, 2), lambda part, x, e: x + part.get_embedding(e)),
        "MaskLabel": net(lambda: pyg.MaskLabel(3, width), lambda part, x, e: part(x, x[:, :3].argmax(1), x[:, 0] > 0)),
        "GroupAddRev": net(  # which frees its input
            lambda: pyg.GroupAddRev(pyg.SAGEConv(width // 2, width // 2), num_groups=2),
            lambda part, x, e: part(x + 0, e),
        ),
        "PMLP": net(lambda: pyg.PMLP(width, width, width, 2, dropout=0.0)),
        "SGFormer": net(
            lambda: pyg.SGFormer(width, width, width, trans_dropout=0.0, gnn_dropout=0.0),
            lambda part, x, e: part(x, e, zeros(x)),
        ),
        "Polynormer": net(
            lambda: pyg.Polynormer(width, width, width, in_dropout=0.0, dropout=0.0, global_dropout=0.0),
            lambda part, x, e: part(x, e, zeros(x)),
        ),
        "Sequential": net(lambda: pyg.Sequential("x, e", [(gcn(), "x, e -> x"), nn.ReLU(), (gcn(), "x, e -> x")])),
    }


class NodeModel(nn.Module):
    """The node part of a `MetaLayer`."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(2 * WIDTH + EDGE_WIDTH, WIDTH)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, u: Any, batch: Any) -> Tensor:
        row, col = edge_index
        rows = torch.cat([x[row], edge_attr], 1)
        return self.lin(torch.cat([x, utils.scatter(rows, col, dim_size=len(x), reduce="mean")], 1))


def pools() -> dict[str, Maker]:
    width = WIDTH

    def put(x: Tensor, rows: Tensor, places: Tensor) -> Tensor:
        return x + torch.zeros_like(x).index_copy(0, places, rows)

    def edges(part: Any, x: Tensor, e: Tensor) -> Tensor:
        rows, _, _, info = part(x, e, torch.zeros(len(x), dtype=torch.int64))
        return part.unpool(rows, info)[0]

    def clusters(part: Any, x: Tensor, e: Tensor) -> Tensor:
        return x + part(x, e, torch.zeros(len(x), dtype=torch.int64))[0].mean(0)

    def picked(part: Any, x: Tensor, e: Tensor) -> Tensor:
        rows, *_, places, _ = (*part(x, e), None)[:6]
        return put(x, rows, places)

    add_pool: Call = lambda part, x, e: x + pyg.global_add_pool(x, None)  # noqa: E731
    return {
        "TopKPooling": net(lambda: pyg.TopKPooling(width), picked),
        "SAGPooling": net(lambda: pyg.SAGPooling(width), picked),
        "ASAPooling": net(lambda: pyg.ASAPooling(width), picked),
        "EdgePooling": net(lambda: pyg.EdgePooling(width), edges),
        "ClusterPooling": net(lambda: pyg.ClusterPooling(width), clusters),
        "MemPooling": net(
            lambda: pyg.MemPooling(width, width, 2, 3),
            lambda part, x, e: x + part(x, torch.zeros(len(x), dtype=torch.int64))[0].sum(1),
        ),
        "global_add_pool": net(nn.Identity, add_pool),
        "global_mean_pool": net(nn.Identity, lambda part, x, e: x + pyg.global_mean_pool(x, None)),
    }


def functions() -> dict[str, Maker]:
    gcn: Maker = lambda: pyg.GCNConv(WIDTH, WIDTH)  # noqa: E731
    graph_conv: Maker = lambda: pyg.GraphConv(WIDTH, WIDTH)  # noqa: E731

    def sparse(part: nn.Module, x: Tensor, e: Tensor) -> Tensor:
        matrix = torch.sparse_coo_tensor(e.flip(0), torch.ones(e.shape[1], dtype=x.dtype), (len(x), len(x)))
        return part(matrix @ x)

    def changed(part: nn.Module, x: Tensor, e: Tensor) -> Tensor:
        e = e.clone()
        e[:, ::2] = e[:, ::2].flip(0)
        e[0, 1] += 0
        return part(x, e)

    linear: Maker = lambda: nn.Linear(WIDTH, WIDTH)  # noqa: E731
    again = lambda part, x, e: torch.utils.checkpoint.checkpoint(part, x, e, use_reentrant=False)  # noqa: E731
    return {
        "to_undirected": net(gcn, lambda part, x, e: part(x, utils.to_undirected(e))),
        "get_laplacian": net(graph_conv, lambda part, x, e: part(x, *utils.get_laplacian(e, dtype=x.dtype))),
        "sparse product": net(linear, sparse),
        "to_dense_adj": net(linear, lambda part, x, e: part(utils.to_dense_adj(e, max_num_nodes=len(x))[0] @ x)),
        "out-degree": net(linear, lambda part, x, e: part(x * utils.degree(e[0], len(x), x.dtype)[:, None])),
        "in-degree": net(linear, lambda part, x, e: part(x * utils.degree(e[1], len(x), x.dtype)[:, None])),
        "add_self_loops": net(gcn, lambda part, x, e: part(x, utils.add_self_loops(e, num_nodes=len(x))[0])),
        "remove_self_loops": net(gcn, lambda part, x, e: part(x, utils.remove_self_loops(e)[0])),
        "coalesce": net(gcn, lambda part, x, e: part(x, utils.coalesce(e, num_nodes=len(x)))),
        "flip": net(gcn, lambda part, x, e: part(x, e.flip(0))),
        "subgraph": net(gcn, lambda part, x, e: part(x, utils.subgraph(torch.arange(len(x) // 2), e)[0])),
        "k_hop_subgraph": net(gcn, lambda part, x, e: part(x, utils.k_hop_subgraph(0, 2, e, num_nodes=len(x))[1])),
        "edges changed in place": net(gcn, changed),
        "checkpoint": net(gcn, again),
    }


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(pyg.SAGEConv((WIDTH, WIDTH), WIDTH) for _ in range(2))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.convs[1](self.convs[0](x, edge_index).relu(), edge_index)


class Typed(nn.Module):
    """A class of rows by type between linear layers by type."""

    def __init__(self, part: nn.Module, call: Call) -> None:
        super().__init__()
        self.part, self.call = part, call
        self.first = nn.ModuleDict({"a": nn.Linear(6, WIDTH), "b": nn.Linear(5, WIDTH)})
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Tensor:
        rows = {name: lin(x_dict[name]).tanh() for name, lin in self.first.items()}
        return self.out(self.call(self.part, rows, edge_index_dict)["a"])


def typed_convolutions() -> dict[str, Maker]:
    width, meta = WIDTH, typed_graph().metadata()

    def typed(make: Maker, call: Call = lambda part, x, e: part(x, e)) -> Maker:
        return lambda: Typed(make(), call)

    def by_relation(make: Callable[[tuple[str, str, str]], nn.Module], aggr: str = "sum") -> Maker:
        return typed(lambda: pyg.HeteroConv({relation: make(relation) for relation in meta[1]}, aggr))

    def rows(make: Maker) -> Maker:
        return typed(make, lambda part, x, e: part(x))

    widths = (width, width)
    loops = {"add_self_loops": False}
    return {
        "HeteroConv": by_relation(lambda _: pyg.SAGEConv(widths, width)),
        "HeteroConv max": by_relation(lambda _: pyg.SAGEConv(widths, width, aggr="max"), "max"),
        "HeteroConv GraphConv": by_relation(lambda _: pyg.GraphConv(widths, width), "mean"),
        "HeteroConv GAT": by_relation(lambda _: pyg.GATConv(widths, width, **loops)),
        "HeteroConv GATv2": by_relation(lambda _: pyg.GATv2Conv(widths, width, **loops)),
        "HeteroConv Transformer": by_relation(lambda _: pyg.TransformerConv(widths, width)),
        "HeteroConv GIN": by_relation(lambda _: pyg.GINConv(mlp())),
        "HeteroConv LSTM": by_relation(lambda _: pyg.SAGEConv(widths, width, aggr="lstm")),
        "HeteroConv Dir": by_relation(
            lambda r: pyg.DirGNNConv(pyg.SAGEConv(width, width)) if r[0] == r[2] else pyg.SAGEConv(widths, width)
        ),
        "HGTConv": typed(lambda: pyg.HGTConv(width, width, meta, 2)),
        "HANConv": typed(lambda: pyg.HANConv(width, width, meta, 2)),
        "HeteroDictLinear": rows(lambda: pyg.HeteroDictLinear(width, width, meta[0])),
        "HeteroJumpingKnowledge": typed(
            lambda: pyg.HeteroJumpingKnowledge(meta[0], "max"),
            lambda part, x, e: part({k: [v, v.sin()] for k, v in x.items()}),
        ),
        "to_hetero SAGE": typed(lambda: pyg.to_hetero(pyg.GraphSAGE(widths, width, 2), meta)),
        "to_hetero GAT": typed(lambda: pyg.to_hetero(pyg.GAT(widths, width, 2, **loops), meta)),
        "to_hetero_with_bases": typed(lambda: pyg.to_hetero_with_bases(TwoLayers(), meta, 3, in_channels={"x": width})),
        "ModuleDict of BatchNorm": typed(
            lambda: nn.ModuleDict({name: pyg.BatchNorm(width) for name in meta[0]}),
            lambda part, x, e: {name: part[name](value) for name, value in x.items()},
        ),
    }


GROUPS: Mapping[str, Callable[[], dict[str, Maker]]] = {
    "convolutions": convolutions,
    "aggregations": aggregations,
    "norms": norms,
    "models and blocks": models,
    "poolings": pools,
    "functions of edges": functions,
    "typed": typed_convolutions,
}


def plain_logits(model: nn.Module, data: Data | HeteroData) -> Tensor:
    """Takes one step by plain PyG. Returns the logits of the labelled type."""
    store = data["a"] if isinstance(data, HeteroData) else data
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    F.cross_entropy(logits(model.train(), data)[store.train_mask], store.y[store.train_mask]).backward()
    optimizer.step()
    with torch.no_grad():
        return logits(model.eval(), data)


def logits(model: nn.Module, data: Data | HeteroData) -> Tensor:
    if isinstance(data, HeteroData):
        return model(data.x_dict, data.edge_index_dict)
    return model(data.x, data.edge_index, data.edge_attr, data.edge_type)


def outcome(model: nn.Module, data: Data | HeteroData, reference: Tensor, workers: int) -> Outcome:
    """Takes the same step by `gnnkit.train`, and compares the logits."""
    trainer = {"max_epochs": 1, "lr": 0.1, "optimizer": "sgd", "weight_decay": 0, "precision": 64, "monitor": None}
    keys: dict[str, Any] = {"comm": "threads", "launcher": "threads", "cache": False, "features": {"scale": "none"}}
    with TemporaryDirectory() as folder, silence():
        run = Path(folder) / "run"
        try:
            result = gnnkit.train(
                *(data,), model=model, strategy="vertex_centric", workers=workers, trainer=trainer, folder=run,
                write=["logits"], report=False, logger="none", **keys,
            )  # fmt: skip
        except UserError as error:
            return Outcome("refused", str(error).split(": ", 1)[-1][:110])
        except Exception as error:
            return Outcome("failed", repr(error)[:110])
        logits = torch.from_numpy(np.load(run / "logits.npy"))[: len(reference)]
    difference = float((logits - reference).abs().max() / reference.abs().max().clamp(min=1))
    if difference <= TOLERANCE:
        return Outcome("exact")
    text = f"differs by {difference:.1g}"
    return Outcome("silent", text) if result["exact"] is True else Outcome("said", f"{text}; {result['inexact']}"[:110])


@contextlib.contextmanager
def silence() -> Iterator[None]:
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


def outcomes(make: Maker, numbers: list[int]) -> dict[int, Outcome]:
    """Returns the outcome by number of workers."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # some classes create tensors in `forward`
    try:
        torch.manual_seed(0)
        with silence():
            model = make().double()
            data: Any = typed_graph() if isinstance(model, Typed) else model_data(model)
            logits(model.eval(), data)  # initialises lazy layers
            start = copy.deepcopy(model)
            reference = plain_logits(model, data)
            assert bool(reference.isfinite().all())
        return {workers: outcome(copy.deepcopy(start), data, reference, workers) for workers in numbers}
    except Exception as error:
        return dict.fromkeys(numbers, Outcome("absent", f"{type(error).__name__}: {error}".split("\n")[0][:110]))
    finally:
        torch.set_default_dtype(dtype)


def model_data(model: nn.Module) -> Data:
    return graph(4) if isinstance(getattr(model, "part", None), conv.MeshCNNConv) else graph()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", nargs="+", choices=list(GROUPS), default=list(GROUPS))
    parser.add_argument("--names", nargs="+", help="classes. Default: all of the groups")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 3])
    options = parser.parse_args()
    torch.set_num_threads(1)
    counts: dict[tuple[str, int], Counter[str]] = {}
    wrong = False
    for group in options.groups:
        for name, make in GROUPS[group]().items():
            if options.names and name not in options.names:
                continue
            for workers, (kind, text) in outcomes(make, options.workers).items():
                counts.setdefault((group, workers), Counter())[kind] += 1
                wrong |= kind in ("silent", "failed") or (kind == "refused" and workers == 1)
                if kind != "exact" and (kind != "absent" or workers == options.workers[0]):
                    print(f"{name}, {workers}: {kind}: {text}", flush=True)
    kinds = ("exact", "refused", "said", "silent", "failed", "absent")
    print(f"\n| group | workers | {' | '.join(kinds)} |\n|{'---|' * (len(kinds) + 2)}")
    for (group, workers), count in counts.items():
        print(f"| {group} | {workers} | {' | '.join(str(count[kind]) for kind in kinds)} |")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
