"""The contract of callbacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Callback
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from gnnkit import callback
from gnnkit.leader.meter import SyncMeter
from gnnkit.model.sage import GraphSAGE
from gnnkit.partition import Grid
from gnnkit.strategy import Worker
from gnnkit.strategy.vertex_centric import VertexCentric
from gnnkit.sync.all_reduce import AllReduce
from gnnkit.task.evaluation import Evaluation
from gnnkit.training import checkpoint
from gnnkit.training.module import TrainingModule
from gnnkit.training.trainer import make_trainer
from gnnkit_testing.arguments import check_maker
from gnnkit_testing.graphs import check_graph
from gnnkit_testing.ranks import ONE, assert_close, on_ranks

EPOCHS = 4


def check_callback(make: Callable[[], Any]) -> None:
    """Checks a callback in four epochs of full-graph training.

    gnnkit must accept the callback. Three ranks, one of which owns nothing, must have
    equal numbers of epochs, parameters and state, and equal those of one rank. The
    state must survive a checkpoint.
    """
    check_maker(make, Callback)
    callback.check(type(make()).__name__, make())
    ((reference, epochs, _),) = on_ranks(check_graph(), ONE, lambda worker: _train(make(), worker))
    states = []
    for rank, (parameters, done, state) in enumerate(
        on_ranks(check_graph(), Grid(3, 1, 1), lambda worker: _train(make(), worker))
    ):
        assert done == epochs, f"rank {rank} of 3 ends after {done} epochs, one rank after {epochs}"
        assert_close(parameters, reference, f"parameters of rank {rank} of 3, against one rank")
        states.append(checkpoint.pack(state))
        assert torch.equal(states[-1], states[0]), f"the state of rank {rank} is not the state of rank 0"
    again = make()
    again.load_state_dict(checkpoint.unpack(states[0]))
    assert torch.equal(checkpoint.pack(again.state_dict()), states[0]), "load_state_dict does not restore state_dict"


def _train(callback: Any, worker: Worker) -> tuple[Tensor, int, dict[str, Any]]:
    """Returns this rank's parameters, number of epochs, and the callback's state."""
    torch.manual_seed(0)
    strategy = VertexCentric()
    model = GraphSAGE(check_graph().features.shape[1], check_graph().num_classes, hidden=4, dropout=0.0).double()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.linspace(-0.5, 0.5, parameter.numel()).roll(number).view_as(parameter))
    strategy.setup(worker, model)
    evaluation = Evaluation.of(worker, model, 100.0)
    module = TrainingModule(model, strategy, worker, evaluation, optimizer="sgd", lr=0.1, weight_decay=0.0)
    trainer = make_trainer(
        *(module, AllReduce(), SyncMeter()),
        callbacks=[callback],
        max_epochs=EPOCHS,
        check_val_every_n_epoch=1,
        logger=False,
    )
    trainer.fit(module)
    return parameters_to_vector(model.parameters()).detach(), trainer.current_epoch, callback.state_dict()
