"""Imports a data set as a store's graph, in bounded memory and without torch."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from gnnkit_formats.pieces import GraphPieces, Room

from gnnkit.config.settings import MOST_MEMORY, Settings
from gnnkit.errors import UserError
from gnnkit.launch.child import Child
from gnnkit.launch.group import Group
from gnnkit.launch.phases import phase, say, warnings_in_lines
from gnnkit.launch.progress import progress
from gnnkit.launch.watchdog import Patience
from gnnkit.result.folder import WORK
from gnnkit.utils.memory import available_memory
from gnnkit.utils.ranges import num_cores, one_line
from gnnkit_import.datasets import in_pieces
from gnnkit_import.graph import import_graph
from gnnkit_import.progress import Journal, ProgressReporter
from gnnkit_import.shared_folder import SharedFolderGroup
from gnnkit_import.work_group import ALONE, WorkGroup

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


class ForkedGroup(WorkGroup):
    """Forks new processes for each pass, so they share the data read before."""

    def __init__(self, size: int, patience: Patience, folder: Path) -> None:
        """Stores the arguments. `run` starts the processes.

        Args:
            patience: How long to wait for a sign of progress.
            folder: Folder that they write into, for messages.
        """
        super().__init__(size)
        self._patience, self._folder = patience, folder

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        def checked(rank: int) -> Any:
            with disk_errors(self._folder):
                return work(rank)

        children = [Child(f"importer {rank}", "fork", {}, checked, (rank,)) for rank in range(self.size)]
        results = Group(children, self._patience, meanwhile=lambda: progress("the importers' pass")).run()
        return [results[rank] for rank in range(self.size)]


def group_of(size: int, settings: Settings, folder: Path) -> WorkGroup:
    """Returns a group of `size` processes that write into a folder."""
    return ALONE if size == 1 else ForkedGroup(size, Patience.of(settings.timeout), folder)


def run_import(settings: Settings, folder: Path, key: str, together: bool) -> str:
    """Imports the graph, or resumes an interrupted import. Returns the graph's folder.

    Args:
        folder: The run folder, which becomes the store.
        key: Identifies the job and its data.
        together: Whether externally started ranks import together.
    """
    started = settings.started
    if started is None or not together:
        size = num_processes(settings, room_of(settings))
        return _import(settings, folder, key, group_of(size, settings, folder))
    group = SharedFolderGroup(started.rank, started.world_size, meeting_folder(folder), settings.timeout)
    with group.joined():
        if len({*group.run(lambda rank: key)}) > 1:
            raise UserError(
                f"{folder}: {group.size} processes import together, but with different keys or files; use the same ones"
            )
        return _import(settings, folder, key, group)


def meeting_folder(folder: Path) -> Path:
    """Returns the folder next to the store where externally started ranks meet."""
    return folder.with_name(f".{folder.name}.meeting")


def _import(settings: Settings, folder: Path, key: str, group: WorkGroup) -> str:
    room, work, data = room_of(settings), folder / WORK, in_pieces(settings.dataset.create())
    assert data is not None  # other data sets were rejected earlier

    def heartbeat(name: str) -> None:
        progress(name)
        group.check()

    with disk_errors(folder):
        memory = group.run_on_leader(lambda: _open_journal(work, key, room, group.size, data))
        journal = Journal(work, key, writes=group.is_leader)
        group.wait()  # all have read the same entries, and then take the same steps
        journal.note(room=(memory, group.size))  # they determine the buckets
        gaps = settings.inputs != "features" or settings.features.fill != "refuse"
        reporter = ProgressReporter(heartbeat, quiet=not group.is_leader)
        with warnings_in_lines(settings.dataset.name):
            target = import_graph(data, work, replace(room, limit=memory), journal, reporter, gaps=gaps, group=group)
            return str(target)


def _open_journal(work: Path, key: str, room: Room, processes: int, data: GraphPieces) -> int:
    """Opens the journal, or starts over. Returns the memory that the import uses.

    An interrupted import resumes with its original memory and number of processes.
    """
    work.mkdir(exist_ok=True)
    journal = Journal(work, key)
    memory, earlier_processes = journal["room"] or (room.limit, processes)
    if journal.changed or memory > room.limit or earlier_processes != processes:
        say(f"{work}: an earlier import had other data, keys or processes, or more memory: starts over")
        shutil.rmtree(work)
        work.mkdir()
        memory = room.limit
    elif journal["counted"] is not None:
        say(f"{work}: continues an interrupted import")
    shared = "" if processes == 1 else f" in {processes} processes"
    if shared and not data.is_divided:
        shared += ", of which one reads: edges of this data set are not divided"
    phase(f"importing {data.root} with {memory / 2**30:.2g} GiB of memory{shared}")
    return int(memory)


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Raises `UserError` with the file and the remedy for a full or failing disk."""
    try:
        yield
    except OSError as error:
        raise UserError(
            one_line(
                f"{error.filename or folder}: {error.strerror}: fix this, then run the same command again to resume"
            )
        ) from error
