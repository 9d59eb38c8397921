"""The contract of communicators."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from gnnkit.comm import Communicator, DeadlineExceeded, Mailbox, Pending
from gnnkit.comm.frames import DTYPES
from gnnkit_testing.arguments import check_instance

PATIENCE = 60.0  # seconds to wait for a message that has been sent


def check_communicator(comm: Communicator) -> None:
    """Raises `AssertionError` for the first violation of the contract.

    Collective over `comm`.

    Call it on every rank of a group of any size. It checks collectives with uneven
    and empty parts, sums, subgroups and the mailbox, and leaves the group
    usable.

    Examples:
        >>> from gnnkit.comm.threads import Threads
        >>> from gnnkit.testing import check_communicator
        >>> Threads.run(check_communicator, 2, timeout=60)
        [None, None]
    """
    check_instance(comm, Communicator)
    _check_all_to_all(comm)
    _check_start(comm)
    _check_sums(comm)
    _check_bits(comm)
    _check_mailbox(comm)
    evens = [rank for rank in range(comm.world_size) if rank % 2 == comm.rank % 2]
    part = comm.split(evens)
    assert (part.rank, part.world_size) == (evens.index(comm.rank), len(evens)), (
        "split numbers ranks in the order given"
    )
    _check_all_to_all(part)
    _check_start(part)
    _check_sums(part)
    _check_mailbox(part)


def _check_all_to_all(comm: Communicator) -> None:
    """Checks that uneven, empty and two-dimensional parts arrive, ordered by sender."""
    send = [(comm.rank + 2 * peer) % 3 for peer in range(comm.world_size)]
    recv = [(peer + 2 * comm.rank) % 3 for peer in range(comm.world_size)]
    rows = [torch.full((count, 2), comm.rank * 100.0 + peer) for peer, count in enumerate(send)]
    reference = [torch.full((count, 2), peer * 100.0 + comm.rank) for peer, count in enumerate(recv)]
    output = comm.all_to_all(torch.cat(rows).to(comm.device), send, recv).cpu()
    assert torch.equal(output, torch.cat(reference)), "all_to_all delivers the parts in the order of their senders"
    nothing = comm.all_to_all(torch.empty(0, 4, device=comm.device), [0] * comm.world_size, [0] * comm.world_size)
    assert nothing.shape == (0, 4), "all_to_all of nothing keeps the shape of rows"


def _check_start(comm: Communicator) -> None:
    """Checks asynchronous exchanges of few and many rows."""
    for num_rows, lends in itertools.product((0, 2, 900), (False, True)):
        pending = [_begin(comm, num_rows, turn) for turn in range(3)]
        outputs = []
        for turn, exchange in enumerate(pending):
            if lends:
                with exchange.borrow() as rows:
                    assert rows.is_contiguous(), "borrow lends rows that are contiguous"
                    outputs.append(rows.cpu().clone())
            else:
                outputs.append(exchange.wait())
            message = f"{'borrow' if lends else 'wait'} delivers the rows of its own exchange by sender"
            assert torch.equal(outputs[-1].cpu(), _reference(comm, num_rows, turn)), message
        _begin(comm, num_rows, 3).wait()
        all_equal = all(torch.equal(rows.cpu(), _reference(comm, num_rows, turn)) for turn, rows in enumerate(outputs))
        assert all_equal, "rows that wait has returned stay as they are"


def _begin(comm: Communicator, num_rows: int, turn: int) -> Pending:
    """Starts an exchange in which each rank sends rows to all ranks but the next."""
    send = [0 if peer == (comm.rank + 1) % comm.world_size else num_rows for peer in range(comm.world_size)]
    recv = [0 if comm.rank == (peer + 1) % comm.world_size else num_rows for peer in range(comm.world_size)]
    source = (10.0 * comm.rank + torch.arange(5.0)[:, None].expand(5, 4)).to(comm.device)
    index = torch.arange(sum(send), device=comm.device) + turn
    if turn == 1:
        return comm.start(source[index % 5], send, recv)
    return comm.start(source, send, recv, index=index % 5)


def _reference(comm: Communicator, num_rows: int, turn: int) -> Tensor:
    """Returns the rows that should arrive in an exchange of `_begin`."""
    parts = [torch.empty(0, 4)]
    for peer in range(comm.world_size):
        left_out = (peer + 1) % comm.world_size
        if comm.rank != left_out:
            before = num_rows * (comm.rank - (left_out < comm.rank))
            numbers = (torch.arange(before, before + num_rows) + turn) % 5
            parts.append((10.0 * peer + numbers)[:, None].expand(num_rows, 4))
    return torch.cat(parts)


def _check_sums(comm: Communicator) -> None:
    """Checks sums, broadcasts and gathered rows."""
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
    """Checks that sums are bitwise equal on all ranks, and that JSON values arrive."""
    values = torch.randn(1001, generator=torch.Generator().manual_seed(comm.rank))
    rows = comm.gather(comm.all_reduce(values.to(comm.device))[None])
    assert all(torch.equal(row, rows[0]) for row in rows), "all_reduce gives the same bits on all ranks"
    value = {"list": [1, 2.5, None], "text": "\u00e9"}
    last = comm.world_size - 1
    assert comm.share(value if comm.rank == last else None, src=last) == value, "share sends the source's value"


def _check_mailbox(comm: Communicator) -> None:
    """Checks messages between all pairs of ranks, including from a rank to itself."""
    with comm.mailbox() as box:
        assert (box.rank, box.world_size) == (comm.rank, comm.world_size), "a mailbox has the communicator's ranks"
        _check_order(box)
        _check_any_source(box)
        _check_content(box, comm.device)
        _check_deadline(box)
        comm.all_reduce(torch.zeros(1, device=comm.device))  # a mailbox may be closed only when all ranks are done


def _check_order(box: Mailbox) -> None:
    for number, dst in itertools.product(range(6), range(box.world_size)):
        box.put(dst, "odd" if number % 2 else "even", {"number": number})
    for src in reversed(range(box.world_size)):
        for tag, numbers in (("odd", [1, 3, 5]), ("even", [0, 2, 4])):
            messages = [box.take(tag, src=src, timeout=PATIENCE) for _ in numbers]
            assert all((message.src, message.tag) == (src, tag) for message in messages), (
                "take returns what was asked for"
            )
            assert [message.fields["number"] for message in messages] == numbers, (
                "messages from one sender with one tag arrive in order"
            )


def _check_any_source(box: Mailbox) -> None:
    for dst in range(box.world_size):
        box.put(dst, "any")
    sources = sorted(box.take("any", timeout=PATIENCE).src for _ in range(box.world_size))
    assert sources == list(range(box.world_size)), "take without src returns the messages of all ranks"


def _check_content(box: Mailbox, device: torch.device) -> None:
    fields = {"list": [1, -2.5, None, True], "nested": {"text": "\u00e9", "empty": {}}}
    for dst in range(box.world_size):
        tensors = {name: tensor.to(device) for name, tensor in _tensors(box.rank).items()}
        box.put(dst, "content", fields, tensors)
        for tensor in tensors.values():
            tensor.zero_()  # must not change the message
    for src in range(box.world_size):
        message = box.take("content", src=src, timeout=PATIENCE)
        assert message.fields == fields, "JSON values arrive unchanged"
        reference = _tensors(src)
        assert list(message.tensors) == list(reference), "tensors arrive under their names"
        for name, tensor in message.tensors.items():
            layout, reference_layout = (tensor.dtype, tensor.shape), (reference[name].dtype, reference[name].shape)
            assert layout == reference_layout, f"tensor {name} arrives as {layout}, sent as {reference_layout}"
            assert tensor.device.type == "cpu", "tensors arrive on the CPU"
            assert torch.equal(tensor, reference[name]), f"tensor {name} arrives with other values"


def _tensors(rank: int) -> dict[str, Tensor]:
    """Returns tensors of every dtype and kind of shape."""
    by_type = {name: torch.tensor([0, 1, rank % 100]).to(dtype) for name, dtype in DTYPES.items()}
    shapes = {
        "scalar": torch.tensor(rank + 0.5),
        "empty": torch.empty(0, 3),
        "matrix": torch.arange(6).view(2, 3),
        "transposed": torch.arange(6).view(2, 3).T,
    }
    return by_type | shapes


def _check_deadline(box: Mailbox) -> None:
    assert box.poll("never") is None, "poll returns at once"
    assert box.gone() == frozenset(), "no rank is gone while all mailboxes are open"
    message = _late(box)
    assert "'never'" in message, "the error of take at the deadline names the tag"
    assert f"rank {box.rank}" in message, "the error of take at the deadline names the sender"


def _late(box: Mailbox) -> str:
    """Returns the error of waiting for a message that is never sent."""
    try:
        box.take("never", src=box.rank, timeout=0.02)
    except DeadlineExceeded as error:
        return str(error)
    raise AssertionError("take raises DeadlineExceeded at the deadline")
