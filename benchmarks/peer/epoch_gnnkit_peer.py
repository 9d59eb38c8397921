"""Epochs of gnnkit, as the only rank of `strategy=vertex_centric` computes them."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from epochs import Epochs
from steps import LR, Clock, Step, serve_steps
from torch.utils._python_dispatch import TorchDispatchMode

from gnnkit import _core, config
from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.config import settings
from gnnkit.jobs.rank_job import RankJob
from gnnkit.jobs.rank_run import make_module
from gnnkit.launch.lean import keep_freed_memory
from gnnkit.prepare.cut import prepare
from gnnkit.prepare.facts import Needs, Preparation, Prepared
from gnnkit.training.module import TrainingModule

NEEDS = Needs(trains=True, graph=False, reference=False)
OWN = [f"trainer.lr={LR}", "trainer.optimizer=adam", "trainer.weight_decay=0", "model.dropout=0"]
CORE = tuple(value for value in vars(_core).values() if isinstance(value, type))
DENSE = (
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "mv",
    "addmv",
    "linear",
    "mkldnn_linear",
    "_addmm_activation",
    "_linear_pointwise",
)


def module_of(comm: Communicator, job: Epochs) -> TrainingModule:
    """Prepares the graph, and makes what the rank trains."""
    keys = ["strategy=vertex_centric", "workers=1", f"threads={job.case.threads}"]
    run_settings = settings.settle(config.compose([*keys, *OWN, *job.overrides]))

    def prepared() -> tuple[Any, Prepared]:
        folder = tempfile.TemporaryDirectory()
        return folder, Prepared(**prepare(Preparation(run_settings, NEEDS, Path(folder.name))))

    folder, facts = job.case.cached("prepared", prepared)
    ours = RankJob(run_settings, Path(folder.name), facts)
    return make_module(ours, ours.strategy(), ours.worker(comm))


def step_of(module: TrainingModule) -> Step:
    """Makes the step of an epoch, without Lightning's loop around the step."""
    optimizer = module.configure_optimizers()

    def step(number: int, clock: Clock) -> None:
        with clock("rest"):
            (batch,) = module.strategy.batches(number)
        with clock("forward"):
            loss = module.training_step(batch, 0)
        with clock("backward"):
            loss.backward()
        with clock("rest"):
            optimizer.step()
            optimizer.zero_grad()

    return step


def epoch_of(comm: Communicator, job: Epochs) -> Step:
    return step_of(module_of(comm, job))


def rounded_epoch_of(comm: Communicator, job: Epochs) -> Step:
    return epoch_of(comm, replace(job, overrides=(*job.overrides, "trainer.precision=bf16-mixed")))


class DenseClock(TorchDispatchMode):
    """Adds up the seconds in torch's products of dense matrices, of both passes."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        begin = time.perf_counter()
        out = function(*args, **(kwargs or {}))
        if function.overloadpacket.__name__ in DENSE:
            self.seconds += time.perf_counter() - begin
        return out


class CoreClock:
    """Adds up the seconds in methods of the core's classes, which aggregate."""

    def __init__(self) -> None:
        self.seconds = self._begin = 0.0

    def __enter__(self) -> CoreClock:
        sys.setprofile(self._see)  # of this thread, where backward passes on CPUs run too
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _see(self, frame: FrameType, event: str, function: Any) -> None:
        if not event.startswith("c_") or not isinstance(getattr(function, "__self__", None), CORE):
            return
        if event == "c_call":
            self._begin = time.perf_counter()
        else:
            self.seconds += time.perf_counter() - self._begin


def shares_of(comm: Communicator, job: Epochs) -> Step:
    """Makes epochs whose clock has the seconds of each share."""
    module = module_of(comm, job)
    step, tally = step_of(module), module.strategy.tally

    def watched(number: int, clock: Clock) -> None:
        exchange_start = tally.seconds
        with DenseClock() as dense, CoreClock() as core:
            begin = time.perf_counter()
            step(number, Clock())
            seconds = time.perf_counter() - begin
        parts = {"dense": dense.seconds, "aggregation": core.seconds, "exchange": tally.seconds - exchange_start}
        clock.seconds = {**parts, "other": seconds - sum(parts.values())}

    return watched


def serve(comm: Communicator) -> None:
    makers = {"epoch": epoch_of, "epoch, bfloat16": rounded_epoch_of, "shares": shares_of}
    ready = {name: functools.partial(make, comm) for name, make in makers.items()}
    serve_steps(ready, f"gnnkit, torch {torch.__version__}", Epochs.of)


if os.environ.get("STEP_ALLOCATOR") == "ranks":
    keep_freed_memory()
Threads.run(serve, 1, timeout=60.0)
