"""What communicators promise."""

from __future__ import annotations

import torch

from gnnkit.comm import Communicator


def check_communicator(comm: Communicator) -> None:
    """Collective: every rank of `comm` calls it. Raises `AssertionError` for the first broken promise of the interface."""
    _check_all_to_all(comm)
    _check_sums(comm)
    _check_bits(comm)
    evens = [rank for rank in range(comm.world_size) if rank % 2 == comm.rank % 2]
    part = comm.split(evens)
    assert (part.rank, part.world_size) == (evens.index(comm.rank), len(evens)), (
        "split numbers ranks in the order given"
    )
    _check_all_to_all(part)
    _check_sums(part)


def _check_all_to_all(comm: Communicator) -> None:
    """Uneven, empty and two-dimensional parts arrive in the order of their senders."""
    send = [(comm.rank + 2 * peer) % 3 for peer in range(comm.world_size)]
    recv = [(peer + 2 * comm.rank) % 3 for peer in range(comm.world_size)]
    rows = [torch.full((count, 2), comm.rank * 100.0 + peer) for peer, count in enumerate(send)]
    expected = [torch.full((count, 2), peer * 100.0 + comm.rank) for peer, count in enumerate(recv)]
    received = comm.all_to_all(torch.cat(rows).to(comm.device), send, recv).cpu()
    assert torch.equal(received, torch.cat(expected)), "all_to_all delivers the parts in the order of their senders"
    nothing = comm.all_to_all(torch.empty(0, 4, device=comm.device), [0] * comm.world_size, [0] * comm.world_size)
    assert nothing.shape == (0, 4), "all_to_all of nothing keeps the shape of rows"


def _check_sums(comm: Communicator) -> None:
    x = torch.arange(3, dtype=torch.float64, device=comm.device) + comm.rank
    total = comm.all_reduce(x)
    ranks = comm.world_size * (comm.world_size - 1) / 2
    assert total is x, "all_reduce works in place"
    assert total.tolist() == [ranks, ranks + comm.world_size, ranks + 2 * comm.world_size], "all_reduce sums"
    last = comm.broadcast(torch.tensor([float(comm.rank)], device=comm.device), src=comm.world_size - 1)
    assert last.item() == comm.world_size - 1, "broadcast sends the source's values"
    parts = comm.gather(torch.full((comm.rank, 1), float(comm.rank), device=comm.device))
    if comm.rank == 0:
        assert [part.tolist() for part in parts] == [[[float(r)]] * r for r in range(comm.world_size)], (
            "gather collects by rank"
        )
    else:
        assert parts == [], "gather leaves nothing on other ranks"


def _check_bits(comm: Communicator) -> None:
    """What ranks decide on must be equal to the last bit; and values of JSON arrive as they are."""
    own = torch.randn(1001, generator=torch.Generator().manual_seed(comm.rank))
    rows = comm.gather(comm.all_reduce(own.to(comm.device))[None])
    assert all(torch.equal(row, rows[0]) for row in rows), "all_reduce gives the same bits on all ranks"
    value = {"list": [1, 2.5, None], "text": "\u00e9"}
    last = comm.world_size - 1
    assert comm.share(value if comm.rank == last else None, src=last) == value, "share sends the source's value"
