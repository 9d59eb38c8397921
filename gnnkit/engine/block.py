"""Sampled blocks as adjacencies: one rank holds all that a layer reads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd import Function

from gnnkit.engine.adjacency import Adjacency, Reduce
from gnnkit.engine.aggregate import HeldEdges
from gnnkit.engine.dropout import derive
from gnnkit.engine.engine import Message
from gnnkit.engine.local import LocalEdges
from gnnkit.graph import CSC, Block, Floats, Graph, Ids


class BlockLayers:
    """Turns the blocks of a batch into one adjacency for each layer.

    Holds what blocks need of the whole graph: degrees, loops and features of edges.

    Sums are estimates of the sums over all in-edges: a drawn edge counts as often as its
    block's `weight` says, or else d/s times in a row that drew s of d in-edges. Degrees are
    the whole graph's. DGL and PyG normalise by the degrees of the block instead.
    """

    def __init__(self, graph: Graph, model: object, dtype: torch.dtype, device: torch.device) -> None:
        """Reads the edges of the graph once.

        Args:
            graph: The whole graph.
            model: Its `self_loops` says whether nodes without a loop get one.
            dtype: Type of degrees, weights and features of edges.
            device: Device of the adjacencies.
        """
        csc = graph.csc
        self.graph, self.dtype, self.device = graph, dtype, device
        self.in_degree, self.out_degree = csc.in_degree(), csc.out_degree()  # [num_nodes] float64
        self.lacks_loop = ~_looped(csc)  # [num_nodes] bool
        self.self_loops = bool(getattr(model, "self_loops", False))
        if self.self_loops:
            self.in_degree, self.out_degree = self.in_degree + self.lacks_loop, self.out_degree + self.lacks_loop

    def layers(self, blocks: Sequence[Block], key: int) -> tuple[BlockAdjacency, ...]:
        """One adjacency for each block, in the order of layers. `key` is that of the step."""
        return tuple(BlockAdjacency(self, block, derive(key, layer)) for layer, block in enumerate(blocks))

    @cached_property
    def mean_edge_features(self) -> Floats | None:  # [num_nodes, edge_width]
        """The mean features of each node's in-edges, which an added loop has."""
        features, indptr = self.graph.edge_features, self.graph.csc.indptr
        if features is None:
            return None
        sums = np.zeros((self.graph.num_nodes, features.shape[1]))
        np.add.at(sums, np.repeat(np.arange(self.graph.num_nodes), np.diff(indptr)), features)
        return (sums / np.maximum(np.diff(indptr), 1)[:, None]).astype(features.dtype)


class BlockAdjacency(Adjacency):
    """The edges of one sampled block, and the loops that the model asks for. No rank talks to another here."""

    def __init__(self, layers: BlockLayers, block: Block, key: int) -> None:
        self.key, self._layers, self._block = key, layers, block
        self.num_dst = block.num_dst
        held = _Held.of(layers, block)
        self.num_edges = len(held.indices)
        self.edges = HeldEdges(CSC(held.indptr, held.indices, held.weight, len(block.src_nodes)), layers.device)
        self._held = held

    @cached_property
    def src_nodes(self) -> Tensor:  # type: ignore[override]
        return torch.tensor(self._block.src_nodes.astype(np.int64), device=self._layers.device)

    @cached_property
    def in_degree(self) -> Tensor:  # type: ignore[override]
        return self._tensor(self._layers.in_degree[self._dst])

    @cached_property
    def out_degree(self) -> Tensor:  # type: ignore[override]
        return self._tensor(self._layers.out_degree[self._block.src_nodes])

    @cached_property
    def edge_ids(self) -> Tensor:  # type: ignore[override]
        return torch.tensor(self._held.edge_ids, device=self._layers.device)

    @cached_property
    def edge_features(self) -> Tensor | None:  # type: ignore[override]
        rows = self._held.edge_features(self._layers, self._dst)
        return None if rows is None else self._tensor(rows)

    def aggregate(self, x: Tensor, *, reduce: Reduce = "sum", weight: Tensor | None = None) -> Tensor:
        if weight is not None:
            return self.edges.weighted_sum(x, weight)
        if reduce == "max":
            result: Tensor = _Max.apply(x, self._by_source_id)
            return result
        z = self.edges.sum(x)
        return z / self._row_weight if reduce == "mean" else z

    def aggregate_messages(self, x: Tensor, message: Message) -> Tensor:
        z = message(self.edges.by_source.spread(x), slice(0, x.shape[-1]))
        counts = self._held.counts
        return self.edges.by_destination.sum(z if counts is None else z * self._tensor(counts)[:, None])

    def scores(self, src: Tensor, dst: Tensor, edge: Tensor | None = None) -> Tensor:
        scores = self.edges.by_source.spread(src) + self.edges.by_destination.spread(dst)
        return scores if edge is None else scores + edge

    def softmax(self, scores: Tensor) -> Tensor:
        by_destination = self.edges.by_destination
        with torch.no_grad():
            largest = by_destination.spread(by_destination.kernels.max(scores)[0])
        powers = (scores - largest).exp()
        return powers / by_destination.spread(by_destination.sum(powers))

    @property
    def local(self) -> LocalEdges:
        device = self._layers.device
        target = np.repeat(np.arange(self.num_dst), np.diff(self._held.indptr))
        edge_index = torch.tensor(np.stack([self._held.indices.astype(np.int64), target]), device=device)
        weight = None if self._held.weight is None else self._tensor(self._held.weight)
        return LocalEdges(edge_index, weight, torch.arange(self.num_dst, len(self._block.src_nodes), device=device))

    def with_halo(self, x: Tensor) -> Tensor:
        return x

    def degree_with_halo(self, loop: float) -> Tensor:
        nodes = self._block.src_nodes
        return self._tensor(self._layers.in_degree[nodes] + loop * self._layers.lacks_loop[nodes])

    @property
    def lacks_loop(self) -> Tensor:
        return torch.tensor(self._layers.lacks_loop[self._dst], device=self._layers.device)

    @property
    def _dst(self) -> Ids:  # [num_dst] global ids
        return self._block.src_nodes[: self.num_dst]

    @cached_property
    def _row_weight(self) -> Tensor:  # [num_dst, 1]
        """What the edges of each row weigh together; 1 for rows without edges."""
        weight = self.edges.weight(self._layers.dtype)
        ones = torch.ones(self.num_edges, 1, dtype=self._layers.dtype, device=self._layers.device)
        sums = self.edges.by_destination.sum(ones if weight is None else weight)
        return torch.where(sums == 0, 1, sums)

    @cached_property
    def _by_source_id(self) -> HeldEdges:
        """The same edges, those of a row in ascending order of source id and edge id: the first of equals wins."""
        held = self._held
        target = np.repeat(np.arange(self.num_dst), np.diff(held.indptr))
        order = np.lexsort((held.edge_ids, self._block.src_nodes[held.indices], target))
        return HeldEdges(CSC(held.indptr, held.indices[order], None, len(self._block.src_nodes)), self._layers.device)

    def _tensor(self, values: Floats) -> Tensor:
        return torch.tensor(values, dtype=self._layers.dtype, device=self._layers.device)


class _Held:
    """A block's edges, added loops included, and how often each counts in a sum."""

    def __init__(self, indptr: Ids, indices: Ids, edge_ids: Ids, counts: Floats | None, weight: Floats | None) -> None:
        self.indptr, self.indices = indptr, indices  # [num_dst + 1], [num_edges] rows of the sources
        self.edge_ids = edge_ids  # [num_edges] int64 global ids; added loops have num_edges of the graph + v
        self.counts = counts  # [num_edges] None: once each
        self.weight = weight  # [num_edges] `counts` times the graph's weights. None: 1 each
        self._has_ids = True

    @classmethod
    def of(cls, layers: BlockLayers, block: Block) -> _Held:
        graph, dst = layers.graph, block.src_nodes[: block.num_dst]
        counts = _counts(layers, block, dst)
        own = None if graph.csc.weight is None or block.edge_ids is None else graph.csc.weight[block.edge_ids]
        weight = counts if own is None else own if counts is None else own * counts
        ids = block.edge_ids
        edge_ids = _pair_ids(block, dst, graph.num_nodes) if ids is None else ids.astype(np.int64)
        held = cls(block.indptr, block.indices, edge_ids, counts, weight)
        held._has_ids = ids is not None
        return held._with_loops(layers, dst) if layers.self_loops else held

    def _with_loops(self, layers: BlockLayers, dst: Ids) -> _Held:
        """A loop at the end of each row that lacks one in the graph."""
        lacks = layers.lacks_loop[dst]
        indptr = self.indptr + np.concatenate([[0], np.cumsum(lacks)])
        last = indptr[1:][lacks] - 1
        kept = np.ones(indptr[-1], bool)
        kept[last] = False

        def grown(values: npt.NDArray[Any], added: npt.NDArray[Any] | float) -> npt.NDArray[Any]:
            result = np.empty(len(kept), values.dtype)
            result[kept], result[last] = values, added
            return result

        held = _Held(
            indptr,
            grown(self.indices, np.flatnonzero(lacks)),
            grown(self.edge_ids, layers.graph.num_edges + dst[lacks].astype(np.int64)),
            None if self.counts is None else grown(self.counts, 1),
            None if self.weight is None else grown(self.weight, 1),
        )
        held._has_ids = self._has_ids
        return held

    def edge_features(self, layers: BlockLayers, dst: Ids) -> Floats | None:  # [num_edges, edge_width]
        features, mean = layers.graph.edge_features, layers.mean_edge_features
        if features is None or mean is None or not self._has_ids:
            return None
        added = self.edge_ids >= layers.graph.num_edges
        rows = features[np.where(added, 0, self.edge_ids)] if len(features) else np.zeros((len(added), mean.shape[1]))
        rows[added] = mean[self.edge_ids[added] - layers.graph.num_edges]
        return rows


def _counts(layers: BlockLayers, block: Block, dst: Ids) -> Floats | None:  # [num_edges]
    """How often each drawn edge counts, so that sums estimate those over all in-edges. None: once each."""
    drawn = np.diff(block.indptr)
    if (
        block.edge_ids is None and block.weight is not None
    ):  # sources need not be neighbours: shares of the whole degree
        return np.repeat(layers.graph.csc.in_degree()[dst], drawn) * block.weight
    if block.weight is not None:
        return block.weight
    degree = np.diff(layers.graph.csc.indptr)[dst]
    if np.array_equal(drawn, degree):
        return None
    return np.repeat(degree / np.maximum(drawn, 1), drawn)


def _pair_ids(block: Block, dst: Ids, num_nodes: int) -> Ids:  # [num_edges] int64
    """Ids for sources that are no neighbours: one for each pair of nodes."""
    pairs = np.repeat(dst.astype(np.uint64), np.diff(block.indptr)) * np.uint64(num_nodes)
    return ((pairs + block.src_nodes[block.indices].astype(np.uint64)) >> np.uint64(1)).astype(np.int64)


def _looped(csc: CSC) -> npt.NDArray[np.bool_]:  # [num_nodes]
    """Which nodes have a loop."""
    looped = np.zeros(csc.num_nodes, bool)
    destinations = np.repeat(np.arange(csc.num_nodes, dtype=csc.indices.dtype), np.diff(csc.indptr))
    looped[csc.indices[csc.indices == destinations]] = True
    return looped


class _Max(Function):
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
