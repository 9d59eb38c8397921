"""Training that goes on after ranks have died: `restarts=N`, in the launching process.

Ranks live and end together. So after a failure all are started again, from the newest
whole checkpoint of the run folder.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gnnkit.jobs.rank_job import RankJob, Start
from gnnkit.launcher import Failure, RankError
from gnnkit.ranges import one_line
from gnnkit.result.folder import FAILURE, PREPARED
from gnnkit.training import checkpoint, resume

FIRST_STEP = "first-step-{number}"  # file in PREPARED: seconds from the failure to the first step
_VOLATILE = re.compile(r"0x[0-9a-f]+|:\d{4,5}\b|\d+(\.\d+)? s\b")  # addresses, ports and times in a cause


@dataclass(frozen=True, slots=True)
class Restart:
    """One failure, and the place where training goes on."""

    failure: Failure
    position: tuple[int, int, int] | None  # epoch, step of the epoch, steps of the run. None: no checkpoint

    @property
    def is_from(self) -> str:
        """Says the place for people."""
        if self.position is None:
            return "training starts from the beginning"
        epoch, _, steps = self.position
        return f"training goes on after step {steps} (epoch {epoch + 1})"

    def repeats(self, before: Restart) -> bool:
        """Whether the same has happened at the same step, and no checkpoint between."""
        return self._key == before._key

    @property
    def _key(self) -> tuple[Any, ...]:
        failure = self.failure
        return failure.name, _VOLATILE.sub("", failure.cause), failure.step, self.position


def restarting(start: Callable[[RankJob], dict[str, Any]], job: RankJob) -> dict[str, Any]:
    """Starts the ranks, and again after each failure, at most `restarts` times.

    Returns the leader's figures, and `restarts` and `restarted` beside. Raises the last
    `RankError` with a line for each restart. A `UserError` ends the run at once, as
    does a signal.

    Args:
        start: Starts all ranks, and returns the leader's figures.
        job: The work of a rank.
    """
    done: list[Restart] = []
    begun = Start(f"{os.getpid()} {time.time_ns()}", time.monotonic())
    while True:
        try:
            found = start(_from_checkpoint(job, replace(begun, number=len(done)), done))
            return found | _figures(done, job.folder)
        except RankError as error:
            done.append(_after(error, job, done))


def _from_checkpoint(job: RankJob, start: Start, done: Sequence[Restart]) -> RankJob:
    """Returns the job of one more start, from the newest checkpoint if one is whole."""
    if not done:
        return replace(job, start=start)
    settings, last = job.settings, done[-1]
    if last.position is not None:
        trainer = replace(settings.trainer, resume=str(job.folder))
        settings = replace(settings, trainer=trainer, on_exists="resume")
    return replace(job, settings=settings, start=replace(start, failed_at=last.failure.at))


def _after(error: RankError, job: RankJob, done: Sequence[Restart]) -> Restart:
    """Says that the ranks start again. Raises `RankError` where these do not."""
    most, number = job.settings.restarts, len(done) + 1
    restart = Restart(error.failure, _newest(job.folder))
    if done and restart.repeats(done[-1]):
        raise RankError(_ended(error, "the same failure came twice at the same step", most, done), error.failure)
    if number > most:
        raise RankError(_ended(error, "no restart is left", most, done), error.failure)
    try:
        (job.folder / FAILURE.format(number=number)).write_text(f"{error}\n", encoding="utf-8")
    except OSError as full:  # no reason not to start again
        print(f"gnnkit: {full}, so the report of the failure stands here:\n{error}", file=sys.stderr, flush=True)
    print(
        f"gnnkit: restart {number} of {most}: {_spelt(error.failure)}: {restart.is_from}", file=sys.stderr, flush=True
    )
    return restart


def _newest(folder: Path) -> tuple[int, int, int] | None:
    """Returns the place of the newest whole checkpoint, and says what is damaged."""
    path = folder / resume.FILE
    is_whole, problems = checkpoint.use_newest_whole(path)
    for problem in problems:
        print(f"gnnkit: {problem}", file=sys.stderr, flush=True)
    return resume.position(path) if is_whole else None


def _spelt(failure: Failure) -> str:
    at = "before the first step" if failure.step is None else f"in step {failure.step} (epoch {failure.epoch})"
    return f"{one_line(failure.cause)}, {at}"


def _ended(error: RankError, why: str, most: int, done: Sequence[Restart]) -> str:
    """Returns the message of the last failure, with all restarts before."""
    lines = [f"  restart {number}: {_spelt(each.failure)}: {each.is_from}" for number, each in enumerate(done, 1)]
    return "\n".join([f"{error}", f"restarts={most}: {why} ({_spelt(error.failure)})", *lines])


def _figures(done: Sequence[Restart], folder: Path) -> dict[str, Any]:
    """Returns the restarts for `result.json`."""
    restarted = [
        {
            "cause": each.failure.cause,
            "rank": each.failure.name,
            "step": each.failure.step,
            "epoch": each.failure.epoch,
            "from_step": 0 if each.position is None else each.position[2],
            "seconds_lost": _seconds_lost(folder, number),
        }
        for number, each in enumerate(done, 1)
    ]
    return {"restarts": len(done), "restarted": restarted}


def _seconds_lost(folder: Path, number: int) -> float | None:
    """Returns seconds from the failure to the first step. None where none followed."""
    try:
        return float((folder / PREPARED / FIRST_STEP.format(number=number)).read_text())
    except (OSError, ValueError):
        return None
