"""The heterogeneous graph transformer against PyG's layer, and its node types."""

from __future__ import annotations

import pytest
import torch
from gnnkit_plan.trial import Alone
from gnnkit_testing.graphs import CLASSES, RELATIONS, WIDTH, check_graph
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.nn import HGTConv as PyGConv

from gnnkit.engine import AddedRelations, Engine, ShardAdjacency, SparseRows
from gnnkit.errors import UserError
from gnnkit.graph import Graph, SparseFeatures
from gnnkit.model.hgt import HGT, HGTConv
from gnnkit.partition.shard import uncut

HEADS, HEAD_WIDTH = 3, 4
ROWS = HEADS * HEAD_WIDTH
SIZES = {"paper": 14, "none": 0, "author": 9, "source": 5}  # no edge enters the last type
ENDS = [
    ("author", "writes", "paper"),
    ("paper", "by", "author"),
    ("paper", "cites", "paper"),
    ("paper", "unused", "author"),  # without edges
    ("source", "tells", "paper"),
    ("source", "tells", "author"),
]


def hetero_data() -> HeteroData:
    draw, data = torch.Generator().manual_seed(1), HeteroData()
    for name, size in SIZES.items():
        data[name].x = torch.randn(size, ROWS, generator=draw, dtype=torch.float64)
    for source, name, destination in ENDS:
        count = 0 if name == "unused" else 20
        ends = [torch.randint(SIZES[end], (count,), generator=draw) for end in (source, destination)]
        data[source, name, destination].edge_index = torch.stack(ends)
    return data


def layers_of(graph: Graph, count: int) -> tuple[ShardAdjacency, ...]:
    return ShardAdjacency.layers(Engine(uncut(graph), Alone(0, 1), torch.float64), count, 3)  # type: ignore[return-value]


def randomise(conv: HGTConv) -> HGTConv:
    with torch.no_grad():
        for parameter in conv.parameters():
            parameter.copy_(torch.randn_like(parameter) / 2)
    return conv


@torch.no_grad()
def copy_to_pyg(ours: HGTConv, theirs: PyGConv) -> None:
    """Copies all parameters to PyG's layer, which orders and splits them otherwise."""
    keys, values = (part.chunk(2, -1) for part in (ours.key_value.weight, ours.key_value.bias))
    weights = torch.cat([keys[0], ours.query.weight, keys[1]], -1)
    biases = torch.cat([values[0], ours.query.bias, values[1]], -1)
    for number, name in enumerate(SIZES):
        theirs.kqv_lin.lins[name].weight.copy_(weights[number].T)
        theirs.kqv_lin.lins[name].bias.copy_(biases[number])
        theirs.out_lin.lins[name].weight.copy_(ours.out.weight[number].T)
        theirs.out_lin.lins[name].bias.copy_(ours.out.bias[number])
        theirs.skip[name].copy_(ours.skip[number])
    theirs.k_rel.weight.copy_(ours.key_relation.transpose(0, 1).flatten(0, 1))
    theirs.v_rel.weight.copy_(ours.value_relation.transpose(0, 1).flatten(0, 1))
    for number, ends in enumerate(ENDS):
        theirs.p_rel["__".join(ends)].copy_(ours.prior[number][None])


@pytest.mark.slow
@pytest.mark.parametrize("fused", [True, False])
def test_a_layer_is_pygs(fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    if not fused:
        monkeypatch.setattr("gnnkit.engine.typed_attention.serves", lambda edges, h: False)
    data = hetero_data()
    ours = randomise(HGTConv(HEAD_WIDTH, HEADS, len(SIZES), len(ENDS), AddedRelations(), 0.0).double())
    theirs = PyGConv(ROWS, ROWS, data.metadata(), heads=HEADS).double()
    copy_to_pyg(ours, theirs)
    x_dict = {name: x.requires_grad_() for name, x in data.x_dict.items()}
    (layer,) = layers_of(Graph.of(data), 1)
    result = ours(torch.cat([*x_dict.values()]), layer)
    parts = dict(zip(SIZES, result.split([*SIZES.values()]), strict=True))
    reference = theirs(x_dict, data.edge_index_dict)
    gradients: list[list[Tensor]] = []
    for rows in (parts, reference):
        torch.testing.assert_close(*(rows_of["paper"] for rows_of in (parts, reference)), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(*(rows_of["author"] for rows_of in (parts, reference)), rtol=1e-9, atol=1e-9)
        loss = sum((rows[name] * torch.arange(ROWS)).square().sum() for name in ("paper", "author"))
        gradients.append([*torch.autograd.grad(loss, [x_dict[name] for name in ("paper", "author", "source")])])
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-9)


def test_a_node_without_in_edges_keeps_a_share_of_its_row() -> None:
    torch.manual_seed(0)
    conv = randomise(HGTConv(HEAD_WIDTH, HEADS, len(SIZES), len(ENDS), AddedRelations(), 0.0).double())
    data = hetero_data()
    (layer,) = layers_of(Graph.of(data), 1)
    rows = conv(torch.cat([*data.x_dict.values()]), layer)[-SIZES["source"] :]
    gate = conv.skip[3].sigmoid()
    torch.testing.assert_close(rows, gate * conv.out.bias[3] + (1 - gate) * data["source"].x)


def test_parameters_of_empty_types_and_relations_have_gradients_of_zero() -> None:
    conv = randomise(HGTConv(HEAD_WIDTH, HEADS, len(SIZES), len(ENDS), AddedRelations(), 0.0).double())
    data = hetero_data()
    (layer,) = layers_of(Graph.of(data), 1)
    conv(torch.cat([*data.x_dict.values()]), layer).square().sum().backward()
    for parameter in (conv.key_value.weight, conv.query.bias, conv.out.weight, conv.skip):
        is_used = parameter.grad.flatten(1).abs().sum(1) > 0  # type: ignore[union-attr]
        assert is_used.tolist()[:3] == [True, False, True]
    for parameter in (conv.key_relation, conv.value_relation, conv.prior):
        is_used = parameter.grad.flatten(1).abs().sum(1) > 0  # type: ignore[union-attr]
        assert is_used.tolist() == [name != "unused" for _, name, _ in ENDS]


def test_sparse_rows_give_the_logits_of_dense_rows() -> None:
    graph = check_graph()
    model, layers = HGT(WIDTH, CLASSES, RELATIONS).double().eval(), layers_of(graph, 2)
    sparse = SparseRows.of(SparseFeatures.of(graph.features), torch.float64)
    dense = torch.tensor(graph.features, dtype=torch.float64)
    torch.testing.assert_close(model(sparse, layers), model(dense, layers), rtol=1e-6, atol=1e-6)


def test_another_number_of_node_types_is_refused() -> None:
    model = HGT(ROWS, CLASSES, len(ENDS), num_node_types=2).double()
    data = hetero_data()
    with pytest.raises(UserError, match=r"num_node_types=2, and the graph has 4: make"):
        model(torch.cat([*data.x_dict.values()]), layers_of(Graph.of(data), 2))


def test_a_graph_of_one_node_type_needs_no_sizes() -> None:
    graph = check_graph()
    model = HGT(WIDTH, CLASSES, RELATIONS, heads=2, hidden=3).double()
    assert model(torch.tensor(graph.features), layers_of(graph, 2)).shape == (graph.num_nodes, CLASSES)


@pytest.mark.parametrize("key", ["hidden", "heads", "num_layers"])
def test_keys_are_checked(key: str) -> None:
    with pytest.raises(UserError, match=rf"model\.{key}=0"):
        HGT(WIDTH, CLASSES, RELATIONS, **{key: 0})  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["inverse", "self_loop"])
def test_switches_are_booleans(key: str) -> None:
    for value in (2, "maybe"):
        with pytest.raises(UserError, match=rf"model\.{key}=.* must be true or false"):
            HGT(4, 2, **{key: value})
