"""Imports a data set as a store's graph, in bounded memory and without torch."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from gnnkit_formats.pieces import Room

from gnnkit.config.settings import MOST_MEMORY, Settings
from gnnkit.launch.progress import phase, say, warnings_in_lines
from gnnkit.launch.watchdog import Patience
from gnnkit.result.result import WORK
from gnnkit.utils.memory import available_memory
from gnnkit.utils.ranges import num_cores
from gnnkit_import.datasets import in_pieces
from gnnkit_import.graph import import_graph
from gnnkit_import.npy_writer import disk_errors
from gnnkit_import.passes import ALONE, ForkedGroup, WorkGroup
from gnnkit_import.progress import Journal, ProgressReporter

LEAST_MEMORY = 2**26  # bytes
_AUTO_SHARE = 0.5  # share of free memory used by memory=auto


def room_of(settings: Settings) -> Room:
    """Returns the memory and the threads of an import."""
    memory = getattr(settings.job_keys, "memory", None) or int(min(_AUTO_SHARE * available_memory(), MOST_MEMORY))
    return Room(memory, settings.threads * settings.workers)


def num_processes(settings: Settings, room: Room) -> int:
    """Returns the number of processes that import together.

    It equals the number of workers, limited by cores and by the least memory of a
    process.
    """
    return max(min(settings.processes or settings.workers, num_cores(), room.limit // LEAST_MEMORY), 1)


def group_of(size: int, settings: Settings, folder: Path) -> WorkGroup:
    """Returns a group of `size` processes that write into a folder."""
    return ALONE if size == 1 else ForkedGroup(size, Patience.of(settings.timeout), folder)


def run_import(settings: Settings, folder: Path, key: str) -> str:
    """Imports the graph, or resumes an interrupted import. Returns the graph's folder.

    Args:
        settings: The settings.
        folder: The run folder, which becomes the store.
        key: Identifies the job and its data.
    """
    room, work = room_of(settings), folder / WORK
    group = group_of(num_processes(settings, room), settings, folder)
    with disk_errors(folder), warnings_in_lines(settings.dataset.name):
        data = in_pieces(settings.dataset.create())
        assert data is not None  # other data sets were rejected earlier
        journal = _open_journal(work, key, room, group.size)
        memory, _ = journal["room"]
        shared = "" if group.size == 1 else f" in {group.size} processes"
        if shared and not data.is_divided:
            shared += ", of which one reads: edges of this data set are not divided"
        phase(f"importing {data.root} with {memory / 2**30:.2g} GiB of memory{shared}")
        gaps = settings.inputs != "features" or settings.features.fill != "refuse"
        room = replace(room, limit=memory)
        return str(import_graph(data, work, room, journal, ProgressReporter(), gaps=gaps, group=group))


def _open_journal(work: Path, key: str, room: Room, processes: int) -> Journal:
    """Opens the journal, or starts over.

    Its entry `room` has the memory and the number of processes, which determine the
    buckets. An interrupted import resumes with these.
    """
    work.mkdir(exist_ok=True)
    journal = Journal(work, key)
    memory, earlier_processes = journal["room"] or (room.limit, processes)
    if journal.changed or memory > room.limit or earlier_processes != processes:
        say(f"{work}: an earlier import had other data, keys or processes, or more memory: starts over")
        shutil.rmtree(work)
        work.mkdir()
        journal, memory = Journal(work, key), room.limit
    elif journal["counted"] is not None:
        say(f"{work}: continues an interrupted import")
    journal.note(room=(memory, processes))  # a refused import leaves no folder
    return journal
