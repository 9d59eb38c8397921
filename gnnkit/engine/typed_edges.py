"""Held edges with their relations, and rows with their node types."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gnnkit.engine.relations import RowPairs
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Ids
from gnnkit.graph.schema import types_of_nodes
from gnnkit.graph.types import offsets_of
from gnnkit.kernels.aggregate import HeldEdges
from gnnkit.kernels.sums import linear
from gnnkit.partition.degrees import by_pair
from gnnkit.partition.shard import Shard
from gnnkit.utils.ranges import switch


class AddedRelations(NamedTuple):
    """The relations that a model adds to the graph's.

    Relational models with `inverse` or `self_loop` have weights for more relations than
    the graph has: first the graph's, then the inverse ones, then the loops.
    """

    inverse: bool = False  # whether each relation has an inverse one, numbered after all given ones
    loops: bool = False  # whether each node has an edge to itself, of the last relation

    @classmethod
    def of_model(cls, inverse: object, self_loop: object) -> AddedRelations:
        """Reads a model's arguments. Raises `UserError` unless they are booleans."""
        return cls(switch("model.inverse", inverse), switch("model.self_loop", self_loop))

    def count(self, num_relations: int) -> int:
        """Returns the number of relations, including the added ones.

        Args:
            num_relations: Number of relations of the graph.
        """
        return num_relations * (1 + self.inverse) + self.loops

    def beyond(self, *, inverse: bool) -> AddedRelations:
        """Returns the relations to add to edges that may include inverse ones.

        Args:
            inverse: Whether the edges include inverse relations.
        """
        if not inverse:
            return self
        assert self.inverse, "the graph was prepared for a model that reads inverse edges"
        return self._replace(inverse=False)


class EdgeList(NamedTuple):
    """Typed edges between a rank's rows, in any order."""

    src: Ids  # [num_edges] row
    dst: Ids  # [num_edges] row
    types: Ids  # [num_edges] relation
    ids: Ids  # [num_edges] int64 global ids, distinct also for added edges

    @classmethod
    def of_shard(cls, shard: Shard, new_relations: AddedRelations) -> EdgeList:
        """Lists the held edges. Rows are [cell_nodes | halo | partial].

        An inverse edge is held where the edge is, and a loop where its node is owned.

        Args:
            shard: The rank's shard.
            new_relations: The relations to add.
        """
        csc, num_local = shard.csc, len(shard.cell_nodes)
        dst = np.repeat(np.arange(csc.num_nodes), np.diff(csc.indptr))
        dst[dst >= num_local] += len(shard.halo)
        types = np.zeros(len(dst), np.int64) if shard.edge_types is None else shard.edge_types
        edges = cls(np.asarray(csc.indices, np.int64), dst, np.asarray(types, np.int64), shard.edge_ids)
        return edges.add(new_relations, shard.num_relations, shard.cell_nodes, (shard.num_nodes, shard.num_edges))

    def add(self, new_relations: AddedRelations, num_relations: int, nodes: Ids, sizes: tuple[int, int]) -> EdgeList:
        """Appends inverse edges and loops.

        Args:
            new_relations: The relations to add.
            num_relations: Number of relations of the graph.
            nodes: [num_loops] global ids of the first rows, which get the loops.
            sizes: Number of nodes and of edges of the graph.
        """
        num_nodes, num_edges = sizes
        parts = [self._replace(ids=np.asarray(self.ids, np.int64))]
        if new_relations.inverse:
            parts.append(EdgeList(self.dst, self.src, self.types + num_relations, parts[0].ids + num_edges + num_nodes))
        if new_relations.loops:
            rows = np.arange(len(nodes))
            types = np.full(len(nodes), new_relations.count(num_relations) - 1)
            parts.append(EdgeList(rows, rows, types, np.asarray(nodes, np.int64) + num_edges))
        return EdgeList(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


class TypedEdges:
    """Typed edges, sorted by destination row.

    Attributes:
        rows: The edges between rows.
        types: [num_edges] int64 each edge's relation.
        ids: [num_edges] int64 global ids, the keys of dropout.
        sources: The (source row, relation) pairs with edges.
        targets: The (destination row, relation) pairs with edges.
        from_pairs: The edges from `sources` to destination rows.
    """

    def __init__(
        self,
        rows: HeldEdges,
        types: Ids,
        ids: Ids,
        sources: tuple[RowPairs, Ids],
        targets: tuple[RowPairs, Ids],
    ) -> None:
        """Stores the edges.

        Args:
            rows: The edges between rows.
            types: [num_edges] each edge's relation.
            ids: [num_edges] global ids.
            sources: The pairs of source rows, and each edge's pair [num_edges].
            targets: The pairs of destination rows, and each edge's pair [num_edges].
        """
        device = rows.device
        self.rows, self.num_edges = rows, rows.num_edges
        self.types, self.ids = (torch.from_numpy(np.asarray(values, np.int64)).to(device) for values in (types, ids))
        self.sources, self._source_of_edge = sources
        self.targets, self._target_of_edge = targets
        self._spread_relations: HeldEdges | None = None
        self.from_pairs = HeldEdges(CSC(rows.csc.indptr, self._source_of_edge, num_sources=len(self.sources)), device)

    @classmethod
    def of(
        cls, edges: EdgeList, num_rows: int, num_targets: int, num_relations: int, device: torch.device
    ) -> TypedEdges:
        """Sorts the edges, in time linear in their number.

        Args:
            edges: The edges.
            num_rows: Number of rows.
            num_targets: Number of rows that may be destinations, which come first.
            num_relations: Number of relations, including the added ones.
            device: Device of the result.
        """
        order = np.argsort(edges.dst, kind="stable")
        src, dst, types, ids = (column[order] for column in edges)
        indptr = offsets_of(np.bincount(dst, minlength=num_targets))
        rows = HeldEdges(CSC(indptr, src, num_sources=num_rows), device)
        sources = _pairs_of(src, types, num_rows, num_relations, device)
        targets = _pairs_of(dst, types, num_targets, num_relations, device)
        return cls(rows, types, ids, sources, targets)

    def of_relations(self, z: Tensor) -> Tensor:  # [num_relations, ...] -> [num_edges, ...]
        """Copies values of relations to their edges."""
        if self._spread_relations is None:
            self._spread_relations = self._spread(self.types.cpu().numpy(), len(z))
        return self._spread_relations.sum(z)

    def of_rows(self, z: Tensor) -> Tensor:  # [num_rows, ...] -> [num_edges, ...]
        """Copies values of source rows to their edges."""
        return self.rows.of_sources.sum(z)

    def of_destinations(self, z: Tensor) -> Tensor:  # [num_targets, ...] -> [num_edges, ...]
        """Copies values of destination rows to their edges."""
        return self.rows.by_destination.spread(z)

    def of_sources(self, z: Tensor) -> Tensor:  # [num source pairs, ...] -> [num_edges, ...]
        """Copies values of `sources` to their edges."""
        return self._spread_sources.sum(z)

    def of_targets(self, z: Tensor) -> Tensor:  # [num target pairs, ...] -> [num_edges, ...]
        """Copies values of `targets` to their edges."""
        return self._spread_targets.sum(z)

    def dot(self, z: Tensor, targets: Tensor) -> Tensor:  # -> [num_edges, H]
        """Multiplies rows of `sources` with rows of destinations.

        Args:
            z: [num source pairs, H, d].
            targets: [num_targets, H, d].
        """
        return self.from_pairs.dot(z, targets)

    @cached_property
    def _spread_sources(self) -> HeldEdges:
        return self._spread(self._source_of_edge, len(self.sources))

    @cached_property
    def _spread_targets(self) -> HeldEdges:
        return self._spread(self._target_of_edge, len(self.targets))

    def _spread(self, places: Ids, count: int) -> HeldEdges:
        return HeldEdges(CSC(np.arange(self.num_edges + 1), places, num_sources=count), self.rows.device)


def _pairs_of(rows: Ids, types: Ids, num_rows: int, num_relations: int, device: torch.device) -> tuple[RowPairs, Ids]:
    """Returns the distinct (row, relation) pairs, and each edge's pair."""
    order, first = by_pair(rows, types, num_rows)
    heads = order[first]
    pair_of_edge = np.empty(len(rows), np.int64)
    pair_of_edge[order] = np.cumsum(first) - 1
    return RowPairs.of(rows[heads], types[heads], num_rows, num_relations, device), pair_of_edge


class RowTypes:
    """The node type of each row of a layer, for weights per node type.

    Rows are grouped by type, so that each type needs one matrix product.
    """

    def __init__(self, types: Ids, num_types: int, device: torch.device) -> None:
        """Sorts the rows by type, unless they are sorted.

        Args:
            types: [num_rows] node type of each row.
            num_types: Number of node types.
            device: Device of the rows.
        """
        self.sizes: list[int] = np.bincount(types, minlength=num_types).tolist()
        self._order: Tensor | None = None  # [num_rows] rows by type. None: rows are sorted
        if np.any(types[1:] < types[:-1]):
            order = np.argsort(types, kind="stable")
            places = np.empty_like(order)
            places[order] = np.arange(len(order))
            self._order, self._places = (torch.from_numpy(rows).to(device) for rows in (order, places))

    @classmethod
    def of(cls, ids: Ids, type_sizes: Sequence[int] | None, num_types: int, device: torch.device) -> RowTypes:
        """Looks up the types of nodes.

        Raises `UserError` if the model has weights for another number of types.

        Args:
            ids: [num_rows] global ids.
            type_sizes: [num_node_types] number of nodes of each type, in the order of
                ids. If None, all nodes have one type.
            num_types: Number of node types that the model has weights for.
            device: Device of the rows.
        """
        count = 1 if type_sizes is None else len(type_sizes)
        if count != num_types:
            raise UserError(
                f"the model has weights for num_node_types={num_types}, and the graph has {count}: make the model "
                f"with num_node_types={count}, or call it with a Graph that has its node types"
            )
        return cls(types_of_nodes(ids, type_sizes or ()), num_types, device)

    def products(self, x: Tensor, weights: Tensor, biases: Tensor) -> Tensor:  # [num_rows, f] -> [num_rows, k]
        """Multiplies each row by its type's weight, and adds the type's bias.

        Args:
            x: [num_rows, f].
            weights: [num_types, f, k].
            biases: [num_types, k].
        """
        parts = zip(torch.split(self._sort(x), self.sizes), weights, biases, strict=True)
        return self._in_order(torch.cat([torch.addmm(bias, rows, weight) for rows, weight, bias in parts]))

    def spread(self, values: Tensor) -> Tensor:  # [num_types, k] -> [num_rows, k]
        """Copies values of types to their rows."""
        parts = zip(values, self.sizes, strict=True)
        return self._in_order(torch.cat([value.expand(size, -1) for value, size in parts]))

    def _sort(self, x: Tensor) -> Tensor:
        return x if self._order is None else _permute(x, self._order, self._places)

    def _in_order(self, x: Tensor) -> Tensor:
        return x if self._order is None else _permute(x, self._places, self._order)


def _permute(x: Tensor, rows: Tensor, places: Tensor) -> Tensor:
    """Selects each row once, so that the gradient is a selection too."""
    return linear(x, lambda x: x.index_select(0, rows), lambda grad: grad.index_select(0, places))
