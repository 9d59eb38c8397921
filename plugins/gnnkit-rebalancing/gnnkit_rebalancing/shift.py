"""Repartitioning that moves work from slow ranks to others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from gnnkit.graph import CSC, Floats, Graph, Ids
from gnnkit.partition.base import Partition

ROW = 30  # approximate work per row, in units of an aggregated edge
_ENOUGH = 1.02  # stop at this ratio of the maximum to the balanced time
_PART = 0.25  # share of a rank's excess work that one move takes
_LEAST = 0.01  # minimum of this share
_SOME = 16  # stop if the excess falls by less than `_HELPS` in this number of moves
_HELPS = 0.01
_MOST = 400  # maximum number of moves
_NOISE = 1e-9  # relative change that may be due to rounding
_TARGETS = 8  # number of candidate target ranks per move
_POWER = 8  # exponent of the power mean of seconds, which every move must lower


def work_of(graph: Graph, partition: Partition) -> Floats:  # [world_size] float64
    """Returns each rank's work in a full-graph step, in units of an aggregated edge.

    The slices of a cell share its edges. A row counts as `ROW` edges.
    """
    loads = np.bincount(partition.cells_of_edges(graph), minlength=partition.grid.num_cells)
    rows = np.bincount(partition.node_rank, minlength=partition.grid.world_size)
    return np.repeat(loads, partition.grid.slices) / partition.grid.slices + float(ROW) * rows


def shifted(graph: Graph, partition: Partition, speeds: npt.ArrayLike) -> Partition:
    """Moves nodes and their edges until work is proportional to the speeds.

    Each move takes nodes from the rank with the longest time, or from a rank in the
    same row or column of the grid, to a rank with spare capacity. To limit
    communication, nodes with many neighbours on the target and few on the source move
    first. In a vertex-cut, the edges into a node that the source holds move too. All
    grids and partitions are supported. The search stops if no move lowers the time of
    the slowest ranks, because cells that share a row or a column cannot always be
    balanced.

    The result is deterministic.

    Args:
        graph: The graph.
        partition: The partition to change.
        speeds: [world_size] positive work per second of each rank.
    """
    state = _State.of(graph, partition, np.asarray(speeds, np.float64))
    part, excess = _PART, [state.excess]
    while len(excess) < _MOST and excess[-1] > _ENOUGH and part >= _LEAST:
        if len(excess) > _SOME and excess[-1] > excess[-_SOME] - _HELPS:
            break
        move = state.best_move(part)
        if move is None:
            part /= 4
        else:
            state.apply(move)
            excess.append(state.excess)
    columns = partition.columns if partition.edge_cell is None else ()
    cells = None if partition.edge_cell is None else state.cells
    return replace(partition, node_rank=state.owner, edge_cell=cells, columns=columns)


@dataclass(frozen=True, slots=True, eq=False)
class _Move:
    """A set of nodes that move to another rank, and the resulting changes."""

    nodes: Ids  # nodes that get another owner
    target: int
    edges: Ids  # ids of the edges that move to another cell
    cells: Ids  # [len(edges)] new cells
    held: Ids  # [num_cells] change in the number of edges
    rows: Ids  # [world_size] change in the number of owned nodes
    gain: float  # number of neighbours on the target minus those on the source
    cost: float  # power mean of the seconds after the move


@dataclass(slots=True, eq=False)
class _State:
    """A partition being changed, with its loads."""

    csc: CSC
    out: CSC  # the reversed edges
    positions: Ids  # [num_edges] original edge of each reversed edge
    destinations: Ids  # [num_edges] int32
    partition: Partition  # the original partition, which defines the grid
    owner: Ids  # [num_nodes] int32
    cells: Ids  # [num_edges] int32
    held: Ids  # [num_cells] edges
    rows: Ids  # [world_size] nodes
    speeds: Floats  # [world_size]

    @classmethod
    def of(cls, graph: Graph, partition: Partition, speeds: Floats) -> _State:
        csc, grid = graph.csc, partition.grid
        out, positions = csc.transpose()
        destinations = np.repeat(np.arange(csc.num_nodes, dtype=np.int32), np.diff(csc.indptr))
        cells = partition.cells_of_edges(graph).astype(np.int32)
        owner = partition.node_rank.astype(np.int32)
        loads = np.bincount(cells, minlength=grid.num_cells)
        rows = np.bincount(owner, minlength=grid.world_size)
        return cls(csc, out, positions, destinations, partition, owner, cells, loads, rows, speeds)

    @property
    def is_cut(self) -> bool:
        """Whether edges are assigned independently of their ends' owners."""
        return self.partition.edge_cell is not None

    @property
    def even(self) -> float:
        """Seconds per step of every rank if work could be divided perfectly."""
        return float(self.work().sum() / self.speeds.sum())

    @property
    def excess(self) -> float:
        """Ratio of the maximum to the balanced seconds."""
        return float((self.work() / self.speeds).max() / max(self.even, 1e-300))

    def work(self, loads: Ids | int = 0, rows: Ids | int = 0) -> Floats:  # [world_size]
        """Returns each rank's work after changes in edges and rows."""
        slices = self.partition.grid.slices
        return np.repeat(self.held + loads, slices) / slices + float(ROW) * (self.rows + rows)

    def cost(self, loads: Ids | int = 0, rows: Ids | int = 0) -> float:
        """Returns a power mean of the seconds, dominated by the slowest ranks."""
        seconds = self.work(loads, rows) / self.speeds / max(self.even, 1e-300)
        return float((seconds**_POWER).mean() ** (1 / _POWER))

    def best_move(self, part: float) -> _Move | None:
        """Returns the effective move with the highest gain, or None if no move helps.

        Args:
            part: Share of the excess work that a move takes.
        """
        seconds = self.work() / self.speeds
        slowest, room = int(seconds.argmax()), self.even * self.speeds - self.work()
        targets = [int(rank) for rank in np.argsort(seconds, kind="stable")[:_TARGETS] if room[rank] > 0]
        before, excess = self.cost(), -float(room[slowest])
        for source in self._source_ranks(slowest):
            moves = self._list_moves(source, [rank for rank in targets if rank != source], part, excess, room)
            helping = [move for move in moves if move.cost < before * (1 - _NOISE)]
            if helping:
                limit = (before + min(move.cost for move in helping)) / 2
                return max((move for move in helping if move.cost <= limit), key=lambda move: move.gain)
        return None

    def apply(self, move: _Move) -> None:
        self.owner[move.nodes] = move.target
        self.cells[move.edges] = move.cells
        self.held, self.rows = self.held + move.held, self.rows + move.rows

    def _source_ranks(self, slowest: int) -> list[int]:
        """Lists the slowest rank, and the ranks whose nodes bring edges to its cell."""
        grid = self.partition.grid
        if self.is_cut or grid.cols == 1:
            return [slowest]
        row, col, _ = grid.position(slowest)
        places = ((rank, grid.position(rank)) for rank in range(grid.world_size) if rank != slowest)
        return [slowest, *(rank for rank, place in places if place[0] == row or place[1] == col)]

    def _list_moves(self, source: int, targets: list[int], part: float, excess: float, room: Floats) -> Iterator[_Move]:
        """Yields a move from one rank to each target.

        Args:
            source: The rank to move nodes from.
            targets: Ranks to move nodes to.
            part: Share of the excess that a move takes.
            excess: Excess work of the slowest rank.
            room: [world_size] spare capacity of each rank.
        """
        nodes = self._movable_nodes(source)
        if not len(nodes) or not targets:
            return
        work = self._count_moving(nodes, source) + float(ROW) * (self.owner[nodes] == source)
        near = self._count_neighbours(nodes, [source, *targets])
        for place, target in enumerate(targets, 1):
            gain = near[:, place] - near[:, 0]
            order = np.argsort(-gain / np.maximum(work, 1), kind="stable")
            quota = part * min(excess, room[target])
            prefix = order[: max(int(np.searchsorted(np.cumsum(work[order]), quota, side="right")), 1)]
            yield self._create_move(nodes[prefix], source, target, float(gain[prefix].sum()))

    def _movable_nodes(self, source: int) -> Ids:
        """Lists nodes that a rank owns, or whose in-edges it holds in a vertex-cut."""
        is_movable = self.owner == source
        if self.is_cut:
            is_movable[self.destinations[self.cells == source // self.partition.grid.slices]] = True
        return np.flatnonzero(is_movable)

    def _count_moving(self, nodes: Ids, source: int) -> Floats:  # [num_nodes]
        """Returns the number of in-edges that move with each node."""
        if not self.is_cut:
            return np.diff(self.csc.indptr)[nodes].astype(np.float64)
        destinations = self.destinations[self.cells == source // self.partition.grid.slices]
        return np.bincount(destinations, minlength=self.csc.num_nodes)[nodes].astype(np.float64)

    def _count_neighbours(self, nodes: Ids, ranks: list[int]) -> Floats:  # [len(nodes), len(ranks)]
        """Counts each node's neighbours on each rank."""
        place = np.full(self.partition.grid.world_size, -1, np.int64)
        place[ranks] = np.arange(len(ranks))
        counts = np.zeros(len(nodes) * len(ranks))
        for csc in (self.csc, self.out):
            edges, degree = csc.in_edges(nodes)
            row = np.repeat(np.arange(len(nodes)), degree)
            rank = place[self.owner[csc.indices[edges]]]
            has_rank = rank >= 0
            counts += np.bincount(row[has_rank] * len(ranks) + rank[has_rank], minlength=len(counts))
        return counts.reshape(len(nodes), len(ranks))

    def _create_move(self, nodes: Ids, source: int, target: int, gain: float) -> _Move:
        """Creates a move with the resulting changes.

        Args:
            nodes: The nodes.
            source: The rank to move them from.
            target: The rank to move them to.
            gain: As `_Move.gain`.
        """
        grid, own_nodes = self.partition.grid, nodes[self.owner[nodes] == source]
        edges, cells = self._cut_edges(nodes, source, target) if self.is_cut else self._moving_edges(own_nodes, target)
        loads = np.bincount(cells, minlength=grid.num_cells) - np.bincount(self.cells[edges], minlength=grid.num_cells)
        rows = np.zeros(grid.world_size, np.int64)
        rows[source], rows[target] = -len(own_nodes), len(own_nodes)
        return _Move(own_nodes, target, edges, cells, loads, rows, gain, self.cost(loads, rows))

    def _cut_edges(self, nodes: Ids, source: int, target: int) -> tuple[Ids, Ids]:
        """Returns the nodes' in-edges held by a rank, and their new cells."""
        slices = self.partition.grid.slices
        edges, _ = self.csc.in_edges(nodes)
        edges = edges[self.cells[edges] == source // slices]
        return edges, np.full(len(edges), target // slices, np.int32)

    def _moving_edges(self, nodes: Ids, target: int) -> tuple[Ids, Ids]:
        """Returns the edges that move with their nodes, and their new cells."""
        grid = self.partition.grid
        edges, _ = self.csc.in_edges(nodes)
        moves = np.zeros(len(self.owner), bool)
        moves[nodes] = True
        if grid.cols > 1:
            out, _ = self.out.in_edges(nodes)
            edges = np.concatenate([edges, self.positions[out[~moves[self.out.indices[out]]]]])
        cell = np.where(moves, target, self.owner) // grid.slices
        row, col = cell[self.destinations[edges]] % grid.rows, cell[self.csc.indices[edges]] // grid.rows
        return edges, (col * grid.rows + row).astype(np.int32)
