"""One graph with everything that belongs to nodes and edges."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from gnnkit import checks
from gnnkit.errors import UserError
from gnnkit.graph.attributes import warn_times
from gnnkit.graph.csc import CSC, sort_edges
from gnnkit.graph.edge_columns import EdgeColumns
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
from gnnkit.graph.fields import (
    count_nodes,
    distinct_ids,
    edge_types_of,
    names_of,
    narrowed_positions,
    node_ids_of,
    pairs_of,
    relation_names,
)
from gnnkit.graph.labels import check_labelled, check_signs, labelled, read_labels
from gnnkit.graph.schema import FeatureTable, NodeTypes, Relation, Schema, node_types_of, read_types, table_of
from gnnkit.graph.split import Split, random_split
from gnnkit.graph.types import Floats, Ids, Labels, set_fields, take
from gnnkit.storage import load_arrays, save_arrays

_NAMES = (
    "class_names",
    "feature_names",
    "category_of",
    "edge_feature_names",
    "edge_category_of",
    "edge_type_names",
)  # fields that a saved graph stores as JSON
_ARRAYS = ("coordinates", "val_edges", "test_edges", "node_ids", "missing")  # optional fields beside edge columns


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Graph:
    """A graph with features, labels and splits of nodes, and features of edges.

    Node ids are 0..num_nodes-1, edge ids positions in `csc.indices`. The constructor
    checks shapes and values and raises `UserError` with the place of the first wrong
    value. Features and weights beyond float32 are refused, because models compute in
    float32. `split` also takes all forms that `Split.of` reads. Contiguous arrays of
    the types below are taken without a copy, from mapped files too.

    `labels` hold what a model is to say about each node, in one of three forms. The
    form decides which tasks fit:

    - [num_nodes] int64: one class of each node, -1 for none
    - [num_nodes, num_classes] bool: a set of classes of each node
    - [num_nodes] or [num_nodes, numbers] floating: numbers, NaN for none

    `val_edges` and `test_edges` are edges that are to be predicted, as rows of (source,
    destination), whether they are edges of `csc` or not. None: none are named.

    `edge_positions` are the positions of the edges in the list that the graph was made
    from. None stands for positions in `csc`.

    `node_ids` are the user's ids: whole numbers or text, such as UUIDs. Runs write them
    beside the predictions. None stands for 0, 1, ...

    `class_names` are distinct. Runs write them beside the predictions too.

    `feature_names` and `edge_feature_names` are distinct. Runs keep them, and a trained
    model finds its columns by name in other data. None: columns are known by place.

    `category_of` names the column of text that a feature is a value of, with 1 where a
    node has the value, and "" for other features. None: there are only others.
    `edge_category_of` does so for edge features.

    `edge_types` number the relation of each edge, and `edge_type_names` name the
    relations, by default 0, 1, ... Models of relations (`rgcn`) tell these apart. All
    other models, samplers and their exports read all edges alike. None: all edges are
    of one relation.

    `node_types` are the types of nodes, as ranges of ids in the order of the types:
    (name, number of nodes) each. `schema` finds the range of a type. `feature_tables`
    are the columns of `features` that belong to each node type, and `relations` the
    node types at the ends of each edge type. None: these are not known, as after
    features were replaced by others of another width.

    `missing` are cells of a table that were empty, as rows of (node, column). There
    `features` are 0, until a run fills the cells as `features.fill` says. None: none.
    """

    csc: CSC
    features: Features  # [num_nodes, width] finite
    labels: Labels  # classes, sets of classes, or numbers, as `Graph` describes
    split: npt.NDArray[np.int8]  # [num_nodes] values of `Split`. Nodes in use have a label
    edge_features: Floats | None = None  # [num_edges, edge_width] finite
    coordinates: Floats | None = None  # [num_nodes, 2 or 3] finite
    class_names: tuple[str, ...] | None = field(default=None, kw_only=True)  # [num_classes]
    edge_positions: Ids | None = field(default=None, kw_only=True)  # [num_edges] int32 or int64
    val_edges: Ids | None = field(default=None, kw_only=True)  # [num_val, 2] int64
    test_edges: Ids | None = field(default=None, kw_only=True)  # [num_test, 2] int64
    node_ids: npt.NDArray[Any] | None = field(default=None, kw_only=True)  # [num_nodes] whole numbers or text
    feature_names: tuple[str, ...] | None = field(default=None, kw_only=True)  # [width]
    category_of: tuple[str, ...] | None = field(default=None, kw_only=True)  # [width] a column of text, or ""
    edge_feature_names: tuple[str, ...] | None = field(default=None, kw_only=True)  # [edge_width]
    edge_category_of: tuple[str, ...] | None = field(default=None, kw_only=True)  # [edge_width] a column of text, or ""
    edge_types: Ids | None = field(default=None, kw_only=True)  # [num_edges] int16 relation of each edge
    edge_type_names: tuple[str, ...] | None = field(default=None, kw_only=True)  # [num_relations]
    node_types: NodeTypes | None = field(default=None, kw_only=True)  # name and number of nodes of each type
    feature_tables: tuple[FeatureTable, ...] | None = field(default=None, kw_only=True)  # of each node type
    relations: tuple[Relation, ...] | None = field(default=None, kw_only=True)  # [num_relations]
    missing: Ids | None = field(default=None, kw_only=True)  # [num_missing, 2] int64 node and column

    def __post_init__(self) -> None:
        n = self.csc.num_nodes
        if self.csc.num_sources != n:
            raise UserError(f"a graph's edges join its own nodes, got {self.csc.num_sources} sources for {n} nodes")
        if self.csc.weight is not None and self.csc.weight.itemsize > 4:  # float32 is checked by CSC
            checks.check_finite("weight", self.csc.weight, bound=checks.FLOAT32_MAX)
        names = names_of("class_names", self.class_names)
        labels = read_labels(self.labels, n, None if names is None else len(names))
        split = Split.of(self.split, n)
        check_labelled(labels, split)
        set_fields(
            self,
            features=node_features(self.features, n),
            labels=labels,
            split=split,
            class_names=names,
            coordinates=optional_rows("coordinates", self.coordinates, n),
            val_edges=pairs_of("val_edges", self.val_edges, n),
            test_edges=pairs_of("test_edges", self.test_edges, n),
            node_ids=node_ids_of(self.node_ids, n),
            node_types=node_types_of(self.node_types, n),
            **EdgeColumns.read(self.edge_columns.arrays(), self.num_edges).fields_of(Graph),
        )
        set_fields(self, missing=read_missing_cells(self.missing, self.features.shape))
        self._check_columns()
        self._check_relations()
        self._read_types({"feature_tables": self.feature_tables, "relations": self.relations})
        if self.coordinates is not None and self.coordinates.shape[1] not in (2, 3):
            raise UserError(f"coordinates have {self.coordinates.shape[1]} dimensions, expected 2 or 3")

    def _repr_html_(self) -> str:
        """Is what a notebook shows: a table of the sizes."""
        names = () if self.class_names is None else self.class_names
        shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        rows = {
            "nodes": f"{self.num_nodes:,}",
            "edges": f"{self.num_edges:,}",
            "features": f"{self.features.shape[1]:,}",
            "labels": self.label_summary + (f": {shown}" if shown else ""),
            **{name: f"{count:,}" for name, count in self.split_sizes.items()},
        }
        style = ' style="text-align:left"'
        cells = "".join(f"<tr><th{style}>{name}</th><td{style}>{escape(text)}</td></tr>" for name, text in rows.items())
        return f"<table><caption>Graph</caption>{cells}</table>"

    def __repr__(self) -> str:
        """Says in a line how large the graph is."""
        sizes = (f"{self.num_nodes:,} nodes", f"{self.num_edges:,} edges", f"{self.features.shape[1]:,} features")
        splits = (f"{count:,} {name}" for name, count in self.split_sizes.items())
        return f"Graph({', '.join([*sizes, self.label_summary, *splits])})"

    @property
    def label_summary(self) -> str:
        """How many classes, or numbers of each node, the labels have, for people."""
        return f"{self.num_classes} {'numbers to predict' if self.labels.dtype.kind == 'f' else 'classes'}"

    @property
    def split_sizes(self) -> dict[str, int]:
        """Number of nodes in train, val and test."""
        return {each.name.lower(): int(np.count_nonzero(self.split == each)) for each in Split if each}

    def _check_columns(self) -> None:
        """Raises `UserError` for names that do not fit the columns."""
        edge_width = 0 if self.edge_features is None else self.edge_features.shape[1]
        for name, width in (("category_of", self.features.shape[1]), ("edge_category_of", edge_width)):
            if (texts := getattr(self, name)) is not None and len(texts) != width:
                raise UserError(f"{name} has {len(texts)} names for {width} columns")
        set_fields(
            self,
            feature_names=names_of("feature_names", self.feature_names, self.features.shape[1]),
            edge_feature_names=names_of("edge_feature_names", self.edge_feature_names, edge_width),
        )

    def _check_relations(self) -> None:
        """Raises `UserError` for edge types that do not fit their names."""
        names = names_of("edge_type_names", self.edge_type_names)
        types = edge_types_of(self.edge_types, self.num_edges, names)
        set_fields(self, edge_types=types, edge_type_names=relation_names(types, names))

    def _read_types(self, plain: Mapping[str, Any]) -> None:
        """Takes feature tables and relations where they fit the graph."""
        set_fields(self, **read_types(plain, self.node_types, self.edge_type_names, self.features.shape[1]))

    @classmethod
    def of(cls, value: Any) -> Graph:
        """Returns a graph itself, or reads a graph of PyG or DGL.

        Raises `UserError` for anything else.
        """
        if isinstance(value, Graph):
            return value
        from gnnkit.graph.dgl import is_dgl
        from gnnkit.graph.pyg import is_pyg

        if is_pyg(value):
            return cls.from_pyg(value)
        if is_dgl(value):
            return cls.from_dgl(value)
        ways = {"from_networkx": hasattr(value, "is_directed"), "from_scipy": hasattr(value, "tocoo")}
        way = next((f": Graph.{name} reads it" for name, fits in ways.items() if fits), "")
        given = type(value).__name__
        raise UserError(f"expected a gnnkit Graph, a torch_geometric Data or a DGLGraph, got {given}{way}")

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
        """Makes the graph of the edges `src[i] -> dst[i]`. `edge_positions` keep i.

        Args:
            src: [num_edges] source of each edge.
            dst: [num_edges] destination of each edge.
            num_nodes: number of nodes. Default: rows of features, or one more than the
                largest id. This id must be below max(1,000,000, 16 num_edges).
            one_class: whether labels -1 and 1 alone mean one class and none, and are
                not refused.
            threads: threads that sort. Default: the cores at hand.
            **fields: features, labels, weights and further fields of `EdgeListFields`.
        """
        values: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
        if unknown := values.keys() - EdgeListFields.__annotations__:
            raise TypeError(f"Graph.from_edges() got an unexpected keyword argument {min(unknown)!r}")
        src, dst = checks.ids("src", src), checks.ids("dst", dst)
        num_nodes = count_nodes(src, dst, values.get("features")) if num_nodes is None else num_nodes
        columns = EdgeColumns.read(values, len(src))
        csc, order = sort_edges(src, dst, num_nodes, num_nodes, True, threads)
        columns = EdgeColumns({**columns.take(order), "position": narrowed_positions(order)})
        values = {**_defaults(num_nodes), **values}
        values |= {name: _READ_FIELDS[name](value) for name, value in values.items() if name in _READ_FIELDS}
        if not one_class:
            check_signs(values["labels"], values.get("class_names"))
        csc = csc.weighted(columns.get("weight"))
        values.pop("weight", None)  # is in the CSC
        return cls(csc, **{**values, **columns.fields_of(cls)})

    @classmethod
    def from_pyg(cls, data: Any, *, split: int | None = None, val: Any = None, test: Any = None) -> Graph:
        """Reads a `torch_geometric.data.Data` or `HeteroData`.

        Reads `edge_index`, and where present `x`, `y`, `edge_weight`, `edge_attr`,
        `pos` of 2 or 3 dimensions, `n_id` as `node_ids`, and the split. The split of
        train, val and test is a mask (`train_mask` [num_nodes] bool), a column of masks
        (`train_mask` [num_nodes, splits]) or node ids (`train_mask` or `train_idx`). A
        warning names other attributes, which are not read.

        Puts edges into the CSC's order. `edge_positions` keep the positions in
        `edge_index`. Raises `UserError` naming the attribute at fault, and for times
        and labels of graphs or of edges, which are not supported yet.

        The types of a `HeteroData` become `node_types` and `edge_types`, in its order.
        The type of nodes with labels (and a split, where several have labels) is the
        predicted one. `x` of different widths get columns of their own, and a type
        without `x` then has a column of ones. `edge_type` of a `Data` is read too.

        Args:
            data: graph with an `edge_index` [2, num_edges] for each type of edges.
            split: column of masks that hold several splits, from 0.
            val: second `Data` of `RandomLinkSplit`. `val_edges` are the edges that are
                to be predicted. Pairs without an edge are not read, as
                `task=link_prediction` draws them.
            test: third `Data` of `RandomLinkSplit`, for `test_edges`.
        """
        from gnnkit.graph.pyg import from_pyg

        return from_pyg(data, split, val, test)

    @classmethod
    def from_dgl(
        cls,
        graph: Any,
        *,
        features: str = "feat",
        labels: str = "label",
        weight: str = "weight",
        edge_features: str = "feat",
        split: int | None = None,
    ) -> Graph:
        """Reads a homogeneous `dgl.DGLGraph`.

        Reads the named fields where present, and the split from `train_mask`,
        `val_mask` and `test_mask` as `from_pyg` does. Ids of a subgraph's nodes in the
        larger graph become `node_ids`. A warning names other fields.

        Args:
            graph: graph of one type.
            features: name in `ndata`.
            labels: name in `ndata`.
            weight: name in `edata`.
            edge_features: name in `edata`.
            split: column of masks that hold several splits, from 0.
        """
        from gnnkit.graph.dgl import from_dgl

        return from_dgl(graph, features, labels, weight, edge_features, split)

    @classmethod
    def from_networkx(
        cls,
        graph: Any,
        *,
        features: str | Sequence[str] | None = None,
        label: str | None = None,
        split: str | None = None,
        weight: str | None = None,
        edge_features: str | Sequence[str] | None = None,
        missing: Sequence[str] | None = None,
    ) -> Graph:
        """Reads a graph of NetworkX. The nodes become `node_ids`, in their order.

        An edge of an undirected graph becomes two. Parallel edges stay. A warning names
        attributes that no argument names. Attributes are read as `from_tables` reads
        columns.

        Args:
            graph: `Graph`, `DiGraph`, `MultiGraph` or `MultiDiGraph`.
            features: attributes of nodes: numbers, lists of numbers, dates, or text of
                few values.
            label: attribute of nodes: class, name or decimal fraction, None for none.
            split: attribute of nodes: train, val, test, none.
            weight: attribute of edges.
            edge_features: attributes of edges, like `features`, which no edge lacks.
            missing: words for missing values, as in `from_tables`.
        """
        from gnnkit.graph.networkx import from_networkx

        return from_networkx(graph, features, label, split, weight, edge_features, missing)

    @classmethod
    def from_scipy(cls, matrix: Any, **fields: Any) -> Graph:
        """Reads an adjacency matrix of SciPy, in any sparse format.

        The stored entry [i, j] is an edge i -> j. The number is the edge's weight,
        unless all are 1.

        Args:
            matrix: [num_nodes, num_nodes] sparse array or matrix.
            **fields: features, labels, split, ... as of `from_edges`.
        """
        from gnnkit.graph.scipy import from_scipy

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
        missing: Sequence[str] | None = None,
        duplicates: str = "keep",
    ) -> Graph:
        """Reads data frames of pandas or polars, or tables of pyarrow.

        Nodes are numbered in the order of their table, and `node_ids` keep the ids.
        Without this table, ids that are numbers are 0, 1, ..., and text names the
        nodes, in the order of code points.

        Ids are whole numbers of 64 bits, floating-point numbers that are whole and
        below 2^53, text or UUIDs. Blanks around text do not count. Text and numbers
        match where the text is spelt as the number is, so `007` is not 7. Columns that
        hold the index of a data frame are no features, unless they are named.

        Text that spells numbers, such as "1,5", "$1" and "10%", is read as numbers, and
        dates are read as seconds since 1970 (durations as seconds), with a warning that
        names the columns. Numbers are float64 where float32 would change a whole
        number, or round by more than 1e-5 of the column's range.

        Args:
            edges: one row for each edge.
            nodes: one row for each node, or None.
            src: column of `edges`, the id of the source.
            dst: column of `edges`, the id of the destination.
            weight: column of `edges`. Default: `weight`, if there is one.
            edge_type: column of `edges`, may be missing: name or number of a relation.
            id: column of `nodes`: whole numbers, text or UUIDs.
            label: column of `nodes`, may be missing: classes, names or decimal
                fractions, empty for none.
            split: column of `nodes`, may be missing: train, val, test, none.
            features: columns of `nodes` with numbers, lists of numbers, dates, or text
                of few values, or an array [num_nodes, width]. Default: all other
                columns.
            edge_features: columns of `edges`, like those of `nodes` but without missing
                cells. Default: all other columns.
            missing: words that stand for a missing value in text, compared without case
                and surrounding blanks. Default: `#N/A`, `-`, `<NA>`, `?`, `missing`,
                `n/a`, `NA`, `nan`, `nil`, `none`, `null`, `unknown`. An empty cell is
                always missing.
            duplicates: what becomes of edges with the same ends and the same type.
                `keep` keeps each of them, as parallel edges. `refuse` raises
                `UserError`. `first` keeps the first row, of edges and of nodes with the
                same id. `sum` and `mean` join the weights and the features of such
                edges, where an edge without a weight counts 1 in a sum. Nodes with the
                same id are refused but for `first`.
        """
        from gnnkit.graph.tables import from_tables

        columns = (id, label, split)
        return from_tables(
            edges, nodes, (src, dst), weight, edge_type, columns, features, edge_features, missing, duplicates
        )

    from_pandas = from_tables
    from_polars = from_tables

    @classmethod
    def from_ogb(cls, folder: str | Path, *, split: str | None = None, add_inverse_edge: bool | None = None) -> Graph:
        """Reads a folder of an OGB node data set, such as `dataset/ogbn_arxiv`.

        Reads the files of `raw`, `split` and `mapping`, without the package `ogb`.
        `edge_positions` are the positions in the `edge_index` that `ogb` gives.

        Args:
            folder: the folder of the data set, which holds `raw` and `split`.
            split: folder in `split`. Default: the only one.
            add_inverse_edge: whether each edge is also turned around. Default: as `ogb`
                does for this name.
        """
        from gnnkit.graph.ogb import from_ogb

        return from_ogb(Path(folder), split, add_inverse_edge)

    @classmethod
    def load(cls, folder: str | Path) -> Graph:
        """Maps a graph that was saved, read-only.

        Looks at each value once. Raises `UserError` naming file and place.
        """
        folder = Path(folder)
        arrays, meta = load_arrays(folder)
        columns = EdgeColumns.of_arrays(arrays)
        try:
            csc = CSC(arrays["indptr"], arrays["indices"], columns.get("weight"))
            return cls(csc, read_features(arrays), arrays["labels"], arrays["split"], **_stored(arrays, meta))
        except KeyError as error:
            raise UserError(f"{folder} holds no {error.args[0]}") from error
        except ValueError as error:
            raise UserError(f"{folder}: {error}") from error

    @classmethod
    def trusted(cls, folder: Path, *, features: bool = True) -> Graph:
        """Maps a graph that gnnkit has written, without a look at each value.

        So a file larger than memory is not read. Native code looks at each edge that it
        reads.

        Args:
            folder: the folder.
            features: whether the graph has its features. Otherwise their width is 0.
        """
        arrays, meta = load_arrays(folder)
        graph, indptr = cls.__new__(cls), arrays["indptr"]
        csc = CSC.trusted(indptr, arrays["indices"], arrays.get("weight"), len(indptr) - 1)
        rest = {**_stored(arrays, meta), "csc": csc, "labels": arrays["labels"], "split": arrays["split"]}
        rest["node_types"] = node_types_of(rest["node_types"], len(indptr) - 1)
        if features:
            rest["features"] = read_features(arrays)
        else:
            rest |= dict.fromkeys(("feature_names", "category_of", "missing"))
            rest["features"] = np.empty((len(indptr) - 1, 0), np.float32)
        set_fields(graph, **rest)
        graph._read_types(meta)
        return graph

    def save(self, folder: str | Path) -> None:
        """Writes the graph into `folder`, one .npy per array, whole or not at all.

        Replaces a graph saved there before.
        """
        arrays = {name: getattr(self, name) for name in ("labels", "split", *_ARRAYS)}
        arrays |= {"indptr": self.csc.indptr, "indices": self.csc.indices}
        arrays |= {**feature_arrays(self.features), **self.edge_columns.arrays()}
        meta = {name: getattr(self, name) for name in (*_NAMES, "node_types")}
        save_arrays(Path(folder), arrays, meta | self.schema.to_dict())

    @property
    def num_nodes(self) -> int:
        return self.csc.num_nodes

    @property
    def num_edges(self) -> int:
        return self.csc.num_edges

    @property
    def edge_columns(self) -> EdgeColumns:
        """The values of edges: weights, features, relations and positions."""
        return EdgeColumns.of(self)

    def with_edges(self, csc: CSC, columns: EdgeColumns) -> Graph:
        """Returns the same nodes with other edges.

        Args:
            csc: In-edges of all nodes, without weights.
            columns: [num_edges] values of these edges, weights among them.
        """
        return replace(self, csc=csc.weighted(columns.get("weight")), **columns.fields_of(Graph))

    @property
    def num_classes(self) -> int:
        """The number of classes, or of numbers where labels are numbers.

        Of classes: the number of class names, or one more than the largest label.
        """
        if self.labels.ndim == 2:
            return int(self.labels.shape[1])
        if self.labels.dtype.kind == "f":
            return 1
        return int(self.labels.max(initial=-1)) + 1 if self.class_names is None else len(self.class_names)

    @property
    def whole_features(self) -> Features:
        """The features, for who fills no cells. Raises `UserError` for empty ones."""
        if self.missing is not None:
            raise UserError(f"features have {len(self.missing):,} empty cells (Graph.missing): fill these first")
        return self.features

    @property
    def schema(self) -> Schema:
        """The types of nodes and of edges. Without types: one of each."""
        node_types, edge_types = self.node_types or (("", self.num_nodes),), self.edge_type_names or ("",)
        tables = self.feature_tables
        if tables is None and len(node_types) == 1:
            tables = (table_of(self.features),)
        return Schema(node_types, edge_types, tables, self.relations)

    @property
    def num_relations(self) -> int:
        """The number of relations, 1 for edges without types."""
        return 1 if self.edge_type_names is None else max(len(self.edge_type_names), 1)

    @property
    def labelled(self) -> npt.NDArray[np.bool_]:  # [num_nodes]
        """Which nodes have a label. A set of classes may be empty, and is a label."""
        return labelled(self.labels)

    def symmetrize(self, *, threads: int | None = None) -> Graph:
        """Adds missing reverse edges, like `CSC.symmetrize`.

        A reverse edge has the features, the type and the position of the other edge. So
        edges of a type then lead both ways, and the result has no `relations`.
        """
        csc, order = self.csc.weighted(None).symmetrize(threads=threads)
        return replace(self.with_edges(csc, self.edge_columns.take(order)), relations=None)

    def renumber(self, order: npt.ArrayLike, *, threads: int | None = None) -> Graph:
        """Numbers the nodes in another order.

        `edge_positions` keep the positions in the list that the graph was made from.
        Nodes of one type need no longer stand together, so the result has no
        `node_types`.

        Args:
            order: [num_nodes] each node once, the new node 0 first.
            threads: threads that sort. Default: the cores at hand.
        """
        order = checks.int64s("order", order, self.num_nodes)
        checks.check_range("order", order, 0, self.num_nodes)
        number = np.full(self.num_nodes, -1, order.dtype)
        number[order] = np.arange(self.num_nodes)
        if np.any(number < 0):
            raise UserError(f"order lacks node {number.argmin()}")
        dst = np.repeat(number, np.diff(self.csc.indptr))
        csc, edges = sort_edges(number[self.csc.indices], dst, self.num_nodes, self.num_nodes, True, threads)
        columns = self.edge_columns.select(edges)
        return replace(
            self,
            csc=csc.weighted(columns.get("weight")),
            features=self.features[order],
            labels=self.labels[order],
            split=self.split[order],
            coordinates=take(self.coordinates, order),
            val_edges=None if self.val_edges is None else number[self.val_edges],
            test_edges=None if self.test_edges is None else number[self.test_edges],
            node_ids=take(self.node_ids, order),
            node_types=None,
            feature_tables=None,
            relations=None,
            missing=None if self.missing is None else np.stack([number[self.missing[:, 0]], self.missing[:, 1]], 1),
            **columns.fields_of(Graph),
        )

    def draw_split(self, shares: Sequence[float], seed: int = 0) -> Graph:
        """Draws which labelled nodes train, validate and test.

        Raises `UserError` where no node would train.

        Args:
            shares: of the labelled nodes, for train, val and test, such as 0.6, 0.2,
                0.2. Nodes beyond their sum are in no split.
            seed: of the draw.
        """
        split = random_split(self.labelled, shares, seed)
        if not (split == Split.TRAIN).any():
            raise UserError(f"split={list(shares)} trains on no node: {self.labelled.sum()} nodes have a label")
        warn_times([*(self.feature_names or ()), *(self.edge_feature_names or ())])
        return replace(self, split=split)

    def row_normalize(self) -> Graph:
        """Divides each row of features by the sum of absolute values.

        Rows of zeros stay.
        """
        if isinstance(self.features, SparseFeatures):
            return replace(self, features=self.features.row_normalize())
        return replace(self, features=normalized(np.asarray(self.features)))


class EdgeListFields(TypedDict, total=False):
    """The arguments of `Graph.from_edges` that are fields of the graph.

    Labels are classes [num_nodes], -1 for none, where -1 and 1 alone are refused. Or
    sets of classes [num_nodes, classes] of 0 and 1. Or floating-point numbers
    [num_nodes] or [num_nodes, numbers], NaN for none.
    """

    features: (
        npt.ArrayLike | SparseFeatures | None
    )  # [num_nodes, width] also a sparse matrix of SciPy. Default: width 0
    labels: npt.ArrayLike | None  # [num_nodes, ...]. Default: none
    split: npt.ArrayLike | None  # [num_nodes] names or codes for `Split.of`. Default: no node in use
    weight: npt.ArrayLike | None  # [num_edges] finite
    edge_features: npt.ArrayLike | None  # [num_edges, edge_width]
    coordinates: npt.ArrayLike | None  # [num_nodes, 2 or 3]
    class_names: Sequence[str] | None  # [num_classes]
    node_ids: npt.ArrayLike | None  # [num_nodes] your ids, which are distinct
    feature_names: Sequence[str] | None  # [width]
    category_of: Sequence[str] | None  # [width] the text column that a feature is a value of, or ""
    edge_feature_names: Sequence[str] | None  # [edge_width]
    edge_category_of: Sequence[str] | None  # [edge_width]
    edge_types: npt.ArrayLike | None  # [num_edges] relation of each edge, from 0
    edge_type_names: Sequence[str] | None  # [num_relations]
    node_types: NodeTypes | None  # name and number of nodes of each type, in the order of ids
    feature_tables: tuple[FeatureTable, ...] | None  # columns of features of each node type
    relations: tuple[Relation, ...] | None  # [num_relations] node types at the ends
    missing: npt.ArrayLike | None  # [num_missing, 2] node and column of features that are not known


_READ_FIELDS: Mapping[str, Callable[[Any], Any]] = {
    "features": rows_of,
    "labels": partial(checks.array, "labels"),
    "split": partial(checks.array, "split"),
    "coordinates": partial(checks.array, "coordinates"),
    "missing": partial(checks.array, "missing"),
    "node_ids": distinct_ids,
    **dict.fromkeys(_NAMES, tuple),
}  # reads what `Graph.from_edges` is given


def _defaults(num_nodes: int) -> dict[str, Any]:
    """Returns the fields of nodes without features, labels and a split."""
    features, split = np.empty((num_nodes, 0), np.float32), np.zeros(num_nodes, np.int8)
    return {"features": features, "labels": np.full(num_nodes, -1), "split": split}


def _stored(arrays: Mapping[str, Any], meta: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the optional fields of a saved graph."""
    names = {name: None if (values := meta.get(name)) is None else tuple(map(str, values)) for name in _NAMES}
    types = {name: meta.get(name) for name in ("node_types", "feature_tables", "relations")}
    columns = EdgeColumns.of_arrays(arrays).fields_of(Graph)
    return {**names, **types, **columns, **{name: arrays.get(name) for name in _ARRAYS}}
