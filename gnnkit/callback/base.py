"""The contract of callbacks.

A callback is a `Callback` of Lightning. Arguments of the constructor are the keys of
`callback.NAME`.

- Each rank has a callback of its own. Ranks are processes or threads, so what a
  callback keeps stays with the rank.
- Hooks are called on all ranks in the same order, except for `on_before_optimizer_step`
  where the leader alone steps (`sync=leader`). A callback that changes parameters or
  learning rates must do so alike on all ranks. `trainer.should_stop` on any rank ends
  training on all ranks, after the epoch.
- Values in `trainer.callback_metrics` are equal on all ranks at the end of an epoch and
  of an evaluation. A loss or a batch is of this rank. `module.worker.comm` is
  collective: all ranks call, or none. Lightning's own collectives do not reach ranks
  that are threads.
- Only the leader writes: `trainer.is_global_zero`. Only the leader has
  `trainer.loggers`.
- `module` is gnnkit's own. The model is `module.model`.
- `state_dict` is saved with each checkpoint and must be equal on all ranks: numbers,
  text, tensors, lists and dictionaries.
"""

from __future__ import annotations

from lightning.pytorch.callbacks import Callback

from gnnkit.callback.leader import Leader
from gnnkit.errors import UserError

_INSTEAD = {  # of Lightning's own callbacks that cannot serve several ranks here
    "BackboneFinetuning": "parameters are frozen in the model",
    "BaseFinetuning": "parameters are frozen in the model",
    "BatchSizeFinder": "set strategy.batch_size",
    "Checkpoint": "use trainer.monitor and trainer.checkpoint",
    "DeviceStatsMonitor": "workers.jsonl has every worker's memory",
    "GradientAccumulationScheduler": "use trainer.accumulate",
    "LearningRateFinder": "set trainer.lr",
    "LearningRateMonitor": "use callback=learning_rate",
    "ModelPruning": "prune the model before training",
    "ProgressBar": "use trainer.progress_bar",
    "StochasticWeightAveraging": "average the parameters in a callback of your own",
    "ThroughputMonitor": "workers.jsonl has every worker's rows per second",
    "Timer": "use trainer.max_time",
    "WeightAveraging": "average the parameters in a callback of your own",
}
_NOT_CALLED = {  # hooks, with the reason
    "on_after_backward": "a rank sees its own gradient or the sum then, use on_before_optimizer_step",
    "on_load_checkpoint": "checkpoints are gnnkit's, use state_dict and load_state_dict",
    "on_save_checkpoint": "checkpoints are gnnkit's, use state_dict and load_state_dict",
    "on_sanity_check_start": "there is no sanity check, use on_train_start",
    "on_sanity_check_end": "there is no sanity check, use on_train_start",
}
_NEVER = ("on_predict_", "on_validation_batch_", "on_test_")  # begins of hooks of steps that gnnkit takes itself


def check(name: str, callback: object) -> None:
    """Raises `UserError` for a callback that gnnkit could not serve.

    Args:
        name: Name of the callback in errors.
        callback: The callback.
    """
    if not isinstance(callback, Callback):
        raise UserError(f"callback={name} must be a Callback of lightning.pytorch, got {type(callback).__name__}")
    if isinstance(callback, Leader):
        raise UserError(f"callback={name}: every run has a Leader already; use trainer.monitor")
    for base in type(callback).__mro__:
        if base.__module__.startswith(("lightning.", "pytorch_lightning.")) and base.__name__ in _INSTEAD:
            raise UserError(
                f"callback={name}: {base.__name__} does not work on several ranks: {_INSTEAD[base.__name__]}"
            )
    for hook in sorted(_overridden(callback)):
        if hook in _NOT_CALLED:
            raise UserError(f"callback={name}: {hook} is not called: {_NOT_CALLED[hook]}")
        if hook.startswith(_NEVER):
            raise UserError(f"callback={name}: {hook} is not called: leave the hook out")


def _overridden(callback: Callback) -> set[str]:
    """Names the hooks that a callback brings itself."""
    hooks = {name for name in vars(Callback) if name.startswith("on_")}
    return {name for name in hooks if getattr(getattr(callback, name), "__func__", None) is not getattr(Callback, name)}
