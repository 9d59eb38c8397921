"""leader.rebalance=true: work moves away from a worker that stays slow."""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback

from gnnkit.comm import Mailbox
from gnnkit.jobs import lost, rows
from gnnkit.jobs.rank_job import RankJob
from gnnkit.launch.progress import progress
from gnnkit.launch.watchdog import Patience
from gnnkit.prepare import rebalanced
from gnnkit.prepare.recut import Request, pays, run_recut
from gnnkit.strategy import ExecutionStrategy, MovableNodes
from gnnkit.training.module import TrainingModule
from gnnkit.training.observer import Observer
from gnnkit.watch.channel import LEADER
from gnnkit.watch.watch import Watch

MOST = 3  # looks at a change of the work in a run, each of which may end without one
COST, EDGE_COST = 1.0, 1e-6  # expected seconds of a first change, and of each edge. Later ones: as the last
HEARTBEAT = 1.0  # seconds, at most a quarter of comm.timeout
_RELIEF = "relief"  # tag of the leader's letters


@dataclass(frozen=True, slots=True)
class Change:
    """Other shares of the work, which all workers take."""

    speeds: list[float]  # [world_size] as measured
    before: float  # seconds of the slowest rank in a step
    after: float  # the same, predicted
    shares: list[float] | None = None  # [world_size] of the seeds, where these are dealt out
    shard: str | None = None  # folder of the new shards, where nodes move
    moved: int = 0  # nodes that have another owner
    balance: dict[str, float] = field(default_factory=dict)  # of the new shards


class Relief(Callback):
    """The change of the workers' shares, after a checkpoint.

    The leader looks at the watch. If a worker is slow, and dealing out the work by the
    measured speeds pays, all workers take other shares. The model, the optimiser and
    the strategy with its place in the run stay.
    """

    def __init__(self, job: RankJob, mailbox: Mailbox, watch: Watch | None, observer: Observer) -> None:
        """Keeps the parts.

        Args:
            job: The job.
            mailbox: Between the ranks.
            watch: Of the leader. None on other ranks.
            observer: Of this rank.
        """
        self.job, self.mailbox, self.watch, self.observer = job, mailbox, watch, observer
        self.done: list[dict[str, Any]] = []  # the changes, on the leader
        self.balance: dict[str, float] = {}  # of the last change, where nodes moved
        self._looks, self._cost = 0, 0.0

    def on_train_epoch_start(self, trainer: L.Trainer, module: Any) -> None:
        epoch = trainer.current_epoch
        if epoch == module.resumed[0] or epoch % self.job.settings.trainer.checkpoint_every:
            return
        begun = time.perf_counter()
        change = self._follow() if self.watch is None else self._lead(self.watch, trainer, module)
        if change is None:
            return
        if change.shard is not None:
            self._take_nodes(module, change.shard)
            self.balance = change.balance
        elif change.shares is not None:
            module.strategy.deal(change.shares)
        if self.watch is not None:
            self._note(self.watch, change, epoch, trainer.global_step, time.perf_counter() - begun)
        self.observer.restart(module)

    def _follow(self) -> Change | None:
        """Waits for the leader's word. Each letter renews the deadline."""
        while True:
            progress("waiting for the leader's word on the shares of work")
            fields = self.mailbox.take(_RELIEF, src=LEADER, timeout=self.job.settings.timeout).fields
            if "change" in fields:
                return None if fields["change"] is None else Change(**fields["change"])

    def _lead(self, watch: Watch, trainer: L.Trainer, module: TrainingModule) -> Change | None:
        """Decides, has the graph cut anew where nodes move, and tells the others."""
        epoch, last = trainer.current_epoch, -math.inf
        assert trainer.max_epochs is not None
        steps = (trainer.max_epochs - epoch) * module.strategy.num_batches(epoch)

        def beat() -> None:
            nonlocal last
            if time.monotonic() - last > min(HEARTBEAT, self.job.settings.timeout / 4):
                progress("waiting for a new cut of the graph")
                self._tell(module, {})
                last = time.monotonic()

        change, by_nodes = None, not module.strategy.lacks(MovableNodes)
        if by_nodes and not self.done:
            self._cost = COST + EDGE_COST * module.worker.shard.num_edges
        seconds = watch.pace if self._looks < MOST else None
        # No worker gets faster than the fastest one is now.
        if seconds is not None and (max(seconds) - min(seconds)) * steps > self._cost:
            self._looks += 1
            change = self._nodes(seconds, steps, beat) if by_nodes else self._seeds(module.strategy, seconds, steps)
        self._tell(module, {"change": None if change is None else dataclasses.asdict(change)})
        return change

    def _tell(self, module: TrainingModule, fields: Mapping[str, Any]) -> None:
        for rank in range(1, module.worker.comm.world_size):
            self.mailbox.put(rank, _RELIEF, fields)

    def _nodes(self, seconds: list[float], steps: int, beat: Any) -> Change | None:
        """Has the graph cut anew. None where this does not pay, or fails.

        Args:
            seconds: [world_size] that each rank computes in a step.
            steps: Steps that are left.
            beat: Called a few times a second.
        """
        name = f"again-{self._looks}"
        request = Request(str(self.job.folder), name, seconds, steps, self._cost)
        try:
            made = run_recut(request, Patience.of(self.job.settings.timeout), beat)
        except RuntimeError as error:
            self._looks = MOST
            _say(f"leader.rebalance: the run goes on with the shares it has, {error}")
            return None
        if not made.moved:
            _say(f"leader.rebalance: no change, as a step would take {_times(made.before, made.after)}")
            return None
        return Change(made.speeds, made.before, made.after, shard=name, moved=made.moved, balance=made.balance)

    def _seeds(self, strategy: ExecutionStrategy, seconds: list[float], steps: int) -> Change | None:
        """Finds shares of the seeds. None where this does not pay.

        Args:
            strategy: Deals out the seeds.
            seconds: [world_size] that each rank computes in a step.
            steps: Steps that are left.
        """
        loads = strategy.shares or [1 / len(seconds)] * len(seconds)
        speeds = [load / max(each, 1e-9) for load, each in zip(loads, seconds, strict=True)]
        before, after = max(seconds), sum(loads) / sum(speeds)
        if not pays(before, after, steps, self._cost):
            return None
        return Change(speeds, before, after, shares=[speed / sum(speeds) for speed in speeds])

    def _take_nodes(self, module: TrainingModule, name: str) -> None:
        """Goes on with another shard. Collective."""
        job, comm, strategy, moved = self.job, module.worker.comm, module.strategy, module.strategy.tally
        progress("taking other nodes")
        strategy.close()
        worker = job.worker(comm, f"{name}/{comm.rank}")
        strategy.setup(worker, module.model)
        strategy.tally.include(moved)
        module.worker = worker
        module.evaluation = lost.evaluation(job, worker, module.model, rows.scratch(job, comm))

    def _note(self, watch: Watch, change: Change, epoch: int, step: int, took: float) -> None:
        """Says and stores what has changed, and forgets the times before.

        Args:
            watch: The watch over all workers.
            change: The change.
            epoch: Number of the epoch that begins, from 0.
            step: Steps so far.
            took: Seconds of the change.
        """
        by_nodes, slow = change.shard is not None, watch.slow
        entry: dict[str, Any] = {
            "epoch": epoch,
            "slow": slow,
            "seconds": took,
            "unit": "nodes" if by_nodes else "seeds",
        }
        entry |= {"speeds": change.speeds, "step_before": change.before, "step_predicted": change.after}
        self.done.append(entry | {"moved": change.moved})
        self._cost = took  # of the next change
        watch.relieve(step)
        rebalanced.note(self.job.folder, self.done)
        moved = f"{change.moved:,} nodes move" if by_nodes else "seeds are dealt out"
        named = " and ".join(f"rank {rank}" for rank in slow)
        _say(
            f"leader.rebalance: epoch {epoch + 1}: {moved} by the speeds of the workers, as {named} is slow; a step "
            f"takes {_times(change.before, change.after)}; the change took {took:.2f} s"
        )


def relief(job: RankJob, mailbox: Mailbox, watch: Watch | None, observer: Observer) -> list[Relief]:
    """Makes the callback, where `leader.rebalance` asks for it.

    Args:
        job: The job.
        mailbox: Between the ranks.
        watch: Of the leader. None on other ranks.
        observer: Of this rank.
    """
    return [Relief(job, mailbox, watch, observer)] if job.settings.leader.rebalance else []


def relieved(job: RankJob, given: list[Relief]) -> tuple[RankJob, dict[str, Any]]:
    """Returns the job with the balance of the last shares, and the figures of changes.

    Args:
        job: The job.
        given: From `relief`.
    """
    for each in given:
        balance = each.balance or job.prepared.balance
        prepared = dataclasses.replace(job.prepared, balance=balance)
        return dataclasses.replace(job, prepared=prepared), {"rebalanced": each.done}
    return job, {"rebalanced": []}


def _times(before: float, after: float) -> str:
    return f"{1e3 * before:.1f} ms of compute now, {1e3 * after:.1f} predicted"


_say = functools.partial(print, file=sys.stderr, flush=True)
