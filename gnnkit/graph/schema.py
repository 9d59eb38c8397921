"""The graph's node and edge types, with each node type's feature table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, TypedDict, get_args

import numpy as np
import numpy.typing as npt

from gnnkit.errors import UserError
from gnnkit.graph.csc import CSC
from gnnkit.graph.features import Features, SparseFeatures
from gnnkit.graph.types import Floats, Ids, names_of, offsets_of
from gnnkit.utils.documents import Json
from gnnkit.utils.ranges import MAX_COUNT, one_of, whole

NodeTypes = tuple[tuple[str, int], ...]  # (name, number of nodes) per type, in the order of ids
FeatureKind = Literal["dense", "sparse", "learned", "none"]


@dataclass(frozen=True, slots=True)
class FeatureTable:
    """The features of one node type, as columns of `Graph.features`.

    If all types have the same width, they share the columns. Otherwise each type has
    separate columns, which are 0 in rows of other types. A type without features has
    kind `none` and either no columns, or one placeholder column of ones if other types
    have features. Rows of kind `learned` are trained embeddings without columns.
    """

    kind: FeatureKind
    width: int  # number of columns
    first: int = 0  # first column in `Graph.features`

    def __post_init__(self) -> None:
        one_of("feature_tables.kind", self.kind, get_args(FeatureKind))
        limits = {"learned": 0, "none": 1}
        whole("feature_tables.width", self.width, 0, limits.get(self.kind, MAX_COUNT))
        whole("feature_tables.first", self.first, 0, MAX_COUNT)

    @property
    def columns(self) -> slice:
        """The table's columns in `Graph.features`, as a slice."""
        return slice(self.first, self.first + self.width)


class Relation(NamedTuple):
    """An edge type with the node types at its ends, as in PyG.

    A named tuple, so it equals PyG's `(source, name, destination)` and can index a
    `HeteroData`. Two relations may share a name if their ends differ.

    Examples:
        >>> from gnnkit.graph import Relation
        >>> relation = Relation("author", "writes", "paper")
        >>> relation == ("author", "writes", "paper"), relation.edge_type
        (True, 'author-writes-paper')
    """

    source: str
    name: str
    destination: str

    @property
    def edge_type(self) -> str:
        """The relation's name in `Graph.edge_type_names`.

        An example is `author-writes-paper`.
        """
        return "-".join(self)


@dataclass(frozen=True, slots=True)
class Schema:
    """Node types with their id ranges and feature tables, and numbered edge types.

    The description of a heterogeneous graph that is stored with a trained model,
    without any of the graph's arrays. Node ids are consecutive within a type, so a type
    is a range of ids. A homogeneous graph has one unnamed range, one table and one
    relation.

    Examples:
        >>> from gnnkit.graph import Schema
        >>> schema = Schema((("author", 3), ("paper", 5)), ("author-writes-paper",))
        >>> schema.nodes("paper"), schema.several
        (slice(3, 8, None), True)
    """

    node_types: NodeTypes
    edge_types: tuple[str, ...]
    feature_tables: tuple[FeatureTable, ...] | None = None  # one per node type. None: unknown
    relations: tuple[Relation, ...] | None = None  # one per edge type. None: unknown

    @property
    def several(self) -> bool:
        """Whether there are several node types or several edge types.

        If not, every model can read the graph. Otherwise, a model must read types,
        unless `types=ignore`.
        """
        return len(self.node_types) > 1 or len(self.edge_types) > 1

    @property
    def type_sizes(self) -> tuple[int, ...]:  # [num_node_types]
        """Number of nodes of each type, in the order of ids, [num_node_types]."""
        return tuple(count for _, count in self.node_types)

    def nodes(self, name: str) -> slice:
        """Returns a node type's range of ids. Raises `UserError` for unknown names."""
        begin = 0
        for node_type, count in self.node_types:
            if node_type == name:
                return slice(begin, begin + count)
            begin += count
        raise UserError(f"node type {name!r} is none of {', '.join(name for name, _ in self.node_types)}")

    def as_plain(self) -> Json:
        """Returns all fields as plain values, which `of_plain` reads."""
        return asdict(self)

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any]) -> Schema:
        """Reads the plain values of a schema that this program wrote."""
        tables, relations = plain["feature_tables"], plain["relations"]
        return cls(
            tuple((name, count) for name, count in plain["node_types"]),
            tuple(plain["edge_types"]),
            None if tables is None else tuple(FeatureTable(**table) for table in tables),
            None if relations is None else tuple(Relation(*relation) for relation in relations),
        )

    def to_dict(self) -> Json:
        """Returns the JSON fields that are stored in addition to the type names.

        The table of a homogeneous graph is omitted, because it follows from the
        features.
        """
        keys, plain = ("feature_tables", "relations") if len(self.node_types) > 1 else ("relations",), self.as_plain()
        return {key: plain[key] for key in keys if plain[key] is not None}


class TypeFields(TypedDict):
    """The fields of `Graph` and `Schema` that `read_types` reads."""

    feature_tables: tuple[FeatureTable, ...] | None
    relations: tuple[Relation, ...] | None


def table_of(features: Features) -> FeatureTable:
    """Returns the table of a graph with one node type."""
    width = features.shape[1]
    kind: FeatureKind = "sparse" if isinstance(features, SparseFeatures) else "dense"
    return FeatureTable(kind if width else "none", width)


def read_types(
    plain: Mapping[str, Any], node_types: NodeTypes | None, edge_types: Sequence[str] | None, width: int
) -> TypeFields:
    """Reads feature tables and relations as fields of `Graph`.

    Tables that do not match the feature columns are dropped, because the features may
    have been replaced. Relations that do not match the type names are dropped too.

    Args:
        plain: `feature_tables` and `relations`, possibly from `Schema.to_dict`.
        width: The width of the graph's features.
    """
    tables, relations = plain.get("feature_tables"), plain.get("relations")
    return {
        "feature_tables": None if tables is None else _read_tables(tables, len(node_types or ((),)), width),
        "relations": None if relations is None else _read_relations(relations, dict(node_types or ()), edge_types),
    }


def _read_tables(entries: Iterable[Any], num_types: int, width: int) -> tuple[FeatureTable, ...] | None:
    tables = tuple(table if isinstance(table, FeatureTable) else FeatureTable(**table) for table in entries)
    return tables if len(tables) == num_types and max(table.columns.stop for table in tables) == width else None


def _read_relations(
    entries: Iterable[Iterable[str]], node_types: Mapping[str, int], edge_types: Sequence[str] | None
) -> tuple[Relation, ...] | None:
    relations = tuple(Relation(*relation) for relation in entries)
    ends = {end for source, _, destination in relations for end in (source, destination)}
    names = [relation.edge_type for relation in relations]
    return relations if names == list(edge_types or ()) and ends <= node_types.keys() else None


def node_types_of(values: Iterable[Iterable[object]] | None, num_nodes: int) -> NodeTypes | None:
    """Reads optional node types.

    Raises `UserError` for duplicate names, or if the numbers of nodes do not add up.
    """
    if values is None:
        return None
    types = tuple((name, count) for name, count in values)
    names_of("node_types", [name for name, _ in types])  # type: ignore[misc]
    counts = [count for _, count in types]
    if any(not isinstance(count, int) or count < 0 for count in counts) or sum(counts) != num_nodes:  # type: ignore[arg-type]
        raise UserError(f"node_types have {counts} nodes, expected numbers that add up to {num_nodes}")
    return types  # type: ignore[return-value]


def types_of_nodes(nodes: Ids, sizes: Sequence[int]) -> Ids:  # [num_nodes]
    """Returns the number of each node's type.

    Args:
        nodes: [num_nodes] global ids.
        sizes: [num_node_types] number of nodes of each type, in the order of ids.
    """
    return np.searchsorted(np.cumsum(sizes)[:-1], nodes, side="right")


def number_by_type(nodes: Ids, sizes: Sequence[int]) -> tuple[tuple[Ids, ...], Ids]:
    """Numbers nodes within their types, in their order.

    Args:
        nodes: [num_nodes] global ids.
        sizes: As for `types_of_nodes`.

    Returns:
        By type, the ascending positions of its nodes, and each node's number among
            those of its type [num_nodes].
    """
    types, numbers = types_of_nodes(nodes, sizes), np.empty(len(nodes), np.int64)
    places = tuple(np.flatnonzero(types == number) for number in range(len(sizes)))
    for positions in places:
        numbers[positions] = np.arange(len(positions))
    return places, numbers


def pack_tables(
    tables: Sequence[Floats | None], counts: Sequence[int]
) -> tuple[Features | None, tuple[FeatureTable, ...]]:
    """Combines the feature tables of all node types into rows of one width.

    Tables of the same width share columns. Otherwise each type has separate columns, so
    that the weight of a model's first layer contains one block per type.

    Args:
        tables: [count, width] rows per type, or None for a type without features.
        counts: Number of nodes per type.

    Returns:
        The rows [num_nodes, width], None if no type has features, and each type's
            table.
    """
    if all(table is None for table in tables):
        return None, tuple(FeatureTable("none", 0) for _ in tables)
    kinds: list[FeatureKind] = ["none" if table is None else "dense" for table in tables]
    pairs = zip(tables, counts, strict=True)
    rows = [np.ones((count, 1), np.float32) if table is None else table for table, count in pairs]
    widths = [table.shape[1] for table in rows]
    if len({*zip(kinds, widths, strict=True)}) == 1:
        return np.concatenate(rows), tuple(map(FeatureTable, kinds, widths))
    begins = np.cumsum([0, *widths])
    return _stack_columns(rows, begins), tuple(map(FeatureTable, kinds, widths, begins.tolist()))


def _stack_columns(tables: Sequence[Floats], begins: npt.NDArray[np.int64]) -> SparseFeatures:
    """Places tables side by side, at the column offsets `begins` [num_tables + 1]."""
    parts = [SparseFeatures.of(table.astype(np.float32, copy=False)) for table in tables]  # which stores no zeros
    counts = np.concatenate([np.diff(part.csr.indptr) for part in parts])
    columns = np.concatenate([part.csr.indices + first for part, first in zip(parts, begins, strict=False)])
    values = np.concatenate([part.values for part in parts])
    return SparseFeatures(CSC(offsets_of(counts), columns, values, int(begins[-1])))
