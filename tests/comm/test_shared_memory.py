"""Rows between processes of one host travel through memory, and arrive as over TCP."""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnkit.comm import Communicator, PeerLost, frames, process, shared_memory
from gnnkit.comm.links import accept_ranks
from gnnkit.comm.process import Gloo
from gnnkit.comm.threads import Threads
from gnnkit.testing import check_communicator
from tests.cases import few
from tests.comm.processes import run_gloo
from tests.waiting import GUARD, NEVER

LARGE = shared_memory.INLINE  # bytes that travel in one message, at most
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


class Tcp(Gloo):
    """The same ranks without shared memory."""

    shares_memory = False


def share_memory(comm: Communicator) -> shared_memory.SharedMemory:
    """Returns the memory of a group. Collective at first use."""
    assert isinstance(comm, Gloo)
    memory = comm._shared_memory()
    assert memory is not None
    return memory


def over_tcp(comm: Communicator) -> Communicator:
    """Returns a group of the same ranks whose rows travel over TCP."""
    tcp = comm.split(range(comm.world_size))
    assert isinstance(tcp, Gloo)
    tcp._has_tried = True
    return tcp


def counts_of(comm: Communicator, draw: int, most: int) -> tuple[list[int], list[int]]:
    """Returns counts sent and received. Some are 0."""
    generator = torch.Generator().manual_seed(draw)
    counts = torch.randint(0, most + 1, (comm.world_size, comm.world_size), generator=generator)
    counts *= torch.randint(0, 3, counts.shape, generator=generator).clamp(max=1)
    return counts[comm.rank].tolist(), counts[:, comm.rank].tolist()


def rows_of(comm: Communicator, num_rows: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(comm.rank)
    return torch.randint(-100, 100, (num_rows, *shape), generator=generator).to(dtype)


def lent(comm: Communicator, *arguments: Any, **keys: Any) -> torch.Tensor:
    with comm.start(*arguments, **keys).borrow() as rows:
        assert rows.is_contiguous()
        return rows.clone()


@pytest.mark.slow
@few("world_size", [1, 2, 3], default=[3])
def test_rows_arrive_as_over_tcp(world_size: int) -> None:
    """Sizes grow and shrink, so buffers are mapped, used again and replaced."""

    def work(comm: Communicator) -> int:
        tcp, exchanges = over_tcp(comm), 0
        for draw, (shape, dtype) in enumerate([(s, d) for d in DTYPES for s in [(), (3,), (0,), (2, 40)]]):
            for limit in (0, 5, 20_000 if draw % 5 == 0 else 900, 40):
                send, recv = counts_of(comm, 10 * draw + limit, limit)
                rows = rows_of(comm, sum(send), shape, dtype)
                reference = tcp.all_to_all(rows, send, recv)
                source = rows_of(comm, 50, shape, dtype)
                index = torch.arange(sum(send)) * 7 % 50
                gathered = tcp.all_to_all(source[index], send, recv)
                for actual, wanted in (
                    (comm.all_to_all(rows, send, recv), reference),
                    (comm.start(rows, send, recv).wait(), reference),
                    (comm.start(source, send, recv, index=index).wait(), gathered),
                    (lent(comm, rows, send, recv), reference),
                    (lent(comm, source, send, recv, index=index), gathered),
                ):
                    assert actual.dtype == dtype
                    assert torch.equal(actual, wanted)
                    exchanges += 1
        assert len(share_memory(comm)._buffers) <= shared_memory.SLOTS if world_size > 1 else True
        return exchanges

    assert set(run_gloo(work, world_size)) == {len(DTYPES) * 4 * 4 * 5}


@pytest.mark.slow
@few("world_size", [2, 3, 5], default=[3])
def test_sums_are_those_of_threads_to_the_bit(world_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank order decides, whatever the size and place of a number."""
    monkeypatch.setattr(process, "PIECE", LARGE // 8)  # forked ranks sum the larger tensors by pieces
    shapes = [(), (0,), (1,), (7, 3), (LARGE // 4,), (LARGE // 4 + 1,), (1000, 33)]

    def work(comm: Communicator) -> list[list[float]]:
        results, generator = [], torch.Generator().manual_seed(comm.rank)
        for shape, dtype in itertools.product(shapes, (torch.float32, torch.float64, torch.bfloat16, torch.int64)):
            x = (1000 * torch.randn(shape, generator=generator)).to(dtype)
            for view in (x, x.T if x.dim() == 2 else x):  # some are not contiguous
                copy = view.clone()
                assert comm.all_reduce(copy) is copy
                own = view.clone()
                assert comm.broadcast(own, src=1) is own
                results += [copy.double().reshape(-1).tolist(), own.double().reshape(-1).tolist()]
        return results

    of_processes = run_gloo(work, world_size)
    assert of_processes == Threads.run(work, world_size, timeout=GUARD)
    assert all(results == of_processes[0] for results in of_processes)


@pytest.mark.slow
def test_rows_are_lent_in_place_and_waited_for_in_a_tensor_of_their_own() -> None:
    def work(comm: Communicator) -> None:
        send = [0 if rank == comm.rank else 100 for rank in range(2)]
        rows = torch.full((100, 64), float(comm.rank))
        with comm.start(rows, send, send).borrow() as borrowed:
            mapped = [memory.data_ptr() for memory in share_memory(comm)._links[1 - comm.rank].buffers.values()]
            assert borrowed.data_ptr() in mapped
            assert torch.equal(borrowed, 1 - rows)
        own = comm.start(rows, send, send).wait()
        comm.start(rows * 9, send, send).wait()
        comm.start(rows * 9, send, send).wait()
        assert torch.equal(own, 1 - rows)
        exchange = comm.start(rows, send, send)
        exchange.wait()
        with pytest.raises(AssertionError, match="an exchange ends once"):
            exchange.wait()

    run_gloo(work, 2)


@pytest.mark.slow
def test_several_exchanges_are_under_way_without_a_barrier() -> None:
    """Ranks end them in the order in which they began, or in another."""

    def work(comm: Communicator) -> None:
        ranks, counts = range(comm.world_size), [1 + rank for rank in range(comm.world_size)]
        for backwards in (False, True):
            pending = []
            for number in range(7):
                width = 4 if number % 3 else 2000  # in the message, and through a buffer
                rows = torch.cat([torch.full((counts[rank], width), 10.0 * comm.rank + number) for rank in ranks])
                pending.append((number, width, comm.start(rows, counts, [counts[comm.rank]] * comm.world_size)))
            for number, width, exchange in reversed(pending) if backwards else pending:
                parts = [torch.full((counts[comm.rank], width), 10.0 * rank + number) for rank in ranks]
                assert torch.equal(exchange.wait(), torch.cat(parts))

    run_gloo(work, 3)


@pytest.mark.slow
def test_a_rank_that_only_sends_waits_for_its_reader() -> None:
    """A fast sender takes `SLOTS` buffers, whatever the number of exchanges."""
    full = multiprocessing.get_context("fork").Event()

    def work(comm: Communicator) -> int:
        send, recv = ([0, 50], [0, 0]) if comm.rank == 0 else ([0, 0], [50, 0])
        share_memory(comm)
        for number in range(20):
            rows = torch.full((sum(send), 1000), float(number))
            if comm.rank == 1:
                assert full.wait(GUARD)
            received = comm.start(rows, send, recv).wait()
            if number == shared_memory.SLOTS - 1:
                full.set()
            if comm.rank == 1:
                assert torch.equal(received, torch.full((50, 1000), float(number)))
        return len(share_memory(comm)._buffers)

    assert run_gloo(work, 2) == [shared_memory.SLOTS, 0]


@pytest.mark.slow
def test_messages_without_room_do_not_lock_ranks_that_send_to_each_other() -> None:
    def work(comm: Communicator) -> None:
        counts = [0 if rank == comm.rank else LARGE for rank in range(2)]
        rows = [torch.full((LARGE,), number, dtype=torch.uint8) for number in range(150)]
        pending = [comm.start(part, counts, counts) for part in rows]
        assert all(torch.equal(part.wait(), row) for part, row in zip(pending, rows, strict=True))

    run_gloo(work, 2)


@pytest.mark.slow
def test_a_rank_that_ends_while_a_peer_has_much_to_read_is_not_lost() -> None:
    """Without room for its goodbye, the peer took the rank for dead."""
    full = multiprocessing.get_context("fork").Event()

    def work(comm: Communicator) -> None:
        counts = [0 if rank == comm.rank else 4 for rank in range(2)]
        rows = torch.full((4,), comm.rank)
        memory = share_memory(comm)
        pending = comm.start(rows, counts, counts)
        if comm.rank == 0:
            assert full.wait(GUARD)
            time.sleep(0.5)  # the other has ended, but for its goodbye
            assert pending.wait().tolist() == [1] * 4
            return
        pending.wait()
        (link,) = memory._links.values()
        with contextlib.suppress(BlockingIOError):
            while True:  # messages that nobody waits for
                link.socket.send(shared_memory._HEADER.pack(shared_memory._ROWS, 0, 10**9, 0, 1, 0) + b"x")
        full.set()

    run_gloo(work, 2)


@pytest.mark.slow
def test_groups_exchange_apart_and_in_threads() -> None:
    def work(comm: Communicator) -> None:
        part = comm.split([rank for rank in range(4) if rank % 2 == comm.rank % 2])
        again = comm.split(range(4))
        share_memory(part), share_memory(again)
        errors: list[BaseException] = []

        def exchange(group: Communicator, members: list[int]) -> None:
            try:
                for number in range(30):
                    counts = [number * 40] * group.world_size
                    rows = torch.full((sum(counts), 9), float(comm.rank))
                    actual = group.all_to_all(rows, counts, counts).view(group.world_size, -1)
                    assert all((each == rank).all() for each, rank in zip(actual, members, strict=True))
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=exchange, args=(again, [0, 1, 2, 3]))
        thread.start()
        exchange(part, [comm.rank % 2, comm.rank % 2 + 2])
        thread.join()
        assert not errors, errors

    run_gloo(work, 4)


@pytest.mark.slow
def test_a_large_buffer_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "KEPT", shared_memory.PIECE)

    def work(comm: Communicator) -> None:
        second = 1 - comm.rank
        for num_rows in (3 * shared_memory.PIECE, 100_000, 2 * shared_memory.PIECE, 100_000):
            counts = [0 if rank == comm.rank else num_rows for rank in range(2)]
            rows = torch.full((num_rows,), comm.rank + 1, dtype=torch.uint8)
            assert (comm.all_to_all(rows, counts, counts) == second + 1).all()
        comm.all_reduce(torch.zeros(1))
        memory = share_memory(comm)
        memory._hear()
        loads = [buffer.memory for buffer in memory._buffers] + list(memory._links[second].buffers.values())
        assert all(len(each) <= shared_memory.PIECE for each in loads)

    run_gloo(work, 2)


@pytest.mark.slow
def test_a_quick_reader_does_not_free_a_buffer_that_is_still_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 hears that rank 1 has read before it writes the rows of rank 2."""
    monkeypatch.setattr(shared_memory, "KEPT", shared_memory.PIECE)

    def work(comm: Communicator) -> None:
        memory, num_rows = share_memory(comm), shared_memory.PIECE
        if comm.rank == 0:
            send = memory._send

            def slowly(*arguments: Any) -> None:
                send(*arguments)
                time.sleep(0.1)
                memory._hear()

            monkeypatch.setattr(memory, "_send", slowly)
        counts = [0, num_rows, num_rows] if comm.rank == 0 else [0, 0, 0]
        rows = torch.arange(sum(counts), dtype=torch.int32)
        rows_received = comm.all_to_all(rows, counts, [0, 0, 0] if comm.rank == 0 else [num_rows, 0, 0])
        first = (comm.rank - 1) * num_rows
        assert comm.rank == 0 or torch.equal(rows_received, torch.arange(first, first + num_rows, dtype=torch.int32))

    run_gloo(work, 3)


@pytest.mark.slow
@pytest.mark.exhaustive
@few("number", range(4), default=[3])
def test_rows_between_hosts_travel_over_tcp(number: int) -> None:
    """None is a rank whose system lacks what shared memory needs."""
    layouts: list[list[int | None]] = [[0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 2], [0, 0, None, 0, 1]]
    hosts = layouts[number]

    def work(comm: Communicator) -> list[int]:
        overrides, tcp = hosts[comm.rank], over_tcp(comm)
        shared_memory.host = lambda: f"kernel {overrides}"  # type: ignore[assignment]
        if overrides is None:
            shared_memory._can_map = lambda: False  # type: ignore[assignment]
        check_communicator(comm)
        for draw in range(6):
            send, recv = counts_of(comm, draw, 3000)
            source, index = rows_of(comm, 50, (6,), torch.float32), torch.arange(sum(send)) * 7 % 50
            rows = source[index]
            reference = tcp.all_to_all(rows, send, recv)
            assert torch.equal(comm.all_to_all(rows, send, recv), reference)
            assert torch.equal(lent(comm, source, send, recv, index=index), reference)
        return sorted(share_memory(comm)._links)

    ranks = range(len(hosts))
    reference = [[peer for peer in ranks if peer != me and hosts[peer] == hosts[me] is not None] for me in ranks]
    assert run_gloo(work, len(hosts)) == reference


@pytest.mark.slow
@few("all_are", ["elsewhere", "unable", "deaf"], default=["elsewhere"])
def test_no_memory_is_shared_where(all_are: str) -> None:
    """All ranks are on hosts of their own, or cannot map memory, or one cannot call."""

    def work(comm: Communicator) -> bool:
        assert isinstance(comm, Gloo)
        if all_are == "elsewhere":
            shared_memory.host = lambda: f"kernel {comm.rank}"  # type: ignore[assignment]
        elif all_are == "unable":
            shared_memory._can_map = lambda: False  # type: ignore[assignment]
        elif comm.rank == 1:
            shared_memory._user = lambda link: -1  # type: ignore[assignment]
        shared_memory.MEETING = 0.3
        counts = [[2, 0, 2], [0, 0, 0], [2, 0, 2]][comm.rank]
        rows, index = torch.arange(6.0)[:, None] + 10 * comm.rank, torch.arange(sum(counts))
        with comm.start(rows, counts, counts, index=index).borrow() as actual:
            assert actual[:, 0].tolist() == [[0, 1, 20, 21], [], [2, 3, 22, 23]][comm.rank]
        return comm._memory is None

    assert run_gloo(work, 3) == [True] * 3


@pytest.mark.slow
def test_ranks_without_shared_memory_use_tcp() -> None:
    def work(comm: Communicator) -> bool:
        counts = [1, 1]
        assert comm.all_to_all(torch.full((2,), float(comm.rank)), counts, counts).tolist() == [0, 1]
        assert isinstance(comm, Gloo)
        return comm._memory is None

    assert run_gloo(work, 2, kind=Tcp) == [True, True]


@pytest.mark.slow
def test_sums_and_broadcasts_of_one_number_in_a_column() -> None:
    """A contiguous tensor of one number has any stride."""

    def work(comm: Communicator) -> None:
        table = torch.full((1, 5), float(comm.rank))
        assert comm.all_reduce(table[:, 0]).tolist() == [1.0]
        assert comm.broadcast(table[:, 1], src=1).tolist() == [1.0]
        assert table[0].tolist() == [1.0, 1.0, *[float(comm.rank)] * 3]

    run_gloo(work, 2)


@pytest.mark.slow
def test_counts_that_do_not_fit_are_an_error() -> None:
    def work(comm: Communicator) -> None:
        send = [0, 10] if comm.rank == 0 else [10, 0]
        exchange = comm.start(torch.zeros(10, 8), send, [0, 10] if comm.rank == 0 else [11, 0])
        if comm.rank == 0:
            exchange.wait()
        else:
            with pytest.raises(RuntimeError, match="rank 1 expects 352 bytes of rank 0, which has sent 320"):
                exchange.wait()

    run_gloo(work, 2)


def waits(comm: Communicator, leave: Callable[[], None], *, leaver: int, sums: bool = False) -> tuple[float, str]:
    """Exchanges or sums twice. Returns the second wait's CPU seconds and error."""
    counts = [0 if rank == comm.rank else 50 for rank in range(comm.world_size)]
    rows = torch.ones(sum(counts), 100)

    def meet() -> None:
        comm.all_reduce(rows) if sums else comm.start(rows, counts, counts).wait()

    meet()
    if comm.rank == leaver:
        leave()
    cpu = time.process_time()
    with pytest.raises(RuntimeError) as error:
        meet()
    return time.process_time() - cpu, f"{type(error.value).__name__}: {error.value}"


@pytest.mark.slow
@pytest.mark.parametrize("sums", [False, True])
def test_a_rank_that_is_killed_ends_every_wait_at_once_and_leaves_no_file(sums: bool) -> None:
    def work(comm: Communicator) -> Any:
        def die() -> None:
            time.sleep(0.5)  # the others wait
            os.kill(os.getpid(), signal.SIGKILL)

        waited = waits(comm, die, leaver=1, sums=sums)
        mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm/" in line]
        assert all(line.endswith("(deleted)") for line in mapped), "a file with a name stays"
        return waited

    for rank, (cpu, error) in zip((0, 2), run_gloo(work, 3, timeout=NEVER, dies=1), strict=True):
        assert error == f"PeerLost: rank {rank}: lost its peer rank 1, which has ended"
        assert cpu < 0.25, "a rank that waits sleeps"


@pytest.mark.slow
def test_a_group_names_a_lost_rank_as_the_run_does() -> None:
    def work(comm: Communicator) -> Any:
        if comm.rank == 0:
            return None
        part = comm.split([1, 2])
        return waits(part, lambda: os.kill(os.getpid(), signal.SIGKILL), leaver=1)

    results = run_gloo(work, 3, dies=2)
    assert results[1][1] == "PeerLost: rank 1: lost its peer rank 2, which has ended"


@pytest.mark.slow
def test_a_rank_that_is_stopped_ends_the_wait_at_the_deadline() -> None:
    def work(comm: Communicator) -> Any:
        share_memory(comm)._timeout = 3.0  # once both have met
        return waits(comm, lambda: os.kill(os.getpid(), signal.SIGSTOP), leaver=1)

    ((cpu, error),) = run_gloo(work, 2, dies=1)
    assert error == "DeadlineExceeded: rank 0: timed out after 3 s waiting for rank 1"
    assert cpu < 1.5, "a rank that waits sleeps"


@pytest.mark.slow
def test_a_rank_that_has_closed_is_lost_only_to_those_who_need_it() -> None:
    """What it has sent still arrives, through buffers and in messages."""

    def work(comm: Communicator) -> str:
        memory = share_memory(comm)
        counts = [[0, 1000, 1000], [0, 0, 1000], [0, 1, 0]]
        recv = [[0, 0, 0], [1000, 0, 1], [1000, 1000, 0]]
        rows = torch.full((sum(counts[comm.rank]), 10), float(comm.rank))
        exchange = comm.start(rows, counts[comm.rank], recv[comm.rank])
        if comm.rank == 0:
            exchange.wait()
            memory.close()
            return ""
        time.sleep(0.2 * comm.rank)
        assert torch.equal(exchange.wait().sum(1).unique(), torch.tensor([0.0, 20.0 if comm.rank == 1 else 10.0]))
        with pytest.raises(PeerLost) as caught:
            comm.start(torch.ones(0, 4000), [0, 0, 0], [1, 0, 0]).wait()
        assert caught.value.rank == 0
        return str(caught.value)

    message = "rank {}: lost its peer rank 0, which has closed its communicator"
    assert run_gloo(work, 3) == ["", message.format(1), message.format(2)]


@pytest.mark.slow
def test_a_stranger_without_the_token_is_refused() -> None:
    """A stranger calls rank 0 before rank 1 does, and the ranks still meet."""

    def work(comm: Communicator) -> None:
        assert isinstance(comm, Gloo)
        gather, strangers = comm._gather_bytes, list[socket.socket]()

        def gather_and_call(own: bytes) -> list[bytes]:
            everyone = gather(own)
            if comm.rank == 1 and not strangers:
                strangers.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                strangers[0].settimeout(GUARD)
                strangers[0].connect(bytes.fromhex(json.loads(everyone[0])["name"]))
                strangers[0].send(frames.hello("0" * 32, 1))
            return everyone

        met = shared_memory.meet(comm.rank, 2, gather_and_call, GUARD, able=True)
        assert met is not None
        assert (list(met.links), met.far) == ([1 - comm.rank], ())
        assert all(stranger.recv(1) == b"" for stranger in strangers), "the connection is closed"
        comm.all_reduce(torch.zeros(1))

    run_gloo(work, 2)


def test_a_system_without_such_sockets_is_left_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    class Refusing:
        def bind(self, _: str) -> None:
            raise OSError("no abstract names")

        def __enter__(self) -> Refusing:
            return self

        def __exit__(self, *_: object) -> None:
            closed.append(self)

    with monkeypatch.context() as patch:
        patch.setattr(shared_memory.sys, "platform", "darwin")
        assert shared_memory._listen(2) is None
    with monkeypatch.context() as patch:
        patch.setattr(shared_memory.socket, "socket", lambda *_: Refusing())
        assert shared_memory._listen(2) is None
    assert len(closed) == 1

    def none(*_: object) -> None:
        raise OSError("no such family")

    monkeypatch.setattr(shared_memory.socket, "socket", none)
    assert shared_memory._listen(2) is None


def test_a_process_of_another_user_is_a_stranger_with_any_token(monkeypatch: pytest.MonkeyPatch) -> None:
    for user, ranks in ((os.geteuid() + 1, []), (os.geteuid(), [3])):
        monkeypatch.setattr(shared_memory, "_user", lambda _, user=user: user)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as theirs:
            listener = shared_memory._listen(2)
            assert listener is not None
            with listener:
                theirs.connect(listener.getsockname())
                theirs.send(frames.hello("t" * 32, 3))
                deadline, is_trusted = time.monotonic() + (GUARD if ranks else 0.2), shared_memory._is_of_this_user
                callers = dict(accept_ranks([3], listener, "t" * 32, deadline, is_trusted=is_trusted))
            assert list(callers) == ranks
            for connection in callers.values():
                connection.close()
