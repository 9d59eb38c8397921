"""The leader's site in a user's `Trainer`."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from gnnkit.comm import Communicator, DeadlineExceeded, Mailbox, PeerLost
from gnnkit.comm.process import Gloo
from gnnkit.errors import UserError
from gnnkit.leader.best import BestModel
from gnnkit.leader.meter import SyncMeter, seconds_queued
from gnnkit.leader.site import LeaderSite, StateChannel
from gnnkit.leader.watch import Watch, WorkerState, peak_memory

if TYPE_CHECKING:
    import lightning as L

_CPU = torch.device("cpu")


class TrainerSite(LeaderSite):
    """Measures steps between Lightning's hooks, and connects the ranks."""

    def __init__(self, rule: BestModel | None, folder: Path | None, timeout: float) -> None:
        """Stores the arguments. For them, see `Leader`."""
        self.rule, self.folder, self.timeout = rule, folder, timeout
        self.watch: Watch | None = None
        self._comm: Communicator | None = None  # None with one process, or before connecting
        self._mailbox: Mailbox | None = None
        self._meter = SyncMeter()
        self._steps = 0
        self._step_start = self._batch_arrival = self._queue_start = 0.0
        self._logged_before: set[str] = set()  # metrics logged before the evaluation
        self._validates: bool | None = None  # whether evaluations log the metric, or None if not known yet

    def begin(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.close()
        self._steps, self._meter = 0, SyncMeter()
        if trainer.global_rank == 0:
            self.watch = _open_watch(trainer, self.folder)
        if trainer.world_size > 1:
            self._connect(trainer)
        self.channel = StateChannel(self._mailbox, trainer.global_rank, trainer.world_size, self.watch)
        self._meter.attach(trainer.strategy.model)

    def _connect(self, trainer: L.Trainer) -> None:
        """Creates a process group and a mailbox for the leader. Collective."""
        if not dist.is_initialized():
            raise UserError(
                f"Leader: {type(trainer.strategy).__name__} has {trainer.world_size} processes and no default process "
                "group of torch.distributed; use strategy='ddp'"
            )
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=self.timeout))
        self._comm = Gloo(group, _CPU, self.timeout)  # type: ignore[arg-type]
        self._mailbox = self._comm.mailbox()

    def begin_epoch(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.restart_clock(module)

    def restart_clock(self, module: L.LightningModule) -> None:
        self._step_start = self._batch_arrival = time.perf_counter()
        self._queue_start = seconds_queued()
        self._meter.reset()

    def batch_arrived(self) -> None:
        self._batch_arrival = time.perf_counter()

    def end_step(self, trainer: L.Trainer, module: Any, outputs: object, batch: object) -> WorkerState:
        now, wait_seconds = time.perf_counter(), self._batch_arrival - self._step_start
        compute_seconds = max(now - self._batch_arrival - self._meter.seconds, 0.0)
        rows, edges = batch_sizes(batch)
        self._steps += 1
        state = WorkerState(
            rank=trainer.global_rank,
            epoch=trainer.current_epoch,
            step=self._steps,
            loss=_loss_of(outputs),
            rows=rows,
            total=rows,
            synchronised=self._meter.seconds > 0,
            gradient_norm=math.nan,  # not measured, because it would need a pass over all gradients
            seconds_wait=wait_seconds,
            seconds_compute=compute_seconds,
            seconds_exchange=0.0,
            seconds_sync=self._meter.seconds,
            edges=edges,
            rows_per_second=rows / max(now - self._step_start, 1e-9),
            memory=peak_memory(module.device),
            seconds_queued=min(seconds_queued() - self._queue_start, compute_seconds),
        )
        self.channel.post(state)
        self.restart_clock(module)
        return state

    def begin_evaluation(self, trainer: L.Trainer) -> None:
        if self._validates is None:
            self._logged_before = set(trainer.callback_metrics)

    def end_evaluation(self, trainer: L.Trainer, module: Any) -> None:
        if self.rule is None or trainer.sanity_checking:
            return
        if self._validates is None:
            self._validates = self.rule.name in set(trainer.callback_metrics) - self._logged_before
        if self._validates:
            self._check_metric(self.rule, trainer, module)
        self.restart_clock(module)

    def end_epoch(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if self.rule is None:
            return
        if not self._validates and self.rule.name in trainer.callback_metrics:
            self._check_metric(self.rule, trainer, module)
        trainer.should_stop = trainer.should_stop or self.rule.stopped is not None

    def _check_metric(self, rule: BestModel, trainer: L.Trainer, module: L.LightningModule) -> None:
        value = torch.tensor(float(trainer.callback_metrics[rule.name]), dtype=torch.float64)
        if self._comm is not None:
            value = self._comm.all_reduce(value) / self._comm.world_size
        rule.look(float(value), trainer, _ModuleCopies(module, self._comm))

    def end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        if self.rule is not None and not self.rule.best_epoch:
            names = ", ".join(sorted(trainer.callback_metrics)) or "nothing"
            raise UserError(
                f"Leader(monitor={self.rule.name!r}): no such metric was logged, only {names}; use self.log"
            )
        try:
            self.channel.finish(self.timeout)
        except (PeerLost, DeadlineExceeded) as error:
            print(f"Leader: the last states are incomplete: {error}", file=sys.stderr, flush=True)
        self.close()

    def close(self, *, failed: bool = False) -> None:
        if self._mailbox is not None:
            deadline = time.monotonic() + 2 * failed  # a closed connection may be noticed after gloo's error
            while not (lost_ranks := sorted(self._mailbox.gone())) and time.monotonic() < deadline:
                time.sleep(0.01)
            if failed and lost_ranks:
                print(f"Leader: lost ranks {lost_ranks}, whose processes have ended", file=sys.stderr, flush=True)
            self._mailbox.close()
        if self.watch is not None:
            self.watch.close()
        if self._comm is not None:
            dist.destroy_process_group(self._comm.group)  # type: ignore[attr-defined]
        self._mailbox = self._comm = None

    def state_dict(self) -> dict[str, object]:
        return {} if self.rule is None or self.rule.parameters is None else self.rule.state_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        name = state.get("name", state.get("monitor"))  # the key of earlier checkpoints
        if self.rule is not None and name == self.rule.name:
            self.rule.load_state_dict(state)


def _open_watch(trainer: L.Trainer, folder: Path | None) -> Watch:
    """Creates the folder and the watch. Raises `UserError` for a bad folder."""
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        epochs = trainer.max_epochs or 0
        return Watch(trainer.world_size, folder, epochs, quiet=True, every=1, log=_log_nothing)
    except OSError as error:
        raise UserError(
            f"Leader(folder={str(folder)!r}): cannot write there: {error.strerror}; pass a writable folder"
        ) from error


class _ModuleCopies:
    """Copies a user's module, with the buffers of rank 0."""

    def __init__(self, module: L.LightningModule, comm: Communicator | None) -> None:
        self.model, self._comm = module, comm

    def joint(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def snapshot(self) -> dict[str, Tensor]:
        state = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        if self._comm is not None:
            for name, _ in self.model.named_buffers():
                if name in state:
                    state[name].copy_(self._comm.broadcast(state[name].cpu().contiguous(), src=0))
        return state

    def put_back(self, snapshot: dict[str, Tensor]) -> None:
        self.model.load_state_dict(snapshot)


def batch_sizes(batch: object) -> tuple[int, int]:
    """Returns the numbers of output rows and edges of a batch from a `Loader`.

    Returns 1 row and 0 edges for other batches.
    """
    if isinstance(batch, Mapping):
        rows, blocks = batch.get("seeds", (0,)), batch.get("blocks", ())
        return len(rows), sum(len(block["indices"]) for block in blocks)
    if hasattr(batch, "blocks") and hasattr(batch, "seeds"):
        return len(batch.seeds), sum(len(block.indices) for block in batch.blocks)
    rows, edges = getattr(batch, "batch_size", 1), getattr(batch, "num_edges", 0)
    return (rows if isinstance(rows, int) else 1), (edges if isinstance(edges, int) else 0)


def _loss_of(outputs: object) -> float:
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    return float(loss) if isinstance(loss, Tensor) else math.nan


def _log_nothing(scalars: Mapping[str, float], step: int) -> None:
    """Does nothing, because scalars belong to the user's loggers."""
