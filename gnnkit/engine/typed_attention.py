"""Attention over typed edges, whose rows and scores may depend on the relation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gnnkit.engine.layer_routes import LayerRoutes
from gnnkit.engine.typed_edges import AddedRelations, TypedEdges
from gnnkit.exchange.route import Route
from gnnkit.kernels.aggregate import HeldEdges
from gnnkit.kernels.attention import Weighing, attend, serves
from gnnkit.kernels.dropout import dropout


class RelationAttention(Protocol):
    """A layer's scores and messages.

    Both may use the layer's parameters and their arguments, and nothing else that has a
    gradient, because several ranks may compute them.
    """

    @property
    def width(self) -> int:
        """Columns of a message per head."""

    @property
    def added(self) -> AddedRelations:
        """Relations in addition to the graph's."""

    def scores(self, rows: Tensor, targets: Tensor, edges: TypedEdges) -> Tensor:
        """Computes the edges' scores before the softmax, [num_edges, H].

        Args:
            rows: [num_rows, f] rows that edges leave.
            targets: [num_targets, k] rows that edges enter.
            edges: The edges between them.
        """

    def messages(self, rows: Tensor, edges: TypedEdges, columns: slice) -> tuple[Tensor, HeldEdges]:
        """Computes the messages that attention weights scale.

        Args:
            rows: [num_rows, f] rows that edges leave.
            edges: The edges.
            columns: Columns of each head to compute.

        Returns:
            [n, H, columns] messages, and the edges from these into rows:
                `edges.from_pairs` or `edges.rows`.
        """


def attend_locally(
    attention: RelationAttention, rows: Tensor, targets: Tensor, edges: TypedEdges, weighing: Weighing
) -> Tensor:  # [num_targets, H, d]
    """Computes attention over all in-edges of the targets.

    Args:
        attention: The scores and messages.
        rows: [num_rows, f].
        targets: [num_targets, k].
        edges: The edges.
        weighing: Slope 1, and dropout of the attention weights.
    """
    scores = attention.scores(rows, targets, edges)
    messages, message_edges = attention.messages(rows, edges, slice(0, attention.width))
    if serves(message_edges, messages):
        no_part = (
            messages.new_zeros(message_edges.num_src, scores.shape[1]),
            messages.new_zeros(message_edges.num_dst, scores.shape[1]),
        )
        return attend(message_edges, messages, *no_part, scores, weighing)
    weight = _drop(edge_softmax(scores, edges.rows), weighing)
    return message_edges.weighted_sum(messages, weight)


@dataclass(frozen=True, slots=True, eq=False)
class SharedAttention:
    """Attention in which several ranks may hold in-edges of one node.

    Rows are sent to the edges' holders once, for any number of relations. Holders
    compute messages and scores. Sums of exponentials, and of weighted messages, are
    sent to the owners.

    On a grid with slices, all ranks of a cell compute the scores from complete rows,
    and each one some columns of the messages. Their gradients are parts of a sum, which
    is computed for the rows only.
    """

    edges: TypedEdges
    added: AddedRelations
    routes: LayerRoutes
    sources: Route  # those of `routes`
    targets: Route

    def __call__(
        self, x: Tensor, y: Tensor | None, attention: RelationAttention, weighing: Weighing
    ) -> Tensor:  # [num_owned, H, d]
        """Computes the attention. Collective.

        Args:
            x: [num_owned, f] rows that edges leave.
            y: [num_owned, k] rows that edges enter. If None, `x`.
            attention: The scores and messages.
            weighing: Slope 1, and dropout of the attention weights.
        """
        routes, slicing, inverse = self.routes, self.routes.slicing, self.added.inverse
        rows = routes.all_rows(slicing.distribute(x, routes.layer), halo=True, partial=inverse or y is None)
        targets = rows
        if y is not None:
            targets = routes.all_rows(slicing.distribute(y, routes.layer), halo=inverse, partial=True)
        if self._holds_in_edges:
            return attend_locally(attention, rows, targets, self.edges, weighing)[: len(x)]
        scores = attention.scores(rows, targets, self.edges)
        messages, message_edges = attention.messages(rows, self.edges, slicing.columns(attention.width))
        weight = _drop(edge_softmax(scores, self.edges.rows, self._largest, self._total), weighing)
        z = self._at_owners(message_edges.weighted_sum(messages, weight))
        return slicing.join(z, attention.width, routes.layer)

    @property
    def _holds_in_edges(self) -> bool:
        return self.routes.holds_in_edges and (self.sources.idle or not self.added.inverse)

    @property
    def _routes(self) -> list[tuple[Route, slice, bool]]:
        """The routes, their rows, and whether edges enter these rows."""
        end = self.sources.num_owned
        halo = end + len(self.sources.held_ids)
        return [
            (self.sources, slice(end, halo), self.added.inverse and not self.sources.idle),
            (self.targets, slice(halo, halo + len(self.targets.held_ids)), not self.targets.idle),
        ]

    def _at_owners(self, z: Tensor) -> Tensor:  # [num_rows, ...] -> [num_cell_nodes, ...]
        """Adds up the sums that holders have of the cell's rows."""
        total = z[: self.sources.num_owned]
        for route, rows, has_edges in self._routes:
            if has_edges:
                total = total + route.collect(z[rows], self.routes.layer)
        return total

    def _total(self, z: Tensor) -> Tensor:  # [num_rows, H] -> [num_rows, H]
        """Returns each row's total over all holders, with the same bits on each one."""
        with self.routes.passes.plain():
            return self._to_holders(self._at_owners(z))

    def _largest(self, z: Tensor) -> Tensor:  # [num_rows, H] -> [num_rows, H]
        """Returns each row's maximum over all holders."""
        largest = z[: self.sources.num_owned]
        with self.routes.passes.plain():
            for route, rows, has_edges in self._routes:
                if has_edges:
                    largest = route.partials.max(torch.cat([largest, z[rows]]), self.routes.layer)
            return self._to_holders(largest)

    def _to_holders(self, z: Tensor) -> Tensor:  # [num_cell_nodes, H] -> [num_rows, H]
        return self.routes.all_rows(z, halo=self.added.inverse, partial=True)


def edge_softmax(
    scores: Tensor,
    edges: HeldEdges,
    largest: Callable[[Tensor], Tensor] = lambda z: z,
    total: Callable[[Tensor], Tensor] = lambda z: z,
    keep: Callable[[Callable[[], Tensor]], Tensor] = lambda compute: compute(),
) -> Tensor:  # [num_edges, H]
    """Computes the softmax over the in-edges of each row.

    Args:
        scores: [num_edges, H].
        edges: The edges.
        largest: Converts the held edges' maxima [num_targets, H] to the maxima of all
            edges. Default: identity, if all edges are held.
        total: Likewise for the held edges' sums [num_targets, H].
        keep: Returns the edges' maxima [num_edges, H], computed by the argument. Stale
            sums were computed with earlier ones. Default: no cache.
    """
    by_destination = edges.by_destination
    with torch.no_grad():
        maxima = keep(lambda: by_destination.spread(largest(by_destination.kernels.max(scores)[0])))
    powers = (scores - maxima).exp()
    return powers / by_destination.spread(total(by_destination.sum(powers)))


def _drop(weight: Tensor, weighing: Weighing) -> Tensor:
    return weight if weighing.ids is None else dropout(weight, weighing.ids, weighing.p, weighing.key)
