"""The values that everything else passes on: CSC, Graph, Block and MiniBatch. NumPy only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit import _core
from gnnkit.storage import load_arrays, save_arrays

Ids = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.floating[Any]]

_CHUNK = 1 << 20  # numbers looked at in one step of a check
_MAX_CLASSES = 1 << 16  # labels beyond this and the number of nodes are no labels


class Split(IntEnum):
    """What a node is used for; the values of `Graph.split`."""

    NONE = 0
    TRAIN = 1
    VAL = 2
    TEST = 3

    @staticmethod
    def of_masks(train: npt.ArrayLike, val: npt.ArrayLike, test: npt.ArrayLike) -> npt.NDArray[np.int8]:
        """The values of `Graph.split` from three masks [num_nodes]. Raises `ValueError` for a node in two of them."""
        masks = [np.asarray(mask) for mask in (train, val, test)]
        for name, mask in zip(("train", "val", "test"), masks, strict=True):
            if mask.dtype != np.bool_ or mask.shape != masks[0].shape or mask.ndim != 1:
                raise ValueError(
                    f"{name} mask has dtype {mask.dtype}, shape {mask.shape}, expected bool, {masks[0].shape}"
                )
        twice = np.flatnonzero(np.sum(masks, axis=0, dtype=np.int8) > 1)
        if len(twice):
            raise ValueError(f"node {twice[0]} is in more than one of the train, val and test masks")
        return np.select(masks, [Split.TRAIN, Split.VAL, Split.TEST], Split.NONE).astype(np.int8)


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class CSC:
    """In-edges by destination: node v reads from `indices[indptr[v]:indptr[v + 1]]`.

    Edge ids are positions in `indices`. The constructor checks every value once, in native code on one thread, and
    raises `ValueError` naming the first one that is wrong and its place. Contiguous arrays of the types below are taken
    as they are, memory-mapped ones too; others are copied.
    """

    indptr: Ids  # [num_nodes + 1] int64
    indices: Ids  # [num_edges] int32 or int64, source of each edge
    weight: Floats | None = None  # [num_edges] finite
    num_sources: int = -1  # sources are 0..num_sources-1; -1: as many as destinations

    def __post_init__(self) -> None:
        indptr = _ids("indptr", self.indptr).astype(np.int64, copy=False)
        indices = _ids("indices", self.indices)
        num_sources = len(indptr) - 1 if self.num_sources == -1 else self.num_sources
        if num_sources < 0 and len(indptr):
            raise ValueError(f"num_sources = {num_sources} is negative")
        _core.check_csc(indptr, indices, max(num_sources, 0))
        weight = None if self.weight is None else _weights(self.weight, len(indices))
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
        """The graph of the edges `src[i] -> dst[i]`; in-edges of a node are ordered by source, then by i.

        Parallel edges and self-loops stay. `indices` are int32 where all ids fit. `threads` defaults to the cores at
        hand; the result does not depend on it, and no thread outlives the call. Raises `ValueError` for ids out of
        range.
        """
        src, dst = _ids("src", src), _ids("dst", dst)
        num_sources = num_nodes if num_sources is None else num_sources
        csc, positions = _sort(src, dst, num_nodes, num_sources, weight is not None, threads)
        return csc if weight is None else replace(csc, weight=_weights(weight, len(src))[positions])

    @property
    def num_nodes(self) -> int:
        """Number of destinations."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        return len(self.indices)

    def transpose(self, *, threads: int | None = None) -> tuple[CSC, Ids]:
        """The graph with every edge turned around, and the position here of each of its edges [num_edges] int64."""
        indptr, indices, positions = _core.csc_transpose(self.indptr, self.indices, self.num_sources, threads)
        return CSC(indptr, indices, _take(self.weight, positions), num_sources=self.num_nodes), positions

    def symmetrize(self, *, threads: int | None = None) -> tuple[CSC, Ids]:
        """The graph with the reverse of each edge u -> v that has no edge v -> u, and for each of its edges the
        position here of the edge that it is or reverses [edges] int64; weights are copied.

        Each of k parallel edges is reversed; a pair joined in both directions stays as it is, even where the numbers or
        weights of its parallel edges differ. Raises `ValueError` unless sources and destinations are the same nodes.
        """
        if self.num_sources != self.num_nodes:
            raise ValueError(f"{self.num_sources} sources and {self.num_nodes} destinations cannot be symmetrized")
        indptr, indices, positions = _core.csc_symmetrize(self.indptr, self.indices, threads)
        return CSC(indptr, indices, _take(self.weight, positions)), positions

    def in_degree(self) -> npt.NDArray[np.float64]:  # [num_nodes]
        """Sum of the weights of each destination's in-edges; their number where there are no weights."""
        return _core.csc_degrees(self.indptr, self.indices, self.num_sources, self.weight)[0]

    def out_degree(self) -> npt.NDArray[np.float64]:  # [num_sources]
        """Sum of the weights of each source's out-edges; their number where there are no weights."""
        return _core.csc_degrees(self.indptr, self.indices, self.num_sources, self.weight)[1]


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A graph with what is known of its nodes and edges.

    Node ids are 0..num_nodes-1, edge ids positions in `csc.indices`. The constructor checks shapes and values and
    raises `ValueError` naming the first one that is wrong and its place. Contiguous arrays of the types below are taken
    as they are, memory-mapped ones too; others are copied.
    """

    csc: CSC
    features: Floats  # [num_nodes, width] finite
    labels: Ids  # [num_nodes] int64, -1: no label
    split: npt.NDArray[np.int8]  # [num_nodes] values of `Split`; nodes in use have a label
    edge_features: Floats | None = None  # [num_edges, edge_width] finite
    coordinates: Floats | None = None  # [num_nodes, 2 or 3] finite
    class_names: tuple[str, ...] | None = field(default=None, kw_only=True)  # [num_classes]

    def __post_init__(self) -> None:
        n = self.csc.num_nodes
        if self.csc.num_sources != n:
            raise ValueError(f"a graph's edges join its own nodes, got {self.csc.num_sources} sources for {n} nodes")
        labels = np.ascontiguousarray(_integers("labels", self.labels, n), np.int64)
        _check_range("labels", labels, -1, max(n, _MAX_CLASSES) if self.class_names is None else len(self.class_names))
        split = _integers("split", self.split, n)
        _check_range("split", split, 0, len(Split))
        _check_labelled(labels, split)
        _set(
            self,
            features=_floats("features", self.features, (n, None)),
            labels=labels,
            split=np.ascontiguousarray(split, np.int8),
            edge_features=_optional("edge_features", self.edge_features, (self.num_edges, None)),
            coordinates=_optional("coordinates", self.coordinates, (n, None)),
        )
        if self.coordinates is not None and self.coordinates.shape[1] not in (2, 3):
            raise ValueError(f"coordinates have {self.coordinates.shape[1]} dimensions, expected 2 or 3")

    @classmethod
    def from_edges(
        cls,
        src: npt.ArrayLike,  # [num_edges]
        dst: npt.ArrayLike,  # [num_edges]
        num_nodes: int | None = None,
        *,
        features: npt.ArrayLike | None = None,  # [num_nodes, width]
        labels: npt.ArrayLike | None = None,  # [num_nodes]
        split: npt.ArrayLike | None = None,  # [num_nodes]
        weight: npt.ArrayLike | None = None,  # [num_edges]
        edge_features: npt.ArrayLike | None = None,  # [num_edges, edge_width]
        coordinates: npt.ArrayLike | None = None,  # [num_nodes, 2 or 3]
        class_names: Sequence[str] | None = None,
        threads: int | None = None,
    ) -> Graph:
        """The graph of the edges `src[i] -> dst[i]`; weights and edge features follow their edges into the CSC's order.

        Without `num_nodes` there are as many nodes as rows of features, or else as the ids ask for. Without features
        the width is 0; without labels and split no node has one. `threads` as for `CSC.from_edges`.
        """
        src, dst = _ids("src", src), _ids("dst", dst)
        num_nodes = _count_nodes(src, dst, features) if num_nodes is None else num_nodes
        edge_features = _optional("edge_features", edge_features, (len(src), None))
        weight = None if weight is None else _weights(weight, len(src))
        in_order = weight is not None or edge_features is not None
        csc, positions = _sort(src, dst, num_nodes, num_nodes, in_order, threads)
        return cls(
            csc if weight is None else replace(csc, weight=weight[positions]),
            features=np.empty((num_nodes, 0), np.float32) if features is None else _array(features),
            labels=np.full(num_nodes, -1) if labels is None else _array(labels),
            split=np.zeros(num_nodes, np.int8) if split is None else _array(split),
            edge_features=_take(edge_features, positions),
            coordinates=None if coordinates is None else _array(coordinates),
            class_names=None if class_names is None else tuple(class_names),
        )

    @classmethod
    def from_pyg(cls, data: Any) -> Graph:
        """The graph of a `torch_geometric.data.Data`: `edge_index`, and where present `x`, `y`, `train_mask`,
        `val_mask`, `test_mask` [num_nodes], `edge_weight`, `edge_attr` and `pos` of 2 or 3 dimensions.

        Edges are put into the order of the CSC. Raises `ValueError` for what does not fit, as several columns of masks.
        """
        edge_index, y, pos = (_field(data, name) for name in ("edge_index", "y", "pos"))
        if edge_index is None or edge_index.ndim != 2 or len(edge_index) != 2:
            raise ValueError("data.edge_index must have shape [2, num_edges]; other forms of edges are not read")
        masks = [_field(data, f"{name}_mask") for name in ("train", "val", "test")]
        none = np.zeros(data.num_nodes, np.bool_)
        edge_attr = _field(data, "edge_attr")
        return cls.from_edges(
            edge_index[0],
            edge_index[1],
            int(data.num_nodes),
            features=_field(data, "x"),
            labels=y[:, 0] if y is not None and y.shape[1:] == (1,) else y,
            split=Split.of_masks(*(none if mask is None else mask for mask in masks)),
            weight=_field(data, "edge_weight"),
            edge_features=edge_attr[:, None] if edge_attr is not None and edge_attr.ndim == 1 else edge_attr,
            coordinates=pos if pos is not None and pos.shape[1:] in ((2,), (3,)) else None,
        )

    @classmethod
    def of(cls, value: Any) -> Graph:
        """The graph itself, or that of PyG's `Data`."""
        return value if isinstance(value, cls) else cls.from_pyg(value)

    @classmethod
    def load(cls, folder: str | Path) -> Graph:
        """The graph that `save` wrote, memory-mapped read-only. Raises `ValueError` naming file and place."""
        folder = Path(folder)
        arrays, meta = load_arrays(folder)
        try:
            csc = CSC(arrays["indptr"], arrays["indices"], arrays.get("weight"))
            names = meta["class_names"]
            return cls(
                csc,
                arrays["features"],
                arrays["labels"],
                arrays["split"],
                arrays.get("edge_features"),
                arrays.get("coordinates"),
                class_names=None if names is None else tuple(map(str, names)),
            )
        except KeyError as error:
            raise ValueError(f"{folder} holds no {error.args[0]}") from None
        except ValueError as error:
            raise ValueError(f"{folder}: {error}") from None

    def save(self, folder: str | Path) -> None:
        """Writes the graph into `folder`, one .npy per array, whole or not at all; a graph saved there is replaced."""
        arrays = {
            "indptr": self.csc.indptr,
            "indices": self.csc.indices,
            "weight": self.csc.weight,
            "features": self.features,
            "labels": self.labels,
            "split": self.split,
            "edge_features": self.edge_features,
            "coordinates": self.coordinates,
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
        """One more than the largest label, or as many as there are class names."""
        return int(self.labels.max(initial=-1)) + 1 if self.class_names is None else len(self.class_names)

    def symmetrize(self, *, threads: int | None = None) -> Graph:
        """The graph with the reverse edges that it lacks, as `CSC.symmetrize` adds them; edge features are copied."""
        csc, positions = self.csc.symmetrize(threads=threads)
        return replace(self, csc=csc, edge_features=_take(self.edge_features, positions))

    def row_normalize(self) -> Graph:
        """The graph with each row of features divided by the sum of its absolute values; rows of zeros stay."""
        result = np.abs(self.features)
        sums = result.sum(axis=1, keepdims=True, dtype=np.float64).astype(np.promote_types(result.dtype, np.float32))
        np.divide(self.features, np.where(sums == 0, 1, sums), out=result)
        return replace(self, features=result)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """One hop of a sampled batch: edges into the first `num_dst` of `src_nodes`, renumbered from zero (DGL's MFG)."""

    indptr: Ids  # [num_dst + 1] int64
    indices: Ids  # [num_edges] position of each edge's source in `src_nodes`
    src_nodes: Ids  # [num_src] global ids; the first num_dst are the destinations
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


def _set(value: CSC | Graph, **fields: object) -> None:
    """Fills in what a frozen value's constructor has checked."""
    for name, array in fields.items():
        object.__setattr__(value, name, array)


def _sort(
    src: Ids, dst: Ids, num_nodes: int, num_sources: int, positions: bool, threads: int | None
) -> tuple[CSC, Ids]:
    """The CSC of an edge list and, where wanted, the position of each of its edges."""
    if num_nodes < 0 or num_sources < 0:
        raise ValueError(f"num_nodes = {min(num_nodes, num_sources)} is negative")
    indptr, indices, order = _core.csc_from_edges(src, dst, num_nodes, num_sources, positions, threads)
    return CSC(indptr, indices, num_sources=num_sources), order


def _count_nodes(src: Ids, dst: Ids, features: object | None) -> int:
    if features is not None:
        return len(_array(features))
    return 1 + max(int(src.max(initial=-1)), int(dst.max(initial=-1)))


def _take(values: Floats | None, positions: Ids) -> Floats | None:
    return None if values is None else values[positions]


def _field(data: object, name: str) -> npt.NDArray[Any] | None:
    value = getattr(data, name, None)
    return None if value is None else _array(value)


def _array(values: object) -> npt.NDArray[Any]:
    """NumPy's view of an array, a list or a torch tensor, which need not be imported for that."""
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)


def _integers(name: str, values: object, length: int | None = None) -> Ids:
    """A row of integers [length] (None: any), of whatever type."""
    array = _array(values)
    if array.ndim != 1:
        raise ValueError(f"{name} has shape {array.shape}, expected one dimension")
    if array.dtype.kind not in "iu" and array.size:
        raise ValueError(f"{name} has dtype {array.dtype}, expected integers")
    if length is not None and len(array) != length:
        raise ValueError(f"{name} has {len(array)} entries, expected {length}")
    return array


def _ids(name: str, values: object) -> Ids:
    """Integers, contiguous: int32 where their type fits, else int64."""
    array = _integers(name, values)
    narrow = array.dtype.kind in "iu" and np.can_cast(array.dtype, np.int32)
    return np.ascontiguousarray(array, dtype=np.int32 if narrow else np.int64)


def _floats(name: str, values: object, shape: tuple[int | None, ...]) -> Floats:
    """Finite numbers of the given shape (None: any), contiguous; integers become float32 or float64."""
    array = _array(values)
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{name} has dtype {array.dtype}, expected numbers")
    if array.ndim != len(shape) or any(want not in (None, have) for want, have in zip(shape, array.shape, strict=True)):
        expected = ", ".join("any" if want is None else str(want) for want in shape)
        raise ValueError(f"{name} has shape {list(array.shape)}, expected [{expected}]")
    dtype = array.dtype if array.dtype.kind == "f" else np.result_type(array.dtype, np.float32)
    array = np.ascontiguousarray(array, dtype=np.float64 if dtype.itemsize > 8 else dtype.newbyteorder("="))
    _check_finite(name, array)
    return array


def _optional(name: str, values: object | None, shape: tuple[int | None, ...]) -> Floats | None:
    return None if values is None else _floats(name, values, shape)


def _weights(values: object, num_edges: int) -> Floats:
    """Edge weights, float32 or float64."""
    weight = _floats("weight", values, (num_edges,))
    return weight.astype(np.promote_types(weight.dtype, np.float32), copy=False)


def _check_finite(name: str, array: Floats) -> None:
    """One pass in chunks: arrays may be larger than memory."""
    step = max(1, _CHUNK // max(1, array[:1].size))
    for start in range(0, len(array), step):
        finite = np.isfinite(array[start : start + step])
        if not finite.all():
            place = np.argwhere(~finite)[0] + [start, 0][: array.ndim]
            raise ValueError(f"{name}{place.tolist()} = {array[tuple(place)]} is not finite")


def _check_range(name: str, array: Ids, low: int, high: int) -> None:
    bad = np.flatnonzero((array < low) | (array >= high))
    if len(bad):
        raise ValueError(f"{name}[{bad[0]}] = {array[bad[0]]} is out of range {low}..{high - 1}")


def _check_labelled(labels: Ids, split: Ids) -> None:
    bad = np.flatnonzero((split != Split.NONE) & (labels < 0))
    if len(bad):
        node = bad[0]
        raise ValueError(
            f"split[{node}] = {split[node]} ({Split(split[node]).name}), but labels[{node}] = -1: no label"
        )
