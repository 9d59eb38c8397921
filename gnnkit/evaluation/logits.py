"""Logits of the owned nodes, with all their neighbours and without noise."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from gnnkit.engine import BlockLayers, FeatureStore, ShardAdjacency, TableFeatures
from gnnkit.graph import Floats, Graph, Ids
from gnnkit.sampler import FullSampler
from gnnkit.storage import forget_pages
from gnnkit.strategy import Worker

MIB = 2**20
COPIES = (
    4  # rows of one width that a layer holds at a time for each row that it reads: input, product, messages, output
)


class Evaluation(ABC):
    """Computes logits exactly, whichever strategy trains."""

    @staticmethod
    def of(worker: Worker, model: nn.Module, memory: float, scratch: Path | None = None) -> Evaluation:
        """The evaluation for what a worker has at hand. Collective.

        Args:
            worker: The rank.
            model: The model, whose layers and self-loops are read.
            memory: MiB that one chunk of nodes may take, where the graph is at hand.
            scratch: A folder that all ranks see, for the rows between two layers.
        """
        if worker.graph is None:
            return ShardEvaluation(worker)
        return ChunkEvaluation(worker, worker.graph, model, memory, scratch)

    @torch.no_grad()
    def logits(self, model: nn.Module) -> Tensor:  # [num_owned, num_classes]
        """Logits of the owned nodes, in ascending order of their ids. Collective."""
        training = model.training
        model.eval()
        try:
            return self._logits(model)
        finally:
            model.train(training)

    @abstractmethod
    def _logits(self, model: nn.Module) -> Tensor: ...


class ShardEvaluation(Evaluation):
    """One pass over the shards, with rows exchanged between ranks."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def _logits(self, model: nn.Module) -> Tensor:
        engine = self._worker.engine(model)
        adjacencies = ShardAdjacency.layers(engine, model.num_layers, 0)  # type: ignore[arg-type]
        with engine.tally.paused():
            logits: Tensor = model(self._worker.features.rows(self._worker.owned), adjacencies)
        return logits


class ChunkEvaluation(Evaluation):
    """Chunks of nodes with all their in-edges, from one graph that every rank reads.

    A model with `layer(index, x, adjacency)` is evaluated layer by layer: each rank computes
    the rows of its own nodes, and the rows between two layers stand in a file. So memory is
    bounded by a chunk, whatever the graph's size. Other models see a chunk's neighbourhood
    through all layers.
    """

    def __init__(self, worker: Worker, graph: Graph, model: nn.Module, memory: float, scratch: Path | None) -> None:
        self._worker, self._graph, self._memory, self._scratch = worker, graph, memory * MIB, scratch
        self._blocks = BlockLayers(graph, model, worker.dtype, worker.device)

    def _logits(self, model: nn.Module) -> Tensor:
        if hasattr(model, "layer") and self._scratch is not None:
            return self._by_layer(model, self._scratch)
        return self._by_neighbourhood(model)

    def _by_layer(self, model: nn.Module, scratch: Path) -> Tensor:
        num_layers: int = model.num_layers  # type: ignore[assignment]
        features = self._worker.features
        files: list[_Rows] = []
        try:
            for layer in range(num_layers - 1):
                files.append(_Rows(scratch / f".rows-{layer}", self._graph.num_nodes))
                for nodes, rows in self._layer(model, layer, features):
                    files[-1].write(nodes, rows, self._worker)
                files[-1].share(self._worker)
                features = files[-1].features(self._worker)
                if layer:
                    files[layer - 1].remove(self._worker)
            return torch.cat([rows for _, rows in self._layer(model, num_layers - 1, features)])
        finally:
            for file in files:
                file.remove(self._worker)

    def _layer(self, model: nn.Module, layer: int, features: FeatureStore) -> Iterator[tuple[Ids, Tensor]]:
        """The rows of the owned nodes after one layer, chunk by chunk; one empty chunk where nothing is owned."""
        sampler = FullSampler(num_hops=1)
        for nodes in chunks(self._worker.owned, self._row_bytes(features.width), self._memory):
            (block,) = sampler.sample(self._graph.csc, nodes, key=0).blocks
            (adjacency,) = self._blocks.layers([block], key=0)
            yield nodes, model.layer(layer, features.rows(block.src_nodes), adjacency)  # type: ignore[operator]
            if features.table is not None:
                forget_pages(features.table)

    def _row_bytes(self, width: int) -> Floats:  # [num_owned]
        """About what each owned node's in-edges and their rows take."""
        degrees = np.diff(self._graph.csc.indptr)[self._worker.owned]
        itemsize = torch.empty(0, dtype=self._worker.dtype).element_size()
        return (degrees + 1.0) * (4 * 8 + COPIES * width * itemsize)

    def _by_neighbourhood(self, model: nn.Module) -> Tensor:
        num_layers: int = model.num_layers  # type: ignore[assignment]
        sampler, features, owned = FullSampler(num_hops=num_layers), self._worker.features, self._worker.owned
        rows = np.minimum(sampler.costs(self._graph.csc, owned), self._graph.num_nodes)
        itemsize = torch.empty(0, dtype=self._worker.dtype).element_size()
        parts = []
        for nodes in chunks(owned, rows * COPIES * features.width * itemsize, self._memory):
            batch = sampler.sample(self._graph.csc, nodes, key=0)
            parts.append(model(features.rows(batch.input_nodes), self._blocks.layers(batch.blocks, key=0)))
        return torch.cat(parts)


def chunks(nodes: Ids, costs: Floats, budget: float) -> Iterator[Ids]:
    """Cuts `nodes` into runs whose costs add up to at most `budget`, or of one node.

    Gives one empty run where there are no nodes.
    """
    start, ends = 0, np.cumsum(costs)
    while start < len(nodes) or start == 0:
        spent = ends[start - 1] if start else 0.0
        stop = max(int(np.searchsorted(ends, spent + budget, side="right")), start + 1)
        yield nodes[start:stop]
        start = stop


@dataclass(slots=True, eq=False)
class _Rows:
    """The rows of all nodes between two layers, in a file that every rank maps."""

    path: Path
    num_nodes: int
    table: Floats | None = None  # [num_nodes, width]

    def write(self, nodes: Ids, rows: Tensor, worker: Worker) -> None:
        """Writes the rows of `nodes` [k, width]. The first call is collective, and every rank makes one."""
        values = rows.cpu().numpy()
        if self.table is None:
            if worker.comm.rank == 0:
                with self.path.open("wb") as file:
                    file.truncate(max(self.num_nodes * math.prod(values.shape[1:]) * values.itemsize, 1))
            _meet(worker)
            self.table = np.memmap(self.path, values.dtype, "r+", shape=(self.num_nodes, *values.shape[1:]))
        self.table[nodes] = values
        forget_pages(self.table)

    def features(self, worker: Worker) -> FeatureStore:
        """The rows as the next layer reads them."""
        assert self.table is not None
        return TableFeatures(self.table, None, worker.dtype, worker.device)

    def share(self, worker: Worker) -> None:
        """Returns when all ranks have written. Collective."""
        _meet(worker)

    def remove(self, worker: Worker) -> None:
        """Removes the file's name; ranks that still map the rows keep them."""
        if worker.comm.rank == 0:
            self.path.unlink(missing_ok=True)


def _meet(worker: Worker) -> None:
    worker.comm.all_reduce(torch.zeros(1, device=worker.device))
