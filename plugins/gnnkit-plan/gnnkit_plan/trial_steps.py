"""Short trials on ranks, which measure the time and memory of training steps."""

from __future__ import annotations

import contextlib
import functools
import gc
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback

from gnnkit.comm import Communicator, Mailbox
from gnnkit.config.settings import Settings
from gnnkit.jobs.rank_job import RankJob, set_up_torch, with_servers
from gnnkit.jobs.rank_run import make_module
from gnnkit.launch.lean import give_back_freed_memory
from gnnkit.launch.progress import progress
from gnnkit.leader.meter import SyncMeter
from gnnkit.leader.watch import peak_memory
from gnnkit.prepare.facts import Prepared
from gnnkit.training.module import TrainingModule
from gnnkit.training.trainer import make_trainer
from gnnkit.utils.documents import read_or_empty
from gnnkit.utils.ranges import num_cores
from gnnkit_plan.layout import Trial

EPOCHS = 3  # of a layout's trial, with an evaluation at the end. The first epoch is not timed
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
    epochs = few_steps(module, job, mailbox)
    times = comm.all_gather(epochs, torch.float64).cpu().numpy()[:, 1:]
    # Epochs without an exchange do not represent the others.
    alike = module.strategy.steps.only_synchronise
    total, exchange = (times[:, times[:, :, 0].max(0).argmin()] if alike else times.mean(1)).T
    at_once = num_cores() if counts_cpu(job.settings) else comm.world_size  # more ranks take turns
    seconds = max(total.max(), total.sum() / at_once)
    return Trial(float(seconds), float(exchange.sum() / max(total.sum(), 1e-9)), comm.all_gather(peak.read()).tolist())


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


def few_steps(module: TrainingModule, job: RankJob, mailbox: Mailbox) -> list[tuple[float, float]]:
    """Trains and evaluates as a run does, and closes the strategy. Collective.

    Does not write logs or checkpoints. Returns two durations in seconds for each epoch:
    total, and in exchanges.

    Args:
        module: The module of this rank.
        job: Makes the synchronisation.
        mailbox: Messages between all ranks.
    """
    clock = time.process_time if counts_cpu(job.settings) else time.perf_counter
    sync, meter = job.sync(), SyncMeter(module.worker.comm, clock)
    module.strategy.tally.clock = meter.clock
    timer = _Timer(meter)
    options: Mapping[str, Any] = {"max_epochs": EPOCHS, "check_val_every_n_epoch": EPOCHS}
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
