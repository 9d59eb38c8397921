"""What one rank keeps during a run: rows, edges, routes between ranks, fixed sums."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gnnkit.comm import Communicator
from gnnkit.engine.rank_graph import RankGraph
from gnnkit.errors import UserError
from gnnkit.exchange.base import Passes
from gnnkit.exchange.route import AllColumns, CellExchange, Demand, Peers, Route, Slicing
from gnnkit.exchange.tally import Tally
from gnnkit.exchange.wire import Wire
from gnnkit.graph import CSC, Floats, Ids
from gnnkit.graph.types import offsets_of, take
from gnnkit.kernels.aggregate import HeldEdges
from gnnkit.kernels.product_rows import Rows
from gnnkit.kernels.sums import Factors, wide
from gnnkit.partition.grid import Grid
from gnnkit.partition.shard import Shard

Kind = Literal["sum", "mean", "normal"]  # kind of a sum over in-edges
Degrees = tuple[Tensor, Tensor]  # [num_sources] out-degrees, [num_targets] in-degrees, float64


@dataclass(frozen=True, slots=True, eq=False)
class Quarter:
    """The edges from a range of a shard's sources into a range of its targets."""

    edges: HeldEdges
    rows: slice  # range of the targets
    columns: slice  # range of the sources
    weight: Floats | None  # [edges of the quarter] the graph's weights. None: 1 each

    @classmethod
    def of(cls, csc: CSC, rows: slice, columns: slice, device: torch.device) -> Quarter:
        """Selects the quarter's edges from a shard's.

        Args:
            csc: The shard's edges.
            rows: Range of the targets.
            columns: Range of the sources.
            device: Device of the kernels.
        """
        indptr = csc.indptr[rows.start : rows.stop + 1]
        sources = np.asarray(csc.indices[indptr[0] : indptr[-1]])
        inside = (sources >= columns.start) & (sources < columns.stop)
        before = offsets_of(inside)
        part = CSC(
            before[indptr - indptr[0]], sources[inside] - columns.start, None, num_sources=columns.stop - columns.start
        )
        weight = None if csc.weight is None else csc.weight[indptr[0] : indptr[-1]][inside]
        return cls(HeldEdges(part, device), rows, columns, weight)

    def factors(self, kind: Kind, degrees: Degrees, dtype: torch.dtype) -> Factors:
        """Returns the factors of a sum over these edges.

        Args:
            kind: The kind of sum.
            degrees: Degrees in the complete graph.
            dtype: Type of the factors.
        """
        source = inverse_sqrt(degrees[0][self.columns]) if kind == "normal" else None
        destination = None
        if kind != "sum":
            degree = degrees[1][self.rows]
            destination = inverse_sqrt(degree) if kind == "normal" else 1 / torch.where(degree == 0, 1, degree)
        if self.weight is None:
            return Factors(None, _to(source, dtype), _to(destination, dtype))
        factor = torch.from_numpy(np.array(self.weight, np.float64)).to(self.edges.device)
        if source is not None:
            factor = factor * source[self.edges.source_of_edge]
        if destination is not None:
            counts = torch.from_numpy(np.diff(self.edges.csc.indptr)).to(factor.device)
            factor = factor * destination.repeat_interleave(counts)
        return Factors(_to(factor[:, None], dtype))


@dataclass(frozen=True, slots=True, eq=False)
class Quarters:
    """The edges of a shard in four parts.

    Local rows are read in place, and their sums overlap with the exchange of other
    rows.
    """

    near: Quarter  # between nodes of this cell
    far: Quarter  # from the halo to nodes of this cell
    near_partial: Quarter  # from nodes of this cell into partial sums
    far_partial: Quarter  # from the halo into partial sums
    _factors: dict[tuple[Kind, torch.dtype], tuple[Factors, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, shard: Shard, held_edges: HeldEdges) -> Quarters:
        """Splits a shard's edges.

        Args:
            shard: This rank's shard.
            held_edges: All its edges.
        """
        num_local, csc = len(shard.cell_nodes), shard.csc
        rows, columns = ((slice(0, num_local), slice(num_local, total)) for total in (csc.num_nodes, csc.num_sources))
        near, far, near_partial, far_partial = (Quarter.of(csc, r, c, held_edges.device) for r in rows for c in columns)
        if held_edges.num_edges == near.edges.num_edges and held_edges.num_dst == held_edges.num_src == num_local:
            near = Quarter(held_edges, rows[0], columns[0], csc.weight)  # one copy of the edges
        return cls(near, far, near_partial, far_partial)

    def factors(self, kind: Kind, degrees: Degrees, dtype: torch.dtype) -> tuple[Factors, ...]:
        """Returns the factors of each quarter's sums, in order, cached.

        Args:
            kind: The kind of sum.
            degrees: Degrees in the complete graph.
            dtype: Type of the rows.
        """
        dtype = wide(dtype)
        if (kind, dtype) not in self._factors:
            quarters = (self.near, self.far, self.near_partial, self.far_partial)
            self._factors[kind, dtype] = tuple(quarter.factors(kind, degrees, dtype) for quarter in quarters)
        return self._factors[kind, dtype]


@dataclass(frozen=True, eq=False)
class Topology:
    """The edges that one rank holds, and the routes of the rows that they connect.

    Rows are either the sources [num_sources] = [cell_nodes | halo] or the targets
    [num_targets] = [cell_nodes | partial] of the held edges. Nothing here changes
    during a run. Methods with a `layer` are collective, and the tally records it.
    """

    shard: Shard
    comm: Communicator
    dtype: torch.dtype  # for rows, degrees and weights
    wire: Wire  # to this slice's ranks
    sources: Route  # rows of the halo
    targets: Route  # partial sums
    slicing: Slicing  # which columns each rank has
    edges: HeldEdges
    in_degree: Tensor  # [num_owned]
    out_degree: Tensor  # [num_owned]
    _degrees: list[Degrees] = field(default_factory=list, init=False)  # set on first use

    @classmethod
    def of(cls, shard: Shard, comm: Communicator, dtype: torch.dtype, tally: Tally, passes: Passes) -> Topology:
        """Sets up the routes of row exchanges. Collective.

        Args:
            shard: This rank's shard.
            comm: The ranks of the run.
            dtype: Type of rows, degrees and weights.
            tally: Counts exchanged rows.
            passes: The current pass, which encodes and schedules exchanges.
        """
        plane, cell = _peers(shard, comm, tally, passes)
        slicing = Slicing(CellExchange.of(len(shard.owned), cell)) if cell else AllColumns(len(shard.owned))
        sources = Route("gather", Demand.of(shard.halo, shard.halo_cell, plane.comm), shard.cell_nodes, plane)
        targets = Route("reduce", Demand.of(shard.partial, shard.partial_cell, plane.comm), shard.cell_nodes, plane)
        edges = HeldEdges(shard.csc, comm.device)
        own_degrees = (shard.in_degree[slicing.rows], shard.out_degree[slicing.rows])
        degrees = (_tensor(degree, dtype, comm.device) for degree in own_degrees)
        return cls(shard, comm, dtype, plane.wire, sources, targets, slicing, edges, *degrees)

    def select_edges(self, positions: Ids, *, has_types: bool) -> Topology:
        """Selects held edges, and recomputes degrees.

        All ranks must select edges by the same rule. Collective.

        Args:
            positions: [num_kept] ascending positions of held edges.
            has_types: Whether the result has edge types.
        """
        shard, dtype, device = self.shard, self.dtype, self.device
        csc = CSC(
            np.searchsorted(positions, shard.csc.indptr),
            shard.csc.indices[positions],
            take(shard.csc.weight, positions),
            shard.csc.num_sources,
        )
        shard = replace(
            shard,
            csc=csc,
            edge_ids=shard.edge_ids[positions],
            edge_features=take(shard.edge_features, positions),
            edge_types=take(shard.edge_types, positions) if has_types else None,
            relation_degrees=take(shard.relation_degrees, positions) if has_types else None,
        )
        edges = HeldEdges(csc, device)
        edge_weight = edges.weight(dtype)
        weights = torch.ones(len(positions), 1, dtype=dtype, device=device) if edge_weight is None else edge_weight
        into, out_of = (sums[:, 0] for sums in self.sums_at_owners(edges, weights))
        shard = replace(shard, in_degree=into.cpu().numpy(), out_degree=out_of.cpu().numpy())
        own_rows = self.slicing.rows
        return replace(self, shard=shard, edges=edges, in_degree=into[own_rows], out_degree=out_of[own_rows])

    def sums_at_owners(self, edges: HeldEdges, values: Tensor) -> tuple[Tensor, Tensor]:
        """Sums edge values at targets and at sources. Collective.

        Args:
            edges: Edges to sum over.
            values: [num_edges, f].

        Returns:
            Two tensors [num_cell_nodes, f].
        """
        num_local = len(self.shard.cell_nodes)
        into, out_of = edges.by_destination.sum(values), edges.of_sources.spread(values)
        return (
            into[:num_local] + self.targets.collect_rows(into[num_local:], 0),
            out_of[:num_local] + self.sources.collect_rows(out_of[num_local:], 0),
        )

    @cached_property
    def nodes(self) -> Tensor:  # [num_owned] int64
        """Global ids of the owned rows."""
        return _id_tensor(self.shard.owned, self.device)

    @cached_property
    def source_ids(self) -> Tensor:  # [num_sources] int64
        """Global ids of the sources."""
        return _id_tensor(self.shard.sources, self.device)

    @cached_property
    def edge_ids(self) -> Tensor:  # [held edges] int64
        """Global ids of the held edges."""
        return _id_tensor(self.shard.edge_ids, self.device)

    @cached_property
    def edge_features(self) -> Tensor | None:  # [held edges, edge_width]
        """Features of the held edges, or None if edges have none."""
        features = self.shard.edge_features
        return None if features is None else _tensor(features, self.dtype, self.device)

    @property
    def device(self) -> torch.device:
        """The tensors' device."""
        return self.comm.device

    @property
    def grid(self) -> Grid:
        """The ranks' grid."""
        return self.shard.grid

    @property
    def holds_in_edges(self) -> bool:
        """Whether every rank holds all in-edges of its rows, in all columns."""
        return self.slicing.num_slices == 1 and self.targets.idle

    @cached_property
    def by_id(self) -> Tensor | None:  # [num_owned] int64
        """Permutation that sorts the owned rows by global id, or None if sorted."""
        return torch.argsort(self.nodes) if bool((self.nodes[1:] < self.nodes[:-1]).any()) else None

    @cached_property
    def quarters(self) -> Quarters:
        """The held edges, split by whether their ends belong to this cell."""
        return Quarters.of(self.shard, self.edges)

    # Not a cached property, whose lock would block the threads of other ranks.
    @property
    def degrees(self) -> Degrees:
        """Out-degrees of the sources and in-degrees of the targets.

        Collective on first use.
        """
        if not self._degrees:
            shard_degrees = (self.shard.out_degree, self.shard.in_degree)
            out, into = (torch.tensor(np.asarray(degree, np.float64), device=self.device) for degree in shard_degrees)
            far, partial = self.sources.values(out), self.targets.values(into)
            self._degrees.append((torch.cat([out, far]), torch.cat([into, partial])))
        return self._degrees[0]

    @cached_property
    def rank_graph(self) -> RankGraph:
        """This rank's edges as a separate graph.

        Raises `UserError` if other ranks hold in-edges of this rank's rows.
        """
        if not self.holds_in_edges:
            raise UserError(
                f"partition.grid={self.grid} distributes a node's in-edges over ranks, which layers written for one "
                "process do not support; use partition.grid=1d and a partition of nodes, not a vertex cut"
            )
        weight = self.edges.weight(self.dtype)
        return RankGraph.of(self.shard, None if weight is None else weight[:, 0], self.edges)


class FixedRows:
    """Constant input rows, and the cached results of exact training passes."""

    def __init__(self, passes: Passes) -> None:
        self._passes = passes
        self.rows: Rows | None = None  # [num_owned, f]
        self._results: dict[Hashable, Tensor] = {}

    def fix(self, rows: Rows) -> None:
        """Declares `rows` [num_owned, f] constant, instead of earlier ones."""
        self.rows, self._results = rows, {}

    def result(self, x: Tensor, key: Hashable, compute: Callable[[], Tensor]) -> Tensor | None:
        """Returns `compute()`, called once per key, or None unless `x` is constant.

        Without autograd, only results from earlier training passes are returned. All
        ranks agree, including those without rows. Callers must not modify the result.

        Args:
            x: [num_owned, f] rows that `compute` reads.
            key: Identifies the result.
            compute: Computes the result from `x`.
        """
        if x is not self.rows or not self._passes.exact or x.requires_grad:
            return None
        if key not in self._results and torch.is_grad_enabled():
            self._results[key] = compute()
        return self._results.get(key)


def _peers(shard: Shard, comm: Communicator, tally: Tally, passes: Passes) -> tuple[Peers, Peers | None]:
    """Returns the peers of the same slice, and those of the same cell."""
    cell, place, slices = shard.cell, shard.slice, shard.grid.slices
    plane_ranks = [index * slices + place for index in range(shard.grid.num_cells)]
    if slices == 1:
        return Peers(Wire(comm, plane_ranks, tally), passes), None
    cell_ranks = [cell * slices + index for index in range(slices)]
    plane, within = comm.split(plane_ranks), comm.split(cell_ranks)
    return Peers(Wire(plane, plane_ranks, tally), passes), Peers(Wire(within, cell_ranks, tally), passes)


def _id_tensor(ids: Ids, device: torch.device) -> Tensor:
    return torch.tensor(np.asarray(ids, np.int64), device=device)


def _tensor(values: Floats, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(np.asarray(values), dtype=dtype, device=device)


def inverse_sqrt(degree: Tensor) -> Tensor:
    """Returns 1 / sqrt(d) for each degree d, and 0 for degree 0."""
    return torch.where(degree > 0, degree, torch.inf).rsqrt()


def _to(factor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if factor is None else factor.to(dtype)
