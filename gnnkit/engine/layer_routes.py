"""How a layer's rows reach the held edges, and how sums return to their owners."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gnnkit.engine.in_place import version_of
from gnnkit.engine.pool import Pool
from gnnkit.engine.typed_graph import RelationGraph
from gnnkit.errors import UserError
from gnnkit.exchange.base import ForwardPass, Operation, Passes
from gnnkit.exchange.route import AllColumns, Route, Slicing


@dataclass(frozen=True, slots=True, eq=False)
class LayerRoutes:
    """The exchange of rows in one layer of one pass.

    Source rows are the cell's, then the halo. Destination rows are the cell's, then
    partial sums. Methods are collective, in forward and backward. Without routes, no
    rows are exchanged.
    """

    slicing: Slicing  # which columns each rank has
    passes: Passes  # whose current pass encodes and schedules exchanges
    forward: ForwardPass  # this pass
    sources: Route | None = None  # rows of the halo. None: there is none
    targets: Route | None = None  # partial sums. None: there are none
    layer: int = 0
    pool: Pool = field(default_factory=Pool)  # the ranks whose rows enter batch statistics
    _halos: dict[Route, tuple[Tensor, Tensor, tuple[bool, int]]] = field(default_factory=dict)  # latest rows received

    @classmethod
    def local(cls, num_rows: int, pool: Pool | None = None) -> LayerRoutes:
        """Returns the routes of a rank that has all rows.

        Args:
            num_rows: Number of rows.
            pool: The ranks whose rows enter batch statistics. If None, this rank only.
        """
        passes = Passes()
        return cls(AllColumns(num_rows), passes, passes.current, pool=pool or Pool())

    @classmethod
    def joint(cls, num_sources: int, route: Route, layer: int) -> LayerRoutes:
        """Returns the routes of a rank that has some rows, and all their in-edges.

        Args:
            num_sources: Number of rows that the edges read, with the halo.
            route: Brings other ranks' rows.
            layer: Layer of the model.
        """
        plane = route.plane
        slicing, pool = AllColumns(num_sources - len(route.held_ids)), Pool(plane.comm, plane.wire.tally)
        return cls(slicing, plane.passes, plane.passes.current, route, None, layer, pool)

    @property
    def alone(self) -> bool:
        """Whether there are no other ranks."""
        return self.sources is None or self.sources.plane.comm.world_size == 1

    @property
    def holds_in_edges(self) -> bool:
        """Whether every rank holds all in-edges of its rows, in all columns."""
        return self.slicing.num_slices == 1 and (self.targets is None or self.targets.idle)

    def again(self) -> LayerRoutes:
        """Returns the routes of a second pass in the same step."""
        pool = Pool(lasts=False) if self.sources is None else self.pool  # another rank may not take part
        return replace(self, forward=self.forward.again, pool=pool)

    def enter(self, operation: Operation) -> LayerRoutes:
        """Makes this pass the current one, and returns the routes.

        Raises `UserError` for an operation that the pass does not support.
        """
        schedule = self.forward.schedule
        if schedule is not None:
            if operation == "relations":
                raise UserError("a relational model needs current rows: use exchange=exact or quantized")
            schedule.check(operation)
        self.passes.enter(self.forward)
        return self

    def read(self, x: Tensor) -> Tensor:  # [num_owned, ...] -> [num_sources, ...]
        """Returns this rank's columns of the source rows."""
        return self.with_halo(self.slicing.cut(x, self.layer))

    def with_halo(self, x: Tensor) -> Tensor:  # [num_cell_nodes, ...] -> [num_sources, ...]
        """Returns the source rows: the cell's, then the halo."""
        return x if self.sources is None else self.sources.append(x, self.layer)

    def with_partial(self, z: Tensor) -> Tensor:  # [num_cell_nodes, ...] -> [num_targets, ...]
        """Returns the destination rows: the cell's, then those of other owners."""
        return z if self.targets is None else self.targets.append(z, self.layer)

    def all_rows(self, x: Tensor, *, halo: bool, partial: bool) -> Tensor:  # [num_cell_nodes, ...]
        """Returns rows [cell_nodes | halo | partial], with zeros for unread ones.

        Args:
            x: [num_cell_nodes, ...].
            halo: Whether the halo is read.
            partial: Whether the rows of partial sums are read.
        """
        parts = [x]
        for route, is_read in ((self.sources, halo), (self.targets, partial)):
            if route is not None and not route.idle:
                unread = (len(route.held_ids), *x.shape[1:])
                parts.append(route.spread(x, self.layer) if is_read else x.new_zeros(unread))
        return torch.cat(parts) if len(parts) > 1 else x

    def at_owners(self, z: Tensor) -> Tensor:  # [num_targets, ...] -> [num_cell_nodes, ...]
        """Adds the holders' partial sums to the owners' rows."""
        return z if self.targets is None else self.targets.add(z, self.layer)

    def collect(self, z: Tensor, width: int) -> Tensor:  # [num_targets, ...] -> [num_owned, ...]
        """Returns all `width` columns of the owned rows' sums."""
        return self.slicing.join(self.at_owners(z), width, self.layer)

    def largest(self, z: Tensor) -> Tensor:  # [num_targets, H] -> [num_targets, H]
        """Returns each row's maximum over all holders, without autograd."""
        if self.targets is None or self.targets.idle:
            return z
        return self.with_partial(self.targets.partials.max(z, self.layer))

    def total(self, z: Tensor) -> Tensor:  # [num_targets, H] -> [num_targets, H]
        """Returns each row's total over all holders, with the same bits on each one."""
        with self.passes.plain():
            return self.with_partial(self.at_owners(z))

    def relation_halo(self, x: Tensor, graph: RelationGraph) -> Tensor:  # [num_src, ...] -> [num_halo, ...]
        """Returns the other ranks' rows that a relation's edges read.

        Args:
            x: [num_src, ...] own rows of the source type.
            graph: The relation's edges.
        """
        self.enter("halo")
        route = graph.route
        if route is None:
            return x[:0]
        if self.targets is not None:
            return x[:0] if route.idle else route.spread(x, self.layer)
        # In a batch, all relations of a source type have the same route.
        state = (torch.is_grad_enabled(), version_of(x))
        source, halo, last_state = self._halos.get(route, (None, x, state))
        if source is not x or last_state != state:
            halo = route.spread(x, self.layer)
            self._halos[route] = (x, halo, state)
        return halo
