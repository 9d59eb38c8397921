"""job=import: reads tables of any size into a store, in bounded memory."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import asdict
from typing import Any

from gnnkit.dataset.importing.graph import files_of
from gnnkit.errors import UserError
from gnnkit.jobs.order import Order
from gnnkit.launch.processes import run_in_child
from gnnkit.launch.watchdog import Patience
from gnnkit.leader.folder import WORK
from gnnkit.leader.kept import origin
from gnnkit.leader.result import Result, versions
from gnnkit.store.manifest import KEYS, Manifest


def import_tables(order: Order) -> Result:
    """Writes the store of the data set into the run folder.

    Args:
        order: What was asked, with the run folder.
    """
    figures = run_in_child(_written, order, patience=Patience.of(order.settings.timeout))
    return Result(order.settings.job.name, figures, figures.pop("summary"))


def unchanged(order: Order) -> Result | None:
    """Returns the result of the store in a folder, if the same job has written it.

    The same job has the same keys, and files of the same sizes and times.
    """
    folder = order.run_folder
    try:
        manifest = Manifest.load(folder)
    except UserError:  # no store, or none that could be read
        return None
    if manifest.asked != asked_of(order):
        return None
    shutil.rmtree(folder / WORK, ignore_errors=True)  # of a process that was ended with the store written
    told = f"{folder} holds this store already, and its data are unchanged"
    return Result(order.settings.job.name, manifest.quality, told, folder)


def asked_of(order: Order) -> str:
    """Hashes the keys that shape the store, and what tells the data apart."""
    settings = order.settings
    sources = files_of(settings.dataset.create())
    stamps = [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in sources]
    keys = {key: settings.composed[key] for key in (*KEYS, "strategy", "memory")}
    asked: list[Any] = [keys, asdict(settings.dataset), stamps, origin(settings.partition.nodes), versions()]
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()


def _written(order: Order) -> dict[str, Any]:
    from gnnkit.leader.importing import write  # imports torch, in the child alone

    return write(order.settings, order.run_folder, asked_of(order))
