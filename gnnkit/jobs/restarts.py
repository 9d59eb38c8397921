"""Restarts after failures (`restarts=N`), and what a checkpoint holds for later starts.

Ranks start and end together. After a failure, the launching process starts all of them
again from the newest valid checkpoint in the run folder.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnkit.callback import Leader
from gnnkit.config.settings import Choice
from gnnkit.jobs.rank_job import RankJob, Start
from gnnkit.launch.launcher import Failure, RankError
from gnnkit.result.figures import Restarts, merge
from gnnkit.result.result import FAILURE, PREPARED
from gnnkit.training import checkpoint, resume
from gnnkit.training.resume import Identity, SavedState
from gnnkit.utils.documents import Json
from gnnkit.utils.ranges import one_line

if TYPE_CHECKING:
    from gnnkit.jobs.rank_run import RankRun

FIRST_STEP = "first-step-{number}"  # file in PREPARED with the seconds from the failure to the first step
_VOLATILE = re.compile(r"0x[0-9a-f]+|:\d{4,5}\b|\d+(\.\d+)? s\b")  # addresses, ports and times in a cause


@dataclass(frozen=True, slots=True)
class Restart:
    """A failure, and the checkpoint position from which training resumes."""

    failure: Failure
    position: tuple[int, int, int] | None  # (epochs done, step in the epoch, total steps), or None without a checkpoint

    @property
    def is_from(self) -> str:
        """Describes the position in a sentence."""
        if self.position is None:
            return "training starts from the beginning"
        epoch, _, steps = self.position
        return f"training resumes after step {steps} (epoch {epoch + 1})"

    def repeats(self, before: Restart) -> bool:
        """Whether the same failure occurred at the same step and checkpoint."""
        return self._key == before._key

    @property
    def _key(self) -> tuple[object, ...]:
        failure = self.failure
        return failure.name, _VOLATILE.sub("", failure.cause), failure.step, self.position


def restarting(start: Callable[[RankJob], Json], job: RankJob) -> Json:
    """Starts the ranks, and restarts them up to `restarts` times after failures.

    Returns the leader's figures with `restarts` and `restarted`. Raises the last
    `RankError`, with a line for each restart. `UserError` and signals end the run at
    once.

    Args:
        start: Starts all ranks, and returns the leader's figures.
        job: The work of a rank.
    """
    done: list[Restart] = []
    first_start = Start(f"{os.getpid()} {time.time_ns()}", time.monotonic())
    while True:
        try:
            result = start(_from_checkpoint(job, replace(first_start, number=len(done)), done))
            return merge(result, _figures(done, job.folder))
        except RankError as error:
            done.append(_record_restart(error, job, done))


def _from_checkpoint(job: RankJob, start: Start, done: Sequence[Restart]) -> RankJob:
    """Returns the job of the next start, from the newest valid checkpoint."""
    if not done:
        return replace(job, start=start)
    settings, last = job.settings, done[-1]
    if last.position is not None:
        trainer = replace(settings.trainer, resume=str(job.folder))
        settings = replace(settings, trainer=trainer, on_exists="resume")
    return replace(job, settings=settings, start=replace(start, failed_at=last.failure.at))


def _record_restart(error: RankError, job: RankJob, done: Sequence[Restart]) -> Restart:
    """Records and prints a restart. Raises `RankError` if none is allowed."""
    max_restarts, number = job.settings.restarts, len(done) + 1
    restart = Restart(error.failure, _find_newest(job.folder))
    if done and restart.repeats(done[-1]):
        raise RankError(
            _final_message(error, "the same failure occurred twice at the same step", max_restarts, done), error.failure
        )
    if number > max_restarts:
        raise RankError(_final_message(error, "no restart is left", max_restarts, done), error.failure)
    try:
        (job.folder / FAILURE.format(number=number)).write_text(f"{error}\n", encoding="utf-8")
    except OSError as full:  # a full disk does not prevent a restart
        print(f"gnnkit: {full}, so the failure report is printed here:\n{error}", file=sys.stderr, flush=True)
    print(
        f"gnnkit: restart {number} of {max_restarts}: {_describe(error.failure)}: {restart.is_from}",
        file=sys.stderr,
        flush=True,
    )
    return restart


def _find_newest(folder: Path) -> tuple[int, int, int] | None:
    """Returns the position of the newest valid checkpoint, and prints damaged ones."""
    path = folder / resume.FILE
    is_whole, problems = checkpoint.use_newest_whole(path)
    for problem in problems:
        print(f"gnnkit: {problem}", file=sys.stderr, flush=True)
    return resume.position(path) if is_whole else None


def _describe(failure: Failure) -> str:
    at = "before the first step" if failure.step is None else f"in step {failure.step} (epoch {failure.epoch})"
    return f"{one_line(failure.cause)}, {at}"


def _final_message(error: RankError, reason: str, max_restarts: int, done: Sequence[Restart]) -> str:
    """Returns the last failure's message, followed by all restarts."""
    lines = [
        f"  restart {number}: {_describe(restart.failure)}: {restart.is_from}" for number, restart in enumerate(done, 1)
    ]
    return "\n".join([f"{error}", f"restarts={max_restarts}: {reason} ({_describe(error.failure)})", *lines])


def _figures(done: Sequence[Restart], folder: Path) -> Restarts:
    """Returns the restarts for `result.json`."""
    entries = [
        {
            "cause": restart.failure.cause,
            "rank": restart.failure.name,
            "step": restart.failure.step,
            "epoch": restart.failure.epoch,
            "from_step": 0 if restart.position is None else restart.position[2],
            "seconds_lost": _seconds_lost(folder, number),
        }
        for number, restart in enumerate(done, 1)
    ]
    return Restarts(len(done), entries)


def _seconds_lost(folder: Path, number: int) -> float | None:
    """Returns seconds from the failure to the next step, or None if there was none."""
    try:
        return float((folder / PREPARED / FIRST_STEP.format(number=number)).read_text())
    except (OSError, ValueError):
        return None


class RunRecord:
    """The figures up to a checkpoint, as state of the leader callback.

    After a restart, the figures are those of an uninterrupted run. They are restored
    only in the same run. A run that resumes another one starts counting from zero.
    """

    def __init__(self, run: RankRun) -> None:
        """Stores the run of this rank, which has a site."""
        assert run.job.start is not None
        self.run, self.start, self.watch = run, run.job.start, run.site.watch
        self._step, self._is_restored, self._waits = 0, False, self.start.number > 0

    def end_step(self, step: int) -> None:
        """Counts a step. The first one also records the duration of a restart."""
        self._step = step
        if self._waits and self.watch is not None:
            path = self.run.folder / PREPARED / FIRST_STEP.format(number=self.start.number)
            path.write_text(f"{time.monotonic() - self.start.failed_at:.3f}")
        self._waits = False

    def begin(self) -> None:
        """Discards figures of the previous start, unless a checkpoint restored them."""
        if self.start.number and not self._is_restored and self.watch is not None:
            self.watch.restore(None)

    def state_dict(self) -> dict[str, object]:
        """Returns the figures of all ranks. Collective."""
        run, comm = self.run, self.run.worker.comm
        leader = None
        if self.watch is not None:
            run.site.channel.catch_up(self._step, run.timeout)
            leader = self.watch.state() | {"marks": run.loggers.mark()}
        counts = {"tally": run.strategy.tally.state(), "skipped": run.guard.skipped_steps}
        ranks = comm.share(comm.gather_json(counts))
        return {
            "run": self.start.run,
            "site": run.site.state(),
            "leader": leader,
            "ranks": ranks,
            "rollbacks": run.guard.rollbacks,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the figures if they belong to an earlier start of this run."""
        if state["run"] != self.start.run:
            return
        run, self._is_restored = self.run, True
        counts = state["ranks"][run.worker.comm.rank]
        run.site.restore(state["site"])
        run.strategy.tally.restore(counts["tally"])
        run.guard.skipped_steps, run.guard.rollbacks = counts["skipped"], state["rollbacks"]
        if self.watch is not None:
            self.watch.restore(state["leader"])


def marks_in(saved_state: SavedState | None, job: RankJob) -> list[object] | None:
    """Returns the loggers' positions in a checkpoint of this run, from any start."""
    state = None if saved_state is None else saved_state["callbacks"].get(Leader.__qualname__)
    if not state or job.start is None or state.get("run") != job.start.run:
        return None
    marks: list[object] = state["leader"]["marks"]
    return marks


_FIXED_KEYS = (
    "precision",
    "optimizer",
    "lr",
    "weight_decay",
    "schedule",
    "warmup_epochs",
    "clip_norm",
    "accumulate",
)  # keys of trainer that must not change
_FREE_ARGUMENTS = ("threads", "prefetch", "topology")  # plugin arguments that do not affect results


def resumable(job: RankJob) -> Identity:
    """Returns the settings that must be equal when a later run resumes this one.

    Epochs, intervals, threads, deadlines and output may change. The number of workers
    may change between epochs. `Resume` compares parameter shapes.
    """
    settings, partition = job.settings, job.settings.partition
    run: dict[str, Any] = _flatten_choice("task", settings.task)  # first, because the data depend on the task
    run |= {"inputs": settings.inputs, "embedding": settings.embedding, "features.scale": settings.features.scale}
    run |= {f"features.{key}": getattr(settings.features, key) for key in ("fill", "text", "degree")}
    run |= {"label_inputs": settings.label_inputs, "learned.weight_decay": settings.learned.weight_decay}
    run |= {"dataset": job.prepared.fingerprint, "seed": settings.seed}
    run |= {f"trainer.{key}": getattr(settings.trainer, key) for key in _FIXED_KEYS}
    if settings.trainer.schedule == "plateau":
        run |= {"trainer.monitor": settings.trainer.monitor}
    run |= _flatten_choice("strategy", settings.strategy) | _flatten_choice("sampler", settings.sampler)
    run |= _flatten_choice("exchange", settings.exchange) | _flatten_choice("sync", settings.sync)
    run |= {"model": job.source.name} if job.model is not None else _flatten_choice("model", settings.model)
    layout: dict[str, Any] = {"workers": settings.workers, **_flatten_choice("partition.nodes", partition.nodes)}
    layout |= {f"partition.{key}": getattr(partition, key) for key in ("grid", "replication", "border")}
    layout |= _flatten_choice("order", settings.order)
    return Identity(_as_json(run), _as_json(layout))


def _flatten_choice(section: str, choice: Choice | None) -> dict[str, object]:
    """Returns a plugin's name and arguments by configuration key."""
    if choice is None:
        return {section: None}
    return {section: choice.name} | {
        f"{section}.{k}": v for k, v in choice.arguments.items() if k not in _FREE_ARGUMENTS
    }


def _as_json(values: Mapping[str, object]) -> dict[str, object]:
    """Returns the values after a round trip through JSON."""
    plain: dict[str, object] = json.loads(json.dumps(values, default=str))
    return plain
