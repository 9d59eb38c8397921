"""What a step leaves to later steps of the same rank."""

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
    """Gradients of steps that accumulate, and the optimiser's state for corrections.

    The state of correcting and leading steps is equal on all ranks, because all ranks
    take these steps with the same gradient. The state of a rank's own steps is kept
    aside meanwhile. Learning rates are the same, so schedules reach these steps too.
    """

    def __init__(self) -> None:
        self.kept: list[Tensor] = []  # by parameter
        self.kept_share = 0.0  # this rank's part of the rows of the kept gradients
        self.corrections: Any = defaultdict(dict)  # a `state` of the optimiser
        self.lacking: list[Tensor] = []  # by parameter, what this rank's gradient lacked of the mean of all ranks

    def add_to(self, own: list[Tensor], share: float) -> float:
        """Adds the kept gradients to a step's, and lets the kept ones go.

        Args:
            own: Gradients of the step by parameter, changed in place.
            share: This rank's part of the rows of the step.

        Returns:
            This rank's part of the rows of all steps that were added up.
        """
        if self.kept:
            torch._foreach_add_(own, self.kept)
        share += self.kept_share
        self.forget()
        return share

    def keep(self, own: list[Tensor], share: float) -> None:
        """Keeps gradients [by parameter] for the next step."""
        self.kept, self.kept_share = [gradient.clone() for gradient in own], share

    def forget(self) -> None:
        """Lets the kept gradients go. The step that would apply these is left out."""
        self.kept, self.kept_share = [], 0.0

    @contextmanager
    def correcting(self, optimizer: Optimizer) -> Iterator[None]:
        """Gives the optimiser the state of correcting steps, inside `with`."""
        own, optimizer.state = optimizer.state, self.corrections
        try:
            yield
        finally:
            self.corrections, optimizer.state = optimizer.state, own

    @contextmanager
    def concluding(self, optimizer: Optimizer) -> Iterator[None]:
        """Does what `correcting` does. Own steps then go on from a copy of the state.

        A rank that holds no such state, because the leader or a server does, keeps the
        state of own steps.
        """
        with self.correcting(optimizer):
            yield
        for parameter, state in self.corrections.items():
            optimizer.state[parameter] = copy.deepcopy(state)

    def lead(self, own: list[Tensor], sync: GradientSync, weight: float) -> None:
        """Replaces gradients by the ranks' mean, and keeps the difference. Collective.

        Args:
            own: Gradients of the step by parameter, changed in place.
            sync: Takes the mean.
            weight: The weight of this rank in the mean.
        """
        before = [gradient.clone() for gradient in own]
        sync.average(own, weight)
        self.lacking = list(torch._foreach_sub(own, before))

    def follow(self, own: list[Tensor]) -> None:
        """Adds to the gradients of an own step what these lack of the last mean."""
        if self.lacking:
            torch._foreach_add_(own, self.lacking)

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
        """Goes on from a state. The optimiser keeps learning rates and own state."""
        device = optimizer.param_groups[0]["params"][0].device
        self.kept, self.kept_share = [kept.to(device) for kept in state["kept"]], state["kept_share"]
        self.lacking = [lacking.to(device) for lacking in state.get("lacking", ())]
        self.corrections = defaultdict(dict)
        if state["corrections"] is not None:
            groups = optimizer.state_dict()["param_groups"]
            with self.correcting(optimizer):
                optimizer.load_state_dict({"state": state["corrections"], "param_groups": groups})
