"""A rank's edges in the form of the `edge_index` that PyG layers read.

Rows are numbered per rank: its own rows, then the halo. Layers read rows through
`edge_index[0]` and write rows through `edge_index[1]`, so `x` may hold own rows only.
Rows that are read are deferred, and sums of them at `edge_index[1]` are fused.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import torch
from lazyedges import (
    Call,
    Deferred,
    EdgeSet,
    Lazy,
    Origin,
    at_destinations,
    deferred_in,
    extreme_by_destination,
    is_fresh,
    name_of,
    overwrite,
    rows_by_edge,
    sum_by_destination,
    value_of,
    written,
)
from torch import Tensor, nn

from gnnkit.engine import Adjacency, RankGraph
from gnnkit.engine.in_place import version_of
from gnnkit.engine.typed_graph import RelationRows
from gnnkit.errors import UserError
from gnnkit.kernels.lazy import LazyBackend, LazyKernels

_FACTS = {
    "size", "shape", "dim", "ndim", "numel", "nelement", "__len__", "dtype", "device", "layout", "is_sparse",
    "is_sparse_csr", "is_cuda", "is_cpu", "is_mps", "is_meta", "is_nested", "is_quantized", "is_floating_point",
    "is_complex", "requires_grad", "is_leaf", "grad_fn", "get_device", "element_size", "new_ones",
    "new_zeros", "new_full", "new_empty", "new_tensor", "__hash__", "__repr__",
}  # fmt: skip
_COPIES = ("to", "long", "clone", "contiguous", "detach", "cpu", "cuda")
_LARGEST = ("max", "amax")
_EXTREMES = ("amax", "amin")
_SUMMED = (torch.float32, torch.float64, torch.bfloat16)  # dtypes that kernels can sum
_EXPANDING = ("view", "reshape", "unsqueeze", "expand", "expand_as", "__getitem__", "view_as")
_LOOPS_OF_TWO = (
    "looks for self-loops, or adds them, between nodes of two types: use add_self_loops=False, or relations between "
    "nodes of one type"
)


@dataclass(slots=True, eq=False)
class RowReads:
    """The reads of rows by edge in a model's forward pass."""

    last: Pass | None = None  # the pass through whose edges rows were last read
    count: int = 0  # equal on all ranks
    origin: Origin = field(default_factory=lambda: Origin(_caller))  # of the rows that are deferred
    drew: bool = False  # whether dropout was keyed, which torch cannot repeat in a backward pass

    def note(self, graph_pass: Pass) -> None:
        """Records a read."""
        self.last, self.count = graph_pass, self.count + 1

    def edge_ids(self) -> Tensor | None:
        """Returns ids of the edges through which rows were last read, or None."""
        return None if self.last is None else self.last.edge_ids()


class Pass:
    """One forward pass of a model over a rank's edges."""

    alone: bool  # whether no other rank has rows
    _over = False

    def __init__(self, model: str, adjacency: Adjacency) -> None:
        """Starts the pass.

        Args:
            model: Name of the model, for errors.
            adjacency: Provides other ranks' rows.
        """
        self.model, self._adjacency, self.alone = model, adjacency, adjacency.alone
        self.num_owned: int | None = adjacency.num_dst  # own rows at edges' destinations. None: unknown
        self.num_read = adjacency.num_dst  # own rows at edges' sources
        self.bipartite = False  # True: sources and destinations have separate numbers, so no edge is a loop
        self.reads = RowReads()
        self._read: EdgeSet | None = None  # the edges through which rows were last read
        self._with_halos: dict[tuple[int, int, bool], Lazy] = {}  # rows that were read, by their memory

    def edge_index(self) -> Edges:
        """Returns the rank's edges."""
        return _edges(edge_set_of(self.rank_graph), self)

    @cached_property
    def rank_graph(self) -> RankGraph:
        """The rank's edges. Adjacencies of other packages are not fused."""
        graph = self._adjacency.rank_graph
        return graph if isinstance(graph, RankGraph) else RankGraph(graph.edge_index, graph.weight)

    def end(self) -> None:
        """Ends the pass. Its edges cannot be used any more."""
        self._over = True
        self._with_halos.clear()

    def read(self, x: Tensor, dim: int, ends: Sources | Destinations) -> Tensor:
        """Selects rows of nodes by edge along a dimension. Rows of floats are deferred.

        Args:
            x: Own rows, along dimension `dim`.
            dim: The dimension.
            ends: Source or destination of each edge.
        """
        at_source = isinstance(ends, Sources)
        if at_source:
            self._check(x, dim)
            self._read = ends.edge_set
            self.reads.note(self)
        narrow = x.dim() == 1 and not x.requires_grad
        if dim or not (x.dim() > 1 or narrow) or isinstance(x, Deferred) or not self.adds(x):
            if x.dim() > 1:
                self.reads.origin.count("index_select")
            rows = self._with_halo(value_of(x), dim) if at_source else value_of(x)
            return rows.index_select(dim, _plain(ends))
        edge_set, get_x = ends.edge_set, self._guard(x)
        rows = self._rows(x, get_x) if at_source else Lazy(get_x, tuple(x.shape[1:]), x.dtype)
        is_plain = at_source and edge_set is edge_set_of(self.rank_graph) and x.dim() < 4
        sums = self._sums(get_x) if is_plain else None
        return rows_by_edge(self.reads.origin, edge_set, x, at_source=at_source, rows=rows, add_up=sums)

    def _guard(self, x: Tensor) -> Callable[[], Tensor]:
        """Returns a function that returns `x`, or raises if its memory has changed."""
        version = version_of(x)

        def get_x() -> Tensor:
            if version_of(x) != version:
                raise self.error("changes rows in place after it read them by edge: change a copy, as by x.clone()")
            return x

        return get_x

    def _sums(self, rows: Callable[[], Tensor]) -> Callable[[], Tensor] | None:
        """Returns the engine's sums over all edges, or None if it sums with weights."""
        return None if self.rank_graph.weight is not None else lambda: self._adjacency.aggregate(rows())

    def adds(self, rows: Tensor) -> bool:
        """Whether kernels can sum rows of this dtype."""
        edges = self.rank_graph.edges
        return edges is not None and rows.dtype in _SUMMED and rows.device == edges.device

    def covers(self, edge_set: EdgeSet, num_rows: int) -> bool:
        """Whether there are as many rows as destinations."""
        return num_rows == self.num_owned

    def _rows(self, x: Tensor, get_x: Callable[[], Tensor]) -> Lazy:
        """Returns `x` with the halo, exchanged once for all edges that read it.

        The result is kept until the pass ends. If memory were freed earlier, ranks
        might disagree on which exchanges to repeat.
        """
        key = (id(x), version_of(x), torch.is_grad_enabled())
        rows = self._with_halos.get(key)
        if rows is None or rows.source is not x:
            rows = Lazy(lambda: self._with_halo(get_x(), 0), tuple(x.shape[1:]), x.dtype)
            rows.source = x
            self._with_halos[key] = rows
        return rows

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

    def _with_halo(self, x: Tensor, dim: int) -> Tensor:
        """Appends the halo to the own rows, along dimension `dim`. Collective."""
        self._check(x, dim)
        rows = x.movedim(dim, 0) if dim else x
        flat = rows[:, None] if rows.dim() == 1 else rows.flatten(1)
        every = self._append_halo(flat)
        return x if every is flat else every.view(len(every), *rows.shape[1:]).movedim(0, dim)

    def _append_halo(self, rows: Tensor) -> Tensor:
        return self._adjacency.beside_halo(rows)

    def edge_ids(self) -> Tensor | None:  # [num_edges] int64
        """Returns ids of the edges through which rows were last read.

        They are derived from both ends' ids, so parallel edges share one. Returns None
        if no rows were read.
        """
        graph = self.rank_graph
        return None if self._read is None else self._read.ids(graph.nodes, graph.dst_nodes)

    def error(self, text: str) -> UserError:
        """Creates an error that names the calling layer."""
        return UserError(f"model={self.model}: {_caller()} {text}")


class _Ends(Tensor):
    """The row numbers of a rank's edges, which may only be used to index rows."""

    graph_pass: Pass
    edge_set: EdgeSet

    def replace(self, rows: Tensor) -> None:
        """Points this tensor to other rows of the same shape."""
        ends = list((rows if isinstance(self, Edges) else self.edge_set.edge_index).unbind(0))
        if not isinstance(self, Edges):
            ends[isinstance(self, Destinations)] = rows
        self.edge_set = self.edge_set.between(*ends)
        with torch._C.DisableTorchFunctionSubclass():
            self.data = rows

    @classmethod
    def __torch_function__(
        cls, func: object, types: Any, args: tuple[object, ...] = (), kwargs: Mapping[str, object] | None = None
    ) -> object:
        kwargs = kwargs or {}
        try:
            return _serve(func, args, kwargs)
        except UserError:
            ends = next(value for value in _flat((*args, *kwargs.values())) if isinstance(value, _Ends))
            graph_pass = ends.graph_pass
            if not graph_pass.alone or (graph_pass._over and graph_pass.reads.drew):
                raise
            return _on_plain(func, args, kwargs)


E = TypeVar("E", bound=_Ends)


class Edges(_Ends):
    """[2, num_edges] source row, destination row."""

    @property
    def ends(self) -> tuple[Sources, Destinations]:
        """The rows at the edges' sources and at their destinations."""
        return _ends_of(self.edge_set, self.graph_pass)


class Destinations(_Ends):
    """[num_edges] destination rows, all of this rank. [num_edges, ...] if expanded."""


class Sources(_Ends):
    """[num_edges] source rows, of this rank and its halo."""

    def shift(self, offset: int) -> Sources:
        """Returns sources whose rows begin at `offset` of a concatenation.

        Raises `UserError` in a graph of one type, where no rows are concatenated.
        """
        graph_pass, rows = self.graph_pass, _plain(self)
        if isinstance(graph_pass, JoinedPass):
            new_pass = JoinedPass([(part, first + offset) for part, first in graph_pass.parts])
            rows = torch.where(rows < 0, rows, rows + offset)
        elif isinstance(graph_pass, RelationPass):
            new_pass = JoinedPass([(graph_pass, offset)])
            rows = torch.where(rows < graph_pass.num_read, rows + offset, graph_pass.num_read - 1 - rows)
        else:
            raise _call_error("add", (self,))
        return _ends_of(self.edge_set.between(rows, self.edge_set.destination), new_pass)[0]


def edge_set_of(graph: RankGraph) -> EdgeSet:
    """Returns a rank's edges, the same set for the same graph."""
    if graph.edge_set is None:
        edges = graph.edges
        num_rows = (0, 0) if edges is None else (edges.num_src, edges.num_dst)
        if edges is None and graph.nodes is not None and graph.dst_nodes is not None:
            num_rows = (len(graph.nodes), len(graph.dst_nodes))
        kernels = None if edges is None else LazyKernels(edges)
        object.__setattr__(graph, "edge_set", EdgeSet(graph.edge_index, num_rows, LazyBackend(), kernels))
    edge_set: EdgeSet = graph.edge_set
    return edge_set


def _edges(edge_set: EdgeSet, graph_pass: Pass) -> Edges:
    return _as_ends(Edges, edge_set.edge_index, edge_set, graph_pass)


def _ends_of(edge_set: EdgeSet, graph_pass: Pass) -> tuple[Sources, Destinations]:
    return (
        _as_ends(Sources, edge_set.source, edge_set, graph_pass),
        _as_ends(Destinations, edge_set.destination, edge_set, graph_pass),
    )


def _as_ends(kind: type[E], rows: Tensor, edge_set: EdgeSet, graph_pass: Pass) -> E:
    ends = rows.as_subclass(kind)
    ends.graph_pass, ends.edge_set = graph_pass, edge_set
    return ends


def _plain(value: object) -> Any:
    """Unwraps tensors, also within lists."""
    if isinstance(value, _Ends):
        with torch._C.DisableTorchFunctionSubclass():
            return value.as_subclass(Tensor)
    if isinstance(value, list | tuple):
        return type(value)(_plain(item) for item in value)
    return value


def _serve(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Calls a function of edges. Raises `UserError` if it needs other ranks' rows."""
    name, out = name_of(func), kwargs.get("out")
    if isinstance(out, Tensor) and not isinstance(out, _Ends):
        return out.copy_(_serve(func, args, {key: value for key, value in kwargs.items() if key != "out"}))
    if name in _FACTS and not _flat_ends((args[1:], *kwargs.values())):
        return _plainly(func, args, kwargs)
    if name in _SERVED:
        return _SERVED[name](func, *args, **kwargs)
    if not any(isinstance(argument, Edges | Sources) for argument in _flat((*args, *kwargs.values()))):
        return _at_destinations(func, args, kwargs)
    raise _call_error(name, (*args, *kwargs.values()))


def _on_plain(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Calls a function as PyG does, on plain tensors.

    Edges that the function changes in place are copied, because later passes read the
    original ones.
    """
    target = written(func, args, kwargs)
    if not isinstance(target, _Ends):
        return _plainly(func, args, kwargs)
    new_values = _plain(target).clone()
    _plainly(func, tuple(new_values if value is target else value for value in args), kwargs)
    target.replace(new_values)
    return target


def _plainly(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return func(*_plain(args), **{name: _plain(value) for name, value in kwargs.items()})


def _get(func: Any, x: Tensor, index: Any) -> object:
    """Implements x[index]."""
    if isinstance(index, Edges) or (isinstance(x, Edges | Sources) and _flat_ends(index)):
        raise _call_error("x[index]", (x, index))
    if isinstance(x, Edges):
        return _of_edges(x, index)
    if isinstance(x, Sources):
        return _ends_of(x.edge_set.select(index), x.graph_pass)[0]
    if isinstance(x, Destinations):
        return _of_destinations(func, x, index)
    if isinstance(index, Sources | Destinations):
        return _select(func, x, 0, index)
    if isinstance(index, tuple) and index and isinstance(index[0], Sources) and not _flat_ends(index[1:]):
        return _select(func, x, 0, index[0])[(slice(None), *index[1:])]
    return _at_destinations(func, (x, index), {})


def _of_edges(edges: Edges, index: Any) -> object:
    """Implements edge_index[0], edge_index[1, index] and edge_index[:, index]."""
    index = _without_full_slice(index)
    first, tail = (index[0], index[1:]) if isinstance(index, tuple) and index else (index, ())
    if isinstance(first, int):
        row = edges.ends[first]
        return row[tail[0] if len(tail) == 1 else tail] if tail else row
    if isinstance(first, slice) and first == slice(None) and len(tail) == 1 and not isinstance(tail[0], int):
        return _edges(edges.edge_set.select(tail[0]), edges.graph_pass)
    raise _call_error("edge_index[index]", (edges,))


def _without_full_slice(index: Any) -> object:
    """Returns 0 for the index [0, :]."""
    every = isinstance(index, tuple) and len(index) == 2 and isinstance(index[1], slice) and index[1] == slice(None)
    return index[0] if every and isinstance(index[0], int) else index


def _of_destinations(func: object, rows: Destinations, index: Any) -> object:
    """Implements destinations[index]."""
    if _flat_ends(index, Sources):
        raise _call_error("x[index]", (rows, index))
    selection = index[0] if isinstance(index, tuple) and len(index) == 1 else index
    if rows.dim() == 1 and isinstance(selection, Tensor | slice | list) and not _flat_ends(index):
        return _ends_of(rows.edge_set.select(selection), rows.graph_pass)[1]
    return _at_destinations(func, (rows, index), {})


def _set(func: Any, x: Tensor, index: Any, value: Any) -> None:
    """Implements x[index] = value, also with the sources of self-loops."""
    if isinstance(x, Edges):
        _set_row(x, _without_full_slice(index), value)
        return
    if isinstance(index, Sources) and not index.graph_pass.bipartite and _are_loops(index):
        index = index.edge_set.destination
    if isinstance(x, _Ends) or _flat_ends((index, value), Edges | Sources):
        raise _call_error("x[index] = value", (x, index, value))
    func(x, _plain(index), _plain(value))


def _are_loops(sources: Sources) -> bool:
    return torch.equal(_plain(sources), sources.edge_set.destination)


def _select(func: object, input: Tensor, dim: int, index: Tensor) -> Any:
    """Implements index_select."""
    if isinstance(input, Edges) and dim in (1, -1) and not isinstance(index, _Ends):
        return _edges(input.edge_set.select(index), input.graph_pass)
    if isinstance(input, Sources | Destinations) and not isinstance(index, _Ends):
        return _get(func, input, index)
    if (
        isinstance(input, Edges | Sources)
        or isinstance(index, Edges)
        or (_flat_ends(input) and _flat_ends(index, Sources))
    ):
        raise _call_error("index_select", (input, index))
    if not isinstance(index, Sources | Destinations) or isinstance(input, _Ends) or index.dim() != 1:
        return _plainly(func, (input, dim, index), {})
    spread = at_destinations("spread", input, index.edge_set) if isinstance(index, Destinations) else None
    dim = dim + input.dim() if dim < 0 else dim
    return index.graph_pass.read(input, dim, index) if spread is None else spread


def _unbind(func: object, input: Tensor, dim: int = 0) -> object:
    """Implements `source, destination = edge_index`."""
    if isinstance(input, Edges) and dim == 0:
        return input.ends
    if isinstance(input, Destinations):
        return _plainly(func, (input, dim), {})
    raise _call_error("unbind", (input,))


def _join(func: Any, tensors: Any, dim: int = 0) -> Any:
    """Implements torch.cat([edge_index, loops], 1)."""
    ends = [tensor for tensor in tensors if isinstance(tensor, Edges)]
    new_edges = [tensor for tensor in tensors if not isinstance(tensor, Edges)]
    if not ends or dim not in (1, -1) or _flat_ends(new_edges, Sources):
        return _unless_sources(func, tensors, dim)
    graph_pass = ends[0].graph_pass
    if any(edges.graph_pass is not graph_pass or isinstance(edges.graph_pass, JoinedPass) for edges in ends):
        if new_edges:
            raise graph_pass.error("adds edges to those of several relations: add these to the graph")
        return join_edges(ends)
    for tensor in new_edges:
        _check_loops(tensor, graph_pass)
    if len(tensors) == 2 and len(new_edges) == 1 and tensors[0] is ends[0]:
        return _edges(ends[0].edge_set.with_loops(new_edges[0][0]), graph_pass)
    return _edges(ends[0].edge_set.with_edges(torch.cat(_plain(list(tensors)), 1)), graph_pass)


def _check_loops(tensor: Tensor, graph_pass: Pass) -> None:
    """Raises `UserError` unless the edges [2, k] are loops at a pass's rows."""
    if graph_pass.bipartite:
        raise graph_pass.error(_LOOPS_OF_TWO)
    num_owned = graph_pass.num_owned
    assert num_owned is not None
    if tensor.size(0) != 2 or not torch.equal(tensor[0], tensor[1]) or bool((tensor[0] >= num_owned).any()):
        raise graph_pass.error(
            "adds edges that are no loops at rows of x: add these to the graph, or loops by num_nodes=x.size(0)"
        )


def _stack(func: Any, tensors: Any, dim: int = 0) -> Any:
    """Implements torch.stack([source, destination])."""
    if dim == 0 and len(tensors) == 2 and isinstance(tensors[0], Sources) and isinstance(tensors[1], Destinations):
        source, destination = tensors
        if source.edge_set is destination.edge_set or torch.equal(source.edge_set.destination, _plain(destination)):
            return _edges(source.edge_set, source.graph_pass)
    return _unless_sources(func, tensors, dim)


def _unless_sources(func: object, tensors: object, dim: int) -> object:
    if _flat_ends(tensors, Edges | Sources):
        raise _call_error(name_of(func), tensors)
    return _plainly(func, (tensors, dim), {})


def _compare(func: object, input: object, other: object) -> object:
    """Implements source != destination, which detects self-loops."""
    operands = (input, other)
    sources = [tensor for tensor in operands if isinstance(tensor, Sources)]
    if any(tensor.graph_pass.bipartite for tensor in sources):
        raise sources[0].graph_pass.error(_LOOPS_OF_TWO)
    if not _flat_ends(operands, Edges | Sources):
        return _plainly(func, operands, {})
    destinations = [tensor for tensor in operands if isinstance(tensor, Destinations)]
    if len(sources) == 1 and len(destinations) == 1:
        if sources[0].edge_set is destinations[0].edge_set and destinations[0].dim() == 1:
            loopless = sources[0].edge_set.loopless()
            return ~loopless if name_of(func) in ("eq", "__eq__") else loopless
        return _plainly(func, operands, {})
    raise _call_error(name_of(func), operands)


def _copy(func: Any, input: _Ends, *args: Any, **kwargs: Any) -> Any:
    """Implements edge_index.to(device) and other copies."""
    result = _plainly(func, (input, *args), kwargs)
    if result.dtype != torch.int64:
        raise _call_error(name_of(func), (input,))
    if result.device != input.edge_set.source.device:
        new_edge_set = input.edge_set.with_edges(input.edge_set.edge_index.to(result.device))
        return _as_ends(type(input), result, new_edge_set, input.graph_pass)
    return _as_ends(type(input), result, input.edge_set, input.graph_pass)


def _shift(func: Any, input: Any, other: Any, *, alpha: int = 1) -> Any:
    """Implements edge_index + offsets, and edge_index[0] += offset.

    The result is a new tensor, because edges are reused by later passes.
    """
    if not isinstance(input, _Ends) and not _flat_ends(other, Edges | Sources):
        return _plainly(func, (input, other), {} if alpha == 1 else {"alpha": alpha})
    if not _flat_ends((input, other), Edges | Sources):
        return torch.add(*_plain((input, other)), alpha=alpha)
    numbers = _offsets(other)
    if numbers is None or alpha != 1 or not isinstance(input, Edges | Sources):
        raise _call_error(name_of(func), (input, other))
    if isinstance(input, Edges):
        source, destination = input.ends
        source = source.shift(numbers[0])
        return _edges(source.edge_set.between(_plain(source), _plain(destination) + numbers[-1]), source.graph_pass)
    return input.shift(numbers[0])


def _offsets(value: object) -> list[int] | None:
    """Returns the row offsets of sources and destinations from one number or [2, 1]."""
    if isinstance(value, int) and not isinstance(value, bool):
        return [value]
    if type(value) is Tensor and value.dtype == torch.int64 and value.shape in ((), (1,), (2, 1)):
        return [int(number) for number in value.flatten()]
    return None


def _set_row(edges: Edges, row: Any, value: Any) -> None:
    """Implements edge_index[row] = value, without changing other edges' memory."""
    ends = list(_plain(edges).unbind(0))
    right = Sources if row == 0 else Tensor
    if (
        not isinstance(row, int)
        or row not in (0, 1)
        or not isinstance(value, right)
        or (row == 1 and isinstance(value, Edges | Sources))
    ):
        raise _call_error("x[index] = value", (edges, value))
    ends[row] = _plain(value)
    if isinstance(value, Sources):
        edges.graph_pass = value.graph_pass
    edges.replace(torch.stack(ends))


class RelationPass(Pass):
    """One relation's edges in a model's forward pass."""

    def __init__(self, model: str, rows: RelationRows, reads: RowReads) -> None:
        """Starts the pass.

        Args:
            model: Name of the model, for errors.
            rows: Provides other ranks' rows.
            reads: Records the reads of all relations.
        """
        self.model, self._relation, self.reads, self.alone = model, rows, reads, rows.alone
        self.num_owned, self.num_read, self.bipartite = rows.num_dst, rows.num_src, rows.bipartite
        self._read: EdgeSet | None = None
        self._with_halos = {}

    @cached_property
    def rank_graph(self) -> RankGraph:
        return self._relation.rank_graph

    def adds(self, rows: Tensor) -> bool:
        return rows.dtype in _SUMMED and rows.device == self.rank_graph.edge_index.device

    def _sums(self, rows: Callable[[], Tensor]) -> None:
        return None

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


class JoinedPass(Pass):
    """Edges of several relations, which read one concatenation of source rows.

    Rows of other ranks have negative numbers: -1 is the first one of the first part.
    """

    def __init__(self, parts: Sequence[tuple[RelationPass, int]]) -> None:
        """Joins relations.

        Args:
            parts: Each relation's pass, and the first row of its sources.
        """
        self.model, self.parts, self.reads = parts[0][0].model, parts, parts[0][0].reads
        self.num_owned, self.bipartite, self.alone = None, True, parts[0][0].alone

    @cached_property
    def rank_graph(self) -> RankGraph:
        return self.parts[0][0].rank_graph

    def adds(self, rows: Tensor) -> bool:
        return self.parts[0][0].adds(rows)

    def covers(self, edge_set: EdgeSet, num_rows: int) -> bool:
        return edge_set.place_destinations(num_rows)

    def read(self, x: Tensor, dim: int, ends: Sources | Destinations) -> Tensor:
        x, edge_set, at_source = value_of(x), ends.edge_set, isinstance(ends, Sources)
        count, get_x = x.size(dim), self._guard(x)
        if at_source:
            self.reads.note(self)
            is_placed = edge_set.place_sources(count, sum(part.num_halo for part, _ in self.parts))
        else:
            is_placed = edge_set.place_destinations(count)
        if dim or not is_placed or x.dim() < 2 or not self.adds(x):
            self.reads.origin.count("index_select")
            index = _plain(ends)
            index = torch.where(index < 0, count - 1 - index, index) if at_source else index
            return self._node_rows(x, dim, at_source).index_select(0, index).movedim(0, dim)
        rows = Lazy(lambda: self._node_rows(get_x(), 0, at_source), tuple(x.shape[1:]), x.dtype)
        return rows_by_edge(self.reads.origin, edge_set, x, at_source=at_source, rows=rows)

    def _node_rows(self, x: Tensor, dim: int, at_source: bool) -> Tensor:
        """Returns rows of nodes, with other ranks' rows for sources. Collective."""
        rows: Tensor = x.movedim(dim, 0)
        return self._beside_halos(rows) if at_source else rows

    def _beside_halos(self, rows: Tensor) -> Tensor:
        """Appends other ranks' rows for all relations. Collective."""
        flat, halos = rows.reshape(len(rows), math.prod(rows.shape[1:])), []
        for part, first in self.parts:
            own_rows = flat[first : first + part.num_read]
            halos.append(part.halo(own_rows))
        every = torch.cat([flat, *halos])
        return every.view(len(every), *rows.shape[1:])

    def edge_ids(self) -> Tensor | None:
        return None


def join_edges(ends: Sequence[Edges]) -> Edges:
    """Joins the edges of several relations."""
    parts: list[tuple[RelationPass, int]] = []
    columns, num_halo = [], 0
    for edges in ends:
        source, destination = edges.ends
        source = source.shift(0)
        assert isinstance(source.graph_pass, JoinedPass)
        rows = _plain(source)
        columns.append(torch.stack([torch.where(rows < 0, rows - num_halo, rows), _plain(destination)]))
        parts += source.graph_pass.parts
        num_halo += sum(part.num_halo for part, _ in source.graph_pass.parts)
    base = edge_set_of(parts[0][0].rank_graph)
    return _edges(base.joined(torch.cat(columns, 1)), JoinedPass(parts))


def _at_destinations(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Calls a function of destination rows, which are all this rank's own."""
    first, name = args[0] if args else None, name_of(func)
    if isinstance(first, Destinations) and len(args) == 1 and not kwargs and name in _LARGEST:
        if first.graph_pass.num_owned is None:
            raise _call_error(name, args)
        return first.new_tensor(
            first.graph_pass.num_owned - 1
        )  # so that the result covers all own rows, as in degree(index)
    if name == "expand_as" and isinstance(first, Destinations):  # of which only the shape is read
        func, args = Tensor.expand, (first, args[1].shape)
    result = _plainly(func, args, kwargs)
    if isinstance(first, Destinations) and name in _EXPANDING and _expands(result, first):
        return _as_ends(Destinations, result, first.edge_set, first.graph_pass)
    return result


def _expands(result: Tensor, rows: Destinations) -> bool:
    """Whether a view repeats each destination along further dimensions."""
    repeats = all(size == 1 or stride == 0 for size, stride in zip(result.shape[1:], result.stride()[1:], strict=True))
    return result.dim() > 0 and len(result) == len(rows.edge_set) and repeats


def _add(
    func: Any, input: Tensor, dim: int, index: Tensor, src: Any = None, *, source: Any = None, alpha: Any = 1
) -> Any:
    """Implements scatter_add and index_add, also in place."""
    rows, name = src if src is not None else source, name_of(func)
    if _flat_ends((input, index, rows), Edges | Sources):
        raise _call_error(name, (input, index, rows))
    if alpha == 1 and isinstance(index, Destinations) and _is_by_destination(input, dim, index, rows):
        total = sum_by_destination(rows, index.edge_set)
        if is_fresh(input):
            return _put(input, total, name)
        return value_of(input).add_(total) if name.endswith("_") else value_of(input) + total
    keys = {} if name.startswith("scatter") else {"alpha": alpha}
    return _compute(func, (input, dim, index, rows), keys)


def _reduce(
    func: object, input: Tensor, dim: int, index: Tensor, src: object, reduce: str, *, include_self: bool = True
) -> object:
    """Implements scatter_reduce, also in place."""
    name = name_of(func)
    if _flat_ends((input, index, src), Edges | Sources):
        raise _call_error(name, (input, index, src))
    if isinstance(index, Destinations) and _is_by_destination(input, dim, index, src):
        if reduce == "sum" and include_self:
            return _add(func, input, dim, index, src)
        if reduce in _EXTREMES and not include_self and not input.requires_grad:
            extreme = extreme_by_destination(src, index.edge_set, reduce, input)  # type: ignore[arg-type]
            if extreme is not None:
                return _put(input, extreme, name)
    return _compute(func, (input, dim, index, src, reduce), {"include_self": include_self})


def _is_by_destination(input: object, dim: int, index: Destinations, rows: object) -> bool:
    """Whether a reduction adds one row per edge to the rows of the destinations."""
    if not isinstance(rows, Tensor) or not isinstance(input, Tensor):
        return False
    edge_set, graph_pass = index.edge_set, index.graph_pass
    if dim not in (0, -input.dim()) or rows.shape[1:] != input.shape[1:] or len(rows) != len(edge_set):
        return False
    is_by_row = index.dim() == 1 or index.shape == rows.shape
    return is_by_row and rows.dtype == input.dtype and graph_pass.adds(rows) and graph_pass.covers(edge_set, len(input))


def _put(input: Tensor, result: Tensor, name: str) -> Tensor:
    """Returns the result of a reduction, and makes it the input of one in place."""
    if name.endswith("_"):
        overwrite(input, result)
    return result


def _compute(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Calls a function on computed rows and plain destinations."""
    call = Call(func, name_of(func), tuple(_plain(args)), kwargs)
    return Deferred.plainly(call) if deferred_in(args) else func(*call.args, **kwargs)


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
    **dict.fromkeys(("scatter_add", "scatter_add_", "index_add", "index_add_"), _add),
    **dict.fromkeys(("scatter_reduce", "scatter_reduce_"), _reduce),
}


def _flat(value: object) -> list[object]:
    return [inner for item in value for inner in _flat(item)] if isinstance(value, list | tuple) else [value]


def _flat_ends(value: Any, kinds: Any = _Ends) -> bool:
    return any(isinstance(item, kinds) for item in _flat(value))


def _call_error(name: str, values: object) -> UserError:
    ends = next(item for item in _flat(values) if isinstance(item, _Ends))
    hint = (
        ": pass num_nodes=x.size(0)"
        if name in _LARGEST
        else (
            ". Workers have rows of their own: read rows as x[edge_index[0]], and add up at edge_index[1], write "
            "forward(x, adjacencies), or use workers=1, where edge_index is a plain tensor"
        )
    )
    kinds = {Edges: "edge_index", Sources: "the sources of edges, edge_index[0]"}
    subject = kinds.get(type(ends), "the destinations of edges, edge_index[1]")
    return ends.graph_pass.error(f"calls {name.removeprefix('__').removesuffix('__')} on {subject}{hint}")


def _caller() -> str:
    """Returns the name of the innermost module being called."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        if isinstance(module := frame.f_locals.get("self"), nn.Module):
            return type(module).__name__
        frame = frame.f_back
    return "the model"
