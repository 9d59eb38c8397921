"""Cuts the graph again while the ranks train: a program, and the wait for it.

The leader's process has native threads by now, so it cannot fork. The program is a
fresh process that imports neither torch nor plugins, and ends with its memory. Requests
and answers are JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gnnkit.documents import read_object
from gnnkit.graph import Floats, Graph
from gnnkit.launch.entry import die_with_parent
from gnnkit.launch.watchdog import Patience, Watchdog
from gnnkit.partition.base import Partition
from gnnkit.partition.quality import Quality, measure
from gnnkit.partition.shard import cut_all
from gnnkit.partition.shift import shifted, work_of
from gnnkit.prepare import picture
from gnnkit.prepare.rebalanced import load_partition, save_partition
from gnnkit.result.folder import COORDINATION, PICTURE, PREPARED, SOURCE
from gnnkit.storage import passing, write_atomically

WORTH = 0.85  # predicted over measured seconds of a step, at most
PAYS = 2.0  # times that the seconds saved must exceed the cost, at least
POLL = 0.1  # seconds
_NOTHING = 1e-9  # seconds


@dataclass(frozen=True, slots=True)
class Request:
    """What the program must know."""

    folder: str  # the run folder
    name: str  # of the folder of the new shards, in the folder of the shards
    seconds: list[float]  # [world_size] that each rank computes in a step
    steps: int  # that are left
    cost: float  # seconds that the change takes


@dataclass(frozen=True, slots=True)
class Recut:
    """The answer: the work of each rank, and how the graph was cut anew."""

    speeds: list[float]  # [world_size] work in a second, in sums of an edge
    before: float  # seconds of the slowest rank in a step
    after: float  # the same, predicted
    moved: int  # nodes that have another owner. 0: the graph was not cut
    balance: dict[str, float]  # largest over mean of the new shares


def pays(before: float, after: float, steps: int, cost: float) -> bool:
    """Says whether a change of the work is worth its cost.

    Args:
        before: Seconds of a step.
        after: Seconds of a step after the change.
        steps: Steps that are left.
        cost: Seconds that the change takes.
    """
    return after <= WORTH * before and (before - after) * steps > PAYS * cost


def recut(request: Request) -> Recut:
    """Deals out the work by speeds, and writes new shards where this pays."""
    folder = Path(request.folder)
    graph = Graph.load(folder / PREPARED / SOURCE)
    partition, meta = load_partition(folder)
    seconds = np.maximum(request.seconds, _NOTHING)
    work = work_of(graph, partition)
    speeds = _speeds(work, seconds)
    changed = shifted(graph, partition, speeds)
    before, after = float(seconds.max()), float((work_of(graph, changed) / speeds).max())
    moved = int(np.count_nonzero(changed.node_rank != partition.node_rank))
    moves = moved or partition.edge_cell is not None
    if not moves or not pays(before, after, request.steps, request.cost):
        return Recut(speeds.tolist(), before, after, 0, {})
    quality = _write(folder, request.name, graph, changed)
    save_partition(folder, changed, {**meta, "rebalanced": True})
    if (folder / PICTURE).exists():
        picture.save(graph, changed, folder)
    balance = {name: quality.balance()[name] for name in ("nodes", "edges", "train_nodes")}
    return Recut(speeds.tolist(), before, after, max(moved, 1), balance)


def _speeds(work: Floats, seconds: Floats) -> Floats:  # [world_size]
    """Returns work in a second. A rank without work is as fast as the median rank."""
    busy = work > 0
    speeds: Floats = np.where(busy, work / seconds, np.median(work[busy] / seconds[busy]))
    return speeds


def _write(folder: Path, name: str, graph: Graph, partition: Partition) -> Quality:
    """Writes the new shards, and tells `coordination.json` of the regions.

    Args:
        folder: The run folder.
        name: Of the folder of the new shards.
        graph: The graph.
        partition: The new partition.
    """
    with passing():
        for shard in cut_all(graph, partition):
            shard.save(folder / PREPARED / name / str(shard.rank))
    quality = measure(graph, partition)
    report, path = quality.to_dict(), folder / COORDINATION
    if path.exists():
        known = read_object(path) | {key: report[key] for key in ("regions", "peers")}
        write_atomically(path, json.dumps(known).encode())
    return quality


class _Process:
    """The program, as the watchdog sees it."""

    name, count, phase, training = "the process that cuts the graph anew", 0, "cutting", False

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    @property
    def pid(self) -> int:
        return self.process.pid


def run_recut(request: Request, patience: Patience, meanwhile: Callable[[], None]) -> Recut:
    """Runs `recut` in a fresh process. Ends the process always.

    Raises `RuntimeError` that says what became of the process, if it fails or hangs.

    Args:
        request: What the program must know.
        patience: How long to wait for a process that is stopped, idle, or computes.
        meanwhile: Called a few times a second.
    """
    with _started() as process:
        watchdog, watched = Watchdog(patience), _Process(process)
        text: str | None = json.dumps(asdict(request))
        while True:
            try:
                answer, _ = process.communicate(text, timeout=POLL)
                break
            except subprocess.TimeoutExpired:
                text = None  # only the first call takes it
                meanwhile()
            if stuck := watchdog.look([watched]):
                raise RuntimeError(stuck)
    if process.returncode:
        raise RuntimeError(f"{watched.name} {_spelt(process.returncode)}")
    return Recut(**json.loads(answer))


@contextlib.contextmanager
def _started() -> Iterator[subprocess.Popen[str]]:
    """Starts the program, and kills it where nobody waits for the answer any more."""
    paths = os.pathsep.join(path for path in sys.path if path)
    argv = [sys.executable, "-P", "-m", "gnnkit.prepare.recut", str(os.getpid())]
    environment = {**os.environ, "PYTHONPATH": paths}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    try:
        process = subprocess.Popen(argv, **pipes, text=True, env=environment)
    except OSError as error:
        raise RuntimeError(f"cannot start {_Process.name}: {error}") from error
    with process:
        try:
            yield process
        finally:
            process.kill()


def _spelt(code: int) -> str:
    """Says how a process has ended."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def main() -> None:
    """Answers the request on standard input."""
    die_with_parent(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group, and the leader decides
    sys.stdout.write(json.dumps(asdict(recut(Request(**json.load(sys.stdin))))))


if __name__ == "__main__":
    main()
