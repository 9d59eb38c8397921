"""Loss, gradients and optimiser of one rank's steps. Does not import Lightning."""

from __future__ import annotations

import copy
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import Parameter
from torch.optim import Optimizer

from gnnkit.config.settings import AUTO, OPTIMIZERS
from gnnkit.engine.in_place import forbid_writes
from gnnkit.errors import UserError
from gnnkit.kernels.products import fast_products
from gnnkit.strategy import Batch
from gnnkit.sync import GradientSync
from gnnkit.task import Task

LOSS = "train_loss"  # the value of `trainer.monitor` that is checked after each epoch


def monitored_metric(name: str | None, task: Task) -> str | None:
    """Returns the name of the metric that a value of `trainer.monitor` selects."""
    return task.progress if name == AUTO else name


def loss_of(model: nn.Module, task: Task, batch: Batch, batch_idx: int) -> Tensor:
    """Computes this rank's part of a step's loss, by the model's step if it has one.

    Collective.

    Args:
        model: The model.
        task: Computes each row's loss.
        batch: The batch.
        batch_idx: Number of the step in the epoch.
    """
    read = {
        "x": batch.x,
        "batch.rows": batch.rows,
        "batch.labels": batch.labels,
        "batch.row_weights": batch.row_weights,
    }
    with batch.precision(), fast_products(), forbid_writes(model, batch.adjacencies, **read):
        if (user_step := own_method(model, "training_step")) is None:
            return loss_part(task, model(batch.x, batch.adjacencies), batch)
        _check_row_weights(model, batch)
        loss: Tensor = user_step(batch, batch_idx)
        return loss


def loss_part(task: Task, out: Tensor, batch: Batch) -> Tensor:
    """Computes this rank's part of the loss. Collective.

    Args:
        task: Computes each row's loss.
        out: [num_dst, width] model output.
        batch: The batch, which selects the rows.
    """
    features = [] if batch.pair_features is None else [batch.pair_features]
    out = batch.reached(out)
    task.check_outputs(out)
    losses = task.losses_of(out, batch.rows, batch.labels, *features)
    if batch.row_weights is not None:
        losses = losses * batch.row_weights
    return losses.sum() / max(batch.total, 1)


def reaching(loss: Tensor, parameters: Sequence[Parameter]) -> Tensor:
    """Returns the loss, with a backward pass that reaches all of these parameters.

    Lightning's DDP waits for each parameter. Parameters that do not affect this rank's
    loss get no gradient, which counts as zeros.
    """
    result: Tensor = _Reaching.apply(loss, *parameters)
    return result


class _Reaching(Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, *parameters: Parameter) -> Tensor:
        ctx.parameters = parameters
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad, *(torch.zeros_like(parameter) if _is_watched(parameter) else None for parameter in ctx.parameters)


def _is_watched(parameter: Parameter) -> bool:
    """Returns whether a user's hooks expect a gradient."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def make_optimizer(model: nn.Module, name: str, lr: float, weight_decay: float) -> Optimizer:
    """Creates the configured optimiser.

    Args:
        model: The model.
        name: A key of `settings.OPTIMIZERS`.
        lr: Learning rate.
        weight_decay: L2 penalty on the model's decayed parameters.
    """
    get_decayed = getattr(model, "decayed_parameters", model.parameters)
    with_decay = list(get_decayed())
    decayed_ids = {id(parameter) for parameter in with_decay}
    without_decay = [parameter for parameter in model.parameters() if id(parameter) not in decayed_ids]
    groups = [{"params": with_decay, "weight_decay": weight_decay}, {"params": without_decay, "weight_decay": 0.0}]
    make: Callable[..., Optimizer] = getattr(torch.optim, OPTIMIZERS[name].torch_name)
    return make([group for group in groups if group["params"]], lr=lr)


def own_method(model: nn.Module, name: str) -> Callable[..., Any] | None:
    """Returns the method overridden by a user's LightningModule, or None."""
    base = getattr(
        sys.modules.get("lightning"), "LightningModule", None
    )  # a LightningModule implies that Lightning has been imported
    if base is None or not isinstance(model, base) or getattr(type(model), name) is getattr(base, name):
        return None
    method: Callable[..., object] = getattr(model, name)
    return method


def _check_row_weights(model: nn.Module, batch: Batch) -> None:
    """Raises `UserError` for a model that would ignore row weights."""
    if batch.row_weights is not None and not getattr(model, "reads_row_weights", False):
        raise UserError(
            f"model={type(model).__name__}: this strategy weighs the rows of a batch, and training_step must multiply "
            "the loss of each row by batch.row_weights: do so and set reads_row_weights = True, or leave training_step out"
        )


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

    def state_dict(self, optimizer: Optimizer) -> dict[str, object]:
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
