"""Supersteps of local iterations: what moves, what is constant, and what drifts."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.engine import Engine, ForwardPass, ShardAdjacency
from gnnkit.exchange.base import LastReceived
from gnnkit.model.gat import GAT
from gnnkit.model.gcn import GCN
from gnnkit.model.sage import GraphSAGE
from gnnkit.partition.base import Grid
from gnnkit.partition.shard import Shard
from gnnkit.strategy.vertex_centric import VertexCentric
from gnnkit.sync import drift
from gnnkit.sync.all_reduce import AllReduce
from gnnkit.sync.base import GradientSync
from gnnkit.sync.leader import LeaderSync
from tests.sync.training import CLASSES, WIDTH, make_model, parameters, shards_on, train
from tests.turns import turns

MODEL = make_model()
GRIDS = [Grid(3, 1, 1), Grid(2, 2, 1), Grid(2, 1, 2), Grid(1, 1, 2)]
MODELS = {"gcn": GCN, "gat": GAT, "sage-max": functools.partial(GraphSAGE, aggregator="max")}


def run(
    shards: list[Shard],
    local_iterations: int,
    comm: Communicator,
    epochs: int = 3,
    sync: type[GradientSync] = AllReduce,
) -> tuple[float, Tensor]:
    """The drift after some epochs of Adam, and the parameters."""
    keys: dict[str, Any] = {"local_iterations": local_iterations, "make_optimizer": torch.optim.Adam}
    module, _, _ = train(shards, sync, copy.deepcopy(MODEL), comm, epochs=epochs, **keys)
    return drift(module, comm), parameters(module)


@pytest.mark.slow
@turns(grid=GRIDS, sync=[AllReduce, LeaderSync])
def test_parameters_drift_within_a_superstep_only(grid: Grid, sync: type[GradientSync]) -> None:
    shards = shards_on(grid)
    for epochs in (1, 3):
        results = Threads.run(functools.partial(run, shards, 3, epochs=epochs, sync=sync), grid.world_size)
        assert all((drift > 0) == (epochs < 3) for drift, _ in results), epochs


def test_one_rank_is_exact_with_any_number_of_local_iterations() -> None:
    shards = shards_on(Grid(1, 1, 1))
    one, three = (Threads.run(functools.partial(run, shards, k), 1)[0][1] for k in (1, 3))
    assert torch.equal(one, three)


@pytest.mark.slow
@turns(grid=GRIDS, name=[*MODELS])
def test_a_local_iteration_with_unchanged_parameters_repeats_the_output_and_moves_nothing(
    grid: Grid, name: str
) -> None:
    """Also checks the gradient of own rows by finite differences, others constant."""
    torch.manual_seed(1)
    model = MODELS[name](WIDTH, CLASSES, hidden=4).double().eval()  # type: ignore[operator]
    shards = shards_on(grid)

    def check(comm: Communicator) -> None:
        replica, shard = copy.deepcopy(model), shards[comm.rank]
        engine = Engine(shard.with_self_loops() if replica.self_loops else shard, comm, torch.float64)
        x = torch.tensor(shard.features)

        received = LastReceived()

        def forward(*, exchanges: bool) -> Tensor:
            forward = ForwardPass(received, exchanges=exchanges)
            adjacencies = ShardAdjacency.layers(engine, replica.num_layers, 0, forward)
            logits: Tensor = replica(x, adjacencies)
            return logits

        first = forward(exchanges=True)
        engine.tally.reset()
        second = forward(exchanges=False)
        torch.testing.assert_close(second, first, rtol=0, atol=1e-12)
        second.square().sum().backward()
        assert not engine.tally.words
        for parameter in replica.parameters():
            _check_gradient(parameter, lambda: forward(exchanges=False).square().sum())

    Threads.run(check, grid.world_size)


def _check_gradient(parameter: nn.Parameter, loss: object) -> None:
    """Along one direction; where the loss bends, on one side or the other."""
    assert parameter.grad is not None
    direction = torch.ones_like(parameter)
    slope = float((parameter.grad * direction).sum())
    values = []
    with torch.no_grad():
        for step in (1e-6, -2e-6, 1e-6):
            parameter += step * direction
            values.append(float(loss()))  # type: ignore[operator]
    assert (values[0] - values[1]) / 2e-6 == pytest.approx(slope, rel=1e-4, abs=1e-5)


@pytest.mark.slow
def test_evaluation_between_iterations_changes_nothing() -> None:
    shards = shards_on(Grid(2, 1, 1))

    def differences(comm: Communicator) -> Tensor:
        results = []
        for evaluates in (False, True):
            module, strategy, _ = train(shards, AllReduce, copy.deepcopy(MODEL), comm, epochs=1, local_iterations=3)
            if evaluates:
                module.evaluation.logits(module.model)
            batch = next(strategy.batches(1))
            results.append(module.training_step(batch, 0).detach())
        return results[0] - results[1]

    assert Threads.run(differences, 2) == [0.0, 0.0]


def test_the_number_of_local_iterations_is_checked() -> None:
    with pytest.raises(ValueError, match="local_iterations=0 must be auto or a whole number from 1"):
        VertexCentric(local_iterations=0)
