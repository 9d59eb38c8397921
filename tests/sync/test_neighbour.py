"""Workers that average with their neighbours, and wait for no other worker."""

from __future__ import annotations

import copy
import functools
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gnnkit
from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.engine import Adjacency
from gnnkit.graph import Graph
from gnnkit.model.gcn import GCN
from gnnkit.partition.base import Grid
from gnnkit.sync import drift
from gnnkit.sync.all_reduce import AllReduce
from gnnkit.sync.base import GradientSync
from gnnkit.sync.neighbour import Links, Neighbour, connect_links, metropolis
from gnnkit.training import checkpoint
from tests.cases import exhaustive, few
from tests.comm.processes import run_gloo
from tests.sync.training import make_model, parameters, shards_on, train
from tests.waiting import GUARD

PATH: Links = [[1], [0, 2], [1, 3], [2]]
STAR: Links = [[1, 2, 3], [0], [0], [0]]
ALL: Links = [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]]
APART: Links = [[1], [0], [3], [2]]
MARK = 5.0  # feature of node 0
SHARES = (0.1, 0.2, 0.3, 0.4)
Run = Callable[[Callable[[Communicator], Any], int], list[Any]]


def module_of(links: Links, comm: Communicator) -> nn.Module:
    """One number as parameter, on a worker with these neighbours."""
    module: Any = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(module.weight, comm.rank)
    module.worker = SimpleNamespace(peers=tuple(links[comm.rank]))
    return module


def one_step(links: Links, shares: Sequence[float], comm: Communicator, **options: Any) -> float:
    """The change of a rank's parameter. Mean gradients of ranks are 0, -1, -4, -9."""
    module: Any = module_of(links, comm)
    before, share = module.weight.item(), shares[comm.rank]
    module.weight.grad = torch.full_like(module.weight, -(comm.rank**2) * share)
    sync = Neighbour(**options)
    sync.setup(module, comm)
    sync.step(module, torch.optim.SGD(module.parameters(), lr=1.0), share)
    return float(module.weight.item() - before)


def weights(links: Links) -> Tensor:  # [P, P]
    rows = torch.zeros(len(links), len(links), dtype=torch.float64)
    for rank in range(len(links)):
        for peer, weight in metropolis(links, rank).items():
            rows[rank, peer] = weight
    return rows


@pytest.mark.parametrize(
    ("run", "rounds"),
    [
        pytest.param(Threads.run, 1, id="threads-1"),
        pytest.param(Threads.run, 3, id="threads-3"),
        exhaustive(pytest.param(run_gloo, 1, id="gloo-1", marks=pytest.mark.slow)),
        exhaustive(pytest.param(run_gloo, 3, id="gloo-3", marks=pytest.mark.slow)),
    ],
)
def test_gradients_of_workers_that_are_all_neighbours_are_those_of_all_reduce(run: Run, rounds: int) -> None:
    shards, model = shards_on(Grid(3, 1, 1)), make_model()

    def train_rank(sync: Callable[[], GradientSync], comm: Communicator) -> tuple[Tensor, float]:
        module = train(shards, sync, copy.deepcopy(model), comm, epochs=4)[0]
        return parameters(module), drift(module, comm)

    reference = run(functools.partial(train_rank, AllReduce), 3)
    result = run(functools.partial(train_rank, functools.partial(Neighbour, rounds=rounds)), 3)
    for (values, drifted), (wanted, _) in zip(result, reference, strict=True):
        assert float((values - wanted).abs().max()) <= 1e-12
        assert drifted <= (0 if rounds == 1 else 1e-12)


@pytest.mark.parametrize("shares", [SHARES, (0.5, 0.5, 0.0, 0.0)], ids=str)
@pytest.mark.parametrize("links", [PATH, STAR, ALL], ids=["path", "star", "all"])
def test_a_gradient_is_the_mean_of_the_neighbourhood_weighted_with_rows(
    links: Links, shares: tuple[float, ...]
) -> None:
    for rank, change in enumerate(Threads.run(functools.partial(one_step, links, shares), 4)):
        members = [rank, *links[rank]]
        rows = sum(shares[q] for q in members)
        mean = sum(shares[q] * q**2 for q in members) / rows if rows else 0.0
        assert change == pytest.approx(mean, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("links", [PATH, STAR], ids=["path", "star"])
def test_many_rounds_bring_the_mean_gradient_of_all_workers(links: Links) -> None:
    changes = Threads.run(functools.partial(one_step, links, SHARES, rounds=200), 4)
    assert changes == pytest.approx([sum(share * q**2 for q, share in enumerate(SHARES))] * 4, abs=1e-12)


@pytest.mark.parametrize("rounds", [1, 2, 5])
@pytest.mark.parametrize("links", [PATH, STAR, ALL], ids=["path", "star", "all"])
def test_parameters_are_averaged_with_metropolis_weights_which_keep_their_mean(links: Links, rounds: int) -> None:
    step = functools.partial(one_step, links, SHARES, exchange="parameters", rounds=rounds)
    start, parts = torch.arange(4, dtype=torch.float64), 4 * torch.tensor(SHARES, dtype=torch.float64)
    local_values = start + parts * start**2
    reference = torch.linalg.matrix_power(weights(links), rounds) @ local_values
    results = torch.tensor(Threads.run(step, 4), dtype=torch.float64) + start
    torch.testing.assert_close(results, reference, rtol=0, atol=1e-12)
    assert results.mean().item() == pytest.approx(local_values.mean().item(), abs=1e-12)


@pytest.mark.slow
@few(
    "links",
    [pytest.param(links, id=name) for name, links in (("path", PATH), ("star", STAR), ("all", ALL))],
    default=["path"],
)
def test_steps_with_tracked_gradients_end_at_the_minimum_of_all_workers(links: Links) -> None:
    """Of a sum of parabolas. The own minima are 0, 1, 4 and 9."""

    def minimum(comm: Communicator) -> float:
        module: Any = module_of(links, comm)
        sync, share = Neighbour("parameters"), SHARES[comm.rank]
        sync.setup(module, comm)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.2)
        for _ in range(160):
            module.weight.grad = share * (module.weight.detach() - comm.rank**2)
            sync.step(module, optimizer, share)
        return float(module.weight.item())

    target = sum(share * rank**2 for rank, share in enumerate(SHARES))
    assert Threads.run(minimum, 4) == pytest.approx([target] * 4, abs=1e-6)


@pytest.mark.parametrize("links", [PATH, STAR, ALL], ids=["path", "star", "all"])
def test_metropolis_weights_add_up_to_one_both_ways(links: Links) -> None:
    actual = weights(links)
    assert torch.equal(actual, actual.T)
    assert bool((actual.diagonal() > 0).all())
    torch.testing.assert_close(actual.sum(1), torch.ones(4, dtype=torch.float64), rtol=0, atol=1e-15)


def test_a_worker_without_rows_averages_parameters_before_it_has_a_gradient() -> None:
    changes = Threads.run(functools.partial(one_step, PATH, (1.0, 0.0, 0.0, 0.0), exchange="parameters"), 4)
    start = torch.arange(4, dtype=torch.float64)
    assert changes == pytest.approx((weights(PATH) @ start - start).tolist(), abs=1e-12)


def test_average_models_is_the_weighted_mean_of_the_neighbourhood() -> None:
    def averaged(comm: Communicator) -> float:
        module: Any = module_of(PATH, comm)
        sync = Neighbour()
        sync.setup(module, comm)
        sync.average_models(module, (1.0, 0.0, 3.0, 0.0)[comm.rank])
        return float(module.weight.item())

    assert Threads.run(averaged, 4) == pytest.approx([0.0, 1.5, 2.0, 2.0], abs=1e-12)


@pytest.mark.parametrize("exchange", ["gradients", "parameters"])
def test_a_worker_waits_for_its_neighbours_only(exchange: Any) -> None:
    """Rank 3 begins when rank 0, no neighbour of rank 3, has ended a step."""
    exits = threading.Event()

    def work(comm: Communicator) -> bool:
        module: Any = module_of(PATH, comm)
        sync = Neighbour(exchange)
        sync.setup(module, comm)
        in_time = comm.rank != 3 or exits.wait(GUARD)
        sync.step(module, torch.optim.SGD(module.parameters(), lr=0.1), 0.25)
        if comm.rank == 0:
            exits.set()
        return in_time

    assert Threads.run(work, 4) == [True] * 4


@pytest.mark.slow
def test_slow_workers_change_no_bit() -> None:
    def values(pauses: Sequence[float], comm: Communicator) -> float:
        module: Any = module_of(STAR, comm)
        optimizer, sync = torch.optim.SGD(module.parameters(), lr=0.3), Neighbour("parameters", rounds=2)
        sync.setup(module, comm)
        for step in range(6):
            time.sleep(pauses[(comm.rank + step) % 4])
            module.weight.grad = torch.sin(module.weight.detach() + step) / 4
            sync.step(module, optimizer, 0.25)
        return float(module.weight.item())

    even = Threads.run(functools.partial(values, (0, 0, 0, 0)), 4)
    assert Threads.run(functools.partial(values, (0, 0.03, 0, 0.01)), 4) == even


def test_a_ring_joins_workers_without_a_path_and_the_leader_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    assert connect_links(PATH) is PATH
    ring = [[1, 3], [0, 2], [1, 3], [0, 2]]
    assert connect_links(APART) == ring
    assert connect_links([[], []]) == [[1], [0]]
    assert connect_links([[]]) == [[]]
    options = {"exchange": "parameters", "rounds": 3}
    apart, joined = (Threads.run(functools.partial(one_step, links, SHARES, **options), 4) for links in (APART, ring))
    assert apart == joined
    message = "sync=neighbour: workers 0 and 2 are not connected by edges, so a ring of all workers is added"
    lines = capfd.readouterr().err.splitlines()
    assert [line for line in lines if "ring" in line] == [message]
    assert sum("not neighbours keep different parameters" in line for line in lines) == 2  # once a run


def test_a_worker_that_ends_is_named_by_its_neighbour() -> None:
    def work(comm: Communicator) -> None:
        module: Any = module_of(PATH, comm)
        sync = Neighbour()
        sync.setup(module, comm)
        if comm.rank != 1:
            sync.step(module, torch.optim.SGD(module.parameters(), lr=0.1), 0.25)

    with pytest.raises(RuntimeError, match=r"rank [02]: lost its peer rank 1, which has ended"):
        Threads.run(work, 4)


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match=r"sync.exchange=models is not known: .*there are: gradients, parameters"):
        Neighbour("models")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"sync.options.rounds=0 must be a whole number from 1"):
        Neighbour(rounds=0)


class Breaks(nn.Module):
    """A network whose loss is not finite in training, where the rows have a mark."""

    num_layers, self_loops = 2, True

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.gcn = GCN(in_features, num_classes, hidden=4)

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        factor = torch.where(x[:, :1] == MARK, torch.nan, 1.0) if self.training else 1.0
        logits: Tensor = self.gcn(x * factor, adjacencies)
        return logits


def ring_graph(num_nodes: int = 80) -> Graph:
    """A ring, whose regions of consecutive nodes have two neighbours each."""
    nodes = np.arange(num_nodes)
    features = np.random.default_rng(1).standard_normal((num_nodes, 6)).astype(np.float32)
    features[0, 0] = MARK
    split = np.tile([1, 1, 2, 3], num_nodes // 4)
    return Graph.from_edges(
        nodes, (nodes + 1) % num_nodes, num_nodes, features=features, labels=nodes * 3 // num_nodes, split=split
    )


def whole_run(folder: Path, strategy: str, exchange: str, **keys: Any) -> dict[str, Any]:
    trainer = {"max_epochs": 4, "precision": 64, "lr": 0.05, **keys.pop("trainer", {})}
    run_keys = {
        "workers": 4,
        "threads": 1,
        "comm": "threads",
        "model": "gcn",
        "report": False,
        "logger": "none",
        **keys,
    }
    if strategy == "individual_sample":
        run_keys |= {
            "strategy": {"name": strategy, "batch_size": 4},
            "sampler": {"name": "neighbor", "fanouts": [2, 2]},
        }
    else:
        run_keys |= {"strategy": strategy}
    sync = {"name": "neighbour", "exchange": exchange}
    return gnnkit.train(ring_graph(), folder=folder, sync=sync, trainer=trainer, **run_keys)  # type: ignore[return-value]


def workers_of(folder: Path) -> list[dict[str, Tensor]]:
    """The parameters of every worker in the checkpoint."""
    state = checkpoint.load(folder / "checkpoints/last.json")
    return [state["state_dict"], *(checkpoint.unpack(packed)["state_dict"] for packed in state["workers"][1:])]


@pytest.mark.slow
@pytest.mark.exhaustive
@few(
    "strategy,exchange",
    [("vertex_centric", "gradients"), ("individual_sample", "parameters")],
    default=[("individual_sample", "parameters")],
)
def test_a_resumed_run_ends_where_an_unbroken_one_does(tmp_path: Path, strategy: str, exchange: str) -> None:
    shares = {"exact_shares": [0, 0]}  # the schedule does not depend on the number of epochs
    result = whole_run(tmp_path / "whole", strategy, exchange, trainer=shares)
    assert result["drift"] > 0
    assert result["final_drift"] == 0
    assert "sync=neighbour: its steps are not those of the exact gradient" in result["inexact"]
    whole_run(tmp_path / "half", strategy, exchange, trainer={"max_epochs": 2, **shares})
    whole_run(tmp_path / "rest", strategy, exchange, trainer={"resume": str(tmp_path / "half"), **shares})
    for actual, reference in zip(workers_of(tmp_path / "rest"), workers_of(tmp_path / "whole"), strict=True):
        assert all(torch.equal(actual[name], value) for name, value in reference.items())


@pytest.mark.slow
@few("exchange", ["gradients", "parameters"], default=1)
def test_a_worker_that_leaves_out_a_step_still_meets_its_neighbours(tmp_path: Path, exchange: str) -> None:
    result = whole_run(tmp_path / "run", "individual_sample", exchange, model=Breaks, trainer={"on_nan": "skip"})
    assert result["skipped_steps"] > 0
    assert all(bool(value.isfinite().all()) for own in workers_of(tmp_path / "run") for value in own.values())


@pytest.mark.slow
def test_a_worker_whose_loss_is_not_finite_ends_the_run_by_name(tmp_path: Path) -> None:
    for strategy in ("individual_sample", "vertex_centric"):
        with pytest.raises(ValueError, match=r"trainer.on_nan=stop: .* is not finite on ranks? \d"):
            whole_run(tmp_path / strategy, strategy, "gradients", model=Breaks)
    with pytest.raises(ValueError, match=r"trainer.on_nan=rollback needs workers that synchronise in each step"):
        whole_run(tmp_path / "run", "individual_sample", "gradients", trainer={"on_nan": "rollback"})


@pytest.mark.slow
@pytest.mark.exhaustive
@few("strategy", ["vertex_centric", "individual_sample"], default=1)
def test_processes_give_the_result_of_threads(tmp_path: Path, strategy: str) -> None:
    result = whole_run(
        tmp_path / "run", strategy, "parameters", job="verify", comm="gloo", trainer={"checkpoint": False}
    )
    assert result["reference"] == "4 ranks as threads of one process"
    assert result["verified"]
