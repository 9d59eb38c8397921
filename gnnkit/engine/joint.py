"""Jointly sampled blocks, in which each rank holds its owned nodes' in-edges."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from gnnkit.engine.adjacency import Adjacency
from gnnkit.engine.block import BlockAdjacency, LayerValues
from gnnkit.engine.in_place import version_of
from gnnkit.engine.pool import Pool
from gnnkit.engine.subgraph import Subgraph
from gnnkit.engine.typed_graph import RelationGraph, RelationRows, TypedGraph
from gnnkit.exchange.route import Route
from gnnkit.graph import Block, Ids
from gnnkit.graph.schema import Schema
from gnnkit.kernels.dropout import derive
from gnnkit.partition.shard import Shard


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


class JointAdjacency(BlockAdjacency):
    """One rank's part of a block that all ranks have sampled together.

    A layer reads and computes rows of owned nodes. Source rows of other ranks are
    received from their owners, and their gradients are sent back. Every method that
    reads rows is collective.
    """

    def __init__(
        self, layers: LayerValues, block: Block, route: Route, layer: int, key: int, *, reweight: bool = True
    ) -> None:
        """Adds self-loops if the model requires them.

        Args:
            layers: Values of the shard.
            block: In-edges of owned nodes. Its sources are the owned nodes that the
                layer reads, followed by the rows received through `route`.
            route: From the owners to the ranks that hold edges.
            layer: Layer of the model.
            key: The step's key.
            reweight: See `BlockAdjacency`.
        """
        super().__init__(layers, block, derive(key, layer), reweight=reweight)
        self._route, self._layer, self.alone = route, layer, route.plane.comm.world_size == 1
        self._halos: dict[str, tuple[Tensor | None, Tensor, tuple[bool, int]]] = {}  # latest rows received, by type
        self._read = block.src_nodes[: len(block.src_nodes) - len(route.held_ids)]  # [num_src]

    def aggregate_normalized(self, x: Tensor) -> Tensor:
        return Adjacency.aggregate_normalized(self, x)  # owners have the sources' degrees

    def concat_mean(self, x: Tensor, p: float = 0) -> Tensor:
        return super().concat_mean(self.dropout(x, p, training=True))

    def again(self) -> Adjacency:
        return self  # all ranks take part

    def pool_of_nodes(self, nodes: Tensor) -> Pool:
        return Pool(self._route.plane.comm, self._route.plane.wire.tally)

    def typed_graph(self, schema: Schema) -> TypedGraph:
        return self._typed_graph(schema, self._route)

    def relation_rows(self, graph: RelationGraph) -> RelationRows:
        return RelationRows(graph, self._relation_halo, alone=self.alone)

    def _relation_halo(self, x: Tensor, graph: RelationGraph) -> Tensor:
        """Returns other ranks' rows of a type, received once for all relations."""
        state = (torch.is_grad_enabled(), version_of(x))
        source, halo, last_state = self._halos.get(graph.relation.source, (None, x, state))
        if source is not x or last_state != state:
            assert graph.route is not None
            halo = graph.route.spread(x, self._layer)
            self._halos[graph.relation.source] = (x, halo, state)
        return halo

    def project_first(self, in_features: int, out_features: int) -> bool:
        return Adjacency.project_first(self, in_features, out_features)  # must be the same on all ranks

    def with_halo(self, x: Tensor) -> Tensor:  # [num_src, ...] -> [num_src + num_halo, ...]
        """Appends the rows of other ranks to `x`."""
        return torch.cat([x, self._route.spread(x, self._layer)])


class JointSubgraph(JointAdjacency):
    """One rank's part of a jointly sampled batch, as one graph.

    The graph is the same as `Subgraph`'s. Every owned node of the batch is a
    destination, and sources of other ranks are received from their owners.
    """

    @classmethod
    def of(cls, layers: Sequence[JointAdjacency]) -> JointSubgraph:
        """Joins the layers of a batch in which each node has drawn once.

        The first layer then contains the in-edges of all nodes.
        """
        first = layers[0]
        block = first._block
        unread = np.full(len(first._read) - block.num_dst, block.indptr[-1], block.indptr.dtype)  # rows of the last hop
        graph = Block(np.concatenate([block.indptr, unread]), block.indices, block.src_nodes, block.edge_ids)
        return cls(first._layers, graph, first._route, first._layer, first.key, reweight=False)


def as_one_graph(layers: Sequence[BlockAdjacency]) -> tuple[BlockAdjacency, Tensor | None]:
    """Joins a batch's layers, for modules of (x, edge_index).

    Returns the graph, and its rows [num_dst] int64 within the rows of `layers[0]`, or
    None for all rows.
    """
    if isinstance(layers[0], JointAdjacency):
        return JointSubgraph.of(layers), None  # type: ignore[arg-type]
    return Subgraph.of(layers)
