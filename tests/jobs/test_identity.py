"""The values that ranks compare and share before the first step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gnnkit_formats.synthetic import Synthetic
from torch.nn.parameter import is_lazy

from gnnkit import config
from gnnkit.comm import Communicator
from gnnkit.comm.agreement import agree, difference
from gnnkit.comm.threads import Threads
from gnnkit.config.settings import Settings, settle
from gnnkit.errors import UserError
from gnnkit.jobs import Order
from gnnkit.jobs.models import share_state
from gnnkit.jobs.run import identity
from gnnkit.model.gcn import GCN
from tests.comm.processes import run_gloo


def settings(*overrides: str) -> Settings:
    return settle(config.compose(["+strategy=vertex_centric", "workers=2", *overrides]))


def compared(one: dict[str, str], other: dict[str, str]) -> str | None:
    found = difference([one, other])
    return found and found.partition(" must be")[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "key", ["seed=1", "model.hidden=7", "partition=2d", "sync=leader", "comm.timeout=7", "job=verify"]
)
def test_every_key_that_can_change_a_result_is_compared(key: str) -> None:
    assert compared(identity(Order(settings())), identity(Order(settings(key)))) is not None


@pytest.mark.slow
@pytest.mark.parametrize("key", ["output=there", "threads=7", "trainer.progress_bar=true"])
def test_keys_that_change_no_result_are_not_compared(key: str) -> None:
    assert compared(identity(Order(settings())), identity(Order(settings(key)))) is None


@pytest.mark.slow
def test_plugins_and_versions_are_compared() -> None:
    found = identity(Order(settings()))
    assert found["build of torch"] == torch.__version__
    assert found["strategy=vertex_centric"].startswith("gnnkit.strategy.vertex_centric:VertexCentric of gnnkit ")


@pytest.mark.slow
def test_a_graph_and_a_model_from_python_are_compared() -> None:
    graph = Synthetic(num_nodes=50).load()
    other = replace(graph, features=np.asarray(graph.features) + 1)
    of_graph = [identity(Order(settings(), each)) for each in (graph, other)]
    assert compared(*of_graph) == "graph"
    of_model = [identity(Order(settings(), graph, GCN(32, 10, hidden=hidden))) for hidden in (4, 8)]
    assert compared(*of_model) == "model.convs.0.weight"


def test_secrets_are_not_sent_to_other_ranks() -> None:
    chosen = settings()
    hidden = replace(chosen, composed={**chosen.composed, "dataset": {"name": "pystdlib", "api_key": "hunter2"}})
    assert "hunter2" not in str(identity(Order(hidden)))


@pytest.mark.slow
def test_a_module_starts_on_all_ranks_with_the_leaders_parameters() -> None:
    def work(comm: Communicator) -> Any:
        torch.manual_seed(comm.rank)
        model = GCN(3, 2, hidden=4)
        share_state(comm, model)
        return torch.cat([each.detach().flatten() for each in model.parameters()])

    first, second = run_gloo(work, 2)
    torch.manual_seed(0)
    assert torch.equal(first, torch.cat([each.detach().flatten() for each in GCN(3, 2, hidden=4).parameters()]))
    assert torch.equal(first, second)


@pytest.mark.slow
def test_all_ranks_are_told_the_difference() -> None:
    def work(comm: Communicator) -> str:
        agree(comm, {"seed": "1"})
        try:
            agree(comm, {"seed": "1" if comm.rank < 2 else "2"})
        except UserError as error:
            return str(error)
        return "none"

    assert run_gloo(work, 3) == ["seed must be the same on all ranks: ranks 0-1 have seed=1, rank 2 has seed=2"] * 3


def test_parameters_without_a_shape_yet_are_left_alone() -> None:
    def shared(comm: Communicator) -> tuple[bool, float]:
        model = torch.nn.Sequential(torch.nn.LazyLinear(2), torch.nn.Linear(1, 1))
        torch.nn.init.constant_(model[1].weight, float(comm.rank + 5))
        share_state(comm, model)
        return is_lazy(model[0].weight), model[1].weight.item()

    assert Threads.run(shared, 2) == [(True, 5.0), (True, 5.0)]
