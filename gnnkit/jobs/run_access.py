"""The interface between a run and its `LeaderHook`s."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from gnnkit.comm import Mailbox
from gnnkit.jobs import lost
from gnnkit.jobs.outputs import scratch_folder
from gnnkit.jobs.rank_job import RankJob
from gnnkit.launch import program
from gnnkit.launch.progress import progress
from gnnkit.launch.watchdog import Patience
from gnnkit.leader.run import LeaderRun
from gnnkit.result.folder import COORDINATION
from gnnkit.utils.documents import read_object
from gnnkit.utils.storage import write_atomically


class RunAccess(LeaderRun):
    """The run of one rank, as `LeaderRun`."""

    def __init__(self, job: RankJob, mailbox: Mailbox) -> None:
        """Stores the job and the mailbox between its ranks."""
        settings = job.settings
        self._job, self.mailbox, self.folder, self.timeout = job, mailbox, job.folder, settings.timeout
        self.checkpoint_every, self.world_size = settings.trainer.checkpoint_every, settings.workers
        self.balance: Mapping[str, float] = {}  # of the last exchanged shards

    def progress(self, activity: str) -> None:
        progress(activity)

    def take_shard(self, module: Any, name: str, balance: Mapping[str, float]) -> None:
        job, comm, strategy, tally = self._job, module.worker.comm, module.strategy, module.strategy.tally
        progress("taking other nodes")
        strategy.close()
        worker = job.worker(comm, f"{name}/{comm.rank}")
        strategy.setup(worker, module.model)
        strategy.tally.include(tally)
        module.worker = worker
        module.evaluation = lost.evaluation(job, worker, module.model, scratch_folder(job, comm))
        self.balance = balance

    def note(self, fields: Mapping[str, Any]) -> None:
        path = self.folder / COORDINATION
        coordination = read_object(path) if path.exists() else {}
        write_atomically(path, json.dumps({**coordination, **fields}).encode())

    def run_program(self, name: str, request: Mapping[str, Any], meanwhile: Callable[[], None]) -> dict[str, Any]:
        return program.run(name, request, Patience.of(self.timeout), meanwhile)
