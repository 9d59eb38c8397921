"""The in-memory graph, with its readers and writers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from gnnkit.errors import UserError
from gnnkit.graph.csc import CSC, sort_edges
from gnnkit.graph.edge_columns import RULES, EdgeColumnRule, EdgeColumns
from gnnkit.graph.features import (
    Features,
    SparseFeatures,
    feature_arrays,
    node_features,
    normalized,
    optional_rows,
    read_features,
    read_missing_cells,
    rows_of,
)
from gnnkit.graph.labels import check_labelled, labelled, read_labels, settle_labels
from gnnkit.graph.schema import FeatureTable, NodeTypes, Relation, Schema, node_types_of, read_types, table_of
from gnnkit.graph.split import Split, TimeSplit, parts_of, random_split, warn_random_split
from gnnkit.graph.times import ALWAYS, Times, check_fields, read_time_fields
from gnnkit.graph.types import (
    Fields,
    Floats,
    Ids,
    Labels,
    distinct_ids,
    edge_types_of,
    names_of,
    narrowed_positions,
    node_ids_of,
    nodes_of,
    relation_names,
    set_fields,
    take,
)
from gnnkit.utils import checks
from gnnkit.utils.storage import load_arrays, save_arrays

EDGE_NAMES = "edge_feature_names", "edge_category_of"
NAME_FIELDS = (
    "class_names",
    "feature_names",
    "category_of",
    *EDGE_NAMES,
    "edge_type_names",
    "edge_class_names",
    "column_forms",
)  # fields that a saved graph stores as JSON
MARKS = "decimal comma", "decimal point"  # of numbers in text, in `Graph.column_forms`
TIME_FACTS = ("time_unit", "time_borders")  # further fields in JSON
HELD_OUT = {"val_edges": 2, "test_edges": 2, "val_negatives": None, "test_negatives": None}  # tables, and widths
_MAX_IMPLIED_NODES, _MAX_NODES_PER_EDGE = 1_000_000, 16  # an id beyond both limits is treated as a mistake
_ARRAYS = ("coordinates", *HELD_OUT, "node_ids", "missing", "node_time")  # optional arrays, edge columns excluded


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Graph:
    """A graph with node features, labels and splits, and with edge features.

    Node ids are 0..num_nodes-1, and edge ids are positions in `csc.indices`. The
    constructor checks shapes and values, and raises `UserError` with the position of
    the first invalid value. Models compute in float32, so features and weights beyond
    float32 are rejected. `split` accepts everything that `Split.of` reads. Contiguous
    arrays of the types below are not copied, not even memory-mapped ones.

    `labels` are the prediction targets, in one of three forms, which determine the
    supported tasks:

    - [num_nodes] int64: one class per node, -1 if unlabelled
    - [num_nodes, num_classes] bool: a set of classes per node
    - [num_nodes] or [num_nodes, numbers] floating: numbers, NaN if unlabelled

    `val_edges` and `test_edges` are (source, destination) pairs to predict. They need
    not be edges of `csc`. `val_negatives` and `test_negatives` are equally many other
    destinations for each of them, with which an evaluation compares the edge. If edges
    are split by time instead, they have one row per held-out edge, in the order of the
    edge list.

    `edge_positions` are the edges' positions in the original edge list. Default:
    positions in `csc`.

    `node_ids` are the user's ids: integers or text, such as UUIDs. Runs write them next
    to the predictions, with `class_names`, which are distinct. Default: 0, 1, ...

    `feature_names` and `edge_feature_names` are distinct. Runs store them, so that a
    trained model can match the columns of other data by name. Default: match by
    position.

    `category_of` names the text column that a one-hot feature encodes, and is "" for
    other features. `edge_category_of` does the same for edge features.

    `edge_types` are relation numbers, named by `edge_type_names`, by default 0, 1, ...
    Only relational models (`rgcn`, `rgat`, `simple_hgn`, `hgt`) distinguish relations;
    for these, samplers draw by relation. All other models treat edges alike.

    `node_types` are (name, number of nodes) pairs. A type's nodes have consecutive ids.
    `schema` returns each type's range of ids. `feature_tables` map node types to
    columns of `features`, and `relations` map edge types to node types. They are None
    if unknown, for example after features were replaced by others of a different width.

    `edge_labels` are what `task=edge_classification` and `task=edge_regression`
    predict, in the forms of `labels`. They are not features. `edge_split` divides the
    labelled edges, and `edge_class_names` name their classes.

    `missing` are the (node, column) pairs of empty table cells. `features` are 0 there,
    until a run imputes them as set by `features.fill`.

    `edge_time` and `node_time` are integers, which no model reads as features. They are
    dates since 1970 if there is a `time_unit`. The lowest int64 means always visible,
    and the highest means never visible, because the time is missing. A reverse edge
    copies its edge's time, and an added loop is always visible.

    `time_borders` are the times of the first validation and the first test edge, if
    edges are split by time. `column_forms` tell how the cells of some features were
    written, such as `dates: NAME`.

    A graph is immutable, and its methods return new graphs. Create one with
    `from_tables`, `from_edges`, or the method named after your library. Load and save
    it with `load` and `save`.

    Examples:
        >>> from gnnkit.graph import Graph
        >>> graph = Graph.from_edges(
        ...     src=[0, 1, 2], dst=[1, 2, 3], features=[[1.0], [2.0], [3.0], [4.0]],
        ...     labels=[0, 1, 0, 1], split=["train", "train", "val", "test"],
        ... )
        >>> graph
        Graph(4 nodes, 3 edges, 1 features, 2 classes, 2 train, 1 val, 1 test)
        >>> graph.csc.indices[graph.csc.indptr[2] : graph.csc.indptr[3]]  # edges into 2
        array([1], dtype=int32)
    """

    csc: CSC
    features: Features  # [num_nodes, width] finite
    labels: Labels  # classes, sets of classes, or numbers
    split: npt.NDArray[np.int8]  # [num_nodes] values of `Split`; nodes in a split are labelled
    edge_features: Floats | None = None  # [num_edges, edge_width] finite
    coordinates: Floats | None = None  # [num_nodes, 2 or 3] finite
    class_names: tuple[str, ...] | None = field(default=None, kw_only=True)  # [num_classes]
    edge_positions: Ids | None = field(default=None, kw_only=True)  # [num_edges] int32 or int64
    val_edges: Ids | None = field(default=None, kw_only=True)  # [num_val, 2] int64
    test_edges: Ids | None = field(default=None, kw_only=True)  # [num_test, 2] int64
    val_negatives: Ids | None = field(default=None, kw_only=True)  # [num_val, k] int64 destinations
    test_negatives: Ids | None = field(default=None, kw_only=True)  # [num_test, k] int64 destinations
    node_ids: npt.NDArray[Any] | None = field(default=None, kw_only=True)  # [num_nodes] whole numbers or text
    feature_names: tuple[str, ...] | None = field(default=None, kw_only=True)  # [width]
    category_of: tuple[str, ...] | None = field(default=None, kw_only=True)  # [width] a text column, or ""
    edge_feature_names: tuple[str, ...] | None = field(default=None, kw_only=True)  # [edge_width]
    edge_category_of: tuple[str, ...] | None = field(default=None, kw_only=True)  # [edge_width] a text column, or ""
    edge_types: Ids | None = field(default=None, kw_only=True)  # [num_edges] int16 relation of each edge
    edge_type_names: tuple[str, ...] | None = field(default=None, kw_only=True)  # [num_relations]
    node_types: NodeTypes | None = field(default=None, kw_only=True)  # name and number of nodes of each type
    feature_tables: tuple[FeatureTable, ...] | None = field(default=None, kw_only=True)  # one per node type
    relations: tuple[Relation, ...] | None = field(default=None, kw_only=True)  # [num_relations]
    missing: Ids | None = field(default=None, kw_only=True)  # [num_missing, 2] int64 node and column
    edge_labels: Labels | None = field(default=None, kw_only=True)  # [num_edges, ...] in a form of `labels`
    edge_split: npt.NDArray[np.int8] | None = field(default=None, kw_only=True)  # [num_edges] of `Split`, or REVERSE
    edge_class_names: tuple[str, ...] | None = field(default=None, kw_only=True)  # [num_edge_classes]
    edge_time: Times | None = field(default=None, kw_only=True)  # [num_edges]
    node_time: Times | None = field(default=None, kw_only=True)  # [num_nodes]
    time_unit: str | None = field(default=None, kw_only=True)  # s, ms, us or ns of dates. None: plain numbers
    time_borders: tuple[int, int] | None = field(default=None, kw_only=True)  # of validation and test edges
    column_forms: tuple[str, ...] | None = field(default=None, kw_only=True)  # of features of nodes or edges

    def __post_init__(self) -> None:
        self._check({item.name for item in fields(self)})

    def evolve(self, **changes: object) -> Graph:
        """Returns a graph with some fields replaced, like `dataclasses.replace`.

        Checks the new values and their rules with other fields. Unchanged fields were
        checked when this graph was created, so they are not read again.

        Examples:
            >>> from gnnkit.graph import Graph
            >>> graph = Graph.from_edges([0, 1], [1, 2])
            >>> graph.evolve(labels=[0, 1, 1], class_names=("a", "b")).num_classes
            2
        """
        return self._with_changes(changes, frozenset())

    def derive(self, **changes: object) -> Graph:
        """Like `evolve`, for node and edge features that come from this graph.

        They may be in another order or form, and are not read to check them again.
        """
        return self._with_changes(changes, _ROWS & changes.keys())

    def _with_changes(self, changes: Fields, valid_fields: frozenset[str]) -> Graph:
        graph, new = copy(self), set(changes)
        set_fields(graph, **changes)
        if graph.num_nodes != self.num_nodes:
            new, valid_fields = {item.name for item in fields(self)}, frozenset()
        elif graph.num_edges != self.num_edges:
            new |= _EDGE_FIELDS
            valid_fields &= changes.keys()
        graph._check(new, valid_fields)
        return graph

    def _check(self, names: Collection[str], valid_fields: frozenset[str] = frozenset()) -> None:
        """Reads some fields, and checks their rules with other fields.

        Raises `UserError` for the first broken rule.

        Args:
            names: The fields.
            valid_fields: Those that are not read, because their values are valid.
        """
        for reads, check in _CHECKS:
            if any(name in names for name in reads) and not valid_fields.issuperset(reads):
                check(self)

    def _check_csc(self) -> None:
        n = self.csc.num_nodes
        if self.csc.num_sources != n:
            raise UserError(f"a graph's edges join its own nodes, got {self.csc.num_sources} sources for {n} nodes")
        if self.csc.weight is not None and self.csc.weight.itemsize > 4:  # CSC checks float32
            checks.check_finite("weight", self.csc.weight, bound=checks.FLOAT32_MAX)

    def _check_labels(self) -> None:
        names = names_of("class_names", self.class_names)
        labels = read_labels(self.labels, self.num_nodes, None if names is None else len(names))
        split = Split.of(self.split, self.num_nodes)
        check_labelled(labels, split, self.node_ids)
        set_fields(self, labels=labels, split=split, class_names=names)

    def _check_coordinates(self) -> None:
        coordinates = optional_rows("coordinates", self.coordinates, self.num_nodes)
        if coordinates is not None and coordinates.shape[1] not in (2, 3):
            raise UserError(f"coordinates have {coordinates.shape[1]} dimensions, expected 2 or 3")
        set_fields(self, coordinates=coordinates)

    def __repr__(self) -> str:
        """Returns the graph's sizes on one line."""
        sizes = (f"{self.num_nodes:,} nodes", f"{self.num_edges:,} edges", f"{self.features.shape[1]:,} features")
        splits = (f"{count:,} {name}" for name, count in self.split_sizes.items())
        return f"Graph({', '.join([*sizes, self.label_summary, *splits])})"

    @property
    def label_summary(self) -> str:
        """Number of classes, or of numbers to predict, as text such as `2 classes`."""
        forms = ("number to predict", "numbers to predict") if self.labels.dtype.kind == "f" else ("class", "classes")
        return f"{self.num_classes} {forms[self.num_classes != 1]}"

    @property
    def split_sizes(self) -> dict[str, int]:
        """Number of nodes in train, val and test, by these names."""
        return {part.name.lower(): int(np.count_nonzero(self.split == part)) for part in Split if part}

    @property
    def is_split(self) -> bool:
        """Whether nodes or edges are divided into training, validation and test.

        If not, training needs a split first, from `draw_split`, `split_by_time` or
        `dataset.split`.
        """
        of_edges = self.edge_split is not None and bool((self.edge_split > Split.NONE).any())
        return of_edges or bool(self.split.any()) or self.time_borders is not None

    @property
    def has_undivided_edges(self) -> bool:
        """Whether edges have labels but are in no split, whatever the nodes' split."""
        edges, split = self._labelled_edges(), self.edge_split
        if edges is None or split is None or self.time_borders is not None:
            return False
        return bool(edges.any() and not (split > Split.NONE).any())

    def _check_columns(self) -> None:
        """Raises `UserError` if column names do not match the columns."""
        edge_width = 0 if self.edge_features is None else self.edge_features.shape[1]
        for name, width in (("category_of", self.features.shape[1]), ("edge_category_of", edge_width)):
            if (texts := getattr(self, name)) is not None and len(texts) != width:
                raise UserError(f"{name} has {len(texts)} names, expected {width}")
        set_fields(
            self,
            feature_names=names_of("feature_names", self.feature_names, self.features.shape[1]),
            edge_feature_names=names_of("edge_feature_names", self.edge_feature_names, edge_width),
        )

    def _check_relations(self) -> None:
        """Raises `UserError` if edge types do not match their names."""
        names = names_of("edge_type_names", self.edge_type_names)
        types = edge_types_of(self.edge_types, self.num_edges, names)
        set_fields(self, edge_types=types, edge_type_names=relation_names(types, names))

    def _check_edge_labels(self) -> None:
        """Raises `UserError` if labels of edges match neither names nor split."""
        names, labels = names_of("edge_class_names", self.edge_class_names), self.edge_labels
        if labels is None and self.edge_split is not None:
            raise UserError("edge_split needs edge_labels: give these too, or remove it")
        if labels is None:
            set_fields(self, edge_class_names=None)
            return
        split = np.zeros(self.num_edges, np.int8) if self.edge_split is None else self.edge_split
        set_fields(self, edge_split=split)
        if names is not None and labels.ndim == 1:
            checks.check_range("edge_labels", labels, -1, len(names))
        set_fields(self, edge_class_names=names)
        try:
            check_labelled(labels, np.maximum(split, Split.NONE))
        except UserError as error:
            raise UserError(f"edges: {error}".replace("node", "edge")) from error

    def _check_types(self) -> None:
        """Drops feature tables and relations that do not match the graph."""
        plain = {"feature_tables": self.feature_tables, "relations": self.relations}
        set_fields(self, **read_types(plain, self.node_types, self.edge_type_names, self.features.shape[1]))

    @classmethod
    def of(cls, value: object) -> Graph:
        """Returns `value` if it is a `Graph`, or converts a PyG or DGL graph.

        Functions that accept a user's graph call it. Raises `UserError` for anything
        else, with the method that reads a NetworkX or SciPy graph, because these need
        arguments.
        """
        if isinstance(value, Graph):
            return value
        from gnnkit_formats import dgl, pyg

        if pyg.is_pyg(value):
            return cls.from_pyg(value)
        if dgl.is_dgl(value):
            return cls.from_dgl(value)
        ways = {"from_networkx": hasattr(value, "is_directed"), "from_scipy": hasattr(value, "tocoo")}
        way = next((f": Graph.{name} reads it" for name, fits in ways.items() if fits), "")
        type_name = type(value).__name__
        raise UserError(f"expected a gnnkit Graph, a torch_geometric Data or a DGLGraph, got {type_name}{way}")

    @classmethod
    def from_edges(
        cls,
        src: npt.ArrayLike,  # [num_edges]
        dst: npt.ArrayLike,  # [num_edges]
        num_nodes: int | None = None,
        *,
        one_class: bool = False,
        threads: int | None = None,
        **fields: Unpack[EdgeListFields],
    ) -> Graph:
        """Builds the graph of the edges `src[i] -> dst[i]`. `edge_positions` store i.

        Args:
            src: [num_edges] each edge's source. Parallel edges and loops are kept.
            dst: [num_edges] each edge's destination.
            num_nodes: Number of nodes. Default: the number of feature rows, or the
                largest id plus one. This id must be below max(1,000,000, 16 num_edges).
            one_class: Accept labels -1 and 1 without 0, as unlabelled and one class.
            threads: Threads that sort. Default: all available cores.
            **fields: Features, labels, weights and other fields of `EdgeListFields`.
        """
        values: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
        if unknown := values.keys() - EdgeListFields.__annotations__:
            raise TypeError(f"Graph.from_edges() got an unexpected keyword argument {min(unknown)!r}")
        values |= read_time_fields(values)
        src, dst = checks.ids("src", src), checks.ids("dst", dst)
        num_nodes = count_nodes(src, dst, values.get("features")) if num_nodes is None else num_nodes
        columns = EdgeColumns.read(values, len(src))
        csc, order = sort_edges(src, dst, num_nodes, num_nodes, True, threads)
        columns = EdgeColumns({**columns.take(order), "position": narrowed_positions(order)})
        defaults = {"features": np.empty((num_nodes, 0), np.float32), "labels": np.full(num_nodes, -1)}
        values = {**defaults, "split": np.zeros(num_nodes, np.int8), **values}
        values |= {name: _READ_FIELDS[name](value) for name, value in values.items() if name in _READ_FIELDS}
        if not one_class:
            values["labels"] = settle_labels(checks.array("labels", values["labels"]), values.get("class_names"))
            if "edge_labels" in values and "edge_class_names" not in values:
                columns["label"] = settle_labels(columns["label"])
        names = {name: values.pop(name, None) for name in ("weight", *EDGE_NAMES)}
        graph = cls(csc.weighted(columns.get("weight")), **{**values, **columns.without("features").fields_of(cls)})
        return graph.derive(edge_features=columns.get("features"), **{name: names[name] for name in EDGE_NAMES})

    @classmethod
    def from_pyg(cls, data: object, *, split: int | None = None, val: object = None, test: object = None) -> Graph:
        """Converts a `torch_geometric.data.Data` or `HeteroData`.

        Reads `edge_index` and, if present, `x`, `y`, `edge_weight`, `edge_attr`, `pos`
        of 2 or 3 dimensions, `n_id` as `node_ids`, times of nodes or edges (`time`,
        `edge_time`, `timestamp`, ...), and the split. A `TemporalData` becomes a graph
        of its events. A split is a mask
        (`train_mask` [num_nodes] bool), a column of masks (`train_mask` [num_nodes,
        splits]) or node ids (`train_mask` or `train_idx`). All other attributes are
        listed in a warning.

        Edges are sorted as in the CSC, and `edge_positions` store their positions in
        `edge_index`. Raises `UserError` with the attribute's name, also for unsupported
        ones: graph labels.

        `edge_label` [num_edges] are the labels of the edges in `edge_index`. Masks of
        edges divide them: those of the edge type in a `HeteroData`, and those of a
        `Data` without `y`.

        The types of a `HeteroData` become `node_types` and `edge_types`, in the same
        order. The labelled node type is predicted; if several are labelled, the one
        with a split. If widths of `x` differ, each node type gets separate columns, and
        a type without `x` gets a column of ones. `edge_type` of a `Data` is read too.

        Args:
            data: Graph with an `edge_index` [2, num_edges] per edge type.
            split: Column to use if masks hold several splits, from 0.
            val: Second graph of `RandomLinkSplit`. `val_edges` are its positive edges,
                in a `HeteroData` those of one edge type. Negative pairs are not read,
                because `task=link_prediction` draws them.
            test: Third graph of `RandomLinkSplit`, for `test_edges`.
        """
        from gnnkit_formats.pyg import from_pyg

        return from_pyg(data, split, val, test)

    @classmethod
    def from_dgl(
        cls,
        graph: object,
        *,
        features: str = "feat",
        labels: str = "label",
        weight: str = "weight",
        edge_features: str = "feat",
        split: int | None = None,
        edge_label: str | None = None,
    ) -> Graph:
        """Converts a homogeneous `dgl.DGLGraph`.

        Reads the named fields if present, and the split from `train_mask`, `val_mask`
        and `test_mask` like `from_pyg`, and times. A subgraph's ids in its parent graph
        become `node_ids`. All other fields are listed in a warning.

        Args:
            graph: Graph of one node type and one edge type.
            features: Name in `ndata`.
            labels: Name in `ndata`.
            weight: Name in `edata`.
            edge_features: Name in `edata`.
            split: Column to use if masks hold several splits, from 0.
            edge_label: Name in `edata` of labels of edges, which masks in `edata`
                divide. Default: edges have no labels.
        """
        from gnnkit_formats.dgl import from_dgl

        return from_dgl(graph, features, labels, weight, edge_features, split, edge_label)

    @classmethod
    def from_networkx(
        cls,
        graph: object,
        *,
        features: str | Sequence[str] | None = None,
        label: str | None = None,
        split: str | None = None,
        weight: str | None = None,
        edge_features: str | Sequence[str] | None = None,
        missing: Sequence[str | float] | None = None,
        edge_label: str | None = None,
        time: str | Sequence[str] | None = None,
    ) -> Graph:
        """Converts a NetworkX graph. `node_ids` are the nodes, in their order.

        An undirected edge becomes two edges. Parallel edges are kept. Attributes are
        read like columns of `from_tables`, and unused ones are listed in a warning.

        Args:
            graph: `Graph`, `DiGraph`, `MultiGraph` or `MultiDiGraph`.
            features: Node attributes: numbers, lists of numbers, dates, or categories.
            label: Node attribute: class number, class name or decimal fraction, None if
                unlabelled.
            split: Node attribute: train, val, test, none.
            weight: Edge attribute.
            edge_features: Edge attributes like `features`, which every edge must have.
            missing: Words for missing values, as in `from_tables`.
            edge_label: Edge attribute like `label`, for tasks on labelled edges.
            time: Attributes of times, as in `from_tables`.

        Examples:
            >>> import networkx
            >>> from gnnkit.graph import Graph
            >>> graph = Graph.from_networkx(networkx.path_graph(["a", "b", "c"]))
            >>> graph.num_edges, graph.node_ids.tolist()
            (4, ['a', 'b', 'c'])
        """
        from gnnkit_formats.networkx import from_networkx

        return from_networkx(graph, features, label, split, weight, edge_features, missing, edge_label, time)

    @classmethod
    def from_scipy(cls, matrix: object, **fields: object) -> Graph:
        """Converts a SciPy adjacency matrix of any sparse format.

        The stored entry [i, j] becomes an edge i -> j, weighted by its value unless all
        values are 1.

        Args:
            matrix: [num_nodes, num_nodes] sparse array or matrix.
            **fields: Features, labels, split and other fields, as in `from_edges`.

        Examples:
            >>> import scipy.sparse
            >>> from gnnkit.graph import Graph
            >>> Graph.from_scipy(scipy.sparse.csr_array([[0, 1], [0, 0]])).csc.indices
            array([0], dtype=int32)
        """
        from gnnkit_formats.scipy import from_scipy

        return from_scipy(matrix, **fields)

    @classmethod
    def from_tables(
        cls,
        edges: Any,
        nodes: Any = None,
        *,
        src: str = "src",
        dst: str = "dst",
        weight: str | None = None,
        edge_type: str = "type",
        id: str = "id",
        label: str = "label",
        split: str = "split",
        features: Any = None,
        edge_features: Sequence[str] | None = None,
        missing: Sequence[str | float] | None = None,
        duplicates: str = "keep",
        bipartite: bool | None = None,
        edge_label: str | None = None,
        time: str | Sequence[str] | None = None,
    ) -> Graph:
        """Converts pandas or polars data frames, or pyarrow tables.

        Nodes are numbered in table order, and `node_ids` store their ids. Without a
        node table, the distinct ids of edges are the nodes: integers in ascending
        order, text by code point.

        Ids are 64-bit integers, floating-point integers below 2^53, text or UUIDs.
        Surrounding blanks are ignored. Text matches a number if it is written the same
        way, so `007` is not 7. The index columns of a data frame are not features,
        unless they are named.

        Numbers in text, such as "1,5", "$1" and "10%", are parsed, and dates become
        seconds since 1970 (durations become seconds). A warning lists these columns.
        Columns are float64 if float32 would change an integer, or round by more than
        1e-5 of the column's range.

        This is the reader for data with names: it parses ids, class names, categories
        and dates, and stores the names, so that a trained model can be applied to
        tables with other rows. Raises `UserError` with table, column and row of the
        first invalid cell.

        Args:
            edges: One row per edge.
            nodes: One row per node, or None.
            src: Column of `edges` with the source's id.
            dst: Column of `edges` with the destination's id.
            weight: Column of `edges`. Default: `weight`, if it exists.
            edge_type: Optional column of `edges`: name or number of a relation.
            id: Column of `nodes`: integers, text or UUIDs.
            label: Optional column of `nodes`: class numbers, class names or decimal
                fractions, empty if unlabelled.
            split: Optional column of `nodes`: train, val, test, none. Or, if there is
                none, masks in columns `train_mask`, `val_mask` and `test_mask`.
            features: Columns of `nodes` with numbers, lists of numbers, dates or
                categories, or an array [num_nodes, width]. Default: all other columns.
            edge_features: Columns of `edges` like `features`, without missing cells.
                Default: all other columns.
            missing: Words for missing values in text, and numbers for those in all
                columns. Case and surrounding blanks are ignored. Default: `#N/A`, `-`,
                `<NA>`, `?`, `\\N`, `missing`, `n/a`, `NA`, `nan`, `nil`, `none`,
                `null`, `unknown`. An empty cell is always missing.
            duplicates: Treatment of edges with the same ends and type. `keep` keeps
                them as parallel edges. `refuse` raises `UserError`. `first` keeps the
                first row, also of nodes with the same id. `sum` and `mean` merge the
                edges' weights and features, where `sum` counts unweighted edges as 1.
                All other settings than `first` reject nodes with the same id.
            bipartite: Whether sources and destinations are two node types, whose ids
                are separate, and `nodes` is None. Default: no, but an error for integer
                ids of columns that name different things, such as userId and movieId.
            edge_label: Column of `edges` with labels like `label`, for
                `task=edge_classification` and `task=edge_regression`. A column `split`
                of `edges` then divides the edges. Default: edges have no labels.
            time: Column of times in `edges`, `nodes` or both, or one name for each:
                integers, whole numbers or dates. Default: a column of integers or dates
                that is named `time`, `timestamp`, `t` or similarly. `[]` reads none.

        Examples:
            >>> import pandas
            >>> from gnnkit.graph import Graph
            >>> people = pandas.DataFrame(
            ...     {"id": ["ann", "bob"], "age": [30, 40], "label": ["cook", "smith"]}
            ... )
            >>> knows = pandas.DataFrame({"src": ["ann"], "dst": ["bob"]})
            >>> graph = Graph.from_tables(knows, people)
            >>> graph.feature_names, graph.class_names, graph.node_ids.tolist()
            (('age',), ('cook', 'smith'), ['ann', 'bob'])
        """
        from gnnkit_formats import table_graph, tables

        names = table_graph.TableNames((src, dst), weight or "weight", edge_type, edge_label, None, id, label, split)
        required = [src, dst, *filter(None, (weight, edge_label))]
        options = features, edge_features, missing, duplicates, bipartite, time
        return tables.from_tables(edges, nodes, names, required, *options)

    from_pandas = from_tables
    from_polars = from_tables

    @classmethod
    def from_ogb(cls, folder: str | Path, *, split: str | None = None, add_inverse_edge: bool | None = None) -> Graph:
        """Reads an OGB node data set, such as `dataset/ogbn_arxiv`.

        Reads the files in `raw`, `split` and `mapping` without the package `ogb`.
        `edge_positions` are positions in the `edge_index` that `ogb` returns.

        Args:
            folder: Folder that contains `raw` and `split`.
            split: Folder in `split`. Default: the only one.
            add_inverse_edge: Add each edge's reverse. Default: as `ogb` does for
                this data set.
        """
        from gnnkit_formats.ogb import from_ogb

        return from_ogb(Path(folder), split, add_inverse_edge)

    @classmethod
    def load(cls, folder: str | Path) -> Graph:
        """Loads a saved graph as read-only memory maps.

        Every value is checked once. Raises `UserError` with the file and position.

        Examples:
            >>> from gnnkit.graph import Graph
            >>> Graph.from_edges([0, 1], [1, 2]).save("graph")
            >>> Graph.load("graph").num_edges
            2
        """
        folder = Path(folder)
        arrays, meta = load_arrays(folder)
        columns = EdgeColumns.of_arrays(arrays)
        try:
            csc = CSC(arrays["indptr"], arrays["indices"], columns.get("weight"))
            return cls(csc, read_features(arrays), arrays["labels"], arrays["split"], **_stored_fields(arrays, meta))
        except KeyError as error:
            raise UserError(f"{folder} holds no {error.args[0]}") from error
        except ValueError as error:
            raise UserError(f"{folder}: {error}") from error

    @classmethod
    def trusted(cls, folder: Path, *, features: bool = True) -> Graph:
        """Memory-maps a graph that gnnkit has written, without checking its values.

        Files larger than memory stay on disk. Native code checks each edge when it
        reads it.

        Args:
            features: Whether to load the features. Otherwise their width is 0.
        """
        arrays, meta = load_arrays(folder)
        graph, indptr = cls.__new__(cls), arrays["indptr"]
        csc = CSC.trusted(indptr, arrays["indices"], arrays.get("weight"), len(indptr) - 1)
        values = {**_stored_fields(arrays, meta), "csc": csc, "labels": arrays["labels"], "split": arrays["split"]}
        values["node_types"] = node_types_of(values["node_types"], len(indptr) - 1)
        if features:
            values["features"] = read_features(arrays)
        else:
            values |= dict.fromkeys(("feature_names", "category_of", "missing"))
            values["features"] = np.empty((len(indptr) - 1, 0), np.float32)
        set_fields(graph, **values)
        graph._check_types()
        return graph

    def save(self, folder: str | Path) -> None:
        """Writes the graph atomically to `folder`, with one .npy file per array.

        A graph that was saved there before is replaced.
        """
        arrays = {name: getattr(self, name) for name in ("labels", "split", *_ARRAYS)}
        arrays |= {"indptr": self.csc.indptr, "indices": self.csc.indices}
        arrays |= {**feature_arrays(self.features), **self.edge_columns.arrays()}
        save_arrays(Path(folder), arrays, stored_facts(self))

    @property
    def num_nodes(self) -> int:
        return self.csc.num_nodes

    @property
    def num_edges(self) -> int:
        return self.csc.num_edges

    @property
    def edge_columns(self) -> EdgeColumns:
        """The edge columns that are present, [num_edges, ...] each.

        These are weights, features, relations, labels, split, times and positions.
        """
        return EdgeColumns.of(self)

    def with_edges(self, csc: CSC, columns: EdgeColumns) -> Graph:
        """Returns the same nodes with other edges.

        Args:
            csc: In-edges of all nodes, unweighted.
            columns: [num_edges] values of these edges, including weights.
        """
        return self.evolve(csc=csc.weighted(columns.get("weight")), **columns.fields_of(Graph))

    def select_edges(self, csc: CSC, columns: EdgeColumns, **changes: object) -> Graph:
        """Like `with_edges`, for columns with values from this graph's edges.

        Args:
            csc: Every node's in-edges, unweighted.
            columns: [num_edges] values from this graph's edges, which may repeat.
            **changes: Further fields, as for `derive`.
        """
        return self.derive(csc=csc.weighted(columns.get("weight")), **columns.fields_of(Graph), **changes)

    @property
    def num_classes(self) -> int:
        """Number of classes, or of numbers to predict.

        Classes are counted by `class_names`, or by the largest label.
        """
        if self.labels.ndim == 2:
            return int(self.labels.shape[1])
        if self.labels.dtype.kind == "f":
            return 1
        return int(self.labels.max(initial=-1)) + 1 if self.class_names is None else len(self.class_names)

    @property
    def whole_features(self) -> Features:
        """The features, [num_nodes, width].

        Unlike the field, raises `UserError` if any cells are missing, because they
        would be read as 0.
        """
        if self.missing is not None:
            raise UserError(f"features have {len(self.missing):,} empty cells (Graph.missing): fill these first")
        return self.features

    @property
    def schema(self) -> Schema:
        """The graph's node types, relations and feature tables.

        A graph without types has one node type and one edge type, both named "". Models
        for heterogeneous graphs are created from it.
        """
        node_types, edge_types = self.node_types or (("", self.num_nodes),), self.edge_type_names or ("",)
        tables = self.feature_tables
        if tables is None and len(node_types) == 1:
            tables = (table_of(self.features),)
        return Schema(node_types, edge_types, tables, self.relations)

    @property
    def num_relations(self) -> int:
        """Number of relations, 1 without edge types."""
        return 1 if self.edge_type_names is None else max(len(self.edge_type_names), 1)

    @property
    def type_sizes(self) -> tuple[int, ...] | None:  # [num_node_types]
        """Number of nodes of each type, in the order of ids. If None, one type."""
        return None if self.node_types is None else self.schema.type_sizes

    @property
    def labelled(self) -> npt.NDArray[np.bool_]:  # [num_nodes]
        """Which nodes are labelled. An empty set of classes is a label."""
        return labelled(self.labels)

    def symmetrize(self, *, threads: int | None = None) -> Graph:
        """Adds missing reverse edges, like `CSC.symmetrize`.

        A reverse edge copies the original edge's features, type and position, but not
        its label, so that no task predicts it. Its type then leads in both directions,
        so the result has no `relations`.

        Examples:
            >>> from gnnkit.graph import Graph
            >>> Graph.from_edges([0, 1], [1, 2]).symmetrize().num_edges
            4
        """
        csc, order = self.csc.weighted(None).symmetrize(threads=threads)
        ends = [np.repeat(np.arange(self.num_nodes), np.diff(edges.indptr)) for edges in (csc, self.csc)]
        columns = self.edge_columns.take(order).without_labels(ends[0] != ends[1][order])
        return self.select_edges(csc, columns, relations=None)

    def renumber(self, order: npt.ArrayLike, *, threads: int | None = None) -> Graph:
        """Reorders the nodes.

        `edge_positions` still refer to the original edge list. The result has no
        `node_types`, because the nodes of a type may no longer be consecutive.

        Args:
            order: [num_nodes] permutation of the nodes, the new node 0 first.
            threads: Threads that sort. Default: all available cores.
        """
        order = checks.int64s("order", order, self.num_nodes)
        checks.check_range("order", order, 0, self.num_nodes)
        number = np.full(self.num_nodes, -1, order.dtype)
        number[order] = np.arange(self.num_nodes)
        if np.any(number < 0):
            raise UserError(f"order does not contain node {number.argmin()}")
        dst = np.repeat(number, np.diff(self.csc.indptr))
        csc, edges = sort_edges(number[self.csc.indices], dst, self.num_nodes, self.num_nodes, True, threads)
        columns = self.edge_columns.select(edges)
        return self.select_edges(
            csc,
            columns,
            features=self.features[order],
            labels=self.labels[order],
            split=self.split[order],
            coordinates=take(self.coordinates, order),
            **{name: None if (nodes := getattr(self, name)) is None else number[nodes] for name in HELD_OUT},
            node_ids=take(self.node_ids, order),
            node_types=None,
            feature_tables=None,
            relations=None,
            missing=None if self.missing is None else np.stack([number[self.missing[:, 0]], self.missing[:, 1]], 1),
            node_time=take(self.node_time, order),
        )

    def draw_split(self, shares: Sequence[float], seed: int = 0) -> Graph:
        """Draws a random split of the labelled nodes, stratified by class.

        Sets of classes and numbers are split without regard to their values. Raises
        `UserError` if no node is in train.

        Args:
            shares: Fractions of the labelled nodes in train, val and test, such as 0.6,
                0.2, 0.2. The remaining nodes are in no split.

        Examples:
            >>> from gnnkit.graph import Graph
            >>> graph = Graph.from_edges([0, 1], [1, 2], 10, labels=[0, 1] * 5)
            >>> graph.draw_split([0.6, 0.2, 0.2]).split_sizes
            {'train': 6, 'val': 2, 'test': 2}
        """
        classes = self.labels if self.labels.ndim == 1 and self.labels.dtype.kind == "i" else None
        split = random_split(self.labelled, shares, seed, classes)
        if not (split == Split.TRAIN).any():
            raise UserError(f"split={list(shares)} trains on no node: {self.labelled.sum()} nodes have a label")
        warn_random_split(self, "node")
        return self.evolve(split=split)

    def draw_edge_split(self, shares: Sequence[float], seed: int = 0) -> Graph:
        """Draws a random split of the labelled edges, stratified by class.

        Edges are drawn by their positions in the original edge list, so the split does
        not depend on their order.

        Args:
            shares: As for `draw_split`.
            seed: Seed of the split.
        """
        labels, split = self.edge_labels, self.edge_split
        if labels is None or split is None or not labelled(labels).any():
            raise UserError(f"split={list(shares)} trains on no edge: no edge has a label")
        order = np.argsort(self.edge_positions, kind="stable") if self.edge_positions is not None else slice(None)
        classes = labels[order] if labels.ndim == 1 and labels.dtype.kind == "i" else None
        new_split = split.copy()
        new_split[order] = np.where(split < 0, split, 0)[order] + random_split(
            labelled(labels[order]), shares, seed, classes
        )
        warn_random_split(self)
        return self.evolve(edge_split=new_split)

    def split_by_time(
        self,
        shares: Sequence[float] | None = None,
        borders: Sequence[int | str] | None = None,
        *,
        name: str = "split_by_time",
    ) -> Graph:
        """Splits labelled nodes and edges, and edges for link prediction, by time.

        Equal times are never separated. Labelled nodes without a time are in no part.
        `time_borders` are set if edges have times. Raises `UserError` if neither has
        times.

        Args:
            shares: Fractions in train, val and test, which add up to 1.
            borders: Instead of shares, the times of the first validation and the first
                test row: numbers, or dates such as "2020-01-31".
            name: Argument or configuration key, for messages.
        """
        split, times = TimeSplit(name, shares, borders), self.node_time
        fields: Fields = {}
        if times is not None and self.labelled.any():
            parts = parts_of(times, split.find_borders(times[self.labelled], self.time_unit))
            fields["split"] = np.where(self.labelled & (times != ALWAYS), parts, Split.NONE)
        if (edge_times := self.edge_time) is not None:
            targets = self._labelled_edges()
            borders = split.find_borders(edge_times if targets is None else edge_times[targets], self.time_unit)
            fields["time_borders"] = borders
            if targets is not None and self.edge_split is not None:
                parts = np.where(
                    targets & (edge_times != ALWAYS), parts_of(edge_times, borders), self.edge_split.clip(max=0)
                )
                fields["edge_split"] = parts.astype(np.int8)
        if not fields:
            raise UserError(f"{name}: neither labelled nodes nor edges have times: dataset.time=COLUMN names a column")
        return self.evolve(**fields)

    def _labelled_edges(self) -> npt.NDArray[np.bool_] | None:  # [num_edges]
        """Marks the edges that edge tasks predict, or returns None without labels."""
        if self.edge_labels is None or self.edge_split is None:
            return None
        return labelled(self.edge_labels) & (self.edge_split >= Split.NONE)

    def row_normalize(self) -> Graph:
        """Divides each feature row by the sum of its absolute values, so rows sum to 1.

        This suits bags of words, such as the features of Cora. Zero rows are unchanged,
        and sparse features stay sparse.
        """
        rows = self.features
        unit_rows = rows.row_normalize() if isinstance(rows, SparseFeatures) else normalized(np.asarray(rows))
        return self.derive(features=unit_rows)  # within -1 and 1


class EdgeListFields(TypedDict, total=False):
    """The arguments of `Graph.from_edges` that become graph fields.

    Labels are classes [num_nodes], where -1 means unlabelled, and -1 and 1 without 0
    are rejected; sets of classes [num_nodes, classes] of 0 and 1; or floating-point
    numbers [num_nodes] or [num_nodes, numbers], where NaN means unlabelled.
    """

    features: npt.ArrayLike | SparseFeatures | None  # [num_nodes, width], or a SciPy sparse matrix. Default: width 0
    labels: npt.ArrayLike | None  # [num_nodes, ...]. Default: unlabelled
    split: npt.ArrayLike | None  # [num_nodes] names or codes for `Split.of`. Default: no node in a split
    weight: npt.ArrayLike | None  # [num_edges] finite
    edge_features: npt.ArrayLike | None  # [num_edges, edge_width]
    coordinates: npt.ArrayLike | None  # [num_nodes, 2 or 3]
    class_names: Sequence[str] | None  # [num_classes]
    node_ids: npt.ArrayLike | None  # [num_nodes] the user's ids, distinct
    feature_names: Sequence[str] | None  # [width]
    category_of: Sequence[str] | None  # [width] the text column that a one-hot feature encodes, or ""
    edge_feature_names: Sequence[str] | None  # [edge_width]
    edge_category_of: Sequence[str] | None  # [edge_width]
    edge_types: npt.ArrayLike | None  # [num_edges] relation of each edge, from 0
    edge_type_names: Sequence[str] | None  # [num_relations]
    node_types: NodeTypes | None  # name and number of nodes of each type, in the order of ids
    feature_tables: tuple[FeatureTable, ...] | None  # feature columns of each node type
    relations: tuple[Relation, ...] | None  # [num_relations] node types at the ends
    missing: npt.ArrayLike | None  # [num_missing, 2] node and column of missing features
    edge_labels: npt.ArrayLike | None  # [num_edges, ...] labels of edges, in the forms of node labels
    edge_split: npt.ArrayLike | None  # [num_edges] names or codes for `Split.of`
    edge_class_names: Sequence[str] | None  # [num_edge_classes]
    edge_time: npt.ArrayLike | None  # [num_edges] integers, exact floats or datetime64. NaN or NaT: never visible
    node_time: npt.ArrayLike | None  # [num_nodes] like `edge_time`
    time_unit: str | None  # s, ms, us or ns, if integers are dates since 1970
    column_forms: Sequence[str] | None  # `dates: NAME` or `MARK: NAME`, of features, with one of `MARKS`
    val_negatives: npt.ArrayLike | None  # [num_val, k] destinations to compare with each validation edge
    test_negatives: npt.ArrayLike | None  # [num_test, k]


_EDGE_FIELDS = frozenset(rule.field for rule in RULES.values() if not rule.in_csc)
_ROWS = frozenset(("features", "edge_features"))


_Check = tuple[Sequence[str], Callable[[Any], None]]  # the fields that a check reads


def _read_field(name: str, read: Callable[[Any, int], object]) -> _Check:
    """Returns the check for a field with one row per node."""
    return [name], lambda graph: set_fields(graph, **{name: read(getattr(graph, name), graph.num_nodes)})


def _read_column(rule: EdgeColumnRule) -> _Check:
    """Returns the check for a field with one row per edge, which may be None."""
    return [rule.field], lambda graph: set_fields(
        graph, **EdgeColumns.read({rule.field: getattr(graph, rule.field)}, graph.num_edges).arrays()
    )


def _read_times(graph: Graph) -> None:
    times = {name: getattr(graph, name) for name in ("node_time", *TIME_FACTS)}
    set_fields(graph, **check_fields(times, graph.num_nodes))


def _read_missing(graph: Graph) -> None:
    set_fields(graph, missing=read_missing_cells(graph.missing, graph.features.shape))


_CHECKS: Sequence[_Check] = (  # a graph with several errors raises the first
    (["csc"], Graph._check_csc),
    _read_field("node_ids", node_ids_of),
    (["labels", "split", "class_names"], Graph._check_labels),
    _read_field("features", node_features),
    *(_read_field(name, partial(nodes_of, name, width=width)) for name, width in HELD_OUT.items()),
    _read_field("node_types", node_types_of),
    (["node_time", *TIME_FACTS], _read_times),
    *(_read_column(rule) for rule in RULES.values() if not rule.in_csc),
    (["missing", "features"], _read_missing),
    ([*_ROWS, "feature_names", "category_of", *EDGE_NAMES], Graph._check_columns),
    (["edge_types", "edge_type_names"], Graph._check_relations),
    (["edge_labels", "edge_split", "edge_class_names"], Graph._check_edge_labels),
    (["features", "feature_tables", "relations", "node_types", "edge_type_names"], Graph._check_types),
    (["coordinates"], Graph._check_coordinates),
)
_READ_FIELDS: Mapping[str, Callable[[Any], Any]] = {
    "features": rows_of,
    "labels": partial(checks.array, "labels"),
    "split": partial(checks.array, "split"),
    "coordinates": partial(checks.array, "coordinates"),
    "missing": partial(checks.array, "missing"),
    "node_ids": distinct_ids,
    **dict.fromkeys(NAME_FIELDS, tuple),
    "column_forms": lambda names: tuple(dict.fromkeys(names)) or None,
}  # converters of the arguments of `Graph.from_edges`


def count_nodes(src: Ids, dst: Ids, features: object | None) -> int:
    """Returns the number of feature rows, or the largest id plus one."""
    if features is not None:
        rows = rows_of(features)
        return len(rows) if rows.shape else 0
    name, ids = max((("src", src), ("dst", dst)), key=lambda item: int(item[1].max(initial=-1)))
    largest = int(ids.max(initial=-1))
    if largest >= 0:
        check_implied(f"{name}[{ids.argmax()}] = {largest}", largest, len(src))
    return largest + 1


def check_implied(place: str, largest: int, num_edges: int) -> None:
    """Raises `UserError` if the largest id implies far more nodes than edges."""
    if largest >= max(_MAX_IMPLIED_NODES, _MAX_NODES_PER_EDGE * num_edges):
        raise UserError(
            f"{place} would make {largest + 1} nodes for {num_edges} edges: if intended, set num_nodes={largest + 1} (dataset.num_nodes)"
        )


def stored_facts(graph: Graph) -> Fields:
    """Returns the fields that a saved graph stores as JSON."""
    facts = {name: getattr(graph, name) for name in (*NAME_FIELDS, *TIME_FACTS, "node_types")}
    return facts | graph.schema.to_dict()


def _stored_fields(arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> dict[str, Any]:
    names = {name: None if (values := meta.get(name)) is None else tuple(map(str, values)) for name in NAME_FIELDS}
    types = {name: meta.get(name) for name in ("node_types", "feature_tables", "relations", *TIME_FACTS)}
    columns = EdgeColumns.of_arrays(arrays).fields_of(Graph)
    return {**names, **types, **columns, **{name: arrays.get(name) for name in _ARRAYS}}
