"""Synchronisation through parameter servers."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.optim import Optimizer

from gnnkit.comm import Communicator, Mailbox
from gnnkit.sync.base import OnLost, trainable
from gnnkit.sync.server import Server
from gnnkit.sync.server_client import ServerClient, ServerGroup, ServerSync
from gnnkit.sync.versions import Mode, make_rules
from gnnkit.utils.documents import Json
from gnnkit.utils.ranges import whole


class ParameterServer(ServerSync):
    """Pushes gradients to servers, which hold the parameters and step.

    Only the servers hold optimiser state. They need neither data nor model. Choose
    `mode=async` for workers of different speed (Dean et al., NIPS 2012), and `mode=ssp`
    to bound gradient staleness (Ho et al., NIPS 2013).

    By default, as many gradients as there are workers form one step in each mode, so
    that optimisers with momentum take as many steps as in synchronous training.
    """

    def __init__(
        self,
        mode: Mode = "sync",
        staleness: int | None = None,
        servers: int = 0,
        average: str = "weighted",
        on_lost: OnLost = "stop",
    ) -> None:
        """Checks the rules.

        Args:
            mode: sync, async or ssp. Default: sync.
            staleness: Maximum staleness of a gradient in steps, in ssp. Default: 3.
            servers: Number of additional ranks that serve. Default: 0, a thread of rank
                0 serves.
            average: Name of the aggregation, in sync. Default: weighted.
            on_lost: stop, or continue without a lost worker. Default: stop.
        """
        self.servers = whole("sync.servers", servers, 0, 1024)
        super().__init__(make_rules(mode, staleness, average, on_lost), on_lost)

    def setup(self, module: nn.Module, comm: Communicator, mailbox: Mailbox | None = None) -> None:
        super().setup(module, comm)
        assert mailbox is not None, "a parameter server needs a mailbox"
        self._client = ServerClient(ServerGroup(comm, mailbox, self.servers, self.rules), comm.rank, self.rules)

    def serve(self, mailbox: Mailbox, num_workers: int) -> None:
        Server(mailbox, num_workers, self.rules).run()

    def step(self, module: nn.Module, optimizer: Optimizer, share: float) -> None:
        self.client.step(module, optimizer, share)

    def all_reduce(self, x: Tensor) -> Tensor:
        return self.client.servers.sum(x)

    def average(self, tensors: Sequence[Tensor], weight: float) -> None:
        self.rules.check_average()
        self.client.servers.average(tensors, weight)

    def average_models(self, module: nn.Module, weight: float) -> None:
        self.average(trainable(module), weight)

    def figures(self) -> Json:
        return {"servers": self.servers, **super().figures()}
