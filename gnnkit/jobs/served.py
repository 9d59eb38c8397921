"""A trained run's predictions by id, and for new nodes."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from gnnkit import config
from gnnkit.config.settings import Settings, settle
from gnnkit.errors import UserError
from gnnkit.graph import Floats, Graph, Ids
from gnnkit.jobs import weights
from gnnkit.jobs.models import ModelFactory
from gnnkit.model.plain import on_plain
from gnnkit.prepare.inputs import with_inputs, with_names
from gnnkit.prepare.trained import Inputs
from gnnkit.task import NodeTask, Task, numbered
from gnnkit.utils.documents import Json

NodeId = int | str
PREDICTIONS, PROBABILITIES = "predictions", "probabilities"


@dataclass(frozen=True, slots=True)
class NewNode:
    """A node that the graph does not have."""

    id: NodeId
    features: Sequence[float]  # raw, in the graph's column order


class ServedRun:
    """Predicts for a graph's nodes by id, and for new nodes by their edges.

    Predictions by id are the rows that `job=predict` has written. For new nodes, the
    model computes the graph with these nodes, one call at a time.
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
        with self._lock, torch.no_grad():
            graph = self._base.extended(nodes, edges, self._place)
            rows = self._outputs(graph)[self.num_nodes :]
            ids = np.array([node.id for node in nodes], object)
            columns = dict(self._task.columns(self._task.predict(rows).numpy(), ids, self._names))
            if PROBABILITIES in written_by(self._settings):
                titles = self._task.output_names(self._names)
                columns |= numbered("probability", self._task.probabilities(rows).numpy(), titles)
        plain = {
            name: values.tolist() if isinstance(values, np.ndarray) else values for name, values in columns.items()
        }
        return [{name: values[place] for name, values in plain.items()} for place in range(len(nodes))]

    def _outputs(self, graph: Graph) -> torch.Tensor:
        facts, inputs = Inputs.load(self._folder), self._settings.inputs
        if facts is not None:
            graph = facts.read(graph, self._folder)
        out: torch.Tensor = self._trained(*on_plain(self._trained, with_inputs(graph, inputs)))
        return out

    @cached_property
    def _trained(self) -> nn.Module:
        return weights.trained(self._folder, self._model)

    @cached_property
    def _task(self) -> NodeTask:
        task: NodeTask = self._settings.task.create()
        task.recall(weights.read_facts(self._folder))
        return task

    @cached_property
    def _base(self) -> _Base:
        return _Base.of(with_names(self._settings, self._graph), self._settings)


@dataclass(frozen=True, slots=True, eq=False)
class _Base:
    """A graph's edges, to which requests add some."""

    graph: Graph
    src: Ids  # [num_edges]
    dst: Ids  # [num_edges]
    features: Floats  # [num_nodes, width]

    @classmethod
    def of(cls, graph: Graph, settings: Settings) -> _Base:
        """Raises `UserError` for a graph or a model without a place for new nodes."""
        if settings.inputs == "learned":
            raise UserError("inputs=learned: rows were learned for the nodes of training: train with features")
        if settings.label_inputs is not None:
            raise UserError("label_inputs: a request has no labels: use job=predict on the graph with the new nodes")
        if graph.schema.several or graph.csc.weight is not None or graph.edge_features is not None:
            raise UserError(
                "the graph has types, weights or features of edges, which a request has not: use job=predict on the graph "
                "with the new nodes"
            )
        csc = graph.csc
        ends = csc.indices.astype(np.int64), np.repeat(np.arange(csc.num_nodes), np.diff(csc.indptr))
        return cls(graph, *ends, np.asarray(graph.features))

    def extended(
        self, nodes: Sequence[NewNode], edges: Sequence[tuple[NodeId, NodeId]], place: Mapping[NodeId, int]
    ) -> Graph:
        """Returns the graph with new nodes, numbered after the others."""
        new = {node.id: number for number, node in enumerate(nodes, len(place))}
        if len(new) < len(nodes) or new.keys() & place.keys():
            raise UserError("nodes: an id occurs twice, or is that of a node of the graph: choose distinct new ids")
        ends = np.array([[_number(node, place, new) for node in edge] for edge in edges], np.int64).reshape(-1, 2)
        if (ends < len(place)).all(1).any():
            raise UserError("edges: an edge connects two nodes of the graph: each must have a new node as an end")
        width = self.features.shape[1]
        for node in nodes:
            if len(node.features) != width:
                raise UserError(f"nodes: {node.id} has {len(node.features)} features, expected {width}")
        rows = np.array([node.features for node in nodes], self.features.dtype).reshape(len(nodes), width)
        graph = self.graph
        return Graph.from_edges(
            np.append(self.src, ends[:, 0]),
            np.append(self.dst, ends[:, 1]),
            len(place) + len(nodes),
            features=np.concatenate([self.features, rows]),
            feature_names=graph.feature_names,
            category_of=graph.category_of,
            missing=graph.missing,
        )


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
