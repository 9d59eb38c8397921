"""A graph to which requests add edges to predict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from gnnkit_formats.duplicates import KEEP

from gnnkit.config.settings import Settings
from gnnkit.errors import UserError
from gnnkit.graph import EdgeColumns, Graph, Ids, Split
from gnnkit.graph.csc import sort_edges
from gnnkit.graph.edge_columns import CONTEXT
from gnnkit.graph.edge_order import listed_edges
from gnnkit.graph.labels import unlabelled
from gnnkit.graph.schema import types_of_nodes
from gnnkit.graph.times import parse_time
from gnnkit.graph.types import narrowed_positions
from gnnkit.prepare.columns import TrainedColumns
from gnnkit.prepare.trained import Inputs
from gnnkit.sampler.links import pairs_of
from gnnkit.task.labelled_edges import LabelledEdges
from gnnkit.task.link_split import relation_number
from gnnkit.utils.ranges import shown, shown_names
from gnnkit_serve.extensible import NewEdgeColumns, joined_types
from gnnkit_serve.new_nodes import NewEdge, NodeId


class ExtensibleEdges:
    """A graph to which requests add edges between its nodes, as new data would.

    The graph's own edges then pass messages, and count as edges of their ends, but are
    not predicted.
    """

    def __init__(self, graph: Graph, settings: Settings, *, from_caller: bool) -> None:
        """Raises `UserError` for data to which no edge can be added.

        Args:
            graph: The graph, with raw features.
            settings: From `read_settings`.
            from_caller: Whether the graph comes from Python, not from the data set.
        """
        task = settings.task.create()
        assert isinstance(task, LabelledEdges)
        duplicates = KEEP if from_caller else settings.dataset.arguments.get("duplicates", KEEP)
        if duplicates != KEEP:
            raise UserError(
                f"serve: dataset.duplicates={duplicates} merges or refuses repeated edges, such as a new one: use "
                "job=predict"
            )
        number = relation_number(graph, task.relation)
        self._relation = None if number is None or graph.edge_types is None else graph.schema.edge_types[number]
        listed = listed_edges(graph)
        label = np.full(len(listed), -1) if graph.edge_labels is None else graph.edge_labels[listed]
        columns = graph.edge_columns.without("position").take(listed)
        marks = {"label": label, "split": np.full(len(listed), CONTEXT, np.int8)}
        self._graph, self._pairs, self._columns = graph, pairs_of(graph.csc)[listed], EdgeColumns({**columns, **marks})
        self._is_symmetric = len(listed) < graph.num_edges
        self._new_columns = NewEdgeColumns(graph, _raw_columns(graph, Path(str(settings.checkpoint))))
        self._places = [_places(graph, number, end) for end in (0, 1)]

    def extend(self, edges: Sequence[NewEdge]) -> Graph:
        """Returns the graph with more edges, the only ones that job=predict predicts.

        Raises `UserError` for edges that do not fit the graph.
        """
        new = np.array([[self._node(edge, end) for end in (0, 1)] for edge in edges], np.int64)
        graph, types = self._graph, self._graph.schema.type_sizes
        edges = [_with_relation(edge, self._relation) for edge in edges]
        columns = self._new_columns.read(edges, np.stack([types_of_nodes(end, types) for end in new.T], 1))
        added = EdgeColumns(
            {
                **columns,
                "time": self._read_times(edges),
                "label": unlabelled(self._columns["label"], len(edges)),
                "split": np.full(len(edges), Split.NONE, np.int8),
            }
        )
        src, dst = np.concatenate([self._pairs, new]).T.copy()
        csc, order = sort_edges(src, dst, graph.num_nodes, graph.num_nodes, True, None)
        joined = EdgeColumns.concat([self._columns, added]).take(order)
        extended = graph.with_edges(csc, EdgeColumns({**joined, "position": narrowed_positions(order)}))
        return extended.symmetrize() if self._is_symmetric else extended

    def _node(self, edge: NewEdge, end: int) -> int:
        """Returns the number of an edge's source (0) or destination (1)."""
        node = (edge.source, edge.destination)[end]
        if (place := self._places[end].get(node)) is None:
            raise UserError(
                f"{edge}: {shown(node)} is no id of a {('source', 'destination')[end]} in the graph: use job=predict for a "
                "graph with new nodes"
            )
        return place

    def _read_times(self, edges: Sequence[NewEdge]) -> Ids | None:  # [num_new]
        """Reads the times of edges, which all have one if the graph's edges do."""
        for edge in edges:
            if (edge.time is None) != (self._graph.edge_time is None):
                problem = "no time, which the graph's edges have: add it"
                raise UserError(
                    f"{edge} has {problem if edge.time is None else 'a time, and the graph has none: leave it out'}"
                )
            if isinstance(edge.time, str) and self._graph.time_unit is None:
                raise UserError(f"{edge}: time={shown(edge.time)} is text, and times are numbers here: give a number")
        if self._graph.edge_time is None:
            return None
        return np.array([parse_time(f"{edge}: time", edge.time, self._graph.time_unit) for edge in edges], np.int64)


def _raw_columns(graph: Graph, folder: Path) -> TrainedColumns | None:
    """Returns the columns of the graph's edge features, None without names."""
    names, facts = graph.edge_feature_names, Inputs.load(folder) or Inputs.unknown()
    return None if names is None else TrainedColumns(names, graph.edge_category_of, facts.text, "edge", folder)


def _with_relation(edge: NewEdge, relation: str | None) -> NewEdge:
    """Returns an edge of the predicted relation."""
    if relation is not None and edge.relation not in (None, relation):
        raise UserError(f"{edge}: relation {shown(edge.relation)!r} is not predicted: task.relation={relation}")
    return edge if relation is None else replace(edge, relation=relation)


def _places(graph: Graph, number: int | None, end: int) -> Mapping[NodeId, int]:
    """Returns the numbers of the nodes at one end of the predicted relation, by id.

    Raises `UserError` if nodes share an id.
    """
    names, bounds = [name for name, _ in graph.schema.node_types], np.cumsum([0, *graph.schema.type_sizes])
    joined = {pair[1 + end] for pair in joined_types(graph) if number in (None, pair[0])} or set(names)
    ids = np.arange(graph.num_nodes) if graph.node_ids is None else graph.node_ids
    kept = [np.arange(bounds[place], bounds[place + 1]) for place, name in enumerate(names) if name in joined]
    nodes = np.concatenate(kept)
    places = dict(zip(np.asarray(ids)[nodes].tolist(), nodes.tolist(), strict=True))
    if len(places) < len(nodes):
        raise UserError(
            f"serve: nodes of the types {shown_names(names)} share an id: give them distinct ids, or set task.relation"
        )
    return places
