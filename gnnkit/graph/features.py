"""Node features: dense, packed or sparse."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit.errors import UserError
from gnnkit.graph.csc import CSC
from gnnkit.graph.types import Floats, Ids, offsets_of, set_fields, take
from gnnkit.utils import checks
from gnnkit.utils.checks import Array, rows_at_once, whole
from gnnkit.utils.ranges import MAX_COUNT


@dataclass(frozen=True, slots=True, eq=False)
class PackedFeatures:
    """Feature rows in bfloat16 or 8 bits, a half or a quarter of float32's size.

    The class has the shape of the rows. `features[ids]` and `features[:, columns]`
    select rows and columns, and `np.asarray(features)` returns float32. Raises
    `UserError` for arrays of other shapes and types.
    """

    kept: Array  # [n, width] uint16: bits of bfloat16. uint8: steps of `scale` above `offset`
    scale: Floats | None = None  # [width] float32. None: bfloat16
    offset: Floats | None = None  # [width] float32

    def __post_init__(self) -> None:
        kind, width = (np.uint16, None) if self.scale is None else (np.uint8, self.kept.shape[1:])
        for array in (self.scale, self.offset):
            right = array is None if width is None else array is not None and array.shape == width
            if not right or (array is not None and array.dtype != np.float32):
                raise UserError("features: the scale of packed rows must be float32, one number per column")
        if self.kept.dtype != kind or self.kept.ndim != 2:
            raise UserError(f"features: packed rows are {self.kept.dtype}, expected {np.dtype(kind)}")

    @property
    def name(self) -> str:
        """The value of `features.dtype`."""
        return "bf16" if self.scale is None else "int8"

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows, and width."""
        return self.kept.shape[0], self.kept.shape[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype that `np.asarray` returns."""
        return np.dtype(np.float32)

    @property
    def nbytes(self) -> int:
        return int(self.kept.nbytes)

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, key: Any) -> PackedFeatures:
        """Selects rows, or rows and columns, like NumPy."""
        columns = key[1] if isinstance(key, tuple) else slice(None)
        scale, offset = (None if array is None else array[columns] for array in (self.scale, self.offset))
        return PackedFeatures(self.kept[key], scale, offset)

    def with_rows(self, rows: Array) -> PackedFeatures:
        """Returns other rows with the same scale."""
        return replace(self, kept=rows)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Floats:  # [n, width]
        """Returns float32 rows. Raises `UserError` if they exceed memory."""
        try:
            if self.scale is None or self.offset is None:
                rows = self.kept.astype(np.uint32)
                rows <<= 16
                numbers: Floats = rows.view(np.float32)
            else:
                numbers = self.kept.astype(np.float32)
                numbers *= self.scale
                numbers += self.offset
        except MemoryError as error:
            raise UserError(f"features need {4 * math.prod(self.shape) / 1e9:.3g} GB of memory as float32") from error
        return numbers if dtype is None else numbers.astype(dtype, copy=False)


FILLED_BY = "choose features.fill=mean (of the nodes that train), zero, or drop (columns with empty cells), or fill the cells"  # remedies for empty cells
DENSE, PACKED = "features", "feature_bits"  # file names of dense and packed rows
SCALES = ("feature_scale", "feature_offset")  # file names of the scale and offset of packed rows


@dataclass(frozen=True, slots=True, eq=False)
class SparseFeatures:
    """Sparse feature rows that behave like the dense ones.

    Row v has the value `csr.weight[i]` in column `csr.indices[i]`, for each i in
    `csr.indptr[v]:csr.indptr[v + 1]`, and 0 elsewhere. The class has the shape and
    dtype of the dense rows. `features[ids]` selects rows, and `np.asarray(features)`
    densifies.

    The constructor sorts each row's columns. It raises `UserError` for duplicate
    columns in a row, for 2^31 columns or more, and for numbers beyond float32.

    Use it for bag-of-words and one-hot features: memory, the exchange between hosts and
    the first layer of models that `reads_sparse` are then proportional to the stored
    numbers.

    Examples:
        >>> import numpy
        >>> from gnnkit.graph import SparseFeatures
        >>> features = SparseFeatures.of(numpy.eye(4, dtype=numpy.float32))
        >>> features.shape, features.share, numpy.asarray(features[[2]]).tolist()
        ((4, 4), 0.25, [[0.0, 0.0, 1.0, 0.0]])
    """

    csr: CSC  # rows are destinations, columns are sources; weighted

    def __post_init__(self) -> None:
        if self.csr.num_sources > MAX_COUNT:
            raise UserError(f"features of shape {self.shape} have more than {MAX_COUNT} columns")
        csr = _sort_columns(self.csr)
        if csr.weight is None:
            csr = replace(csr, weight=np.ones(csr.num_edges, np.float32))
        elif csr.weight.itemsize > 4:  # CSC checks float32
            checks.check_finite("values", csr.weight, bound=checks.FLOAT32_MAX)
        set_fields(self, csr=csr)

    @classmethod
    def of(cls, features: Features) -> SparseFeatures:
        """Converts dense rows [num_nodes, width], dropping zeros.

        Sparse rows are returned as they are.
        """
        if isinstance(features, SparseFeatures):
            return features
        features = np.asarray(features)
        step = rows_at_once(features.shape[1])
        counts, columns, values = [np.zeros(1, np.int64)], [np.zeros(0, np.int32)], [np.zeros(0, features.dtype)]
        for start in range(0, len(features), step):
            chunk = features[start : start + step]
            row, column = np.nonzero(chunk)
            counts.append(np.bincount(row, minlength=len(chunk)))
            columns.append(column.astype(np.int32))
            values.append(chunk[row, column])
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
        """Density: the fraction of numbers that are not 0, 0 to 1."""
        return int(np.count_nonzero(self.values)) / max(math.prod(self.shape), 1)

    def __len__(self) -> int:
        return self.csr.num_nodes

    def __getitem__(self, rows: Any) -> SparseFeatures:
        """Selects rows by ids, a mask or a slice."""
        csr, row_ids = self.csr, np.arange(len(self))[rows]
        degree = csr.indptr[row_ids + 1] - csr.indptr[row_ids]
        indptr = offsets_of(degree)
        entries = np.repeat(csr.indptr[row_ids] - indptr[:-1], degree) + np.arange(indptr[-1])
        return self._wrap(indptr, csr.indices[entries], self.values[entries])

    def first(self, count: int) -> SparseFeatures:
        """Returns the first `count` rows, without copying them."""
        indptr = self.csr.indptr[: count + 1]
        return self._wrap(indptr, self.csr.indices[: indptr[-1]], self.values[: indptr[-1]])

    def _wrap(self, indptr: Ids, indices: Ids, values: Floats) -> SparseFeatures:
        """Wraps some rows, which were checked with the others."""
        features = SparseFeatures.__new__(SparseFeatures)
        set_fields(features, csr=CSC.trusted(indptr, indices, values, self.csr.num_sources))
        return features

    def columns(self, order: Sequence[int]) -> SparseFeatures:
        """Permutes the columns, `order[0]` first."""
        return SparseFeatures(replace(self.csr, indices=np.argsort(order)[self.csr.indices].astype(np.int32)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Floats:  # [n, width]
        """Returns the dense rows. Raises `UserError` if they exceed memory."""
        try:
            dense = np.zeros(self.shape, self.dtype if dtype is None else dtype)
        except (ValueError, MemoryError) as error:  # beyond the address space, or beyond free memory
            raise UserError(f"features of shape {self.shape} exceed the available memory") from error
        dense[np.repeat(np.arange(len(self)), np.diff(self.csr.indptr)), self.csr.indices] = self.values
        return dense

    def row_normalize(self) -> SparseFeatures:
        """Divides each row by the sum of its absolute values."""
        csr, magnitudes = self.csr, np.abs(self.values)
        row = np.repeat(np.arange(len(self)), np.diff(csr.indptr))
        sums = np.bincount(row, magnitudes, len(self))  # float64, because sums of large numbers overflow float32
        shares = (self.values / np.where(sums == 0, 1, sums)[row]).astype(self.dtype)
        return SparseFeatures(replace(csr, weight=shares))


def normalized(rows: Floats) -> Floats:  # [n, width]
    """Divides each row by the sum of its absolute values. Zero rows are unchanged."""
    result = np.abs(rows)
    sums = result.sum(axis=1, keepdims=True, dtype=np.float64)  # float32 sums of large numbers overflow
    np.divide(rows, np.where(sums == 0, 1, sums), out=result)
    return result


Features = Floats | PackedFeatures | SparseFeatures  # node features [num_nodes, width]


def feature_arrays(features: Features) -> dict[str, Array]:
    """Returns the arrays that store the features, by file name.

    `read_features` restores the features from them. Saved graphs, shards and stores use
    the same names. Nothing is copied.
    """
    if isinstance(features, PackedFeatures):
        scales = zip(SCALES, (features.scale, features.offset), strict=True)
        return {PACKED: features.kept} | {name: array for name, array in scales if array is not None}
    if not isinstance(features, SparseFeatures):
        return {DENSE: features}
    csr = features.csr
    return {
        "feature_indptr": csr.indptr,
        "feature_columns": csr.indices,
        "feature_values": features.values,
        "feature_width": np.array([csr.num_sources]),
    }


def kept_rows(features: Features) -> Array:  # [n, width]
    """Returns the stored rows: packed numbers or dense ones.

    Raises `UserError` for sparse features.
    """
    if isinstance(features, SparseFeatures):
        raise UserError("sparse features have no dense rows: use input_rows=dense")
    return features.kept if isinstance(features, PackedFeatures) else np.asarray(features)


def read_features(arrays: Mapping[str, Array]) -> Features:
    """Restores features from `feature_arrays`. Raises KeyError for a missing array."""
    if PACKED in arrays:
        return PackedFeatures(arrays[PACKED], *map(arrays.get, SCALES))
    if "feature_width" not in arrays:
        return arrays[DENSE]
    width = whole("feature_width", arrays["feature_width"].item(), 0)
    indptr, columns, values = (arrays[f"feature_{name}"] for name in ("indptr", "columns", "values"))
    return SparseFeatures(CSC(indptr, columns, values, width))


def replace_nan(rows: Floats) -> tuple[Floats, Ids | None]:
    """Replaces NaN by 0.

    Args:
        rows: [n, width] numbers, or NaN for missing ones.

    Returns:
        The rows, and row and column of each NaN [k, 2]. None without NaN.
    """
    if rows.ndim != 2 or rows.dtype.kind != "f":
        return rows, None
    step = rows_at_once(rows.shape[1])
    chunks = [np.argwhere(np.isnan(rows[start : start + step])) for start in range(0, len(rows), step)]
    for number, cells in enumerate(chunks):
        cells[:, 0] += number * step
    missing = np.concatenate([np.empty((0, 2), np.int64), *chunks])
    if not len(missing):
        return rows, None
    result = rows.copy()
    result[missing[:, 0], missing[:, 1]] = 0
    return result, missing


def read_missing_cells(values: object | None, shape: tuple[int, int]) -> Ids | None:
    """Reads the missing cells [k, 2] as rows and columns. Returns None if empty.

    Raises `UserError` for cells outside `shape`.
    """
    if values is None:
        return None
    cells = checks.array("missing", values)
    if cells.ndim != 2 or cells.shape[1] != 2 or (cells.dtype.kind not in "iu" and cells.size):
        raise UserError(f"missing has shape {list(cells.shape)} and dtype {cells.dtype}, expected [any, 2] integers")
    for axis in (0, 1):
        checks.check_range(f"missing[:, {axis}]", cells[:, axis], 0, shape[axis])
    return np.ascontiguousarray(cells, np.int64) if len(cells) else None


def features_of(name: str, values: object, num_rows: int) -> Floats:
    """Reads rows of numbers that fit float32."""
    return checks.floats(name, values, (num_rows, None), bound=checks.FLOAT32_MAX)


def node_features(features: Features, num_nodes: int) -> Features:
    features = rows_of(features) if hasattr(features, "tocsr") else features
    if not isinstance(features, PackedFeatures | SparseFeatures):
        return features_of("features", features, num_nodes)
    if len(features) != num_nodes:
        raise UserError(f"features has shape {list(features.shape)}, expected [{num_nodes}, any]")
    return features


def rows_of(features: object) -> Features:
    """Converts features of any type. SciPy matrices become `SparseFeatures`."""
    if isinstance(features, PackedFeatures | SparseFeatures):
        return features
    if not hasattr(features, "tocsr"):
        return checks.array("features", features)
    if len(features.shape) != 2:  # type: ignore[attr-defined]
        raise UserError(f"features has shape {list(features.shape)}, expected two dimensions")  # type: ignore[attr-defined]
    matrix: Any = features.tocsr(copy=True)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return SparseFeatures(CSC(matrix.indptr, matrix.indices, matrix.data, num_sources=matrix.shape[1]))


def _sort_columns(csr: CSC) -> CSC:
    """Sorts each row's columns as int32. Raises `UserError` for duplicate columns."""
    if csr.indices.dtype != np.int32:
        csr = replace(csr, indices=csr.indices.astype(np.int32))
    is_unsorted = _mark_unsorted(csr)
    if is_unsorted.any():
        order = np.lexsort((csr.indices, np.repeat(np.arange(csr.num_nodes), np.diff(csr.indptr))))
        csr = replace(csr, indices=csr.indices[order], weight=take(csr.weight, order))
        is_unsorted = _mark_unsorted(csr)
    bad = np.flatnonzero(is_unsorted)
    if len(bad):
        row = np.searchsorted(csr.indptr, bad[0], side="right") - 1
        raise UserError(f"features: row {row} has column {csr.indices[bad[0]]} twice")
    return csr


def _mark_unsorted(csr: CSC) -> npt.NDArray[np.bool_]:  # [num_edges]
    """Marks entries that are not below the next entry of their row."""
    wrong = np.zeros(len(csr.indices), np.bool_)
    np.less_equal(csr.indices[1:], csr.indices[:-1], out=wrong[:-1])
    ends = csr.indptr[1:] - 1
    wrong[ends[ends >= 0]] = False
    return wrong


def optional_rows(name: str, values: object | None, num_rows: int) -> Floats | None:
    return None if values is None else features_of(name, values, num_rows)
