"""Typed attention models compute what PyG's layers compute."""

from __future__ import annotations

import pytest
import torch
from gnnkit_plan.trial import Alone
from gnnkit_testing.graphs import CLASSES, RELATIONS, WIDTH, check_graph
from torch import Tensor
from torch_geometric.nn import RGATConv as PyGConv

from gnnkit.engine import AddedRelations, Engine, ShardAdjacency
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.model.relation_weights import RelationWeights
from gnnkit.model.rgat import RGAT, RGATConv
from gnnkit.model.simple_hgn import SimpleHGN
from gnnkit.partition.shard import uncut

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


def dense_simple_hgn(model: SimpleHGN, x: Tensor, ends: Tensor, types: Tensor) -> Tensor:
    """Computes equations 5 to 12 of the paper, head by head."""
    (src, dst), n, layers = ends, len(x), len(model.convs)
    h, before = x @ model.project, None
    for number, conv in enumerate(model.convs):
        w, heads = conv.weight.view(h.shape[1], conv.heads, conv.width), []
        embedded = (conv.relations.weight @ conv.edge_weight).view(-1, *conv.relation.shape)
        attention = []
        for k in range(conv.heads):
            z = h @ w[:, k]
            score = z[src] @ conv.source[k] + z[dst] @ conv.destination[k] + embedded[types, k] @ conv.relation[k]
            powers = torch.where(score > 0, score, 0.05 * score).exp()
            total = torch.zeros(n, dtype=x.dtype).index_add(0, dst, powers)
            alpha = powers / total[dst]
            if before is not None and number + 1 < layers:
                alpha = (1 - conv.beta) * alpha + conv.beta * before[k]
            attention.append(alpha.detach())
            matrix = torch.zeros(n, n, dtype=x.dtype).index_put((dst, src), alpha, accumulate=True)
            heads.append(matrix @ z)
        out, before = torch.stack(heads, 1), attention
        if number:
            out = out + model.residuals[number](h).view_as(out)
        if number + 1 == layers:
            logits = out.mean(1)
            return logits / logits.norm(dim=1, keepdim=True)
        h = torch.nn.functional.elu(out.flatten(1))
    raise AssertionError


@pytest.mark.parametrize("num_layers", [1, 2, 4])
@pytest.mark.parametrize("added", [AddedRelations(loops=True), AddedRelations(inverse=True, loops=True)])
def test_simple_hgn_is_the_papers(added: AddedRelations, num_layers: int) -> None:
    torch.manual_seed(0)
    keys = {"hidden": 3, "heads": 2, "relation_width": 4, "dropout": 0.0, "beta": 0.3, "num_layers": num_layers}
    model = SimpleHGN(WIDTH, CLASSES, RELATIONS, inverse=added.inverse, **keys).double()  # type: ignore[arg-type]
    x = torch.tensor(GRAPH.features, dtype=torch.float64, requires_grad=True)
    results = model(x, [layer_of(GRAPH)] * num_layers), dense_simple_hgn(model, x, *edges_of(GRAPH, added))
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-6)
    by_weight = torch.randn_like(results[0])
    parameters = [x, *model.parameters()]
    gradients = [torch.autograd.grad((result * by_weight).sum(), parameters) for result in results]
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", [RGAT, SimpleHGN])
def test_sixteen_bit_rows_are_attended(kind: type[RGAT | SimpleHGN]) -> None:
    model = kind(WIDTH, CLASSES, RELATIONS, heads=2, num_layers=2).eval()
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
def test_keys_of_rgat_are_checked(keys: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        RGAT(WIDTH, CLASSES, RELATIONS, **keys)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["hidden", "heads", "out_heads", "relation_width", "num_layers"])
def test_keys_of_simple_hgn_are_checked(key: str) -> None:
    with pytest.raises(UserError, match=rf"model\.{key}=0"):
        SimpleHGN(WIDTH, CLASSES, RELATIONS, **{key: 0})  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"model\.beta=1"):
        SimpleHGN(WIDTH, CLASSES, RELATIONS, beta=1.0)
