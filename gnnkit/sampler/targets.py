"""The labelled rows that a task predicts: nodes, or pairs of nodes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit.errors import UserError
from gnnkit.graph import SPLITS, Floats, Graph, Ids, Labels, Split, labelled
from gnnkit.graph.edge_columns import REVERSE
from gnnkit.graph.times import NEVER, Times
from gnnkit.graph.types import take
from gnnkit.sampler.links import LinkRelation, Links, pairs_of
from gnnkit.utils.checks import check_range
from gnnkit.utils.ranges import MAX_COUNT, whole
from gnnkit.utils.storage import load_arrays, save_arrays

_MAX_NODES = 2**48


@dataclass(frozen=True, slots=True, eq=False)
class Targets:
    """The rows that a task predicts, with their labels and splits.

    A row is a node, or a pair of nodes joined by an edge. All edges are rows, also
    unlabelled ones, in the order of the user's edge list.
    """

    num_classes: int  # as `Graph.num_classes`, of the labels
    ids: Ids  # [n] global row numbers, ascending
    rows: Ids  # [n] nodes, or [n, 2] sources and destinations
    label: Labels  # [n, ...] as `Graph.labels`
    split: npt.NDArray[np.int8]  # [n] values of `Split`
    positions: Ids | None = None  # [n] edges in the user's edge list. None: rows are nodes
    features: Floats | None = None  # [n, edge_width] the edges' features
    time: Times | None = None  # [n] in the data's unit. None: the data have no times
    relation: LinkRelation | None = None  # the relation of the edges. None: edges of all relations

    @classmethod
    def of_nodes(cls, owned: Ids, label: Labels, split: npt.NDArray[np.int8], num_classes: int) -> Targets:
        """Returns nodes as rows.

        Args:
            owned: [n] ascending global ids.
            label: [n, ...] labels, in a form of `Graph.labels`.
            split: [n] values of `Split`.
            num_classes: As `Graph.num_classes`.
        """
        return cls(num_classes, owned, owned, label, split)

    @classmethod
    def of_edges(cls, graph: Graph, relation: LinkRelation | None) -> Targets:
        """Returns a graph's edges, without added reverse edges.

        Args:
            graph: The graph. Its edges need no labels.
            relation: The relation of the edges, or None for all edges.
        """
        split = np.zeros(graph.num_edges, np.int8) if graph.edge_split is None else graph.edge_split
        label = np.full(graph.num_edges, -1) if graph.edge_labels is None else graph.edge_labels
        mask = split != REVERSE
        if relation is not None and graph.edge_types is not None:
            mask &= graph.edge_types == relation.number
        edges = np.flatnonzero(mask)
        positions = edges if graph.edge_positions is None else graph.edge_positions[edges].astype(np.int64)
        order = np.argsort(positions, kind="stable")
        edges = edges[order]
        return cls(
            num_classes=count_classes(label, graph.edge_class_names),
            ids=np.arange(len(edges)),
            rows=pairs_of(graph.csc, edges),
            label=label[edges],
            split=split[edges],
            positions=positions[order],
            features=take(graph.edge_features, edges),
            time=take(graph.edge_columns.get("time"), edges),
            relation=relation,
        )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def labelled(self) -> npt.NDArray[np.bool_]:  # [n]
        """Whether each row has a label."""
        return labelled(self.label)

    @property
    def end_times(self) -> Times:  # [n, 2]
        """The time of each row, once for each end. Ends without times see all edges."""
        time = np.full(len(self), NEVER) if self.time is None else self.time
        return np.repeat(time[:, None], 2, 1)

    def of_split(self, split: Split) -> npt.NDArray[np.int64]:  # [k] ascending
        """Returns the places of a split's labelled rows."""
        return np.flatnonzero(self.labelled & (self.split == split))

    def part(self, owned: Ids, num_nodes: int) -> Targets:
        """Returns the pairs into some nodes.

        Args:
            owned: [num_owned] global ids.
            num_nodes: Number of nodes of the graph.
        """
        is_owned = np.zeros(num_nodes, np.bool_)
        is_owned[owned] = True
        return self.take(np.flatnonzero(is_owned[self.rows[:, 1]]))

    def take(self, places: Ids) -> Targets:
        """Selects rows."""
        columns: dict[str, Any] = {name: take(getattr(self, name), places) for name in _ARRAYS}
        return replace(self, **columns)

    def with_inverse_edges(self, num_relations: int) -> Targets:
        """Returns the same rows, because inverse edges are no rows."""
        return self

    def describe(self) -> list[str]:
        """Returns a line about the labelled edges, if there are any."""
        if not self.labelled.any():
            return []
        counts = ", ".join(f"{len(self.of_split(part)):,} {name}" for name, part in SPLITS.items())
        return [
            f"edges: {np.count_nonzero(self.labelled):,} of {len(self):,} have a label ({counts}); labels are no inputs"
        ]

    def save(self, folder: Path) -> None:
        """Writes the arrays into `folder` atomically."""
        relation = None if self.relation is None else asdict(self.relation)
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        save_arrays(folder, arrays, {"num_classes": self.num_classes, "relation": relation})

    @classmethod
    def of_arrays(cls, arrays: dict[str, Any], meta: dict[str, Any]) -> Targets:
        """Restores the rows from the arrays and values of `save`."""
        rows = cls(
            num_classes=whole("num_classes", meta["num_classes"], 0, MAX_COUNT),
            relation=LinkRelation.of_plain(meta["relation"]),
            **{name: arrays.get(name) for name in _ARRAYS},  # type: ignore[arg-type]
        )
        for name in ("ids", "label", "split", "positions"):
            if len(getattr(rows, name)) != len(rows.rows):
                raise UserError(f"{name} has {len(getattr(rows, name))} rows, expected {len(rows.rows)}")
        if rows.rows.ndim != 2 or rows.rows.shape[1] != 2 or rows.rows.dtype.kind not in "iu":
            raise UserError("rows is not a table of integers with two columns")
        check_range("rows", rows.rows.ravel(), 0, _MAX_NODES)
        return rows


_ARRAYS = tuple(field.name for field in fields(Targets) if field.name not in ("num_classes", "relation"))


def count_outputs(links: Links | Targets | None) -> int:
    """Returns the number of outputs of a task's head per labelled pair, 0 without."""
    return links.num_classes if isinstance(links, Targets) else 0


def count_classes(label: Labels, names: object) -> int:
    """Counts classes or numbers to predict, like `Graph.num_classes`."""
    if label.ndim == 2:
        return int(label.shape[1])
    if label.dtype.kind == "f":
        return 1
    return int(label.max(initial=-1)) + 1 if names is None else len(names)  # type: ignore[arg-type]


def load_rows(folder: Path) -> Links | Targets:
    """Maps the rows that `Links.save` or `Targets.save` wrote, read-only."""
    arrays, meta = load_arrays(folder)
    if "label" not in arrays:
        return Links.load(folder)
    try:
        return Targets.of_arrays(arrays, meta)
    except KeyError as error:
        raise UserError(f"{folder} holds no {error.args[0]}") from error
    except (TypeError, ValueError) as error:
        raise UserError(f"{folder}: {error}") from error
