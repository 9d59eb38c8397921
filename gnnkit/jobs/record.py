"""The figures of a run, kept in its checkpoints for ranks that are started again.

A run that was broken and went on has the figures of an unbroken one: none is lost, and
none counted twice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import torch

from gnnkit.callback import Leader
from gnnkit.jobs.rank_job import RankJob
from gnnkit.jobs.restarts import FIRST_STEP
from gnnkit.result.folder import PREPARED
from gnnkit.training.finite import Guard
from gnnkit.training.module import TrainingModule
from gnnkit.training.resume import Saved
from gnnkit.training.run_site import RunSite


class RunRecord:
    """The figures up to a checkpoint, as state of the leader.

    Only a later start of the same run takes the state. A run that resumes another
    counts from its own begin.
    """

    def __init__(
        self, job: RankJob, module: TrainingModule, site: RunSite, guard: Guard, mark: Callable[[], list[Any]]
    ) -> None:
        """Keeps the parts.

        Args:
            job: The job.
            module: The module of this rank.
            site: Of this rank.
            guard: Of this rank.
            mark: Writes the scalars so far, and returns their end. Of the leader.
        """
        assert job.start is not None
        self.job, self.start, self.module, self.site = job, job.start, module, site
        self.watch, self.guard, self.mark = site.watch, guard, mark
        self._step, self._taken, self._waits = 0, False, self.start.number > 0

    def end_step(self, step: int) -> None:
        """Counts a step. Notes how long a restart took at its first step."""
        self._step = step
        if self._waits and self.watch is not None:
            path = self.job.folder / PREPARED / FIRST_STEP.format(number=self.start.number)
            path.write_text(f"{time.monotonic() - self.start.failed_at:.3f}")
        self._waits = False

    def begin(self) -> None:
        """Takes figures of the start before away, unless a checkpoint brought these."""
        if self.start.number and not self._taken and self.watch is not None:
            self.watch.restore(None)

    def state_dict(self) -> dict[str, Any]:
        """Returns the figures of all ranks. Collective."""
        comm = self.module.worker.comm
        leader = None
        if self.watch is not None:
            self.site.channel.catch_up(self._step, self.job.settings.timeout)
            leader = self.watch.state() | {"marks": self.mark()}
        own = {"tally": self.module.strategy.tally.state(), "skipped": self.guard.skipped_steps}
        text = torch.frombuffer(bytearray(json.dumps(own).encode()), dtype=torch.uint8).to(comm.device)
        ranks = comm.share([json.loads(bytes(each.tolist())) for each in comm.gather(text)])
        joint = self.module.joint_loss
        return {
            "run": self.start.run,
            "site": self.site.state(),
            "leader": leader,
            "ranks": ranks,
            "rollbacks": self.guard.rollbacks,
            "joint": [joint.losing, joint.ratio, joint.highest],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on with the figures, if these are of an earlier start of this run."""
        if state["run"] != self.start.run:
            return
        self._taken, own = True, state["ranks"][self.module.worker.comm.rank]
        self.site.restore(state["site"])
        self.module.strategy.tally.restore(own["tally"])
        self.guard.skipped_steps, self.guard.rollbacks = own["skipped"], state["rollbacks"]
        joint = self.module.joint_loss
        joint.losing, joint.ratio, joint.highest = state["joint"]
        if self.watch is not None:
            self.watch.restore(state["leader"])


def marks_in(saved: Saved | None, job: RankJob) -> list[Any] | None:
    """Returns the marks of the loggers in a checkpoint of this run, from any start."""
    state = None if saved is None else saved["callbacks"].get(Leader.__qualname__)
    if not state or job.start is None or state["run"] != job.start.run:
        return None
    marks: list[Any] = state["leader"]["marks"]
    return marks
