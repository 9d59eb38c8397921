"""Outputs that are not finite never pass without a word."""

from __future__ import annotations

import pytest
import torch
from gnnkit_testing.graphs import check_graph

from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.errors import UserError
from gnnkit.jobs.outputs import _check_finite
from gnnkit.partition import Grid
from tests.task.steps import make_workers


@pytest.mark.parametrize("checkpoint", [None, "run"])
def test_outputs_that_are_not_finite_are_counted(checkpoint: str | None, capfd: pytest.CaptureFixture[str]) -> None:
    workers = make_workers(check_graph(48), Grid(2, 1, 1), whole=False)

    def check(comm: Communicator) -> None:
        worker = workers(comm)
        logits = torch.zeros(len(worker.owned), 3)
        logits[-2:, 1] = float("nan")
        _check_finite(logits, worker, checkpoint)

    if checkpoint is not None:
        with pytest.raises(UserError, match="outputs of 4 of 48 nodes are not finite: look for"):
            Threads.run(check, 2)
        return
    Threads.run(check, 2)
    assert capfd.readouterr().err.count("outputs of 4 of 48 nodes are not finite, so figures may be null") == 1
