"""Typed attention models compute what PyG's layers compute."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch_geometric.nn import RGATConv as PyGConv

from gnnkit.engine import AddedRelations, Engine, ShardAdjacency
from gnnkit.engine.trial import Alone
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.model.relation_weights import RelationWeights
from gnnkit.model.rgat import RGAT, RGATConv
from gnnkit.partition.shard import uncut
from gnnkit.testing.graphs import RELATIONS, WIDTH, check_graph

GRAPH = check_graph()


def layer_of(graph: Graph) -> ShardAdjacency:
    engine = Engine(uncut(graph), Alone(0, 1), torch.float64)
    (layer,) = ShardAdjacency.layers(engine, 1, 3)
    assert isinstance(layer, ShardAdjacency)
    return layer


def edges_of(graph: Graph, added: AddedRelations) -> tuple[Tensor, Tensor]:
    """Returns edge_index and edge_type, with the relations that a model adds."""
    csc = graph.csc
    src = torch.tensor(csc.indices).long()
    dst = torch.repeat_interleave(torch.arange(csc.num_nodes), torch.tensor(csc.indptr).diff())
    types, nodes = torch.tensor(graph.edge_types).long(), torch.arange(csc.num_nodes)
    ends, kinds = [torch.stack([src, dst])], [types]
    if added.inverse:
        ends, kinds = [*ends, torch.stack([dst, src])], [*kinds, types + RELATIONS]
    if added.loops:
        ends.append(torch.stack([nodes, nodes]))
        kinds.append(torch.full_like(nodes, added.count(RELATIONS) - 1))
    return torch.cat(ends, 1), torch.cat(kinds)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("bases", [None, 2])
@pytest.mark.parametrize("concat", [True, False])
@pytest.mark.parametrize("added", [AddedRelations(), AddedRelations(inverse=True, loops=True)])
def test_rgat_is_pygs(
    added: AddedRelations, concat: bool, bases: int | None, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    total, heads, width = added.count(RELATIONS), 3, 4
    ours = RGATConv(
        RelationWeights(WIDTH, heads * width, total, bases, None), total, width, heads, added, concat=concat
    )
    theirs = PyGConv(WIDTH, width, total, num_bases=bases, heads=heads, concat=concat).double()
    ours.double()
    if not fused:
        monkeypatch.setattr("gnnkit.engine.typed_attention.serves", lambda edges, h: False)
    with torch.no_grad():
        for part in (ours.key, ours.query, ours.bias):
            part.copy_(torch.randn_like(part[:1]).expand_as(part))  # PyG's do not differ by relation
        theirs.k.copy_(torch.block_diag(*ours.key[0, :, :, None]))
        theirs.q.copy_(torch.block_diag(*ours.query[0, :, :, None]))
        theirs.bias.copy_(ours.bias)
        if bases is None:
            theirs.weight.copy_(ours.relations.matrices())
        else:
            theirs.att.copy_(ours.relations.coefficients)
            theirs.basis.copy_(ours.relations.weight[:, 0])
    x = torch.randn(GRAPH.num_nodes, WIDTH, dtype=torch.float64, requires_grad=True)
    results = ours(x, layer_of(GRAPH)), theirs(x, *edges_of(GRAPH, added))
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-6)
    by_weight = torch.randn_like(results[0])
    of_x = [torch.autograd.grad((result * by_weight).sum(), x)[0] for result in results]
    torch.testing.assert_close(*of_x, rtol=1e-6, atol=1e-6)


def test_sixteen_bit_rows_are_attended() -> None:
    model = RGAT(WIDTH, 3, RELATIONS, heads=2).eval()
    x, layer = torch.tensor(GRAPH.features, dtype=torch.float32), layer_of(GRAPH)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model(x, [layer] * 2)
    torch.testing.assert_close(rounded.float(), model(x, [layer] * 2), rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"heads": 0}, r"model\.heads=0"),
        ({"hidden": 0}, r"model\.hidden=0"),
        ({"bases": 0}, r"model\.bases=0"),
        ({"dropout": 1.0}, r"model\.dropout=1"),
    ],
)
def test_keys_are_checked(keys: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        RGAT(WIDTH, 3, RELATIONS, **keys)  # type: ignore[arg-type]
