"""Graphs in a single .npz file."""

from __future__ import annotations

import math
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from gnnkit.dataset.base import Dataset, blame, finished, sources_by_row, warn_unlabelled, with_split
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Features, Graph, SparseFeatures, Split, read_split
from gnnkit.graph.graph import HELD_OUT
from gnnkit.graph.labels import settle_labels
from gnnkit.graph.times import TIME_FIELDS, read_time_fields
from gnnkit.graph.types import Fields
from gnnkit.utils.checks import whole
from gnnkit.utils.documents import check_regular
from gnnkit.utils.memory import available_memory
from gnnkit.utils.ranges import local_path
from gnnkit.utils.storage import Array, check_npy

# zipfile's exceptions for files that are not valid archives.
BAD_ZIP = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError, OverflowError)
_SMALL = 1 << 24  # arrays up to this size are read without a memory check


class Arrays:
    """The arrays of an .npz file. Headers are checked against the file size."""

    def __init__(self, path: Path) -> None:
        check_regular(path)
        try:
            self.file = zipfile.ZipFile(path)
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}") from error
        except BAD_ZIP as error:
            raise UserError(f"not an .npz file: {error}") from error

    def __enter__(self) -> Arrays:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    @property
    def names(self) -> list[str]:
        """Names of the arrays."""
        return [name.removesuffix(".npy") for name in self.file.namelist()]

    def __contains__(self, name: str) -> bool:
        return f"{name}.npy" in self.file.namelist()

    def __getitem__(self, name: str) -> Array:
        with self.open(name) as (file, (shape, _, dtype)):
            _check_memory(name, math.prod(shape) * dtype.itemsize, self.file.getinfo(f"{name}.npy").compress_size)
            file.seek(0)
            return np.asarray(np.lib.format.read_array(file, allow_pickle=False))

    def optional(self, name: str) -> Array | None:
        """Reads an array. Returns None if it is missing."""
        return self[name] if name in self else None  # noqa: SIM401 - there is no `get`

    @contextmanager
    def open(self, name: str) -> Iterator[tuple[IO[bytes], tuple[tuple[int, ...], bool, np.dtype[Any]]]]:
        """Opens an array, and yields its file with the checked header."""
        if name not in self:
            raise UserError(f"no array {name!r}, only {sorted(self.file.namelist())}")
        info = self.file.getinfo(f"{name}.npy")
        try:
            with self.file.open(info) as file:
                # Deflate compresses at most by this ratio.
                yield file, check_npy(file, min(info.file_size, info.compress_size * 1032), name)
        except (*BAD_ZIP, OSError) as error:
            raise UserError(f"{name} cannot be read: {error}") from error


def _check_memory(name: str, size: int, packed_size: int) -> None:
    """Raises `UserError` for an array that exceeds free memory.

    A file of 8 MB may unpack to 8 GB. Any ratio is accepted if the memory suffices.
    """
    room = available_memory()
    if size > _SMALL and size > room:
        raise UserError(
            f"{name} unpacks from {packed_size:,} to {size:,} bytes, and {room:,.0f} bytes of memory are free: import the "
            "file with job=import, which reads it in pieces, or take a machine with more memory"
        )


_MASKS = ("train_mask", "val_mask", "test_mask")


class Npz(Dataset):
    """A compressed file, the usual format for Planetoid and gnn-benchmark graphs.

    The file contains these arrays:

    - `indptr`, `indices`: CSR. Row v lists the sources of v's in-edges.
    - `weight`: [num_edges], optional.
    - `x`: dense features. Or `x_indptr`, `x_indices`, `x_shape` and `x_data` of sparse
    features, kept as `SparseFeatures`. Without `x_data`, all values are 1.
    - `y`: [num_nodes] classes, -1 for unlabelled, or another format of `Graph.labels`,
    optional.
    - `train_mask`, `val_mask`, `test_mask`: [num_nodes], or
    `train_masks`, ... [splits, num_nodes], optional.
    - `edge_time`: [num_edges], and `node_time`: [num_nodes], integers or datetime64,
    optional.
    - `val_edges`, `test_edges`: [k, 2] sources and destinations, for
    `task=link_prediction`. Optional.
    - `val_negatives`, `test_negatives`: [k, negatives] destinations with which each of
    these edges is compared, or each edge that a split by time holds out. Optional.

    Alternatively, it contains gnn-benchmark's arrays: `adj_indptr`, `adj_indices`,
    `adj_shape`, `adj_data` and the same for `attr`, as CSR, where row v lists the
    targets of v's edges, and `labels`.
    """

    def __init__(
        self,
        root: str,
        split: int | Sequence[float] | Mapping[str, Any] | None = None,
        symmetrize: bool = False,
        row_normalize: bool = False,
        seed: int = 0,
        edge_label: str | None = None,
    ) -> None:
        """Creates the data set.

        Args:
            root: The file.
            split: Row of `train_masks`, ..., from 0. Or, for a file without masks,
                shares of the labelled nodes for training, validation and test, or by
                time as for `dataset=edges`. Default: `train_mask`, ..., if present.
            symmetrize: Add missing reverse edges. Default: no.
            row_normalize: Divide each node's features by their sum. Default: no.
            seed: Seed of the drawn split.
            edge_label: Name of an array [num_edges, ...] with labels of edges, in the
                order of `indices`. An array `edge_split` [num_edges] divides them.
        """
        self.edge_label = edge_label
        self.root = local_path("dataset.root", root)
        shares = split is None or isinstance(split, Sequence | Mapping)
        self.row = None if shares else whole("dataset.split", split)
        self.shares = read_split("dataset.split", split if shares else None)
        self.seed = whole("dataset.seed", seed, 0)
        self.symmetrize = symmetrize
        self.row_normalize = row_normalize

    def load(self) -> Graph:
        with blame(f"dataset.root={self.root}"), Arrays(self.root) as fields:
            graph = self._gnn_benchmark(fields) if "adj_indptr" in fields else self._planetoid(fields)
            graph = with_split(graph, self.shares, self.seed)
        return finished(graph, self.symmetrize, self.row_normalize)

    def _planetoid(self, fields: Arrays) -> Graph:
        csc = CSC(fields["indptr"], fields["indices"], fields.optional("weight"))
        held_out: Fields = {name: fields.optional(name) for name in HELD_OUT}
        labels = np.full(csc.num_nodes, -1) if (classes := fields.optional("y")) is None else classes
        return Graph(
            csc,
            _features(fields, "x", csc.num_nodes),
            settle_labels(labels),
            self.masks(fields, csc.num_nodes),
            **self._edge_labels(fields),
            **held_out,
            **read_time_fields({name: fields.optional(name) for name in TIME_FIELDS}),
        )

    def _edge_labels(self, fields: Arrays) -> dict[str, Any]:
        if self.edge_label is None:
            return {}
        if self.edge_label not in fields:
            warn_unlabelled("the file", self.edge_label, fields.names)
            return {"edge_labels": np.full(fields["indices"].shape, -1)}
        return {"edge_labels": settle_labels(fields[self.edge_label]), "edge_split": fields.optional("edge_split")}

    def _gnn_benchmark(self, fields: Arrays) -> Graph:
        self.refuse_row()
        with blame("adj_indptr, adj_indices, adj_data"):
            arrays = (fields.optional(f"adj_{part}") for part in ("data", "shape"))
            csc = sources_by_row(fields["adj_indptr"], fields["adj_indices"], *arrays)
        none, labels = np.zeros(csc.num_nodes, np.int8), settle_labels(fields["labels"])
        return Graph(csc, _features(fields, "attr", csc.num_nodes), labels, none)

    def refuse_row(self) -> None:
        """Raises `UserError` if `dataset.split` selects a mask but there are none."""
        if self.row is not None:
            raise UserError(f"dataset.split={self.row} selects a mask, but the file has no masks")

    def masks(self, fields: Arrays, num_nodes: int) -> Array:  # [num_nodes]
        """Reads the split that `dataset.split` selects."""
        if self.row is None and not any(name in fields for name in _MASKS):
            if self.shares is None and "train_masks" in fields:
                warnings.warn("the file has several splits; use dataset.split=0 for the first one", stacklevel=4)
            return np.zeros(num_nodes, np.int8)
        if self.row is None:
            return Split.of_masks(*(fields[name] for name in _MASKS))
        masks = [fields[f"{name}s"] for name in _MASKS]
        for name, mask in zip(_MASKS, masks, strict=True):
            if mask.ndim != 2:
                raise UserError(f"{name}s has shape {list(mask.shape)}, expected [splits, num_nodes]")
        if not 0 <= self.row < min(map(len, masks)):
            raise UserError(f"dataset.split={self.row} is out of range for {min(map(len, masks))} splits")
        return Split.of_masks(*(mask[self.row] for mask in masks))


def _features(fields: Arrays, name: str, num_nodes: int) -> Features:
    """Reads dense or sparse features."""
    if name in fields:
        return fields[name]
    shape = fields[f"{name}_shape"]
    if shape.shape != (2,) or shape.dtype.kind not in "iu" or shape[0] != num_nodes or shape[1] < 0:
        raise UserError(f"{name}_shape = {shape.tolist()}, expected ({num_nodes}, width)")
    with blame(", ".join(f"{name}_{part}" for part in ("indptr", "indices", "data"))):
        data = fields.optional(f"{name}_data")
        return SparseFeatures(CSC(fields[f"{name}_indptr"], fields[f"{name}_indices"], data, num_sources=int(shape[1])))
