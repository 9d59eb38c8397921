"""The server side of parameter servers: a loop that answers messages."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from gnnkit.comm import Mailbox
from gnnkit.comm.mailbox import DeadlineExceeded, Message, PeerLost
from gnnkit.sync.optimised import Groups, Optimised, pack_state, unpack_state
from gnnkit.sync.versions import Rules, VersionedParameters
from gnnkit.utils.documents import Json

REQUEST, REPLY = "to a server", "from a server"  # tags
PERIOD = 0.25  # seconds between checks for lost workers


@dataclass(eq=False)
class _Request:
    """A worker's request that has not been answered yet."""

    message: Message
    last_heartbeat: float  # to this worker, by time.monotonic
    is_pushed: bool = False

    @property
    def kind(self) -> str:
        return str(self.message.fields["kind"])


class ServedParameters:
    """A server's parameters with their optimiser and rules, empty until `begin`."""

    def __init__(self, num_workers: int, rules: Rules) -> None:
        self.rules, self._configured, self._num_workers = rules, rules, num_workers
        self._left = set[int]()  # workers that have finished or are lost
        self._versions: VersionedParameters | None = None
        self._model: Optimised | None = None

    def begin(self, message: Message, optimizer_class: type[Optimizer] | None) -> None:
        """Creates parameters and optimiser, at the start or after a rollback."""
        fields = message.fields
        groups = Groups(tuple(map(tuple, fields["members"])), tuple(fields["settings"]))
        make = optimizer_class or getattr(torch.optim, fields["optimizer"])
        self._model = Optimised(message.tensors["values"], fields["shapes"], groups, make)
        self._model.set_state(unpack_state(fields["state"], message.tensors))
        if self._versions is None:
            self._versions = VersionedParameters(self._model, self._num_workers, self.rules)
            for rank in self._left:
                self._versions.leave(rank)
        self._versions.model = self._model

    def set_values(self, values: Tensor) -> None:  # [n]
        """Replaces the parameters."""
        assert self._model is not None
        self._model.set_values(values)

    def apply(self, requests: Mapping[int, _Request]) -> None:
        """Applies each gradient once, as soon as its step is complete."""
        if self._versions is None:
            return
        self._versions.absent = {rank for rank, request in requests.items() if request.kind in ("meet", "sum")}
        for request in requests.values():
            if request.kind == "push" and not request.is_pushed:
                self._push(self._versions, request)
        self._versions.step_if_complete()

    def _push(self, versions: VersionedParameters, request: _Request) -> None:
        request.is_pushed = True
        message = request.message
        if message.fields["settings"] is not None:
            assert self._model is not None
            self._model.set_settings(message.fields["settings"])
        versions.push(message.src, message.tensors["gradient"], message.fields["share"])

    def meet(self, together: bool | None) -> None:
        """Applies all gradients, and changes the rules if the workers ask for it."""
        if together is not None:
            self.rules = self._configured.synchronous if together else self._configured
        if self._versions is not None:
            self._versions.meet()
            self._versions.rules = self.rules

    def read_next(self, rank: int) -> Tensor | None:  # [n]
        """Returns the parameters if the worker may start its next step."""
        if self._versions is None or not self._versions.may_start(rank):
            return None
        return self._versions.read(rank)[1]

    def newest(self, rank: int) -> tuple[Json, dict[str, Tensor]]:
        """Returns the parameters and, for rank 0, optimiser state and all delays."""
        if self._versions is None or self._model is None:
            return {"kind": "nothing"}, {}
        version, values = self._versions.read(rank)
        fields: Json = {"kind": "newest", "version": version}
        if rank:
            return fields, {"values": values}
        state, tensors = pack_state(self._model.state())
        delays = sorted(self._versions.delays.items())
        return fields | {"state": state, "delays": delays}, tensors | {"values": values}

    def leave(self, rank: int) -> None:
        """Removes a finished or lost worker."""
        self._left.add(rank)
        if self._versions is not None:
            self._versions.leave(rank)


class Server:
    """Serves some of the parameters to all workers.

    A server needs neither data nor model. The requests are:

    - push: sends a gradient. The reply holds the parameters, and is sent when the
    worker may start its next step.
    - state: the reply holds the optimiser's state.
    - meet: the reply holds the parameters and the optimiser's state, and is sent when
    all workers have asked. `together` makes later steps synchronous, or as configured.
    - sum: the reply holds the sum of all workers' tensors.

    Waiting workers get heartbeats. Worker 0 also sends the initial parameters and
    optimiser settings (begin), and parameters that it has changed (values). A worker's
    final message is `end`.
    """

    def __init__(self, mailbox: Mailbox, num_workers: int, rules: Rules) -> None:
        """Prepares the server.

        Args:
            mailbox: Connects all ranks, workers first.
        """
        self.optimizer_class: type[Optimizer] | None = None  # None: looked up in torch.optim by name
        self.error: BaseException | None = None  # the error that stopped the server
        self._mailbox, self._parameters = mailbox, ServedParameters(num_workers, rules)
        self._live, self._lost = set(range(num_workers)), dict[int, str]()  # lost: error message by rank
        self._open: dict[int, _Request] = {}  # by worker
        self._looked = time.monotonic()

    def run(self) -> None:
        """Serves until all workers have finished or are lost."""
        while self._live:
            if (message := self._next()) is not None:
                self._take_in(message)
            self._look_for_lost()
            self._answer()

    def run_beside(self) -> None:
        """Serves in a thread of rank 0. Reports an error to the workers."""
        try:
            self.run()
        except BaseException as error:
            self.error = error
            with contextlib.suppress(RuntimeError):  # the mailbox may be closed
                for rank in self._live:
                    self._mailbox.put(rank, REPLY, {"kind": "failed", "error": f"{type(error).__name__}: {error}"})

    def _next(self) -> Message | None:
        with contextlib.suppress(DeadlineExceeded):
            try:
                return self._mailbox.take(REQUEST, timeout=PERIOD)
            except PeerLost:  # all other ranks have exited
                return self._mailbox.take(REQUEST, src=self._mailbox.rank, timeout=PERIOD)
        return None

    def _take_in(self, message: Message) -> None:
        kind = message.fields["kind"]
        if message.src not in self._live:  # the worker was lost after sending
            return
        if kind == "begin":
            self._parameters.begin(message, self.optimizer_class)
        elif kind == "values":
            self._parameters.set_values(message.tensors["values"])
        elif kind == "end":
            self._leave(message.src)
        else:
            self._open[message.src] = _Request(message, time.monotonic())
        self._parameters.apply(self._open)

    def _answer(self) -> None:
        """Answers requests that are complete, and sends heartbeats to the others."""
        shared_kind = self._shared_kind()
        if shared_kind == "meet":
            self._parameters.meet(next(iter(self._open.values())).message.fields["together"])
        total = self._sum() if shared_kind == "sum" else {}
        rules = self._parameters.rules
        for rank, request in list(self._open.items()):
            if self._lost and rules.on_lost == "stop" and (request.kind != "push" or rules.mode != "async"):
                self._reply(rank, {"kind": "lost", "rank": min(self._lost), "error": self._lost[min(self._lost)]})
            elif request.kind == "push":
                if request.is_pushed and (values := self._parameters.read_next(rank)) is not None:
                    self._reply(rank, {"kind": "values"}, {"values": values})
            elif request.kind == "state" or shared_kind == "meet":
                self._reply(rank, *self._parameters.newest(rank))
            elif shared_kind == "sum":
                self._reply(rank, {"kind": "sum"}, total)
        self._send_heartbeats()

    def _shared_kind(self) -> str | None:
        """Returns the kind of request that all live workers wait for."""
        kinds = {request.kind for request in self._open.values()} if self._open.keys() >= self._live else set()
        return kinds.pop() if len(kinds) == 1 else None

    def _sum(self) -> dict[str, Tensor]:
        """Returns the sum of all workers' tensors, in rank order."""
        messages = [self._open[rank].message for rank in sorted(self._open)]
        return {"values": torch.stack([message.tensors["values"] for message in messages]).sum(0)}

    def _reply(self, rank: int, fields: Json, tensors: dict[str, Tensor] | None = None) -> None:
        del self._open[rank]
        self._put(rank, fields, tensors)

    def _send_heartbeats(self) -> None:
        now = time.monotonic()
        for rank, request in list(self._open.items()):
            if now - request.last_heartbeat >= request.message.fields["patience"]:
                request.last_heartbeat = now
                self._put(rank, {"kind": "wait"})

    def _put(self, rank: int, fields: Json, tensors: dict[str, Tensor] | None = None) -> None:
        try:
            self._mailbox.put(rank, REPLY, fields, tensors)
        except PeerLost as error:
            self._lose(rank, error)

    def _look_for_lost(self) -> None:
        if time.monotonic() - self._looked < PERIOD:
            return
        self._looked = time.monotonic()
        for rank in sorted(self._live):
            try:
                self._take_in(self._mailbox.take(REQUEST, src=rank, timeout=0))
            except DeadlineExceeded:
                continue
            except PeerLost as error:
                self._lose(rank, error)

    def _lose(self, rank: int, error: PeerLost) -> None:
        self._lost.setdefault(rank, str(error))
        self._leave(rank)

    def _leave(self, rank: int) -> None:
        self._live.discard(rank)
        self._open.pop(rank, None)
        self._parameters.leave(rank)
