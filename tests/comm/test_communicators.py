from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from gnnkit.comm import Communicator, DeadlineExceeded, PeerLost
from gnnkit.comm.threads import FEW, MismatchedCollectives, Threads
from gnnkit.launch.launcher import RankError, Ranks
from gnnkit.launch.launcher.builtin import Processes
from gnnkit.testing import check_communicator
from tests.cases import exhaustive, few
from tests.comm.processes import run_gloo
from tests.waiting import GUARD, NEVER, wait_until

RUNNERS = {"threads": Threads.run, "gloo": run_gloo}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("comm", "world_size"),  # gloo's four and five ranks: in test_shared_memory.py
    [*(("threads", size) for size in (1, 2, 3, 5)), *(("gloo", size) for size in (1, 2)), exhaustive(("gloo", 3))],
)
def test_communicator_keeps_the_promises_of_the_interface(comm: str, world_size: int) -> None:
    RUNNERS[comm](check_communicator, world_size)


@few("comm", RUNNERS, default=["threads"])
def test_all_reduce_gives_the_same_bits_on_all_ranks(comm: str) -> None:
    def work(comm: Communicator) -> torch.Tensor:
        return comm.all_reduce(torch.randn(1001, generator=torch.Generator().manual_seed(comm.rank)))

    first, *others = RUNNERS[comm](work, 3)
    assert all(torch.equal(first, other) for other in others)


def spread(
    function: Callable[[Communicator], Any], world_size: int, processes: int, timeout: float = GUARD
) -> list[Any]:
    """Calls the function on threads of several processes. Results are JSON, by rank."""
    return [*Processes().ranks(Ranks(function, world_size, Threads, timeout, processes)).values()]


@pytest.mark.slow
@few("world_size,processes", [(2, 2), (5, 2), (7, 3)], default=[(5, 2)])
def test_threads_of_several_processes_keep_the_promises_of_the_interface(world_size: int, processes: int) -> None:
    spread(check_communicator, world_size, processes)


@pytest.mark.slow
@few("processes", [2, 4, 6], default=[4])
def test_sums_do_not_depend_on_the_number_of_processes(processes: int) -> None:
    def work(comm: Communicator) -> str:
        digest, generator = hashlib.sha256(), torch.Generator().manual_seed(comm.rank)
        evens = comm.split([rank for rank in range(comm.world_size) if rank % 2 == comm.rank % 2])
        for size in (0, 1, FEW, FEW + 1, 10_003):
            for group in (comm, evens):
                digest.update(group.all_reduce(torch.randn(size, generator=generator)).numpy().tobytes())
        return digest.hexdigest()

    results = spread(work, 6, processes)
    assert results == Threads.run(work, 6)
    assert len(set(results)) == 2  # one for each half


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, exhaustive(4)])
def test_a_rank_that_fails_ends_those_of_all_processes(victim: int) -> None:
    """Ranks wait for it in its own process, and for each other in the others."""

    def work(comm: Communicator) -> None:
        comm.all_reduce(torch.ones(1))
        if comm.rank == victim:
            raise ZeroDivisionError("mine")
        comm.all_to_all(torch.ones(comm.world_size), [1] * comm.world_size, [1] * comm.world_size)

    with pytest.raises(RankError, match=rf"ZeroDivisionError: mine \(on rank {victim}\)") as caught:
        spread(work, 6, 3, timeout=NEVER)
    assert str(caught.value).startswith(f"process {victim // 2} (ranks {victim} to {victim + 1}) failed")


@pytest.mark.slow
def test_a_process_that_is_killed_ends_the_ranks_of_the_others() -> None:
    def work(comm: Communicator) -> None:
        comm.all_reduce(torch.ones(1))
        if comm.rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        comm.broadcast(torch.ones(1), src=3)

    with pytest.raises(RankError, match=r"^process 1 \(ranks 2 to 3\) was ended by SIGKILL"):
        spread(work, 6, 3, timeout=NEVER)


@pytest.mark.slow
def test_a_rank_of_another_process_that_does_not_come_is_named() -> None:
    context = multiprocessing.get_context("fork")
    begun, exits = context.Barrier(3), context.Barrier(3)

    def work(comm: Communicator) -> str:
        begun.wait(GUARD)
        run = comm._group.run  # type: ignore[attr-defined]
        run.process_links._timeout = run.timeout = 2.0  # once all have met
        late = ""
        if comm.rank != 2:
            with pytest.raises(DeadlineExceeded) as error:
                comm.all_to_all(torch.ones(3), [1] * 3, [1] * 3)
            late = str(error.value)
        exits.wait(GUARD)
        return late

    message = spread(work, 3, 3, timeout=GUARD)
    assert message[:2] == [f"rank {rank}: timed out after 2 s waiting for rank 2" for rank in (0, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("comm", RUNNERS)
def test_a_rank_that_comes_late_ends_the_wait_of_the_others(comm: str) -> None:
    done = multiprocessing.get_context("fork").Event()

    def work(comm: Communicator) -> None:
        if comm.rank == 1:
            assert done.wait(GUARD), "rank 0 waits for a rank that does not come"
            return
        with pytest.raises(RuntimeError):
            comm.all_reduce(torch.ones(1))
        done.set()

    RUNNERS[comm](work, 2, timeout=1.0 if comm == "threads" else 15.0)  # processes meet within it, too


def test_the_thread_that_fails_of_itself_is_the_error_that_is_shown() -> None:
    def work(comm: Communicator) -> None:
        if comm.rank == 2:
            raise ZeroDivisionError("mine")
        comm.all_reduce(torch.ones(1))

    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        Threads.run(work, 3)
    assert caught.value.__notes__ == ["on rank 2"]


def test_a_thread_that_only_lost_its_peer_is_not_the_cause() -> None:
    """Rank 0 notices first, rank 1 fails last and of itself."""

    def work(comm: Threads) -> None:
        if comm.rank == 0:
            raise PeerLost("rank 0: lost its peer rank 1", 1)
        wait_until(lambda: comm._group.run.gone)
        raise ZeroDivisionError(f"of rank {comm.rank}")

    with pytest.raises(ZeroDivisionError) as caught:
        Threads.run(work, 2)
    assert caught.value.__notes__ == ["on rank 1"]


def test_all_threads_that_fail_of_themselves_are_told() -> None:
    def work(comm: Threads) -> None:
        wait_until(lambda: comm.rank == len(comm._group.run.gone))
        raise ZeroDivisionError(f"mine is {comm.rank}")

    with pytest.raises(ZeroDivisionError, match="mine is 0") as caught:
        Threads.run(work, 2)
    assert caught.value.__notes__ == ["on rank 0", "rank 1 failed: ZeroDivisionError: mine is 1"]


@pytest.mark.slow
def test_threads_name_the_ranks_that_have_not_come() -> None:
    message = threading.Event()

    def work(comm: Communicator) -> str:
        part = comm.split([0, 2, 3]) if comm.rank != 1 else comm.split([1])
        if comm.rank == 0:
            with pytest.raises(DeadlineExceeded) as error:
                part.all_reduce(torch.ones(1))
            message.set()
            return str(error.value)
        assert message.wait(GUARD)
        return ""

    assert Threads.run(work, 4, timeout=1.0)[0] == "rank 0: timed out after 1 s waiting for rank 2, rank 3"


def test_a_thread_that_has_ended_is_not_waited_for() -> None:
    def work(comm: Communicator) -> None:
        if comm.rank == 1:
            return
        comm.all_reduce(torch.ones(1))

    with pytest.raises(PeerLost, match="rank 0: lost its peer rank 1, which has ended") as caught:
        Threads.run(work, 2, timeout=NEVER)
    assert caught.value.rank == 1


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Ends the threads that a test leaves stuck."""
    event = threading.Event()
    yield event
    event.set()


def test_a_thread_that_is_stuck_is_named_when_the_others_have_ended(release: threading.Event) -> None:
    def work(comm: Communicator) -> None:
        if comm.rank == 1:
            release.wait()

    with pytest.raises(DeadlineExceeded, match=r"rank 1 is stuck, still running 0.2 s after all other ranks had ended"):
        Threads.run(work, 3, timeout=0.2)


@pytest.mark.slow
def test_a_thread_that_is_stuck_is_named_when_another_has_waited_for_it(release: threading.Event) -> None:
    together = threading.Barrier(2)

    def work(comm: Communicator) -> None:
        release.wait() if comm.rank == 2 else together.wait(GUARD)
        comm.all_reduce(torch.ones(1))

    message = r"rank 2 is stuck, still running 1 s after rank [01] failed: .* timed out after 1 s waiting for rank 2$"
    with pytest.raises(DeadlineExceeded, match=message):
        Threads.run(work, 3, timeout=1.0)


def test_a_thread_that_is_stuck_is_told_beside_the_failure_of_another(release: threading.Event) -> None:
    together = threading.Barrier(2)

    def work(comm: Communicator) -> None:
        release.wait() if comm.rank == 2 else together.wait(GUARD)
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError) as caught:
        Threads.run(work, 3, timeout=1.0)
    assert caught.value.__notes__[-1] == "rank 2 is stuck, still running 1 s later"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda comm: comm.all_reduce(torch.ones(2)), lambda comm: comm.all_reduce(torch.ones(3))),
        (lambda comm: comm.all_reduce(torch.ones(2)), lambda comm: comm.broadcast(torch.ones(2), src=0)),
        (lambda comm: comm.all_reduce(torch.ones(2)), lambda comm: comm.all_to_all(torch.ones(2), [1, 1], [1, 1])),
        (lambda comm: comm.broadcast(torch.ones(1), src=0), lambda comm: comm.broadcast(torch.ones(1), src=1)),
        (lambda comm: comm.mailbox(), lambda comm: comm.all_reduce(torch.ones(2))),
    ],
    ids=["sizes", "broadcast", "all_to_all", "sources", "mailbox"],
)
def test_threads_in_different_collectives_are_named(first: Any, second: Any) -> None:
    def work(comm: Communicator) -> None:
        (second if comm.rank else first)(comm)

    with pytest.raises(MismatchedCollectives, match=r"ranks are in different collectives \(rank 0 in .*, rank 1 in "):
        Threads.run(work, 2)


def test_threads_that_expect_other_counts_are_told() -> None:
    def work(comm: Communicator) -> None:
        comm.all_to_all(torch.ones(2), [1, 1], [1, 1 + comm.rank])

    with pytest.raises(MismatchedCollectives, match="the counts of sender and receiver differ: all ranks must make"):
        Threads.run(work, 2)
