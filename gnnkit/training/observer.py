"""The measurement of every step of one rank."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback

from gnnkit.spans import active
from gnnkit.strategy import Batch, Measured, Worker
from gnnkit.training.ddp import SyncMeter
from gnnkit.watch.channel import StateChannel
from gnnkit.watch.trace import STEP
from gnnkit.watch.watch import WorkerState, peak_memory

_SCHEDULED = Path("/proc/thread-self/schedstat")  # Linux: nanoseconds on a processor and in the queue, slices


@dataclass(frozen=True, slots=True)
class _Mark:
    """The clocks at one moment."""

    time: float
    waiting: float
    exchange: float
    bytes_sent: int
    bytes_read: int
    used: float  # of a processor, by this thread
    queued: float  # this thread waited for a processor

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
            _seconds_queued(),
        )


def _seconds_queued() -> float:
    """Returns how long this thread was ready and had no processor. 0 if unknown."""
    try:
        return int(_SCHEDULED.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


class Observer(Callback):
    """The observer of this rank. Posts a state to the leader after every step.

    Clocks and tallies run on. The figures of a step are differences.
    """

    def __init__(self, worker: Worker, meter: SyncMeter, channel: StateChannel, timeout: float) -> None:
        """Keeps the parts.

        Args:
            worker: This rank.
            meter: Of the synchronisation.
            channel: To the leader.
            timeout: Seconds that the leader waits for the last states.
        """
        self.worker, self.meter, self.channel, self.timeout = worker, meter, channel, timeout
        self.epoch_seconds: list[float] = []  # training steps, waiting for batches included
        self.validations: list[tuple[float, float, int]] = []  # seconds since the start, the task's figure, epoch
        self.lower_is_better = False  # of the task's figure
        self.started = self.ended = time.perf_counter()
        self.spans = active()  # of a trace
        self._epoch = Measured(0.0, 0.0, 0.0, 0)
        self._goes_on, self._carried, self._over = False, 0.0, False

    def state(self) -> dict[str, Any]:
        """Returns what a later start of the ranks goes on with."""
        return {
            "seconds": self.epoch_seconds,
            "validations": [list(each) for each in self.validations],
            "lower_is_better": self.lower_is_better,
            "started": self.started,
            "over": self._over,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from `state`, on the same host."""
        self.epoch_seconds = list(state["seconds"])
        self.validations = [(seconds, figure, epoch) for seconds, figure, epoch in state["validations"]]
        self.lower_is_better, self.started, self._goes_on = state["lower_is_better"], state["started"], True
        if self.epoch_seconds and not state["over"]:
            self._carried = self.epoch_seconds.pop()  # of the epoch that goes on

    def on_train_start(self, trainer: L.Trainer, module: Any) -> None:
        if not self._goes_on:
            self.started = time.perf_counter()

    def on_train_epoch_start(self, trainer: L.Trainer, module: Any) -> None:
        self.epoch_seconds.append(self._carried)
        self._carried = 0.0
        self._epoch = Measured(0.0, 0.0, 0.0, 0)
        self.meter.reset()
        self._mark = _Mark.now(module)

    def restart(self, module: Any) -> None:
        """Lets the time of the next step begin now."""
        self._mark = _Mark.now(module)

    def on_train_epoch_end(self, trainer: L.Trainer, module: Any) -> None:
        module.strategy.end_epoch(trainer.current_epoch, self._epoch, module.model)

    def on_train_batch_end(self, trainer: L.Trainer, module: Any, outputs: Any, batch: Batch, batch_idx: int) -> None:
        now = _Mark.now(module)
        seconds, waiting = now.time - self._mark.time, now.waiting - self._mark.waiting
        exchange = now.exchange - self._mark.exchange
        if self.spans is not None:
            self.spans.add(STEP, f"step {trainer.global_step}", self._mark.time, now.time)
            if self.meter.seconds:
                self.spans.add("sync", "sync", self.meter.start, self.meter.end)
        self.epoch_seconds[-1] += seconds
        computing = max(seconds - waiting - exchange - self.meter.seconds, 0.0)
        self._epoch = Measured(
            self._epoch.seconds_compute + computing,
            self._epoch.seconds_exchange + exchange,
            self._epoch.seconds_sync + self.meter.seconds,
            self._epoch.edges + batch.num_edges,
            self.meter.drift,
        )
        self.channel.post(
            WorkerState(
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
                seconds_queued=min(self._queued(now, computing), computing),
            )
        )
        self.meter.reset()
        self._mark = _Mark.now(module)

    def _queued(self, now: _Mark, computing: float) -> float:
        """Returns how long this rank waited for a processor, or for ranks beside."""
        if self.worker.comm.in_threads:  # threads wait for each other's Python
            return max(computing - (now.used - self._mark.used), 0.0)
        return now.queued - self._mark.queued

    def on_validation_end(self, trainer: L.Trainer, module: Any) -> None:
        figures = {
            name: float(trainer.callback_metrics[name])
            for name in module.task.names
            if name in trainer.callback_metrics
        }
        self.channel.measured(trainer.current_epoch, figures)
        figure = figures.get(module.task.progress)
        self.lower_is_better = module.task.lower_is_better
        if figure is not None:
            self.validations.append((time.perf_counter() - self.started, figure, trainer.current_epoch + 1))

    @property
    def time_to_accuracy(self) -> float | None:
        """Seconds from the start of training to 99 % of the best validation figure.

        The figure is the task's first. An error counts as its inverse. None without a
        validation.
        """
        figures = [figure for _, figure, _ in self.validations]
        if self.lower_is_better:
            reached = [figure * 0.99 <= min(figures) for figure in figures]
        else:
            reached = [figure >= 0.99 * max(figures) for figure in figures]
        return next((seconds for (seconds, _, _), good in zip(self.validations, reached, strict=True) if good), None)

    @property
    def best_evaluation(self) -> dict[str, float] | None:
        """Epoch from 1 and value of the best validation figure, the task's first.

        None without a validation whose figure is a number.
        """
        looks = [(figure, epoch) for _, figure, epoch in self.validations if not math.isnan(figure)]
        if not looks:
            return None
        sign = -1 if self.lower_is_better else 1
        value, epoch = max(looks, key=lambda look: sign * look[0])  # the first of equal ones
        return {"epoch": epoch, "value": value}

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of the training, and of what came after until now."""
        return {"training": self.ended - self.started, "evaluation": time.perf_counter() - self.ended}

    def on_train_end(self, trainer: L.Trainer, module: Any) -> None:
        module.settle()  # a worker that is ahead waits here for the others, without a deadline
        self.channel.finish(self.timeout)
        self.ended = time.perf_counter()
        self._over = True
