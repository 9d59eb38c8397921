"""Requirements for callbacks.

A callback is a Lightning `Callback`. Its constructor's arguments are the keys of
`callback.NAME`.

- Each rank has its own instance. Ranks are processes or threads, so a callback's state
belongs to one rank.
- Hooks are called on all ranks in the same order. The exception is
`on_before_optimizer_step` if only the leader steps (`sync=leader`). A callback that
changes parameters or learning rates must make the same change on all ranks. If any rank
sets `trainer.should_stop`, training ends on all ranks after the epoch.
- Values in `trainer.callback_metrics` are equal on all ranks at the end of an epoch and
of an evaluation. A loss or a batch belongs to one rank. `module.worker.comm` is
collective: either all ranks call it, or none. Lightning's collectives do not work
between ranks that are threads.
- Only the leader (`trainer.is_global_zero`) writes files, and only it has
`trainer.loggers`.
- `module` is gnnkit's module. The user's model is `module.model`.
- `state_dict` is saved in each checkpoint and must be equal on all ranks. It may
contain numbers, text, tensors, lists and dictionaries.
"""

from __future__ import annotations

from lightning.pytorch.callbacks import Callback

from gnnkit.callback.leader import Leader
from gnnkit.errors import UserError

_ALTERNATIVES = {  # alternatives to Lightning's callbacks that do not support several ranks here
    "BackboneFinetuning": "freeze the parameters in the model",
    "BaseFinetuning": "freeze the parameters in the model",
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
_NOT_CALLED = {  # hooks that are not called, with the reason
    "on_after_backward": "gradients may not be summed over ranks yet, use on_before_optimizer_step",
    "on_load_checkpoint": "checkpoints are gnnkit's, use state_dict and load_state_dict",
    "on_save_checkpoint": "checkpoints are gnnkit's, use state_dict and load_state_dict",
    "on_sanity_check_start": "there is no sanity check, use on_train_start",
    "on_sanity_check_end": "there is no sanity check, use on_train_start",
}
_UNCALLED_PREFIXES = (
    "on_predict_",
    "on_validation_batch_",
    "on_test_",
)  # prefixes of hooks for steps that gnnkit runs itself


def check(name: str, callback: object) -> None:
    """Raises `UserError` for an unsupported callback.

    Unsupported are callbacks of Lightning that do not work on several ranks, and those
    that implement hooks which gnnkit does not call. The message names an alternative if
    there is one.

    Args:
        name: The callback's name in messages.
        callback: The callback.
    """
    if not isinstance(callback, Callback):
        raise UserError(f"callback={name} must be a Callback of lightning.pytorch, got {type(callback).__name__}")
    if isinstance(callback, Leader):
        raise UserError(f"callback={name}: every run has a Leader already; use trainer.monitor")
    for base in type(callback).__mro__:
        if base.__module__.startswith(("lightning.", "pytorch_lightning.")) and base.__name__ in _ALTERNATIVES:
            raise UserError(
                f"callback={name}: {base.__name__} does not work on several ranks: {_ALTERNATIVES[base.__name__]}"
            )
    for hook in sorted(_overridden_hooks(callback)):
        if hook in _NOT_CALLED:
            raise UserError(f"callback={name}: {hook} is not called: {_NOT_CALLED[hook]}")
        if hook.startswith(_UNCALLED_PREFIXES):
            raise UserError(f"callback={name}: {hook} is not called: leave the hook out")


def _overridden_hooks(callback: Callback) -> set[str]:
    """Returns the names of the hooks that a callback overrides."""
    hooks = {name for name in vars(Callback) if name.startswith("on_")}
    return {name for name in hooks if getattr(getattr(callback, name), "__func__", None) is not getattr(Callback, name)}
