"""The node and edge values that sampled blocks read."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gnnkit.engine.block_adjacency import BlockAdjacency
from gnnkit.engine.block_relations import check_edge_ids
from gnnkit.engine.pool import Pool
from gnnkit.graph import Block, Floats, Graph, Ids, RelationGroups
from gnnkit.kernels.dropout import derive
from gnnkit.partition.degrees import Degrees, mean_in_edges
from gnnkit.partition.shard import Shard


class ValuesById:
    """Values of some ids, indexed like an array with a value for every id."""

    def __init__(self, ids: Ids, values: npt.NDArray[Any]) -> None:
        """Sorts the ids.

        Args:
            ids: [num_ids] ids in any order. Repeated ids have equal values.
            values: [num_ids, ...].
        """
        order = np.argsort(ids, kind="stable")
        self._ids, self._values = ids[order], values[order]

    def __getitem__(self, ids: Ids) -> npt.NDArray[Any]:  # [k] -> [k, ...]
        return self._values[np.searchsorted(self._ids, ids)]


class ComputedValues:
    """Values computed for the requested ids, indexed like a full array."""

    def __init__(self, of: Callable[[Ids], npt.NDArray[Any]]) -> None:
        """Stores `of`, which returns the values of ids, [k] -> [k, ...]."""
        self._of = of

    def __getitem__(self, ids: Ids) -> npt.NDArray[Any]:  # [k] -> [k, ...]
        return self._of(ids)


Values = npt.NDArray[Any] | ValuesById | ComputedValues  # indexed by the ids in blocks


@dataclass(frozen=True, slots=True, eq=False)
class InRelation:
    """The relations of a block's edges, and their targets in the complete graph."""

    types: Ids  # [num_edges] relation of each edge
    degree: Floats  # [num_edges] in-degree of its target within its relation, a sum of weights if edges have weights
    count: Ids | None = None  # [num_edges] number of these in-edges. None: unknown, blocks have weights or all edges


class LayerValues:
    """Node and edge values that blocks need, indexed by the blocks' ids.

    These ids are global, unless `node_ids` and `edge_ids` translate them.

    Sums estimate the sums over all in-edges. A drawn edge counts as its block's
    `weight`, or else d/s times in a row that drew s of d in-edges. A softmax or maximum
    is over the drawn edges. Degrees refer to the complete graph, whereas DGL and PyG
    normalise by the block's degrees.
    """

    pool: Pool = Pool()  # the ranks that compute the same step
    num_nodes: int  # in the complete graph
    num_edges: int  # in the complete graph, without added self-loops
    dtype: torch.dtype  # type of degrees, weights and edge features
    device: torch.device  # device of the adjacencies
    self_loops: bool  # whether nodes without a self-loop get one
    weight: Values | None  # [num_edges] None: 1 each
    edge_features: Values | None  # [num_edges, edge_width]
    edge_types: Values | None  # [num_edges] relation of each edge. None: one relation, or unread
    relation_degree: Values | None = None  # [num_edges] `InRelation.degree`. None: one relation, or computed
    edge_time: Values | None = None  # [num_edges] from when each edge is visible. None: not received
    newest_time: int  # the newest edge's, if there is an `edge_time`
    graph_in_degree: Values  # [num_nodes] without added self-loops
    in_degree: Values  # [num_nodes] including added self-loops
    out_degree: Values  # [num_nodes] including added self-loops
    num_in_edges: Values  # [num_nodes]
    gets_loop: Values  # [num_nodes] bool, nodes without a self-loop
    mean_edge_features: Values | None  # [num_nodes, edge_width] features of added self-loops
    type_sizes: tuple[int, ...] | None = None  # [num_node_types] as `Shard.type_sizes`
    num_relations: int = 1  # in the complete graph, including inverse ones if it `inverse_edges`
    inverse_edges: bool = False  # whether the graph has the reverse of each edge, with separate relations

    def __init__(
        self, source: Graph | Shard, model: object, dtype: torch.dtype, device: torch.device, inverse_edges: bool
    ) -> None:
        """Reads the size and the edge values of a graph, or of a rank's part of it."""
        self.num_nodes, self.num_edges, self.type_sizes = source.num_nodes, source.num_edges, source.type_sizes
        self.num_relations, self.inverse_edges = source.num_relations, inverse_edges
        self.weight, self.edge_features = source.csc.weight, source.edge_features
        self.edge_types, self.dtype, self.device = source.edge_types, dtype, device
        self.self_loops = bool(getattr(model, "self_loops", False))

    def in_relation(self, block: Block) -> InRelation:
        """Returns the relations of a block's edges, with degrees within these."""
        ids = block.edge_ids
        if self.edge_types is None or self.relation_degree is None or ids is None:
            targets = np.repeat(block.src_nodes[: block.num_dst], np.diff(block.indptr))
            return InRelation(np.zeros(len(targets), np.int64), self.graph_in_degree[targets])
        return InRelation(self.edge_types[ids], self.relation_degree[ids])

    def edge_ages(self, block: Block) -> Floats | None:  # [num_edges]
        """Returns a block's `Adjacency.edge_age`, without added self-loops."""
        return None

    def node_ids(self, nodes: Ids) -> Ids:  # [k] -> [k] int64
        """Returns the nodes' global ids."""
        return nodes.astype(np.int64, copy=False)

    def row_ids(self, nodes: Ids) -> Ids:  # [k] -> [k] int64
        """Returns ids that only copies of a row share, on all ranks."""
        return self.node_ids(nodes)

    def edge_ids(self, edges: Ids) -> Ids:  # [k] -> [k] int64
        """Returns the edges' global ids."""
        return edges.astype(np.int64, copy=False)

    def _with_loop(self, degree: Floats, nodes: Ids) -> Floats:
        return degree + self.gets_loop[nodes] if self.self_loops else degree

    def layers(self, blocks: Sequence[Block], key: int) -> tuple[BlockAdjacency, ...]:
        """Creates one adjacency per block, by layer. `key` is the step's."""
        return tuple(BlockAdjacency(self, block, derive(key, layer)) for layer, block in enumerate(blocks))


class BlockLayers(LayerValues):
    """Values of a complete local graph, computed for a block's nodes.

    No rank stores a number for each node. Ranks of a process share the degrees.
    """

    def __init__(
        self,
        graph: Graph,
        model: object,
        dtype: torch.dtype,
        device: torch.device,
        pool: Pool | None = None,
        *,
        inverse_edges: bool = False,
        group_relations: Callable[[], RelationGroups] | None = None,
    ) -> None:
        """Stores the graph.

        Args:
            graph: The complete graph.
            model: The model. With `self_loops`, nodes without a self-loop get one.
            dtype: Type of degrees, weights and edge features.
            device: Device of the adjacencies.
            pool: The ranks whose rows enter batch statistics. If None, this rank only.
            inverse_edges: Whether the graph has each edge's reverse, with
                separate relations.
            group_relations: Returns the in-edges by relation. If None, groups them
                on first use.
        """
        super().__init__(graph, model, dtype, device, inverse_edges)
        self.graph, self.pool, self._group_relations = graph, pool or Pool(), group_relations
        self._read_degrees()

    def _read_degrees(self) -> None:
        """Defines degrees that are computed on access."""
        degrees, indptr = Degrees.of(self.graph.csc), self.graph.csc.indptr
        self.num_in_edges = ComputedValues(lambda nodes: indptr[nodes.astype(np.int64) + 1] - indptr[nodes])
        self.gets_loop = ComputedValues(lambda nodes: ~degrees.looped(nodes))
        self.graph_in_degree = ComputedValues(degrees.in_degree)
        self.in_degree = ComputedValues(lambda nodes: self._with_loop(degrees.in_degree(nodes), nodes))
        self.out_degree = ComputedValues(lambda nodes: self._with_loop(degrees.out_degree(nodes), nodes))

    @cached_property
    def relations(self) -> RelationGroups:
        """The graph's in-edges by relation."""
        return RelationGroups.of_graph(self.graph) if self._group_relations is None else self._group_relations()

    def in_relation(self, block: Block) -> InRelation:
        types = self.relations.types[check_edge_ids(block)]
        targets = np.repeat(block.src_nodes[: block.num_dst], np.diff(block.indptr))
        return InRelation(types, self.relations.degrees(targets, types), self.relations.counts(targets, types))

    def of_part(self, part: Block) -> BlockLayers:
        """Returns the same values for a part that is treated as a separate graph.

        Degrees and self-loop features are the part's. Nodes outside it have zeros.

        Args:
            part: Some nodes, and the edges between them to consider.
        """
        gets_loop = self.gets_loop  # taken before the copy, whose values include these nodes
        layers, csc, nodes = copy.copy(self), self.graph.csc, part.src_nodes
        weight = np.ones(len(part.indices)) if csc.weight is None else csc.weight[part.edge_ids]
        rows = np.repeat(np.arange(part.num_dst), np.diff(part.indptr))
        loops = gets_loop[nodes].astype(np.float64) if self.self_loops else np.zeros(len(nodes))
        incoming = np.bincount(rows, weight, len(nodes)).astype(np.float64)
        layers.graph_in_degree = self._spread(nodes, incoming)
        layers.in_degree = self._spread(nodes, incoming + loops)
        layers.out_degree = self._spread(nodes, np.bincount(part.indices, weight, len(nodes)) + loops)
        if self.graph.edge_features is not None:
            mean = mean_in_edges(part.indptr, self.graph.edge_features[part.edge_ids])
            layers.mean_edge_features = None if mean is None else self._spread(nodes, mean)
        return layers

    def _spread(self, nodes: Ids, values: Floats) -> Floats:  # [num_nodes, ...]
        """Scatters the values of some nodes into an array for all nodes.

        Unwritten pages take no memory.
        """
        out = np.zeros((self.num_nodes, *values.shape[1:]), values.dtype)
        out[nodes] = values
        return out

    @cached_property
    def mean_edge_features(self) -> Floats | None:  # type: ignore[override]  # [num_nodes, edge_width]
        return mean_in_edges(self.graph.csc.indptr, self.graph.edge_features)


class ShardLayers(LayerValues):
    """Values of one rank's shard, which holds all in-edges of the owned nodes.

    Nodes have local ids: the owned ones in ascending order of global id, then the halo
    by (owner, id). Only owned nodes have values. Edges are numbered by position in the
    shard.
    """

    def __init__(
        self,
        shard: Shard,
        model: object,
        dtype: torch.dtype,
        device: torch.device,
        *,
        inverse_edges: bool = False,
    ) -> None:
        """Numbers the nodes of a shard in a grid with one column and one slice.

        Args:
            shard: This rank's shard.
            model: The model. With `self_loops`, nodes without a self-loop get one.
            dtype: Type of degrees, weights and edge features.
            device: Device of the adjacencies.
            inverse_edges: Whether the graph has each edge's reverse, with
                separate relations.
        """
        super().__init__(shard, model, dtype, device, inverse_edges)
        self.shard, self.num_owned, self.num_in_edges = shard, len(shard.owned), shard.num_in_edges
        self.halo, self.halo_owner = shard.halo, shard.halo_cell
        self.relation_degree = None if shard.relation_degrees is None else shard.relation_degrees[:, 0]
        self.gets_loop, self.mean_edge_features = ~shard.looped, shard.mean_edge_features
        loops = self.gets_loop.astype(np.float64) if self.self_loops else np.zeros(self.num_owned)
        self.graph_in_degree = shard.in_degree
        self.in_degree, self.out_degree = shard.in_degree + loops, shard.out_degree + loops

    @cached_property
    def nodes(self) -> Ids:  # [num_owned + num_halo] int64 global ids
        """Global ids of the shard's nodes."""
        return self.shard.sources.astype(np.int64)

    def node_ids(self, nodes: Ids) -> Ids:
        return self.nodes[nodes]

    def edge_ids(self, edges: Ids) -> Ids:
        return self.shard.edge_ids[edges].astype(np.int64)
