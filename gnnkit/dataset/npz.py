"""Graphs in one .npz file."""

from __future__ import annotations

import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np

from gnnkit.checks import whole
from gnnkit.dataset.base import Dataset, blame
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Features, Graph, SparseFeatures, Split
from gnnkit.storage import Array, check_npy, check_regular

# Errors of zipfile for files that are not, or no longer, zip archives.
_BAD_ZIP = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError, OverflowError)
_MASKS = ("train_mask", "val_mask", "test_mask")


class Npz(Dataset):
    """One compressed file, the usual form of Planetoid and gnn-benchmark graphs.

    The file holds these arrays:

    - `indptr`, `indices`: CSR. Row v lists the nodes that v reads from.
    - `weight`: [num_edges], optional.
    - `x`: dense features, or `x_indptr`, `x_indices`, `x_shape` and `x_data` of sparse
      features, kept as `SparseFeatures`. Without `x_data`, the features are ones.
    - `y`: [num_nodes] classes, -1 for none, or another form of `Graph.labels`.
    - `train_mask`, `val_mask`, `test_mask`: [num_nodes], or
      `train_masks`, ... [splits, num_nodes].
    - `val_edges`, `test_edges`: [k, 2] sources and destinations, for
      `task=link_prediction`. Optional.
    """

    def __init__(
        self, root: str, split: int | None = None, symmetrize: bool = False, row_normalize: bool = False
    ) -> None:
        """Keeps the options.

        Args:
            root: the file.
            split: row of `train_masks`, ..., from 0. Default: `train_mask`, ...
            symmetrize: add the reverse edges that are missing. Default: no.
            row_normalize: divide each node's features by the sum. Default: no.
        """
        self.root = Path(root)
        self.split = None if split is None else whole("dataset.split", split)
        self.symmetrize = symmetrize
        self.row_normalize = row_normalize

    def load(self) -> Graph:
        with blame(f"dataset.root={self.root}"), _Fields(self.root) as fields:
            csc = CSC(fields["indptr"], fields["indices"], fields.optional("weight"))
            graph = Graph(
                csc,
                _features(fields, csc.num_nodes),
                fields["y"],
                self._masks(fields),
                val_edges=fields.optional("val_edges"),
                test_edges=fields.optional("test_edges"),
            )
        graph = graph.symmetrize() if self.symmetrize else graph
        return graph.row_normalize() if self.row_normalize else graph

    def _masks(self, fields: _Fields) -> Array:
        if self.split is None:
            return Split.of_masks(*(fields[name] for name in _MASKS))
        masks = [fields[f"{name}s"] for name in _MASKS]
        for name, mask in zip(_MASKS, masks, strict=True):
            if mask.ndim != 2:
                raise UserError(f"{name}s has shape {list(mask.shape)}, expected [splits, num_nodes]")
        if not 0 <= self.split < min(map(len, masks)):
            raise UserError(f"dataset.split={self.split} is out of range for {min(map(len, masks))} splits")
        return Split.of_masks(*(mask[self.split] for mask in masks))


class _Fields:
    """The arrays of an .npz file. Each is checked against the file's size at first."""

    # Deflate makes nothing smaller than this.
    MAX_RATIO = 1032

    def __init__(self, path: Path) -> None:
        check_regular(path)
        try:
            self._zip = zipfile.ZipFile(path)
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}") from error
        except _BAD_ZIP as error:
            raise UserError(f"not an .npz file: {error}") from error

    def __enter__(self) -> _Fields:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def __contains__(self, name: str) -> bool:
        return f"{name}.npy" in self._zip.namelist()

    def __getitem__(self, name: str) -> Array:
        if name not in self:
            raise UserError(f"no array {name!r}, only {sorted(self._zip.namelist())}")
        info = self._zip.getinfo(f"{name}.npy")
        try:
            with self._zip.open(info) as file:
                check_npy(file, min(info.file_size, info.compress_size * self.MAX_RATIO), name)
                file.seek(0)
                return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
        except (*_BAD_ZIP, OSError) as error:
            raise UserError(f"{name} cannot be read: {error}") from error

    def optional(self, name: str) -> Array | None:
        """Reads an array, or returns None if there is none."""
        if name not in self:
            return None
        return self[name]


def _features(fields: _Fields, num_nodes: int) -> Features:
    if "x" in fields:
        return fields["x"]
    shape = fields["x_shape"]
    if shape.shape != (2,) or shape.dtype.kind not in "iu" or shape[0] != num_nodes or shape[1] < 0:
        raise UserError(f"x_shape = {shape.tolist()}, expected ({num_nodes}, width)")
    with blame("x_indptr, x_indices, x_data"):
        data = fields.optional("x_data")
        return SparseFeatures(CSC(fields["x_indptr"], fields["x_indices"], data, num_sources=int(shape[1])))
