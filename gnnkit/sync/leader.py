"""Synchronisation through the leader."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gnnkit.comm import LEADER, Communicator, Mailbox
from gnnkit.comm.agreement import from_vector, to_vector
from gnnkit.sync.base import OnLost, gradients, trained
from gnnkit.sync.server_client import ServerClient, ServerGroup, ServerSync
from gnnkit.sync.versions import Mode, Rules, make_rules


class LeaderSync(ServerSync):
    """Collects the gradients on rank 0, which updates and distributes the parameters.

    Only rank 0 holds optimiser state: choose this sync to store that state once. The
    new parameters overwrite those of workers that drifted.

    In the modes async and ssp, a thread of rank 0 steps, and a worker continues with
    the newest parameters before its own gradient is applied.
    """

    def __init__(
        self,
        average: str = "weighted",
        mode: Mode = "sync",
        staleness: int | None = None,
        on_lost: OnLost = "stop",
    ) -> None:
        """Checks the rules.

        Args:
            average: Name of the aggregation, in sync. Default: weighted (exact).
            mode: sync, async or ssp. Default: sync.
            staleness: Maximum staleness of a gradient in steps, in ssp. Default: 3.
            on_lost: stop, or continue without a lost worker. Default: stop.
        """
        super().__init__(make_rules(mode, staleness, average, on_lost), on_lost)

    def _use(self, rules: Rules) -> None:
        super()._use(rules)
        self.steps_here = self.lockstep

    def setup(self, module: nn.Module, comm: Communicator, mailbox: Mailbox | None = None) -> None:
        super().setup(module, comm)
        if not self.lockstep:
            assert mailbox is not None, "sync.mode needs a mailbox"
            self._client = ServerClient(ServerGroup(comm, mailbox, 0, self.rules), comm.rank, self.rules)

    def step(self, module: nn.Module, optimizer: Optimizer, share: float) -> None:
        if self._client is not None:
            self._client.step(module, optimizer, share)
            return
        parameters = trained(module)
        grads = gradients(parameters)
        total = self._collect(to_vector(grads), share)
        if total is None:
            optimizer.state.clear()  # left by local iterations or a checkpoint
        else:
            from_vector(total, grads)
            optimizer.step()
        values = to_vector(parameters)
        from_vector(self.comm.broadcast(values, src=LEADER), parameters)

    def _collect(self, gradient: Tensor, share: float) -> Tensor | None:  # [num_parameters]
        """Returns the aggregated gradient on the leader, None on other ranks."""
        rows = self.comm.gather(torch.cat([gradient, gradient.new_tensor([share])])[None], dst=LEADER)
        if not rows:
            return None
        contributions = torch.cat(rows)  # omits lost workers
        return self.rules.combine(contributions[:, :-1], contributions[:, -1], self.comm.world_size)

    def average(self, tensors: Sequence[Tensor], weight: float) -> None:
        self.rules.check_average()
        super().average(tensors, weight)

    def average_models(self, module: nn.Module, weight: float) -> None:
        self.rules.check_average()
        super().average_models(module, weight)
