"""Removes or merges duplicate edges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gnnkit.errors import UserError
from gnnkit.graph.csc import CSC
from gnnkit.graph.edge_columns import EdgeColumns
from gnnkit.graph.types import Ids, offsets_of
from gnnkit.utils.checks import Array

if TYPE_CHECKING:
    from gnnkit.graph.graph import Graph

JOIN = "dataset.duplicates=first, sum or mean keeps one of them"  # hint for the error of `refuse`
KEEP, REFUSE, FIRST, SUM, MEAN = DUPLICATES = ("keep", "refuse", "first", "sum", "mean")


def node_hint(key: str, how: str) -> str:
    """Returns the hint for two nodes with the same id.

    Args:
        key: Configuration key or argument that the user can set.
        how: Current value of the key.
    """
    return f": {key}=first keeps the first row" + (f", and {key}={how} merges edges only" if how in (SUM, MEAN) else "")


def without_duplicates(graph: Graph, how: str, hint: str) -> Graph:
    """Merges edges of the same source, destination and type.

    Args:
        how: One of `DUPLICATES`. `sum` counts unweighted edges as 1.
        hint: Hint for the error of `refuse`.
    """
    if how == KEEP:
        return graph
    csc, columns = graph.csc, graph.edge_columns
    if how in (SUM, MEAN) and "label" in columns:
        raise UserError(f"duplicates={how} would merge edges whose labels differ: use keep, refuse or first")
    if how == SUM:
        columns = EdgeColumns({"weight": np.ones(graph.num_edges, np.float32), **columns})
    ends = np.repeat(np.arange(graph.num_nodes), np.diff(csc.indptr))
    keys = columns.merged_by("identity")
    numbers = EdgeColumns({**columns.merged_by("number"), **columns.merged_by("latest")})
    positions = columns.get("position", np.arange(graph.num_edges))
    firsts, merged = join(csc.indices, ends, keys, numbers, positions, how, hint)
    indptr = offsets_of(np.bincount(ends[firsts], minlength=graph.num_nodes))
    columns = EdgeColumns({**columns.without(*numbers).take(firsts), **merged})
    return graph.with_edges(CSC(indptr, csc.indices[firsts], num_sources=csc.num_sources), columns)


def join(
    src: Ids,
    dst: Ids,
    keys: Mapping[str, Array],
    values: Mapping[str, Array],
    positions: Ids,
    how: str,
    hint: str,
) -> tuple[Ids, dict[str, Array]]:
    """Selects one edge of each group of duplicates, and merges their values.

    Args:
        src: [num_edges] sources.
        dst: [num_edges] destinations. Edges are sorted by destination, source and
            position.
        keys: [num_edges] further columns that distinguish edges, such as types.
        values: [num_edges, ...] numeric columns, which `sum` and `mean` merge. Of
            integers, which are times, both take the latest.
        positions: [num_edges] row of each edge in the data, for messages.
        how: `refuse`, `first`, `sum` or `mean`.
        hint: Hint for the error of `refuse`.

    Returns:
        Each group's first edge [num_kept], in order, and the values [num_kept, ...].
    """
    order, starts = _group_edges(src, dst, keys)
    begins = np.flatnonzero(starts)
    if how == REFUSE and len(begins) < len(order):
        again = np.flatnonzero(~starts)[0]
        one, other = positions[order[again - 1]], positions[order[again]]
        raise UserError(f"edges: rows {one} and {other} are the same edge: {hint}")
    firsts = order[begins]
    place = np.argsort(firsts)  # restores edge order, because sorting by keys may reorder alternating types
    first_edges = firsts[place]
    if how not in (SUM, MEAN) or len(begins) == len(order):
        return first_edges, {name: rows[first_edges] for name, rows in values.items()}
    counts = np.diff(begins, append=len(order))[place] if how == MEAN else None
    return first_edges, {name: _merge_rows(rows[order], begins, place, counts) for name, rows in values.items()}


def _group_edges(src: Ids, dst: Ids, keys: Mapping[str, Array]) -> tuple[Ids, npt.NDArray[np.bool_]]:
    """Returns an order with adjacent duplicates, and where a new edge starts in it."""
    order = np.lexsort((*keys.values(), src, dst)) if keys else np.arange(len(src))
    starts = np.zeros(len(order), bool)
    starts[:1] = True
    for key in (dst, src, *keys.values()):
        starts[1:] |= key[order][1:] != key[order][:-1]
    return order, starts


def _merge_rows(rows: Array, begins: Ids, place: Ids, counts: Ids | None) -> Array:
    """Sums each group of rows in float64, and divides by `counts` if given.

    The latest is taken of times, because the sum contains the latest edge.
    """
    if rows.dtype == np.int64:
        return np.asarray(np.maximum.reduceat(rows, begins)[place])
    sums = np.add.reduceat(rows, begins, axis=0, dtype=np.float64)[place]
    if counts is not None:
        sums /= counts.reshape(-1, *[1] * (sums.ndim - 1))
    return sums.astype(rows.dtype)
