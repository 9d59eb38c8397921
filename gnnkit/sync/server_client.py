"""The client side of parameter servers, on each worker."""

from __future__ import annotations

import copy
import heapq
import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from gnnkit.comm import Communicator, Mailbox
from gnnkit.comm.agreement import from_vector, to_vector
from gnnkit.comm.mailbox import Message, PeerLost
from gnnkit.comm.survivors import pause
from gnnkit.errors import UserError
from gnnkit.sync.base import GradientSync, OnLost, gradients, trainable, trained
from gnnkit.sync.optimised import Groups, State, pack_state, unpack_state
from gnnkit.sync.server import REPLY, REQUEST, Server
from gnnkit.sync.versions import Rules
from gnnkit.utils.approximate import approximate
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


class ServerClient:
    """A worker's client, which pushes gradients and reads parameters.

    Each server holds some of the parameters, each tensor complete. All servers use one
    optimiser. Its settings follow worker 0's.
    """

    def __init__(self, servers: ServerGroup, rank: int, rules: Rules) -> None:
        self.servers, self.rank, self.delays, self.state = servers, rank, Counter[int](), State()
        self._rules, self._configured = rules, rules
        self._parts: dict[int, list[int]] = {}  # numbers of each server's parameters, by its rank
        self._parameter_ids: list[int] = []  # ids of all these parameters
        self._begun = False  # rank 0 only
        self._settings: tuple[Json, ...] = ()  # the optimiser's settings as last sent
        self._read: list[Tensor] = []  # rank 0 only: the values last read, by part

    def step(self, module: nn.Module, optimizer: Optimizer, share: float) -> None:
        """Pushes the gradients, and replaces the parameters by the newest ones.

        Args:
            module: Holds parameters with gradients.
            optimizer: The optimiser. Its local state is cleared, because the servers
                hold the state.
            share: This worker's share of the rows.
        """
        parameters = trained(module)
        self._share_out(parameters)
        settings = self._bring(parameters, optimizer) if self.rank == 0 else None
        messages = [{"gradient": part} for part in self._cut(gradients(parameters))]
        request = {"kind": "push", "share": share, "settings": settings}
        replies = self.servers.ask(self._parts, request, messages)
        self._write(parameters, replies)
        optimizer.state.clear()  # left by local steps
        setattr(optimizer, "_opt_called", True)  # noqa: B010 - schedules would warn that no step was made

    def settle(self, module: nn.Module, *, together: bool | None = None) -> None:
        """Fetches the optimiser's state to rank 0, and the newest parameters to all.

        With synchronous steps, all workers have the newest parameters, possibly changed
        by local steps, so only rank 0 fetches.

        Args:
            module: Holds the parameters.
            together: Whether later steps are synchronous. If None, as before.
        """
        parameters = trainable(module)
        self._share_out(parameters)
        meets = together is not None or not self._rules.together
        if not meets and not (self.rank == 0 and self._begun):
            return
        kind = "meet" if meets else "state"
        replies = self.servers.ask(self._parts, {"kind": kind, "together": together}, [{} for _ in self._parts])
        if together is not None:
            self._rules = self._configured.synchronous if together else self._configured
        if replies[0].fields["kind"] == "nothing":
            return
        if kind == "meet":
            self._write(parameters, replies)
        if self.rank == 0:
            self._keep(replies)

    def state_dict(self) -> dict[str, object]:
        """Returns the servers' optimiser state, as of the last `settle`."""
        return {str(number): moments for number, moments in self.state.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the servers' optimiser state. Parameters are taken from rank 0."""
        self.state, self._begun = {int(number): moments for number, moments in state.items()}, False

    def figures(self) -> Json:
        """Returns mean and maximum staleness of gradients, in versions.

        With synchronous steps, no gradient is stale.
        """
        total = self.delays.total()
        if not total:
            return {}
        mean = sum(delay * count for delay, count in self.delays.items()) / total
        return {"staleness": {"mean": mean, "largest": max(self.delays)}}

    def _share_out(self, parameters: Sequence[Parameter]) -> None:
        """Assigns each parameter to a server, in the first step.

        Raises `UserError` if the set of trained parameters has changed.
        """
        parameter_ids = [id(parameter) for parameter in parameters]
        if self._parts and parameter_ids != self._parameter_ids:
            raise UserError(
                "sync: parameters were frozen or unfrozen during training, but servers hold those of the first step: "
                "use sync=all_reduce"
            )
        if not self._parts:
            self._parameter_ids = parameter_ids
            numbers = distribute_evenly([parameter.numel() for parameter in parameters], len(self.servers.ranks))
            self._parts = {server: part for server, part in zip(self.servers.ranks, numbers, strict=True) if part}

    def _bring(self, parameters: Sequence[Parameter], optimizer: Optimizer) -> list[Json] | None:
        """Sends rank 0's changes to the servers. Returns changed settings.

        Local steps, an average or a rollback change rank 0's parameters. With
        synchronous steps, the servers continue from them.
        """
        groups = Groups.of(optimizer, parameters)
        values = self._cut(parameters)
        if not self._begun:
            self._begin(parameters, values, groups, type(optimizer))
        elif self._rules.together and not all(map(torch.equal, values, self._read)):
            for server, part in zip(self._parts, values, strict=True):
                self.servers.put(server, {"kind": "values"}, {"values": part})
        has_changed, self._settings = groups.settings != self._settings, groups.settings
        return list(groups.settings) if has_changed else None

    def _begin(
        self, parameters: Sequence[Parameter], values: Sequence[Tensor], groups: Groups, kind: type[Optimizer]
    ) -> None:
        """Sends parameters, settings and state to the servers."""
        self.servers.set_optimizer(kind)
        for (server, numbers), part in zip(self._parts.items(), values, strict=True):
            inner = groups.within(numbers)
            state, tensors = pack_state({i: self.state[n] for i, n in enumerate(numbers) if n in self.state})
            fields = {
                "kind": "begin",
                "optimizer": kind.__name__,
                "shapes": [list(parameters[n].shape) for n in numbers],
                "members": [list(members) for members in inner.members],
                "settings": list(inner.settings),
                "state": state,
            }
            self.servers.put(server, fields, tensors | {"values": part})
        self._begun, self._settings = True, groups.settings

    def _keep(self, replies: Sequence[Message]) -> None:
        """Stores the optimiser's state and the staleness of all gradients."""
        self.state, self.delays = {}, Counter()
        for numbers, reply in zip(self._parts.values(), replies, strict=True):
            moments = unpack_state(reply.fields["state"], reply.tensors)
            self.state |= {numbers[place]: value for place, value in moments.items()}
            self.delays.update(dict(reply.fields["delays"]))

    def _write(self, parameters: Sequence[Parameter], replies: Sequence[Message]) -> None:
        """Replaces the parameters. Rank 0 also stores the values."""
        for numbers, reply in zip(self._parts.values(), replies, strict=True):
            from_vector(reply.tensors["values"], [parameters[n] for n in numbers])
        if self.rank == 0 and self._rules.together:
            self._read = self._cut(parameters)

    def _cut(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Returns one vector per part, copied."""
        return [to_vector([tensors[n] for n in numbers]) for numbers in self._parts.values()]


def distribute_evenly(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Distributes items over `count` places, largest first, each to the least loaded.

    Returns the item numbers at each place, ascending.
    """
    places: list[tuple[int, int]] = [(0, place) for place in range(count)]  # heap of (total size, place)
    dealt: list[list[int]] = [[] for _ in range(count)]
    for number in sorted(range(len(sizes)), key=lambda number: (-sizes[number], number)):
        size, place = heapq.heappop(places)
        dealt[place].append(number)
        heapq.heappush(places, (size + sizes[number], place))
    return [sorted(numbers) for numbers in dealt]


class ServerSync(GradientSync):
    """A synchronisation in which servers may run the optimiser, through `_client`."""

    steps_here = False

    def __init__(self, rules: Rules, on_lost: OnLost) -> None:
        """Stores the rules.

        Args:
            on_lost: stop, or continue without a lost worker.
        """
        self.on_lost = on_lost
        self._use(rules)
        self._client: ServerClient | None = None

    def _use(self, rules: Rules) -> None:
        self.rules = rules
        self.lockstep, self.exact, self.finishes = rules.together, rules.exact, not rules.together

    def late_rows(self) -> tuple[str, int | None, GradientSync] | None:
        if self.rules.together:
            return None
        sync = copy.copy(self)
        sync._use(self.rules.synchronous)
        return f"sync.mode={self.rules.mode}", self.rules.row_bound, sync

    @property
    def client(self) -> ServerClient:
        """This worker's client, after `setup`."""
        assert self._client is not None, "setup comes first"
        return self._client

    def costs(self) -> str:
        if not self.rules.together:
            return approximate(f"sync.mode={self.rules.mode}", "gradients of workers that are behind are applied late")
        if not self.exact:
            return approximate("sync.average", "a step combines the workers' gradients otherwise than by their sum")
        return ""

    def settle(self, module: nn.Module, optimizer: Optimizer) -> None:
        if self._client is not None:
            self._client.settle(module)

    def set_exact(self, module: nn.Module, exact: bool) -> None:
        if self._client is not None and not self.rules.together:
            self._client.settle(module, together=exact)

    def state_dict(self) -> dict[str, object]:
        return {} if self._client is None else self._client.state_dict()

    def load_state_dict(self, state: dict[str, object]) -> None:
        if self._client is not None:
            self._client.load_state_dict(state)

    def figures(self) -> Json:
        return {} if self._client is None else self._client.figures()

    def close(self) -> None:
        if self._client is not None:
            self._client.servers.close()
