"""Attention over typed edges, whose rows and scores may depend on the relation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gnnkit.engine.topology import Topology
from gnnkit.engine.typed_edges import AddedRelations, TypedEdges
from gnnkit.exchange.route import Route
from gnnkit.exchange.schedule import Passes
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

    topology: Topology
    passes: Passes
    edges: TypedEdges
    added: AddedRelations
    layer: int

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
        inverse = self.added.inverse
        rows = self._rows(x, halo=True, partial=inverse or y is None)
        targets = rows if y is None else self._rows(y, halo=inverse, partial=True)
        if self._holds_in_edges:
            return attend_locally(attention, rows, targets, self.edges, weighing)[: len(x)]
        scores = attention.scores(rows, targets, self.edges)
        columns = self.topology.slicing.columns(attention.width)
        messages, message_edges = attention.messages(rows, self.edges, columns)
        weight = _drop(edge_softmax(scores, self.edges.rows, self._largest, self._total), weighing)
        z = self._at_owners(message_edges.weighted_sum(messages, weight))
        return self.topology.slicing.join(z, attention.width, self.layer)

    @property
    def _holds_in_edges(self) -> bool:
        topology = self.topology
        return topology.holds_in_edges and (topology.sources.idle or not self.added.inverse)

    @property
    def _routes(self) -> list[tuple[Route, slice, bool]]:
        """The routes, their rows, and whether edges enter these rows."""
        shard = self.topology.shard
        halo, end = len(shard.cell_nodes) + len(shard.halo), len(shard.cell_nodes)
        last = halo + len(shard.partial)
        sources, targets = self.topology.sources, self.topology.targets
        return [
            (sources, slice(end, halo), self.added.inverse and not sources.idle),
            (targets, slice(halo, last), not targets.idle),
        ]

    def _rows(self, x: Tensor, *, halo: bool, partial: bool) -> Tensor:
        """Returns rows [cell_nodes | halo | partial], with zeros for unread ones."""
        x = self.topology.slicing.distribute(x, self.layer)
        parts = [x]
        for (route, rows, _), read in zip(self._routes, (halo, partial), strict=True):
            if route.idle:
                continue
            unread = x.new_zeros(rows.stop - rows.start, *x.shape[1:])
            parts.append(route.spread(x, self.layer) if read else unread)
        return torch.cat(parts) if len(parts) > 1 else x

    def _at_owners(self, z: Tensor) -> Tensor:  # [num_rows, ...] -> [num_cell_nodes, ...]
        """Adds up the sums that holders have of the cell's rows."""
        total = z[: len(self.topology.shard.cell_nodes)]
        for route, rows, has_edges in self._routes:
            if has_edges:
                total = total + route.collect(z[rows], self.layer)
        return total

    def _total(self, z: Tensor) -> Tensor:  # [num_rows, H] -> [num_rows, H]
        """Returns each row's total over all holders, with the same bits on each one."""
        with self.passes.plain():
            return self._to_holders(self._at_owners(z))

    def _largest(self, z: Tensor) -> Tensor:  # [num_rows, H] -> [num_rows, H]
        """Returns each row's maximum over all holders."""
        largest = z[: len(self.topology.shard.cell_nodes)].clone()
        with self.passes.plain():
            for route, rows, has_edges in self._routes:
                if has_edges:
                    peer_maxima = route.to_owners(z[rows], self.layer)
                    largest.scatter_reduce_(0, route.sent[:, None].expand_as(peer_maxima), peer_maxima, "amax")
            return self._to_holders(largest)

    def _to_holders(self, z: Tensor) -> Tensor:  # [num_cell_nodes, H] -> [num_rows, H]
        parts = [z]
        for route, rows, has_edges in self._routes:
            parts.append(route.spread(z, self.layer) if has_edges else z.new_zeros(rows.stop - rows.start, z.shape[1]))
        return torch.cat(parts)


def edge_softmax(
    scores: Tensor,
    edges: HeldEdges,
    largest: Callable[[Tensor], Tensor] | None = None,
    total: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:  # [num_edges, H]
    """Computes the softmax over the in-edges of each row.

    Args:
        scores: [num_edges, H].
        edges: The edges.
        largest: Converts the held edges' maxima [num_targets, H] to the maxima of all
            edges. Default: identity, if all edges are held.
        total: Likewise for the held edges' sums [num_targets, H].
    """
    by_destination = edges.by_destination
    with torch.no_grad():
        maxima = by_destination.kernels.max(scores)[0]
        maxima = by_destination.spread(maxima if largest is None else largest(maxima))
    powers = (scores - maxima).exp()
    sums = by_destination.sum(powers)
    return powers / by_destination.spread(sums if total is None else total(sums))


def _drop(weight: Tensor, weighing: Weighing) -> Tensor:
    return weight if weighing.ids is None else dropout(weight, weighing.ids, weighing.p, weighing.key)
