"""A folder of tables -> the graph of a store, in bounded memory. Imports no torch."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gnnkit.dataset.importing.graph import import_graph
from gnnkit.dataset.importing.progress import Journal, Teller
from gnnkit.dataset.pieces import Room
from gnnkit.errors import UserError
from gnnkit.launch.phases import phase, say
from gnnkit.launch.progress import progress
from gnnkit.plan.memory import available_memory
from gnnkit.ranges import one_line
from gnnkit.result.folder import WORK
from gnnkit.settings import MOST_MEMORY, Settings

SHARE = 0.5  # of the memory at hand, where none is given


def room_of(settings: Settings) -> Room:
    """Returns the memory and the threads of an import."""
    given = settings.memory or int(min(SHARE * available_memory(), MOST_MEMORY))
    return Room(given, settings.threads * settings.workers)


def imported(settings: Settings, folder: Path, asked: str) -> str:
    """Imports the graph, or goes on to import it. Returns its folder.

    Args:
        settings: The configuration.
        folder: The run folder, which becomes the store.
        asked: Tells this job and its data apart from others.
    """
    room, work, data = room_of(settings), folder / WORK, settings.dataset.create().in_pieces()
    assert data is not None  # others are refused before
    with told_disk(folder):
        work.mkdir(exist_ok=True)
        journal = Journal(work, asked)
        if journal.changed:
            say(f"{work}: an earlier import read other data or keys: starts over")
            shutil.rmtree(work)
            work.mkdir()
        elif journal["counted"] is not None:
            say(f"{work}: goes on from what an earlier import has finished")
        phase(f"importing {data.root} with {room.given / 2**30:.2g} GiB of memory")
        gaps = settings.inputs != "features" or settings.features.fill != "refuse"
        return str(import_graph(data, work, room, journal, Teller(progress), gaps=gaps))


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
