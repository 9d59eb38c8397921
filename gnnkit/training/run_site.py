"""The leader's site in a run of `gnnkit.train`."""

from __future__ import annotations

import math
import time
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import lightning as L

from gnnkit.leader.meter import SyncMeter, seconds_queued
from gnnkit.leader.site import LeaderSite, StateChannel
from gnnkit.leader.trace import STEP
from gnnkit.leader.watch import Watch, WorkerState, peak_memory
from gnnkit.strategy import Batch, Measured, Worker
from gnnkit.training.monitor import Monitor
from gnnkit.utils.spans import active


@dataclass(frozen=True, slots=True)
class _Mark:
    """The clocks and counters at one moment."""

    time: float
    waiting: float
    exchange: float
    bytes_sent: int
    bytes_read: int
    used: float  # processor time of this thread
    queued: float  # time that this thread has waited for a processor

    @classmethod
    def now(cls, module: Any) -> _Mark:
        tally = module.strategy.tally
        return cls(
            time.perf_counter(),
            module.loader.seconds_waiting,
            tally.seconds,
            tally.bytes_sent,
            tally.bytes_read,
            time.thread_time(),
            seconds_queued(),
        )


class Record(Protocol):
    """The run's figures in checkpoints, for restarted ranks."""

    def begin(self) -> None: ...

    def end_step(self, step: int) -> None: ...

    def state_dict(self) -> dict[str, object]: ...

    def load_state_dict(self, state: dict[str, object]) -> None: ...


@dataclass(slots=True)
class Validations:
    """The values of the task's first metric in evaluations during training."""

    looks: list[tuple[float, float, int]]  # seconds since the start, value, epoch from 1
    lower_is_better: bool = False

    @property
    def time_to_accuracy(self) -> float | None:
        """Seconds from the start of training to 99 % of the best value.

        For errors, the bound is the best value divided by 0.99. It is None without
        validations.
        """
        if (best := self.best) is None:
            return None
        for seconds, value, _ in self.looks:
            if value * 0.99 <= best["value"] if self.lower_is_better else value >= 0.99 * best["value"]:
                return seconds
        return None

    @property
    def best(self) -> dict[str, float] | None:
        """Epoch (from 1) and value of the best validation.

        It is None if no validation returned a number.
        """
        sign = -1 if self.lower_is_better else 1
        looks = [{"epoch": epoch, "value": value} for _, value, epoch in self.looks if not math.isnan(value)]
        return max(looks, key=lambda look: sign * look["value"], default=None)  # the first of equal values

    def within(self, epochs: Container[int]) -> Validations:
        """Returns the validations after some epochs, counted from 0."""
        return replace(self, looks=[look for look in self.looks if look[2] - 1 in epochs])


class RunSite(LeaderSite):
    """Measures this rank's steps as differences of clocks and counters."""

    record: Record | None = None

    def __init__(
        self,
        worker: Worker,
        meter: SyncMeter,
        channel: StateChannel,
        timeout: float,
        *,
        watch: Watch | None = None,
        rule: Monitor | None = None,
    ) -> None:
        """Stores the arguments.

        Args:
            worker: This rank.
            meter: Measures the synchronisation.
            channel: Sends states to the leader.
            timeout: Seconds that the leader waits for the last states.
            watch: The leader's watch, None on other ranks.
            rule: Selects the best model. If None, it is not stored.
        """
        self.worker, self.meter, self.channel, self.timeout = worker, meter, channel, timeout
        self.watch: Watch | None = watch
        self.rule: Monitor | None = rule
        self.epoch_seconds: list[float] = []  # duration of each epoch's steps, including waits for batches
        self.validations = Validations([])
        self.started = self.ended = time.perf_counter()
        self.spans = active()  # None without a trace
        self._epoch = Measured(0.0, 0.0, 0.0, 0)
        self._goes_on, self._carried_seconds, self._over = False, 0.0, False

    def state(self) -> dict[str, Any]:
        """Returns the state from which restarted ranks continue."""
        return {
            "seconds": self.epoch_seconds,
            "validations": [list(look) for look in self.validations.looks],
            "lower_is_better": self.validations.lower_is_better,
            "started": self.started,
            "over": self._over,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from a state of the same host."""
        self.epoch_seconds = list(state["seconds"])
        looks = [(seconds, value, epoch) for seconds, value, epoch in state["validations"]]
        self.validations = Validations(looks, state["lower_is_better"])
        self.started, self._goes_on = state["started"], True
        if self.epoch_seconds and not state["over"]:
            self._carried_seconds = self.epoch_seconds.pop()  # of the interrupted epoch

    def begin(self, trainer: L.Trainer, module: Any) -> None:
        if not self._goes_on:
            self.started = time.perf_counter()
        if self.rule is not None:
            self.rule.begin(module)

    def begin_epoch(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.epoch_seconds.append(self._carried_seconds)
        self._carried_seconds = 0.0
        self._epoch = Measured(0.0, 0.0, 0.0, 0)
        self.meter.reset()
        self._mark = _Mark.now(module)

    def restart_clock(self, module: L.LightningModule) -> None:
        self._mark = _Mark.now(module)

    def end_epoch(self, trainer: L.Trainer, module: Any) -> None:
        module.strategy.end_epoch(trainer.current_epoch, self._epoch, module.model)
        if self.rule is not None:
            self.rule.end_epoch(trainer, module)

    def end_step(self, trainer: L.Trainer, module: Any, outputs: Any, batch: Batch) -> WorkerState:
        now = _Mark.now(module)
        seconds, waiting = now.time - self._mark.time, now.waiting - self._mark.waiting
        exchange = now.exchange - self._mark.exchange
        computing = max(seconds - waiting - exchange - self.meter.seconds, 0.0)
        if self.spans is not None:
            self.spans.add(STEP, f"step {trainer.global_step}", self._mark.time, now.time)
            if self.meter.seconds:
                self.spans.add("sync", "sync", self.meter.start, self.meter.end)
        self.epoch_seconds[-1] += seconds
        self._add_work(computing, exchange, batch.num_edges)
        state = WorkerState(
            rank=self.worker.comm.rank,
            epoch=trainer.current_epoch,
            step=trainer.global_step,
            loss=float(module.local_loss),
            rows=len(batch.rows),
            total=batch.total,
            synchronised=batch.synchronise,
            gradient_norm=self.meter.square_norm**0.5,
            seconds_wait=waiting,
            seconds_compute=computing,
            seconds_exchange=exchange,
            seconds_sync=self.meter.seconds,
            edges=batch.num_edges,
            rows_per_second=batch.adjacencies[-1].num_dst / seconds,
            memory=peak_memory(self.worker.device),
            bytes_sent=now.bytes_sent - self._mark.bytes_sent,
            bytes_read=now.bytes_read - self._mark.bytes_read,
            seconds_queued=min(self._queue_seconds(now, computing), computing),
        )
        self.channel.post(state)
        self.meter.reset()
        self._mark = _Mark.now(module)
        if self.record is not None:
            self.record.end_step(trainer.global_step)
        if self.rule is not None:
            self.rule.end_step(module, batch)
        return state

    def _add_work(self, computing: float, exchange: float, num_edges: int) -> None:
        """Adds a step's seconds and edges to the epoch's totals."""
        epoch = self._epoch
        seconds = (epoch.seconds_compute + computing, epoch.seconds_exchange + exchange)
        self._epoch = Measured(*seconds, epoch.seconds_sync + self.meter.seconds, epoch.edges + num_edges)

    def _queue_seconds(self, now: _Mark, computing: float) -> float:
        """Returns how long this rank waited for a processor or for other threads."""
        if self.worker.comm.in_threads:  # threads wait for Python's global lock
            return max(computing - (now.used - self._mark.used), 0.0)
        return now.queued - self._mark.queued

    def end_evaluation(self, trainer: L.Trainer, module: Any) -> None:
        figures = {
            name: float(trainer.callback_metrics[name])
            for name in module.task.names
            if name in trainer.callback_metrics
        }
        self.channel.measured(trainer.current_epoch, figures)
        figure = figures.get(module.task.progress)
        self.validations.lower_is_better = module.task.lower_is_better
        if figure is not None:
            self.validations.looks.append((time.perf_counter() - self.started, figure, trainer.current_epoch + 1))
        if self.rule is not None:
            self.rule.end_evaluation(trainer, module)

    @property
    def seconds(self) -> dict[str, float]:
        """Durations of training, and of the time since its end."""
        return {"training": self.ended - self.started, "evaluation": time.perf_counter() - self.ended}

    def end(self, trainer: L.Trainer, module: Any) -> None:
        module.settle()  # workers that are ahead wait for the others without a deadline
        self.channel.finish(self.timeout)
        self.ended = time.perf_counter()
        self._over = True

    def state_dict(self) -> dict[str, object]:
        figures = {} if self.record is None else self.record.state_dict()
        evaluations = [look[1:] for look in self.validations.looks]
        return {**figures, "evaluations": evaluations, "lower_is_better": self.validations.lower_is_better}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # An earlier run's evaluations precede this run's start.
        looks = [(0.0, value, epoch) for value, epoch in state.get("evaluations", ())]
        self.validations = Validations(looks, state.get("lower_is_better", False))
        if self.record is not None and "run" in state:
            self.record.load_state_dict(state)
