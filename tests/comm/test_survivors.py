"""Collectives go on when ranks are gone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gnnkit.comm import Communicator, DeadlineExceeded, PeerLost, Survivors
from gnnkit.comm.threads import Threads
from gnnkit.testing import check_communicator
from tests.cases import exhaustive
from tests.comm.processes import run_gloo
from tests.waiting import GUARD, NEVER

RUNNERS: dict[str, Callable[..., list[Any]]] = {"threads": Threads.run, "gloo": run_gloo}
LAST = 2  # the rank that leaves


def surviving(work: Callable[[Survivors], Any]) -> Callable[[Communicator], Any]:
    """Gives `work` the survivors of all ranks of a communicator."""

    def on_rank(comm: Communicator) -> Any:
        with comm.mailbox() as mailbox:
            survivors = Survivors(comm, mailbox, range(comm.world_size))
            try:
                return work(survivors)
            finally:
                survivors.close()

    return on_rank


@pytest.mark.slow
@pytest.mark.parametrize(
    ("comm", "world_size"),
    [("threads", 1), ("threads", 3), exhaustive(("threads", 5)), ("gloo", 1), exhaustive(("gloo", 3))],
)
def test_survivors_keep_the_promises_of_a_communicator(comm: str, world_size: int) -> None:
    RUNNERS[comm](surviving(check_communicator), world_size)


def collectives(comm: Survivors) -> dict[str, Any]:
    """Runs one collective of each kind, and says who was lost after each."""
    value, lost_ranks = float(10**comm.rank), []
    results: dict[str, Any] = {}
    results["sum"] = comm.all_reduce(torch.tensor([value])).item()
    lost_ranks.append(sorted(comm.lost))
    results["first"] = comm.broadcast(torch.tensor([value]), src=1).item()
    lost_ranks.append(sorted(comm.lost))
    results["rows"] = [part.tolist() for part in comm.gather(torch.full((1,), value))]
    lost_ranks.append(sorted(comm.lost))
    counts = [0 if rank == LAST else 1 for rank in range(comm.world_size)]
    sent = torch.full((comm.world_size,), value)
    results["received"] = comm.all_to_all(sent, [1] * comm.world_size, counts).tolist()
    return results | {"lost": [*lost_ranks, sorted(comm.lost)]}


@pytest.mark.parametrize(
    ("comm", "how"), [("threads", "returns"), pytest.param("gloo", "is killed", marks=pytest.mark.slow)]
)
def test_a_rank_that_is_gone_contributes_nothing(comm: str, how: str) -> None:
    def work(comm: Survivors) -> Any:
        comm.all_reduce(torch.ones(1))
        if comm.rank != LAST:
            return collectives(comm)
        if how == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        return None

    keys = {"dies": LAST} if how == "is killed" else {}
    actual = RUNNERS[comm](surviving(work), 4, **keys)
    survivors = [result for result in actual if result is not None]
    assert len(survivors) == 3
    for result in survivors:
        assert result["sum"] == 1011
        assert result["first"] == 10
        assert result["received"] == [1, 10, 1000]
        assert result["lost"] == [[LAST]] * 4
    assert survivors[0]["rows"] == [[1], [10], [], [1000]]
    assert survivors[1]["rows"] == []


def test_the_end_of_rank_0_ends_the_others_at_once() -> None:
    def work(comm: Survivors) -> None:
        if comm.rank == 0:
            return
        with pytest.raises(PeerLost, match="lost its peer rank 0"):
            comm.all_reduce(torch.ones(1))

    Threads.run(surviving(work), 3, timeout=NEVER)


def test_a_value_of_a_rank_that_is_gone_is_an_error_on_every_rank() -> None:
    def work(comm: Survivors) -> None:
        if comm.rank == LAST:
            return
        with pytest.raises(PeerLost, match="rank 2, whose rows are needed"):
            comm.broadcast(torch.ones(1), src=LAST)
        with pytest.raises(PeerLost, match="rank 2, whose rows are needed"):
            comm.all_to_all(torch.ones(0), [0, 0, 0], [0, 0, 1])

    Threads.run(surviving(work), 3)


@pytest.mark.slow
def test_a_slow_rank_is_waited_for_beyond_the_deadline() -> None:
    def work(comm: Survivors) -> float:
        if comm.rank == 1:
            time.sleep(3.0)
        return comm.all_reduce(torch.ones(1)).item()

    assert Threads.run(surviving(work), 3, timeout=2.0) == [3, 3, 3]


@pytest.mark.slow
def test_a_silent_rank_is_an_error_at_the_deadline() -> None:
    def work(comm: Communicator) -> None:
        with comm.mailbox() as mailbox:
            if comm.rank == 1:  # alive, but no heart beats
                mailbox.take("end", src=0, timeout=GUARD)
                return
            survivors = Survivors(comm, mailbox, range(2))
            with pytest.raises(DeadlineExceeded, match=r"rank 0: timed out: no heartbeat of rank 1 for 1 s"):
                survivors.all_reduce(torch.ones(1))
            survivors.close()
            mailbox.put(1, "end")

    Threads.run(work, 2, timeout=1.0)


def test_ranks_that_call_different_collectives_are_told() -> None:
    def work(comm: Survivors) -> None:
        if comm.rank == 0:
            with pytest.raises(RuntimeError, match="rank 1 calls gather, while rank 0 calls all_reduce"):
                comm.all_reduce(torch.ones(1))
        else:
            with pytest.raises(PeerLost):
                comm.gather(torch.ones(1))

    Threads.run(surviving(work), 2)
