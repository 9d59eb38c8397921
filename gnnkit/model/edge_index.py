"""A rank's edges as the `edge_index` read by PyG layers.

Rows are numbered per rank: its own rows, then the halo. Layers read rows through
`edge_index[0]` and write rows through `edge_index[1]`, so `x` may hold own rows only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from gnnkit.engine import Adjacency, RankGraph
from gnnkit.engine.typed_graph import RelationRows
from gnnkit.errors import UserError
from gnnkit.kernels.dropout import edge_streams

_FACTS = {
    "size", "shape", "dim", "ndim", "numel", "nelement", "__len__", "dtype", "device", "layout", "is_sparse",
    "is_sparse_csr", "is_cuda", "is_cpu", "is_mps", "is_meta", "is_nested", "is_quantized", "is_floating_point",
    "is_complex", "requires_grad", "is_leaf", "grad_fn", "get_device", "element_size", "new_ones",
    "new_zeros", "new_full", "new_empty", "new_tensor", "__hash__", "__repr__",
}  # fmt: skip
_COPIES = ("to", "long", "clone", "contiguous", "detach", "cpu", "cuda")
_LARGEST = ("max", "amax")
_LOOPS_OF_TWO = (
    "looks for self-loops, or adds them, between nodes of two types: use add_self_loops=False, or relations between "
    "nodes of one type"
)


@dataclass(slots=True, eq=False)
class Reads:
    """The reads of rows by edge in a model's forward pass."""

    last: Pass | None = None  # the pass through whose edges rows were last read
    count: int = 0  # equal on all ranks

    def note(self, called: Pass) -> None:
        """Records a read."""
        self.last, self.count = called, self.count + 1

    def edge_ids(self) -> Tensor | None:
        """Returns ids of the edges through which rows were last read, or None."""
        return None if self.last is None else self.last.edge_ids()


class Pass:
    """One forward pass of a model over a rank's edges."""

    def __init__(self, model: str, adjacency: Adjacency) -> None:
        """Starts the pass.

        Args:
            model: Name of the model, for errors.
            adjacency: Provides other ranks' rows.
        """
        self.model, self._adjacency, self._over = model, adjacency, False
        self.num_owned: int | None = adjacency.num_dst  # own rows at edges' destinations. None: unknown
        self.num_read = adjacency.num_dst  # own rows at edges' sources
        self.bipartite = False  # True: sources and destinations have separate numbers, so no edge is a loop
        self.reads = Reads()
        self._read: Sources | None = None  # the edges through which rows were last read

    def edge_index(self) -> Edges:
        """Returns the rank's edges."""
        return Edges.of(self._adjacency.rank_graph.edge_index, self)

    def end(self) -> None:
        """Ends the pass. Its edges cannot be used any more."""
        self._over = True

    def read(self, x: Tensor, dim: int, sources: Sources) -> Tensor:
        """Selects source rows by edge along a dimension. Collective."""
        self._read = sources
        self.reads.note(self)
        return self.with_halo(x, dim).index_select(dim, _plain(sources))

    def with_halo(self, x: Tensor, dim: int) -> Tensor:
        """Appends the halo to the own rows, along dimension `dim`. Collective."""
        self._check(x, dim)
        rows = x.movedim(dim, 0)
        halo_rows = self._append_halo(rows[:, None] if rows.dim() == 1 else rows.flatten(1))
        return halo_rows.view(len(halo_rows), *rows.shape[1:]).movedim(0, dim)

    def _append_halo(self, rows: Tensor) -> Tensor:
        return self._adjacency.with_halo(rows)

    def _check(self, x: Tensor, dim: int) -> None:
        """Raises `UserError` unless `x` has a row for each of the rank's."""
        if self._over:
            raise self.error(
                "reads edges of an earlier step, or in the backward pass: keep none, and leave out torch.utils.checkpoint"
            )
        if x.size(dim) != self.num_read:
            raise self.error(
                f"reads {x.size(dim)} rows by edge_index[0], and this worker has {self.num_read}: make one row for each "
                "row of x, as by num_nodes=x.size(0)"
            )

    def edge_ids(self) -> Tensor | None:  # [num_edges] int64
        """Returns ids of the edges through which rows were last read.

        They are derived from both ends' ids, so parallel edges share one. Returns None
        if no rows were read.
        """
        if self._read is None:
            return None
        return _edge_ids(self._read, self._adjacency.rank_graph)

    def error(self, text: str) -> UserError:
        """Creates an error that names the calling layer."""
        return UserError(f"model={self.model}: {_caller()} {text}")


class _Ends(Tensor):
    """A rank's row numbers, whose values must not be used as numbers."""

    called: Pass

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name, kwargs = _name(func), kwargs or {}
        if name in _FACTS and not _flat_ends((args[1:], *kwargs.values())):
            return _plainly(func, args, kwargs)
        if name in _SERVED:
            return _SERVED[name](func, *args, **kwargs)
        if not any(isinstance(argument, Edges | Sources) for argument in _flat((*args, *kwargs.values()))):
            return _at_destinations(func, args, kwargs)
        raise _refused(name, (*args, *kwargs.values()))


E = TypeVar("E", bound=_Ends)


class Edges(_Ends):
    """[2, num_edges] source row, destination row."""

    @classmethod
    def of(cls, rows: Tensor, called: Pass) -> Edges:
        """Wraps row numbers [2, num_edges]."""
        return _marked(cls, rows, called)

    @property
    def ends(self) -> tuple[Sources, Destinations]:
        """Source rows and destination rows."""
        source, destination = _plain(self).unbind(0)
        return Sources.of(source, destination, self.called), _marked(Destinations, destination, self.called)


class Destinations(_Ends):
    """[num_edges] destination rows, all of this rank."""


class Sources(_Ends):
    """[num_edges] source rows, of this rank and its halo."""

    into: Tensor  # [num_edges] each edge's destination row

    @classmethod
    def of(cls, rows: Tensor, into: Tensor, called: Pass) -> Sources:
        """Wraps row numbers.

        Args:
            rows: [num_edges].
            into: [num_edges] each edge's destination row.
            called: The forward pass.
        """
        sources = _marked(cls, rows, called)
        sources.into = into
        return sources

    def read(self, x: Tensor, dim: int) -> Tensor:
        """Selects rows along a dimension, including other ranks' rows. Collective."""
        return self.called.read(x, dim, self)

    def shifted(self, offset: int) -> Sources:
        """Returns sources whose rows begin at `offset` of a concatenation.

        Raises `UserError` in a graph of one type, where no rows are concatenated.
        """
        called, rows = self.called, _plain(self)
        if isinstance(called, JoinedPass):
            moved = JoinedPass([(part, first + offset) for part, first in called.parts])
            return Sources.of(torch.where(rows < 0, rows, rows + offset), self.into, moved)
        if not isinstance(called, RelationPass):
            raise _refused("add", (self,))
        coded = torch.where(rows < called.num_read, rows + offset, called.num_read - 1 - rows)
        return Sources.of(coded, self.into, JoinedPass([(called, offset)]))


def _edge_ids(sources: Sources, graph: RankGraph) -> Tensor:  # [num_edges] int64
    source, destination = _plain(sources), sources.into
    if graph.nodes is not None:
        dst_nodes = graph.nodes if graph.dst_nodes is None else graph.dst_nodes
        source, destination = graph.nodes[source], dst_nodes[destination]
    return edge_streams(source, destination)


def _marked(kind: type[E], rows: Tensor, called: Pass) -> E:
    ends = rows.as_subclass(kind)
    ends.called = called
    return ends


def _plain(value: Any) -> Any:
    """Unwraps tensors, also within lists."""
    if isinstance(value, _Ends):
        with torch._C.DisableTorchFunctionSubclass():
            return value.as_subclass(Tensor)
    if isinstance(value, list | tuple):
        return type(value)(_plain(item) for item in value)
    return value


def _plainly(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return func(*_plain(args), **{name: _plain(value) for name, value in kwargs.items()})


def _get(func: Any, x: Tensor, index: Any) -> Any:
    """Implements x[index]."""
    if isinstance(index, Edges) or (isinstance(x, Edges | Sources) and _flat_ends(index)):
        raise _refused("x[index]", (x, index))
    if isinstance(x, Edges):
        return _of_edges(x, index)
    if isinstance(x, Sources):
        return Sources.of(_plain(x)[index], x.into[index], x.called)
    if isinstance(x, Destinations) and _flat_ends(index, Sources):
        raise _refused("x[index]", (x, index))
    if isinstance(index, Sources):
        return index.read(x, 0)
    if isinstance(index, tuple) and index and isinstance(index[0], Sources) and not _flat_ends(index[1:]):
        return index[0].read(x, 0)[(slice(None), *index[1:])]
    return _at_destinations(func, (x, index), {})


def _of_edges(edges: Edges, index: Any) -> Any:
    """Implements edge_index[0], edge_index[1, chosen] and edge_index[:, chosen]."""
    first, rest = (index[0], index[1:]) if isinstance(index, tuple) and index else (index, ())
    if isinstance(first, int):
        row = edges.ends[first]
        return row[rest] if rest else row
    if isinstance(first, slice) and first == slice(None) and len(rest) == 1 and not isinstance(rest[0], int):
        return Edges.of(_plain(edges)[:, rest[0]], edges.called)
    raise _refused("edge_index[index]", (edges,))


def _set(func: Any, x: Tensor, index: Any, value: Any) -> None:
    """Implements x[index] = value, also with the sources of self-loops."""
    if isinstance(x, Edges):
        _set_row(x, index, value)
        return
    if isinstance(index, Sources) and not index.called.bipartite and torch.equal(_plain(index), index.into):
        index = index.into
    if isinstance(x, _Ends) or _flat_ends((index, value), Edges | Sources):
        raise _refused("x[index] = value", (x, index, value))
    func(x, _plain(index), _plain(value))


def _select(func: Any, input: Tensor, dim: int, index: Tensor) -> Any:
    """Implements index_select."""
    if isinstance(input, Edges) and dim in (1, -1) and not isinstance(index, _Ends):
        return Edges.of(_plain(input).index_select(1, index), input.called)
    if isinstance(input, Sources) and not isinstance(index, _Ends):
        return _get(func, input, index)
    if (
        isinstance(input, Edges | Sources)
        or isinstance(index, Edges)
        or (_flat_ends(input) and _flat_ends(index, Sources))
    ):
        raise _refused("index_select", (input, index))
    return index.read(input, dim) if isinstance(index, Sources) else _plainly(func, (input, dim, index), {})


def _unbind(func: Any, input: Tensor, dim: int = 0) -> Any:
    """Implements `source, destination = edge_index`."""
    if isinstance(input, Edges) and dim == 0:
        return input.ends
    if isinstance(input, Destinations):
        return _plainly(func, (input, dim), {})
    raise _refused("unbind", (input,))


def _join(func: Any, tensors: Any, dim: int = 0) -> Any:
    """Implements torch.cat([edge_index, loops], 1)."""
    ends = [tensor for tensor in tensors if isinstance(tensor, Edges)]
    others = [tensor for tensor in tensors if not isinstance(tensor, Edges)]
    if not ends or dim not in (1, -1) or _flat_ends(others, Sources):
        return _unless_sources(func, tensors, dim)
    if any(edges.called is not ends[0].called or isinstance(edges.called, JoinedPass) for edges in ends):
        if others:
            raise ends[0].called.error("adds edges to those of several relations: add these to the graph")
        return joined(ends)
    for tensor in others:
        _check_loops(tensor, ends[0].called)
    return Edges.of(torch.cat(_plain(list(tensors)), 1), ends[0].called)


def _check_loops(tensor: Tensor, called: Pass) -> None:
    """Raises `UserError` unless the edges [2, k] are loops at a pass's rows."""
    if called.bipartite:
        raise called.error(_LOOPS_OF_TWO)
    num_owned = called.num_owned
    assert num_owned is not None
    if tensor.size(0) != 2 or not torch.equal(tensor[0], tensor[1]) or bool((tensor[0] >= num_owned).any()):
        raise called.error(
            "adds edges that are no loops at rows of x: add these to the graph, or loops by num_nodes=x.size(0)"
        )


def _stack(func: Any, tensors: Any, dim: int = 0) -> Any:
    """Implements torch.stack([source, destination])."""
    if dim == 0 and len(tensors) == 2 and isinstance(tensors[0], Sources) and isinstance(tensors[1], Destinations):
        source, destination = tensors
        if torch.equal(source.into, _plain(destination)):
            return Edges.of(torch.stack(_plain([source, destination])), source.called)
    return _unless_sources(func, tensors, dim)


def _unless_sources(func: Any, tensors: Any, dim: int) -> Any:
    if _flat_ends(tensors, Edges | Sources):
        raise _refused(_name(func), tensors)
    return _plainly(func, (tensors, dim), {})


def _compare(func: Any, input: Any, other: Any) -> Any:
    """Implements source != destination, which detects self-loops."""
    both = (input, other)
    sources = [tensor for tensor in both if isinstance(tensor, Sources)]
    if any(tensor.called.bipartite for tensor in sources):
        raise sources[0].called.error(_LOOPS_OF_TWO)
    if not _flat_ends(both, Edges | Sources):
        return _plainly(func, both, {})
    if len(sources) == 1 and _flat_ends(both, Destinations) and sources[0].shape == sources[0].into.shape:
        return _plainly(func, both, {})
    raise _refused(_name(func), both)


def _copy(func: Any, input: _Ends, *args: Any, **kwargs: Any) -> Any:
    """Implements edge_index.to(device) and other copies."""
    copied = _plainly(func, (input, *args), kwargs)
    if copied.dtype != torch.int64:
        raise _refused(_name(func), (input,))
    if isinstance(input, Sources):
        return Sources.of(copied, input.into.to(copied.device), input.called)
    return _marked(type(input), copied, input.called)


def _shift(func: Any, input: Any, other: Any, *, alpha: int = 1) -> Any:
    """Implements edge_index + offsets, and edge_index[0] += offset.

    The result is a new tensor, because edges are reused by later passes.
    """
    if not _flat_ends((input, other), Edges | Sources):
        return torch.add(*_plain((input, other)), alpha=alpha)
    numbers = _offsets(other)
    if numbers is None or alpha != 1 or not isinstance(input, Edges | Sources):
        raise _refused(_name(func), (input, other))
    if isinstance(input, Edges):
        source, destination = input.ends
        source = source.shifted(numbers[0])
        return Edges.of(torch.stack([_plain(source), _plain(destination) + numbers[-1]]), source.called)
    return input.shifted(numbers[0])


def _offsets(other: Any) -> list[int] | None:
    """Reads an offset of rows, or those of sources and destinations [2, 1]."""
    if isinstance(other, int) and not isinstance(other, bool):
        return [other]
    if type(other) is Tensor and other.dtype == torch.int64 and other.shape in ((), (1,), (2, 1)):
        return [int(number) for number in other.flatten()]
    return None


def _set_row(edges: Edges, row: Any, value: Any) -> None:
    """Implements edge_index[row] = value, without a change of other edges' memory."""
    ends = list(_plain(edges).unbind(0))
    right = Sources if row == 0 else Tensor
    if row not in (0, 1) or not isinstance(value, right) or (row == 1 and isinstance(value, Edges | Sources)):
        raise _refused("x[index] = value", (edges, value))
    ends[row] = _plain(value)
    called = value.called if isinstance(value, Sources) else edges.called
    with torch._C.DisableTorchFunctionSubclass():
        edges.data = torch.stack(ends)
    edges.called = called


class RelationPass(Pass):
    """One relation's edges in a model's forward pass."""

    def __init__(self, model: str, rows: RelationRows, reads: Reads) -> None:
        """Starts the pass.

        Args:
            model: Name of the model, for errors.
            rows: Provides other ranks' rows.
            reads: Records the reads of all relations.
        """
        self.model, self._relation, self.reads, self._over = model, rows, reads, False
        self.num_owned, self.num_read, self.bipartite = rows.num_dst, rows.num_src, rows.bipartite
        self._read: Sources | None = None

    def edge_index(self) -> Edges:
        return Edges.of(self._relation.rank_graph.edge_index, self)

    def _append_halo(self, rows: Tensor) -> Tensor:
        return torch.cat([rows, self.halo(rows)])

    def halo(self, rows: Tensor) -> Tensor:  # [num_read, f] -> [num_halo, f]
        """Returns the other ranks' rows. Collective."""
        self._check(rows, 0)
        return self._relation.halo(rows)

    @property
    def num_halo(self) -> int:
        """Number of rows of other ranks."""
        return self._relation.num_halo

    def edge_ids(self) -> Tensor | None:
        return None if self._read is None else _edge_ids(self._read, self._relation.rank_graph)


class JoinedPass(Pass):
    """Edges of several relations, which read one concatenation of source rows.

    Rows of other ranks have negative numbers: -1 is the first one of the first part.
    """

    def __init__(self, parts: Sequence[tuple[RelationPass, int]]) -> None:
        """Joins relations.

        Args:
            parts: Each relation's pass, and the first row of its sources.
        """
        self.model, self.parts = parts[0][0].model, parts
        self.num_owned, self.bipartite = None, True

    def read(self, x: Tensor, dim: int, sources: Sources) -> Tensor:
        self.parts[0][0].reads.note(self)
        rows, index = x.movedim(dim, 0), _plain(sources)
        flat, halos = rows.reshape(len(rows), -1), []
        for part, first in self.parts:
            own_rows = flat[first : first + part.num_read]
            halos.append(part.halo(own_rows))
        every = torch.cat([flat, *halos]).index_select(0, torch.where(index < 0, len(rows) - 1 - index, index))
        return every.view(len(index), *rows.shape[1:]).movedim(0, dim)

    def edge_ids(self) -> Tensor | None:
        return None


def joined(ends: Sequence[Edges]) -> Edges:
    """Joins the edges of several relations."""
    parts: list[tuple[RelationPass, int]] = []
    columns, num_halo = [], 0
    for edges in ends:
        source, destination = edges.ends
        source = source.shifted(0)
        assert isinstance(source.called, JoinedPass)
        rows = _plain(source)
        columns.append(torch.stack([torch.where(rows < 0, rows - num_halo, rows), _plain(destination)]))
        parts += source.called.parts
        num_halo += sum(part.num_halo for part, _ in source.called.parts)
    return Edges.of(torch.cat(columns, 1), JoinedPass(parts))


def _at_destinations(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Calls a function of destination rows, which are all this rank's own."""
    first = args[0] if args else None
    if isinstance(first, Destinations) and len(args) == 1 and not kwargs and _name(func) in _LARGEST:
        if first.called.num_owned is None:
            raise _refused(_name(func), args)
        return first.new_tensor(
            first.called.num_owned - 1
        )  # so that the result covers all own rows, as in degree(index)
    result = _plainly(func, args, kwargs)
    if isinstance(first, Destinations) and _name(func) in ("__getitem__", "index_select") and result.dim() == 1:
        return _marked(Destinations, result, first.called)
    return result


_SERVED: dict[str, Callable[..., Any]] = {
    "__getitem__": _get,
    "__setitem__": _set,
    "index_select": _select,
    "unbind": _unbind,
    "cat": _join,
    "concat": _join,
    "concatenate": _join,
    "stack": _stack,
    **dict.fromkeys(("__eq__", "__ne__", "eq", "ne", "not_equal"), _compare),
    **dict.fromkeys(_COPIES, _copy),
    **dict.fromkeys(("__add__", "__iadd__", "add", "add_"), _shift),
}


def _flat(value: Any) -> list[Any]:
    return [inner for item in value for inner in _flat(item)] if isinstance(value, list | tuple) else [value]


def _flat_ends(value: Any, kinds: Any = _Ends) -> bool:
    return any(isinstance(item, kinds) for item in _flat(value))


def _name(func: Any) -> str:
    """Returns the name of a torch function or tensor property."""
    name: str = func.__self__.__name__ if func.__name__ == "__get__" else func.__name__
    return name


def _refused(name: str, values: Any) -> UserError:
    ends = next(item for item in _flat(values) if isinstance(item, _Ends))
    hint = (
        ": pass num_nodes=x.size(0)"
        if name in _LARGEST
        else (
            ". Workers have rows of their own: read rows as x[edge_index[0]], and add up at edge_index[1], or write "
            "forward(x, adjacencies)"
        )
    )
    kinds = {Edges: "edge_index", Sources: "the sources of edges, edge_index[0]"}
    what = kinds.get(type(ends), "the destinations of edges, edge_index[1]")
    return ends.called.error(f"calls {name.removeprefix('__').removesuffix('__')} on {what}{hint}")


def _caller() -> str:
    """Returns the name of the innermost module being called."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        if isinstance(module := frame.f_locals.get("self"), nn.Module):
            return type(module).__name__
        frame = frame.f_back
    return "the model"
