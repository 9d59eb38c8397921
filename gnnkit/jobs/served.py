"""A trained run's predictions by id, and for new nodes."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence
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
from gnnkit.graph import Graph
from gnnkit.jobs import weights
from gnnkit.jobs.extensible import ExtensibleGraph, check_inputs
from gnnkit.jobs.extension import ReadPart
from gnnkit.jobs.models import ModelFactory
from gnnkit.jobs.new_nodes import NewEdge, NewNode, NodeId
from gnnkit.model.adapt import adapted
from gnnkit.model.hetero import HeteroModel
from gnnkit.model.parameters import dtype_of
from gnnkit.model.plain import on_plain
from gnnkit.model.unchanged import EdgeIndexModel
from gnnkit.prepare.inputs import with_names
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
        if len(self._place) < len(columns["id"]):
            raise UserError("serve: an id occurs twice in the predictions: give nodes of all types distinct ids")

    @property
    def num_nodes(self) -> int:
        return len(self._place)

    def predict(self, ids: Sequence[NodeId]) -> list[Json]:
        """Returns a row per id. Raises `KeyError` for an unknown id."""
        places = [self._place[node] for node in ids]
        return [{name: values[place] for name, values in self._columns.items()} for place in places]

    def predict_new(self, nodes: Sequence[NewNode], edges: Sequence[NewEdge]) -> list[Json]:
        """Returns a row per new node, as `job=predict` on the extended graph would.

        Raises `UserError` for nodes or edges that do not fit the graph.

        Args:
            nodes: The new nodes.
            edges: Their edges, in each direction that the graph has.
        """
        with self._lock, torch.no_grad(), _one_thread():
            rows = self._outputs(nodes, edges)
            ids = np.array([node.id for node in nodes], object)
            columns = dict(self._task.columns(self._task.predict(rows).numpy(), ids, self._names))
            if PROBABILITIES in written_by(self._settings):
                titles = self._task.output_names(self._names)
                columns |= numbered("probability", self._task.probabilities(rows).numpy(), titles)
        plain = {
            name: values.tolist() if isinstance(values, np.ndarray) else values for name, values in columns.items()
        }
        return [{name: values[place] for name, values in plain.items()} for place in range(len(nodes))]

    def _outputs(self, nodes: Sequence[NewNode], edges: Sequence[NewEdge]) -> Tensor:  # [num_new, width]
        """Computes the model for the nodes that the new nodes' outputs depend on.

        How far a module of (x, edge_index) reads is unknown, so it reads the graph.
        """
        model, base = self._trained, self._base
        hops = None if isinstance(model, EdgeIndexModel) else int(model.num_layers)  # type: ignore[arg-type]
        extension = base.extend(nodes, edges, self._place)
        part = ReadPart.of(base.graph, extension, hops)
        x = base.rows(nodes, extension, part, dtype_of(model))
        if hops is None:
            model = model.with_sizes(part.graph.schema.node_types) if isinstance(model, HeteroModel) else model
            return model(*on_plain(model, x, part.graph))[part.seeds]  # type: ignore[no-any-return]
        batch = FullSampler(num_hops=hops, threads=1).sample(part.graph.csc, part.seeds, key=0)
        values = BlockLayers(part.graph, model, x.dtype, x.device, inverse_edges=base.inverse_edges)
        rows = x[torch.from_numpy(batch.input_nodes.astype(np.int64))]
        return model(rows, values.layers(batch.blocks, key=0))  # type: ignore[no-any-return]

    @cached_property
    def _trained(self) -> nn.Module:
        model: nn.Module = adapted(weights.trained(self._folder, copy.deepcopy(self._model)))
        return model.eval()

    @cached_property
    def _task(self) -> NodeTask:
        task: NodeTask = self._settings.task.create()
        task.recall(weights.read_facts(self._folder))
        return task

    @cached_property
    def _base(self) -> ExtensibleGraph:
        check_inputs(self._settings)  # before the graph is loaded
        graph, passed = with_names(self._settings, self._graph), self._graph is not None
        base = ExtensibleGraph(graph, self._settings, self._trained, passed=passed)
        if isinstance(self._trained, HeteroModel):
            _, widths = weights.read(self._folder)
            self._trained.fit_types(base.graph.schema, widths.in_features, widths.edge_width)
        return base


@contextmanager
def _one_thread() -> Iterator[None]:
    """Runs torch on one thread, since more are slower for small tensors."""
    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


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
