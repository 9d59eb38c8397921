"""Unmodified PyG models for heterogeneous graphs: forward(x_dict, edge_index_dict)."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from gnnkit.engine import Adjacency, BlockAdjacency, Pool, Rows, SparseRows
from gnnkit.engine.typed_graph import TypedGraph
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Ids
from gnnkit.graph.schema import NodeTypes, Schema
from gnnkit.model.edge_index import RelationPass, RowReads
from gnnkit.model.functions import ExactFunctions, exact_norms, in_messages, is_convolution, shared_padding
from gnnkit.model.unchanged import (
    EdgeIndexModel,
    Signature,
    disable_caching,
    index_error,
    merge_adjacencies,
    model_error,
)
from gnnkit.utils.ranges import one_line

if TYPE_CHECKING:
    from gnnkit.model.exactness import TrialRows

Tensors = dict[Any, Tensor]  # by node type, or by (source type, name, destination type)

_FEWEST, _TRIAL_EDGES = 3, 4  # nodes of the first type, one more for each further type; edges of a relation


@dataclass(frozen=True, slots=True)
class HeteroTrial:
    """A module's properties, as observed in a call on a small graph."""

    output_type: str | None  # node type of the output rows. None: the output is a dictionary by type
    output_types: tuple[str, ...]  # node types that have output rows
    dropouts: tuple[str | None, ...]  # node type of the rows in each call of dropout, None for other rows
    norm_types: tuple[str | None, ...]  # the same for each pool of batch statistics

    @classmethod
    def of(
        cls, module: nn.Module, signature: Signature, schema: Schema, widths: Mapping[str, int], edge_width: int
    ) -> HeteroTrial:
        """Calls the module on a small graph, which gives its lazy layers their widths.

        Each type has another number of nodes, so that the types of rows are known.
        Only lazy parameters change. Raises `UserError` if the module fails.

        Args:
            module: The module.
            signature: Its parameters.
            schema: The graph's types, with the node types of each relation.
            widths: Columns of input rows by node type.
            edge_width: Number of edge features. 0: the graph has none.
        """
        graph = _small_graph(schema, widths, edge_width, _dtype(module))
        types = {len(rows): name for name, rows in graph[0].items()}
        trace = _Trace(types)
        try:
            with torch.no_grad():
                if any(is_lazy(value) for value in (*module.parameters(), *module.buffers())):
                    with _evaluating(module):
                        signature.call(module, *graph)
                replica = copy.deepcopy(module)  # running statistics of the module stay
                with torch.random.fork_rng(devices=[]), trace, exact_norms(replica, trace):
                    out = signature.call(replica, *graph)
        except UserError:
            raise
        except Exception as error:
            text = f"{type(error).__name__}: {one_line(error)}"
            raise model_error(module, f"forward fails on a small graph with the types of this graph: {text}") from error
        if isinstance(out, Tensor) and out.dim() and len(out) in types:
            output_type = types[len(out)]
            return cls(output_type, (output_type,), tuple(trace.dropouts), tuple(trace.norm_types))
        if isinstance(out, Mapping):
            output_types = tuple(name for name, rows in out.items() if rows is not None)
            if output_types and all(len(out[name]) == len(graph[0].get(name, ())) for name in output_types):
                return cls(None, output_types, tuple(trace.dropouts), tuple(trace.norm_types))
        actual = f"shape {list(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
        raise model_error(
            module,
            f"forward must return the rows of one node type, or a dictionary of rows by node type, found {actual}",
        )


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Sets a module and its parts to evaluation mode within the context."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


class _Trace(TorchFunctionMode):
    """Records the node type of the rows in each call of dropout, and in each pool."""

    def __init__(self, types: Mapping[int, str]) -> None:
        super().__init__()
        self.dropouts: list[str | None] = []
        self.norm_types: list[str | None] = []
        self._types = types

    def pool(self, num_rows: int) -> Pool:
        """Records the type of normalised rows, and returns a pool of these rows."""
        self.norm_types.append(self._types.get(num_rows))
        return Pool()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is F.dropout and not in_messages():
            rows = args[0] if args else (kwargs or {})["input"]
            self.dropouts.append(self._types.get(len(rows)) if rows.dim() == 2 else None)
        if func is F.batch_norm:
            arguments = inspect.signature(func).bind(*args, **(kwargs or {})).arguments
            if arguments.get("training", False) and arguments["input"].dim() == 2:  # as `ExactFunctions` pools rows
                self.pool(len(arguments["input"]))
        return func(*args, **(kwargs or {}))


_Graph = tuple[Tensors, Tensors, dict[str, Tensors | None]]


def _small_graph(schema: Schema, widths: Mapping[str, int], edge_width: int, dtype: torch.dtype) -> _Graph:
    """Draws rows, edges and edge values."""
    draw = torch.Generator().manual_seed(0)
    sizes = {name: _FEWEST + number for number, (name, _) in enumerate(schema.node_types)}
    sizes = {name: size + size // _TRIAL_EDGES for name, size in sizes.items()}  # none equals a number of edges
    x: Tensors = {name: torch.rand(sizes[name], widths[name], generator=draw, dtype=dtype) for name in sizes}
    edges: Tensors = {}
    for relation in schema.relations or ():
        ends = [torch.randint(sizes[end], (_TRIAL_EDGES,), generator=draw) for end in (relation.source, relation[2])]
        edges[tuple(relation)] = torch.stack([ends[0], ends[1].sort().values])  # as recurrent aggregations require
    shape = (_TRIAL_EDGES, edge_width)
    features = {key: torch.rand(shape, generator=draw, dtype=dtype) for key in edges} if edge_width else None
    return (
        x,
        edges,
        {"edge_attr": features, "edge_weight": {key: torch.ones(_TRIAL_EDGES, dtype=dtype) for key in edges}},
    )


def _dtype(module: nn.Module) -> torch.dtype:
    floats = (value.dtype for value in module.parameters() if is_lazy(value) or value.is_floating_point())
    return next(floats, torch.float32)


_EMPTY_WORKER = "worker has no nodes of type {}: use fewer workers"
_EMPTY_BATCH = "batch has no nodes of type {}: use larger strategy.batch_size and sampler.fanouts"
_FEW, _FEW_EDGES = 12, 30  # nodes of each type and edges of each relation, in a small graph


class HeteroModel(EdgeIndexModel):
    """Runs a module of (x_dict, edge_index_dict) on full graphs and sampled batches.

    `x_dict` contains this rank's rows of each node type, with the columns of the type's
    feature table, and a column of ones for a type without features. `edge_index_dict`
    contains each relation's edges (source type, name, destination type), numbered
    within the types. As in `EdgeIndexModel`, other ranks' rows are exchanged whenever a
    layer reads rows through `edge_index[0]`, but only those that the relation reads.
    All types and relations are present, also those without rows or edges in a batch.
    """

    reads_sparse = True  # types of different widths are stored side by side, as sparse columns

    def __init__(self, module: nn.Module) -> None:
        """Shares the module's parameters."""
        super().__init__(module)
        self._error = functools.partial(model_error, module)
        self._schema: Schema | None = None
        self._trial: HeteroTrial | None = None
        self._tables: tuple[SparseRows, Tensors] | None = None  # the last sparse rows, and their dense form by type

    def fit_types(self, schema: Schema, in_features: int, edge_width: int) -> None:
        """Initialises lazy layers, and inspects the module by a call on a small graph.

        Raises `UserError` for a graph without node types at the ends of relations, and
        if the call fails.

        Args:
            schema: The graph's types.
            in_features: Columns of a node's input row.
            edge_width: Number of edge features.
        """
        if schema.relations is None:
            raise self._error(
                "forward(x_dict, edge_index_dict) reads the node types of each relation, but the graph has none: create "
                "it from a HeteroData, or write forward(x, edge_index, edge_type)",
            )
        module, self._schema = self.module, schema
        assert isinstance(module, nn.Module)
        widths = {name: len(range(in_features)[columns]) for name, columns in self._columns(schema).items()}
        self._trial = HeteroTrial.of(module, self._signature, schema, widths, edge_width)

    def on_small_graph(self, rows: TrialRows, draw: int) -> tuple[HeteroModel, Graph]:
        """Returns a model with the same parameters for a small graph, and the graph.

        Args:
            rows: The rows of the graph's nodes and edges.
            draw: Number of the graph, whose size depends on it.
        """
        num_nodes, num_edges, rng = *rows.sizes(_FEW, _FEW_EDGES, draw), np.random.default_rng(draw)
        counts = tuple((name, num_nodes) for name, _ in self.schema.node_types)
        model = self.with_sizes(counts)
        starts = [
            (model.schema.nodes(source).start, model.schema.nodes(destination).start)
            for source, _, destination in model.schema.relations or ()
        ]
        ends = np.concatenate(
            [rng.integers(0, num_nodes, (2, num_edges)) + np.array(start)[:, None] for start in starts], 1
        )
        edge_types = np.repeat(np.arange(len(starts)), num_edges)
        graph = Graph.from_edges(
            ends[0],
            ends[1],
            num_nodes * len(counts),
            features=rows.node_rows(rng, num_nodes * len(counts)),
            edge_types=edge_types,
            edge_type_names=list(model.schema.edge_types),
            **rows.edge_columns(rng, len(edge_types)),  # type: ignore[arg-type]
        )
        return model, graph

    def with_sizes(self, node_types: NodeTypes) -> HeteroModel:
        """Returns a model with the same parameters for other numbers of nodes."""
        model = copy.copy(self)
        model._schema = replace(self.schema, node_types=node_types)
        return model

    @property
    def schema(self) -> Schema:
        """The graph's types."""
        assert self._schema is not None, "fit_types comes first"
        return self._schema

    def check_labels(self, nodes: Ids) -> None:
        """Raises `UserError` if labelled nodes belong to types without output rows.

        Args:
            nodes: [k] ids of labelled nodes.
        """
        assert self._trial is not None
        for name, _ in self.schema.node_types:
            ids = self.schema.nodes(name)
            if name not in self._trial.output_types and ((nodes >= ids.start) & (nodes < ids.stop)).any():
                raise self._error(
                    f"forward returns rows of {', '.join(self._trial.output_types)}, and the labels are those of {name}: "
                    f"return the rows of {name}",
                )

    def check_link_ends(self, number: int) -> None:
        """Raises `UserError` if a predicted relation has ends without output rows.

        Args:
            number: The relation's position in `Schema.relations`.
        """
        assert self._trial is not None
        relation = (self.schema.relations or ())[number]
        for name in (relation.source, relation.destination):
            if name not in self._trial.output_types:
                raise self._error(
                    f"forward returns rows of {', '.join(self._trial.output_types)}, and the predicted relation "
                    f"{relation.edge_type} needs rows of {name}: return a dictionary of rows by type that has both ends",
                )

    def forward(self, x: Rows, adjacencies: Sequence[Adjacency]) -> Tensor:
        """Computes logits [num_dst, num_classes], 0 for types without output rows.

        Collective.

        Args:
            x: [num_dst, in_features] own rows, or the input rows of a batch.
            adjacencies: The full graph, or the blocks of a batch.
        """
        (adjacency, positions), module = merge_adjacencies(adjacencies), self.module
        assert isinstance(module, nn.Module)
        assert self._trial is not None
        graph = adjacency.typed_graph(self.schema)
        rows = graph.rows if positions is None else {name: positions[places] for name, places in graph.rows.items()}
        pools = TypedPools(adjacency, graph.nodes, self._trial.norm_types, self._error)
        module.training = self.training
        name = type(self).__name__
        reads = RowReads()
        passes = {
            tuple(relation.relation): RelationPass(name, adjacency.relation_rows(relation), reads)
            for relation in graph.relations
        }
        edges: Tensors = {key: graph_pass.edge_index() for key, graph_pass in passes.items()}
        functions = ExactFunctions(adjacency, reads, lambda rows, draw: self._ids(rows, draw, graph), pools)
        try:
            with functions, exact_norms(module, pools), shared_padding(module, adjacency), disable_caching(module):
                out = self._signature.call(module, self._rows_by_type(x, rows), edges, _values(adjacency, graph))
        except IndexError as error:
            raise index_error(module, error) from error
        except RuntimeError as error:
            empty = ", ".join(name for name, ids in graph.nodes.items() if not len(ids))
            if not empty or type(error) is not RuntimeError:  # such as out of memory, or a lost rank
                raise
            message = _EMPTY_BATCH if isinstance(adjacency, BlockAdjacency) else _EMPTY_WORKER
            raise self._error(f"{error}: this {message.format(empty)}") from error
        finally:
            for graph_pass in passes.values():
                graph_pass.end()
            self.fallbacks = reads.origin.fallbacks
        return self._place_rows(out, graph, adjacency.num_dst)[: adjacencies[-1].num_dst]

    @property
    def num_convolutions(self) -> int:
        """Number of layers. A `ModuleDict` has one layer's convolutions by relation."""
        by_relation = [part for part in self.modules() if isinstance(part, nn.ModuleDict)]
        parallel = [sum(map(is_convolution, part.children())) for part in by_relation]
        return super().num_convolutions - sum(count - 1 for count in parallel if count)

    def _place_rows(self, out: Any, graph: TypedGraph, num_rows: int) -> Tensor:
        """Returns the output rows of all types in the order of the rank's rows."""
        assert self._trial is not None
        by_type = out if self._trial.output_type is None else {self._trial.output_type: out}
        present = {name: by_type[name] for name in self._trial.output_types}
        for name, rows in present.items():
            if not isinstance(rows, Tensor) or rows.dim() == 0 or len(rows) != len(graph.rows[name]):
                actual = f"shape {list(rows.shape)}" if isinstance(rows, Tensor) else type(rows).__name__
                raise self._error(
                    f"forward must return a row for each of the {len(graph.rows[name])} rows of {name}, found {actual}",
                )
        shapes = {rows.shape[1:] for rows in present.values()}
        if len(shapes) > 1:
            text = ", ".join(f"{name}: {list(rows.shape)}" for name, rows in present.items())
            raise self._error(f"forward returns rows of several widths ({text}): return those of one type")
        first = next(iter(present.values()))
        logits: Tensor = first.new_zeros(num_rows, *first.shape[1:])
        for name, rows in present.items():
            logits = logits.index_copy(0, graph.rows[name], rows)
        return logits

    def _ids(self, rows: Tensor, draw: int, graph: TypedGraph) -> Tensor | None:
        """Returns the node ids that key dropout, or None for rows without ids."""
        assert self._trial is not None
        name = self._trial.dropouts[draw] if draw < len(self._trial.dropouts) else None
        return graph.nodes[name] if name is not None and len(rows) == len(graph.nodes[name]) else None

    def _columns(self, schema: Schema) -> dict[str, slice]:
        """Returns the columns of each type's input rows."""
        tables = schema.feature_tables or (None,) * len(schema.node_types)
        pairs = zip((name for name, _ in schema.node_types), tables, strict=True)
        return {name: slice(None) if table is None or table.width == 0 else table.columns for name, table in pairs}

    def _rows_by_type(self, x: Rows, places: Mapping[str, Tensor]) -> Tensors:
        """Returns the input rows of each type, at its places among the rows `x`."""
        columns = self._columns(self.schema)
        if not isinstance(x, SparseRows):
            assert isinstance(x, Tensor)
            return {name: x[rows][:, columns[name]] for name, rows in places.items()}
        if self._tables is None or self._tables[0] is not x:
            dense = {name: _dense(x, rows, columns[name]) for name, rows in places.items()}
            self._tables = (x, dense)
        return {name: rows.view_as(rows) for name, rows in self._tables[1].items()}


class TypedPools:
    """Provides the pools of batch statistics, one for each call of a normalisation."""

    def __init__(
        self,
        adjacency: Adjacency,
        nodes: Mapping[str, Tensor],
        norm_types: Sequence[str | None],
        error: Callable[[str], UserError],
    ) -> None:
        """Stores the arguments.

        Args:
            adjacency: Provides the pools.
            nodes: [rows of the type] global ids of each type's rows.
            norm_types: Node type of the rows in each call of `pool`, None for other
                rows.
            error: Creates an error that names the model.
        """
        self._adjacency, self._nodes, self._error = adjacency, nodes, error
        self._names = iter(norm_types)

    def pool(self, num_rows: int) -> Pool:
        """Returns the pool of the next statistics.

        Raises `UserError` for a batch's rows whose nodes are unknown, because nodes
        with copies on several ranks count once.
        """
        name = next(self._names, None)
        if name is not None and len(self._nodes[name]) == num_rows:
            return self._adjacency.pool_of_nodes(self._nodes[name])
        if not isinstance(self._adjacency, BlockAdjacency):
            return self._adjacency.pool(num_rows)
        raise self._error(
            "normalises rows that are not those of one node type, which mini-batches do not support: normalise each "
            "type's rows, or use strategy=vertex_centric"
        )


def _values(adjacency: Adjacency, graph: TypedGraph) -> dict[str, Tensors | None]:
    """Returns edge features and weights by relation."""
    features, relations = adjacency.edge_features, graph.relations
    weights = {tuple(part.relation): part.rank_graph.weight for part in relations}
    return {
        "edge_attr": None if features is None else {tuple(part.relation): features[part.edges] for part in relations},
        "edge_weight": None if None in weights.values() else weights,  # type: ignore[dict-item]
    }


def _dense(x: SparseRows, rows: Tensor, columns: slice) -> Tensor:  # [k, width of the columns]
    """Returns some rows and columns of sparse rows as a dense table."""
    csr = x.places.table.csr
    places = rows.cpu().numpy()
    begins, ends = csr.indptr[places], csr.indptr[places + 1]
    counts = ends - begins
    entries = np.repeat(begins - np.append(0, np.cumsum(counts)[:-1]), counts) + np.arange(counts.sum())
    column = np.asarray(csr.indices)[entries].astype(np.int64)
    first, last, _ = columns.indices(x.shape[1])
    inside = (column >= first) & (column < last)
    table = x.values.new_zeros(len(places), last - first, dtype=x.dtype)
    into = (np.repeat(np.arange(len(places)), counts)[inside], column[inside] - first)
    table[tuple(map(torch.from_numpy, into))] = x.values[torch.from_numpy(entries[inside])].to(x.dtype)
    return table
