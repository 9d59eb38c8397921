"""What stays deferred, what computes rows, and that both give the results of torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lazy_index import Index, index_of
from lazyedges import Deferred, pieces, rows_by_edge
from lazyedges.functions import POINTWISE
from plain_kernels import PlainBackend
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
NODES, EDGES, WIDTH = 11, 40, 18  # wider than narrow values
Values = Callable[[Tensor, Tensor, Tensor, Tensor], Any]  # of rows, edges, values of edges [E, WIDTH], a weight


def sum_at(values: Tensor, edges: Tensor) -> Tensor:
    zeros = values.new_zeros(NODES, *values.shape[1:])
    return zeros.index_add_(0, edges[1], values)


def extreme_at(values: Tensor, edges: Tensor, name: str) -> Tensor:
    index = edges[1][:, None].expand(-1, values.shape[1])
    return values.new_zeros(NODES, values.shape[1]).scatter_reduce(0, index, values, name, include_self=False)


def both(x: Tensor, e: Tensor) -> Tensor:
    return x[e[0]] - 2 * x[e[1]]


def attention(x: Tensor, e: Tensor, v: Tensor, w: Tensor) -> Tensor:
    at_source, at_destination = x[:, :2].tanh()[e[0]], x[:, 2:4][e[1]]
    scores = F.leaky_relu(at_source + at_destination + v[:, :2], 0.1)
    largest = extreme_at(scores.detach(), e, "amax")
    powers = (scores - largest[e[1]]).exp()
    weights = powers / (sum_at(powers, e) + 1e-16)[e[1]]
    return weights.unsqueeze(-1) * x.view(-1, 2, 9)[e[0]]


def degrees(x: Tensor) -> Tensor:
    return x.detach().exp()[:, 0]


# By the first column of the README's table.
OPERATIONS: dict[str, list[Values]] = {
    "`rows * e`, `rows / e`": [
        lambda x, e, v, w: x[e[0]] * v[:, :1],
        lambda x, e, v, w: v[:, :1] * x[e[0]] / (2 + v[:, 1:2]),
        lambda x, e, v, w: x.view(-1, 2, 9)[e[0]] * v[:, :2, None],
        lambda x, e, v, w: x[e[0]] * (w.mean() * v[:, :1]),
    ],
    "`relu`, `exp`, `rows * 2`, `rows + bias`, `rows.double()` and all of `functions.POINTWISE`": [
        lambda x, e, v, w: (x[e[0]].relu() * 2 + w[0]).tanh().exp(),
        lambda x, e, v, w: F.elu(1 - x[e[1]]).sigmoid().clamp(0.1, 0.6).sqrt(),
        lambda x, e, v, w: x[e[0]].double() ** 2,
    ],
    "`linear`, `@`, `mm`": [
        lambda x, e, v, w: F.linear(x[e[0]], w, w[0]),
        lambda x, e, v, w: x[e[0]] @ w + x[e[0]].mm(w.T),
    ],
    "`view`, `reshape`, `flatten(1)`, `unsqueeze`, `rows[:, columns]`": [
        lambda x, e, v, w: x[e[0]].view(-1, 2, 9).unsqueeze(1).flatten(1),
        lambda x, e, v, w: x[e[0]].reshape(-1, 9, 2)[:, 1:],
    ],
    "all of `POINTWISE`, `linear`, `@`, `view`": [
        lambda x, e, v, w: both(x, e).tanh() * v + w[0],
        lambda x, e, v, w: F.linear(both(x, e), w).relu().view(-1, 2, 9) @ w[:9, :9],
    ],
    "`cat`, `stack`": [
        lambda x, e, v, w: torch.cat([x[e[0]], x[e[1]], v], 1).sigmoid(),
        lambda x, e, v, w: torch.stack([x[e[0]], x[e[1]]], -1).exp(),
        lambda x, e, v, w: F.linear(torch.cat([x[e[0]], x[e[1]]], -1), torch.cat([w, w], 1)),
    ],
    "`sum`, `mean`": [
        lambda x, e, v, w: x[e[0]] * (both(x, e) * w[0]).sum(-1, keepdim=True),
        lambda x, e, v, w: x[e[0]] * both(x, e).relu().mean(1)[:, None],
        lambda x, e, v, w: x[e[0]] * (x[e[0]] * x[e[1]]).sum(-1)[:, None],
    ],
    "`number[source] * number[destination]`": [
        lambda x, e, v, w: (degrees(x)[e[0]] * degrees(x)[e[1]]).view(-1, 1) * x[e[0]],
        lambda x, e, v, w: x[e[0]] * (degrees(x)[e[0]] * x.new_ones(EDGES) * degrees(x)[e[1]]).unsqueeze(1),
    ],
    "`leaky_relu(a_source + a_destination + e)`, its softmax by destination, dropout, `* rows`": [attention],
    "`dropout` with p=0 or outside training, `detach`, `contiguous`": [
        lambda x, e, v, w: F.dropout(F.dropout(x[e[0]], 0.0), 0.5, training=False).contiguous(),
        lambda x, e, v, w: both(x, e).detach() + x[e[0]].detach() * w[0],
    ],
    "`new_zeros`, `new_ones`": [
        lambda x, e, v, w: both(x, e).new_ones(EDGES, WIDTH),
        lambda x, e, v, w: x[e[0]].new_zeros((EDGES, 3), dtype=torch.float32),
    ],
}
# By words of the README's section. Each entry: whether it is counted.
COMPUTING: dict[str, tuple[Values, bool]] = {
    "`sort`": (lambda x, e, v, w: x[e[0]].sort(1).values, True),
    "indexing with a tensor": (lambda x, e, v, w: x[e[0]][:, torch.tensor([2, 0])], True),
    "`rows += 1`": (lambda x, e, v, w: x[e[0]].add_(1) * w[0], True),
    "a sum over all edges": (lambda x, e, v, w: x[e[0]] * x[e[0]].sum(0), True),
    "two sets of edges": (lambda x, e, v, w: x[e[0]] + x[index_like(e)[0]], True),
    "narrow values": (lambda x, e, v, w: x[:, :2][e[0]] + v[:, :2], False),
    "`torch.autograd.Function`": (lambda x, e, v, w: Doubled.apply(x[e[0]]), True),
}


class Doubled(torch.autograd.Function):
    """A function that torch calls without asking its arguments."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        return rows * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


def index_like(e: Tensor) -> Tensor:
    """Returns another set of the same edges."""
    if not isinstance(e, Index):
        return e
    return index_of(e.edges.edge_index, (NODES, NODES))


def inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns rows, edges with loops and lonely nodes, values of edges and a weight."""
    torch.manual_seed(0)
    x, v, w = (torch.randn(n, WIDTH, dtype=torch.float64) for n in (NODES, EDGES, WIDTH))
    return x.requires_grad_(), torch.randint(0, NODES - 2, (2, EDGES)), v.requires_grad_(), w.requires_grad_()


def gradients(function: Callable[[Tensor], Tensor], edges: Tensor) -> tuple[Tensor, list[Tensor]]:
    x, _, v, w = inputs()
    out = function(x, edges, v, w)  # type: ignore[call-arg]
    out = out if out.dim() == 2 else out.flatten(1)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    if not out.requires_grad:
        return out, []
    return out.detach(), list(torch.autograd.grad((out * weights).sum(), (x, v, w), materialize_grads=True))


def compare(function: Callable[..., Tensor], rtol: float = 1e-10) -> Index:
    """Compares values and gradients with plain torch's. Returns the edges."""
    edges = inputs()[1]
    index = index_of(edges, (NODES, NODES))
    (out, found), (expected, theirs) = gradients(function, index), gradients(function, edges)
    for mine, other in zip([out, *found], [expected, *theirs], strict=True):
        torch.testing.assert_close(mine, other, rtol=rtol, atol=rtol / 100)
    return index


def cells(heading: str) -> list[str]:
    """Lists the first column of a section's first table."""
    section = README.partition(f"## {heading}\n")[2].partition("\n## ")[0].split("\n\n")
    table = next(block for block in section if block.startswith("|"))
    return [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines()[2:]]


EACH = [pytest.param(of, id=f"{name} {place}") for name, items in OPERATIONS.items() for place, of in enumerate(items)]


def test_the_table_lists_what_is_tested_here() -> None:
    assert cells("What stays deferred") == list(OPERATIONS)
    words = " ".join(README.partition("## What computes the rows")[2].split())
    assert [name for name in COMPUTING if name not in words] == []


@pytest.mark.parametrize("function", EACH)
def test_an_operation_of_the_table_stays_deferred(function: Values) -> None:
    deferred: list[bool] = []

    def total(x: Tensor, e: Tensor, v: Tensor, w: Tensor) -> Tensor:
        values = function(x, e, v, w)
        deferred.append(isinstance(values, Deferred) and not values.computed)
        return sum_at(values, e)

    assert compare(total).origin.fallbacks == {}
    assert deferred[0]  # in the call on deferred rows


UNARY = "neg abs exp log sqrt square relu leaky_relu elu selu celu gelu silu tanh sigmoid softplus detach float double"
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys([*UNARY.split(), "__neg__"], ()),
    "clamp": (0.3, 0.6),
    "to": (torch.float64,),
    "type_as": (torch.ones(1, dtype=torch.float64),),
}  # others take a number


@pytest.mark.parametrize("ends", ["one end", "both ends"])
@pytest.mark.parametrize("name", sorted(POINTWISE))
def test_every_function_of_single_numbers_stays_deferred(name: str, ends: str) -> None:
    function = getattr(Tensor, name, None) or getattr(F, name, None) or getattr(torch, name)

    def total(x: Tensor, e: Tensor, v: Tensor, w: Tensor) -> Tensor:
        rows = x[e[0]] if ends == "one end" else both(x, e)
        return sum_at(function(rows.abs() + 0.1, *ARGUMENTS.get(name, (1.5,))), e).double()

    exact = name != "float"  # whose sums are rounded in another order
    index = compare(total, rtol=1e-10 if exact else 1e-5)
    assert index.origin.fallbacks == {}


@pytest.mark.parametrize("name", ["amax", "amin"])
@pytest.mark.parametrize("function", [OPERATIONS["`cat`, `stack`"][0], lambda x, e, v, w: both(x, e).abs()])
def test_extremes_of_functions_of_both_ends(function: Values, name: str) -> None:
    assert compare(lambda x, e, v, w: extreme_at(function(x, e, v, w), e, name)).origin.fallbacks == {}


@pytest.mark.parametrize("name", COMPUTING)
def test_what_computes_rows_gives_the_results_of_torch(name: str) -> None:
    function, counted = COMPUTING[name]
    index = compare(lambda x, e, v, w: sum_at(function(x, e, v, w), e))
    assert bool(index.origin.fallbacks) == counted


@pytest.mark.parametrize("numbers", [1, 1 << 19])
def test_functions_of_both_ends_have_gradients_of_gradients(numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "NUMBERS", numbers)
    x, w = (torch.randn(n, 2, dtype=torch.float64, requires_grad=True) for n in (NODES, 2))

    def second(index: Tensor) -> list[Tensor]:
        values = (x[index[0]] - x[index[1]]).tanh() @ w
        out = sum_at(values, index) + extreme_at(values, index, "amax")
        first = torch.autograd.grad(out.square().sum(), (x, w), create_graph=True)
        return [out, *first, *torch.autograd.grad(sum(grad.sin().sum() for grad in first), (x, w))]

    edges = inputs()[1]
    torch.testing.assert_close(second(index_of(edges, (NODES, NODES))), second(edges), rtol=1e-10, atol=1e-12)


class Largest(TorchDispatchMode):
    """Records the most numbers of a new tensor of floats."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.is_floating_point() and not out._is_view():
            self.numbers = max(self.numbers, out.numel())
        return out


@pytest.mark.slow
def test_no_tensor_has_a_row_per_edge() -> None:
    num_nodes, num_edges, width = 2_000, 60_000, 32
    edges = torch.randint(0, num_nodes, (2, num_edges))
    x = torch.randn(num_nodes, width, requires_grad=True)
    sizes = []
    for e in (index_of(edges, (num_nodes, num_nodes)), edges):
        with Largest() as largest:
            out = x.new_zeros(x.shape).index_add_(0, e[1], (x[e[0]] - x[e[1]]).tanh())
            out.sum().backward()
        sizes.append(largest.numbers)
    assert sizes[0] <= pieces.NUMBERS + 100 * width < sizes[1] == num_edges * width


def test_rows_changed_in_place_after_a_read_are_those_that_were_read_or_refused() -> None:
    x, edges, _, _ = inputs()
    x = x.detach()
    index = index_of(edges, (NODES, NODES))
    before = x.clone()
    rows = rows_by_edge(index.origin, index.edges, x, at_source=True)
    index.origin.before_write(x)
    x += 1
    torch.testing.assert_close(rows * 1, before[edges[0]])
    rows = rows_by_edge(index.origin, index.edges, x, at_source=True)
    x += 1
    with pytest.raises(RuntimeError, match="rows were changed in place after they were read by edge: change a copy"):
        rows.sort()


def test_dropped_attention_is_that_of_its_weights() -> None:
    x, edges, _, _ = inputs()
    backend = PlainBackend()
    index = index_of(edges, (NODES, NODES), backend)
    ids = index.edges.ids(None)
    expected = backend.dropout(torch.ones(EDGES, 2, dtype=x.dtype), ids, 0.5, 7)

    def dropped(e: Tensor) -> Tensor:
        at_source, at_destination = x[:, :2][e[0]], x[:, 2:4][e[1]]
        scores = F.leaky_relu(at_source + at_destination, 0.1)
        powers = (scores - extreme_at(scores.detach(), e, "amax")[e[1]]).exp()
        weights = powers / (sum_at(powers, e) + 1e-16)[e[1]]
        if isinstance(weights, Deferred):
            assert weights.meaning is not None
            weights = weights.meaning.drop(weights, ids, 0.5, 7)  # type: ignore[assignment]
        else:
            weights = weights * expected
        return sum_at(weights.unsqueeze(-1) * x.view(-1, 2, 9)[e[0]], e)

    torch.testing.assert_close(dropped(index), dropped(edges), rtol=1e-10, atol=1e-12)
    assert index.origin.fallbacks == {}
    assert len(set(expected.unique().tolist())) == 2


LAYERS: dict[str, Callable[[Any], torch.nn.Module]] = {
    "GCNConv": lambda pyg: pyg.GCNConv(WIDTH, 4, add_self_loops=False),
    "SAGEConv": lambda pyg: pyg.SAGEConv(WIDTH, 4, aggr=["mean", "max", "std"]),
    "GATConv": lambda pyg: pyg.GATConv(WIDTH, 3, heads=2, add_self_loops=False),
    "GATv2Conv": lambda pyg: pyg.GATv2Conv(WIDTH, 3, heads=2, add_self_loops=False),
    "TransformerConv": lambda pyg: pyg.TransformerConv(WIDTH, 2, heads=2),
    "EdgeConv": lambda pyg: pyg.EdgeConv(torch.nn.Linear(2 * WIDTH, 4)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_pyg_compute_no_row_per_edge(name: str) -> None:
    layer = LAYERS[name](pytest.importorskip("torch_geometric").nn).double()
    assert compare(lambda x, e, v, w: layer(x, e)).origin.fallbacks == {}
