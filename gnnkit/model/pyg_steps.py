"""Steps of a LightningModule of (x, edge_index), as PyG users write them.

A step reads a batch with the attributes of PyG's `Data`, and averages a loss over its
rows. Lightning does not have to be installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from gnnkit.errors import UserError

_LOSSES = (
    F.cross_entropy,
    F.nll_loss,
    F.binary_cross_entropy,
    F.binary_cross_entropy_with_logits,
    F.mse_loss,
    F.l1_loss,
    F.smooth_l1_loss,
    F.huber_loss,
)
_SHARED = (
    "_hparams",
    "_hparams_name",
    "_hparams_initial",
    "_log_hyperparams",
)  # attributes set by save_hyperparameters


def own_steps(kind: type, base: type) -> dict[str, object]:
    """Returns the Lightning methods that a user's class overrides, by name.

    Each calls the method of `self.module`, which logs through `self`.

    Args:
        kind: The user's class.
        base: `LightningModule`.
    """
    hook_names = {name for name in dir(base) if not name.startswith("_") and name != "forward"}
    overridden = {
        name
        for name in hook_names
        if callable(getattr(base, name, None)) and getattr(kind, name) is not getattr(base, name)
    }
    return {name: _calling(name) for name in overridden - vars(nn.Module).keys()}


def _calling(name: str) -> Callable[..., object]:
    def call(self: Any, *arguments: Any, **keys: object) -> Any:
        method = getattr(follow(self), name)
        if name == "training_step":
            return self.step(method, *arguments)
        return (
            _run_evaluation(method, *arguments)
            if name in ("validation_step", "test_step")
            else method(*arguments, **keys)
        )

    call.__name__ = name
    return call


def share(model: object, module: nn.Module) -> None:
    """Shares the module's hyperparameters with a model."""
    vars(model).update({name: vars(module)[name] for name in _SHARED if name in vars(module)})


def follow(model: Any) -> Any:
    """Returns a model's module, connected to the model's trainer and log."""
    module = model.module
    vars(module).update(_trainer=model._trainer, log=model.log)
    return module


def values_of(batch: Any, num_rows: int) -> dict[str, Any]:
    """Returns `y`, `train_mask` and, if the batch's rows come first, `batch_size`.

    Args:
        batch: A batch of the strategy.
        num_rows: Number of rows of `x`.
    """
    labels, rows = batch.labels, batch.rows
    y = labels.new_full((num_rows, *labels.shape[1:]), torch.nan if labels.is_floating_point() else -100)
    y[rows] = labels
    mask = torch.zeros(num_rows, dtype=torch.bool, device=rows.device)
    mask[rows] = True
    values = {"y": y, "train_mask": mask}
    if torch.equal(rows, torch.arange(len(rows), device=rows.device)) and len(rows) < max(num_rows, 2):
        values["batch_size"] = len(rows)
    return values


class SharedMeans(TorchFunctionMode):
    """Makes mean losses cover all ranks' rows, within the context.

    A torch loss with `reduction="mean"` over the batch's rows becomes a sum divided by
    `batch.total`, because the ranks' gradients are summed.
    """

    def __init__(self, model: str, batch: Any) -> None:
        super().__init__()
        self._model, self._batch = model, batch

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func not in _LOSSES or kwargs.get("reduction", "mean") != "mean":
            return func(*args, **kwargs)
        count, total = len(self._batch.rows), self._batch.total
        losses: Tensor = func(*args, **{**kwargs, "reduction": "none"})
        if losses.dim() == 0 or len(losses) != count:
            raise self._error(
                func, f"reads {len(losses) if losses.dim() else 1} rows, and the batch of this worker has {count}"
            )
        if count != total and kwargs.get("weight") is not None and func in (F.cross_entropy, F.nll_loss):
            raise self._error(func, "divides by the weights of one worker's rows: use task.class_weights")
        return losses.sum() / (max(total, 1) * max(losses.numel() // max(count, 1), 1))

    def _error(self, func: Any, text: str) -> UserError:
        remedy = "take the rows of batch.train_mask, or the first batch.batch_size rows of a sampled batch"
        return UserError(f"model={self._model}: {func.__name__} in training_step {text}: {remedy}")


def _run_evaluation(step: Callable[..., Any], outputs: Any, *args: Any) -> Any:
    """Calls `validation_step` or `test_step` with outputs that are already computed.

    `self(batch.x, batch.edge_index)` returns them, for the split's nodes.
    """
    module: Any = step.__self__  # type: ignore[attr-defined]
    count = len(outputs.labels)
    every = torch.ones(count, dtype=torch.bool, device=outputs.logits.device)
    split = {"validation_step": "val_mask", "test_step": "test_mask"}[step.__name__]
    unread = _Unread(f"model={type(module).__name__}: {step.__name__}")
    values = {"x": unread, "edge_index": unread, "y": outputs.labels, split: every, "batch_size": count}
    vars(module)["forward"] = lambda *_, **__: outputs.logits
    try:
        return step(Values(module, values | {"num_nodes": count, "edge_weight": None, "edge_attr": None}), *args)
    except (TypeError, ValueError) as error:  # raised by a layer that received a placeholder
        raise UserError(f"{unread}: {error}") from error
    finally:
        del vars(module)["forward"]


class _Unread:
    """A placeholder for rows or edges that may only be passed to the model itself."""

    def __init__(self, step: str) -> None:
        self._step = step

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UserError(str(self))

    def __str__(self) -> str:
        return (
            f"{self._step} must call self(batch.x, batch.edge_index), which gives the outputs that all workers have "
            "computed, and read the rows of the split"
        )

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> NoReturn:
        raise UserError(
            next(str(argument) for argument in (*args, *(kwargs or {}).values()) if isinstance(argument, cls))
        )


class Values:
    """A rank's part, with the attributes of PyG's `Data`."""

    def __init__(self, model: nn.Module, values: Mapping[str, object]) -> None:
        """Stores the values that `model` may read by name."""
        self._model, self._values = model, values

    def __getattr__(self, name: str) -> Any:
        if name in self._values:
            return self._values[name]
        if name.startswith("__"):
            raise AttributeError(name)
        hint = ": take the rows of data.train_mask, as all nodes are in one batch" if name == "batch_size" else ""
        raise UserError(
            f"model={type(self._model).__name__}: a step or forward reads data.{name}, and there are "
            f"{', '.join(self._values)} here{hint}"
        )
