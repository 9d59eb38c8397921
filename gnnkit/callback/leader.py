"""The leader as a callback, which collects all workers' states in any `Trainer`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning as L
from lightning.pytorch.callbacks import Callback

from gnnkit.leader.best import Best, BestModel
from gnnkit.leader.watch import WorkerState
from gnnkit.utils.ranges import MAX_COUNT, MAX_TIMEOUT, one_of, real, whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gnnkit.leader.site import LeaderRun, LeaderSite


class Leader(Callback):
    """Collects all workers' states on rank 0, reports stragglers, keeps the best model.

    Works in a `Trainer` on one process, and with any strategy that has a default
    process group of `torch.distributed`, such as `strategy="ddp"`. Every rank needs the
    callback. After each step, each rank sends its state to rank 0 in a message over a
    separate TCP connection, so no step waits for rank 0. A worker that stays twice as
    slow as the others is reported on standard error.

    `gnnkit.train` uses this class for every run.

    Args:
        monitor: metric logged by `self.log` whose best model is stored, averaged over
            the ranks. Default: no model is stored.
        mode: whether the `min` or the `max` of the metric is best.
        patience: number of values in a row without improvement that end training.
            Default: training never ends early.
        min_delta: minimum change of the metric that counts as an improvement.
        folder: folder for `workers.jsonl` and `epochs.jsonl`, created and written by
            rank 0. Default: no files are written.
        timeout: seconds that a rank waits for another one at the start and the end of
            training, and for the metric's average.
    """

    def __init__(
        self,
        monitor: str | None = None,
        *,
        mode: str = "min",
        patience: int | None = None,
        min_delta: float = 0.0,
        folder: str | Path | None = None,
        timeout: float = 120.0,
    ) -> None:
        one_of("mode", mode, ("min", "max"))
        if patience is not None:
            whole("patience", patience, 1, MAX_COUNT)
        rule = None
        if monitor is not None:
            rule = BestModel(monitor, patience, min_delta, lower_is_better=mode == "min", section="")
        seconds = real("timeout", timeout, high=MAX_TIMEOUT, above=0)
        from gnnkit.leader.trainer_site import TrainerSite  # not imported by runs, which have their own site

        self.site: LeaderSite = TrainerSite(rule, None if folder is None else Path(folder), seconds)
        self.run: LeaderRun | None = None  # None in a user's trainer

    @classmethod
    def at(cls, site: LeaderSite, run: LeaderRun | None = None) -> Leader:
        """Creates the leader of a `gnnkit.train` run."""
        leader = cls.__new__(cls)
        leader.site, leader.run = site, run
        return leader

    @classmethod
    def of(cls, trainer: L.Trainer) -> Leader | None:
        """Returns the trainer's leader, or None if there is none."""
        return next((callback for callback in trainer.callbacks if isinstance(callback, cls)), None)  # type: ignore[attr-defined]

    @property
    def workers(self) -> Sequence[WorkerState]:
        """All workers' states in the last complete step, by rank, on rank 0."""
        return () if self.site.watch is None else tuple(self.site.watch.states)

    @property
    def stragglers(self) -> dict[int, float]:
        """Each reported worker's ratio to the others' time, when last reported.

        A worker that takes 3 times as long as the median of the others has ratio 3.
        Empty on ranks other than 0.
        """
        return {} if self.site.watch is None else self.site.watch.slow_factors

    @property
    def throughput(self) -> dict[str, float]:
        """Rows, edges and bytes of all workers per second, over the last seconds.

        Empty on ranks other than 0.
        """
        return {} if self.site.watch is None else self.site.watch.rates.per_second()

    @property
    def wait_share(self) -> float:
        """Share of the workers' time spent waiting for batches, from 0 to 1.

        A large share means that loading limits training: use more threads, a larger
        cache, or smaller fanouts.
        """
        return 0.0 if self.site.watch is None else self.site.watch.wait_share

    @property
    def best(self) -> Best | None:
        """The best model's metric, epoch and `state_dict`, equal on all ranks.

        None without `monitor`. After training, load the `state_dict` into your module
        to use the best model instead of the last one.
        """
        return None if self.site.rule is None else self.site.rule.best_so_far

    @property
    def stopped(self) -> str | None:
        """The reason for early stopping, or None if training was not stopped."""
        return None if self.site.rule is None else self.site.rule.stopped

    @property
    def pace(self) -> list[float] | None:
        """Each worker's compute seconds per step, on rank 0 if a worker is slow."""
        return None if self.site.watch is None else self.site.watch.pace

    @property
    def slow(self) -> list[int]:
        """The workers that are currently slow, on rank 0, by rank.

        Unlike `stragglers`, it does not list workers that have recovered.
        """
        return [] if self.site.watch is None else self.site.watch.slow

    def restart_timings(self, module: L.LightningModule, step: int) -> None:
        """Discards the timings up to this step, because the work has changed."""
        self.site.restart_clock(module)
        if self.site.watch is not None:
            self.site.watch.discard_timings(step)

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.site.begin(trainer, module)
        for hook in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(hook, LeaderHook):
                hook.start(self)
                if self.site.watch is not None:
                    self.site.watch.listeners.append(hook.after_step)

    def on_train_epoch_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.site.begin_epoch(trainer, module)

    def on_train_batch_start(self, trainer: L.Trainer, module: Any, batch: object, batch_idx: int) -> None:
        self.site.batch_arrived()

    def on_train_batch_end(self, trainer: L.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.site.end_step(trainer, module, outputs, batch)

    def on_validation_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.site.begin_evaluation(trainer)

    def on_validation_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.site.end_evaluation(trainer, module)

    def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.site.end_epoch(trainer, module)

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.site.end(trainer, module)

    def on_exception(self, trainer: L.Trainer, module: L.LightningModule, exception: BaseException) -> None:
        self.site.close(failed=isinstance(exception, RuntimeError))  # as gloo's are

    def state_dict(self) -> dict[str, object]:
        return self.site.state_dict()

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        self.site.load_state_dict(state_dict)


class LeaderHook(Callback):
    """A callback that receives all workers' states from the trainer's `Leader`.

    Lightning's hooks are called too, on all ranks. In a run of `gnnkit.train`, hooks of
    the entry-point group `gnnkit.leader` are selected by `leader.NAME=true`. Their
    Lightning hooks are called after the checkpoint of the same event. The figures are
    merged into `result.json`.

    Derive from it to react to the workers' load or progress while they train, for
    example to change a sampler or to notify somebody. A hook must not block, because
    the leader trains too.

    Examples:
        >>> from gnnkit.callback import LeaderHook
        >>> class Slowest(LeaderHook):
        ...     '''Counts the steps in which each worker was the slowest.'''
        ...     def __init__(self):
        ...         self.counts = {}
        ...     def after_step(self, states):
        ...         rank = max(states, key=lambda state: state.seconds_compute).rank
        ...         self.counts[rank] = self.counts.get(rank, 0) + 1
        ...     def figures(self):
        ...         return {"slowest": self.counts}
    """

    def check(self, parts: Any) -> None:
        """Raises `UserError` for a `gnnkit.train` run that the hook does not support.

        Args:
            parts: `settings`, `strategy`, `sync`, `task` and `sampler` of the run.
        """

    def keeps_graph(self, strategy: Any) -> bool:
        """Returns whether the run folder must store the graph and partition.

        A hook that moves nodes needs them to cut new shards during training. Default:
        no.

        Args:
            strategy: The run's strategy.
        """
        return False

    def start(self, leader: Leader) -> None:
        """Called with this rank's leader when training starts.

        On rank 0, `leader` has the states of all workers, and in a run of
        `gnnkit.train` its `run` can move work. Keep it for later calls.
        """

    def after_step(self, states: Sequence[WorkerState]) -> None:
        """Called on rank 0 with the states of a step that all workers have completed.

        Args:
            states: the workers' states by rank. They arrive later than the step, while
                other workers continue.
        """

    def figures(self) -> Mapping[str, object]:
        """Returns plain values for `result.json`, by name. Called once on rank 0."""
        return {}
