"""Comparison of an approximate gradient with the exact one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gnnkit.comm.average import to_vector
from gnnkit.sync.base import trainable
from gnnkit.training.step import loss_of, own_method

if TYPE_CHECKING:
    from gnnkit.training.module import TrainingModule


class GradientCheck:
    """Measures how exchanging rows approximately changes the gradient.

    A copy of the model repeats a step's forward and backward pass with exact rows, in
    epochs that end with an evaluation. Steps with local iterations or stale parameters
    are not measured, nor models with their own `training_step` or learned rows.
    """

    def __init__(self) -> None:
        self.measured: list[list[float]] = []  # epoch from 1, cosine, and norm over that of the exact gradient

    def look(self, module: TrainingModule, gradient: Tensor) -> None:
        """Compares gradients. Collective.

        Args:
            module: This rank's module, after a step's backward pass.
            gradient: [num_parameters] sum over the ranks.
        """
        from gnnkit.training.module import copied

        if (model := copied(module)) is None:
            return
        parameters = trainable(model)
        with module.strategy.tally.paused():
            loss = loss_of(model, module.task, module.batch.again(), 0)
            local = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
            exact = module.worker.comm.all_reduce(to_vector(local)).double()
        norm, exact_norm = gradient.double().norm(), exact.norm()
        cosine = gradient.double() @ exact / (norm * exact_norm).clamp(min=1e-300)
        ratio = norm / exact_norm.clamp(min=1e-300)
        self.measured.append([module.current_epoch + 1, float(cosine), float(ratio)])

    @staticmethod
    def serves(module: TrainingModule) -> bool:
        """Returns whether a run's steps are measured."""
        strategy, sync = module.strategy, module.sync
        approximate = strategy.finishes and bool(strategy.costs()) and not strategy.steps.drift
        plain = own_method(module.model, "training_step") is None and module.embedding is None
        return approximate and plain and sync is not None and sync.exact and sync.lockstep
