"""A trained run's predictions by id, and for new nodes."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gnnkit import config
from gnnkit.config.settings import Settings, settle
from gnnkit.engine import BlockLayers
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Ids
from gnnkit.jobs import weights
from gnnkit.jobs.models import ModelFactory
from gnnkit.jobs.new_nodes import NewColumns, NewNode, NodeId, ReadPart
from gnnkit.model.adapt import adapted
from gnnkit.model.parameters import dtype_of
from gnnkit.model.plain import on_plain
from gnnkit.model.unchanged import EdgeIndexModel
from gnnkit.partition.degrees import Degrees
from gnnkit.prepare.inputs import degree_rows, with_names
from gnnkit.prepare.trained import Inputs
from gnnkit.sampler import FullSampler
from gnnkit.task import NodeTask, Task, numbered
from gnnkit.utils.documents import Json

PREDICTIONS, PROBABILITIES = "predictions", "probabilities"


class ServedRun:
    """Predicts for a graph's nodes by id, and for new nodes by their edges.

    Predictions by id are the rows that `job=predict` has written. For new nodes, the
    model computes the rows that their outputs depend on, one call at a time.
    """

    def __init__(
        self,
        settings: Settings,
        tables: Path,
        graph: Graph | None = None,
        model: nn.Module | ModelFactory | None = None,
    ) -> None:
        """Reads the predictions.

        Args:
            settings: From `read_settings`.
            tables: Run folder of `job=predict write_format=parquet`, with the files of
                `written_by`.
            graph: The graph of the predictions. None: the run's data set.
            model: As for `weights.load`.
        """
        import pyarrow.parquet

        assert settings.checkpoint is not None
        self._settings, self._folder = settings, Path(settings.checkpoint)
        self._graph, self._model, self._lock = graph, model, threading.Lock()
        self._names = weights.class_names(self._folder)
        columns: dict[str, list[Any]] = {}
        for name in written_by(settings):
            columns |= pyarrow.parquet.read_table(tables / f"{name}.parquet").to_pydict()
        self._columns, self._place = columns, {node: place for place, node in enumerate(columns["id"])}

    @property
    def num_nodes(self) -> int:
        return len(self._place)

    def predict(self, ids: Sequence[NodeId]) -> list[Json]:
        """Returns a row per id. Raises `KeyError` for an unknown id."""
        places = [self._place[node] for node in ids]
        return [{name: values[place] for name, values in self._columns.items()} for place in places]

    def predict_new(self, nodes: Sequence[NewNode], edges: Sequence[tuple[NodeId, NodeId]]) -> list[Json]:
        """Returns a row per new node, as `job=predict` on the extended graph would.

        Raises `UserError` for nodes or edges that do not fit the graph.

        Args:
            nodes: The new nodes.
            edges: Source and destination ids of their edges, in each direction that the
                graph has. At least one end is new.
        """
        with self._lock, torch.no_grad(), _one_thread():
            rows = self._outputs(nodes, self._base.ends(nodes, edges, self._place))
            ids = np.array([node.id for node in nodes], object)
            columns = dict(self._task.columns(self._task.predict(rows).numpy(), ids, self._names))
            if PROBABILITIES in written_by(self._settings):
                titles = self._task.output_names(self._names)
                columns |= numbered("probability", self._task.probabilities(rows).numpy(), titles)
        plain = {
            name: values.tolist() if isinstance(values, np.ndarray) else values for name, values in columns.items()
        }
        return [{name: values[place] for name, values in plain.items()} for place in range(len(nodes))]

    def _outputs(self, nodes: Sequence[NewNode], ends: Ids) -> Tensor:  # [num_new, width]
        """Computes the model for the nodes that the new nodes' outputs depend on.

        How far a module of (x, edge_index) reads is unknown, so it reads the graph.
        """
        model, base, seeds = self._trained, self._base, np.arange(len(nodes))
        hops = None if isinstance(model, EdgeIndexModel) else int(model.num_layers)  # type: ignore[arg-type]
        part = ReadPart.of(base.graph.csc, len(nodes), ends, hops)
        x = base.rows(nodes, part, dtype_of(model))
        if hops is None:
            return model(*on_plain(model, x, part.graph))[: len(nodes)]  # type: ignore[no-any-return]
        batch = FullSampler(num_hops=hops, threads=1).sample(part.graph.csc, seeds, key=0)
        layers = BlockLayers(part.graph, model, x.dtype, x.device).layers(batch.blocks, key=0)
        return model(x[torch.from_numpy(batch.input_nodes.astype(np.int64))], layers)  # type: ignore[no-any-return]

    @cached_property
    def _trained(self) -> nn.Module:
        model: nn.Module = adapted(weights.trained(self._folder, self._model))
        return model.eval()

    @cached_property
    def _task(self) -> NodeTask:
        task: NodeTask = self._settings.task.create()
        task.recall(weights.read_facts(self._folder))
        return task

    @cached_property
    def _base(self) -> _Base:
        return _Base(with_names(self._settings, self._graph), self._settings, passed=self._graph is not None)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Runs torch on one thread, since more are slower for small tensors."""
    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


class _Base:
    """A graph to which requests add nodes, and its rows as the model reads them."""

    def __init__(self, graph: Graph, settings: Settings, *, passed: bool) -> None:
        """Raises `UserError` for a graph or a model without a place for new nodes.

        Args:
            graph: The graph, with raw features.
            settings: From `read_settings`.
            passed: Whether the graph comes from Python, not from the data set.
        """
        if settings.inputs == "learned":
            raise UserError("inputs=learned: rows were learned for the nodes of training: train with features")
        if settings.label_inputs is not None:
            raise UserError("label_inputs: a request has no labels: use job=predict on the graph with the new nodes")
        if graph.schema.several or graph.csc.weight is not None or graph.edge_features is not None:
            raise UserError(
                "the graph has types, weights or features of edges, which a request has not: use job=predict on the graph "
                "with the new nodes"
            )
        assert settings.checkpoint is not None
        self.graph, self._folder = graph, Path(settings.checkpoint)
        self._facts = Inputs.load(self._folder)
        self._unit_rows = not passed and bool(settings.dataset.arguments.get("row_normalize"))
        self._rows = None if settings.inputs == "degree" else self._read(graph)

    def _read(self, graph: Graph) -> Tensor:  # [num_nodes, width]
        graph = graph if self._facts is None else self._facts.read(graph, self._folder)
        return torch.from_numpy(np.asarray(graph.whole_features))

    def ends(
        self, nodes: Sequence[NewNode], edges: Sequence[tuple[NodeId, NodeId]], place: Mapping[NodeId, int]
    ) -> Ids:  # [num_edges, 2]
        """Numbers the edges' ends. New nodes follow the others."""
        new = {node.id: number for number, node in enumerate(nodes, len(place))}
        if len(new) < len(nodes) or new.keys() & place.keys():
            raise UserError("nodes: an id occurs twice, or is that of a node of the graph: choose distinct new ids")
        ends = np.array([[_number(node, place, new) for node in edge] for edge in edges], np.int64).reshape(-1, 2)
        if (ends < len(place)).all(1).any():
            raise UserError("edges: an edge connects two nodes of the graph: each must have a new node as an end")
        return ends

    def rows(self, nodes: Sequence[NewNode], part: ReadPart, dtype: torch.dtype) -> Tensor:  # [num_rows, width]
        """Returns the rows of a part as the model reads them."""
        if self._rows is None:
            for node in (node for node in nodes if node.features):
                raise UserError(f"nodes: {node.id} has features, and the model reads degrees only: leave them out")
            degree = Degrees.of(part.graph.csc).in_degree(np.arange(part.graph.num_nodes))
            return torch.from_numpy(degree_rows(degree)).to(dtype)
        new = NewColumns.of(self.graph, self._facts).read(nodes)
        new_rows = self._read(new.row_normalize() if self._unit_rows else new)
        old = torch.from_numpy(part.nodes[len(nodes) :])
        return torch.cat([new_rows, self._rows[old]]).to(dtype)


def _number(node: NodeId, place: Mapping[NodeId, int], new: Mapping[NodeId, int]) -> int:
    number = new.get(node, place.get(node))
    if number is None:
        raise UserError(f"edges: {node} is no id of a new node or of the graph")
    return number


def read_settings(folder: Path, passed: Sequence[str]) -> Settings:
    """Returns the settings with which a run predicts.

    Args:
        folder: The trained run.
        passed: Sections that are passed from Python: model, dataset.
    """
    overrides = ["job=predict", *config.as_overrides({"checkpoint": str(folder)})]
    return settle(config.compose(config.with_data(config.with_run(overrides, passed), overrides)))


def written_by(settings: Settings) -> list[str]:
    """Names the tables of `job=predict` that are served.

    Raises `UserError` for a task about pairs of nodes.
    """
    task = settings.task.create()
    if not isinstance(task, NodeTask):
        raise UserError(
            f"serve: task={settings.task.name} scores pairs of nodes: serve the vectors that job=predict writes"
        )
    return [PREDICTIONS] if type(task).probabilities is Task.probabilities else [PREDICTIONS, PROBABILITIES]
