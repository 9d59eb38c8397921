"""Lightning's trainer on our ranks, and the end of training."""

from __future__ import annotations

import logging
import os
import warnings
from typing import Any

import lightning as L
import numpy as np
from torch import nn

from gnnkit import plugins
from gnnkit.comm.threads import Threads
from gnnkit.graph import Split
from gnnkit.strategy.base import ExecutionStrategy, Worker
from gnnkit.sync.all_reduce import AllReduce
from gnnkit.sync.base import GradientSync
from gnnkit.sync.reconcile import average_parameters, drift
from gnnkit.training.checkpoint import SafeCheckpointIO
from gnnkit.training.module import TrainingModule
from gnnkit.training.ranks import SyncMeter, UnwrappedStrategy, WrappedStrategy


def make_trainer(config: dict[str, Any], module: TrainingModule, meter: SyncMeter, **options: Any) -> L.Trainer:
    """A trainer for that module's rank. It drives DDP where ranks are processes that all-reduce in every step; else the sync of the
    config steps. `options` are further arguments of the trainer."""
    worker = module.worker
    comm, on_gpu = worker.comm, worker.device.type == "cuda"
    sync: GradientSync = plugins.create("sync", config["sync"])
    overlapped = isinstance(sync, AllReduce) and not isinstance(comm, Threads) and comm.world_size > 1
    if overlapped and module.strategy.local_iterations == 1:
        strategy: Any = WrappedStrategy(comm, meter, int(os.environ["LOCAL_RANK"]))
    else:
        sync.setup(module, comm)
        strategy = UnwrappedStrategy(comm, sync, meter)
    # Hints of a library that this program sits on are not its user's business; its errors are.
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"lightning\.")
    return L.Trainer(
        accelerator="gpu" if on_gpu else "cpu",
        strategy=strategy,
        devices=strategy.num_processes if isinstance(strategy, WrappedStrategy) else 1,
        plugins=[SafeCheckpointIO()],
        enable_progress_bar=False,  # Lightning's own, as are the next two
        enable_checkpointing=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        **options,
    )


def reconcile(model: nn.Module, strategy: ExecutionStrategy, worker: Worker) -> dict[str, float]:
    """The final weighted average of the ranks' parameters, where they differ; how much they did before and do after. Collective."""
    before = after = drift(model, worker.comm)
    if before and strategy.final_average:
        average_parameters(model, worker.comm, int(np.count_nonzero(worker.shard.split == Split.TRAIN)))
        after = drift(model, worker.comm)
    return {"drift": before, "final_drift": after}
