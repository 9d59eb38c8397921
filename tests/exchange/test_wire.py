"""A transfer begins now and ends later, counted as one exchange."""

from __future__ import annotations

import dataclasses
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gnnkit.comm import Communicator, Pending
from gnnkit.comm.threads import Threads
from gnnkit.engine import Codec, Transfer
from gnnkit.exchange.quantized import Bfloat16, Packed
from gnnkit.exchange.tally import Exchange, Tally
from gnnkit.exchange.wire import Wire
from tests.comm.processes import run_gloo

RANKS, WIDTH = 3, 40
CODECS: list[Codec | None] = [None, Bfloat16(), Packed(4)]
RUNNERS = (run_gloo, Threads.run)


def transfer_of(comm: Communicator, codec: Codec | None, *, own: bool, indexed: bool, dtype: torch.dtype) -> Transfer:
    """Makes a transfer. Rank s sends rank r s + 2r rows, and perhaps keeps rows."""

    def count(sender: int, receiver: int) -> int:
        return sender + 2 * receiver if own or sender != receiver else 0

    send = [count(comm.rank, peer) for peer in range(RANKS)]
    recv = [count(peer, comm.rank) for peer in range(RANKS)]
    source = torch.randn(20, WIDTH, generator=torch.Generator().manual_seed(comm.rank), dtype=torch.float64).to(dtype)
    ids = torch.arange(sum(send)) * 3 % 20
    wire, exchange = Wire(comm, range(RANKS), Tally()), Exchange("gather", 0, WIDTH)
    transfer = Transfer(source[ids], send, recv, exchange, 0, False, 7, wire, ids, codec)
    return dataclasses.replace(transfer, rows=source, index=ids) if indexed else transfer


def counted(transfer: Transfer) -> tuple[Any, ...]:
    tally = transfer.wire.tally
    return dict(tally.words), dict(tally.messages), tally.bytes_sent


@pytest.mark.slow
def test_every_way_to_move_rows_gives_the_same_rows_and_counts() -> None:
    def moved(comm: Communicator, codec: Codec | None, own: bool) -> Tensor:
        results, counts = [], []
        for indexed in (False, True):
            for how in ("now", "wait", "borrow", "later"):
                transfer = transfer_of(comm, codec, own=own, indexed=indexed, dtype=torch.float32)
                if how == "now":
                    rows = transfer.now()
                elif how == "wait":
                    rows = transfer.start().wait()
                elif how == "borrow":
                    with transfer.start().borrow() as lent:
                        rows = lent.clone()
                else:
                    rows = transfer.with_own(transfer.wait(transfer.later()))
                results.append(rows)
                counts.append(counted(transfer))
                transfer.wire.close()
        assert all(count == counts[0] for count in counts)
        assert all(torch.equal(count, results[0]) for count in results)
        size = 4 * WIDTH if codec is None else codec.row_bytes(WIDTH)
        sent = sum(n for peer, n in enumerate(transfer.send) if peer != comm.rank)
        assert counts[0][2] == sent * size
        return results[0]

    cases = list(itertools.product(CODECS, (False, True)))
    by_rank, of_threads = (run(lambda comm: [moved(comm, *case) for case in cases], RANKS) for run in RUNNERS)
    for number, (codec, own) in enumerate(cases):
        results = [rows[number] for rows in by_rank]
        assert all(torch.equal(each, rows[number]) for each, rows in zip(results, of_threads, strict=True)), (
            codec,
            own,
        )
        if codec is None:
            assert all(torch.equal(*pair) for pair in zip(results, plain_rows(own), strict=True)), own


def plain_rows(own: bool) -> list[Tensor]:
    """Returns what each rank receives where rows travel as they are."""
    sent = Threads.run(lambda comm: transfer_of(comm, None, own=own, indexed=False, dtype=torch.float32), RANKS)
    parts = [torch.split(transfer.rows, list(transfer.send)) for transfer in sent]
    return [torch.cat([part[rank] for part in parts]) for rank in range(RANKS)]


@pytest.mark.slow
def test_rows_in_the_background_are_those_of_the_call() -> None:
    def on_rank(comm: Communicator) -> None:
        transfer = transfer_of(comm, None, own=False, indexed=False, dtype=torch.float64)
        reference = transfer.now()
        coming = transfer.later()
        transfer.rows.zero_()
        assert torch.equal(transfer.wait(coming), reference)
        transfer.wire.close()

    run_gloo(on_rank, RANKS)


def test_receivers_read_the_same_rows_with_and_without_an_index() -> None:
    def on_rank(comm: Communicator) -> None:
        plain, indexed = (
            transfer_of(comm, Packed(4), own=True, indexed=indexed, dtype=torch.float32) for indexed in (False, True)
        )
        assert torch.equal(plain.as_read(), indexed.as_read())
        assert not torch.equal(plain.as_read(), plain.rows)

    Threads.run(on_rank, RANKS)


@pytest.mark.parametrize("lends", [False, True])
def test_only_beginning_and_waiting_count_as_exchange(lends: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    class Slow(Pending):
        def wait(self) -> Tensor:
            clock[0] += 10
            return torch.zeros(0)

    class Alone(Threads):
        def start(self, *arguments: Any, **keys: Any) -> Pending:
            clock[0] += 1
            return Slow()

    monkeypatch.setattr("gnnkit.exchange.tally.time", SimpleNamespace(perf_counter=lambda: clock[0]))
    wire = Wire(Alone.connect(0, 1, device=torch.device("cpu"), timeout=1), [0], Tally())
    exchange = Transfer(torch.zeros(0), [0], [0], Exchange("gather", 0, 1), 0, False, 7, wire).start()
    clock[0] += 100  # computes
    if lends:
        with exchange.borrow():
            clock[0] += 1000  # reads the rows
    else:
        exchange.wait()
    assert wire.tally.seconds == 11
