"""New nodes next to a graph: their features, and the part of the graph they read."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gnnkit.errors import UserError
from gnnkit.graph import CSC, Graph, Ids
from gnnkit.partition.degrees import Degrees
from gnnkit.prepare.trained import Inputs

NodeId = int | str
FeatureCell = float | str | None  # None: empty


@dataclass(frozen=True, slots=True)
class NewNode:
    """A node that the graph does not have."""

    id: NodeId
    features: Sequence[FeatureCell] | Mapping[str, FeatureCell]  # raw, in the training data's column order or by column


@dataclass(frozen=True, slots=True, eq=False)
class NewColumns:
    """The columns of new nodes, which are those of the training data."""

    names: Sequence[str]  # [width]. Empty: by position
    texts: Sequence[str]  # [width] as `Graph.category_of`, "" for a number
    dtype: npt.DTypeLike
    only_known: bool = False  # whether text values must occur in training

    @classmethod
    def of(cls, graph: Graph, facts: Inputs | None) -> NewColumns:
        """Returns the columns of training, or the graph's if these have no names."""
        features = graph.features
        if facts is not None and facts.features is not None:
            names, texts, only_known = facts.features, facts.category_of, facts.text == "known"
        else:
            names, texts, only_known = list(graph.feature_names or ()), None, False
        return cls(names, texts or [""] * (len(names) or features.shape[1]), features.dtype, only_known)

    def read(self, nodes: Sequence[NewNode]) -> Graph:
        """Returns a graph of the nodes, without edges and with raw features.

        Raises `UserError` for other columns, and for values that do not fit a column.
        """
        cells = [self._cells(node) for node in nodes]
        missing = np.argwhere([[value is None for value in values] for values in cells])
        with np.errstate(over="ignore"):
            rows = np.array([[value or 0 for value in values] for values in cells], self.dtype)
        for row, column in np.argwhere(~np.isfinite(rows)).tolist():
            raise UserError(f"nodes: {nodes[row].id}: column {self._title(column)} exceeds the range of {rows.dtype}")
        return Graph.from_edges(
            (),
            (),
            len(nodes),
            features=rows,
            feature_names=self.names or None,
            category_of=self.texts if any(self.texts) else None,
            missing=missing if len(missing) else None,
            node_ids=np.array([str(node.id) for node in nodes]),
        )

    def _cells(self, node: NewNode) -> Sequence[FeatureCell]:  # [width] numbers and None
        cells = node.features
        cells = self._by_position(node.id, cells) if isinstance(cells, Mapping) else cells
        if len(cells) != len(self.texts):
            raise UserError(f"nodes: {node.id} has {len(cells)} features, expected {len(self.texts)}")
        for column, value in enumerate(cells):
            if isinstance(value, str):
                raise UserError(
                    f"nodes: {node.id}: column {self._title(column)} has the text {value!r}, expected a number: text is "
                    'passed by column, as in {"column": "value"}'
                )
        return cells

    def _by_position(self, node: NodeId, cells: Mapping[str, FeatureCell]) -> list[FeatureCell]:  # [width]
        """Orders a node's values. Text becomes 1 in its value's column, else 0."""
        columns = [text or name for text, name in zip(self.texts, self.names, strict=False)]
        if not self.names or cells.keys() != set(columns):
            raise UserError(
                f"nodes: {node} has the columns {', '.join(cells) or 'none'}, expected "
                f"{', '.join(dict.fromkeys(columns)) or 'a list, because the data have no names'}"
            )
        self._check_numbers(node, cells)
        for text in set(self.texts) - {""}:
            if cells[text] is not None and f"{text}={_spelt(cells[text])}" not in self.names:
                line = f"nodes: {node}: {text}={_spelt(cells[text])} does not occur in the training data"
                if self.only_known:
                    raise UserError(f"{line}, which features.text=known requires")
                print(f"gnnkit: warning: {line}: all columns of {text} are 0", file=sys.stderr)
        return [
            cells[column] if not text or cells[column] is None else float(name == f"{text}={_spelt(cells[text])}")
            for column, text, name in zip(columns, self.texts, self.names, strict=True)
        ]

    def _check_numbers(self, node: NodeId, cells: Mapping[str, FeatureCell]) -> None:
        """Raises `UserError` for text in a column of numbers."""
        for column, text in zip(self.names, self.texts, strict=True):
            if not text and isinstance(cells[column], str):
                raise UserError(
                    f"nodes: {node}: column {column!r} has the text {cells[column]!r}, but training read numbers there: "
                    "pass the number that training read"
                )

    def _title(self, column: int) -> str:
        return repr(self.names[column]) if self.names else str(column)


def _spelt(cell: FeatureCell) -> str:
    """Returns a category as a table spells it, 7 without a fraction."""
    return format(cell, ".15g") if isinstance(cell, float) else str(cell)


@dataclass(frozen=True, slots=True, eq=False)
class ReadPart:
    """The nodes that new nodes' outputs depend on, the new ones first."""

    nodes: Ids  # [num_rows] number of each in the extended graph
    graph: Graph  # their in-edges, numbered by row. Its degrees are those of the extended graph

    @classmethod
    def of(cls, csc: CSC, num_new: int, ends: Ids, hops: int | None) -> ReadPart:
        """Follows in-edges from the new nodes.

        Args:
            csc: The graph without the new nodes, which follow its nodes.
            num_new: Number of new nodes.
            ends: [num_added, 2] source and destination of each added edge.
            hops: Number of layers. None: the whole graph is read.
        """
        nodes = np.arange(csc.num_nodes, csc.num_nodes + num_new)
        if hops is None:
            nodes = np.append(nodes, np.arange(csc.num_nodes))
            edges = [_in_edges(csc, ends, nodes)]
        else:
            edges, last = [], nodes
            for _ in range(hops):
                edges.append(_in_edges(csc, ends, last))
                last = np.setdiff1d(edges[-1][:, 0], nodes)
                nodes = np.append(nodes, last)
        order = np.argsort(nodes)

        def place(ids: Ids) -> Ids:
            return order[np.searchsorted(nodes, ids, sorter=order)]

        src, dst = place(np.concatenate(edges)).T
        graph = Graph.from_edges(src, dst, len(nodes), threads=1)
        added = [place(end[np.isin(end, nodes)]) for end in (*ends.T, ends[ends[:, 0] == ends[:, 1], 0])]
        counts = [np.bincount(rows, minlength=len(nodes)) for rows in added]
        known, old = Degrees.of(csc), nodes < csc.num_nodes
        for count, values in zip(counts, (known.out_degree, known.in_degree, known.looped), strict=True):
            count[old] += values(nodes[old]).astype(np.int64)
        degrees = {"out_degree": counts[0] + 0.0, "in_degree": counts[1] + 0.0, "looped": counts[2] > 0}
        Degrees.set(graph.csc, degrees)
        return cls(nodes, graph)


def _in_edges(csc: CSC, ends: Ids, nodes: Ids) -> Ids:  # [num_edges, 2]
    """Returns the ends of the nodes' in-edges in the extended graph."""
    old = nodes[nodes < csc.num_nodes]
    positions, degree = csc.in_edges(old)
    edges = np.stack([csc.indices[positions], np.repeat(old, degree)], 1)
    return np.concatenate([edges, ends[np.isin(ends[:, 1], nodes)]])
