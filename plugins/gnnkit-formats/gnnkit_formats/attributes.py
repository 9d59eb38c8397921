"""Attributes of node and edge types, as PyG and DGL hold them, as fields of graphs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit.errors import UserError
from gnnkit.graph.features import features_of
from gnnkit.graph.graph import Graph
from gnnkit.graph.labels import check_present, unlabelled
from gnnkit.graph.schema import Relation, pack_tables
from gnnkit.graph.split import SPLITS, Split
from gnnkit.graph.times import ALWAYS, are_times, is_time, to_unit
from gnnkit.graph.types import Fields
from gnnkit.utils import checks
from gnnkit.utils.checks import Array, whole

MASKS = {f"{part}_{form}" for part in SPLITS for form in ("mask", "idx")}
EdgeType = tuple[str, str, str]  # source, name, destination


@dataclass(frozen=True, slots=True)
class AttributeNames:
    """Names of the attributes that become fields of a graph. The defaults are PyG's."""

    features: str = "x"
    labels: str = "y"
    coordinates: str = "pos"
    ids: str = "n_id"
    node_types: str = "node_type"
    weight: str = "edge_weight"
    edge_features: str = "edge_attr"
    edge_types: str = "edge_type"
    edge_labels: str = "edge_label"


@dataclass(frozen=True, slots=True)
class Attributes:
    """The attributes of one node or edge type."""

    form: str  # names in messages, with {} for the attribute, such as data.{}
    values: Mapping[str, Any]  # [count, ...] those that are not None
    count: int  # number of nodes or edges
    read: set[str] = field(default_factory=set)  # names that were read, and that the graph holds

    def shown(self, name: str) -> str:
        """Returns an attribute's name for messages."""
        return self.form.replace("{}", name)

    def array(self, name: str) -> Array | None:
        """Reads an attribute. Returns None if it is missing."""
        self.read.add(name)
        return checks.array(self.shown(name), self.values[name]) if name in self.values else None

    def row(self, name: str) -> Array | None:  # [count] or [count, 2 or more]
        """Reads an attribute, a single column as one dimension."""
        return None if (values := self.array(name)) is None else _as_row(values)

    def column(self, name: str) -> Array | None:  # [count, width]
        """Reads an attribute, one dimension as a column."""
        values = self.array(name)
        return values[:, None] if values is not None and values.ndim == 1 else values

    def numbers(self, name: str) -> Array | None:  # [count, width]
        """Reads a table of numbers that fit float32."""
        table = self.column(name)
        return None if table is None else features_of(self.shown(name), table, self.count)

    def find_times(self) -> dict[str, Array]:  # [count] each
        """Finds unread attributes with names of times and an integer for each row."""
        names = sorted(name for name in self.values.keys() - self.read if is_time(name))
        columns = {name: _as_row(checks.array(self.shown(name), self.values[name])) for name in names}
        return {name: rows for name, rows in columns.items() if are_times(rows, self.count)}

    def times(self) -> Array | None:  # [count]
        """Reads the attribute with times, if there is one."""
        times = self.find_times()
        if len(times) > 1:
            raise UserError(f"{' and '.join(map(self.shown, times))} hold times: remove all but one")
        self.read.update(times)
        return next(iter(times.values()), None)

    def split(self, column: int | None) -> npt.NDArray[np.int8]:  # [count]
        """Reads the split from masks or index arrays.

        Args:
            column: Column to use if the masks hold several splits.
        """
        pairs = ((f"{part}_mask", f"{part}_idx") for part in SPLITS)
        names = [next((name for name in pair if name in self.values), None) for pair in pairs]
        none = np.zeros(self.count, np.bool_)
        masks = [none if name is None else self._mask(name, column) for name in names]
        self.read.update(filter(None, names))
        return Split.of_masks(*masks)

    def _mask(self, name: str, column: int | None) -> npt.NDArray[np.bool_]:  # [count]
        """Reads a mask [count], one column of [count, splits], or row numbers."""
        values, shown = checks.array(self.shown(name), self.values[name]), self.shown(name)
        if values.ndim == 2:
            last = values.shape[1] - 1
            if column is None:
                raise UserError(
                    f"{shown} has shape {list(values.shape)}, with one split per column: choose one with split=0..{last}"
                )
            values = values[:, whole("split", column, 0, last)]
        if values.dtype in (np.bool_, np.uint8):  # older torch versions made uint8 masks
            if values.shape != (self.count,):
                raise UserError(f"{shown} has shape {list(values.shape)}, expected [{self.count}]")
            return values.astype(np.bool_)
        ids = checks.integers(shown, values)
        checks.check_range(shown, ids, 0, self.count)
        mask = np.bincount(ids, minlength=self.count) if len(ids) else np.zeros(self.count, np.int64)
        if mask.max(initial=0) > 1:
            raise UserError(f"{shown} names node {mask.argmax()} twice: masks must be bool, node ids distinct")
        return mask.astype(np.bool_)

    def types(self, name: str) -> Array | None:
        """Reads node or edge types. Returns None if all are equal."""
        types = self.array(name)
        return types if types is not None and (types != types.ravel()[:1]).any() else None

    def ranges(self, name: str) -> tuple[tuple[str, int], ...] | None:
        """Reads sorted types, as `to_homogeneous` of PyG and DGL returns them."""
        if (types := self.types(name)) is None:
            return None
        shown = self.shown(name)
        numbers = checks.integers(shown, types)
        checks.check_range(shown, numbers, 0, len(numbers))
        if (np.diff(numbers.astype(np.int64)) < 0).any():
            raise UserError(f"{shown}: nodes must be sorted by type: sort them or remove {shown}")
        return tuple((str(number), count) for number, count in enumerate(np.bincount(numbers).tolist()))


@dataclass(frozen=True, slots=True)
class TypedAttributes:
    """A graph's attributes by type, and its edges. Node types are concatenated."""

    nodes: Mapping[str, Attributes]  # by name
    edges: Mapping[EdgeType, Attributes]
    ends: Sequence[Any]  # [2, num_edges] of each edge type, as ids in the graph
    is_typed: bool  # whether types have names, or there is one of each

    @property
    def unread(self) -> set[str]:
        """The attributes that the graph does not hold, as named in messages."""
        return {rows.shown(name) for rows in self._every for name in rows.values.keys() - rows.read}

    @property
    def _every(self) -> list[Attributes]:
        return [*self.nodes.values(), *self.edges.values()]

    def build(self, **fields: Any) -> Graph:
        """Builds the graph of all edges, with their types and some fields."""
        num_nodes, kinds = sum(rows.count for rows in self.nodes.values()), list(self.edges)
        if self.is_typed:
            fields["node_types"] = tuple((name, rows.count) for name, rows in self.nodes.items())
            fields["edge_types"] = np.repeat(np.arange(len(kinds)), [rows.count for rows in self.edges.values()])
            fields["edge_type_names"] = ["-".join(kind) for kind in kinds]
            fields["relations"] = tuple(Relation(*kind) for kind in kinds)
        several = np.concatenate(self.ends, axis=1) if len(self.ends) > 1 else np.zeros((2, 0), np.int64)
        src, dst = self.ends[0] if len(self.ends) == 1 else several
        return Graph.from_edges(src, dst, num_nodes, **fields)

    def convert(self, column: int | None, names: AttributeNames) -> Graph:
        """Returns the graph of all attributes that can be read.

        Args:
            column: Column to use if masks hold several splits, or None.
            names: Names of the attributes.
        """
        masks = [np.shape(rows.values[name]) for rows in self._every for name in MASKS & rows.values.keys()]
        if column is not None and all(len(shape) != 2 for shape in masks):
            raise UserError(f"split={column}, but the graph holds no masks of several splits")
        fields = {**self._labels(names, column), **self._node_columns(names), **self._edge_columns(names)}
        fields |= self._edge_labels(names, column)
        times = {"node_time": self.nodes.values(), "edge_time": self.edges.values()}
        return self.build(**fields, **{name: _join_times(name, list(every)) for name, every in times.items()})

    def _labels(self, names: AttributeNames, column: int | None) -> Fields:
        """Reads labels and split of the predicted node type. Others have neither."""
        name = self._find_predicted(names.labels)
        rows, every = self.nodes[name], list(self.nodes.values())
        split, labels = rows.split(column), _read_labels(rows, names.labels)
        masks = sorted(rows.shown(mask) for mask in MASKS & rows.read)
        check_present(labels, split, rows.shown(names.labels), masks)
        labels_by_type, split_by_type = (
            [part if other is rows else None for other in every] for part in (labels, split)
        )
        return {"labels": _join(every, labels_by_type, unlabelled), "split": _join(every, split_by_type)}

    def _find_predicted(self, labels: str) -> str:
        """Returns the node type to predict: labelled and, if several are, with a split.

        Raises `UserError` if several remain. Without labels, it is the first type.
        """
        labelled = [name for name, rows in self.nodes.items() if labels in rows.values]
        split = [name for name in labelled if MASKS & self.nodes[name].values.keys()]
        candidates = split or labelled or list(self.nodes)[:1]
        if not candidates:
            raise UserError("HeteroData has no nodes")
        if len(candidates) > 1:
            raise UserError(
                f"HeteroData has labels of nodes of several types ({', '.join(candidates)}), of which one can be predicted: "
                f"del {self.nodes[candidates[-1]].shown(labels)}"
            )
        return candidates[0]

    def _node_columns(self, names: AttributeNames) -> Fields:
        """Reads features, and of a single type also coordinates, ids and types."""
        if self.is_typed:
            every = list(self.nodes.values())
            tables = [rows.numbers(names.features) for rows in every]
            features, feature_tables = pack_tables(tables, [rows.count for rows in every])
            return {"features": features, "feature_tables": feature_tables}
        (rows,) = self.nodes.values()
        place = rows.array(names.coordinates)
        if place is not None and place.shape[1:] not in ((2,), (3,)):
            rows.read.discard(names.coordinates)
            place = None
        ids, types = rows.array(names.ids), rows.ranges(names.node_types)
        features = rows.column(names.features)
        return {"features": features, "coordinates": place, "node_ids": ids, "node_types": types}

    def _edge_columns(self, names: AttributeNames) -> Fields:
        """Reads weights and features, and types that edges of one type have.

        Features are read only if all types have the same number of columns.
        """
        every = list(self.edges.values())
        tables = [rows.column(names.edge_features) for rows in every]
        present, fields = [table for table in tables if table is not None], {"weight": self.weights(names.weight)}
        if len(present) == len(tables) and len({table.shape[1:] for table in present}) == 1:
            fields["edge_features"] = _join(every, present)
        else:
            for rows in every:
                rows.read.discard(names.edge_features)
        return fields if self.is_typed else {**fields, "edge_types": every[0].types(names.edge_types)}

    def weights(self, name: str) -> Array | None:  # [num_edges]
        """Reads edge weights, 1 for edges of a type without. None: no type has any."""
        every = list(self.edges.values())
        return _join(every, [rows.row(name) for rows in every], lambda _, count: np.ones(count, np.float32))

    def _edge_labels(self, names: AttributeNames, column: int | None) -> Fields:
        """Reads labels of edges, and the masks that divide them."""
        every = list(self.edges.values())
        labels = [rows.row(names.edge_labels) for rows in every]
        splits = [None if part is None else rows.split(column) for rows, part in zip(every, labels, strict=True)]
        return {"edge_labels": _join(every, labels, unlabelled), "edge_split": _join(every, splits)}


def _join_times(name: str, every: Sequence[Attributes]) -> Array | None:
    """Reads times of all types. Rows of a type without times are always visible."""
    parts = [rows.times() for rows in every]
    if len(parts) > 1:
        parts = [None if times is None else to_unit(name, times, None) for times in parts]
    return _join(every, parts, lambda _, count: np.full(count, ALWAYS))


def _as_row(values: Array) -> Array:
    """Turns a single column into a one-dimensional array."""
    return values[:, 0] if values.shape[1:] == (1,) else values


def _read_labels(rows: Attributes, name: str) -> Array | None:
    """Reads node labels. Raises `UserError` for several graphs and for graph labels."""
    batch, labels = rows.array("batch"), rows.row(name)
    several = batch is not None and (batch != batch.ravel()[:1]).any()
    if several or (labels is not None and labels.shape[:1] != (rows.count,) and labels.size):
        shape = f"{rows.shown(name)} has shape {list(np.shape(labels))}"  # type: ignore[arg-type]
        what = f"{rows.shown('batch')} holds several graphs" if several else shape
        raise UserError(f"{what} for {rows.count} nodes: graph labels are not supported yet, only node labels")
    return labels


def _join(
    every: Sequence[Attributes], parts: Sequence[Array | None], default: Callable[[Array, int], Array] | None = None
) -> Array | None:  # [rows, ...]
    """Concatenates the rows of all types. Returns None if no type has any.

    Args:
        every: The types.
        parts: [count, ...] rows of each type, or None.
        default: Makes the rows of a type that has none, like those of another. If None,
            zeros.
    """
    if (like := next((part for part in parts if part is not None), None)) is None:
        return None
    make = default or (lambda like, count: np.zeros(count, like.dtype))
    rows = [make(like, one.count) if part is None else part for one, part in zip(every, parts, strict=True)]
    return rows[0] if len(rows) == 1 else np.concatenate(rows)


def warn_unread(reader: str, names: Iterable[str], *, has_split: bool = True) -> None:
    """Warns about attributes that the reader ignores.

    Raises `UserError` for unreadable times without a split, because a random split
    would mix past and future.

    Args:
        reader: The reader, for messages.
        names: Attributes as users write them, such as `edata['time']`.
        has_split: Whether the graph has masks or edges to predict. Data sets that are
            published with a split keep the default.
    """
    unread = sorted(names)
    times = [name for name in unread if is_time(name)]
    if times and not has_split:
        raise UserError(
            f"{reader}: {times[0]} holds times, which are not read, and a random split would mix past and future: give one "
            "integer for each node or edge, or train, val and test masks, or remove the attribute"
        )
    if unread:
        warnings.warn(f"{reader}: ignores unknown attributes: {', '.join(unread)}", stacklevel=4)
