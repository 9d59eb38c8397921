"""The server's end of a parameter server: letters in, letters out."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gnnkit.comm import Mailbox
from gnnkit.comm.mailbox import DeadlineExceeded, Letter, PeerLost
from gnnkit.sync.optimised import Groups, Optimised, pack_state, unpack_state
from gnnkit.sync.versions import Rules, VersionedParameters

REQUEST, REPLY = "to a server", "from a server"  # tags
PERIOD = 0.25  # seconds between two looks at who is lost


@dataclass(eq=False)
class _Request:
    """A letter of a worker that waits for the reply."""

    letter: Letter
    told: float  # monotonic seconds of the last sign of life to this worker
    pushed: bool = False

    @property
    def kind(self) -> str:
        return str(self.letter.fields["kind"])


class Server:
    """Some of the parameters, served to all workers by letters.

    Knows neither data nor model. A request is one of:

    - push: a gradient. The reply are the parameters, once the worker may go on.
    - state: the reply is the optimiser's state.
    - meet: the reply are the parameters and the optimiser's state, once all workers
      have asked.
    - sum: the reply is the sum of the tensors of all workers.

    A worker that waits is told every now and then that the others live. Worker 0 also
    sends the parameters and the optimiser's settings (begin), and parameters that have
    changed meanwhile (values). A worker's last letter is the end.
    """

    def __init__(self, mailbox: Mailbox, num_workers: int, rules: Rules) -> None:
        """Prepares the server.

        Args:
            mailbox: Letters between all ranks, workers first.
            num_workers: Number of workers.
            rules: The rules.
        """
        self.optimizer_class: type[Optimizer] | None = None  # None: the class of torch.optim by its name
        self.error: BaseException | None = None  # that ended the server
        self._mailbox, self._num_workers, self._rules = mailbox, num_workers, rules
        self._live, self._lost = set(range(num_workers)), dict[int, str]()  # lost: the error by rank
        self._open: dict[int, _Request] = {}  # by worker
        self._parameters: VersionedParameters | None = None
        self._model: Optimised | None = None
        self._looked = time.monotonic()

    def run(self) -> None:
        """Serves until all workers have ended or are lost."""
        while self._live:
            if (letter := self._next()) is not None:
                self._take_in(letter)
            self._look_for_lost()
            self._answer()

    def run_beside(self) -> None:
        """Serves on a thread of rank 0. Tells the workers of an error."""
        try:
            self.run()
        except BaseException as error:
            self.error = error
            with contextlib.suppress(RuntimeError):  # the mailbox is closed
                for rank in self._live:
                    self._mailbox.put(rank, REPLY, {"kind": "failed", "error": f"{type(error).__name__}: {error}"})

    def _next(self) -> Letter | None:
        with contextlib.suppress(DeadlineExceeded):
            try:
                return self._mailbox.take(REQUEST, timeout=PERIOD)
            except PeerLost:  # all other ranks are gone
                return self._mailbox.take(REQUEST, src=self._mailbox.rank, timeout=PERIOD)
        return None

    def _take_in(self, letter: Letter) -> None:
        kind = letter.fields["kind"]
        if letter.src not in self._live:  # lost since
            return
        if kind == "begin":
            self._begin(letter)
        elif kind == "values":
            assert self._model is not None
            self._model.set_values(letter.tensors["values"])
        elif kind == "end":
            self._leave(letter.src)
        else:
            self._open[letter.src] = _Request(letter, time.monotonic())
        if self._parameters is not None:
            for request in self._open.values():
                self._push(self._parameters, request)

    def _begin(self, letter: Letter) -> None:
        """Makes parameters and optimiser, for the first time or after a rollback."""
        fields = letter.fields
        groups = Groups(tuple(map(tuple, fields["members"])), tuple(fields["settings"]))
        make = self.optimizer_class or getattr(torch.optim, fields["optimizer"])
        self._model = Optimised(letter.tensors["values"], fields["shapes"], groups, make)
        self._model.set_state(unpack_state(fields["state"], letter.tensors))
        if self._parameters is None:
            self._parameters = VersionedParameters(self._model, self._num_workers, self._rules)
            for rank in set(range(self._num_workers)) - self._live:
                self._parameters.leave(rank)
        self._parameters.model = self._model

    def _push(self, parameters: VersionedParameters, request: _Request) -> None:
        """Pushes the gradient of a request, the first time."""
        if request.kind != "push" or request.pushed:
            return
        request.pushed = True
        letter = request.letter
        if letter.fields["settings"] is not None:
            assert self._model is not None
            self._model.set_settings(letter.fields["settings"])
        parameters.push(letter.src, letter.tensors["gradient"], letter.fields["share"])

    def _answer(self) -> None:
        """Replies to all requests that have an answer. Tells the others to wait."""
        together = {request.kind for request in self._open.values()} if self._open.keys() >= self._live else set()
        met = together.pop() if len(together) == 1 else None  # all live workers ask the same
        if met == "meet" and self._parameters is not None:
            self._parameters.meet()
        total = self._sum() if met == "sum" else {}
        for rank, request in list(self._open.items()):
            if self._lost and self._rules.on_lost == "stop" and (request.kind != "push" or self._rules.mode != "async"):
                self._reply(rank, {"kind": "lost", "rank": min(self._lost), "error": self._lost[min(self._lost)]})
            elif request.kind == "push":
                if request.pushed and self._parameters is not None and self._parameters.may_start(rank):
                    self._reply(rank, {"kind": "values"}, {"values": self._parameters.read(rank)[1]})
            elif request.kind == "state" or met == "meet":
                self._reply(rank, *self._newest(rank))
            elif met == "sum":
                self._reply(rank, {"kind": "sum"}, total)
        self._tell_to_wait()

    def _newest(self, rank: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Returns parameters and, to rank 0, the optimiser's state and all delays."""
        if self._parameters is None or self._model is None:
            return {"kind": "nothing"}, {}
        version, values = self._parameters.read(rank)
        fields: dict[str, Any] = {"kind": "newest", "version": version}
        if rank:
            return fields, {"values": values}
        state, tensors = pack_state(self._model.state())
        delays = sorted(self._parameters.delays.items())
        return fields | {"state": state, "delays": delays}, tensors | {"values": values}

    def _sum(self) -> dict[str, Tensor]:
        """Returns the sum of the tensors of all workers, in the order of ranks."""
        letters = [self._open[rank].letter for rank in sorted(self._open)]
        return {"values": torch.stack([letter.tensors["values"] for letter in letters]).sum(0)}

    def _reply(self, rank: int, fields: dict[str, Any], tensors: dict[str, Tensor] | None = None) -> None:
        del self._open[rank]
        self._put(rank, fields, tensors)

    def _tell_to_wait(self) -> None:
        now = time.monotonic()
        for rank, request in list(self._open.items()):
            if now - request.told >= request.letter.fields["patience"]:
                request.told = now
                self._put(rank, {"kind": "wait"})

    def _put(self, rank: int, fields: dict[str, Any], tensors: dict[str, Tensor] | None = None) -> None:
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
        if self._parameters is not None:
            self._parameters.leave(rank)
