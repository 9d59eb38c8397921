"""A graph to which requests add nodes and edges, as a trained model reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from gnnkit_formats.duplicates import KEEP
from torch import Tensor, nn

from gnnkit.config.settings import Settings
from gnnkit.errors import UserError
from gnnkit.graph import EdgeColumns, Floats, Graph, Ids
from gnnkit.graph.edge_order import in_listed_order, with_inverse_edges
from gnnkit.graph.features import normalized
from gnnkit.graph.schema import FeatureTable, types_of_nodes
from gnnkit.prepare.columns import NumericTable, TrainedColumns
from gnnkit.prepare.inputs import degree_rows
from gnnkit.prepare.steps import sampling_rule
from gnnkit.prepare.trained import Inputs
from gnnkit.sampler.links import pairs_of
from gnnkit.utils.ranges import shown, shown_names
from gnnkit_serve.extension import Extension, ReadPart, types_in_extension
from gnnkit_serve.new_nodes import FeatureCells, NewColumns, NewEdge, NewNode, NodeId


class ExtensibleGraph:
    """A graph to which requests add nodes and edges, as a trained model reads it."""

    def __init__(self, graph: Graph, settings: Settings, model: nn.Module, *, from_caller: bool) -> None:
        """Raises `UserError` for a graph that does not fit the model.

        Args:
            graph: The graph, with raw features.
            settings: From `read_settings`.
            model: The trained model.
            from_caller: Whether the graph comes from Python, not from the data set.
        """
        assert settings.checkpoint is not None
        folder, arguments = Path(settings.checkpoint), {} if from_caller else settings.dataset.arguments
        facts, reads_relations = Inputs.load(folder) or Inputs.unknown(), bool(getattr(model, "reads_relations", False))
        graph = graph.evolve(edge_time=None, node_time=None)  # which no model reads, and requests do not have
        if not reads_relations:
            graph = graph.evolve(edge_types=None, edge_type_names=None, relations=None)
        if settings.inputs == "degree":
            empty = np.empty((graph.num_nodes, 0), np.float32)
            graph = graph.evolve(features=empty, feature_names=None, category_of=None, missing=None)
        unit_rows = bool(arguments.get("row_normalize"))
        self._new_rows = None if settings.inputs == "degree" else _NewRows(graph, facts, folder, unit_rows=unit_rows)
        if from_caller or not _is_stored(settings, facts):  # a store's rows are filled and scaled
            graph = facts.read(graph, folder, node_types=getattr(model, "num_node_types", 1) > 1)
        self._read, self._features, self._num_in_edges = graph, graph.whole_features, np.diff(graph.csc.indptr)
        self._new_edges = NewEdgeColumns(graph, facts.edge_columns(folder))
        self._merges = arguments.get("duplicates", KEEP) != KEEP
        self.inverse_edges = reads_relations and getattr(model, "inverse", False) is True
        graph = in_listed_order(graph) if getattr(model, "edge_order", False) else graph
        self.graph = with_inverse_edges(graph) if self.inverse_edges else graph

    def extend(self, nodes: Sequence[NewNode], edges: Sequence[NewEdge], place: Mapping[NodeId, int]) -> Extension:
        """Numbers new nodes and reads the columns of their edges.

        Raises `UserError` for nodes or edges that do not fit the graph.

        Args:
            nodes: The new nodes.
            edges: Their edges.
            place: Number of each node of the graph by id.
        """
        new = {node.id: number for number, node in enumerate(nodes, len(place))}
        if len(new) < len(nodes) or new.keys() & place.keys():
            raise UserError("nodes: an id occurs twice, or is that of a node of the graph: choose distinct new ids")
        ends = [[_number(node, place, new) for node in (edge.source, edge.destination)] for edge in edges]
        src, dst = np.array(ends, np.int64).reshape(-1, 2).T
        if (np.maximum(src, dst) < len(place)).any():
            raise UserError("edges: an edge connects two nodes of the graph: each must have a new node as an end")
        types = self._types(nodes)
        end_types = [types_in_extension(end, self._read.schema.type_sizes, types) for end in (src, dst)]
        columns = self._new_edges.read(edges, np.stack(end_types, 1))
        keys = np.stack([src, dst, columns.get("relation", np.zeros_like(src))], 1)
        if self._merges and len(np.unique(keys, axis=0)) < len(keys):
            raise UserError("edges: an edge occurs twice, and dataset.duplicates merges or refuses it: send it once")
        extension = Extension(types, src, dst, columns)
        return extension.with_inverse_edges(self._read.num_relations) if self.inverse_edges else extension

    def _types(self, nodes: Sequence[NewNode]) -> Ids:  # [num_new]
        """Numbers the types of new nodes. Default: the type of the labelled nodes."""
        numbers = {name: number for number, (name, _) in enumerate(self._read.node_types or ())}
        usual = [0] if len(numbers) < 2 else self._labelled
        default = usual[0] if len(usual) == 1 else None
        return np.array([_number_of(node, "type", node.type, numbers, default) for node in nodes], np.int64)

    @cached_property
    def _labelled(self) -> list[int]:
        """Numbers the types with labelled nodes."""
        types = types_of_nodes(np.flatnonzero(self._read.labelled), self._read.schema.type_sizes)
        return sorted({*types.tolist()})

    def rows(self, nodes: Sequence[NewNode], extension: Extension, part: ReadPart, dtype: torch.dtype) -> Tensor:
        """Returns the rows of a part as the model reads them, [num_rows, width]."""
        old = part.nodes < self.graph.num_nodes
        if self._new_rows is None:
            for node in (node for node in nodes if node.features):
                raise UserError(f"{node} has features, and the model reads degrees only: leave them out")
            dst = np.sort(extension.dst[: len(extension.dst) // (1 + self.inverse_edges)])
            degree = np.searchsorted(dst, part.nodes, "right") - np.searchsorted(dst, part.nodes)
            degree[old] += self._num_in_edges[part.nodes[old]]
            return torch.from_numpy(degree_rows(degree)).to(dtype)
        new = self._new_rows.read(nodes, extension.types)
        rows = np.empty((len(old), new.shape[1]), new.dtype)
        rows[old] = np.asarray(self._features[part.nodes[old]])
        rows[part.seeds] = new
        return torch.from_numpy(rows).to(dtype)


def check_inputs(settings: Settings) -> None:
    """Raises `UserError` for a model without a place for new nodes."""
    if settings.inputs == "learned":
        raise UserError("inputs=learned: rows were learned for the nodes of training: train with features")
    if settings.features.degree:
        raise UserError("features.degree: new edges change degrees: use job=predict on the graph with the new nodes")
    if sampling_rule(settings) != "none":
        raise UserError("sampler.time: a request has no time: use job=predict on the graph with the new nodes")
    if settings.label_inputs is not None:
        raise UserError("label_inputs: a request has no labels: use job=predict on the graph with the new nodes")


def _is_stored(settings: Settings, facts: Inputs) -> bool:
    """Returns whether a run's data set is a store.

    Raises `UserError` for a store whose features cannot be reproduced for new nodes.
    """
    is_store = settings.dataset.create().store_folder is not None
    if is_store and (facts.unit_rows or (facts.features is None and facts.fill.dropped)):
        raise UserError(
            "dataset=store: its rows were divided by their sums, or lack unnamed columns: pass the original graph, as in "
            "gnnkit.serve(run, graph)"
        )
    return is_store


def _number(node: NodeId, place: Mapping[NodeId, int], new: Mapping[NodeId, int]) -> int:
    number = new.get(node, place.get(node))
    if number is None:
        raise UserError(f"edges: {node} is no id of a new node or of the graph")
    return number


def _number_of(item: object, kind: str, name: str | None, numbers: Mapping[str, int], default: int | None) -> int:
    """Numbers a type or relation. Raises `UserError` for unknown and missing names."""
    if name is not None and name not in numbers:
        choices = shown_names(numbers) or f"none, because the model reads no {kind}s"
        raise UserError(f"{item}: {kind} {shown(name)!r} is unknown: expected {choices}")
    if name is None and default is None:
        raise UserError(f"{item} has no {kind}: choose one of {shown_names(numbers)}")
    return default if name is None else numbers[name]  # type: ignore[return-value]


class _NewRows:
    """Reads the features of new nodes."""

    def __init__(self, graph: Graph, facts: Inputs, folder: Path, *, unit_rows: bool) -> None:
        """Stores the columns of each node type.

        Args:
            graph: The graph, with raw features.
            facts: The facts of the training run.
            folder: The folder of the training run.
            unit_rows: Whether each row is divided by its sum first.
        """
        self._facts, self._folder, self._unit_rows = facts, folder, unit_rows
        columns, table, schema = facts.node_columns(folder), NumericTable.of_nodes(graph), graph.schema
        self._all, self._names = NewColumns.of(columns, table), [name for name, _ in schema.node_types]
        tables = schema.feature_tables or (FeatureTable("dense", len(self._all.texts)),) * len(self._names)
        self._by_type = [(NewColumns.of(columns, table, part.columns), part.kind != "none") for part in tables]

    def read(self, nodes: Sequence[NewNode], types: Ids) -> Floats:  # [num_new, width]
        """Returns the rows of new nodes as the model reads them.

        Raises `UserError` for features that do not fit the node's type.
        """
        rows, missing = np.zeros((len(nodes), len(self._all.texts)), self._all.dtype), [np.empty((0, 2), np.int64)]
        for number in set(types.tolist()):
            (columns, has_features), places = self._by_type[number], np.flatnonzero(types == number)
            of_type = [nodes[place] for place in places.tolist()]
            if has_features:
                rows[places, columns.place], cells = columns.read(of_type, [node.features for node in of_type])
                missing.append(np.stack([places[cells[:, 0]], cells[:, 1] + columns.place.start], 1))
                continue
            rows[places, columns.place] = 1  # the placeholder column, if other types have features
            for node in (node for node in of_type if node.features):
                raise UserError(
                    f"{node} has features, and nodes of type {self._names[number]} have none: leave them out"
                )
        names, texts = self._all.names or None, self._all.texts if any(self._all.texts) else None
        rows, cells = normalized(rows) if self._unit_rows else rows, np.concatenate(missing)
        ids = np.array([str(node.id) for node in nodes])
        table = NumericTable(rows, names, texts, cells if len(cells) else None, ids)  # type: ignore[arg-type]
        return np.asarray(self._facts.read_rows(table, self._folder).rows)


class NewEdgeColumns:
    """Reads the columns of new edges, which are those of a graph."""

    def __init__(self, graph: Graph, columns: TrainedColumns | None) -> None:
        """Stores the columns.

        Args:
            graph: The graph as the model reads it, without inverse edges.
            columns: The feature columns of training, or None.
        """
        table, weight = NumericTable.of_edges(graph), graph.csc.weight
        self._features = None if table is None else NewColumns.of(columns, table)
        self._weight = None if weight is None else NewColumns(("weight",), ("",), weight.dtype, False, slice(None))
        self._names, self._joined = [name for name, _ in graph.schema.node_types], joined_types(graph)
        self._numbers = {name: number for number, name in enumerate(graph.edge_type_names or ())}
        self._has_types = graph.edge_types is not None

    def read(self, edges: Sequence[NewEdge], ends: Ids) -> EdgeColumns:
        """Returns the columns that the graph has.

        Raises `UserError` for missing or additional values, and for invalid ones.

        Args:
            edges: [num_added] edges.
            ends: [num_added, 2] node types of source and destination.
        """
        weights = [() if edge.weight is None else (edge.weight,) for edge in edges]
        weight = _read_values("weight", self._weight, edges, weights)
        features = _read_values("features", self._features, edges, [edge.features for edge in edges])
        default = 0 if len(self._numbers) < 2 else None
        numbers = [_number_of(edge, "relation", edge.relation, self._numbers, default) for edge in edges]
        relation = np.array(numbers, np.int64)
        self._check_ends(edges, relation, ends)
        columns = {"weight": None if weight is None else weight[:, 0], "features": features}
        return EdgeColumns({**columns, "relation": relation if self._has_types else None})

    def _check_ends(self, edges: Sequence[NewEdge], relations: Ids, ends: Ids) -> None:
        """Raises `UserError` for an edge between types that are not its relation's."""
        for edge, (number, *types) in zip(edges, np.column_stack([relations, ends]).tolist(), strict=True):
            source, destination = (self._names[end] for end in types)
            if self._joined and (number, source, destination) not in self._joined:
                pairs = [f"from {a} to {b}" for relation, a, b in sorted(self._joined) if relation == number]
                relation = "the graph's edges" if edge.relation is None else f"edges of {edge.relation}"
                raise UserError(
                    f"{edge} leads from {source} to {destination}, but {relation} {' or '.join(pairs) or 'nowhere'}"
                )


def joined_types(graph: Graph) -> set[tuple[int, str, str]]:
    """Returns the node types that relations join, with the relation's number.

    If the graph has no `relations`, its edges decide. Empty: there is one node type.
    """
    if len(names := [name for name, _ in graph.schema.node_types]) < 2:
        return set()
    if graph.relations is not None:
        return {(number, relation.source, relation.destination) for number, relation in enumerate(graph.relations)}
    src, dst = (types_of_nodes(end, graph.schema.type_sizes) for end in pairs_of(graph.csc).T)
    relations = np.zeros_like(src) if graph.edge_types is None else graph.edge_types.astype(np.int64)
    codes = np.unique((relations * len(names) + src) * len(names) + dst).tolist()
    triples = ((code // len(names), code % len(names)) for code in codes)
    return {(pair // len(names), names[pair % len(names)], names[end]) for pair, end in triples}


def _read_values(
    name: str, columns: NewColumns | None, edges: Sequence[NewEdge], cells: Sequence[FeatureCells]
) -> Floats | None:  # [num_added, width]
    """Reads values that all edges of the graph have. `columns` is None if none has."""
    for edge, values in zip(edges, cells, strict=True):
        if bool(values) != (columns is not None):
            problem = f"{name}, and the graph's edges have none: leave it out"
            raise UserError(
                f"{edge} has {problem}" if values else f"{edge} has no {name}, which the graph's edges have: add it"
            )
    if columns is None:
        return None
    rows, missing = columns.read(edges, cells)
    for row, column in missing.tolist():
        raise UserError(f"{edges[row]}: column {columns.title(column)} is empty, and edge features are never filled")
    return rows
