"""job=partition: cuts, reports the quality, and writes the store that runs read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from gnnkit.config.settings import AUTO, Settings
from gnnkit.errors import UserError
from gnnkit.jobs.order import Order
from gnnkit.launch.processes import run_in_child
from gnnkit.launch.watchdog import Patience
from gnnkit.prepare.kept import content, origin
from gnnkit.result.result import Result, versions
from gnnkit.store.manifest import Manifest, shaping
from gnnkit.store.pairs import with_pairs


def partition(order: Order, decided: Settings) -> Result:
    """Measures the partition, and writes the store and the partition into the folder.

    Args:
        order: What was asked, with the run folder.
        decided: The settings without any `auto`.
    """
    figures = run_in_child(_cut, order, decided, patience=Patience.of(decided.timeout))
    return Result("partition", figures, figures.pop("summary"))


def unchanged(order: Order) -> Result | None:
    """Returns the result of the store in a folder, if the same job has written it.

    The same job has the same keys that shape parts, and the same data. Files are the
    same by size and time.
    """
    return held(order, _asked)


def held(order: Order, asked: Callable[[Order], str]) -> Result | None:
    """Returns the result of the store in a folder, if `asked` hashes as it did."""
    folder = order.run_folder
    try:
        manifest = with_pairs(Manifest.load(folder), folder)
    except UserError:  # no store, or none that could be read
        return None
    if manifest.asked != asked(order):
        return None
    told = f"{folder} holds this store already, and its data are unchanged"
    return Result(order.settings.job.name, manifest.quality, told, folder)


def _cut(order: Order, decided: Settings) -> dict[str, Any]:
    from gnnkit.prepare.storing import write  # imports torch, in the child alone

    return write(decided, order.run_folder, order.graph, _asked(order))


def _asked(order: Order) -> str:
    """Hashes the keys that shape parts, and what tells the data apart."""
    settings, graph = order.settings, order.graph
    data: Any = content(graph) if graph is not None else [asdict(settings.dataset), origin(settings.dataset)]
    keys = shaping(settings.cut) | {key: settings.composed[key] for key in ("strategy", "seed")}
    nodes = settings.partition.nodes
    asked = [keys, data, None if nodes.name == AUTO else origin(nodes), versions()]
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()
