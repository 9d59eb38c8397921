"""Recycled memory for the rows that a batch selects from its tables."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnkit import _core

_SMALL = 2**20  # bytes that malloc serves without new pages
_SPREAD = 4  # a buffer serves requests of at least a quarter of its size
_UNUSED = 2  # references to an unused buffer: from the list, and as an argument


class RowPool:
    """Memory for selected rows, reused once no tensor refers to it.

    Page faults in new memory cost more than the copy of the rows. Any number of threads
    may use a pool. A pickled pool is empty.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buffers: list[npt.NDArray[np.uint8]] = []

    def __reduce__(self) -> tuple[type[RowPool], tuple[()]]:
        return RowPool, ()

    def select(self, table: Tensor, ids: Tensor, threads: int) -> Tensor:  # [num_ids, ...]
        """Copies rows of a contiguous CPU table to memory that no other table uses."""
        source = table.view(torch.uint8).numpy().reshape(len(table), -1)
        if not len(ids):
            return table.new_empty(0, *table.shape[1:])
        memory = self._take(len(ids) * source.shape[1])
        _core.gather_rows(source, ids.numpy(), memory.reshape(len(ids), source.shape[1]), threads)
        return torch.from_numpy(memory).view(table.dtype).view(len(ids), *table.shape[1:])

    def stack(self, rows: Sequence[Tensor]) -> Tensor:  # [num_rows, length]
        """Stacks CPU tensors of one dtype and length.

        Returns the table itself, without a copy, if they are all of its rows in order.
        """
        base, kind = rows[0]._base, (rows[0].dtype, (len(rows), len(rows[0])))
        if base is not None and (base.dtype, base.shape) == kind and all(map(torch.Tensor.is_set_to, rows, base)):
            return base
        arrays = [row.numpy() for row in rows]
        memory = self._take(sum(array.nbytes for array in arrays)).view(arrays[0].dtype)
        return torch.from_numpy(np.stack(arrays, out=memory.reshape(len(arrays), -1)))

    def _take(self, num_bytes: int) -> npt.NDArray[np.uint8]:  # [num_bytes]
        if num_bytes < _SMALL:
            return np.empty(num_bytes, np.uint8)
        with self._lock:
            free_buffers = [at for at in range(len(self._buffers)) if sys.getrefcount(self._buffers[at]) == _UNUSED]
            sizes = {at: self._buffers[at].nbytes for at in free_buffers}
            large = [at for at in free_buffers if num_bytes <= sizes[at] <= _SPREAD * num_bytes]
            if large:
                return self._buffers[min(large, key=sizes.__getitem__)][:num_bytes]
            small = {at for at in free_buffers if sizes[at] < num_bytes <= _SPREAD * sizes[at]}
            self._buffers = [buffer for at, buffer in enumerate(self._buffers) if at not in small]
            self._buffers.append(np.empty(num_bytes + num_bytes // 8, np.uint8))
            return self._buffers[-1][:num_bytes]


class PooledTable(Tensor):
    """A table whose selected or stacked rows are plain tensors in a pool's memory.

    PyG's functions select attributes of a batch by `torch.index_select`, which then
    fills recycled memory. All other functions are torch's.
    """

    pool: RowPool
    threads: int

    @staticmethod
    def of(table: Tensor, pool: RowPool, threads: int) -> Tensor:
        """Returns `table` itself unless it is a contiguous CPU tensor."""
        plain = type(table) is Tensor and table.layout is torch.strided and table.device.type == "cpu"
        if not plain or table.requires_grad or table.is_complex() or table.is_quantized:
            return table
        if not table.numel() or not table.is_contiguous():
            return table
        view = table.as_subclass(PooledTable)
        view.pool, view.threads = pool, threads
        return view

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            from_pool = _pooled_result(func.__name__, args, kwargs or {})
            result = func(*args, **(kwargs or {})) if from_pool is None else from_pool
            return result.as_subclass(Tensor) if isinstance(result, PooledTable) else result


def _pooled_result(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """Returns the rows that a call selects or stacks, or None if torch computes it."""
    if kwargs.get("out") is not None:
        return None
    if name == "stack":
        rows = args[0]
        alike = all(isinstance(row, PooledTable) and row.dtype == rows[0].dtype for row in rows)
        return rows[0].pool.stack(rows) if alike and kwargs.get("dim", 0) == 0 and len(args) == 1 else None
    table, ids = args[0], args[-1]
    selects = name == "__getitem__" or (name == "index_select" and len(args) == 3 and args[1] == 0)
    if not selects or not isinstance(table, PooledTable) or not _are_ids(ids):
        return None
    return table.pool.select(table, ids, table.threads)


def _are_ids(value: Any) -> bool:
    """Returns whether the native core can read `value` as row numbers."""
    if not isinstance(value, Tensor) or value.dtype not in (torch.int64, torch.int32) or value.dim() != 1:
        return False
    return value.device.type == "cpu" and value.is_contiguous()


def pooled_tables(data: Any, pool: RowPool, threads: int) -> Any:
    """Returns a shallow copy of a `Data` or `HeteroData` with pooled tables."""
    out = data.__copy__()
    for store, out_store in zip(data.stores, out.stores, strict=True):
        for key, value in store.items():
            is_attribute = store.is_node_attr(key) or store.is_edge_attr(key)
            if is_attribute and isinstance(value, Tensor) and data.__cat_dim__(key, value, store) == 0:
                out_store[key] = PooledTable.of(value, pool, threads)
    return out
