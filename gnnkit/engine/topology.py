"""One rank's rows and edges, and the routes between ranks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnnkit.comm import Communicator
from gnnkit.engine.quarters import Degrees, Quarters
from gnnkit.engine.rank_graph import RankGraph
from gnnkit.errors import UserError
from gnnkit.exchange.route import AllColumns, CellExchange, Demand, Peers, Route, Slicing, kernels_to
from gnnkit.exchange.schedule import Passes
from gnnkit.exchange.tally import Tally
from gnnkit.exchange.wire import Wire
from gnnkit.graph import CSC, Floats, Ids
from gnnkit.graph.types import take
from gnnkit.kernels.aggregate import HeldEdges
from gnnkit.kernels.sums import EdgeKernels
from gnnkit.partition.grid import Grid
from gnnkit.partition.shard import Shard


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
    edge_ids: Tensor  # [held edges] int64 global ids
    edge_features: Tensor | None  # [held edges, edge_width]
    nodes: Tensor  # [num_owned] int64 global ids
    source_ids: Tensor  # [num_sources] int64 global ids
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
        own_rows = slicing.rows
        return cls(
            shard,
            comm,
            dtype,
            plane.wire,
            sources,
            targets,
            slicing,
            **_edge_tensors(shard, dtype, comm.device),
            nodes=_id_tensor(shard.owned, comm.device),
            source_ids=_id_tensor(shard.sources, comm.device),
            in_degree=_tensor(shard.in_degree[own_rows], dtype, comm.device),
            out_degree=_tensor(shard.out_degree[own_rows], dtype, comm.device),
        )

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
        tensors = _edge_tensors(shard, dtype, device)
        edge_weight = tensors["edges"].weight(dtype)
        weights = torch.ones(len(positions), 1, dtype=dtype, device=device) if edge_weight is None else edge_weight
        into, out_of = (sums[:, 0] for sums in self.sums_at_owners(tensors["edges"], weights))
        shard = replace(shard, in_degree=into.cpu().numpy(), out_degree=out_of.cpu().numpy())
        own_rows = self.slicing.rows
        return replace(self, shard=shard, **tensors, in_degree=into[own_rows], out_degree=out_of[own_rows])

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

    def tensors(self) -> dict[str, Tensor]:
        """Returns tensors by their names in an adjacency."""
        tensors = {
            "src_nodes": self.nodes,
            "edge_ids": self.edge_ids,
            "in_degree": self.in_degree,
            "out_degree": self.out_degree,
        }
        return tensors if self.edge_features is None else {**tensors, "edge_features": self.edge_features}

    def with_halo(self, x: Tensor, layer: int) -> Tensor:  # [num_cell_nodes, ...] -> [num_sources, ...]
        """Returns the source rows: the cell's, then the halo."""
        return x if self.sources.idle else torch.cat([x, self.sources.spread(x, layer)])

    def with_partial(self, z: Tensor, layer: int) -> Tensor:  # [num_cell_nodes, ...] -> [num_targets, ...]
        """Returns the target rows: the cell's, then those of other owners."""
        return z if self.targets.idle else torch.cat([z, self.targets.spread(z, layer)])

    def at_owners(self, z: Tensor, layer: int) -> Tensor:  # [num_targets, ...] -> [num_cell_nodes, ...]
        """Adds the holders' partial sums to the owners' rows."""
        num_local = len(self.shard.cell_nodes)
        return z if self.targets.idle else z[:num_local] + self.targets.collect(z[num_local:], layer)

    @cached_property
    def partials(self) -> Partials:
        """All holders' partial results, at the owners."""
        return Partials.of(self.targets, len(self.shard.cell_nodes))


@dataclass(frozen=True, slots=True, eq=False)
class Partials:
    """An owner's rows, followed by the rows received from other holders."""

    rows: Tensor  # [num_owned + num_received] int64 owner's row of each
    kernels: EdgeKernels  # reduce [num_owned + num_received, ...] to [num_owned, ...]
    _route: Route
    _num_owned: int

    @classmethod
    def of(cls, route: Route, num_owned: int) -> Partials:
        """Lists the owner's row for each partial result.

        Args:
            route: From holders to owners.
            num_owned: Number of owned rows.
        """
        device = route.sent.device
        rows = torch.cat([torch.arange(num_owned, device=device), route.sent])
        return cls(rows, kernels_to(rows.cpu().numpy(), num_owned, device), route, num_owned)

    def collect(self, z: Tensor, layer: int) -> Tensor:  # [num_targets, ...] -> [num_owned + num_received, ...]
        """Receives the holders' rows, without autograd. Collective."""
        return torch.cat([z[: self._num_owned], self._route.to_owners(z[self._num_owned :], layer)])


def _peers(shard: Shard, comm: Communicator, tally: Tally, passes: Passes) -> tuple[Peers, Peers | None]:
    """Returns the peers of the same slice, and those of the same cell."""
    cell, place, slices = shard.cell, shard.slice, shard.grid.slices
    plane_ranks = [index * slices + place for index in range(shard.grid.num_cells)]
    if slices == 1:
        return Peers(Wire(comm, plane_ranks, tally), passes), None
    cell_ranks = [cell * slices + index for index in range(slices)]
    plane, within = comm.split(plane_ranks), comm.split(cell_ranks)
    return Peers(Wire(plane, plane_ranks, tally), passes), Peers(Wire(within, cell_ranks, tally), passes)


def _edge_tensors(shard: Shard, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """Returns a topology's fields that describe edges."""
    return {
        "edges": HeldEdges(shard.csc, device),
        "edge_ids": _id_tensor(shard.edge_ids, device),
        "edge_features": None if shard.edge_features is None else _tensor(shard.edge_features, dtype, device),
    }


def _id_tensor(ids: Ids, device: torch.device) -> Tensor:
    return torch.tensor(np.asarray(ids, np.int64), device=device)


def _tensor(values: Floats, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(np.asarray(values), dtype=dtype, device=device)
