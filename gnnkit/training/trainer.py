"""Lightning's trainer on our ranks."""

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
    """Makes the trainer of one rank.

    Args:
        module: The rank's module.
        sync: Steps the optimiser, unless Lightning's DDP does the same.
        meter: Measures the synchronisation.
        guard: The rule for gradients that are not finite. Default: end the run.
        mailbox: Letters between all ranks, for `sync`. Default: none.
        callbacks: Callbacks of the trainer. Default: none.
        **options: Further arguments of Lightning's trainer.
    """
    worker, guard = module.worker, guard or Guard()
    module.sync = sync
    if worker.comm.in_threads:
        _leave_constructors_alone()
    plugins: list[Any] = []
    if module.embedding is None and module.accumulate == 1 and uses_ddp(sync, module.strategy, worker):
        strategy: Any = WrappedStrategy(worker.comm, meter, guard, int(os.environ["LOCAL_RANK"]))
    else:
        sync.setup(module, worker.comm, mailbox)
        strategy = UnwrappedStrategy(worker.comm, sync, meter, guard)
        plugins = [StartedRanks(worker.comm, 0)]  # otherwise Lightning reads the variables of SLURM, and refuses
    # Users do not call Lightning. Lightning's errors concern users, but hints do not.
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"lightning\.")
    return L.Trainer(
        accelerator="gpu" if worker.device.type == "cuda" else "cpu",
        strategy=strategy,
        plugins=plugins,
        callbacks=[guard, LossCheck(), FreedMemory(), EpochFigures(), *callbacks],
        devices=strategy.num_processes if isinstance(strategy, WrappedStrategy) else 1,
        enable_progress_bar=False,  # Lightning's own, as are the next two
        enable_checkpointing=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        reload_dataloaders_every_n_epochs=1,  # a resumed epoch is shorter than the others
        **options,
    )


def uses_ddp(sync: GradientSync, strategy: ExecutionStrategy, worker: Worker) -> bool:
    """Says whether Lightning's DDP does the work of `sync`.

    The ranks are processes then, and synchronise in every step.

    Args:
        sync: The gradient synchronisation.
        strategy: The execution strategy.
        worker: This rank.
    """
    comm = worker.comm
    return sync.ddp and comm.is_process_group and comm.world_size > 1 and strategy.steps.only_synchronise


def _leave_constructors_alone() -> None:
    """Keeps Lightning from wrapping the constructors of all torch loaders.

    Lightning wraps these while it asks for a loader, which fails where ranks are
    threads and ask at once. Our loaders are of no such class.
    """
    setattr(data_connector, "_replace_dunder_methods", lambda *_: contextlib.nullcontext())  # noqa: B010
