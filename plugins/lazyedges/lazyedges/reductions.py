"""Sums, maxima and minima by destination, of rows that may be deferred."""

from __future__ import annotations

import torch
from torch import Tensor

from lazyedges.deferred import Constant, Deferred, value_of
from lazyedges.edges import EdgeSet
from lazyedges.factors import are_ones
from lazyedges.functions import reduced
from lazyedges.pieces import Reduction


def sum_by_destination(rows: Tensor, edges: EdgeSet) -> Tensor:  # [num_edges, ...] -> [num_dst, ...]
    """Sums edge rows by destination."""
    if isinstance(rows, Deferred) and rows.meaning is not None:
        total = rows.meaning.sum(rows, edges)
        total = reduced(rows, edges, "sum") if total is None else total
        if total is not None:
            return total
        rows.origin.count("sum")
    if rows.dim() == 1 and are_ones(rows):
        return edges.in_degree.to(rows.dtype)
    return edges.sum_values(value_of(rows))


def extreme_by_destination(rows: Tensor, edges: EdgeSet, name: Reduction, empty: Tensor) -> Tensor | None:
    """Finds the largest or smallest edge row by destination.

    Returns None if the gradient is not supported.

    Args:
        rows: [num_edges, ...].
        edges: The edges.
        name: "amax" or "amin".
        empty: [num_dst, ...] results of destinations without edges.
    """
    lazy_rows = at_destinations(name, rows, edges) if is_fresh(empty) else None
    if lazy_rows is not None:
        return lazy_rows
    extreme = reduced(rows, edges, name)
    if extreme is None:
        if rows.requires_grad and torch.is_grad_enabled():
            return None
        sign = 1 if name == "amax" else -1
        extreme = sign * edges.largest(sign * value_of(rows))
    if edges.edgeless is None:
        return extreme
    mask = edges.edgeless.view(-1, *[1] * (extreme.dim() - 1))
    return extreme.masked_fill(mask, 0) if is_fresh(empty) else torch.where(mask, value_of(empty), extreme)


def at_destinations(name: str, tensor: Tensor, edges: EdgeSet) -> Tensor | None:
    """Lets a deferred tensor defer a function of destinations, or returns None.

    Args:
        name: The function: "amax" by destination, or "spread" of the destinations'
            values to edges.
        tensor: The tensor.
        edges: The edges with these destinations.
    """
    if not isinstance(tensor, Deferred) or tensor.meaning is None:
        return None
    return tensor.meaning.at_destinations(name, tensor, edges)


def is_fresh(tensor: Tensor) -> bool:
    """Whether a tensor is deferred zeros, which a reduction may replace."""
    meaning = tensor.meaning if isinstance(tensor, Deferred) else None
    return isinstance(meaning, Constant) and meaning.number == 0


def overwrite(tensor: Tensor, result: Tensor) -> None:
    """Makes a tensor the result of a function that changes it in place."""
    if isinstance(tensor, Deferred):
        tensor.become(result)
    else:
        tensor.copy_(result)
