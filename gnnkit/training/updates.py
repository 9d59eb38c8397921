"""Data that a step passes to later steps of the same rank."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gnnkit.sync import GradientSync


class Updates:
    """Accumulated gradients, and the optimiser state of correction steps.

    The state of correction steps and of first steps after an average is equal on all
    ranks, because all take these steps with the same gradient. Meanwhile, the state of
    local steps is set aside. Learning rates are shared, so schedules apply to all
    steps.
    """

    def __init__(self) -> None:
        self.kept: list[Tensor] = []  # by parameter
        self.kept_share = 0.0  # this rank's share of the rows of the accumulated gradients
        self.corrections: Any = defaultdict(dict)  # an optimiser's `state`
        self.lacking: list[Tensor] = []  # by parameter: mean gradient over all ranks minus this rank's

    def add_to(self, grads: list[Tensor], share: float) -> float:
        """Adds the accumulated gradients to a step's, and clears them.

        Args:
            grads: The step's gradients by parameter, modified in place.
            share: This rank's share of the step's rows.

        Returns:
            This rank's share of the rows of all accumulated steps.
        """
        if self.kept:
            torch._foreach_add_(grads, self.kept)
        share += self.kept_share
        self.forget()
        return share

    def keep(self, grads: list[Tensor], share: float) -> None:
        """Stores gradients [by parameter] for the next step."""
        self.kept, self.kept_share = [gradient.clone() for gradient in grads], share

    def forget(self) -> None:
        """Clears the accumulated gradients."""
        self.kept, self.kept_share = [], 0.0

    @contextmanager
    def correcting(self, optimizer: Optimizer) -> Iterator[None]:
        """Gives the optimiser the state of correction steps, within the context."""
        local_state, optimizer.state = optimizer.state, self.corrections
        try:
            yield
        finally:
            self.corrections, optimizer.state = optimizer.state, local_state

    @contextmanager
    def concluding(self, optimizer: Optimizer) -> Iterator[None]:
        """Like `correcting`, but local steps then continue from a copy of the state."""
        with self.correcting(optimizer):
            yield
        for parameter, state in self.corrections.items():
            optimizer.state[parameter] = copy.deepcopy(state)

    def lead(self, grads: list[Tensor], sync: GradientSync, weight: float) -> None:
        """Replaces gradients by the ranks' mean, and stores the difference. Collective.

        Args:
            grads: The step's gradients by parameter, modified in place.
            sync: Computes the mean.
            weight: This rank's weight in the mean.
        """
        before = [gradient.clone() for gradient in grads]
        sync.average(grads, weight)
        self.lacking = list(torch._foreach_sub(grads, before))

    def follow(self, grads: list[Tensor]) -> None:
        """Adds the difference from the last mean to a local step's gradients."""
        if self.lacking:
            torch._foreach_add_(grads, self.lacking)

    def state_dict(self, optimizer: Optimizer) -> dict[str, Any]:
        """Returns plain data and tensors for a checkpoint."""
        corrections = None
        if self.corrections:
            with self.correcting(optimizer):
                corrections = optimizer.state_dict()["state"]
        return {
            "kept": list(self.kept),
            "kept_share": self.kept_share,
            "corrections": corrections,
            "lacking": list(self.lacking),
        }

    def load_state_dict(self, state: Mapping[str, Any], optimizer: Optimizer) -> None:
        """Restores a state. The optimiser keeps its learning rates and local state."""
        device = optimizer.param_groups[0]["params"][0].device
        self.kept, self.kept_share = [gradient.to(device) for gradient in state["kept"]], state["kept_share"]
        self.lacking = [lacking.to(device) for lacking in state.get("lacking", ())]
        self.corrections = defaultdict(dict)
        if state["corrections"] is not None:
            groups = optimizer.state_dict()["param_groups"]
            with self.correcting(optimizer):
                optimizer.load_state_dict({"state": state["corrections"], "param_groups": groups})
