"""Requests from one worker to the parameter servers."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from gnnkit.comm import Communicator, Mailbox
from gnnkit.comm.average import from_vector, to_vector
from gnnkit.comm.heartbeats import pause
from gnnkit.comm.mailbox import Message, PeerLost
from gnnkit.errors import UserError
from gnnkit.sync.server import REPLY, REQUEST, Server
from gnnkit.sync.versions import Rules
from gnnkit.utils.documents import Json

BESIDE = "server beside rank 0"  # thread name


class ServerGroup:
    """The servers of a run, as one worker reaches them."""

    def __init__(self, comm: Communicator, mailbox: Mailbox, servers: int, rules: Rules) -> None:
        """Starts the server thread on rank 0 if `servers` is 0.

        Args:
            mailbox: Connects all ranks, workers first, then servers.
            servers: Number of server ranks. 0: a thread of rank 0 serves.
        """
        self.ranks = list(range(comm.world_size, comm.world_size + servers)) or [0]
        self._rank, self._mailbox, self._timeout = comm.rank, mailbox, comm.timeout
        self._patience = pause(comm.timeout)  # seconds between heartbeats
        self._beside: Server | None = None
        self._thread: threading.Thread | None = None
        if servers == 0 and comm.rank == 0:
            self._beside = Server(mailbox, comm.world_size, rules)
            self._thread = threading.Thread(target=self._beside.run_beside, name=BESIDE, daemon=True)
            self._thread.start()

    def set_optimizer(self, optimizer_class: type[Optimizer]) -> None:
        """Sets the optimiser of the server thread. Server ranks look it up by name.

        Raises `UserError` for a class that only this process can import.
        """
        if self._beside is not None:
            self._beside.optimizer_class = optimizer_class
        elif getattr(torch.optim, optimizer_class.__name__, None) is not optimizer_class:
            raise UserError(
                f"sync.servers={len(self.ranks)}: servers support torch.optim optimisers only: "
                f"{optimizer_class.__module__}.{optimizer_class.__qualname__} needs sync.servers=0"
            )

    def put(self, server: int, fields: Json, tensors: Mapping[str, Tensor] | None = None) -> None:
        """Sends a message without waiting for a reply."""
        self._mailbox.put(server, REQUEST, fields, tensors)

    def ask(self, servers: Collection[int], fields: Json, tensors: Sequence[Mapping[str, Tensor]]) -> list[Message]:
        """Sends a request to some servers, and returns their replies.

        Args:
            servers: Ranks of the servers.
            fields: Values that all of them receive.
            tensors: Tensors for each server, by name.
        """
        for server, part in zip(servers, tensors, strict=True):
            self.put(server, {**fields, "patience": self._patience}, part)
        return [self._reply(server) for server in servers]

    def _reply(self, server: int) -> Message:
        """Waits for a reply. Each heartbeat extends the deadline."""
        while True:
            reply = self._mailbox.take(REPLY, src=server, timeout=self._timeout)
            fields = reply.fields
            if fields["kind"] == "lost":
                raise PeerLost(f"rank {self._rank}: its server lost a peer: {fields['error']}", fields["rank"])
            if fields["kind"] == "failed":
                error = None if self._beside is None else self._beside.error
                raise RuntimeError(f"rank {self._rank}: its server failed: {fields['error']}") from error
            if fields["kind"] != "wait":
                return reply

    def average(self, tensors: Sequence[Tensor], weight: float) -> None:
        """Replaces tensors by the workers' weighted mean, in place. Collective.

        Args:
            tensors: Tensors of any shapes. Each server sums a part.
        """
        values = to_vector(tensors)
        terms = torch.cat([values * weight, values.new_tensor([weight])])
        total = torch.cat(self._sums(terms.tensor_split(len(self.ranks))))
        from_vector(total[:-1] / total[-1], tensors)

    def sum(self, x: Tensor) -> Tensor:
        """Returns the workers' sum of `x`, computed by the first server. Collective."""
        return self._sums([x])[0].to(x.device)

    def _sums(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Returns the sum of each part over the workers, one part per server."""
        replies = self.ask(self.ranks[: len(parts)], {"kind": "sum"}, [{"values": part} for part in parts])
        return [reply.tensors["values"] for reply in replies]

    def close(self) -> None:
        """Sends the final message, and waits for the server thread on rank 0 to end."""
        for server in self.ranks:
            self.put(server, {"kind": "end"})
        if self._thread is not None:
            self._thread.join(self._timeout)
