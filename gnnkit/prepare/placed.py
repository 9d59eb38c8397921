"""Where the rows of features lie while ranks train: in memory, mapped, or on disk."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gnnkit.config.settings import AUTO
from gnnkit.errors import UserError
from gnnkit.memory import available_memory
from gnnkit.prepare.cut import Preparation, Prepared
from gnnkit.store.parts import GRAPH

if TYPE_CHECKING:
    from gnnkit.store.parts import Parts

BASE = 400 << 20  # bytes of a process without data: the program
_RANK = 50 << 20  # bytes of the batches at hand of a rank
_PER_NODE = 6  # bytes of a process for each node: which nodes train, and tables of the system for mapped files
# Bytes of a cache beside its rows, for each row that is kept: slots, their places, and
# the batches that read these next.
_PER_ROW = 52
_AHEAD = 8  # one part of so many of the cache is the memory of the batches drawn ahead
_PER_EDGE = 1100  # bytes of an in-edge in a chunk of an evaluation, and of the row that it brings
_OF_ROWS = 0.5  # largest share of free memory for rows that last, beside activations
_OF_CACHE = 0.1  # the same, of what stays of rows on disk
_WRITTEN = 64  # bytes of the leader for each node, where rows of all nodes are written


def placed(asked: Preparation, found: Prepared) -> Prepared:
    """Chooses where the rows of features lie, and says why.

    Raises `UserError` for a choice that this host has no memory for, with what fits.
    """
    settings, needs = asked.settings, asked.needs
    features = settings.features
    if needs.rows_last:
        return _lasting(asked, found)
    if settings.inputs != "features" or not needs.reads_disk:
        return replace(found, place="mapped")
    size, rest, dense = _sizes(asked, found.parts(asked.folder))
    free, ranks, programs = available_memory(), settings.workers_here, _programs(asked, found)
    if programs > free:
        raise UserError(_too_little(asked, programs, free))
    room = free - rest - programs
    place, why = features.place, f"features.place={features.place}"
    if place == AUTO:
        place = "memory" if size <= room or not (needs.may_stay and dense) else "disk"
        why = f"features.place=auto: {_spelt(size)} and {_spelt(max(room, 0))} are free for these"
    if place == "memory" and size > room and features.place != AUTO:
        raise UserError(
            f"features.place=memory: the features are {_spelt(size)}, and {_spelt(max(room, 0))} of memory are free for "
            "these: use features.place=disk"
        )
    if place != "disk":
        told = {"memory": "read into memory before the first step", "mapped": "mapped"}[place]
        return replace(found, place=place, summary=f"{found.summary}\nfeatures: {told} ({why})")
    # Edges are mapped and leave half of the memory. What it does not hold is read anew
    left = free - programs
    cache = _cache(asked, size, (left - min(rest, left / 2)) / ranks, found)
    line = f"features: on disk, each worker keeps {_spelt(cache)} of them, policy={features.policy} ({why})"
    return replace(found, place=place, cache=cache, summary=f"{found.summary}\n{line}")


def _lasting(asked: Preparation, found: Prepared) -> Prepared:
    """Chooses for rows that are the same in each epoch.

    Each rank reads its own rows into its memory once, or from disk in each pass.
    Activations want memory too. So rows go there where they take a share of it.
    """
    settings, features = asked.settings, asked.settings.features
    size, _, dense = _sizes(asked, found.parts(asked.folder))
    free, ranks = available_memory(), settings.workers_here
    here = size if asked.needs.shares_all else size * ranks // settings.workers
    place, why = features.place, f"features.place={features.place}"
    if place == AUTO:
        place = "disk" if asked.needs.may_stay and dense and here > free * _OF_ROWS else "memory"
        why = f"features.place=auto: {_spelt(here)} of rows, and {_spelt(free)} of memory are free"
    if place != "disk":
        if here > free and features.place != AUTO:
            raise UserError(
                f"features.place=memory: the features are {_spelt(here)}, and {_spelt(free)} of memory are free: use "
                "features.place=disk"
            )
        return replace(found, place="mapped")
    cache = _cache(asked, size, free / ranks, found)
    if features.cache is None:
        cache = min(cache, int(free / ranks * _OF_CACHE))
    line = f"features: on disk, each worker keeps {_spelt(cache)} of them and reads the others in each pass ({why})"
    return replace(found, place=place, cache=cache, summary=f"{found.summary}\n{line}")


def _programs(asked: Preparation, found: Prepared) -> int:
    """Returns the bytes that the processes of this host take, without cached rows."""
    settings, ranks = asked.settings, asked.settings.workers_here
    processes, nodes = min(settings.processes or ranks, ranks), found.num_nodes
    own = processes * (BASE + _PER_NODE * nodes) + ranks * _RANK
    if not asked.needs.shares_all:
        return own
    chunk = min(settings.trainer.evaluation_memory * 2**20, found.num_edges * _PER_EDGE / settings.workers)
    written = nodes * (4 * max(found.num_classes, 1) * ranks // settings.workers + _WRITTEN) if settings.write else 0
    return own + int(ranks * chunk) + written


def _too_little(asked: Preparation, programs: int, free: float) -> str:
    """Says what a run needs, and what needs less."""
    settings, ranks = asked.settings, asked.settings.workers_here
    processes, cures = min(settings.processes or ranks, ranks), []
    if asked.needs.shares_all:
        cures = ["a smaller trainer.evaluation_memory", *(["write=[]"] if settings.write else [])]
    if processes > 1:
        cures.append(f"fewer processes (workers=1 parts={settings.workers})")
    return (
        f"workers={processes}: the processes of this host need {_spelt(programs)} of memory beside features, and "
        f"{_spelt(free)} is free: use {', or '.join([*cures, 'a machine with more'])}"
    )


def _cache(asked: Preparation, size: int, room: float, found: Prepared) -> int:
    """Returns the bytes of rows that each rank keeps.

    Args:
        asked: The preparation.
        size: Bytes of all features.
        room: Bytes of a rank for these.
        found: Says how many nodes there are.
    """
    given, shares = asked.settings.features.cache, asked.needs.shares_all
    own = size if shares else size // asked.settings.workers
    row = max(size / max(found.num_nodes, 1), 1)
    factor = 1 + _PER_ROW / row + 1 / _AHEAD  # bytes of a cache for each byte of its rows
    chosen = max(int(min(room / 2 / factor, own)), 0) if given is None else min(given, own)
    if given is not None and chosen * factor > room:
        raise UserError(
            f"features.cache={_spelt(given)} for each worker of this host: a worker has {_spelt(max(room, 0))} of memory for "
            f"rows, and {factor:.1f} bytes go with each byte of the cache: features.cache={int(max(room, 0) / factor / 2e6)}MB "
            "fits, and fewer workers have more"
        )
    return chosen


def _sizes(asked: Preparation, parts: Parts) -> tuple[int, int, bool]:
    """Sums the files that ranks of a host read: features, and the rest.

    Also says whether features have their zeros.
    """
    ranks = [str(rank) for rank in range(asked.settings.workers)]
    holders = [GRAPH] if asked.needs.shares_all or parts.of_ranges else ranks
    others = [*ranks, GRAPH] if asked.needs.graph else ranks
    sizes = {name: [(path.stem, path.stat().st_size) for path in parts.files(name)] for name in {*holders, *others}}
    features = sum(size for name in holders for stem, size in sizes[name] if stem.startswith("feature"))
    rest = sum(size for name in others for stem, size in sizes[name] if not stem.startswith("feature"))
    dense = all(stem != "feature_width" for name in holders for stem, _ in sizes[name])
    return features, rest, dense


def _spelt(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.3g} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.3g} MB"
