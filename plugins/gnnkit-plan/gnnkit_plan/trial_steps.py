"""Short trials on ranks, which measure the time and memory of training steps."""

from __future__ import annotations

import contextlib
import functools
import gc
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from lightning.pytorch.callbacks import Callback

from gnnkit.comm import LEADER, Communicator, Mailbox
from gnnkit.config.settings import Settings
from gnnkit.graph import SPLITS
from gnnkit.jobs.rank_job import DTYPES, RankJob, input_dtype, set_up_torch, with_servers
from gnnkit.jobs.rank_run import make_module
from gnnkit.launch.allocator import give_back_freed_memory
from gnnkit.launch.progress import progress
from gnnkit.leader.meter import SyncMeter
from gnnkit.leader.watch import peak_memory
from gnnkit.partition.shard import Shard
from gnnkit.prepare.facts import Prepared
from gnnkit.result.folder import PREPARED
from gnnkit.strategy import GatheredRows, ReadPlanner, Worker
from gnnkit.strategy.on_disk import CACHE_SHARE
from gnnkit.training.module import TrainingModule
from gnnkit.training.step import loss_of
from gnnkit.training.trainer import make_trainer
from gnnkit.utils.documents import read_or_empty
from gnnkit.utils.ranges import num_cores
from gnnkit_plan.alone import Alone, set_row_counts
from gnnkit_plan.layout import Trial

EPOCHS = 3  # of a layout's trial, with an evaluation at the end. The first epoch is not timed

# Epochs with sampled batches. The second starts with a full cache, and evaluates with a
# fragmented heap.
BATCH_EPOCHS = 2
BATCH_STEPS = 16  # per epoch
EVALUATED = 10_000_000  # maximum number of a rank's edges in the evaluation whose memory is measured
_STATUS = Path("/proc/self/status")
_PEAK = Path("/proc/self/clear_refs")  # writing 5 resets the peak to the current memory


def try_layouts(job: RankJob, layouts: Mapping[str, Prepared], world: Communicator) -> dict[str, Any]:
    """Runs a few epochs on each layout, with all ranks of the run. Collective.

    Returns the `Trial` of each layout on the leader, and the bytes of a rank's process
    without data.

    Args:
        job: The job. Its folder has a subfolder with the shards of each layout.
        layouts: The prepared data, by layout name.
        world: The workers, followed by the servers.
    """
    base, trials = _base(job.settings, world), dict[str, Any]()
    for name, shards in layouts.items():
        progress(f"a trial of {name}")
        layout_job = replace(job, folder=job.folder / name, prepared=shards)
        trial = with_servers(layout_job, world, functools.partial(_try_layout, layout_job))
        trials |= {} if trial is None else {name: asdict(trial)}
    return {"base": base, "trials": trials}


def _try_layout(job: RankJob, comm: Communicator, mailbox: Mailbox) -> Trial:
    peak, strategy = MemoryPeak(comm.device), job.strategy()
    if strategy.finishes == "always":  # all epochs exact, as words are
        exact = replace(job.settings.trainer, exact_shares=(float(EPOCHS), 0.0))
        job = replace(job, settings=replace(job.settings, trainer=exact))
    module = make_module(replace(job, quiet=True), strategy, job.worker(comm))
    epochs = few_steps(module, job, mailbox, epochs=EPOCHS, every=EPOCHS)
    times = comm.all_gather(epochs, torch.float64).cpu().numpy()[:, 1:]
    # Epochs without an exchange do not represent the others.
    alike = module.strategy.steps.only_synchronise
    total, exchange = (times[:, times[:, :, 0].max(0).argmin()] if alike else times.mean(1)).T
    at_once = num_cores() if counts_cpu(job.settings) else comm.world_size  # more ranks take turns
    seconds = max(total.max(), total.sum() / at_once)
    return Trial(float(seconds), float(exchange.sum() / max(total.sum(), 1e-9)), comm.all_gather(peak.read()).tolist())


def try_alone(job: RankJob, comm: Communicator) -> dict[str, Any]:
    """Runs two steps on one rank's shard, with zeros from its peers.

    Returns the peak bytes, and those of the process without data.

    Args:
        job: The job, whose folder has the shard.
        comm: A communicator of this process only.
    """
    settings, base = job.settings, _base(job.settings, comm)
    progress("a trial of the busiest rank")
    peak, shard = MemoryPeak(comm.device), Shard.load(job.folder / PREPARED / "0")
    ranks = Alone(shard.rank, shard.grid.world_size, comm.device)
    dtype, inputs = DTYPES[settings.trainer.precision], input_dtype(settings)
    worker = Worker(ranks, shard, dtype, settings.seed, threads=settings.threads, input_dtype=inputs, order=job.order())
    strategy, task = job.strategy(), job.task()
    model = job.own_model(worker, job.widths(worker), task)
    embedding = job.set_up(strategy, worker, model)
    set_row_counts(worker.engine(model))
    for epoch in range(2):  # the first one caches sums
        (batch,) = strategy.batches(epoch)
        loss = loss_of(model, task, batch if embedding is None else embedding.fill(batch), 0)
        give_back_freed_memory()  # as in a run
        loss.backward()  # type: ignore[no-untyped-call]
    strategy.close()
    return {"base": base, "memory": peak.read()}


def _base(settings: Settings, comm: Communicator) -> int:
    """Returns the bytes of a rank's process after all imports. Collective."""
    set_up_torch(settings)
    torch.optim.SGD([torch.zeros(1)])  # imports torch's compiler, or its placeholder
    return int(comm.all_gather(MemoryPeak(comm.device).before).max())


def counts_cpu(settings: Settings) -> bool:
    """Whether trials measure CPU time, which excludes other processes.

    CPU time would add up the threads of a rank and ranks that are threads, and would
    omit a simulated link. Different numbers of workers are compared by wall time.
    """
    comm = settings.comm.load()
    alone = settings.threads == 1 and not comm.in_threads and not settings.comm.arguments
    return alone and settings.auto_workers is None and comm.device_type == "cpu"


class MemoryPeak:
    """This process's memory before a trial, and its peak since then."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        gc.collect()
        give_back_freed_memory()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self.before = torch.cuda.memory_allocated(device)
        else:
            with contextlib.suppress(OSError):
                _PEAK.write_text("5", encoding="ascii")
            self.before = _status("VmRSS") or peak_memory(device)

    def read(self) -> int:
        """Returns the peak in bytes."""
        peak = peak_memory(self._device)
        return peak if self._device.type == "cuda" else _status("VmHWM") or peak


def _status(name: str) -> int:
    """Reads a memory size of this process from the system. 0: unknown."""
    lines = dict(line.split(":", 1) for line in read_or_empty(_STATUS).splitlines())
    return int(lines[name].split()[0]) * 1024 if name in lines else 0


def few_steps(
    module: TrainingModule,
    job: RankJob,
    mailbox: Mailbox,
    *,
    epochs: int,
    every: int = 1,
    steps: int | None = None,
) -> list[tuple[float, float]]:
    """Trains and evaluates as a run does, and closes the strategy. Collective.

    Does not write logs or checkpoints. Returns two durations in seconds for each epoch:
    total, and in exchanges.

    Args:
        module: The module of this rank.
        job: Makes the synchronisation.
        mailbox: Messages between all ranks.
        epochs: Number of epochs.
        every: Epochs between evaluations.
        steps: Maximum number of steps per epoch. Default: all.
    """
    clock = time.process_time if counts_cpu(job.settings) else time.perf_counter
    sync, meter = job.sync(), SyncMeter(module.worker.comm.end_of_sum, clock)
    module.strategy.tally.clock = meter.clock
    timer = _Timer(meter)
    options: Mapping[str, Any] = {"max_epochs": epochs, "check_val_every_n_epoch": every, "limit_train_batches": steps}
    make_trainer(module, sync, meter, mailbox=mailbox, callbacks=[timer], logger=False, **options).fit(module)
    sync.close()
    module.strategy.close()
    return timer.epochs


class _Timer(Callback):
    """Times epochs without their evaluation."""

    def __init__(self, meter: SyncMeter) -> None:
        self._meter = meter
        self._start = (0.0, 0.0)
        self.epochs: list[tuple[float, float]] = []  # seconds: total, in exchanges

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        self._start = self._meter.clock(), module.strategy.tally.seconds
        self.epochs.append((0.0, 0.0))

    def on_train_batch_end(self, trainer: Any, module: Any, *_: object) -> None:
        start, exchange_start = self._start
        self.epochs[-1] = self._meter.clock() - start, module.strategy.tally.seconds - exchange_start
        self._meter.reset()


def plan_batches(job: RankJob, world: Communicator) -> dict[str, Any]:
    """Runs a few steps on sampled batches, and draws the batches of the first epochs.

    Collective. Returns the figures on the leader.

    Args:
        job: The job.
        world: The workers, followed by the servers.
    """
    return with_servers(job, world, functools.partial(_plan_batches, job)) or {}


def _plan_batches(job: RankJob, comm: Communicator, mailbox: Mailbox) -> dict[str, Any]:
    figures: dict[str, Any] = {"job": "plan", "model": job.source.name, "place": job.prepared.place}
    module = _batch_module(job, comm)
    if module.worker.disk is not None and not module.strategy.lacks(GatheredRows):
        progress("drawing batches")
        epochs = min(BATCH_EPOCHS, job.settings.trainer.max_epochs)
        figures["features_read"] = cast(ReadPlanner, module.strategy).predict_reads(epochs)
        module.strategy.close()
        module = _batch_module(job, comm)
    progress("taking steps")
    figures["memory"] = _batch_memory(job, module, mailbox, figures.get("features_read", {}).get("window", 0))
    return figures if comm.rank == LEADER else {}


def _batch_module(job: RankJob, comm: Communicator) -> TrainingModule:
    return make_module(job, job.strategy(), job.worker(comm), scratch=job.scratch_folder(comm))


def _batch_memory(job: RankJob, module: TrainingModule, mailbox: Mailbox, window: int) -> list[int]:
    """Returns each rank's peak bytes. Collective.

    Measures some steps and an evaluation. Adds the parts of the cache and of the
    batches read ahead that these did not fill.

    Args:
        job: The job.
        module: The module of this rank.
        mailbox: Messages between all ranks.
        window: Number of batches drawn ahead of disk reads.
    """
    comm, disk = module.worker.comm, module.worker.disk
    if module.learned is None and (subset := _some_nodes(module.worker)) is not module.worker:
        module.evaluation = job.evaluation(subset, module.model, splits=tuple(SPLITS), scratch=job.scratch_folder(comm))
    few_steps(module, job, mailbox, epochs=BATCH_EPOCHS, steps=BATCH_STEPS)
    extra = 0
    if disk is not None:
        empty = disk.cache_rows - min(disk.counts.rows, disk.cache_rows)
        ahead = disk.cache_rows * disk.row_bytes // CACHE_SHARE * max(window - BATCH_STEPS, 0) // max(window, 1)
        extra = empty * disk.row_bytes + ahead
    return comm.all_gather(peak_memory(comm.device) + extra).tolist()


def _some_nodes(worker: Worker) -> Worker:
    """Returns the worker with as many nodes as have `EVALUATED` in-edges.

    An evaluation splits more nodes into chunks of equal memory. Returns the worker
    itself if it has no more nodes, or if its shard holds the edges.
    """
    if worker.graph is None or worker.fetches:
        return worker
    shard, indptr = worker.shard, worker.graph.csc.indptr
    count = int(np.searchsorted(np.cumsum(indptr[shard.owned + 1] - indptr[shard.owned]), EVALUATED)) + 1
    if count >= len(shard.owned):
        return worker
    prefix = {name: getattr(shard, name)[:count] for name in ("owned", "labels", "split")}
    return replace(worker, shard=replace(shard, **prefix))
