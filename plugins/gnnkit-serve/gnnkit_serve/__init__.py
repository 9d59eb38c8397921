"""Serves a trained run's predictions over HTTP, as gnnkit's function `serve`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fastapi import FastAPI
from torch import nn

import gnnkit
from gnnkit.graph import Graph
from gnnkit.jobs.models import ModelFactory
from gnnkit.task.labelled_edges import LabelledEdges
from gnnkit.utils.ranges import local_path
from gnnkit_serve.serve import application
from gnnkit_serve.served import ServedFiles, ServedRun, read_settings, written_by
from gnnkit_serve.served_edges import ServedEdges


def serve_run(run: str | Path, graph: Any, model: nn.Module | ModelFactory | None, hosts: Sequence[str]) -> FastAPI:
    """Predicts for all nodes or labelled edges, and returns the application.

    Args:
        run: The run folder of the training.
        graph: As for `gnnkit.serve`.
        model: As for `gnnkit.serve`.
        hosts: As for `gnnkit.serve`.
    """
    folder = local_path("checkpoint", run)
    graph = None if graph is None else Graph.of(graph)
    arguments = [name for name, value in (("dataset", graph), ("model", model)) if value is not None]
    settings = read_settings(folder, arguments)
    files = ServedFiles.of(settings, from_caller=graph is not None)
    with TemporaryDirectory(prefix="gnnkit-serve-") as scratch:
        table_names, target = written_by(settings), Path(scratch) / "tables"
        tables = gnnkit.predict(
            folder, graph, model=model, folder=target, write=table_names, write_format="parquet", report=False
        ).folder
        kind = ServedEdges if isinstance(settings.task.create(), LabelledEdges) else ServedRun
        return application(kind(settings, tables, files, graph, model), hosts)
