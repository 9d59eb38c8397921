"""A folder of tables -> the graph of a store, in bounded memory. Imports no torch."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from gnnkit.config.settings import LEAST_MEMORY, MOST_MEMORY, Settings
from gnnkit.crew import ALONE, Crew
from gnnkit.dataset.importing.graph import import_graph
from gnnkit.dataset.importing.progress import Journal, Teller
from gnnkit.dataset.pieces import GraphPieces, Room
from gnnkit.errors import UserError
from gnnkit.launch.child import Child
from gnnkit.launch.group import Group
from gnnkit.launch.phases import phase, say, warnings_in_lines
from gnnkit.launch.progress import progress
from gnnkit.launch.watchdog import Patience
from gnnkit.memory import available_memory
from gnnkit.prepare.meeting import Met
from gnnkit.ranges import num_cores, one_line
from gnnkit.result.folder import WORK

SHARE = 0.5  # of the memory at hand, where none is given


def room_of(settings: Settings) -> Room:
    """Returns the memory and the threads of an import."""
    given = settings.memory or int(min(SHARE * available_memory(), MOST_MEMORY))
    return Room(given, settings.threads * settings.workers)


def members_of(settings: Settings, room: Room) -> int:
    """Returns the number of processes that import together.

    As many as `workers`, as cores at hand, and as times the least memory.
    """
    return max(min(settings.processes or settings.workers, num_cores(), room.given // LEAST_MEMORY), 1)


class Forked(Crew):
    """Processes that are forked for each pass, and share what was read before."""

    def __init__(self, size: int, patience: Patience, folder: Path) -> None:
        """Makes the crew. Starts nothing yet.

        Args:
            size: Number of processes.
            patience: How long to wait for a sign of progress.
            folder: Where they write, for messages.
        """
        super().__init__(size)
        self._patience, self._folder = patience, folder

    def share(self, work: Callable[[int], Any]) -> list[Any]:
        def told(member: int) -> Any:
            with told_disk(self._folder):
                return work(member)

        children = [Child(f"importer {member}", "fork", {}, told, (member,)) for member in range(self.size)]
        found = Group(children, self._patience, meanwhile=lambda: progress("the importers' pass")).run()
        return [found[member] for member in range(self.size)]


def crew_of(size: int, settings: Settings, folder: Path) -> Crew:
    """Returns a crew of `size` processes, which write into a folder."""
    return ALONE if size == 1 else Forked(size, Patience.of(settings.timeout), folder)


def imported(settings: Settings, folder: Path, asked: str, together: bool) -> str:
    """Imports the graph, or goes on to import it. Returns its folder.

    Args:
        settings: The configuration.
        folder: The run folder, which becomes the store.
        asked: Tells this job and its data apart from others.
        together: Whether ranks that were started from outside import together.
    """
    started = settings.started
    if started is None or not together:
        size = members_of(settings, room_of(settings))
        return _imported(settings, folder, asked, crew_of(size, settings, folder))
    crew = Met(started.rank, started.world_size, meeting_of(folder), settings.timeout)
    with crew.met():
        if len({*crew.share(lambda member: asked)}) > 1:
            raise UserError(
                f"{folder}: {crew.size} processes import together, and not all with the same keys and files"
            )
        return _imported(settings, folder, asked, crew)


def meeting_of(folder: Path) -> Path:
    """Returns where processes that were started from outside meet, beside the store."""
    return folder.with_name(f".{folder.name}.meeting")


def _imported(settings: Settings, folder: Path, asked: str, crew: Crew) -> str:
    room, work, data = room_of(settings), folder / WORK, settings.dataset.create().in_pieces()
    assert data is not None  # others are refused before

    def opened() -> int:
        """Opens the journal, and returns the memory that the import goes on with."""
        work.mkdir(exist_ok=True)
        journal = Journal(work, asked)
        given, processes = journal["room"] or (room.given, crew.size)
        if journal.changed or given > room.given or processes != crew.size:
            say(f"{work}: an earlier import read other data or keys, or had more memory or processes: starts over")
            shutil.rmtree(work)
            work.mkdir()
            journal, given = Journal(work, asked), room.given
        elif journal["counted"] is not None:
            say(f"{work}: goes on from what an earlier import has finished")
        phase(f"importing {data.root} with {given / 2**30:.2g} GiB of memory{_told(data, crew.size)}")
        return int(given)

    def sign(name: str) -> None:
        progress(name)
        crew.look()

    with told_disk(folder):
        given = crew.lead(opened)
        journal = Journal(work, asked, keeps=crew.leads)
        journal.note(room=(given, crew.size))  # which buckets follow from
        gaps = settings.inputs != "features" or settings.features.fill != "refuse"
        teller = Teller(sign, quiet=not crew.leads)
        with warnings_in_lines(settings.dataset.name):
            return str(import_graph(data, work, replace(room, given=given), journal, teller, gaps=gaps, crew=crew))


def _told(data: GraphPieces, size: int) -> str:
    if size == 1:
        return ""
    if not data.is_divided:
        return f" in {size} processes, of which one reads: edges of this data set are not divided"
    return f" in {size} processes"


@contextmanager
def told_disk(folder: Path) -> Iterator[None]:
    """Raises `UserError` with the file and the way out where a disk is full."""
    try:
        yield
    except OSError as error:
        raise UserError(
            one_line(
                f"{error.filename or folder}: {error.strerror}: the same command goes on from what is finished, once this "
                "is mended"
            )
        ) from error
