"""leader.rebalance=true: work moves away from a worker that stays slow."""

from __future__ import annotations

import functools
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import lightning as L

from gnnkit.callback import Leader, LeaderHook
from gnnkit.errors import UserError
from gnnkit.leader.run import LeaderRun
from gnnkit.strategy import ExecutionStrategy, MovableNodes, MovableWork
from gnnkit.task import NodeTask
from gnnkit_rebalancing.recut import Recut, Request, pays

MAX_LOOKS = 3  # looks at a change of the work in a run, each of which may end without one
COST, EDGE_COST = 1.0, 1e-6  # expected seconds of a first change, and of each edge. Later ones: as the last
HEARTBEAT = 1.0  # seconds, at most a quarter of comm.timeout
_KEY, _TAG = "leader.rebalance", "rebalance"  # the key, and the tag of the leader's messages


@dataclass(frozen=True, slots=True)
class Change:
    """Other shares of the work, which all workers take."""

    speeds: list[float]  # [world_size] as measured
    before: float  # seconds of the slowest rank in a step
    after: float  # the same, predicted
    shares: list[float] | None = None  # [world_size] of the seeds, where seeds move
    shard: str | None = None  # folder of the new shards, where nodes move
    moved: int = 0  # nodes that have another owner
    balance: dict[str, float] = field(default_factory=dict)  # of the new shards


class Rebalancing(LeaderHook):
    """Changes the workers' shares after a checkpoint.

    The leader looks at the workers' pace. If one is slow, and distributing the work by
    the measured speeds pays, all workers take other shares. The model, the optimiser
    and the strategy with its place in the run stay.
    """

    def __init__(self) -> None:
        self.done: list[dict[str, Any]] = []  # the changes, on the leader
        self._looks, self._cost = 0, 0.0

    def check(self, parts: Any) -> None:
        for why, holds in _refused(parts).items():
            if holds:
                raise UserError(f"{_KEY}=true: {why}")
        if restarts := parts.settings.restarts:
            raise UserError(
                f"restarts={restarts}: {_KEY}=true deals out the work anew, and ranks that are started again have the "
                "first shares: leave it out"
            )

    def keeps_graph(self, strategy: ExecutionStrategy) -> bool:
        return not strategy.lacks(MovableNodes)

    def start(self, leader: Leader) -> None:
        assert leader.run is not None
        self.leader, self.run = leader, leader.run

    def figures(self) -> dict[str, Any]:
        return {"rebalanced": self.done}

    def on_train_epoch_start(self, trainer: L.Trainer, module: Any) -> None:
        epoch, run = trainer.current_epoch, self.run
        if epoch == module.resumed[0] or epoch % run.checkpoint_every:
            return
        begun, slow = time.perf_counter(), sorted(self.leader.slow)
        change = self._lead(trainer, module) if trainer.is_global_zero else follow(run)
        if change is None:
            return
        if change.shard is not None:
            run.take_shard(module, change.shard, change.balance)
        elif change.shares is not None:
            module.strategy.deal(change.shares)
        took, step = time.perf_counter() - begun, trainer.global_step
        self.leader.restart_timings(module, step)
        if trainer.is_global_zero:
            self._cost = took  # of the next change
            self._note(change, epoch, slow, took)

    def _lead(self, trainer: L.Trainer, module: Any) -> Change | None:
        """Decides, has the graph cut anew where nodes move, and notifies the others."""
        assert trainer.max_epochs is not None
        steps = (trainer.max_epochs - trainer.current_epoch) * module.strategy.num_batches(trainer.current_epoch)
        change, by_nodes = None, not module.strategy.lacks(MovableNodes)
        if by_nodes and not self.done:
            self._cost = COST + EDGE_COST * module.worker.shard.num_edges
        seconds = self.leader.pace if self._looks < MAX_LOOKS else None
        # No worker gets faster than the fastest one is now.
        if seconds is not None and (max(seconds) - min(seconds)) * steps > self._cost:
            self._looks += 1
            change = self._nodes(seconds, steps) if by_nodes else self._seeds(module.strategy, seconds, steps)
        self._notify({"change": None if change is None else asdict(change)})
        return change

    def _notify(self, fields: dict[str, Any]) -> None:
        for rank in range(1, self.run.world_size):
            self.run.mailbox.put(rank, _TAG, fields)

    def _heartbeat(self) -> Callable[[], None]:
        """Returns a function that renews the deadline of the others, called often."""
        last = -math.inf

        def beat() -> None:
            nonlocal last
            if time.monotonic() - last > min(HEARTBEAT, self.run.timeout / 4):
                self.run.progress("waiting for a new cut of the graph")
                self._notify({})
                last = time.monotonic()

        return beat

    def _nodes(self, seconds: list[float], steps: int) -> Change | None:
        """Has the graph cut anew. None where this does not pay, or fails.

        Args:
            seconds: [world_size] that each rank computes in a step.
            steps: Steps that are left.
        """
        name = f"again-{self._looks}"
        try:
            made = run_recut(
                self.run, Request(str(self.run.folder), name, seconds, steps, self._cost), self._heartbeat()
            )
        except RuntimeError as error:
            self._looks = MAX_LOOKS
            _say(f"{_KEY}: the run goes on with the shares it has, {error}")
            return None
        if not made.moved:
            _say(f"{_KEY}: no change, as a step would take {_times(made.before, made.after)}")
            return None
        return Change(made.speeds, made.before, made.after, shard=name, moved=made.moved, balance=made.balance)

    def _seeds(self, strategy: Any, seconds: list[float], steps: int) -> Change | None:
        """Finds shares of the seeds. None where this does not pay.

        Args:
            strategy: Deals out the seeds.
            seconds: [world_size] that each rank computes in a step.
            steps: Steps that are left.
        """
        loads = strategy.shares or [1 / len(seconds)] * len(seconds)
        speeds = [load / max(measured, 1e-9) for load, measured in zip(loads, seconds, strict=True)]
        before, after = max(seconds), sum(loads) / sum(speeds)
        if not pays(before, after, steps, self._cost):
            return None
        return Change(speeds, before, after, shares=[speed / sum(speeds) for speed in speeds])

    def _note(self, change: Change, epoch: int, slow: list[int], took: float) -> None:
        """Prints and stores a change.

        Args:
            change: The change.
            epoch: Number of the epoch that begins, from 0.
            slow: The stragglers.
            took: Seconds of the change.
        """
        by_nodes = change.shard is not None
        unit, what = ("nodes", f"{change.moved:,} nodes move") if by_nodes else ("seeds", "seeds are dealt out")
        entry: dict[str, Any] = {"epoch": epoch, "slow": slow, "seconds": took, "unit": unit, "speeds": change.speeds}
        entry |= {"step_before": change.before, "step_predicted": change.after, "moved": change.moved}
        self.done.append(entry)
        self.run.note({"rebalanced": self.done})
        named = " and ".join(f"rank {rank}" for rank in slow)
        _say(
            f"{_KEY}: epoch {epoch + 1}: {what} by the speeds of the workers, as {named} is slow; a step takes "
            f"{_times(change.before, change.after)}; the change took {took:.2f} s"
        )


def follow(run: LeaderRun) -> Change | None:
    """Waits for the leader's decision. Each message renews the deadline."""
    while True:
        run.progress("waiting for the leader's word on the shares of work")
        fields = run.mailbox.take(_TAG, src=0, timeout=run.timeout).fields
        if "change" in fields:
            return None if fields["change"] is None else Change(**fields["change"])


def run_recut(run: LeaderRun, request: Request, beat: Callable[[], None]) -> Recut:
    """Cuts the graph in a fresh process."""
    return Recut(**run.run_program("gnnkit_rebalancing.recut", asdict(request), beat))


def _refused(parts: Any) -> dict[str, object]:
    """Returns the reasons against rebalancing, each with whether it holds."""
    settings, strategy, sync, task = parts.settings, parts.strategy, parts.sync, parts.task
    by_nodes = not strategy.lacks(MovableNodes)
    return {
        "workers=1 has no other worker to give work to: leave it out": settings.workers == 1,
        "work moves at checkpoints: leave out trainer.checkpoint=false": not settings.trainer.checkpoint,
        f"strategy={settings.strategy.name} {strategy.lacks(MovableWork)}": strategy.lacks(MovableWork),
        f"workers of sync={settings.sync.name} are in different steps, or hold different parameters: use all_reduce": (
            not sync.lockstep or sync.drifts
        ),
        "a worker that is lost keeps its nodes: use sync.on_lost=stop": sync.on_lost == "continue",
        "a learned row stays with the owner of its node: use inputs=features or degree": (
            settings.inputs == "learned" and by_nodes
        ),
        f"task={settings.task.name} waits for ends of pairs while it computes, so nobody can tell who is slow: choose a "
        "task about nodes": not isinstance(task, NodeTask),
    }


def _times(before: float, after: float) -> str:
    return f"{1e3 * before:.1f} ms of compute now, {1e3 * after:.1f} predicted"


_say = functools.partial(print, file=sys.stderr, flush=True)
