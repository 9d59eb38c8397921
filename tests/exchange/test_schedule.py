"""Codecs, draws, the thread in the background, and schedules of third parties."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np
import pytest
import torch
from torch import Tensor

from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.engine import Codec, Engine, ForwardPass, Schedule, ShardAdjacency, Transfer
from gnnkit.exchange.background import Background
from gnnkit.exchange.pipelined import PipelinedRows
from gnnkit.exchange.quantized import Bfloat16, Packed
from gnnkit.kernels.dropout import derive, subset
from gnnkit.partition.base import Grid
from gnnkit.partition.shard import Shard
from tests.sync.training import shards_on
from tests.waiting import GUARD

CPU = torch.device("cpu")


def rows_of(dtype: torch.dtype, width: int) -> Tensor:
    return torch.tensor(np.random.default_rng(width).standard_normal((6, width)) * 3 + 100, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("bits", [8, 4, 2])
def test_packed_rows_are_unbiased_and_have_the_bytes_of_the_formula(bits: int, dtype: torch.dtype) -> None:
    codec, draws = Packed(bits), 1500
    for width in (1, 4, 7, 33):
        rows = rows_of(dtype, width)
        copies = rows.repeat_interleave(draws, 0)
        data = codec.encode(copies, torch.arange(len(copies)), derive(3, width))
        assert data.shape == (len(copies), -(-bits * width // 8) + 8)
        assert data.shape[1] == codec.row_bytes(width)
        assert torch.equal(data, codec.encode(copies, torch.arange(len(copies)), derive(3, width)))
        read = codec.decode(data, width, dtype).double().view(6, draws, width)
        step = (rows.amax(1) - rows.amin(1)).double()[:, None] / (2**bits - 1)
        assert bool(((read - rows.double()[:, None]).abs() <= step[:, None] + 1e-4).all())
        place = ((rows - rows.amin(1, keepdim=True)).double() / step).nan_to_num()
        up = place - place.floor()  # the share of the draws that go up
        error = step * (up * (1 - up) / draws).sqrt()
        # A place is drawn with 16 bits. float32 holds about 7 digits.
        assert bool(((read.mean(1) - rows).abs() <= 5 * error + step * (2 / draws + 2**-16) + 2e-5).all())


def test_packed_rows_differ_by_key_and_by_id_and_keep_what_is_constant() -> None:
    codec, rows = Packed(2), rows_of(torch.float64, 40)[:1].repeat(2, 1)
    ids = torch.tensor([5, 6])
    data = codec.encode(rows, ids, 1)
    assert not torch.equal(data[0], data[1])
    assert not torch.equal(data, codec.encode(rows, ids, 2))
    assert torch.equal(codec.encode(rows[:1], ids[1:], 1)[0], data[1])
    constant = torch.full((1, 5), 2.5)
    assert torch.equal(codec.decode(codec.encode(constant, ids[:1], 1), 5, torch.float32), constant)


@pytest.mark.parametrize("codec", [Bfloat16(), Packed(4)], ids=["bf16", "4 bits"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_does_not_become_finite(codec: Codec, bad: float) -> None:
    rows = rows_of(torch.float32, 9)
    rows[2, 4] = bad
    read = codec.decode(codec.encode(rows, torch.arange(6), 1), 9, torch.float32)
    assert read.isfinite().all(1).tolist() == [True, True, False, True, True, True]


@pytest.mark.slow
def test_every_subset_is_drawn_equally_often() -> None:
    draws = 3000
    results = Counter(tuple(subset(5, 2, key, CPU).tolist()) for key in range(draws))
    assert set(results) == set(itertools.combinations(range(5), 2))
    reference, sigma = draws / 10, (draws * 0.1 * 0.9) ** 0.5
    assert all(abs(count - reference) < 5 * sigma for count in results.values())
    assert subset(4, 0, 1, CPU).tolist() == []
    assert subset(4, 4, 1, CPU).tolist() == [0, 1, 2, 3]


class Twice(Schedule):
    """Doubles what others send. Keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[bool, int, str]] = []

    def receive(self, transfer: Transfer, forward: ForwardPass) -> Tensor:
        self.asked.append((transfer.backward, transfer.number, transfer.exchange.kind))
        return transfer.with_own(2 * transfer.without_own(transfer.now()))


class Halves(Codec):
    """Writes float16."""

    def row_bytes(self, width: int) -> int:
        return 2 * width

    def encode(self, rows: Tensor, ids: Tensor, key: int) -> Tensor:
        return rows.half().view(torch.uint8)

    def decode(self, data: Tensor, width: int, dtype: torch.dtype) -> Tensor:
        return data.view(torch.float16).to(dtype)


def test_a_schedule_and_a_codec_of_a_third_party_serve_both_directions() -> None:
    shards = shards_on(Grid(2, 1, 1))

    def on_rank(comm: Communicator) -> tuple[list[tuple[bool, int, str]], int, int]:
        engine, schedule = Engine(shards[comm.rank], comm, torch.float64), Twice()
        x = torch.tensor(shards[comm.rank].features)
        ends = []
        for forward in (ForwardPass(), ForwardPass(schedule, Halves())):
            engine.tally.reset()
            leaf = x.clone().requires_grad_()
            first, second = ShardAdjacency.layers(engine, 2, 0, forward)
            second.aggregate(first.aggregate(leaf)).sum().backward()
            ends.append((leaf.grad, engine.tally.bytes_sent))
        assert not torch.equal(ends[0][0], ends[1][0])
        return schedule.asked, ends[0][1], ends[1][1]

    for asked, exact, written in Threads.run(on_rank, 2):
        gathers, back = [(False, n, "gather") for n in range(2)], [(True, n, "gather_back") for n in range(2)]
        assert asked == gathers + back
        assert written == exact / 4


@pytest.mark.slow
def test_holders_divide_by_the_same_bits_under_a_codec() -> None:
    """Attention of an edge is equal on all slices, and sums to one over all ranks."""
    heads = 6
    for grid in (Grid(2, 1, 2), Grid(1, 3, 1), Grid(2, 2, 2)):
        shards = shards_on(grid)

        def on_rank(comm: Communicator, shards: list[Shard] = shards) -> tuple[Tensor, Tensor]:
            engine = Engine(shards[comm.rank], comm, torch.float64)
            (adjacency,) = ShardAdjacency.layers(engine, 1, 0, ForwardPass(codec=Packed(8), key=3))
            x = torch.tensor(shards[comm.rank].features)[:, :1] * torch.arange(1, heads + 1)
            attention = adjacency.softmax(adjacency.scores(x, -x))
            sums = engine.topology.edges.by_destination.sum(attention)
            with engine.passes.plain():  # the sum of the test itself
                return attention, engine.topology.targets.add(sums, 0)[:, 0]

        results = Threads.run(on_rank, grid.world_size)
        for cell in range(grid.num_cells):
            same = results[cell * grid.slices : (cell + 1) * grid.slices]
            assert all(torch.equal(attention, same[0][0]) for attention, _ in same)
        sums = torch.cat([total[total > 0] for _, total in results])
        torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=1e-12)


def test_rows_of_one_number_travel_coded_too() -> None:
    shards = shards_on(Grid(2, 1, 1))

    def on_rank(comm: Communicator) -> None:
        engine = Engine(shards[comm.rank], comm, torch.float64)
        x = torch.tensor(shards[comm.rank].features)[:, 0]
        results = []
        for forward in (ForwardPass(), ForwardPass(codec=Bfloat16())):
            (adjacency,) = ShardAdjacency.layers(engine, 1, 0, forward)
            results.append(adjacency.with_halo(x))
        exact, approximate = results
        assert torch.equal(approximate[len(x) :], exact[len(x) :].bfloat16().double())
        assert torch.equal(approximate[: len(x)], x)

    Threads.run(on_rank, 2)


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [0, 1])
def test_rows_travel_while_the_rank_computes_and_only_waiting_counts(staleness: int) -> None:
    """Rows that are read later stay on their way until the rank has computed."""
    shards, passes, seconds, ranks = shards_on(Grid(2, 1, 1)), 4, 0.5, 2
    gates, gated, travelled = [threading.Barrier(2) for _ in range(ranks)], [False] * ranks, [0.0] * ranks

    class Slow(Threads):
        def all_to_all(self, rows: Tensor, send_counts: Sequence[int], recv_counts: Sequence[int]) -> Tensor:
            start = time.perf_counter()
            if gated[self.rank]:
                gates[self.rank].wait(GUARD)  # the rank begins to compute
                gates[self.rank].wait(GUARD)  # the rank has computed
            elif rows.is_floating_point():
                time.sleep(seconds)
            rows_received = super().all_to_all(rows, send_counts, recv_counts)
            travelled[self.rank] += time.perf_counter() - start
            return rows_received

    def on_rank(comm: Communicator) -> float:
        rank, engine, schedule = comm.rank, Engine(shards[comm.rank], comm, torch.float64), PipelinedRows(staleness)
        for number in range(passes):
            if number == 1:  # pass 0 waits for its own rows
                engine.tally.reset()
                travelled[rank], gated[rank] = 0.0, staleness > 0
            (adjacency,) = ShardAdjacency.layers(engine, 1, 0, ForwardPass(schedule, key=number))
            adjacency.aggregate(torch.tensor(shards[rank].features))
            if gated[rank]:
                gates[rank].wait(GUARD)
                time.sleep(seconds)  # computes
                gates[rank].wait(GUARD)
        engine.close()
        return travelled[rank] - engine.tally.seconds

    computed = seconds * (passes - 1)
    for hidden in Slow.run(on_rank, ranks):
        assert (hidden > computed / 2) == (staleness > 0)


def test_an_error_in_the_background_is_raised_where_rows_are_waited_for() -> None:
    def on_rank(comm: Communicator) -> list[str]:
        background = Background(comm)

        def fails(_: Communicator) -> Tensor:
            raise OSError("lost")

        good = background.submit(lambda own: own.all_reduce(torch.ones(1)))
        bad, after = background.submit(fails), background.submit(lambda own: torch.ones(1))
        assert good.result(GUARD).item() == 2
        messages = []
        for future in (bad, after):
            with pytest.raises(OSError, match="lost") as error:
                future.result(GUARD)
            messages.append(str(error.value))
        background.close()
        return messages

    assert Threads.run(on_rank, 2) == [["lost", "lost"]] * 2


def test_a_rank_that_fails_ends_the_wait_for_rows_in_the_background() -> None:
    def on_rank(comm: Communicator) -> None:
        background = Background(comm)
        if comm.rank == 1:
            raise ValueError("gone")
        background.submit(lambda own: own.all_reduce(torch.ones(1))).result(GUARD)

    with pytest.raises(ValueError, match="gone"):
        Threads.run(on_rank, 2)


def test_the_thread_in_the_background_ends_with_its_engine() -> None:
    def on_rank(comm: Communicator) -> Future[Tensor]:
        return Background(comm).submit(lambda own: own.all_reduce(torch.ones(1)))  # nobody closes

    before = set(threading.enumerate())
    futures = Threads.run(on_rank, 2)
    assert [future.done() or future.exception(10) for future in futures]
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "exchange"]
