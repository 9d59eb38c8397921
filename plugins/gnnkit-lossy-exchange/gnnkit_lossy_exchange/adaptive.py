"""Row blocks that are sent again only if they have changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gnnkit.exchange import ForwardPass, RowExchange, Schedule, Transfer
from gnnkit.utils.approximate import approximate
from gnnkit.utils.ranges import MAX_COUNT, real, whole


class Adaptive(RowExchange):
    """Sends only blocks that changed noticeably (Sancus: Peng et al., VLDB 2022)."""

    keeps_state = True
    needs_in_edges = True
    every_epoch = True

    def __init__(self, variation: float = 0.05, max_age: int = 10) -> None:
        """Checks the bounds.

        Args:
            variation: Largest relative change at which a block is not sent. 0 is exact.
            max_age: Number of epochs after which a block is sent anyway, at least 1.
        """
        self.variation = real("exchange.variation", variation, 0)
        self.max_age = whole("exchange.options.max_age", max_age, 1, MAX_COUNT)
        self.exact = variation == 0

    def costs(self) -> str:
        return "" if self.exact else approximate("exchange=adaptive", "rows that hardly changed are not exchanged")

    def schedule(self) -> Schedule:
        return AdaptiveRows(self.variation, self.max_age)


class AdaptiveRows(Schedule):
    """Skips blocks that hardly changed.

    A block holds one exchange's rows for one peer. The sender stores the block it sent
    last, and the receiver the block it received last. A block is sent if its change
    since then exceeds `variation` times its Frobenius norm, or if it is `max_age`
    passes old. One byte per peer announces whether a block follows. Variation 0 is
    exact.
    """

    def __init__(self, variation: float, max_age: int) -> None:
        """Stores the bounds.

        Args:
            variation: Largest relative change that is not sent, at least 0.
            max_age: Number of passes after which a block is sent anyway, at least 1.
        """
        self.variation, self.max_age = variation, max_age
        self._links: dict[tuple[bool, int], _PeerBlocks] = {}  # by direction and exchange number

    def receive(self, transfer: Transfer, forward: ForwardPass) -> Tensor:
        peers, place = transfer.others(), (transfer.backward, transfer.number)
        if place not in self._links:
            self._links[place] = _PeerBlocks.start(peers, self.max_age)
        link = self._links[place]
        goes = link.choose(peers, self.variation, self.max_age)
        comes = peers.signal(goes)
        link.take(peers, goes, comes)
        return transfer.with_own(torch.cat(link.received))

    def state_dict(self) -> dict[str, Any]:
        return {"links": [[*place, link.sent, link.received, link.age] for place, link in self._links.items()]}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        self._links = {
            (backward, number): _PeerBlocks(_on(device, send_blocks), _on(device, recv_blocks), list(age))
            for backward, number, send_blocks, recv_blocks, age in state["links"]
        }


@dataclass(slots=True, eq=False)
class _PeerBlocks:
    """One exchange's blocks, by peer."""

    sent: list[Tensor]  # last sent to each peer
    received: list[Tensor]  # last received from each peer
    age: list[int]  # passes since the last block sent to each peer

    @classmethod
    def start(cls, transfer: Transfer, max_age: int) -> _PeerBlocks:
        """Creates zero blocks that are old enough to be sent."""
        shape = transfer.rows.shape[1:]
        send_blocks, recv_blocks = (
            [transfer.rows.new_zeros(n, *shape) for n in c] for c in (transfer.send, transfer.recv)
        )
        return cls(send_blocks, recv_blocks, [max_age] * len(send_blocks))

    def choose(self, transfer: Transfer, variation: float, max_age: int) -> list[bool]:
        """Returns for each peer whether to send its current block."""
        blocks = torch.split(transfer.rows, list(transfer.send))
        changes = [torch.linalg.vector_norm(now - then) for now, then in zip(blocks, self.sent, strict=True)]
        sizes = [torch.linalg.vector_norm(then) for then in self.sent]
        small = (torch.stack(changes) <= variation * torch.stack(sizes)).tolist()  # false for non-finite numbers
        self.age = [age + 1 for age in self.age]
        return [
            n > 0 and (age >= max_age or not is_small)
            for n, age, is_small in zip(transfer.send, self.age, small, strict=True)
        ]

    def take(self, transfer: Transfer, goes: list[bool], comes: list[bool]) -> None:
        """Exchanges the selected blocks. Collective."""
        blocks = torch.split(transfer.rows, list(transfer.send))
        ids = None if transfer.ids is None else _concat(torch.split(transfer.ids, list(transfer.send)), goes)
        send = [n if flag else 0 for n, flag in zip(transfer.send, goes, strict=True)]
        recv = [n if flag else 0 for n, flag in zip(transfer.recv, comes, strict=True)]
        parts = torch.split(transfer.part(_concat(blocks, goes), send, recv, ids).now(), recv)
        for peer, (is_sent, is_received) in enumerate(zip(goes, comes, strict=True)):
            if is_sent:
                self.sent[peer], self.age[peer] = blocks[peer].clone(), 0
            if is_received:
                self.received[peer] = parts[peer].clone()


def _concat(blocks: Sequence[Tensor], flags: Sequence[bool]) -> Tensor:
    """Concatenates the flagged blocks."""
    return torch.cat([block if flag else block[:0] for block, flag in zip(blocks, flags, strict=True)])


def _on(device: torch.device, blocks: list[Tensor]) -> list[Tensor]:
    return [block.to(device) for block in blocks]
