"""The loop of a process that takes training steps, and the clock of their parts."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from serve import Case, peak_bytes

PARTS = ("sample", "gather", "forward", "backward", "rest")
NUM_CLASSES, DROPOUT, LR = 47, 0.5, 1e-3
WARM_UP = 2


@dataclass(frozen=True)
class Job:
    case: Case
    hidden: int
    dropout: float

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> Job:
        """Reads a request."""
        return cls(Case.of(request), request["hidden"], request["dropout"])

    @property
    def widths(self) -> list[int]:
        """Columns before the first layer and after each."""
        layers = len(self.case.fanouts)
        return [self.case.load("features").shape[1], *[self.hidden] * (layers - 1), NUM_CLASSES]

    def labels(self) -> np.ndarray:  # [num_nodes] int64
        num_nodes = len(self.case.load("features"))
        return self.case.cached("labels", lambda: np.random.default_rng(0).integers(0, NUM_CLASSES, num_nodes))


class Clock:
    """Adds up the seconds of each part."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.seconds[part] += time.perf_counter() - begin


J = TypeVar("J")
Step = Callable[[int, Clock], None]  # of the number of a batch
Maker = Callable[[Job], Step]


def epoch_step(optimizer: Any, loss: Callable[[], Any]) -> Step:
    """Makes the step of an epoch of one batch. `loss` computes the forward pass."""

    def step(number: int, clock: Clock) -> None:
        with clock("forward"):
            value = loss()
        with clock("backward"):
            value.backward()
        with clock("rest"):
            optimizer.step()
            optimizer.zero_grad()

    return step


def serve_steps(
    makers: Mapping[str, Callable[[J], Step]],
    versions: str,
    read: Callable[[Mapping[str, Any]], J] = Job.of,
) -> None:
    """Says what it offers, then answers requests until stdin ends.

    Args:
        makers: Make the step of a job, by name.
        versions: Of the libraries.
        read: Reads the job of a request. Jobs that are equal go on with one model.
    """
    answers, sys.stdout = sys.stdout, sys.stderr
    print(json.dumps({"methods": list(makers), "versions": versions}), file=answers, flush=True)
    steps: dict[tuple[str, J], Step] = {}  # a model and its optimiser go on in the next round
    for line in sys.stdin:
        request = json.loads(line)
        name, first, job = request["method"], request["first"], read(request)
        if (name, job) not in steps:
            steps.clear()  # before the next model takes memory
            steps[name, job] = makers[name](job)
            first -= WARM_UP
        clocks, cpu = [], []
        for number in range(first, request["first"] + request["count"]):
            clocks.append(Clock())
            begin = time.process_time()
            steps[name, job](number, clocks[-1])
            cpu.append(time.process_time() - begin)
        count = request["count"]
        answer = {"parts": [clock.seconds for clock in clocks[-count:]], "cpu": cpu[-count:], "peak": peak_bytes()}
        print(json.dumps(answer), file=answers, flush=True)
