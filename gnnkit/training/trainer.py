"""Lightning's trainer and strategies, for ranks that are already running."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.trainer.connectors import data_connector
from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from gnnkit.comm import Communicator, Mailbox
from gnnkit.comm.agreement import from_vector, to_vector
from gnnkit.launch.lean import FIRST_STEPS, give_back_freed_memory
from gnnkit.leader.meter import SyncMeter
from gnnkit.strategy import Batch, ExecutionStrategy, Worker
from gnnkit.sync import GradientSync, gradients, trained
from gnnkit.training.finite import Guard, LossCheck, decide_together
from gnnkit.training.hooks import EpochFigures
from gnnkit.training.module import TrainingModule
from gnnkit.training.step import Updates


class StartedRanks(ClusterEnvironment):
    """An environment of ranks that a launcher has started with a process group."""

    def __init__(self, comm: Communicator, local_rank: int) -> None:
        self._comm, self._local_rank = comm, local_rank

    creates_processes_externally = True
    main_address = "127.0.0.1"  # required, but unused because the process group exists
    main_port = 0

    @staticmethod
    def detect() -> bool:
        return False

    def world_size(self) -> int:
        return self._comm.world_size

    def set_world_size(self, size: int) -> None:
        pass

    def global_rank(self) -> int:
        return self._comm.rank

    def set_global_rank(self, rank: int) -> None:
        pass

    def local_rank(self) -> int:
        return self._local_rank

    def node_rank(self) -> int:
        return 0


class WrappedStrategy(DDPStrategy):
    """Lightning's DDP on the existing process group. It pickles nothing."""

    def __init__(self, comm: Communicator, meter: SyncMeter, guard: Guard, local_rank: int) -> None:
        """Stores the arguments.

        Args:
            comm: Connects the run's ranks.
            meter: Measures the synchronisation.
            guard: Decides whether the optimiser may step.
            local_rank: This rank's index on its host.
        """
        super().__init__(
            accelerator=None,
            parallel_devices=[comm.device] * comm.world_size,  # Lightning selects the entry at `local_rank`
            cluster_environment=StartedRanks(comm, local_rank),
        )
        self._comm, self._meter, self._guard = comm, meter, guard

    def _configure_launcher(self) -> None:
        """Creates no launcher, because ranks exist and notebooks reject launchers."""
        self._launcher = None

    def configure_ddp(self) -> None:
        super().configure_ddp()
        assert isinstance(self.model, DistributedDataParallel)
        # `ddp_comm_hook=` is ignored on CPUs.
        self.model.register_comm_hook(dist.group.WORLD, self._meter.hook)
        self._wrapped = _trained_names(self.model.module)

    def training_step(self, *args: object, **kwargs: object) -> Any:
        module: Any = self.lightning_module
        if _trained_names(module) != self._wrapped:  # parameters were frozen or unfrozen
            self.model = module
            self.configure_ddp()
        return super().training_step(*args, **kwargs)

    def optimizer_step(
        self, optimizer: Optimizer, closure: Callable[[], object], model: Module | None = None, **kwargs: object
    ) -> Any:
        loss = closure()
        module: Any = self.lightning_module
        total = [p.grad for p in module.parameters() if p.grad is not None]
        if self._guard.allows_sum(module.trainer, module, self._meter.finite, total):
            optimizer.step()
        return loss

    def broadcast(self, obj: object, src: int = 0) -> Any:
        return self._comm.share(obj, src=src)

    def barrier(self, name: str | None = None) -> None:
        """Waits for all ranks, except for loaders, which are created in each epoch."""
        if name is None or not name.endswith("_dataloader()"):
            super().barrier(name)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Tensor:
        """Reduces each rank's value, without Lightning's barrier before sums."""
        if reduce_op == "sum" and group is None and isinstance(tensor, Tensor):
            return self._comm.all_reduce(tensor)
        return super().reduce(tensor, group, reduce_op)


def _trained_names(module: Module) -> list[str]:
    return [name for name, parameter in module.named_parameters() if parameter.requires_grad]


class UnwrappedStrategy(SingleDeviceStrategy):
    """Ranks that synchronise through a `GradientSync`.

    Lightning treats each rank as a separate run.
    """

    def __init__(self, comm: Communicator, sync: GradientSync, meter: SyncMeter, guard: Guard) -> None:
        """Stores the arguments.

        Args:
            comm: Connects the run's ranks.
            sync: Steps the optimiser.
            meter: Measures the synchronisation.
            guard: Decides whether `sync` may step.
        """
        super().__init__(device=comm.device)
        self.global_rank, self._comm, self._sync, self._meter, self._guard = comm.rank, comm, sync, meter, guard
        self.updates = Updates()

    @property
    def is_global_zero(self) -> bool:
        return self.global_rank == 0

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Reduces the ranks' decisions to one. Collective."""
        votes = int(self._comm.all_reduce(torch.tensor([int(decision)], device=self._comm.device)))
        return votes == self._comm.world_size if all else votes > 0

    def optimizer_step(
        self, optimizer: Optimizer, closure: Callable[[], object], model: Module | None = None, **kwargs: object
    ) -> Any:
        loss = closure()
        module: Any = self.lightning_module
        for parameter in module.parameters():
            if parameter.grad is not None:
                self._meter.look(parameter.grad)
        if module.embedding is not None and module.batch.x.grad is not None:
            self._meter.look(module.batch.x.grad)
        self._meter.start = self._meter.clock()
        together = decide_together(self._sync, module.strategy)
        if self._guard.allows(module.trainer, module, self._meter.finite, lockstep=together):
            self._step(module, optimizer)
        else:
            if module.batch.meets:
                self.updates.forget()
            if not together:  # others, or the servers, wait for this rank's contribution
                self._abstain(module, optimizer)
        self._meter.end = self._meter.clock()
        return loss

    def _step(self, module: TrainingModule, optimizer: Optimizer) -> None:
        batch: Batch = module.batch
        grads = gradients(trained(module))
        share = self.updates.add_to(grads, batch.share)
        if batch.update == "accumulate":
            self.updates.keep(grads, share)
        elif batch.synchronise:
            self._meet(module, optimizer, share)
        elif batch.leads:
            self.updates.lead(grads, self._sync, batch.weight)
            with self.updates.concluding(optimizer):
                optimizer.step()
        else:
            self.updates.follow(grads)
            optimizer.step()
        if module.embedding is not None:
            module.embedding.step(batch, optimizer)
        if batch.update == "average":
            self._sync.average_models(module, batch.weight)

    def _meet(self, module: TrainingModule, optimizer: Optimizer, share: float) -> None:
        """Takes one step with the gradients of all ranks.

        The step that concludes a superstep is taken on every rank, because local steps
        continue from its optimiser state.
        """
        if module.batch.update == "conclude" and self._sync.lockstep and self._sync.exact:
            grads = gradients(trained(module))
            local_grads = torch._foreach_mul(grads, 1 / (module.batch.share or 1.0))  # of this rank's mean loss
            from_vector(self._sync.all_reduce(to_vector(grads)), grads)
            if module.batch.leads:
                self.updates.lacking = list(torch._foreach_sub(grads, local_grads))
            with self.updates.concluding(optimizer):
                optimizer.step()
            return
        states: dict[str, Any] = {"correct": self.updates.correcting, "conclude": self.updates.concluding}
        with states.get(module.batch.update, contextlib.nullcontext)(optimizer):
            self._sync.step(module, optimizer, share)

    def _abstain(self, module: TrainingModule, optimizer: Optimizer) -> None:
        """Participates in a skipped step like a rank without rows."""
        batch: Batch = module.batch
        if batch.leads and not batch.synchronise:
            self._sync.average([torch.zeros_like(gradient) for gradient in gradients(trained(module))], 0.0)
        if batch.update == "average":
            self._sync.average_models(module, batch.weight)
        elif batch.synchronise:
            optimizer.zero_grad()
            self._meet(module, optimizer, 0.0)
        if batch.leads:
            self.updates.lacking = []  # the rank's gradient at that mean is unknown


class FreedMemory(Callback):
    """Returns memory freed by the first steps and evaluations to the system.

    The first steps allocate small, permanent objects between large, temporary arrays.
    Later arrays do not fit the gaps, so the heap would grow to twice the arrays of a
    step. From then on, freed memory is kept and reused.
    """

    def __init__(self) -> None:
        self._steps, self._evaluations = FIRST_STEPS, FIRST_STEPS  # remaining numbers

    def on_before_backward(self, *_: object) -> None:
        if self._steps > 0:
            give_back_freed_memory()

    def on_train_batch_end(self, *_: object) -> None:
        self._steps = _one_less(self._steps)

    def on_validation_end(self, *_: object) -> None:
        self._evaluations = _one_less(self._evaluations)


def _one_less(count: int) -> int:
    if count > 0:
        give_back_freed_memory()
    return count - 1


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
    parts: Any = trainer
    # Lightning's starts a generator in each hook of each callback.
    parts.profiler.profile = lambda _: contextlib.nullcontext()
    if is_wrapped:  # Lightning would broadcast before each step whether to end, which the launcher decides
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
