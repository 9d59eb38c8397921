"""Placement of feature rows during training: in memory, mapped, or on disk."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gnnkit.config.settings import AUTO
from gnnkit.errors import UserError
from gnnkit.partition.store.parts import GRAPH
from gnnkit.prepare.facts import Preparation, Prepared
from gnnkit.utils.memory import available_memory

if TYPE_CHECKING:
    from gnnkit.partition.store.parts import RankParts

BASE = 400 << 20  # bytes of a process without data
_RANK = 50 << 20  # bytes of a rank's current batches
_PER_NODE = 6  # bytes per node and process: train masks, and page tables of mapped files
# Bytes of a cache per row, in addition to the row itself: slots, positions, and the
# batches that read the row next.
_PER_ROW = 52
_AHEAD = 8  # prefetched batches take 1/_AHEAD of the cache's size
_PER_EDGE = 1100  # bytes of an in-edge in an evaluation chunk, including the row that it reads
_WRITTEN = 64  # bytes per node on the leader if all nodes' rows are written


def place_features(request: Preparation, facts: Prepared) -> Prepared:
    """Chooses where feature rows are placed, and describes the reason.

    Raises `UserError` if the host has too little memory for the configured placement.
    """
    settings, needs = request.settings, request.needs
    features = settings.features
    if needs.rows_last:
        return _place_persistent_rows(request, facts)
    if settings.inputs != "features" or not needs.reads_disk:
        return replace(facts, place="mapped")
    size, other_bytes, dense = _file_sizes(request, facts.parts(request.folder))
    free, ranks, programs = available_memory(), settings.workers_here, _process_bytes(request, facts)
    if programs > free:
        raise UserError(_memory_message(request, programs, free))
    room = free - other_bytes - programs
    place, reason = features.place, f"features.place={features.place}"
    if place == AUTO:
        place = "memory" if size <= room or not (needs.may_stay and dense) else "disk"
        reason = f"features.place=auto: {_format_bytes(size)} and {_format_bytes(max(room, 0))} are free for them"
    if place == "memory" and size > room and features.place != AUTO:
        raise UserError(
            f"features.place=memory: the features are {_format_bytes(size)}, and {_format_bytes(max(room, 0))} of memory are free "
            "for them: use features.place=disk"
        )
    if place != "disk":
        description = {"memory": "read into memory before the first step", "mapped": "mapped"}[place]
        return replace(facts, place=place).with_notes(f"features: {description} ({reason})")
    # Mapped edges may use half of the memory, and pages that do not fit are read again.
    memory = free - programs
    cache = _cache_bytes(request, size, (memory - min(other_bytes, memory / 2)) / ranks, facts)
    line = f"features: on disk, each worker keeps {_format_bytes(cache)} of them ({reason})"
    return replace(facts, place=place, cache=cache).with_notes(line)


def _place_persistent_rows(request: Preparation, facts: Prepared) -> Prepared:
    """Chooses the placement of rows that are the same in each epoch.

    Each rank loads its rows into memory once, or reads them from disk in each pass.
    Activations need memory too, so large rows stay on disk.
    """
    settings, features = request.settings, request.settings.features
    size, _, dense = _file_sizes(request, facts.parts(request.folder))
    free, ranks = available_memory(), settings.workers_here
    host_size = size if request.needs.shares_all else size * ranks // settings.workers
    place, reason = features.place, f"features.place={features.place}"
    if place == AUTO:
        # Half of the free memory is left for activations.
        place = "disk" if request.needs.may_stay and dense and host_size > free * 0.5 else "memory"
        memory = f"{_format_bytes(free)} of memory are free"
        reason = f"features.place=auto: {_format_bytes(host_size)} of rows, and {memory}"
    if place != "disk":
        if host_size > free and features.place != AUTO:
            raise UserError(
                f"features.place=memory: the features are {_format_bytes(host_size)}, and {_format_bytes(free)} of memory are free: use "
                "features.place=disk"
            )
        return replace(facts, place="mapped")
    cache = _cache_bytes(request, size, free / ranks, facts)
    if features.cache is None:
        cache = min(cache, int(free / ranks * 0.1))
    line = f"features: on disk, each worker keeps {_format_bytes(cache)} of them and reads the others in each pass ({reason})"
    return replace(facts, place=place, cache=cache).with_notes(line)


def _process_bytes(request: Preparation, facts: Prepared) -> int:
    """Returns the memory of this host's processes in bytes, without cached rows."""
    settings, ranks = request.settings, request.settings.workers_here
    processes, nodes = min(settings.processes or ranks, ranks), facts.num_nodes
    num_bytes = processes * (BASE + _PER_NODE * nodes) + ranks * _RANK
    if not request.needs.shares_all:
        return num_bytes
    chunk = min(settings.trainer.evaluation_memory * 2**20, facts.num_edges * _PER_EDGE / settings.workers)
    outputs = nodes * (4 * max(facts.num_classes, 1) * ranks // settings.workers + _WRITTEN) if settings.write else 0
    return num_bytes + int(ranks * chunk) + outputs


def _memory_message(request: Preparation, programs: int, free: float) -> str:
    """Returns a message with the memory that a run needs, and ways to need less."""
    settings, ranks = request.settings, request.settings.workers_here
    processes, remedies = min(settings.processes or ranks, ranks), []
    if request.needs.shares_all:
        remedies = ["a smaller trainer.evaluation_memory", *(["write=[]"] if settings.write else [])]
    if processes > 1:
        remedies.append(f"fewer processes (workers=1 parts={settings.workers})")
    return (
        f"workers={processes}: the processes of this host need {_format_bytes(programs)} of memory in addition to features, and "
        f"{_format_bytes(free)} is free: use {', or '.join([*remedies, 'a machine with more'])}"
    )


def _cache_bytes(request: Preparation, size: int, room: float, facts: Prepared) -> int:
    """Returns the bytes of rows that each rank caches.

    Args:
        facts: Facts, which include the number of nodes.
    """
    limit, shares = request.settings.features.cache, request.needs.shares_all
    rank_size = size if shares else size // request.settings.workers
    row = max(size / max(facts.num_nodes, 1), 1)
    factor = 1 + _PER_ROW / row + 1 / _AHEAD  # bytes of a cache per byte of its rows
    num_bytes = max(int(min(room / 2 / factor, rank_size)), 0) if limit is None else min(limit, rank_size)
    if limit is not None and num_bytes * factor > room:
        raise UserError(
            f"features.cache={_format_bytes(limit)}: each worker on this host has {_format_bytes(max(room, 0))} of memory "
            f"for rows, and a cache takes {factor:.1f} bytes per byte of rows; use "
            f"features.cache={int(max(room, 0) / factor / 2e6)}MB or fewer workers"
        )
    return num_bytes


def _file_sizes(request: Preparation, parts: RankParts) -> tuple[int, int, bool]:
    """Sums the files that a host's ranks read: features, and all others.

    Also returns whether features are dense.
    """
    ranks = [str(rank) for rank in range(request.settings.workers)]
    holders = [GRAPH] if request.needs.shares_all or parts.of_ranges else ranks
    readers = [*ranks, GRAPH] if request.needs.graph else ranks
    sizes = {name: [(path.stem, path.stat().st_size) for path in parts.files(name)] for name in {*holders, *readers}}
    features = sum(size for name in holders for stem, size in sizes[name] if stem.startswith("feature"))
    other_bytes = sum(size for name in readers for stem, size in sizes[name] if not stem.startswith("feature"))
    dense = all(stem != "feature_width" for name in holders for stem, _ in sizes[name])
    return features, other_bytes, dense


def _format_bytes(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.3g} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.3g} MB"
