"""Predicts an aggregation's rows, words and messages, exactly for every rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gnnkit.graph import Ids
from gnnkit.partition.grid import Grid


def column_shares(width: int, num_slices: int) -> Ids:  # [num_slices] int64
    """Returns the number of columns of each slice, as in `np.array_split`.

    The first `width % num_slices` slices have one more.

    Args:
        width: Number of columns of a row.
        num_slices: Number of slices of the grid.
    """
    size, remainder = divmod(width, num_slices)
    return size + (np.arange(num_slices) < remainder).astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class StepCounts:
    """One number per rank and exchange in an aggregation, such as words or messages.

    An aggregation splits rows into column slices, gathers sources, reduces partial
    sums, and joins the slices again. On a grid with one slice and one column, only
    `gather` is above 0.
    """

    slice: Ids  # [world_size] int64
    gather: Ids  # [world_size]
    reduce: Ids  # [world_size]
    unslice: Ids  # [world_size]

    @property
    def total(self) -> Ids:  # [world_size]
        return self.slice + self.gather + self.reduce + self.unslice


@dataclass(frozen=True, slots=True)
class Pair:
    """The rows that a rank receives from a peer in one aggregation.

    Counts are rows. A gathered or reduced row has the columns of the ranks' common
    slice.
    """

    rank: int
    peer: int
    gather_rows: int = 0  # with the columns of their common slice
    reduce_rows: int = 0  # likewise
    slice_rows: int = 0  # the peer's rows, with this rank's columns
    unslice_rows: int = 0  # this rank's rows, with the peer's columns

    @property
    def messages(self) -> int:
        """Number of messages received, if every slice has a column."""
        rows = (self.gather_rows, self.reduce_rows, self.slice_rows, self.unslice_rows)
        return sum(number > 0 for number in rows)


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """The rows exchanged in each aggregation.

    A rank exchanges rows with the ranks in its slice and cell. The backward pass moves
    as much as the forward pass of `transposed()`.
    """

    grid: Grid
    num_owned: Ids  # [world_size] int64
    gather_rows: Ids  # [num_cells, num_cells] int64, [i, j]: sources of cell i's edges that cell j != i owns
    reduce_rows: Ids  # [num_cells, num_cells] int64, [i, j]: destinations of cell j's edges that cell i != j owns

    @property
    def holds_in_edges(self) -> bool:
        """Whether each rank holds all in-edges of its nodes, in all columns."""
        return self.grid.slices == 1 and not self.reduce_rows.any()

    def transposed(self) -> Traffic:
        """Returns the reversed edges' traffic, as in the backward pass."""
        return Traffic(self.grid, self.num_owned, self.reduce_rows.T, self.gather_rows.T)

    def words(self, width: int) -> StepCounts:
        """Returns the numbers that each rank receives, for rows of `width` columns."""
        shares = column_shares(width, self.grid.slices)
        num_owned = self.num_owned.reshape(self.grid.num_cells, self.grid.slices)
        remote_rows = num_owned.sum(axis=1, keepdims=True) - num_owned
        return StepCounts(
            slice=(remote_rows * shares).ravel(),
            gather=np.outer(self.gather_rows.sum(axis=1), shares).ravel(),
            reduce=np.outer(self.reduce_rows.sum(axis=1), shares).ravel(),
            unslice=(num_owned * (width - shares)).ravel(),
        )

    def messages(self, width: int) -> StepCounts:
        """Returns how many ranks send each rank a word, for rows of `width` columns."""
        has_columns = column_shares(width, self.grid.slices) > 0
        owns = self.num_owned.reshape(self.grid.num_cells, self.grid.slices) > 0
        return StepCounts(
            slice=((owns.sum(axis=1, keepdims=True) - owns) * has_columns).ravel(),
            gather=np.outer((self.gather_rows > 0).sum(axis=1), has_columns).ravel(),
            reduce=np.outer((self.reduce_rows > 0).sum(axis=1), has_columns).ravel(),
            unslice=(owns * (has_columns.sum() - has_columns)).ravel(),
        )

    def peers(self) -> list[Pair]:
        """Returns all pairs of ranks that exchange rows, by rank and peer.

        They share an edge within a slice's plane, or hold the same cell's edges.
        """
        slices, num_owned = self.grid.slices, self.num_owned.tolist()
        gather, reduce = self.gather_rows, self.reduce_rows
        cells, peers = np.nonzero(gather + reduce)
        in_plane = [
            Pair(cell * slices + slice_, peer * slices + slice_, int(gather[cell, peer]), int(reduce[cell, peer]))
            for cell, peer in zip(cells.tolist(), peers.tolist(), strict=True)
            for slice_ in range(slices)
        ]
        in_cell = [
            Pair(rank, peer, slice_rows=num_owned[peer], unslice_rows=num_owned[rank])
            for rank in range(len(num_owned))
            for peer in range(rank - rank % slices, rank - rank % slices + slices)
            if peer != rank and num_owned[peer] + num_owned[rank] > 0
        ]
        return sorted(in_plane + in_cell, key=lambda pair: (pair.rank, pair.peer))
