"""The figures of one run, from the files of the run folder."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from gnnkit.documents import parse_json, read_object
from gnnkit.result.folder import EPOCHS
from gnnkit.task import Task

SHARE = 0.99  # of the best validation figure, which time is measured to
STEPS = "workers.jsonl"
_PARTS = ("wait", "compute", "exchange", "sync")  # of a step's seconds
Curve = Sequence[tuple[float, float]]  # seconds of training, validation figure


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of one run that ways are compared by."""

    test: float | None  # of the saved model
    epochs: int
    seconds_per_epoch: float | None  # median without the first one
    bytes_per_epoch: float | None  # rows that the busiest worker sends. Gradients are not counted
    memory: int | None  # bytes, peak of the busiest worker
    curve: Curve


def read(folder: Path, task: Task) -> Measured:
    """Reads a run folder with a result. A resumed run has its earlier parts counted."""
    result = read_object(folder / "result.json")
    parts = [*sorted(folder.glob("earlier-*"), key=_number), folder]
    states = [state for part in parts for state in _lines(part / STEPS)]
    reached = training_seconds(states)
    evaluated = {
        line["epoch"]: line["figures"] for part in parts for line in _lines(part / EPOCHS) if "figures" in line
    }
    curve = [
        (reached[epoch], figures[task.progress])
        for epoch, figures in sorted(evaluated.items())
        if epoch in reached and figures.get(task.progress) is not None
    ]
    return Measured(
        test=result.get(f"test_{task.metrics[0]}"),
        epochs=len(reached),
        seconds_per_epoch=result.get("seconds_per_epoch"),
        bytes_per_epoch=result.get("bytes_sent"),
        memory=max((state["memory"] for state in states), default=None),
        curve=curve,
    )


def training_seconds(states: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    """Returns the seconds from the first step to the end of each epoch, by epoch.

    Of the slowest worker, without evaluations.

    Args:
        states: The lines of `workers.jsonl`.
    """
    seconds: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))  # by rank and epoch
    for state in states:
        seconds[state["rank"]][state["epoch"]] += sum(state[f"seconds_{part}"] for part in _PARTS)
    slowest: dict[int, float] = defaultdict(float)
    for epochs in seconds.values():
        order = sorted(epochs)
        for epoch, reached in zip(order, accumulate(epochs[each] for each in order), strict=True):
            slowest[epoch] = max(slowest[epoch], reached)
    return dict(sorted(slowest.items()))


def best(curve: Curve, *, lower_is_better: bool = False) -> float | None:
    """Returns the best validation figure, None without any."""
    values = [value for _, value in curve]
    return (min if lower_is_better else max)(values, default=None)


def target(best: float, *, lower_is_better: bool = False) -> float:
    """Returns 99 % of a figure. An error counts as its inverse."""
    return best / SHARE if lower_is_better else best * SHARE


def seconds_to(curve: Curve, target: float, *, lower_is_better: bool = False) -> float | None:
    """Returns the seconds of training until a validation reached a figure."""
    reached = (at for at, value in curve if (value <= target if lower_is_better else value >= target))
    return next(reached, None)


def _number(folder: Path) -> int:
    number = folder.name.rpartition("-")[2]
    return int(number) if number.isdigit() else 0


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.is_file():
        with path.open(encoding="utf-8") as lines:
            yield from (parse_json(line, str(path)) for line in lines)
