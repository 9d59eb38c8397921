"""The kernels by which `lazyedges` computes deferred rows."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
import torch
from lazyedges import EdgeDropout, EdgeKernels
from torch import Tensor

from gnnkit.graph import CSC
from gnnkit.graph.csc import sort_edges
from gnnkit.kernels.aggregate import HeldEdges
from gnnkit.kernels.attention import Weighing, attend, serves
from gnnkit.kernels.dropout import dropout, edge_streams
from gnnkit.kernels.sums import ONE, Factors, refuse_second


class LazyKernels(EdgeKernels):
    """Kernels over held edges, without the graph's weights."""

    def __init__(self, edges: HeldEdges) -> None:
        self.edges, self.device = edges, edges.device
        self.num_src, self.num_dst = edges.num_src, edges.num_dst

    @cached_property
    def indptr(self) -> Tensor:
        return torch.tensor(np.asarray(self.edges.csc.indptr, np.int64))

    @property
    def indices(self) -> Tensor:
        return self.edges.source_of_edge

    def sum(
        self,
        rows: Tensor,
        weight: Tensor | None = None,
        source: Tensor | None = None,
        destination: Tensor | None = None,
    ) -> Tensor:
        if weight is None or not weight.requires_grad:
            return self.edges.constant_sum(rows, Factors(weight, source, destination))
        width = math.prod(rows.shape[1:])
        heads = rows.reshape(len(rows), weight.shape[1], width // weight.shape[1])
        return self.edges.weighted_sum(heads, weight).view(-1, *rows.shape[1:])

    def add_sum(self, rows: Tensor, out: Tensor) -> None:
        self.edges.kernels.add_sum(rows, ONE, out)

    def max(self, rows: Tensor) -> Tensor:
        if rows.requires_grad and torch.is_grad_enabled():
            refuse_second()
        return self.edges.kernels.max(rows)[0]

    def dot(self, rows: Tensor, others: Tensor) -> Tensor:
        return self.edges.dot(rows, others)

    def attend(
        self,
        rows: Tensor,
        source: Tensor,
        destination: Tensor,
        edge: Tensor | None,
        slope: float,
        dropout: EdgeDropout | None,
    ) -> Tensor | None:
        if not serves(self.edges, rows):
            return None
        ids, p, key = dropout or (None, 0, 0)
        return attend(self.edges, rows, source, destination, edge, Weighing(slope, p, key, ids))


class LazyBackend:
    """Creates kernels for `lazyedges`."""

    dropout = staticmethod(dropout)
    edge_ids = staticmethod(edge_streams)

    def kernels(self, indptr: Tensor, indices: Tensor, num_src: int) -> LazyKernels:
        csc = CSC(indptr.numpy(), indices.cpu().numpy(), num_sources=num_src)
        return LazyKernels(HeldEdges(csc, indices.device))

    def sort(self, source: Tensor, destination: Tensor, num_src: int, num_dst: int) -> tuple[LazyKernels, Tensor]:
        csc, order = sort_edges(source.cpu().numpy(), destination.cpu().numpy(), num_dst, num_src, True, None)
        positions = torch.from_numpy(order.astype(np.int64, copy=False)).to(source.device)
        return LazyKernels(HeldEdges(csc, source.device)), positions
