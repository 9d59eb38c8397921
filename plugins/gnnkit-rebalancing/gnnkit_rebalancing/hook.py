"""The hook for leader.rebalance=true, which moves work away from slow workers."""

from __future__ import annotations

import functools
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, cast

import lightning as L

from gnnkit.callback import Leader, LeaderHook
from gnnkit.comm.survivors import pause
from gnnkit.errors import UserError
from gnnkit.launch import program
from gnnkit.launch.watchdog import Patience
from gnnkit.leader.site import LeaderRun
from gnnkit.strategy import ExecutionStrategy, MovableNodes, MovableWork, SeedDealer
from gnnkit_rebalancing.recut import Change, Request, pays

MAX_LOOKS = 3  # maximum number of attempts per run, whether or not they change the shares
COST, EDGE_COST = 1.0, 1e-6  # estimated seconds of a first change, and additional seconds per edge
_KEY, _TAG = "leader.rebalance", "rebalance"  # configuration key, and tag of the leader's messages


class Rebalancing(LeaderHook):
    """Changes the workers' shares after a checkpoint.

    The leader checks the workers' pace. If a worker is slow, and shares in proportion
    to the measured speeds pay off, all workers adopt these shares. The model, the
    optimiser and the strategy's position in the run do not change.
    """

    def __init__(self) -> None:
        self.done: list[dict[str, Any]] = []  # changes made, on the leader
        self._looks, self._cost = 0, 0.0

    def check(self, parts: Any) -> None:
        for obstacle, holds in _list_obstacles(parts).items():
            if holds:
                raise UserError(f"{_KEY}=true: {obstacle}")
        if restarts := parts.settings.restarts:
            raise UserError(
                f"restarts={restarts}: {_KEY}=true moves work, but restarted ranks have their initial shares: "
                "remove one of the two keys"
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
        start, slow = time.perf_counter(), sorted(self.leader.slow)
        change = self._decide(trainer, module) if trainer.is_global_zero else follow(run)
        if change is None:
            return
        if change.shard is not None:
            run.take_shard(module, change.shard, change.balance)
        elif change.shares is not None:
            cast(SeedDealer, module.strategy).deal(change.shares)
        took, step = time.perf_counter() - start, trainer.global_step
        self.leader.restart_timings(module, step)
        if trainer.is_global_zero:
            self._cost = took  # estimate for the next change
            self._record_change(change, epoch, slow, took)

    def _decide(self, trainer: L.Trainer, module: Any) -> Change | None:
        """Decides on a change, writes new shards, and notifies the other ranks."""
        assert trainer.max_epochs is not None
        steps = (trainer.max_epochs - trainer.current_epoch) * module.strategy.num_batches(trainer.current_epoch)
        change, by_nodes = None, not module.strategy.lacks(MovableNodes)
        if by_nodes and not self.done:
            self._cost = COST + EDGE_COST * module.worker.shard.num_edges
        seconds = self.leader.pace if self._looks < MAX_LOOKS else None
        # A step cannot become faster than the fastest worker's current step.
        if seconds is not None and (max(seconds) - min(seconds)) * steps > self._cost:
            self._looks += 1
            change = self._move_nodes(seconds, steps) if by_nodes else self._move_seeds(module.strategy, seconds, steps)
        self._notify({"change": None if change is None else asdict(change)})
        return change

    def _notify(self, fields: dict[str, Any]) -> None:
        for rank in range(1, self.run.world_size):
            self.run.mailbox.put(rank, _TAG, fields)

    def _heartbeat(self) -> Callable[[], None]:
        """Returns a function that extends the other ranks' deadline."""
        last = -math.inf

        def beat() -> None:
            nonlocal last
            if time.monotonic() - last > pause(self.run.timeout):
                self.run.progress("waiting for the new partition")
                self._notify({})
                last = time.monotonic()

        return beat

    def _move_nodes(self, seconds: list[float], steps: int) -> Change | None:
        """Repartitions the graph. Returns None if this does not pay off, or fails.

        Args:
            seconds: [world_size] compute time of each rank per step.
            steps: Number of remaining steps.
        """
        request = Request(str(self.run.folder), f"again-{self._looks}", seconds, steps, self._cost)
        try:
            change = run_recut(self.run, request, self._heartbeat())
        except RuntimeError as error:
            self._looks = MAX_LOOKS
            _log(f"{_KEY}: no change, because repartitioning failed: {error}")
            return None
        if change.shard is None:
            _log(f"{_KEY}: no change, because a step would take {_format_times(change.before, change.after)}")
            return None
        return change

    def _move_seeds(self, strategy: Any, seconds: list[float], steps: int) -> Change | None:
        """Computes new shares of the seeds. Returns None if they do not pay off.

        Args:
            strategy: Assigns the seeds to ranks.
            seconds: [world_size] compute time of each rank per step.
            steps: Number of remaining steps.
        """
        loads = strategy.shares or [1 / len(seconds)] * len(seconds)
        speeds = [load / max(duration, 1e-9) for load, duration in zip(loads, seconds, strict=True)]
        before, after = max(seconds), sum(loads) / sum(speeds)
        if not pays(before, after, steps, self._cost):
            return None
        return Change(speeds, before, after, shares=[speed / sum(speeds) for speed in speeds])

    def _record_change(self, change: Change, epoch: int, slow: list[int], took: float) -> None:
        """Logs and records a change.

        Args:
            change: The change.
            epoch: Number of the next epoch, from 0.
            slow: The stragglers.
            took: Duration of the change in seconds.
        """
        by_nodes = change.shard is not None
        unit, summary = ("nodes", f"{change.moved:,} nodes move") if by_nodes else ("seeds", "seeds move")
        entry: dict[str, Any] = {"epoch": epoch, "slow": slow, "seconds": took, "unit": unit, "speeds": change.speeds}
        entry |= {"step_before": change.before, "step_predicted": change.after, "moved": change.moved}
        self.done.append(entry)
        self.run.note({"rebalanced": self.done})
        ranks = " and ".join(f"rank {rank}" for rank in slow)
        _log(
            f"{_KEY}: epoch {epoch + 1}: {summary} in proportion to the workers' speeds, because {ranks} is slow; a step takes "
            f"{_format_times(change.before, change.after)}; the change took {took:.2f} s"
        )


def follow(run: LeaderRun) -> Change | None:
    """Waits for the leader's decision. Each message extends the deadline."""
    while True:
        run.progress("waiting for the leader's decision on rebalancing")
        fields = run.mailbox.take(_TAG, src=0, timeout=run.timeout).fields
        if "change" in fields:
            return None if fields["change"] is None else Change(**fields["change"])


def run_recut(run: LeaderRun, request: Request, beat: Callable[[], None]) -> Change:
    """Repartitions the graph in a new process."""
    return Change(**program.run("gnnkit_rebalancing.recut", asdict(request), Patience.of(run.timeout), beat))


def _list_obstacles(parts: Any) -> dict[str, object]:
    """Returns the reasons against rebalancing, and whether each applies."""
    settings, strategy, sync, task = parts.settings, parts.strategy, parts.sync, parts.task
    by_nodes = not strategy.lacks(MovableNodes)
    return {
        "workers=1: rebalancing needs several workers; remove the key": settings.workers == 1,
        "work moves at checkpoints: remove trainer.checkpoint=false": not settings.trainer.checkpoint,
        f"strategy={settings.strategy.name} {strategy.lacks(MovableWork)}": strategy.lacks(MovableWork),
        f"workers of sync={settings.sync.name} are in different steps, or hold different parameters: use sync=all_reduce": (
            not sync.lockstep or sync.drifts
        ),
        "a lost worker keeps its nodes: use sync.on_lost=stop": sync.on_lost == "continue",
        "learned rows cannot move: use inputs=features or degree": (settings.inputs == "learned" and by_nodes),
        f"task={settings.task.name} exchanges rows while it computes, so slow workers cannot be identified: use "
        "a node task": not task.labels_nodes,
    }


def _format_times(before: float, after: float) -> str:
    return f"{1e3 * before:.1f} ms of compute now, {1e3 * after:.1f} predicted"


_log = functools.partial(print, file=sys.stderr, flush=True)
