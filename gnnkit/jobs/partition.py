"""job=partition: cuts, reports the quality, and stores the partition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gnnkit.graph import Graph
from gnnkit.launch.processes import run_in_child
from gnnkit.launch.watchdog import Patience
from gnnkit.leader.choose import describe
from gnnkit.leader.inputs import load, named
from gnnkit.leader.kept import Kept, kept_partition
from gnnkit.leader.result import Result
from gnnkit.partition.quality import measure
from gnnkit.settings import Settings


def partition(settings: Settings, folder: Path, graph: Graph | None = None) -> Result:
    """Measures the partition, and stores partition and report in `folder/partition`.

    Args:
        settings: The configuration.
        folder: The run folder.
        graph: Instead of the data set.
    """
    figures = run_in_child(_store, settings, folder, graph, patience=Patience.of(settings.timeout))
    return Result("partition", figures, figures.pop("summary"))


def _store(settings: Settings, folder: Path, graph: Graph | None) -> dict[str, Any]:
    kept = Kept(settings.cache, named(load(settings, graph), folder))
    quality = measure(kept.graph, kept_partition(kept, settings))
    quality.save(folder / "partition")
    why = [] if settings.decided is None else [settings.decided["why"]]
    lines = [*describe(kept.graph, settings, quality.partition), *why, *quality.table(), *kept.notes]
    return {"summary": "\n".join(lines), **quality.to_dict()}
