"""Boundary sampling: a sample of the rows sent between two ranks represents all."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gnnkit.errors import UserError
from gnnkit.exchange import ForwardPass, Operation, RowExchange, Schedule, Transfer
from gnnkit.kernels.dropout import derive, subset
from gnnkit.utils.approximate import approximate
from gnnkit.utils.ranges import real

_WHY: dict[Operation, str] = {
    "max": "a maximum over in-edges",
    "weighted sum": "attention",
    "scores": "attention",
    "softmax": "attention",
    "messages": "a sum of messages of its own",
    "halo": "a layer written for a single process",
}


class Sampled(RowExchange):
    """Sends a sample of the boundary rows in each epoch (BNS-GCN, MLSys 2022)."""

    needs_in_edges = True
    every_epoch = True

    def __init__(self, keep: float = 0.1) -> None:
        """Checks the share of boundary rows that is sent, in [0, 1]. 1 is exact."""
        self.keep = real("exchange.keep", keep, 0, 1)
        self.exact = keep == 1

    def costs(self) -> str:
        reason = f"only a share of {self.keep:g} of the boundary rows is exchanged"
        return "" if self.exact else approximate("exchange=sampled", reason)

    def schedule(self) -> Schedule:
        return SampledRows(self.keep)


class SampledRows(Schedule):
    """Sampled boundary rows, drawn in each pass.

    Of an owner's n rows for a holder, k = round(share * n) are sent, multiplied by n /
    k. The others are zeros. All layers and the backward pass use the same sample, so
    sums and means over in-edges are unbiased estimates. Both ranks derive the sample
    from the pass's key. A share of 1 is exact, and 0 sends nothing.
    """

    def __init__(self, share: float) -> None:
        self.share = share  # of the boundary rows that are sent, in [0, 1]
        self._drawn: dict[tuple[int, int], Tensor] = {}  # by (owner, holder): positions among the pair's rows

    def begin(self, forward: ForwardPass) -> None:
        self._drawn = {}

    def check(self, operation: Operation) -> None:
        if operation in _WHY:
            raise UserError(
                f"exchange=sampled estimates sums and means over in-edges, but the model has "
                f"{_WHY[operation]}, for which sampling is biased: "
                "use exchange=exact, quantized, pipelined or adaptive"
            )

    def receive(self, transfer: Transfer, forward: ForwardPass) -> Tensor:
        peers = transfer.others()
        send_places, sizes = self._places(peers, peers.send, forward, sends=True)
        place, kept_counts = self._places(peers, peers.recv, forward, sends=False)
        ids = None if peers.ids is None else peers.ids[send_places]
        recv_rows = peers.part(peers.rows[send_places], sizes, kept_counts, ids).now()
        rows = recv_rows.new_zeros((sum(peers.recv), *recv_rows.shape[1:]))
        rows[place] = recv_rows * self._scale(peers.recv, kept_counts, recv_rows)
        return transfer.with_own(rows)

    def _places(
        self, transfer: Transfer, counts: Sequence[int], forward: ForwardPass, *, sends: bool
    ) -> tuple[Tensor, list[int]]:
        """Returns the sampled positions among all peers' rows, and their number."""
        device, me, first = transfer.rows.device, transfer.rank, 0
        places, sizes = [torch.empty(0, dtype=torch.int64, device=device)], []
        for peer, count in enumerate(counts):
            sender, receiver = (me, peer) if sends else (peer, me)
            pair = (receiver, sender) if transfer.exchange.to_owners else (sender, receiver)
            if pair not in self._drawn:
                self._drawn[pair] = subset(count, round(self.share * count), derive(forward.key, *pair), device)
            places.append(self._drawn[pair] + first)
            sizes.append(len(self._drawn[pair]))
            first += count
        return torch.cat(places), sizes

    @staticmethod
    def _scale(counts: Sequence[int], kept_counts: Sequence[int], like: Tensor) -> Tensor:  # [sum(kept), 1, ...]
        factors = [count / size if size else 0.0 for count, size in zip(counts, kept_counts, strict=True)]
        row_factors = torch.tensor(factors, dtype=like.dtype).repeat_interleave(torch.tensor(kept_counts))
        return row_factors.to(like.device).view(-1, *[1] * (like.dim() - 1))
