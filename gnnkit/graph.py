"""The values that all other parts pass on: CSC, features, Graph, Block, MiniBatch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit import _core, checks
from gnnkit.checks import Array, whole
from gnnkit.errors import UserError
from gnnkit.storage import load_arrays, save_arrays

Ids = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.floating[Any]]
Labels = npt.NDArray[Any]  # of nodes: int64 [n] classes, bool [n, classes], or floating [n] or [n, numbers]

_ELEMENTS = 1 << 22  # numbers of dense rows that are looked at together
_MAX_COLUMNS = 2**31 - 1  # of sparse features
_MAX_CLASSES = 1 << 16  # labels beyond this and the number of nodes are no labels
_MAX_IMPLIED_NODES, _MAX_NODES_PER_EDGE = 1_000_000, 16  # ids beyond both are taken for a mistake


class Split(IntEnum):
    """The use of a node: one value of `Graph.split`."""

    NONE = 0
    TRAIN = 1
    VAL = 2
    TEST = 3

    @staticmethod
    def of(values: npt.ArrayLike, num_nodes: int) -> npt.NDArray[np.int8]:  # [num_nodes]
        """Returns the values of `Graph.split` that names or codes stand for.

        Names are train, val, test, none and the empty string. Codes are members of
        `Split` or numbers of members. Data sets often count train as 0, so numbers that
        use nodes but train on none are refused. Codes of type int8, the type of
        `Graph.split`, may do so. Raises `UserError` with the place of a name or code
        that does not exist.

        Args:
            values: [num_nodes] names or codes.
            num_nodes: number of entries expected.
        """
        given = checks.array("split", values)
        if given.dtype.kind == "U":
            return _named_splits(given, num_nodes)
        if given.dtype == np.bool_:
            raise UserError("split is a mask, expected names or codes: make codes of masks with Split.of_masks")
        codes = checks.integers("split", given, num_nodes)
        checks.check_range("split", codes, 0, len(Split))
        if codes.dtype != np.int8 and codes.any() and not (codes == Split.TRAIN).any():
            meaning = ", ".join(f"{code} {code.name}" for code in Split)
            raise UserError(f"split uses nodes but trains on none: {meaning} (int8 codes may do so)")
        return np.ascontiguousarray(codes, np.int8)

    @staticmethod
    def of_masks(train: npt.ArrayLike, val: npt.ArrayLike, test: npt.ArrayLike) -> npt.NDArray[np.int8]:
        """Returns the values of `Graph.split` that three masks stand for.

        Raises `UserError` for a node in two masks, and for masks of unequal shapes.

        Args:
            train: [num_nodes] bool.
            val: [num_nodes] bool.
            test: [num_nodes] bool.
        """
        masks = [checks.array(f"{name} mask", mask) for name, mask in zip(SPLITS, (train, val, test), strict=False)]
        for name, mask in zip(SPLITS, masks, strict=False):
            if mask.dtype != np.bool_ or mask.shape != masks[0].shape or mask.ndim != 1:
                expected = list(masks[0].shape) if masks[0].ndim == 1 else "[num_nodes]"
                raise UserError(
                    f"{name} mask has dtype {mask.dtype}, shape {list(mask.shape)}, expected bool, {expected}"
                )
        twice = np.flatnonzero(np.sum(masks, axis=0, dtype=np.int8) > 1)
        if len(twice):
            raise UserError(f"node {twice[0]} is in more than one of the train, val and test masks")
        return np.select(masks, [Split.TRAIN, Split.VAL, Split.TEST], Split.NONE).astype(np.int8)


SPLITS = {"train": Split.TRAIN, "val": Split.VAL, "test": Split.TEST, "none": Split.NONE, "": Split.NONE}


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class CSC:
    """In-edges by destination: node v reads from `indices[indptr[v]:indptr[v + 1]]`.

    Edge ids are positions in `indices`. The constructor checks every value once, in
    native code on one thread, and raises `UserError` with the place of the first wrong
    value. Contiguous arrays of the types below are taken without a copy, from mapped
    files too.
    """

    indptr: Ids  # [num_nodes + 1] int64
    indices: Ids  # [num_edges] int32 or int64, source of each edge
    weight: Floats | None = None  # [num_edges] finite
    num_sources: int = -1  # sources are 0..num_sources-1. -1: number of destinations

    def __post_init__(self) -> None:
        indptr = checks.int64s("indptr", self.indptr)
        indices = checks.ids("indices", self.indices)
        num_sources = whole("num_sources", self.num_sources, -1)
        num_sources = len(indptr) - 1 if num_sources == -1 else num_sources
        _core.check_csc(indptr, indices, max(num_sources, 0))
        weight = _weights(self.weight, len(indices))
        _set(self, indptr=indptr, indices=indices, weight=weight, num_sources=num_sources)

    @classmethod
    def from_edges(
        cls,
        src: npt.ArrayLike,  # [num_edges]
        dst: npt.ArrayLike,  # [num_edges]
        num_nodes: int,
        weight: npt.ArrayLike | None = None,  # [num_edges]
        *,
        num_sources: int | None = None,
        threads: int | None = None,
    ) -> CSC:
        """Makes the graph of the edges `src[i] -> dst[i]`.

        In-edges of a node are ordered by source, then by i. Parallel edges and
        self-loops stay. `indices` are int32 where all ids fit. The result does not
        depend on the threads. No thread outlives the call. Raises `UserError` for ids
        out of range.

        Args:
            src: [num_edges] source of each edge.
            dst: [num_edges] destination of each edge.
            num_nodes: number of destinations.
            weight: [num_edges] finite numbers, or None.
            num_sources: number of sources. Default: `num_nodes`.
            threads: threads that sort. Default: the cores at hand.
        """
        src, dst = checks.ids("src", src), checks.ids("dst", dst)
        num_sources = num_nodes if num_sources is None else num_sources
        csc, positions = _sort(src, dst, num_nodes, num_sources, weight is not None, threads)
        return csc if weight is None else replace(csc, weight=_take(_weights(weight, len(src)), positions))

    @property
    def num_nodes(self) -> int:
        """Number of destinations."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        return len(self.indices)

    def transpose(self, *, threads: int | None = None) -> tuple[CSC, Ids]:
        """Turns every edge around.

        Also returns the position in this CSC of each edge [num_edges].
        """
        indptr, indices, positions = _core.csc_transpose(self.indptr, self.indices, self.num_sources, _threads(threads))
        return CSC(indptr, indices, _take(self.weight, positions), num_sources=self.num_nodes), positions

    def symmetrize(self, *, threads: int | None = None) -> tuple[CSC, Ids]:
        """Adds an edge v -> u for each edge u -> v without one, with equal weight.

        Also returns the position in this CSC of the edge that each edge of the result
        equals or reverses [num_edges]. Each of k parallel edges is reversed. A pair
        joined in both directions stays, even if numbers or weights of parallel edges
        differ. Raises `UserError` unless sources and destinations are the same nodes.
        """
        if self.num_sources != self.num_nodes:
            raise UserError(f"{self.num_sources} sources and {self.num_nodes} destinations cannot be symmetrized")
        indptr, indices, positions = _core.csc_symmetrize(self.indptr, self.indices, _threads(threads))
        return CSC(indptr, indices, _take(self.weight, positions)), positions

    def in_degree(self) -> npt.NDArray[np.float64]:  # [num_nodes]
        """Sums the weights of each destination's in-edges.

        Counts edges without weights.
        """
        return _core.csc_degrees(self.indptr, self.indices, self.num_sources, self.weight)[0]

    def out_degree(self) -> npt.NDArray[np.float64]:  # [num_sources]
        """Sums the weights of each source's out-edges. Counts edges without weights."""
        return _core.csc_degrees(self.indptr, self.indices, self.num_sources, self.weight)[1]


@dataclass(frozen=True, slots=True, eq=False)
class SparseFeatures:
    """Rows of features that are mostly 0, of which only the other numbers are kept.

    Row v has `csr.weight[i]` in column `csr.indices[i]`, for each i in
    `csr.indptr[v]:csr.indptr[v + 1]`. All other numbers are 0. Has the shape and type
    of the dense rows, gives rows by `features[ids]`, and becomes dense by
    `np.asarray(features)`.

    The constructor sorts the columns of each row. Raises `UserError` for a column that
    stands twice in a row, for 2^31 columns or more, and for numbers beyond float32.
    """

    csr: CSC  # rows are destinations, columns are sources. Has weights

    def __post_init__(self) -> None:
        if self.csr.num_sources > _MAX_COLUMNS:
            raise UserError(f"features of shape {self.shape} have more than {_MAX_COLUMNS} columns")
        csr = _by_column(self.csr)
        if csr.weight is None:
            csr = replace(csr, weight=np.ones(csr.num_edges, np.float32))
        elif csr.weight.itemsize > 4:  # float32 is checked by CSC
            checks.check_finite("values", csr.weight, bound=checks.FLOAT32_MAX)
        _set(self, csr=csr)

    @classmethod
    def of(cls, features: Features) -> SparseFeatures:
        """Keeps the numbers of dense rows that are not 0."""
        if isinstance(features, SparseFeatures):
            return features
        step = max(_ELEMENTS // max(features.shape[1], 1), 1)
        counts, columns, values = [np.zeros(1, np.int64)], [np.zeros(0, np.int32)], [np.zeros(0, features.dtype)]
        for start in range(0, len(features), step):
            some = features[start : start + step]
            row, column = np.nonzero(some)
            counts.append(np.bincount(row, minlength=len(some)))
            columns.append(column.astype(np.int32))
            values.append(some[row, column])
        indptr, indices = np.concatenate(counts).cumsum(), np.concatenate(columns)
        return cls(CSC(indptr, indices, np.concatenate(values), num_sources=features.shape[1]))

    @property
    def values(self) -> Floats:  # [num_stored]
        assert self.csr.weight is not None
        return self.csr.weight

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and width."""
        return self.csr.num_nodes, self.csr.num_sources

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.dtype

    @property
    def share(self) -> float:
        """The share of the numbers that are kept, 0 to 1."""
        return self.csr.num_edges / max(math.prod(self.shape), 1)

    def __len__(self) -> int:
        return self.csr.num_nodes

    def __getitem__(self, rows: Any) -> SparseFeatures:
        """Takes rows, by ids, a mask or a slice."""
        csr, chosen = self.csr, np.arange(len(self))[rows]
        degree = csr.indptr[chosen + 1] - csr.indptr[chosen]
        indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(degree)])
        kept = np.repeat(csr.indptr[chosen] - indptr[:-1], degree) + np.arange(indptr[-1])
        return SparseFeatures(CSC(indptr, csr.indices[kept], self.values[kept], csr.num_sources))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Floats:  # [n, width]
        """Returns the dense rows. Raises `UserError` for more than memory holds."""
        try:
            dense = np.zeros(self.shape, self.dtype if dtype is None else dtype)
        except (ValueError, MemoryError) as error:  # more than an address or more than the machine holds
            raise UserError(f"features of shape {self.shape} need more memory than there is") from error
        dense[np.repeat(np.arange(len(self)), np.diff(self.csr.indptr)), self.csr.indices] = self.values
        return dense

    def row_normalize(self) -> SparseFeatures:
        """Divides each row by the sum of absolute values."""
        csr, magnitudes = self.csr, np.abs(self.values)
        row = np.repeat(np.arange(len(self)), np.diff(csr.indptr))
        sums = np.bincount(row, magnitudes, len(self)).astype(self.dtype)
        return SparseFeatures(replace(csr, weight=self.values / np.where(sums == 0, 1, sums)[row]))


Features = Floats | SparseFeatures  # of nodes: [num_nodes, width]


def feature_arrays(features: Features) -> dict[str, Array]:
    """Returns the arrays that stand for features in a folder, by name."""
    if not isinstance(features, SparseFeatures):
        return {"features": features}
    csr = features.csr
    return {
        "feature_indptr": csr.indptr,
        "feature_columns": csr.indices,
        "feature_values": features.values,
        "feature_width": np.array([csr.num_sources]),
    }


def read_features(arrays: Mapping[str, Array]) -> Features:
    """Returns the features of `feature_arrays`. Raises KeyError if one is missing."""
    if "feature_width" not in arrays:
        return arrays["features"]
    width = whole("feature_width", arrays["feature_width"].item(), 0)
    indptr, columns, values = (arrays[f"feature_{name}"] for name in ("indptr", "columns", "values"))
    return SparseFeatures(CSC(indptr, columns, values, width))


@dataclass(frozen=True, slots=True, eq=False)
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

    `node_ids` are the user's ids where nodes are numbered in another order than that of
    the data set. Runs write them into their folders.
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

    def __post_init__(self) -> None:
        n = self.csc.num_nodes
        if self.csc.num_sources != n:
            raise UserError(f"a graph's edges join its own nodes, got {self.csc.num_sources} sources for {n} nodes")
        if self.csc.weight is not None and self.csc.weight.itemsize > 4:  # float32 is checked by CSC
            checks.check_finite("weight", self.csc.weight, bound=checks.FLOAT32_MAX)
        labels = read_labels(self.labels, n, None if self.class_names is None else len(self.class_names))
        split = Split.of(self.split, n)
        _check_labelled(labels, split)
        _set(
            self,
            features=_node_features(self.features, n),
            labels=labels,
            split=split,
            edge_features=_optional("edge_features", self.edge_features, self.num_edges),
            coordinates=_optional("coordinates", self.coordinates, n),
            edge_positions=_positions(self.edge_positions, self.num_edges),
            val_edges=_pairs("val_edges", self.val_edges, n),
            test_edges=_pairs("test_edges", self.test_edges, n),
            node_ids=_node_ids(self.node_ids, n),
        )
        if self.coordinates is not None and self.coordinates.shape[1] not in (2, 3):
            raise UserError(f"coordinates have {self.coordinates.shape[1]} dimensions, expected 2 or 3")

    @classmethod
    def of(cls, value: Any) -> Graph:
        """Returns a graph itself, or reads PyG's `Data` with `from_pyg`.

        Raises `UserError` for anything else.
        """
        if isinstance(value, Graph):
            return value
        if hasattr(value, "edge_index") and hasattr(value, "num_nodes"):
            return cls.from_pyg(value)
        raise UserError(f"expected a gnnkit Graph or a torch_geometric Data, got {type(value).__name__}")

    @classmethod
    def from_edges(
        cls,
        src: npt.ArrayLike,  # [num_edges]
        dst: npt.ArrayLike,  # [num_edges]
        num_nodes: int | None = None,
        *,
        features: npt.ArrayLike | SparseFeatures | None = None,  # [num_nodes, width]
        labels: npt.ArrayLike | None = None,  # [num_nodes, ...]
        split: npt.ArrayLike | None = None,  # [num_nodes]
        weight: npt.ArrayLike | None = None,  # [num_edges]
        edge_features: npt.ArrayLike | None = None,  # [num_edges, edge_width]
        coordinates: npt.ArrayLike | None = None,  # [num_nodes, 2 or 3]
        class_names: Sequence[str] | None = None,
        threads: int | None = None,
    ) -> Graph:
        """Makes the graph of the edges `src[i] -> dst[i]`. `edge_positions` keep i.

        Args:
            src: [num_edges] source of each edge.
            dst: [num_edges] destination of each edge.
            num_nodes: number of nodes. Default: rows of features, or one more than the
                largest id. This id must be below max(1,000,000, 16 num_edges).
            features: [num_nodes, width] numbers. Default: width 0.
            labels: [num_nodes] class of each node, -1 for none. Or sets of classes
                [num_nodes, classes] of 0 and 1. Or floating-point numbers [num_nodes]
                or [num_nodes, numbers], NaN for none. Default: no labels.
            split: [num_nodes] names or codes for `Split.of`. Default: no node in use.
            weight: [num_edges] finite numbers, or None.
            edge_features: [num_edges, edge_width] numbers, or None.
            coordinates: [num_nodes, 2 or 3] numbers, or None.
            class_names: [num_classes] names, or None.
            threads: threads that sort. Default: the cores at hand.
        """
        src, dst = checks.ids("src", src), checks.ids("dst", dst)
        num_nodes = _count_nodes(src, dst, features) if num_nodes is None else num_nodes
        edge_features, weight = _optional("edge_features", edge_features, len(src)), _weights(weight, len(src))
        csc, positions = _sort(src, dst, num_nodes, num_nodes, True, threads)
        return cls(
            csc if weight is None else replace(csc, weight=weight[positions]),
            features=np.empty((num_nodes, 0), np.float32) if features is None else _rows(features),
            labels=np.full(num_nodes, -1) if labels is None else checks.array("labels", labels),
            split=np.zeros(num_nodes, np.int8) if split is None else checks.array("split", split),
            edge_features=_take(edge_features, positions),
            coordinates=None if coordinates is None else checks.array("coordinates", coordinates),
            class_names=None if class_names is None else tuple(class_names),
            edge_positions=positions.astype(np.int32) if len(src) < 2**31 else positions,
        )

    @classmethod
    def from_pyg(cls, data: Any, *, split: int | None = None) -> Graph:
        """Reads a `torch_geometric.data.Data`.

        Reads `edge_index`, and where present `x`, `y`, `edge_weight`, `edge_attr`,
        `pos` of 2 or 3 dimensions, and the split. The split of train, val and test is a
        mask (`train_mask` [num_nodes] bool), a column of masks (`train_mask`
        [num_nodes, splits]) or node ids (`train_mask` or `train_idx`). Other attributes
        are not read.

        Puts edges into the CSC's order. `edge_positions` keep the positions in
        `edge_index`. Raises `UserError` naming the attribute at fault.

        Args:
            data: homogeneous graph with an `edge_index` [2, num_edges].
            split: column of masks that hold several splits, from 0.
        """
        edge_index, y, pos = (_field(data, name) for name in ("edge_index", "y", "pos"))
        if edge_index is None or edge_index.ndim != 2 or len(edge_index) != 2:
            raise UserError("data.edge_index must have shape [2, num_edges], other forms of edges are not read")
        num_nodes = whole("data.num_nodes", data.num_nodes, 0)
        edge_attr = _field(data, "edge_attr")
        return cls.from_edges(
            edge_index[0],
            edge_index[1],
            num_nodes,
            features=_field(data, "x"),
            labels=y[:, 0] if y is not None and y.shape[1:] == (1,) else y,
            split=_split_of_pyg(data, num_nodes, split),
            weight=_field(data, "edge_weight"),
            edge_features=edge_attr[:, None] if edge_attr is not None and edge_attr.ndim == 1 else edge_attr,
            coordinates=pos if pos is not None and pos.shape[1:] in ((2,), (3,)) else None,
        )

    @classmethod
    def load(cls, folder: str | Path) -> Graph:
        """Maps a graph that was saved, read-only.

        Raises `UserError` naming file and place.
        """
        folder = Path(folder)
        arrays, meta = load_arrays(folder)
        try:
            csc = CSC(arrays["indptr"], arrays["indices"], arrays.get("weight"))
            names = meta["class_names"]
            return cls(
                csc,
                read_features(arrays),
                arrays["labels"],
                arrays["split"],
                arrays.get("edge_features"),
                arrays.get("coordinates"),
                class_names=None if names is None else tuple(map(str, names)),
                edge_positions=arrays.get("edge_positions"),
                val_edges=arrays.get("val_edges"),
                test_edges=arrays.get("test_edges"),
                node_ids=arrays.get("node_ids"),
            )
        except KeyError as error:
            raise UserError(f"{folder} holds no {error.args[0]}") from error
        except ValueError as error:
            raise UserError(f"{folder}: {error}") from error

    def save(self, folder: str | Path) -> None:
        """Writes the graph into `folder`, one .npy per array, whole or not at all.

        Replaces a graph saved there before.
        """
        arrays = {
            "indptr": self.csc.indptr,
            "indices": self.csc.indices,
            "weight": self.csc.weight,
            **feature_arrays(self.features),
            "labels": self.labels,
            "split": self.split,
            "edge_features": self.edge_features,
            "coordinates": self.coordinates,
            "edge_positions": self.edge_positions,
            "val_edges": self.val_edges,
            "test_edges": self.test_edges,
            "node_ids": self.node_ids,
        }
        save_arrays(Path(folder), arrays, {"class_names": self.class_names})

    @property
    def num_nodes(self) -> int:
        return self.csc.num_nodes

    @property
    def num_edges(self) -> int:
        return self.csc.num_edges

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
    def labelled(self) -> npt.NDArray[np.bool_]:  # [num_nodes]
        """Which nodes have a label. A set of classes may be empty, and is a label."""
        return labelled(self.labels)

    def symmetrize(self, *, threads: int | None = None) -> Graph:
        """Adds missing reverse edges, like `CSC.symmetrize`.

        A reverse edge has the features and the position of the other edge.
        """
        csc, order = self.csc.symmetrize(threads=threads)
        features, positions = _take(self.edge_features, order), _take(self.edge_positions, order)
        return replace(self, csc=csc, edge_features=features, edge_positions=positions)

    def renumber(self, order: npt.ArrayLike, *, threads: int | None = None) -> Graph:
        """Numbers the nodes in another order.

        `edge_positions` keep the positions in the list that the graph was made from.

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
        csc, edges = _sort(number[self.csc.indices], dst, self.num_nodes, self.num_nodes, True, threads)
        return replace(
            self,
            csc=replace(csc, weight=_take(self.csc.weight, edges)),
            features=self.features[order],
            labels=self.labels[order],
            split=self.split[order],
            edge_features=_take(self.edge_features, edges),
            coordinates=_take(self.coordinates, order),
            edge_positions=edges if self.edge_positions is None else self.edge_positions[edges],
            val_edges=None if self.val_edges is None else number[self.val_edges],
            test_edges=None if self.test_edges is None else number[self.test_edges],
            node_ids=_take(self.node_ids, order),
        )

    def row_normalize(self) -> Graph:
        """Divides each row of features by the sum of absolute values.

        Rows of zeros stay.
        """
        if isinstance(self.features, SparseFeatures):
            return replace(self, features=self.features.row_normalize())
        result = np.abs(self.features)
        sums = result.sum(axis=1, keepdims=True, dtype=np.float64).astype(np.promote_types(result.dtype, np.float32))
        np.divide(self.features, np.where(sums == 0, 1, sums), out=result)
        return replace(self, features=result)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """One hop of a sampled batch, renumbered from zero (DGL's MFG).

    All edges lead into the first `num_dst` of `src_nodes`.
    """

    indptr: Ids  # [num_dst + 1] int64
    indices: Ids  # [num_edges] position of each edge's source in `src_nodes`
    src_nodes: Ids  # [num_src] global ids, the num_dst destinations first
    edge_ids: Ids | None = None  # [num_edges] positions in the sampled CSC
    weight: Floats | None = None  # [num_edges] keeps the estimate unbiased

    @property
    def num_dst(self) -> int:
        return len(self.indptr) - 1


@dataclass(frozen=True, slots=True, eq=False)
class MiniBatch:
    """The blocks that compute `seeds`, outermost hop first."""

    seeds: Ids  # [num_seeds] global ids
    blocks: Sequence[Block]

    @property
    def input_nodes(self) -> Ids:
        """Global ids of the rows of features that the first block reads."""
        return self.blocks[0].src_nodes if self.blocks else self.seeds


def _set(value: CSC | SparseFeatures | Graph, **fields: object) -> None:
    """Fills in checked fields of a frozen value, in the constructor."""
    for name, array in fields.items():
        object.__setattr__(value, name, array)


def _sort(
    src: Ids, dst: Ids, num_nodes: int, num_sources: int, positions: bool, threads: int | None
) -> tuple[CSC, Ids]:
    """Returns the CSC of an edge list and, if wanted, the position of each edge."""
    num_nodes, num_sources = whole("num_nodes", num_nodes, 0), whole("num_sources", num_sources, 0)
    indptr, indices, order = _core.csc_from_edges(src, dst, num_nodes, num_sources, positions, _threads(threads))
    return CSC(indptr, indices, num_sources=num_sources), order


def _threads(threads: int | None) -> int | None:
    return None if threads is None else whole("threads", threads, 1, checks.MAX_THREADS)


def _count_nodes(src: Ids, dst: Ids, features: object | None) -> int:
    """Returns the number of rows of features, or one more than the largest id."""
    if features is not None:
        rows = _rows(features)
        return len(rows) if rows.shape else 0
    name, ids = max((("src", src), ("dst", dst)), key=lambda named: int(named[1].max(initial=-1)))
    largest = int(ids.max(initial=-1))
    if largest >= max(_MAX_IMPLIED_NODES, _MAX_NODES_PER_EDGE * len(src)):
        place = f"{name}[{ids.argmax()}] = {largest}"
        raise UserError(
            f"{place} would make {largest + 1} nodes for {len(src)} edges: "
            f"if that is meant, give num_nodes={largest + 1} (dataset.num_nodes)"
        )
    return largest + 1


def _take(values: Array | None, positions: Ids) -> Array | None:
    return None if values is None else values[positions]


def _field(data: object, name: str) -> Array | None:
    value = getattr(data, name, None)
    return None if value is None else checks.array(f"data.{name}", value)


def _split_of_pyg(data: object, num_nodes: int, column: int | None) -> npt.NDArray[np.int8]:  # [num_nodes]
    """Reads masks or indices of train, val and test.

    `column` is the split wanted of masks that hold several.
    """
    found = [
        next((name for name in (f"{part}_mask", f"{part}_idx") if getattr(data, name, None) is not None), None)
        for part in ("train", "val", "test")
    ]
    given = [None if name is None else _field(data, name) for name in found]
    if column is not None and all(values is None or values.ndim != 2 for values in given):
        raise UserError(f"split={column}, but data holds no masks of several splits")
    return Split.of_masks(
        *(
            np.zeros(num_nodes, np.bool_) if values is None else _mask(f"data.{name}", values, num_nodes, column)
            for name, values in zip(found, given, strict=True)
        )
    )


def _mask(name: str, values: Array, num_nodes: int, column: int | None) -> npt.NDArray[np.bool_]:  # [num_nodes]
    """Reads a mask [num_nodes], a column of masks [num_nodes, splits], or node ids."""
    if values.ndim == 2:
        last = values.shape[1] - 1
        if column is None:
            raise UserError(f"{name} has shape {list(values.shape)}, one column a split: choose with split=0..{last}")
        values = values[:, whole("split", column, 0, last)]
    if values.dtype in (np.bool_, np.uint8):  # torch's masks were uint8 once
        if values.shape != (num_nodes,):
            raise UserError(f"{name} has shape {list(values.shape)}, expected [{num_nodes}]")
        return values.astype(np.bool_)
    ids = checks.integers(name, values)
    checks.check_range(name, ids, 0, num_nodes)
    mask = np.bincount(ids, minlength=num_nodes) if len(ids) else np.zeros(num_nodes, np.int64)
    if mask.max(initial=0) > 1:
        raise UserError(f"{name} names node {mask.argmax()} twice: masks must be bool, node ids distinct")
    return mask.astype(np.bool_)


def _named_splits(names: Array, num_nodes: int) -> npt.NDArray[np.int8]:  # [num_nodes]
    if names.shape != (num_nodes,):
        raise UserError(f"split has shape {list(names.shape)}, expected [{num_nodes}]")
    words, word = np.unique(names, return_inverse=True)
    known = np.array([SPLITS.get(str(name), -1) for name in words], np.int8)
    split = known[word.reshape(-1)] if len(words) else np.empty(0, np.int8)
    bad = np.flatnonzero(split < 0)
    if len(bad):
        raise UserError(f"split[{bad[0]}] = {str(names[bad[0]])!r} is none of train, val, test, none")
    return split


def _features(name: str, values: object, num_rows: int) -> Floats:
    """Reads rows of numbers that float32 can hold."""
    return checks.floats(name, values, (num_rows, None), bound=checks.FLOAT32_MAX)


def _node_features(features: Features, num_nodes: int) -> Features:
    if not isinstance(features, SparseFeatures):
        return _features("features", features, num_nodes)
    if len(features) != num_nodes:
        raise UserError(f"features has shape {list(features.shape)}, expected [{num_nodes}, any]")
    return features


def _rows(features: object) -> Features:
    return features if isinstance(features, SparseFeatures) else checks.array("features", features)


def _by_column(csr: CSC) -> CSC:
    """Sorts the columns of each row, as int32.

    Raises `UserError` for a column that stands twice.
    """
    if csr.indices.dtype != np.int32:
        csr = replace(csr, indices=csr.indices.astype(np.int32))
    if _unsorted(csr).any():
        order = np.lexsort((csr.indices, np.repeat(np.arange(csr.num_nodes), np.diff(csr.indptr))))
        csr = replace(csr, indices=csr.indices[order], weight=_take(csr.weight, order))
    bad = np.flatnonzero(_unsorted(csr))
    if len(bad):
        row = np.searchsorted(csr.indptr, bad[0], side="right") - 1
        raise UserError(f"features: row {row} has column {csr.indices[bad[0]]} twice")
    return csr


def _unsorted(csr: CSC) -> npt.NDArray[np.bool_]:  # [num_edges]
    """Says which entries of a row are not below the next one."""
    wrong = np.diff(csr.indices, append=csr.num_sources) <= 0
    ends = csr.indptr[1:] - 1
    wrong[ends[ends >= 0]] = False
    return wrong


def _optional(name: str, values: object | None, num_rows: int) -> Floats | None:
    return None if values is None else _features(name, values, num_rows)


def _positions(values: object | None, num_edges: int) -> Ids | None:
    if values is None:
        return None
    positions = checks.ids("edge_positions", checks.integers("edge_positions", values, num_edges))
    checks.check_range("edge_positions", positions, 0, 2**63)
    return positions


def _pairs(name: str, values: object | None, num_nodes: int) -> npt.NDArray[np.int64] | None:
    """Reads pairs of nodes.

    Args:
        name: argument, for the message.
        values: [num_pairs, 2] ids, or None.
        num_nodes: number of nodes.
    """
    if values is None:
        return None
    pairs = checks.array(name, values)
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise UserError(f"{name} has shape {list(pairs.shape)}, expected rows of source and destination")
    ends = checks.int64s(name, pairs.reshape(-1))
    bad = np.flatnonzero((ends < 0) | (ends >= num_nodes))
    if len(bad):
        place = f"{name}[{bad[0] // 2}, {bad[0] % 2}]"
        raise UserError(f"{place} = {ends[bad[0]]} is out of range for {num_nodes} nodes")
    return np.ascontiguousarray(ends.reshape(-1, 2))


def _node_ids(values: object | None, num_nodes: int) -> Array | None:
    """Reads the user's ids of nodes, if there are any."""
    if values is None:
        return None
    ids = checks.array("node_ids", values)
    if ids.shape != (num_nodes,) or (ids.dtype.kind not in "iuU" and num_nodes):
        given = f"{ids.dtype} of shape {list(ids.shape)}"
        raise UserError(f"node_ids are {given}, expected [{num_nodes}] whole numbers or text")
    return ids


def _weights(values: object | None, num_edges: int) -> Floats | None:
    """Reads edge weights, float32 or float64, if there are any."""
    if values is None:
        return None
    weight = checks.floats("weight", values, (num_edges,))
    return weight.astype(np.promote_types(weight.dtype, np.float32), copy=False)


def read_labels(values: object, num_nodes: int, num_classes: int | None = None) -> Labels:
    """Reads labels of nodes, in one of three forms.

    Integers in one dimension are classes, -1 for none. Booleans, or integers 0 and 1,
    in two dimensions are sets of classes. Floating-point numbers in one or two
    dimensions are numbers to predict, NaN for none.

    Args:
        values: [num_nodes] or [num_nodes, ...] labels.
        num_nodes: number of nodes.
        num_classes: number of class names. None: there are no names.
    """
    given = checks.array("labels", values)
    if given.dtype.kind == "f" and given.size:
        return _numbers(given, num_nodes)
    if given.ndim == 2:
        return _class_sets(given, num_nodes, num_classes)
    labels = checks.int64s("labels", given, num_nodes)
    checks.check_range("labels", labels, -1, max(num_nodes, _MAX_CLASSES) if num_classes is None else num_classes)
    return labels


def labelled(labels: Labels) -> npt.NDArray[np.bool_]:  # [num_nodes]
    """Says which rows of labels hold a label."""
    if labels.dtype.kind == "f":
        known: npt.NDArray[np.bool_] = ~np.isnan(labels)
        return known if known.ndim == 1 else np.asarray(known.any(axis=1))
    return np.ones(len(labels), np.bool_) if labels.ndim == 2 else labels >= 0


def _numbers(given: Array, num_nodes: int) -> Labels:
    if given.ndim not in (1, 2) or len(given) != num_nodes or not given.shape[-1]:
        raise UserError(f"labels has shape {list(given.shape)}, expected [{num_nodes}] or [{num_nodes}, numbers]")
    labels = np.ascontiguousarray(given, np.float64 if given.itemsize > 4 else np.float32)
    with np.errstate(invalid="ignore"):
        bad = np.argwhere(np.abs(labels) > checks.FLOAT32_MAX)
    if len(bad):
        place = bad[0].tolist()
        raise UserError(f"labels{place} = {labels[tuple(place)]} is too large for float32: NaN stands for no label")
    return labels


def _class_sets(given: Array, num_nodes: int, num_classes: int | None) -> Labels:
    if given.dtype.kind not in "iub" or len(given) != num_nodes or not given.shape[1]:
        raise UserError(
            f"labels has dtype {given.dtype}, shape {list(given.shape)}, expected 0 and 1 of shape "
            f"[{num_nodes}, classes]"
        )
    if num_classes not in (None, given.shape[1]):
        raise UserError(f"labels has {given.shape[1]} columns, but there are {num_classes} class names")
    if given.dtype != np.bool_:
        bad = np.argwhere((given != 0) & (given != 1))
        if len(bad):
            place = bad[0].tolist()
            raise UserError(f"labels{place} = {given[tuple(place)]}: labels of two dimensions are 0 or 1, or floating")
    return np.ascontiguousarray(given, np.bool_)


def _check_labelled(labels: Labels, split: Ids) -> None:
    """Refuses nodes in use without a label."""
    bad = np.flatnonzero((split != Split.NONE) & ~labelled(labels))
    if len(bad):
        node = bad[0]
        raise UserError(
            f"split[{node}] = {split[node]} ({Split(split[node]).name}), but labels[{node}] = {labels[node]}: no label"
        )
