"""Explains a trained model's output for a node by its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from gnnkit.engine import Adjacency, BlockAdjacency
from gnnkit.errors import UserError
from gnnkit.graph import Floats, Ids, MiniBatch
from gnnkit.model.base import on_plain
from gnnkit.model.unchanged import EdgeIndexModel
from gnnkit.sampler import FullSampler
from gnnkit.strategy import Worker
from gnnkit.strategy.seeds import drawing, sample_step
from gnnkit.task import NodeTask, Task
from gnnkit.task.evaluation import step_at
from gnnkit.utils.checks import Array
from gnnkit_explain.attribution import Fidelity, fidelity, integrated_gradients

FAR = -1  # hops of a node that an (x, edge_index) module reaches beyond its convolutions


@dataclass(frozen=True, slots=True, eq=False)
class Explanation:
    """The input rows and columns that explain one output for a node."""

    node: int
    output: int  # output column: a class, or 0 for a number
    score: float  # the class's probability, or the predicted number
    baseline: float  # the same if all input rows were 0
    is_class: bool  # whether the score is a probability
    gap: float  # as `Attribution.gap`
    features: Floats  # [width] contribution by column, those of edges after those of nodes
    nodes: Ids  # [k] nodes with a contribution, the largest first. May contain `node`
    importance: Floats  # [k] contributions of their rows and out-edges, whose sum is that of `features`
    hops: Ids  # [k] distances to `node`
    of_features: Fidelity | None  # None: there are fewer than two
    of_neighbours: Fidelity | None


@dataclass(frozen=True, slots=True, eq=False)
class _Neighbourhood:
    """The inputs that determine a node's output."""

    rows: Tensor  # [num_rows, width]
    adjacencies: Sequence[Adjacency]
    nodes: Ids  # [num_rows] node by row
    hops: Ids  # [num_rows] distances to the node
    row: int  # the node's row in the output
    place: int  # the node's row in `rows`
    edges: Tensor | None = None  # [num_edges, edge_width] edge features, layer by layer
    sources: Tensor | None = None  # [num_edges] row of each edge's source

    def inputs(self) -> Tensor:  # [num_rows + num_edges, width + edge_width]
        """Joins rows and edges in one matrix, with separate columns."""
        return self.rows if self.edges is None else torch.block_diag(self.rows, self.edges)  # type: ignore[no-untyped-call]

    def run(self, model: nn.Module, inputs: Tensor) -> Tensor:  # [1, num_outputs]
        """Computes the node's outputs from a matrix such as `inputs`."""
        num_rows, width = self.rows.shape
        if self.edges is not None:
            counts = [adjacency.num_edges for adjacency in self.adjacencies]
            parts = torch.split(inputs[num_rows:, width:], counts)
            for adjacency, part in zip(self.adjacencies, parts, strict=True):
                adjacency.edge_features = part
        out: Tensor = model(inputs[:num_rows, :width], self.adjacencies)
        return out[self.row : self.row + 1]


class Explainer:
    """Explains outputs by integrated gradients over the input rows.

    A model of (x, adjacencies) reads the node's in-neighbourhood of `num_layers` hops.
    How far a module of (x, edge_index) reads is unknown, so it reads the full graph.
    """

    def __init__(self, worker: Worker, model: nn.Module, task: NodeTask, embeddings: Array | None = None) -> None:
        """Stores the arguments.

        Args:
            worker: A rank with the complete graph.
            model: The trained model, in evaluation mode.
            task: The task, which converts outputs.
            embeddings: [num_nodes, width] learned input rows. If None, input rows are
                features.
        """
        self._worker, self._model, self._task, self._learned = worker, model.requires_grad_(False), task, embeddings
        self._layers, self._reads_all = worker.layers(model), isinstance(model, EdgeIndexModel)
        if self._reads_all and worker.samples_by_time:
            raise UserError(
                "sampler.time: job=explain reads all edges for a model of (x, edge_index), and this one sees those before each "
                "node's time: use PyG's Explainer on gnnkit.load(run), as in docs/howto/explain.md"
            )
        if worker.sampler is not None and worker.sampler.time_bound == "path":
            raise UserError(
                "sampler.time_bound=path: job=explain names the edges that each node sees at its own time: explain a run with "
                "sampler.time_bound=seed"
            )
        self._all: tuple[Tensor, Sequence[Adjacency]] | None = None

    def explain(self, node: int, key: int) -> Explanation:
        """Explains the predicted class, or the predicted number.

        Args:
            node: Its global id.
            key: Determines the fidelities' random rankings.
        """
        read = self._neighbourhood(node)
        inputs = read.inputs()
        with torch.no_grad():
            output = self._output(read.run(self._model, inputs))

        def score(inputs: Tensor) -> Tensor:
            return self._scores(read.run(self._model, inputs))[output]

        attribution = integrated_gradients(score, inputs)
        columns, rows = attribution.values.sum(0), attribution.values.sum(1)
        neighbours, rows = torch.zeros_like(rows), rows[: len(read.rows)]
        if read.sources is not None:
            rows = rows.index_add(0, read.sources, attribution.values[len(rows) :].sum(1))
        neighbours[: len(rows)] = rows
        neighbours[read.place] = 0
        ranking = torch.argsort(rows, descending=True, stable=True)
        order = ranking[rows[ranking] != 0].cpu().numpy()
        return Explanation(
            node,
            output,
            attribution.score,
            attribution.baseline,
            self.has_classes,
            attribution.gap,
            columns.cpu().numpy(),
            read.nodes[order],
            rows.cpu().numpy()[order],
            read.hops[order],
            fidelity(score, inputs, columns, 1, key),
            fidelity(score, inputs, neighbours, 0, key),
        )

    def _neighbourhood(self, node: int) -> _Neighbourhood:
        graph, model = self._worker.graph, self._model
        assert graph is not None, "needs the complete graph"
        hops = model.num_convolutions if isinstance(model, EdgeIndexModel) else model.num_layers
        batch = self._batch(np.array([node]), hops)  # type: ignore[arg-type]
        nodes = np.asarray(batch.input_nodes, np.int64)
        distances = np.sum([np.arange(len(nodes)) >= block.num_dst for block in batch.blocks], axis=0)
        if not self._reads_all:
            layers = self._worker.layers_of(batch, self._layers).layers(batch.blocks, key=0)
            return _Neighbourhood(self._rows(nodes), layers, nodes, distances, 0, 0, *_edges(layers))
        everything = np.arange(graph.num_nodes)
        if self._all is None:
            self._all = on_plain(model, self._rows(everything), graph)
        far = np.full(graph.num_nodes, FAR)
        far[nodes] = distances
        return _Neighbourhood(*self._all, everything, far, node, node)

    def _batch(self, seeds: Ids, hops: int) -> MiniBatch:
        """Returns all in-edges of `hops` layers.

        If the model is sampled by time, these are the edges that its evaluation reads.
        """
        worker, times = self._worker, self._worker.seed_times(seeds)
        if times is None:
            return FullSampler(num_hops=hops).sample(worker.graph.csc, seeds, key=0)  # type: ignore[union-attr]
        sampler = drawing(worker)
        step, apart = step_at(worker, seeds, times), not sampler.rank_invariant
        return sample_step(sampler, worker.edges_to_sample(self._model), step, disjoint=apart)

    def _rows(self, nodes: Ids) -> Tensor:
        worker = self._worker
        if self._learned is None:
            return worker.features.rows(nodes)
        return torch.from_numpy(np.asarray(self._learned[nodes])).to(worker.device, worker.dtype)

    @property
    def has_classes(self) -> bool:
        """Whether the task has class probabilities, rather than numbers."""
        return type(self._task).probabilities is not Task.probabilities

    def _scores(self, outputs: Tensor) -> Tensor:  # [1, width] -> [width]
        return (self._task.probabilities if self.has_classes else self._task.predict)(outputs).reshape(-1)

    def _output(self, outputs: Tensor) -> int:
        """Returns the column of the predicted class, or of the most probable one."""
        if not self.has_classes:
            return 0
        prediction = self._task.predict(outputs)[0]
        return int(prediction if prediction.dim() == 0 else self._scores(outputs).argmax())


def _edges(layers: Sequence[BlockAdjacency]) -> tuple[Tensor | None, Tensor | None]:
    """Returns all layers' edge features, and the rows of the edges' sources.

    Rows are numbered alike in all layers, since nodes are numbered in order of
    discovery.
    """
    features = [layer.edge_features for layer in layers if layer.edge_features is not None]
    if not features:
        return None, None
    return torch.cat(features), torch.cat([layer.edges.source_of_edge for layer in layers])
