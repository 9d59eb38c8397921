"""A trained run's predictions by id, and for new nodes."""

from __future__ import annotations

import copy
import math
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from stat import S_ISDIR
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from gnnkit import config
from gnnkit.config.settings import Settings, settle
from gnnkit.engine import BlockLayers
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.jobs import weights
from gnnkit.jobs.models import ModelFactory
from gnnkit.jobs.order import CONFIG_FILE
from gnnkit.launch.progress import say
from gnnkit.model.base import dtype_of, on_plain
from gnnkit.model.hetero import HeteroModel
from gnnkit.model.unchanged import EdgeIndexModel, adapted
from gnnkit.prepare.inputs import with_names
from gnnkit.result.result import CLASSES, INPUTS, LABELS
from gnnkit.sampler import FullSampler
from gnnkit.task import NodeTask, Task, name_columns
from gnnkit.utils.documents import Json
from gnnkit.utils.ranges import one_line
from gnnkit_serve.extensible import ExtensibleGraph, check_inputs
from gnnkit_serve.extension import ReadPart
from gnnkit_serve.new_nodes import NewEdge, NewNode, NodeId

PREDICTIONS, PROBABILITIES = "predictions", "probabilities"
_READ = (weights.FILE, CONFIG_FILE, INPUTS, LABELS, CLASSES)  # files of the run that decide its outputs
ONE_CALL = threading.Lock()  # of the process, because calls replace its output and torch's number of threads


class ChangedError(Exception):
    """The run or its data has changed since the start."""


class Served(ABC):
    """Predictions of a run by id: the rows that `job=predict` has written."""

    noun: ClassVar[str]  # noun for a row, in messages

    def __init__(
        self,
        settings: Settings,
        tables: Path,
        files: ServedFiles,
        graph: Graph | None = None,
        model: nn.Module | ModelFactory | None = None,
    ) -> None:
        """Reads the predictions and what new rows need, and prints what is served.

        Raises `UserError` if a file has changed since the start.

        Args:
            settings: From `read_settings`.
            tables: Run folder of `job=predict write_format=parquet`, with the files of
                `written_by`.
            files: The run's files and its data, from before the predictions.
            graph: The graph of the predictions. If None, the run's data set.
            model: As for `gnnkit.load`.
        """
        import pyarrow.parquet

        assert settings.checkpoint is not None
        self._settings, self._folder, self._files = settings, files.run, files
        self._columns: dict[str, list[Any]] = {}
        for name in written_by(settings):
            self._columns |= pyarrow.parquet.read_table(tables / f"{name}.parquet").to_pydict()
        self._place = {row: place for place, row in enumerate(self._columns["id"])}
        self._prepare(graph, model)
        if change := self.changed():
            raise UserError(f"serve: {change} while the server started: start it again")
        digest = sha256((self._folder / weights.FILE).read_bytes()).hexdigest()[:16]
        counts, dataset = {f"{self.noun}s": len(self._place)}, settings.dataset.name if graph is None else "from Python"
        # What `/health` answers
        self.identity: Json = {**counts, "run": self._folder.name, "dataset": dataset, "model": digest}
        say(f"serving {self._folder}: " + ", ".join(f"{name} {value}" for name, value in self.identity.items()))

    @abstractmethod
    def _prepare(self, graph: Graph | None, model: nn.Module | ModelFactory | None) -> None:
        """Reads what predictions of new rows need. Arguments as for the constructor."""

    def changed(self) -> str:
        """Describes a change of the run or its data since the start, or returns ""."""
        return self._files.changed()

    def check_unchanged(self) -> None:
        """Raises `ChangedError` if the run or its data has changed since the start."""
        if change := self.changed():
            raise ChangedError(change)

    def predict(self, ids: Sequence[NodeId]) -> list[Json]:
        """Returns a row per id. Raises `KeyError` for an unknown id."""
        places = [self._place[row] for row in ids]
        rows = [{name: values[place] for name, values in self._columns.items()} for place in places]
        check_finite(
            [value for row in rows for value in row.values()],
            np.repeat(np.array(ids, object), len(self._columns)),
            self.noun,
        )
        return rows


class ServedRun(Served):
    """Predicts for a graph's nodes by id, and for new nodes by their edges.

    For new nodes, the model computes the rows that their outputs depend on, one call at
    a time in a process. All is read at the start, so that both answer by the same model
    and graph.
    """

    noun = "node"

    def _prepare(self, graph: Graph | None, model: nn.Module | ModelFactory | None) -> None:
        self._names = weights.class_names(self._folder)
        if "rank" in self._columns:
            raise UserError("serve: the run predicts ranked lists, which are not served; use job=predict")
        if len(self._place) < len(self._columns["id"]):
            raise UserError("serve: an id occurs twice in the predictions: give nodes of all types distinct ids")
        self._task: NodeTask = self._settings.task.create()
        self._task.recall(weights.read_facts(self._folder))
        self._trained: nn.Module = adapted(weights.restore_model(self._folder, copy.deepcopy(model))).eval()
        self._base = self._read_graph(graph)

    def predict_new(self, nodes: Sequence[NewNode], edges: Sequence[NewEdge]) -> list[Json]:
        """Returns a row per new node, as `job=predict` on the extended graph would.

        Raises `UserError` for nodes or edges that do not fit the graph.

        Args:
            nodes: The new nodes.
            edges: Their edges, in each direction that the graph has.
        """
        with ONE_CALL, torch.no_grad(), _one_thread():
            rows = self._outputs(nodes, edges)
            ids = np.array([node.id for node in nodes], object)
            check_finite(torch.where(rows.isfinite(), 0.0, rows).sum(1).tolist(), ids, self.noun)
            columns = dict(self._task.columns(self._task.predict(rows).numpy(), ids, self._names))
            if PROBABILITIES in written_by(self._settings):
                titles = self._task.output_names(self._names)
                columns |= name_columns("probability", self._task.probabilities(rows).numpy(), titles)
        plain = {
            name: values.tolist() if isinstance(values, np.ndarray) else values for name, values in columns.items()
        }
        return [{name: values[place] for name, values in plain.items()} for place in range(len(nodes))]

    def _outputs(self, nodes: Sequence[NewNode], edges: Sequence[NewEdge]) -> Tensor:  # [num_new, width]
        """Computes the model for the nodes that the new nodes' outputs depend on.

        How far a module of (x, edge_index) reads is unknown, so it reads the graph.
        """
        model, base = self._trained, self._base
        if isinstance(base, str):
            raise UserError(base)
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

    def _read_graph(self, graph: Graph | None) -> ExtensibleGraph | str:
        """Returns the graph, or why it or the model has no place for new nodes."""
        from_caller = graph is not None
        try:
            check_inputs(self._settings)  # before the graph is loaded
            base = ExtensibleGraph(
                with_names(self._settings, graph), self._settings, self._trained, from_caller=from_caller
            )
        except UserError as error:
            return self._files.without_paths(one_line(error))
        if isinstance(self._trained, HeteroModel):
            _, widths = weights.read(self._folder)
            self._trained.fit_types(base.graph.schema, widths.in_features, widths.edge_width)
        return base


@dataclass(frozen=True, slots=True)
class ServedFiles:
    """The files of a run and of its data, as they were at the start."""

    run: Path
    roots: tuple[Path, ...]  # files and folders of the data
    stamp: dict[Path, tuple[int, int, int]]  # of each file: device time, size, inode

    @classmethod
    def of(cls, settings: Settings, *, from_caller: bool) -> ServedFiles:
        """Looks at the files.

        Args:
            from_caller: Whether the graph comes from Python, and has no files.
        """
        run, values = Path(str(settings.checkpoint)).absolute(), {} if from_caller else settings.dataset.arguments
        paths = [Path(value).absolute() for value in values.values() if isinstance(value, str) and value]
        roots = tuple(path for path in paths if os.path.lexists(path))
        return cls(run, roots, _stamp(run, roots))

    def changed(self) -> str:
        """Names a file that has changed since the start, or returns ""."""
        stamp = _stamp(self.run, self.roots)
        changes = (path for path in self.stamp | stamp if self.stamp.get(path) != stamp.get(path))
        path = next(changes, None)
        return "" if path is None else self.without_paths(one_line(f"{path} has changed since the server started"))

    def without_paths(self, text: str) -> str:
        """Shortens paths of folders to their names, because strangers read the text."""
        for root in sorted((self.run, *self.roots), key=lambda path: -len(str(path))):
            text = text.replace(str(root), root.name)
        return text


def _stamp(run: Path, roots: Sequence[Path]) -> dict[Path, tuple[int, int, int]]:
    """Returns what changes with a file's content: its time, size and inode."""
    files = [run / name for name in _READ]
    files += [path for root in roots for path in ([root, *root.rglob("*")] if root.is_dir() else [root])]
    files += [path for link in files if link.is_symlink() for path in link.rglob("*")]  # which does not follow links
    stamp = {}
    for path in files:
        with suppress(OSError):
            facts = path.stat()
            if not S_ISDIR(facts.st_mode):
                stamp[path] = facts.st_mtime_ns, facts.st_size, facts.st_ino
    return stamp


def check_finite(values: Iterable[Any], ids: Iterable[Any], noun: str) -> None:
    """Raises `UserError` with the node or edge whose output is NaN or infinite."""
    for value, row in zip(values, ids, strict=True):
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{noun}s: {row}: the model's output is not finite: check the features and the model")


@contextmanager
def _one_thread() -> Iterator[None]:
    """Runs torch on one thread, since more are slower for small tensors."""
    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


def read_settings(folder: Path, arguments: Sequence[str], **keys: Any) -> Settings:
    """Returns the settings with which a run predicts.

    Args:
        folder: The trained run.
        arguments: Sections that are passed from Python: model, dataset.
        **keys: Further keys.
    """
    overrides = ["job=predict", *config.as_overrides({"checkpoint": str(folder), **keys})]
    return settle(config.compose(config.with_data(config.with_run(overrides, arguments), overrides)))


def written_by(settings: Settings) -> list[str]:
    """Names the tables of `job=predict` that are served.

    Raises `UserError` for a task about pairs of nodes.
    """
    task = settings.task.create()
    if not isinstance(task, NodeTask):
        output = "vectors" if task.embeds else "tables"
        raise UserError(
            f"serve: task={settings.task.name} predicts pairs of nodes: serve the {output} that job=predict writes"
        )
    return [PREDICTIONS] if type(task).probabilities is Task.probabilities else [PREDICTIONS, PROBABILITIES]
