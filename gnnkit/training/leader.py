"""The leader: rank 0, which plans, assigns, aggregates, coordinates and watches."""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TextIO

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback

from gnnkit.partition.quality import max_over_mean
from gnnkit.strategy.base import Batch, Worker
from gnnkit.training.ranks import SyncMeter
from gnnkit.training.stragglers import Stragglers

STATUS_SECONDS = 10.0  # between lines of progress where there is no terminal


@dataclass(frozen=True, slots=True)
class WorkerState:
    """What one worker did in one step."""

    step: float
    loss: float  # its part of the sum
    gradient_norm: float  # of its own gradient, before synchronisation
    seconds_compute: float
    seconds_exchange: float
    seconds_sync: float
    edges: float  # that it aggregated over, summed over the layers
    rows_per_second: float  # output rows
    memory: float  # peak so far, bytes

    @property
    def phase(self) -> str:
        """Where the step spent most of its time."""
        seconds = {"compute": self.seconds_compute, "exchange": self.seconds_exchange, "sync": self.seconds_sync}
        return max(seconds, key=seconds.__getitem__)


class Leader(Callback):
    """Publishes the state of every worker, step by step: `workers.jsonl` (a line for each worker) and scalars; names stragglers;
    says how even the work of each epoch was, counted in edges.

    All ranks run this callback; only rank 0 writes.
    """

    def __init__(self, worker: Worker, meter: SyncMeter, folder: Path, *, quiet: bool) -> None:
        self.worker, self.meter, self.folder, self.quiet = worker, meter, folder, quiet
        self.epoch_seconds: list[float] = []  # training steps only
        self.words: dict[str, int] = {"gathered": 0, "reduced": 0, "sliced": 0, "bytes": 0}  # all epochs
        self.work_max_over_mean: list[float] = []  # of each epoch, over the ranks: 1 is even
        self.train_loss = float("nan")
        self.states: list[WorkerState] = []  # of the last step, by rank
        self.stragglers: dict[str, float] = {}  # times slower than the others, when last named
        self._watch = Stragglers(worker.comm.world_size)
        self._lines: TextIO | None = None
        self._last_status = time.monotonic()

    def on_train_start(self, trainer: L.Trainer, module: Any) -> None:
        if self.worker.comm.rank == 0:
            self._lines = (self.folder / "workers.jsonl").open("a", buffering=1, encoding="utf-8")

    def on_train_epoch_start(self, trainer: L.Trainer, module: Any) -> None:
        self.epoch_seconds.append(0.0)
        self._edges = np.zeros(self.worker.comm.world_size)  # of this epoch, by rank

    def on_train_batch_start(self, trainer: L.Trainer, module: Any, batch: Batch, batch_idx: int) -> None:
        self.meter.reset()
        module.strategy.traffic.reset()
        self._step_start = time.perf_counter()

    def on_train_batch_end(self, trainer: L.Trainer, module: Any, outputs: Any, batch: Batch, batch_idx: int) -> None:
        seconds = time.perf_counter() - self._step_start
        traffic = module.strategy.traffic
        self.epoch_seconds[-1] += seconds
        self.words["gathered"] += traffic.total("gather")
        self.words["reduced"] += traffic.total("reduce")
        self.words["sliced"] += traffic.total("slice")
        self.words["bytes"] += traffic.bytes_sent
        state = WorkerState(
            step=trainer.global_step,
            loss=float(module.local_loss),
            gradient_norm=self.meter.square_norm**0.5,
            seconds_compute=max(seconds - traffic.seconds - self.meter.seconds, 0.0),
            seconds_exchange=traffic.seconds,
            seconds_sync=self.meter.seconds,
            edges=sum(len(adjacency.edge_ids) for adjacency in batch.adjacencies),
            rows_per_second=batch.adjacencies[-1].num_dst / seconds,
            memory=peak_memory(self.worker.device),
        )
        states = self.states = self._collect(state)
        self._edges += [state.edges for state in states]
        self.train_loss = sum(state.loss for state in states)
        if not batch.synchronise:  # each is a mean over the rank's own rows then
            self.train_loss /= len(states)
        module.log("train_loss", self.train_loss, prog_bar=True, batch_size=1)
        if self._lines is not None:
            self._publish(trainer, states, self._lines)
            self._name_stragglers(trainer.global_step)

    def on_train_epoch_end(self, trainer: L.Trainer, module: Any) -> None:
        self.work_max_over_mean.append(max_over_mean(self._edges))
        module.log("work_max_over_mean", self.work_max_over_mean[-1])

    @property
    def balance(self) -> dict[str, float]:
        """Largest over mean of the ranks' work: mean and worst of the epochs that were run. Empty where none was."""
        epochs = self.work_max_over_mean
        return {"work_mean": statistics.fmean(epochs), "work_worst": max(epochs)} if epochs else {}

    def _collect(self, state: WorkerState) -> list[WorkerState]:
        """Every worker's state, by rank, on all ranks. Collective."""
        table = torch.zeros(self.worker.comm.world_size, len(fields(state)), dtype=torch.float64)
        table[self.worker.comm.rank] = torch.tensor(list(asdict(state).values()), dtype=torch.float64)
        rows = self.worker.comm.all_reduce(table.to(self.worker.device)).tolist()
        return [WorkerState(*row) for row in rows]

    def _publish(self, trainer: L.Trainer, states: list[WorkerState], lines: TextIO) -> None:
        for rank, state in enumerate(states):
            line = {"time": time.time(), "epoch": trainer.current_epoch, "rank": rank, "phase": state.phase} | asdict(
                state
            )
            counts = {"step": int(state.step), "edges": int(state.edges), "memory": int(state.memory)}
            lines.write(json.dumps(line | counts) + "\n")
        if trainer.global_step % trainer.log_every_n_steps == 0:  # type: ignore[attr-defined]
            scalars = {
                f"rank{rank}/{k}": v
                for rank, state in enumerate(states)
                for k, v in asdict(state).items()
                if k != "step"
            }
            for logger in trainer.loggers:
                logger.log_metrics(scalars, step=trainer.global_step)
        if not self.quiet and time.monotonic() - self._last_status > STATUS_SECONDS:
            self._last_status = time.monotonic()
            print(
                f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}  train_loss {self.train_loss:.4f}",
                file=sys.stderr,
            )

    def _name_stragglers(self, step: int) -> None:
        for straggler in self._watch.observe(step, [state.seconds_compute for state in self.states]):
            self.stragglers[f"rank {straggler.rank}"] = round(straggler.factor, 1)
            print(straggler, file=sys.stderr, flush=True)

    def on_train_end(self, trainer: L.Trainer, module: Any) -> None:
        if self._lines is not None:
            self._lines.close()

    def on_exception(self, trainer: L.Trainer, module: Any, exception: BaseException) -> None:
        self.on_train_end(trainer, module)


def peak_memory(device: torch.device) -> int:
    """Bytes: of the GPU's allocator, or the resident set of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
