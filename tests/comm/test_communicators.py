from __future__ import annotations

import time

import pytest
import torch

from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.testing import check_communicator
from tests.comm.processes import run_gloo

RUNNERS = {"threads": Threads.run, "gloo": run_gloo}


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("comm", RUNNERS)
def test_communicator_keeps_the_promises_of_the_interface(comm: str, world_size: int) -> None:
    RUNNERS[comm](check_communicator, world_size)


@pytest.mark.parametrize("comm", RUNNERS)
def test_all_reduce_gives_the_same_bits_on_all_ranks(comm: str) -> None:
    def work(comm: Communicator) -> torch.Tensor:
        return comm.all_reduce(torch.randn(1001, generator=torch.Generator().manual_seed(comm.rank)))

    first, *others = RUNNERS[comm](work, 3)
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("comm", RUNNERS)
def test_a_rank_that_never_comes_ends_the_wait_of_the_others(comm: str) -> None:
    def work(comm: Communicator) -> float:
        if comm.rank == 1:
            time.sleep(3)
            return 0.0
        start = time.monotonic()
        with pytest.raises(RuntimeError):
            comm.all_reduce(torch.ones(1))
        return time.monotonic() - start

    assert RUNNERS[comm](work, 2, timeout=1.0)[0] < 2.9


def test_the_first_thread_that_fails_is_the_error_that_is_shown() -> None:
    def work(comm: Communicator) -> None:
        if comm.rank == 2:
            raise ZeroDivisionError("mine")
        comm.all_reduce(torch.ones(1))

    with pytest.raises(ZeroDivisionError, match="mine"):
        Threads.run(work, 3)
