"""Gradients that meet at the leader are those of an all-reduce."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gnnkit.comm import Communicator, Survivors
from gnnkit.comm.threads import Threads
from gnnkit.errors import UserError
from gnnkit.partition.base import Grid
from gnnkit.partition.shard import Shard
from gnnkit.sync import average_parameters, drift
from gnnkit.sync.all_reduce import AllReduce
from gnnkit.sync.base import GradientSync
from gnnkit.sync.leader import LeaderSync
from tests.cases import exhaustive
from tests.comm.processes import run_gloo
from tests.sync.training import make_model, parameters, shards_on, train

Run = Callable[[Callable[[Communicator], Any], int], list[Any]]
MODEL = make_model()


def train_rank(shards: list[Shard], sync: Callable[[], GradientSync], comm: Communicator) -> Tensor:
    return parameters(train(shards, sync, copy.deepcopy(MODEL), comm, epochs=4)[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "grid"),
    [
        pytest.param(Threads.run, Grid(3, 1, 1), id="threads-3 x 1 x 1"),
        pytest.param(Threads.run, Grid(2, 2, 1), id="threads-2 x 2 x 1"),
        exhaustive(pytest.param(run_gloo, Grid(3, 1, 1), id="gloo-3 x 1 x 1")),
        exhaustive(pytest.param(run_gloo, Grid(2, 2, 1), id="gloo-2 x 2 x 1")),
    ],
)
def test_the_leaders_update_equals_all_reduce(run: Run, grid: Grid) -> None:
    shards = shards_on(grid)
    reference = run(functools.partial(train_rank, shards, AllReduce), grid.world_size)
    actual = run(functools.partial(train_rank, shards, LeaderSync), grid.world_size)
    alone = Threads.run(functools.partial(train_rank, shards_on(Grid(1, 1, 1)), AllReduce), 1)[0]
    for a, b in zip(actual, reference, strict=True):
        print(f"largest difference {float((a - b).abs().max()):.1e}")
        assert torch.equal(a, actual[0]), "ranks have the leader's parameters, to the bit"
        assert float((a - b).abs().max()) <= 1e-12
        assert float((a - alone).abs().max()) <= 1e-12


@pytest.mark.slow
def test_only_the_leader_has_optimiser_state() -> None:
    shards = shards_on(Grid(3, 1, 1))

    def num_states(comm: Communicator) -> int:
        model = copy.deepcopy(MODEL)
        _, _, optimizer = train(shards, LeaderSync, model, comm, epochs=4, make_optimizer=torch.optim.Adam)
        return len(optimizer.state)

    assert Threads.run(num_states, 3) == [len(list(MODEL.parameters())), 0, 0]


@pytest.mark.slow
def test_workers_that_drifted_get_the_leaders_parameters() -> None:
    shards = shards_on(Grid(3, 1, 1))

    def drifts(comm: Communicator) -> list[float]:
        return [
            drift(train(shards, LeaderSync, copy.deepcopy(MODEL), comm, local_iterations=3, epochs=epochs)[0], comm)
            for epochs in (1, 3)
        ]

    for first, second in Threads.run(drifts, 3):
        assert first > 0
        assert second == 0


def test_the_plain_mean_counts_every_rank_with_rows_alike() -> None:
    """Three ranks with 1, 3 and 0 rows, whose mean gradients are 2, 6 and nothing."""
    shares, means = [0.25, 0.75, 0.0], [2.0, 6.0, 0.0]

    def step(average: str, comm: Communicator) -> float:
        module = torch.nn.Linear(1, 1, bias=False).double()
        torch.nn.init.zeros_(module.weight)
        module.weight.grad = torch.full_like(module.weight, means[comm.rank] * shares[comm.rank])
        sync = LeaderSync(average=average)
        sync.setup(module, comm)
        sync.step(module, torch.optim.SGD(module.parameters(), lr=1.0), shares[comm.rank])
        return module.weight.item()

    assert Threads.run(functools.partial(step, "weighted"), 3) == [-5.0] * 3
    assert Threads.run(functools.partial(step, "mean"), 3) == [-4.0] * 3
    with pytest.raises(UserError, match=r"^sync.average=meen is not known: did you mean mean\?"):
        LeaderSync(average="meen")


def test_the_final_average_is_weighted_and_leaves_no_drift() -> None:
    def averaged(comm: Communicator) -> tuple[float, float, float]:
        module = torch.nn.Linear(1, 1, bias=False).double()
        torch.nn.init.constant_(module.weight, comm.rank + 1)
        before = drift(module, comm)
        average_parameters(module, comm, [1.0, 0.0, 3.0][comm.rank])
        return before, module.weight.item(), drift(module, comm)

    assert Threads.run(averaged, 3) == [(2.0, 2.5, 0.0)] * 3


def test_the_leader_steps_with_the_rows_of_the_ranks_that_are_left() -> None:
    """Three ranks with mean gradients of 2, 6 and 100. The last one is lost."""
    shares, means = [0.1, 0.3, 0.6], [2.0, 6.0, 100.0]

    def step(comm: Communicator) -> float:
        with comm.mailbox() as mailbox:
            survivors = Survivors(comm, mailbox, range(3))
            module = torch.nn.Linear(1, 1, bias=False).double()
            torch.nn.init.zeros_(module.weight)
            module.weight.grad = torch.full_like(module.weight, means[comm.rank] * shares[comm.rank])
            sync = LeaderSync(on_lost="continue")
            sync.setup(module, survivors)
            if comm.rank < 2:
                sync.step(module, torch.optim.SGD(module.parameters(), lr=1.0), shares[comm.rank])
            survivors.close()
            return module.weight.item()

    assert Threads.run(step, 3)[:2] == [pytest.approx(-5.0)] * 2
