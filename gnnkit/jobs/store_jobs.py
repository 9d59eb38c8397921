"""job=partition, which writes a store that later runs read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from gnnkit.config.settings import AUTO, Settings
from gnnkit.errors import UserError
from gnnkit.jobs.order import Order
from gnnkit.launch.processes import run_in_child
from gnnkit.launch.watchdog import Patience
from gnnkit.partition.store.manifest import Manifest, shaping
from gnnkit.partition.store.pairs import with_pairs
from gnnkit.prepare.kept import content, origin
from gnnkit.result.result import Result, versions
from gnnkit.utils.documents import json_digest


def partition(order: Order, settings: Settings) -> Result:
    """Partitions the graph, measures quality, and writes the store into the run folder.

    Args:
        order: The request, with the run folder.
        settings: The settings without any `auto`.
    """
    figures = run_in_child(_write_partition, order, settings, patience=Patience.of(settings.timeout))
    return Result("partition", figures, figures.pop("summary"))


def find_partition(order: Order) -> Result | None:
    """Returns the stored result if the same job wrote the store in the folder.

    The keys that shape parts, the file sizes and the times must be equal.
    """
    return find_stored(order, _partition_key)


def find_stored(order: Order, make_key: Callable[[Order], str]) -> Result | None:
    """Returns the stored result if the store's key equals `make_key(order)`."""
    folder = order.run_folder
    try:
        manifest = with_pairs(Manifest.load(folder), folder)
    except UserError:  # missing or unreadable store
        return None
    if manifest.asked != make_key(order):
        return None
    summary = f"{folder} holds this store already, and its data are unchanged"
    return Result(order.settings.job.name, manifest.quality, summary, folder)


def _write_partition(order: Order, settings: Settings) -> dict[str, object]:
    from gnnkit.prepare.stored import write  # imports torch, only in the child

    return write(settings, order.run_folder, order.graph, _partition_key(order))


def _partition_key(order: Order) -> str:
    """Hashes the keys that shape parts, and the identity of the data."""
    settings, graph = order.settings, order.graph
    data: Any = content(graph) if graph is not None else [asdict(settings.dataset), origin(settings.dataset)]
    keys = shaping(settings.cut) | {key: settings.composed[key] for key in ("strategy", "seed")}
    nodes = settings.partition.nodes
    key_parts = [keys, data, None if nodes.name == AUTO else origin(nodes), versions()]
    return json_digest(key_parts)
