"""A training step tried on this machine, with parts of the shards of each layout."""

from __future__ import annotations

import contextlib
import functools
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from gnnkit.comm import Communicator
from gnnkit.config.settings import Settings
from gnnkit.engine.trial import Alone, tell_row_counts
from gnnkit.jobs.imports import import_for_training
from gnnkit.jobs.order import Order
from gnnkit.jobs.rank_job import DTYPES, RankJob, input_dtype, set_up_torch
from gnnkit.jobs.run import start_ranks
from gnnkit.launch.allocator import give_back_freed_memory
from gnnkit.launch.progress import progress
from gnnkit.partition.shard import Shard
from gnnkit.plan.machine import measure_exchange, measure_flops
from gnnkit.prepare.cut import Prepared
from gnnkit.ranges import num_cores
from gnnkit.strategy import Worker
from gnnkit.training.step import loss_of, make_optimizer, own_method
from gnnkit.watch.watch import peak_memory

FIRST = "first"  # folder of the few nodes that are trained first
_STEPS = 10  # timed at most, after one that does not count, and two at least
_SECONDS = 0.4  # after which no further step is timed
_EPOCHS = 5  # of the training of few nodes
_STATUS = Path("/proc/self/status")
_PEAK = Path("/proc/self/clear_refs")  # 5 sets the peak to the present memory


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What some ranks measured at once."""

    flops: float  # of dense products in a second
    latency: float  # seconds of a message. 0 for a single rank
    bandwidth: float  # bytes a second. 0 for a single rank
    base: int  # bytes of a rank before it has data
    step: float  # seconds of a step beside the model's work: Lightning, DDP
    layouts: dict[str, list[list[float]]]  # by layout, then rank: seconds of a step, and bytes beyond `base`


def num_processes(settings: Settings) -> int:
    """Returns how many ranks measure at once.

    As many as the run has, where the cores suffice, and two or more for the exchange.
    """
    if settings.workers == 1:
        return 1
    return max(min(settings.workers_here, num_cores() // settings.threads), 2)


def import_for_steps() -> None:
    """Imports what a rank that trains has imported after the first step."""
    import_for_training()
    torch.optim.SGD([torch.zeros(1)])  # imports torch's compiler, or the stand-in


def rehearse(
    order: Order, folder: Path, layouts: Sequence[str], meanwhile: Callable[[], None] = lambda: None
) -> Rehearsal:
    """Starts ranks that each try a step on every layout.

    Args:
        order: What was asked.
        folder: Has a shard for each layout and process, `LAYOUT/PROCESS`, and a run
            folder `FIRST` with few nodes for each process.
        layouts: Names of the layouts.
        meanwhile: Called a few times a second.
    """
    settings = order.settings
    job = RankJob(settings, folder, Prepared([], {}, "", "", "", None, []), order.model)
    work = functools.partial(_rehearse, job, list(layouts))
    launcher = settings.create_launcher(beside=True)
    return Rehearsal(**start_ranks(work, settings, num_processes(settings), launcher, meanwhile))


def _rehearse(job: RankJob, layouts: list[str], comm: Communicator) -> dict[str, Any]:
    """Measures on one rank. Collective. Returns the figures of all ranks.

    Args:
        job: Nothing is prepared but the shards in the folder.
        layouts: Names of the layouts.
        comm: The ranks that measure.
    """

    def shard(name: str) -> Shard:
        return Shard.load(job.folder / name / str(comm.rank))

    progress("a short measurement of this machine")
    set_up_torch(job.settings)
    import_for_steps()  # ranks of GPUs are not forked
    dtype = DTYPES[job.settings.trainer.precision]
    step = _train_few(job, comm)  # loads what first steps load
    flops = measure_flops(dtype, comm.device)
    base = _Memory(comm.device).before
    tried: list[tuple[float, int]] = []
    for name in layouts:
        progress(f"a trial of {name}")
        grown = _Memory(comm.device)
        seconds = _try_step(job, shard(name), comm, grown)
        # Freed memory that the process has kept since `base` serves this layout too.
        tried.append((seconds, grown.peak - base))
    found = [number for seconds, size in tried for number in (seconds, max(size, 0))]
    latency, bandwidth = measure_exchange(comm, dtype) if comm.world_size > 1 else (0.0, 0.0)
    table = torch.zeros(comm.world_size, len(found) + 2, dtype=torch.float64, device=comm.device)
    table[comm.rank] = torch.tensor([*found, step, base], dtype=torch.float64)
    measured = comm.all_reduce(table).tolist()
    by_layout = {name: [row[2 * i : 2 * i + 2] for row in measured] for i, name in enumerate(layouts)}
    return {
        "flops": flops,
        "latency": latency,
        "bandwidth": bandwidth,
        "base": int(max(row[-1] for row in measured)),
        "step": sum(row[-2] for row in measured) / len(measured),
        "layouts": by_layout,
    }


def _train_few(job: RankJob, comm: Communicator) -> float:
    """Trains the few nodes of `FIRST` by all that a run trains with. Collective.

    So the memory of a rank without data includes Lightning, DDP and the evaluation.
    Returns the seconds that a step takes beside the model's work.
    """
    from gnnkit.jobs.few_steps import few_steps
    from gnnkit.jobs.train import make_module

    if job.settings.servers:  # which the trial does not start
        return 0.0
    job, clock = replace(job, folder=job.folder / FIRST), _clock(job.settings)
    with comm.mailbox() as mailbox:
        module = make_module(job, job.strategy(), job.worker(comm, comm.rank))
        seconds = few_steps(module, job.sync(), mailbox, epochs=_EPOCHS, clock=clock)
    return max(seconds - _try_step(job, job.parts.shard(comm.rank), comm), 0.0)


def counts_cpu(settings: Settings) -> bool:
    """Says whether steps of a trial are measured in seconds of the processor.

    These do not count other work on the machine. With several threads, or ranks that
    are threads, they would count all threads. Numbers of workers, with other threads
    each, are compared by one clock.
    """
    comm = settings.comm.load()
    return settings.auto_workers is None and settings.threads == 1 and comm.device_type == "cpu" and not comm.in_threads


def _clock(settings: Settings) -> Callable[[], float]:
    return time.process_time if counts_cpu(settings) else time.perf_counter


def _try_step(job: RankJob, shard: Shard, comm: Communicator, memory: _Memory | None = None) -> float:
    """Takes some training steps on a shard, with peers that send zeros. Collective.

    Returns the seconds of a step.

    Args:
        job: Nothing is prepared but the shard.
        shard: The shard.
        comm: The ranks that measure at once.
        memory: Measures the first step. Its heap has few gaps, as that of a run has,
            which gives freed memory back until it knows its arrays.
    """
    settings = job.settings
    ranks = Alone(shard.rank, shard.grid.world_size, comm.device)
    dtype, inputs = DTYPES[settings.trainer.precision], input_dtype(settings)
    worker = Worker(ranks, shard, dtype, settings.seed, threads=settings.threads, input_dtype=inputs, order=job.order())
    strategy, task = job.strategy(), job.task()
    model = job.own_model(worker, job.widths(worker), task)
    embedding = job.set_up(strategy, worker, model)
    tell_row_counts(worker.engine(model))
    optimizer = _optimizer(settings, model)
    seconds: list[float] = []
    clock = _clock(settings)
    for epoch in range(_STEPS + 1):
        spent = torch.tensor([sum(seconds)], dtype=torch.float64, device=comm.device)
        if comm.all_reduce(spent).item() > _SECONDS * comm.world_size and epoch > 2:
            break
        start = clock()
        (batch,) = strategy.batches(epoch)
        batch = batch if embedding is None else embedding.fill(batch)
        loss = loss_of(model, task, batch, 0)
        if not epoch:  # which counts no seconds
            give_back_freed_memory()  # as a run does
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        if comm.device.type == "cuda":
            torch.cuda.synchronize(comm.device)
        seconds.append(clock() - start)
        del batch, loss
        if not epoch:
            if memory is not None:
                memory.look()
            give_back_freed_memory()
    strategy.close()
    return min(seconds[1:])


def _optimizer(settings: Settings, model: nn.Module) -> Optimizer:
    """Makes the optimiser, or the first one that the model brings."""
    own = own_method(model, "configure_optimizers")
    if own is None:
        chosen = settings.trainer
        return make_optimizer(model, chosen.optimizer, chosen.lr, chosen.weight_decay)
    made: Any = own()
    while not isinstance(made, Optimizer):
        made = made["optimizer"] if isinstance(made, dict) else made[0]
    return made


class _Memory:
    """Measures the memory before, and the largest up to a look."""

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
        self.peak = self.before

    def look(self) -> None:
        """Notes the largest memory so far."""
        peak = peak_memory(self._device)
        self.peak = peak if self._device.type == "cuda" else _status("VmHWM") or peak


def _status(name: str) -> int:
    """Returns bytes that the system counts for this process. 0: unknown."""
    try:
        lines = dict(line.split(":", 1) for line in _STATUS.read_text(encoding="ascii").splitlines())
        return int(lines[name].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return 0
