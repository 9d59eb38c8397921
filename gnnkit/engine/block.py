"""Sampled blocks as adjacencies, in which one rank holds all data of a layer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd import Function

from gnnkit.engine.adjacency import Adjacency, Reduce
from gnnkit.engine.block_edges import BlockEdges
from gnnkit.engine.block_relations import BlockRelations, check_edge_ids
from gnnkit.engine.engine import Message
from gnnkit.engine.pool import Pool, pool_of
from gnnkit.engine.rank_graph import RankGraph
from gnnkit.engine.relations import Combine
from gnnkit.engine.row_types import RowTypes
from gnnkit.engine.typed_attention import RelationAttention, attend_locally, edge_softmax
from gnnkit.engine.typed_graph import TypedEnds, TypedGraph, TypedRows
from gnnkit.exchange.route import Route
from gnnkit.graph import Block, Floats, Graph, Ids, RelationGroups
from gnnkit.graph.schema import Schema
from gnnkit.kernels.aggregate import HeldEdges
from gnnkit.kernels.attention import serves
from gnnkit.kernels.dropout import derive, dropout_bits
from gnnkit.kernels.sums import Factors
from gnnkit.partition.degrees import Degrees
from gnnkit.partition.loops import mean_in_edges
from gnnkit.partition.shard import Shard

# Time per edge and column of a sum, relative to a multiplication in a matrix product.
# Sums are limited by memory bandwidth.
EDGE_COST = 8
_TENSORS = ("src_nodes", "edge_ids", "in_degree", "out_degree", "edge_features", "edge_age")  # created on first access


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


class BlockAdjacency(Adjacency):
    """The edges of one sampled block, with the model's self-loops.

    This is what models read in mini-batches. The rank has all rows, so ranks do not
    communicate here. Degrees and edge features are looked up on access.
    """

    alone = True

    def __init__(self, layers: LayerValues, block: Block, key: int, *, reweight: bool = True) -> None:
        """Adds self-loops if the model requires them.

        Args:
            layers: Node and edge values of the block.
            block: The sampled block.
            key: Key of the layer and step.
            reweight: Whether sampled edges are weighted by the in-edges they represent.
        """
        self.key, self.num_dst, self._layers, self._block = key, block.num_dst, layers, block
        self._pool, self._read = layers.pool, block.src_nodes  # [num_src]
        self._block_edges = BlockEdges(layers, block, reweight=reweight)
        self._relations = BlockRelations(layers, block, reweight=reweight)
        self._row_types: dict[int, RowTypes] = {}  # by number of rows
        self.edges, self.num_edges = self._block_edges.edges, self._block_edges.edges.num_edges

    def with_key(self, key: int) -> BlockAdjacency:
        """Returns the same edges for another layer or step, with cached values."""
        adjacency = copy.copy(self)
        adjacency.key = key
        return adjacency

    def tensors(self) -> dict[str, Tensor]:
        tensors = {name: vars(self)[name] for name in _TENSORS if vars(self).get(name) is not None}
        graph: RankGraph | None = vars(self).get("rank_graph")
        return tensors if graph is None else tensors | graph.tensors()

    def again(self) -> Adjacency:
        adjacency = copy.copy(self)
        adjacency._pool = Pool(lasts=False)  # another rank may not take part
        return adjacency

    def pool(self, num_rows: int) -> Pool:
        return self.pool_of_nodes(self._block_edges.ids(self._layers.row_ids(self._read[:num_rows])))

    def pool_of_nodes(self, nodes: Tensor) -> Pool:
        return pool_of(self._pool, nodes)

    @cached_property
    def src_nodes(self) -> Tensor:  # type: ignore[override]
        return self._block_edges.ids(self._block_edges.source_ids[: len(self._read)])

    @cached_property
    def in_degree(self) -> Tensor:  # type: ignore[override]
        return self._block_edges.tensor(self._layers.in_degree[self._block_edges.dst])

    @cached_property
    def out_degree(self) -> Tensor:  # type: ignore[override]
        return self._block_edges.tensor(self._layers.out_degree[self._read])

    @cached_property
    def edge_ids(self) -> Tensor:  # type: ignore[override]
        return self._block_edges.ids(self._block_edges.edge_ids)

    @cached_property
    def edge_features(self) -> Tensor | None:  # type: ignore[override]
        features = self._block_edges.features
        return None if features is None else self._block_edges.tensor(features)

    @cached_property
    def edge_age(self) -> Tensor | None:  # type: ignore[override]
        ages = self._layers.edge_ages(self._block)
        return None if ages is None else self._block_edges.tensor(self._block_edges.with_loops(ages, 0))

    def row_types(self, num_rows: int, num_types: int) -> RowTypes:
        row_types = self._row_types.get(num_rows)
        if row_types is None or len(row_types.sizes) != num_types:
            ids, layers = self._block_edges.source_ids[:num_rows], self._layers
            row_types = self._row_types[num_rows] = RowTypes.of(ids, layers.type_sizes, num_types, layers.device)
        return row_types

    @cached_property
    def edge_types(self) -> Tensor:
        return self._block_edges.ids(self._relations.edge_types)

    def typed_graph(self, schema: Schema) -> TypedGraph:
        return self._typed_graph(schema, None)

    def _typed_graph(self, schema: Schema, route: Route | None) -> TypedGraph:
        """Splits the edges by relation. `route` brings other ranks' rows."""
        block_edges = self._block_edges
        sources = block_edges.edges.csc.indices.astype(np.int64)
        edges = TypedEnds(sources, block_edges.targets, self._relations.edge_types)
        own_rows, halo = np.split(block_edges.source_ids, [len(self._read)])
        weight, device = self.rank_graph.weight, self._layers.device
        return TypedGraph.of_block(TypedRows.of(own_rows, schema), halo, edges, weight, route, device)

    def aggregate(self, x: Tensor, *, reduce: Reduce = "sum", weight: Tensor | None = None) -> Tensor:
        x = self.with_halo(x)
        if weight is not None:
            return self.edges.weighted_sum(x, weight)
        if reduce == "max":
            result: Tensor = _BlockMax.apply(x.flatten(1), self._block_edges.by_source_id)
            return result.view(len(result), *x.shape[1:])
        return self.edges.constant_sum(x, Factors(self._block_edges.factor(reduce, x.dtype)))

    def aggregate_normalized(self, x: Tensor) -> Tensor:
        return self.edges.constant_sum(x, Factors(self._block_edges.factor("normal", x.dtype)))

    def aggregate_relations(
        self, x: Tensor, combine: Combine, *, inverse: bool = False, blocks: bool = False
    ) -> Tensor:
        pairs, rows = self._relations.pairs(inverse=inverse), self.with_halo(x)
        means = pairs.block_means(rows) if blocks else pairs.means(rows)
        return combine(means, pairs, slice(0, x.shape[-1]))

    def attend_relations(
        self, x: Tensor, attention: RelationAttention, y: Tensor | None = None, *, p: float, training: bool
    ) -> Tensor:
        edges, rows = self._relations.typed_edges(attention.added), self.with_halo(x)
        weighing = self.weighing(1, p, training=training, ids=edges.ids)
        return attend_locally(attention, rows, rows[: self.num_dst] if y is None else y, edges, weighing)

    def concat_mean(self, x: Tensor, p: float = 0) -> Tensor:
        if p == 0 or x.device.type != "cpu":
            rows = self.with_halo(self.dropout(x, p, training=True))
            return self.edges.sum_beside(rows, Factors(self._block_edges.factor("mean", x.dtype)))
        # A mask bit per number takes less memory traffic than the number.
        mask = (dropout_bits(self.src_nodes, x.shape[1], p, self.key), p)
        return self.edges.sum_beside(x, Factors(self._block_edges.factor("mean", x.dtype)), mask)

    def project_first(self, in_features: int, out_features: int) -> bool:
        products = in_features * out_features * (self.edges.num_src - self.num_dst)
        return products < EDGE_COST * self.num_edges * (in_features - out_features)

    def aggregate_messages(self, x: Tensor, message: Message) -> Tensor:
        z = message(self.edges.of_sources.sum(self.with_halo(x)), slice(0, x.shape[-1]))
        counts = self._block_edges.counts
        if counts is not None:
            z = z * self._block_edges.tensor(self._block_edges.with_loops(counts, 1))[:, None]
        return self.edges.by_destination.sum(z)

    def scores(self, src: Tensor, dst: Tensor, edge: Tensor | None = None) -> Tensor:
        scores = self.edges.of_sources.sum(self.with_halo(src)) + self.edges.by_destination.spread(dst)
        return scores if edge is None else scores + edge

    def softmax(self, scores: Tensor) -> Tensor:
        return edge_softmax(scores, self.edges)

    def _attention_edges(self, h: Tensor) -> HeldEdges | None:
        return self.edges if serves(self.edges, h) else None

    @cached_property
    def rank_graph(self) -> RankGraph:
        block_edges = self._block_edges
        edge_index = torch.stack([self.edges.source_of_edge, block_edges.ids(block_edges.targets)])
        weight = block_edges.factor("sum", self._layers.dtype)
        nodes = block_edges.ids(block_edges.source_ids)
        return RankGraph(edge_index, None if weight is None else weight[:, 0], nodes, edges=self.edges)

    def with_halo(self, x: Tensor) -> Tensor:
        return x

    def degree_with_halo(self, loop: float) -> Tensor:
        degree = self._layers.in_degree[self._read]
        if not self._layers.self_loops:
            degree = degree + loop * self._layers.gets_loop[self._read]
        return self.with_halo(self._block_edges.tensor(degree)[:, None])[:, 0]

    @property
    def lacks_loop(self) -> Tensor:
        if self._layers.self_loops:
            return torch.zeros(self.num_dst, dtype=torch.bool, device=self._layers.device)
        return torch.from_numpy(self._layers.gets_loop[self._block_edges.dst]).to(self._layers.device)


class _BlockMax(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, edges: HeldEdges) -> Tensor:  # [num_src, f] -> [num_dst, f]
        best, edge = edges.kernels.max(x)
        ctx.edges = edges
        ctx.save_for_backward(edge)
        return torch.where(edge >= 0, best, 0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (edge,) = ctx.saved_tensors
        return ctx.edges.kernels.max_backward(grad, edge), None
