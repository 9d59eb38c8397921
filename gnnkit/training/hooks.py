"""The Lightning hooks that a user's LightningModule may override."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import lightning as L
from lightning.pytorch.core.hooks import CheckpointHooks, DataHooks, ModelHooks
from torch import nn
from torch.optim import Optimizer

from gnnkit.errors import UserError
from gnnkit.sync import GradientSync
from gnnkit.training.step import own_method

if TYPE_CHECKING:
    from gnnkit.training.logged import UserLog

# Called by gnnkit's module on every rank, in Lightning's order.
CALLED = (
    "on_fit_start",
    "on_fit_end",
    "on_train_start",
    "on_train_end",
    "on_train_epoch_start",
    "on_train_epoch_end",
    "on_train_batch_start",
    "on_train_batch_end",
    "on_validation_start",
    "on_validation_end",
    "on_validation_epoch_start",
    "on_validation_epoch_end",
    "on_test_start",
    "on_test_end",
    "on_test_epoch_start",
    "on_test_epoch_end",
    "on_before_zero_grad",
    "on_before_backward",
)
PUBLISHED = (  # hooks and steps after which all ranks log values reduced over the ranks
    "on_train_start",
    "on_train_epoch_start",
    "on_train_epoch_end",
    "on_validation_epoch_start",
    "on_validation_epoch_end",
    "on_test_epoch_start",
    "on_test_epoch_end",
    "validation_step",
    "test_step",
)
BEFORE_STEP = ("on_before_optimizer_step", "configure_gradient_clipping")  # called on the rank that runs the optimiser
_KEPT = {
    *CALLED,
    *BEFORE_STEP,
    "configure_callbacks",
    "configure_optimizers",
    "lr_scheduler_step",
    "training_step",
    "validation_step",
    "test_step",
}
_OTHERS = (  # methods of a LightningModule that are not hooks
    "backward",
    "clip_gradients",
    "configure_callbacks",
    "manual_backward",
    "optimizer_step",
    "optimizer_zero_grad",
    "predict_step",
    "toggle_optimizer",
    "untoggle_optimizer",
)
_WHY = {
    "on_after_backward": "a rank may see its own gradient or the sum, use on_before_optimizer_step",
    "predict_step": "job=predict and write=[logits] give the outputs of all nodes",
    "setup": "make parameters in the constructor, or use on_fit_start",
    "teardown": "use on_fit_end",
}


class OwnHooks(L.LightningModule):
    """A module that calls the model's hooks, if the model is a LightningModule."""

    model: nn.Module
    user_log: UserLog  # values that hooks log

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        user_hook = own_method(self.model, "on_train_batch_start")
        if user_hook is not None and user_hook(batch, batch_idx) == -1:
            raise UserError(
                f"model={type(self.model).__name__}: on_train_batch_start returns -1 to end an epoch, which other "
                "ranks would not know: set trainer.max_epochs"
            )


def _calling(name: str) -> Callable[..., Any]:
    def hook(self: OwnHooks, *arguments: Any) -> Any:
        user_hook = own_method(self.model, name)
        if user_hook is None:
            return None
        result = user_hook(*arguments)
        if name in PUBLISHED:
            self.user_log.publish()
        return result

    return hook


for _name in CALLED:
    if _name not in vars(OwnHooks):
        setattr(OwnHooks, _name, _calling(_name))


def check(model: nn.Module, sync: GradientSync, measures_nodes: bool) -> None:
    """Raises `UserError` for a hook that gnnkit does not call.

    Args:
        model: The model.
        sync: The gradient synchronisation.
        measures_nodes: Whether evaluations have rows for a step of the model.
    """
    name = type(model).__name__
    for hook in _own_hooks(model):
        if hook not in _KEPT:
            raise UserError(
                f"model={name}: the hook {hook} is not called: {_WHY.get(hook, 'gnnkit does this work')}; leave it out"
            )
        if hook in BEFORE_STEP and not sync.steps_here:
            raise UserError(f"model={name}: the hook {hook} is not called where servers step: use sync=all_reduce")
        if hook in ("validation_step", "test_step") and not measures_nodes:
            raise UserError(
                f"model={name}: the hook {hook} needs a task about nodes and sync.on_lost=stop: leave it out"
            )
    if isinstance(model, L.LightningModule) and not model.automatic_optimization:
        raise UserError(
            f"model={name}: automatic_optimization=False steps without the other ranks: leave it true, and bring "
            "configure_optimizers"
        )


def _own_hooks(model: nn.Module) -> Iterator[str]:
    """Yields the names of Lightning hooks that a model overrides."""
    classes = (ModelHooks, DataHooks, CheckpointHooks)
    names = {name for base_class in classes for name in vars(base_class) if not name.startswith("_")}
    for name in sorted({*names, *_OTHERS, "lr_scheduler_step", *BEFORE_STEP, "validation_step", "test_step"}):
        if own_method(model, name) is not None:
            yield name


def before_step(module: Any, clip_norm: float | None) -> None:
    """Calls hooks of the model and callbacks with the complete gradient.

    The ranks' gradients are summed at this point. With `sync=leader`, only the leader
    steps.

    Args:
        module: This rank's module, with its trainer.
        clip_norm: `trainer.clip_norm`, for a model that clips gradients itself.
    """
    model, trainer = module.model, module.trainer
    see, clip = (own_method(model, name) for name in BEFORE_STEP)
    base = L.Callback.on_before_optimizer_step
    watching = [
        candidate
        for candidate in trainer.callbacks
        if getattr(candidate.on_before_optimizer_step, "__func__", None) is not base
    ]
    if see is None and clip is None and not watching:
        return

    def before(optimizer: Optimizer, *_: Any) -> None:
        for callback in watching:
            callback.on_before_optimizer_step(trainer, module, optimizer)
        if see is not None:
            see(optimizer)
        if clip is not None:
            clip(optimizer, clip_norm, "norm")

    for optimizer in trainer.optimizers:
        optimizer.register_step_pre_hook(before)


def clips(model: nn.Module) -> bool:
    """Returns whether the model clips gradients itself."""
    return own_method(model, "configure_gradient_clipping") is not None
