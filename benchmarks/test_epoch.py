"""An epoch of full-graph GCN against the same layers written out in plain torch.

The reference `kernels` aggregates with the core, so the ratio is the cost of all else:
the engine, the exchange with oneself, passes over rows. The ratio says the same on any
CPU, and `instructions.py` counts what the core's kernels do. The reference `torch`
aggregates with torch's CSR product.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from conftest import EPOCH, Against, Edges
from test_aggregate import torch_csr
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from gnnkit import _core
from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.graph import CSC, Graph, Split
from gnnkit.model.gcn import GCN
from gnnkit.partition import Grid, Partition, cut_all
from gnnkit.strategy import Worker
from gnnkit.strategy.vertex_centric import VertexCentric
from gnnkit.training.module import TrainingModule

NUM_NODES, NUM_EDGES, WIDTH, NUM_CLASSES, NUM_LAYERS = 2_000, 40_000, 128, 16, 3
Rows = Callable[[Tensor], Tensor]


def module_of(graph: Graph, comm: Communicator) -> TrainingModule:
    """Makes what the only rank of strategy=vertex_centric trains."""
    (shard,) = cut_all(graph, Partition(np.zeros(graph.num_nodes, np.int32), None, Grid(1, 1, 1)))
    strategy, worker = VertexCentric(), Worker(comm, shard, torch.float32, 0)
    model = GCN(WIDTH, NUM_CLASSES, hidden=WIDTH, num_layers=NUM_LAYERS, dropout=0)
    strategy.setup(worker, model)
    none: Any = None  # nothing is evaluated
    return TrainingModule(model, strategy, worker, none, optimizer="adam", lr=1e-3, weight_decay=0)


def epoch_of(module: TrainingModule) -> Callable[[], None]:
    optimizer = module.configure_optimizers()

    def epoch() -> None:
        (batch,) = module.strategy.batches(0)
        module.training_step(batch, 0).backward()
        optimizer.step()
        optimizer.zero_grad()

    return epoch


class Sum(Function):
    """A sum over in-edges, and in the backward pass over out-edges."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, into: Rows, out_of: Rows) -> Tensor:
        ctx.out_of = out_of
        return into(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.out_of(grad), None, None


def by_core(csc: CSC) -> Rows:
    aggregator = _core.Aggregator(csc.indptr, csc.indices, csc.num_sources)

    def rows(x: Tensor) -> Tensor:
        out = torch.empty(aggregator.num_destinations, x.shape[1])
        aggregator.sum(x.detach().contiguous().numpy(), out.numpy())
        return out

    return rows


def by_torch(csc: CSC) -> Rows:
    matrix = torch_csr(Edges(np.asarray(csc.indptr, np.int64), np.asarray(csc.indices, np.int64)))
    return lambda x: matrix @ x


def plain_epoch(graph: Graph, csc: CSC, into: Rows, out_of: Rows) -> Callable[[], None]:
    """Makes an epoch in plain torch.

    Args:
        graph: Features, labels and split.
        csc: The in-edges, with loops.
        into: Sums over in-edges.
        out_of: Sums over out-edges.
    """
    x, labels = torch.from_numpy(np.array(graph.features)), torch.from_numpy(np.array(graph.labels))
    train = torch.from_numpy(np.flatnonzero(graph.split == Split.TRAIN))
    left_factor, right = (
        torch.from_numpy(np.float32(degree() ** -0.5)[:, None]) for degree in (csc.in_degree, csc.out_degree)
    )
    widths = [*[WIDTH] * NUM_LAYERS, NUM_CLASSES]
    linears = torch.nn.ModuleList(torch.nn.Linear(a, b) for a, b in pairwise(widths))
    optimizer = torch.optim.Adam(linears.parameters(), lr=1e-3)

    def aggregate(h: Tensor) -> Tensor:
        total: Tensor = Sum.apply(h * right, into, out_of)
        return total * left_factor

    def epoch() -> None:
        h = x
        for index, linear in enumerate(linears):
            h = h.relu() if index else h
            if linear.out_features < linear.in_features:
                h = aggregate(h @ linear.weight.t()) + linear.bias
            else:
                h = linear(aggregate(h))
        F.cross_entropy(h[train], labels[train]).backward()
        optimizer.step()
        optimizer.zero_grad()

    return epoch


@pytest.mark.parametrize("reference", ["kernels", "torch"])
def test_epoch(against: Against, edges: Callable[[str, int, int], Edges], reference: str) -> None:
    indptr, indices = edges("sbm", NUM_NODES, NUM_EDGES)
    rng = np.random.default_rng(0)
    labels = np.append(rng.integers(0, NUM_CLASSES, NUM_NODES - 1), NUM_CLASSES - 1)
    features = rng.standard_normal((NUM_NODES, WIDTH), dtype=np.float32)
    graph = Graph(CSC(indptr, indices), features, labels, rng.choice([Split.TRAIN, Split.TEST], NUM_NODES))

    def compare(comm: Communicator) -> None:
        torch.set_num_threads(1)  # of this thread, where the rank is
        module = module_of(graph, comm)
        csc = module.strategy.engine.shard.csc  # with loops
        make = by_core if reference == "kernels" else by_torch
        ours, theirs = epoch_of(module), plain_epoch(graph, csc, make(csc), make(csc.transpose()[0]))
        against(ours, theirs, tolerance=EPOCH, any_cpu=reference == "kernels", rounds=80)

    Threads.run(compare, 1, timeout=60.0)
