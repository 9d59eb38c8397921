"""Lightning strategies for ranks that are already running.

Ranks exchange only tensors and JSON.
"""

# No `from __future__ import annotations`: DDP checks the annotations of a hook.

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from gnnkit.comm import Communicator
from gnnkit.comm.average import from_vector, to_vector
from gnnkit.leader.meter import SyncMeter
from gnnkit.strategy import Batch
from gnnkit.sync import GradientSync, gradients, trained
from gnnkit.training.finite import Guard, decide_together
from gnnkit.training.updates import Updates


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

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        module: Any = self.lightning_module
        if _trained_names(module) != self._wrapped:  # parameters were frozen or unfrozen
            self.model = module
            self.configure_ddp()
        return super().training_step(*args, **kwargs)

    def optimizer_step(
        self, optimizer: Optimizer, closure: Callable[[], Any], model: Module | None = None, **kwargs: Any
    ) -> Any:
        loss = closure()
        module: Any = self.lightning_module
        total = [p.grad for p in module.parameters() if p.grad is not None]
        module.look_at_gradient(gradients(trained(module)), is_summed=True)
        if self._guard.allows_sum(module.trainer, module, self._meter.finite, total):
            optimizer.step()
        return loss

    def broadcast(self, obj: Any, src: int = 0) -> Any:
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
        self, optimizer: Optimizer, closure: Callable[[], Any], model: Module | None = None, **kwargs: Any
    ) -> Any:
        loss = closure()
        module: Any = self.lightning_module
        for parameter in module.parameters():
            if parameter.grad is not None:
                self._meter.look(parameter.grad)
        if module.embedding is not None and module.batch.x.grad is not None:
            self._meter.look(module.batch.x.grad)
        module.look_at_gradient(gradients(trained(module)), is_summed=False)
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

    def _step(self, module: Any, optimizer: Optimizer) -> None:
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

    def _meet(self, module: Any, optimizer: Optimizer, share: float) -> None:
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

    def _abstain(self, module: Any, optimizer: Optimizer) -> None:
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
