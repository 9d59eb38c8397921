"""The loop of every peer's process: reads requests for batches, and times batches.

A request is one JSON object in a line of stdin.

A peer offers makers by name. A maker takes a case and returns a function that makes
batches, from a first one on, one after the other. Set-up is not timed: the graph is in
memory and `WARM_UP` batches do not count, which also leaves a loader that works ahead
with an empty queue, as nothing is done with what it gives.
"""

from __future__ import annotations

import itertools
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

BATCH_SIZE = 1024
WARM_UP = 3

Size = tuple[int, int]  # edges (of gathers: rows) and distinct nodes of a batch
Batches = Callable[[int], Iterator[Size]]  # from the first batch on


@dataclass(frozen=True)
class Case:
    folder: Path  # of indptr.npy, indices.npy, features.npy and seeds.npy [num_batches, BATCH_SIZE]
    fanouts: tuple[int, ...]  # from the seeds outward
    threads: int

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> Case:
        """Reads a request."""
        return cls(Path(request["folder"]), tuple(request.get("fanouts", ())), request["threads"])

    def load(self, name: str, dtype: type | None = None) -> Any:
        """Loads an array, kept while requests name this graph.

        Not mapped, because NumPy's own memory is on large pages.
        """
        array = self.cached(name, lambda: np.load(self.folder / f"{name}.npy"))
        return array if dtype is None else self.cached(f"{name} {dtype}", lambda: array.astype(dtype, copy=False))

    def cached(self, name: str, make: Callable[[], Any]) -> Any:
        """What `make` returns, made once for this graph."""
        return cached(name, self.folder, make)

    def seeds(self, batch: int) -> Any:  # [BATCH_SIZE] distinct int64
        seeds = self.load("seeds")
        return seeds[batch % len(seeds)]

    def all_seeds(self, first: int) -> Any:  # [many * BATCH_SIZE] distinct int64, for loaders
        return np.concatenate(np.roll(self.load("seeds"), -first, axis=0))


Maker = Callable[[Case], Batches]
_CACHE: dict[tuple[str, Path], Any] = {}


def cached(name: str, folder: Path, make: Callable[[], Any]) -> Any:
    """What `make` returns, made once; what belongs to another graph is dropped."""
    for key in [key for key in _CACHE if key[1] != folder]:
        del _CACHE[key]
    if (name, folder) not in _CACHE:
        _CACHE[name, folder] = make()
    return _CACHE[name, folder]


def one_by_one(make: Callable[[int], Size]) -> Batches:
    """The batches of a sampler that is called for each."""
    return lambda first: map(make, itertools.count(first))


def serve(makers: Mapping[str, Maker], versions: str) -> None:
    """Says what it offers, then answers requests until stdin ends."""
    answers, sys.stdout = sys.stdout, sys.stderr  # what libraries print does not belong among the answers
    print(json.dumps({"methods": list(makers), "versions": versions}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        case = Case.of(request)
        batches = makers[request["method"]](case)(request["first"])
        for _ in range(WARM_UP):
            next(batches)
        times, sizes, cpu = [time.perf_counter()], [], time.process_time()
        for size in itertools.islice(batches, request["count"]):
            sizes.append(size)
            times.append(time.perf_counter())
        cpu = time.process_time() - cpu
        del batches  # ends the threads and processes of a loader
        answer = {"seconds": np.diff(times).tolist(), "sizes": sizes, "cpu": cpu, "peak": peak_bytes()}
        print(json.dumps(answer), file=answers, flush=True)


def peak_bytes() -> int:
    """Returns the peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    raise SystemExit("run benchmarks/peers.py, which starts the peers")
