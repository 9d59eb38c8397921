"""Construction of Lightning's trainer for one rank."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Sequence
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.connectors import data_connector

from gnnkit.comm import Mailbox
from gnnkit.leader.meter import SyncMeter
from gnnkit.strategy import ExecutionStrategy, Worker
from gnnkit.sync import GradientSync
from gnnkit.training.ddp import StartedRanks, UnwrappedStrategy, WrappedStrategy
from gnnkit.training.finite import Guard
from gnnkit.training.freed import FreedMemory
from gnnkit.training.logged import EpochFigures
from gnnkit.training.loss import LossCheck
from gnnkit.training.module import TrainingModule


def make_trainer(
    module: TrainingModule,
    sync: GradientSync,
    meter: SyncMeter,
    *,
    guard: Guard | None = None,
    mailbox: Mailbox | None = None,
    callbacks: Sequence[Callback] = (),
    **options: Any,
) -> L.Trainer:
    """Creates the trainer of one rank.

    Args:
        module: The rank's module.
        sync: Steps the optimiser, unless Lightning's DDP does the same.
        meter: Measures the synchronisation.
        guard: The rule for non-finite gradients. If None, they end the run.
        mailbox: Connects all ranks, for `sync`. If None, `sync` creates one if needed.
        callbacks: The trainer's callbacks.
        **options: Further arguments of Lightning's trainer.
    """
    worker, guard = module.worker, guard or Guard()
    module.sync = sync
    strategy: WrappedStrategy | UnwrappedStrategy
    if module.embedding is None and module.accumulate == 1 and uses_ddp(sync, module.strategy, worker):
        strategy = WrappedStrategy(worker.comm, meter, guard, int(os.environ["LOCAL_RANK"]))
    else:
        sync.setup(module, worker.comm, mailbox)
        strategy = UnwrappedStrategy(worker.comm, sync, meter, guard)
    is_wrapped = isinstance(strategy, WrappedStrategy)
    _set_up_lightning(in_threads=worker.comm.in_threads)
    trainer = L.Trainer(
        accelerator="gpu" if worker.device.type == "cuda" else "cpu",
        strategy=strategy,
        # Prevents Lightning from reading SLURM variables, which would fail.
        plugins=[] if is_wrapped else [StartedRanks(worker.comm, 0)],
        callbacks=[guard, LossCheck(), FreedMemory(), EpochFigures(), *callbacks],
        devices=strategy.num_processes if isinstance(strategy, WrappedStrategy) else 1,
        enable_progress_bar=False,  # gnnkit replaces this and the next three features
        enable_checkpointing=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        reload_dataloaders_every_n_epochs=1,  # epochs may differ in length
        **options,
    )
    if is_wrapped:  # Lightning would broadcast before each step whether to end, which the launcher decides
        parts: Any = trainer
        parts._signal_connector.register_signal_handlers = lambda: None
        parts.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None
    return trainer


def uses_ddp(sync: GradientSync, strategy: ExecutionStrategy, worker: Worker) -> bool:
    """Returns whether Lightning's DDP replaces `sync`.

    It does if ranks are processes that synchronise in every step.
    """
    comm = worker.comm
    return sync.ddp and comm.is_process_group and comm.world_size > 1 and strategy.steps.only_synchronise


def _set_up_lightning(*, in_threads: bool) -> None:
    """Hides Lightning's hints, and makes it usable by several threads.

    Lightning's errors concern users, but its hints do not, because users do not call
    it. It also wraps the constructors of all torch loaders while it creates a loader,
    which fails if ranks are threads that create loaders at the same time. gnnkit's
    loaders are not subclasses of these, so threads do not wrap them.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"lightning\.")
    if in_threads:
        setattr(data_connector, "_replace_dunder_methods", lambda *_: contextlib.nullcontext())  # noqa: B010
