"""Parameters at servers are those of an all-reduce, or of workers that do not wait."""

from __future__ import annotations

import copy
import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gnnkit.comm import Communicator, Mailbox
from gnnkit.comm.mailbox import PeerLost
from gnnkit.comm.threads import Threads
from gnnkit.errors import UserError
from gnnkit.partition.base import Grid
from gnnkit.sync import GradientSync
from gnnkit.sync.all_reduce import AllReduce
from gnnkit.sync.leader import LeaderSync
from gnnkit.sync.parameter_server import ParameterServer
from gnnkit.sync.server_client import distribute_evenly
from gnnkit.testing import check_sync
from tests.cases import exhaustive, product
from tests.comm.processes import run_gloo
from tests.sync.training import make_model, parameters, sgd, shards_on, train
from tests.waiting import GUARD, NEVER, wait_until

Make = Callable[[], GradientSync]
Work = Callable[[GradientSync, Communicator, Mailbox], Any]
MODEL = make_model()
adam = functools.partial(torch.optim.Adam, lr=0.05, weight_decay=0.01)
plain = functools.partial(torch.optim.SGD, lr=0.5)


def on_ranks(make: Make, work: Work, workers: int, world: Communicator) -> Any:
    """Does the work of a worker, or serves."""
    with world.mailbox() as mailbox:
        sync = make()
        if world.rank >= workers:
            sync.serve(mailbox, workers)
            return torch.zeros(0)
        return work(sync, world.split(range(workers)), mailbox)


def run(make: Make, work: Work, workers: int, timeout: float = GUARD) -> list[Any]:
    """Runs the workers on threads, and returns their results."""
    world = functools.partial(on_ranks, make, work, workers)
    return Threads.run(world, workers + make().servers, timeout=timeout)[:workers]


def train_worker(make_optimizer: Any, epochs: int, local_iterations: int, grid: Grid) -> Work:
    shards = shards_on(grid)

    def work(sync: GradientSync, comm: Communicator, mailbox: Mailbox) -> Tensor:
        model = copy.deepcopy(MODEL)
        keys = {"epochs": epochs, "local_iterations": local_iterations, "make_optimizer": make_optimizer}
        return parameters(train(shards, lambda: sync, model, comm, mailbox=mailbox, **keys)[0])

    return work


@pytest.mark.slow
@pytest.mark.parametrize("make_optimizer", [sgd, exhaustive(adam)], ids=["sgd", "adam"])
def test_together_servers_step_as_an_all_reduce_and_as_one_process(make_optimizer: Any) -> None:
    work = train_worker(make_optimizer, 8, 1, Grid(3, 1, 1))
    alone = run(AllReduce, train_worker(make_optimizer, 8, 1, Grid(1, 1, 1)), 1)[0]
    reduced = run(AllReduce, work, 3)[0]
    for servers in (0, 2):
        result = run(functools.partial(ParameterServer, servers=servers), work, 3)
        for rank_result in result:
            assert torch.equal(rank_result, result[0]), f"workers have the parameters of {servers} servers, to the bit"
            assert float((rank_result - reduced).abs().max()) <= 1e-12, servers
            assert float((rank_result - alone).abs().max()) <= 1e-12, servers


@pytest.mark.slow
def test_servers_that_are_processes_step_to_the_same_bits() -> None:
    make = functools.partial(ParameterServer, servers=2)
    work = train_worker(adam, 6, 1, Grid(3, 1, 1))
    results = run_gloo(functools.partial(on_ranks, make, work, 3), 5)[:3]
    reference = run(ParameterServer, work, 3)
    assert all(torch.equal(a, b) for a, b in zip(results, reference, strict=True))


@pytest.mark.slow
def test_own_steps_between_lead_where_they_lead_under_the_leader() -> None:
    work = train_worker(plain, 6, 3, Grid(3, 1, 1))
    result, reference = run(ParameterServer, work, 3), run(LeaderSync, work, 3)
    for a, b in zip(result, reference, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.slow
@product(
    keys=[
        exhaustive(pytest.param({"mode": "async"}, id="async")),
        pytest.param({"mode": "async", "servers": 2}, id="two servers"),
        pytest.param({"mode": "ssp", "staleness": 1}, id="ssp"),
    ],
    leader=[pytest.param(False, id="server"), exhaustive(pytest.param(True, id="leader"))],
)
def test_workers_that_do_not_wait_come_to_the_optimum(leader: bool, keys: dict[str, Any]) -> None:
    """Least squares, whose rows are dealt out to three workers of unlike speed."""
    rng = torch.Generator().manual_seed(0)
    rows, target = torch.randn(60, 4, generator=rng), torch.randn(4, generator=rng)
    labels = rows @ target
    if leader:
        keys = {key: value for key, value in keys.items() if key != "servers"}
    make: Any = LeaderSync if leader else ParameterServer

    def work(sync: GradientSync, comm: Communicator, mailbox: Mailbox) -> tuple[Tensor, dict[str, Any]]:
        module = nn.Linear(4, 1, bias=False)
        nn.init.zeros_(module.weight)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        sync.setup(module, comm, mailbox)
        own_rows = slice(20 * comm.rank, 20 * comm.rank + 20)
        for step in range(150):
            optimizer.zero_grad()
            (((module(rows[own_rows])[:, 0] - labels[own_rows]) ** 2).sum() / 60).backward()
            time.sleep(0.002 if (step + comm.rank) % 10 == 0 else 0)
            sync.step(module, optimizer, 1 / 3)
        sync.settle(module, optimizer)
        sync.close()
        return module.weight.detach()[0].clone(), sync.figures()

    result = run(functools.partial(make, **keys), work, 3)
    for weight, _ in result:
        assert torch.equal(weight, result[0][0]), "after settling all have the newest parameters"
        torch.testing.assert_close(weight, target, rtol=0, atol=0.05)
    assert result[0][1]["staleness"]["largest"] >= 1


def one_number(lr: float = 1.0) -> tuple[nn.Module, Optimizer]:
    module = nn.Linear(1, 1, bias=False).double()
    nn.init.zeros_(module.weight)
    return module, torch.optim.SGD(module.parameters(), lr=lr, momentum=0.5)


def push(sync: GradientSync, module: Any, optimizer: Optimizer, gradient: float) -> float:
    """Steps once, and returns the parameter."""
    module.weight.grad = torch.full_like(module.weight, gradient)
    sync.step(module, optimizer, 0.5)
    return float(module.weight.detach())


@pytest.mark.filterwarnings("error")
def test_the_servers_follow_the_schedule_of_worker_0() -> None:
    def work(sync: GradientSync, comm: Communicator, mailbox: Mailbox) -> list[float]:
        module, optimizer = one_number()
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        sync.setup(module, comm, mailbox)
        values = []
        for _ in range(4):
            values.append(push(sync, module, optimizer, 1.0))
            schedule.step()
        sync.close()
        return values

    assert run(functools.partial(ParameterServer, servers=1), work, 2) == run(AllReduce, work, 2)


@pytest.mark.parametrize("servers", [0, 1])
def test_a_state_that_is_loaded_gives_the_same_steps_again(servers: int) -> None:
    """As after a resumed run, and as after a rollback."""

    def work(sync: GradientSync, comm: Communicator, mailbox: Mailbox) -> tuple[list[float], list[float]]:
        module, optimizer = one_number()
        sync.setup(module, comm, mailbox)
        push(sync, module, optimizer, 1.0 + comm.rank)
        sync.settle(module, optimizer)
        kept, state = copy.deepcopy(module.state_dict()), copy.deepcopy(sync.state_dict())
        assert (comm.rank == 0) == bool(state)
        first = [push(sync, module, optimizer, 2.0) for _ in range(3)]
        module.load_state_dict(kept)
        sync.load_state_dict(state)
        again = [push(sync, module, optimizer, 2.0) for _ in range(3)]
        sync.close()
        return first, again

    for first, again in run(functools.partial(ParameterServer, servers=servers), work, 2):
        assert first == again
        assert first[1] - first[0] != first[0], "momentum acts"


def test_an_average_of_models_is_weighted_and_the_servers_go_on_from_there() -> None:
    def work(sync: GradientSync, comm: Communicator, mailbox: Mailbox) -> list[float]:
        module, optimizer = one_number()
        sync.setup(module, comm, mailbox)
        values = [push(sync, module, optimizer, 1.0)]
        nn.init.constant_(module.weight, [4.0, 8.0][comm.rank])  # type: ignore[arg-type]
        sync.average_models(module, [1.0, 3.0][comm.rank])
        values.append(float(module.weight.detach()))  # type: ignore[operator]
        values.append(push(sync, module, optimizer, 0.5))
        sync.close()
        return values

    for servers in (0, 2):
        assert run(functools.partial(ParameterServer, servers=servers), work, 2) == [[-2.0, 7.0, 5.0]] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [{}, {"servers": 1}, exhaustive({"mode": "ssp", "staleness": 1}), exhaustive({"mode": "async"})],
    ids=str,
)
def test_a_worker_slower_than_the_deadline_does_not_end_the_run(keys: dict[str, Any]) -> None:
    def work(sync: GradientSync, comm: Communicator, mailbox: Mailbox) -> float:
        module, optimizer = one_number()
        sync.setup(module, comm, mailbox)
        for step in range(3):
            if comm.rank == step == 1:
                time.sleep(3.0)
            push(sync, module, optimizer, 1.0)
        sync.settle(module, optimizer)
        total = sync.all_reduce(torch.ones(1)) if sync.lockstep else torch.full((1,), 2.0)
        sync.close()
        return float(total)

    assert run(functools.partial(ParameterServer, **keys), work, 2, timeout=2.0) == [2.0, 2.0]


@pytest.mark.slow
@pytest.mark.parametrize("servers", [0, 1])
@pytest.mark.parametrize("mode", ["sync", "ssp"])
def test_a_lost_worker_is_named_at_once_by_those_who_wait(mode: str, servers: int) -> None:
    errors_by_rank: dict[int, PeerLost] = {}

    def work(sync: GradientSync, comm: Communicator, mailbox: Mailbox) -> None:
        module, optimizer = one_number()
        sync.setup(module, comm, mailbox)
        push(sync, module, optimizer, 1.0)
        if comm.rank == 2:
            mailbox.close()
            return
        try:
            for _ in range(10):
                push(sync, module, optimizer, 1.0)
        except PeerLost as error:
            errors_by_rank[comm.rank] = error

    run(functools.partial(ParameterServer, mode=mode, servers=servers), work, 3, timeout=NEVER)
    assert {rank: error.rank for rank, error in errors_by_rank.items()} == {0: 2, 1: 2}
    assert "lost its peer rank 2, which has closed its mailbox" in str(errors_by_rank[1])


def test_the_server_beside_rank_0_ends_with_the_workers() -> None:
    check_sync(ParameterServer)
    wait_until(lambda: not any("server" in thread.name for thread in threading.enumerate()))


class Own(torch.optim.SGD):
    """An optimiser that is not of torch."""


class Broken(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        raise ValueError("the optimiser is at fault")


def pushed_by(kind: type[Optimizer]) -> Work:
    def work(sync: GradientSync, comm: Communicator, mailbox: Mailbox) -> float:
        module, _ = one_number()
        optimizer = kind(module.parameters(), lr=0.5)  # type: ignore[call-arg]
        sync.setup(module, comm, mailbox)
        value = push(sync, module, optimizer, 1.0)
        sync.close()
        return value

    return work


@pytest.mark.slow
def test_an_optimiser_of_ones_own_needs_the_server_beside_rank_0() -> None:
    assert run(ParameterServer, pushed_by(Own), 2) == [-1.0, -1.0]
    with pytest.raises(UserError, match=r"^sync.servers=1: servers support torch.optim optimisers only: .*Own needs"):
        run(functools.partial(ParameterServer, servers=1), pushed_by(Own), 2)


def test_an_error_of_the_server_reaches_the_workers() -> None:
    with pytest.raises(RuntimeError, match="its server failed: ValueError: the optimiser is at fault"):
        run(ParameterServer, pushed_by(Broken), 2)


def test_parameters_are_dealt_out_evenly_as_whole_tensors() -> None:
    sizes = np.random.default_rng(0).integers(1, 1000, 40).tolist()
    dealt = distribute_evenly(sizes, 4)
    assert sorted(number for numbers in dealt for number in numbers) == list(range(40))
    loads = [sum(sizes[number] for number in numbers) for numbers in dealt]
    assert max(loads) <= 4 / 3 * sum(sizes) / 4
    assert distribute_evenly([5, 5], 3) == [[0], [1], []]


@pytest.mark.parametrize("make", [ParameterServer, LeaderSync])
@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"staleness": 2}, r"^sync.staleness=2 applies to sync.mode=ssp only"),
        ({"mode": "async", "staleness": 2}, r"^sync.staleness=2 applies to sync.mode=ssp only"),
        (
            {"mode": "async", "average": "median"},
            r"^sync.average=median: sync.mode=async applies stale gradients",
        ),
        ({"mode": "bsp"}, r"^sync.mode=bsp is not known"),
    ],
)
def test_keys_that_the_mode_does_not_read_are_refused(make: Any, keys: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        make(**keys)


@pytest.mark.parametrize("make", [ParameterServer, LeaderSync])
def test_workers_that_do_not_wait_cannot_average_models(make: Any) -> None:
    with pytest.raises(UserError, match=r"^sync.mode=async: .* needs sync.mode=sync"):
        make(mode="async").average_models(nn.Linear(1, 1), 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mean", "median", "trimmed_mean"])
def test_an_aggregation_that_is_not_the_sum_is_not_exact(name: str) -> None:
    for make in (ParameterServer, LeaderSync):
        assert not make(average=name).exact  # type: ignore[operator]
        check_sync(functools.partial(make, average=name))  # type: ignore[arg-type]
