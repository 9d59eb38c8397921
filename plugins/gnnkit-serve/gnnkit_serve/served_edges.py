"""A trained run's predictions of labelled edges, and of new ones."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from gnnkit import jobs
from gnnkit.config.settings import Choice, with_choice
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.jobs.models import ModelFactory
from gnnkit.prepare.inputs import with_names
from gnnkit.utils.documents import Json
from gnnkit.utils.ranges import one_line
from gnnkit_serve.extensible_edges import ExtensibleEdges
from gnnkit_serve.new_nodes import NewEdge
from gnnkit_serve.served import ONE_CALL, Served, read_settings, written_by


class ServedEdges(Served):
    """Predicts a graph's labelled edges by position, and new edges by their ends.

    New edges are predicted by `job=predict` on the graph with them, one call at a time
    in a process, for any model, strategy and sampler.
    """

    noun = "edge"

    def _prepare(self, graph: Graph | None, model: nn.Module | ModelFactory | None) -> None:
        settings = self._settings
        self._graph = ExtensibleEdges(with_names(settings, graph), settings, from_caller=graph is not None)
        self._order = _order_of(self._folder, model, written_by(settings))

    def predict_edges(self, edges: Sequence[NewEdge]) -> list[Json]:
        """Returns a row per new edge, as `job=predict` on the extended graph writes it.

        Raises `UserError` for edges that do not fit the graph.
        """
        import pyarrow.parquet

        with ONE_CALL, self._unchanged(), TemporaryDirectory(prefix="gnnkit-serve-") as scratch:
            folder, graph = Path(scratch) / "run", self._graph.extend(edges)
            columns: dict[str, list[Any]] = {}
            try:
                with _silence():
                    jobs.start(replace(self._order, graph=graph, folder=folder))
            except UserError as error:
                text = self._files.without_paths(one_line(error)).replace(f"{scratch}{os.sep}", "")
                raise UserError(text) from error
            for name in written_by(self._settings):
                columns |= pyarrow.parquet.read_table(folder / f"{name}.parquet").to_pydict()
        del columns["id"]
        return [{name: values[place] for name, values in columns.items()} for place in range(len(edges))]

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Raises `ChangedError` for a change before the block or during it."""
        self.check_unchanged()
        try:
            yield
        finally:  # changed files can cause other errors
            self.check_unchanged()


def _order_of(folder: Path, model: nn.Module | ModelFactory | None, names: Sequence[str]) -> jobs.Order:
    """Returns the order for a prediction in this process, without its graph."""
    keys: dict[str, Any] = {"workers": 1, "launcher": "inline", "report": False, "cache": False}
    given = ["dataset"] if model is None else ["dataset", "model"]
    settings = read_settings(folder, given, write=list(names), write_format="parquet", **keys)
    settings = with_choice(settings, Choice("dataset", "graph", {}))
    if model is not None:
        settings = with_choice(settings, Choice("model", getattr(model, "__name__", type(model).__name__), {}))
    return jobs.Order(settings, model=model)


@contextmanager
def _silence() -> Iterator[None]:
    """Drops what a prediction prints, because each request has one."""
    with Path(os.devnull).open("w") as sink, redirect_stdout(sink), redirect_stderr(sink):
        yield
