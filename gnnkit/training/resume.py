"""A run's state between two steps, saved to a checkpoint and restored from it.

Lightning's restore is not used, because it trains nothing in a resumed epoch that ends
with a validation. Here, a position is two numbers, and the strategy continues its
batches from there.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, TypedDict, cast, get_args, get_origin, get_type_hints

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from gnnkit.config import is_default, is_former_default, removed_keys
from gnnkit.config.settings import AUTO
from gnnkit.errors import UserError
from gnnkit.partition.shard import Shard
from gnnkit.strategy import Worker
from gnnkit.training import checkpoint
from gnnkit.training.module import TrainingModule
from gnnkit.training.monitor import monitor
from gnnkit.training.step import Updates

Position = tuple[int, int]  # epoch, and the epoch's next step
FILE = "checkpoints/last.json"  # in the run folder


Kept = dict[str, Any]  # state of one component


class RankState(TypedDict):
    """One rank's state between two steps."""

    state_dict: dict[str, Tensor]
    optimizer_states: list[Kept]
    lr_schedulers: list[Kept]
    strategy: Kept
    updates: Kept
    embedding: Kept
    sync: Kept
    exact_epochs: Kept  # empty: all steps are as configured
    monitor: Kept | None  # all ranks' state, or None if `trainer.monitor` is null
    callbacks: dict[str, Kept]  # by key
    shard: str  # `fingerprint`


class SavedState(RankState):
    """A checkpoint, with the leader's state."""

    epoch: int  # the next epoch
    step: int  # the epoch's next step
    global_step: int
    identity: dict[str, Kept]
    # [world_size] packed `RankState`, if ranks differ. A tensor is empty if the rank is
    # lost or equals the leader, and None if it was not read.
    workers: list[Tensor | None] | None
    path: str  # of the file
    damaged: list[str]  # messages about newer, damaged files


@dataclass(frozen=True, slots=True)
class Identity:
    """The values in which a run and a checkpoint must agree, by configuration key."""

    run: Mapping[str, Any]  # always
    layout: Mapping[str, Any]  # within an epoch, and if ranks differ

    def to_dict(self) -> dict[str, Kept]:
        """Returns plain data for the checkpoint."""
        return {"run": dict(self.run), "layout": dict(self.layout)}


def state(trainer: L.Trainer, module: TrainingModule) -> RankState:
    """Returns this rank's parameters, optimisers, schedules and strategy state.

    Collective if `trainer.monitor` is set.
    """
    return {
        "state_dict": module.state_dict(),
        "optimizer_states": [optimizer.state_dict() for optimizer in trainer.optimizers],
        "lr_schedulers": [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs],
        "strategy": module.strategy.state_dict(),
        "updates": _updates(trainer).state_dict(trainer.optimizers[0]),
        "embedding": {} if module.embedding is None else module.embedding.state_dict(),
        "sync": {} if module.sync is None else module.sync.state_dict(),
        "exact_epochs": {} if module.exact_epochs is None else module.exact_epochs.state_dict(),
        "monitor": None if (rule := monitor(trainer)) is None else rule.gathered(module.worker.comm),
        "callbacks": _callbacks(trainer),
        "shard": fingerprint(module.worker.shard),
    }


def position(path: Path) -> tuple[int, int, int] | None:
    """Returns a checkpoint's epoch, step within the epoch, and number of steps.

    Returns None if there is no checkpoint.
    """
    numbers = checkpoint.whole_numbers(path)
    names = ("epoch", "step", "global_step")
    epoch, step, steps = (numbers.get(name, -1) for name in names)
    return (epoch, step, steps) if numbers.keys() >= set(names) else None


def load(path: str, rank: int | None = None) -> SavedState:
    """Loads the checkpoint `path`, or the newest complete one in the run folder `path`.

    Raises `UserError`, which names `trainer.resume`, for anything else.

    Args:
        path: The JSON file, or the run folder.
        rank: The rank whose state is read, if ranks differ. Default: the leader.
    """

    def of_others(name: str) -> bool:
        return name.startswith("/workers/") and name != f"/workers/{rank}"

    file, problems = Path(path), list[str]()
    try:
        if Path(path).is_dir():
            saved_state, file, problems = checkpoint.load_whole(file / FILE, of_others)
        else:
            saved_state = checkpoint.load(file, of_others)
    except UserError as error:
        raise UserError(f"trainer.resume={path}: {error}") from error
    if not isinstance(saved_state, dict) or not saved_state.keys() >= _PARTS.keys():
        raise UserError(f"trainer.resume={path}: {file} is not the checkpoint of a run")
    for name, kind in _PARTS.items():
        if not isinstance(saved_state[name], kind):
            raise UserError(f"trainer.resume={path}: {file} is not the checkpoint of a run: {name} is wrong")
    return cast("SavedState", saved_state | {"path": str(file), "damaged": problems})


# Type of each part of a checkpoint that `load` reads, but parts that earlier ones lack.
_PARTS: Mapping[str, Any] = {
    name: tuple(get_origin(kind) or kind for kind in (get_args(hint) if isinstance(hint, UnionType) else (hint,)))
    for name, hint in get_type_hints(SavedState).items()
    if name not in ("exact_epochs", "path", "damaged")
}


def check_identity(saved_state: SavedState, identity: Identity) -> None:
    """Raises `UserError` for the first key that differs from the checkpoint.

    Args:
        saved_state: The checkpoint.
        identity: The values of the resuming run.
    """
    layout_matters = saved_state["step"] > 0 or saved_state["workers"] is not None
    for part in ("run", "layout") if layout_matters else ("run",):
        saved_values, current_values = saved_state["identity"].get(part, {}), identity.to_dict()[part]
        for key in [*current_values, *(key for key in saved_values if key not in current_values)]:
            if saved_values.get(key) != current_values.get(key) and not _was_default(
                key, saved_values, current_values.get(key)
            ):
                raise UserError(_difference(key, saved_values.get(key), current_values.get(key), saved_state["path"]))


def _was_default(key: str, saved_values: Mapping[str, Any], current_value: Any) -> bool:
    """Checks whether a checkpoint of an earlier version has a key at its default.

    Those versions saved null for defaults that are now in the plugin's YAML file.
    """
    section, value = key.rpartition(".")[0], saved_values.get(key)
    former_key = key.replace("partition.nodes.", "partition.options.")
    plugin = saved_values.get(section)
    was_left_out = current_value is None and is_former_default(former_key, value, plugin)
    return was_left_out or (value is None and is_default(former_key, current_value, plugin))


def _difference(key: str, saved_value: object, current_value: object, path: str) -> str:
    if key == "dataset":
        return f"trainer.resume: the graph is not the graph of the checkpoint {path}: choose the same dataset"
    saved_text, current_text = _format_value(saved_value), _format_value(current_value)
    if current_value is None and key in removed_keys():
        return f"{key}={saved_text} in the checkpoint {path} was removed: start anew"
    return f"{key}={current_text} differs from {saved_text} in the checkpoint {path}: leave it, or start anew"


def _format_value(value: object) -> str:
    return "null" if value is None else str(value)


def nothing_left(saved_state: SavedState, max_epochs: int, metric: str | None, patience: int | None) -> str | None:
    """Returns why a run has no steps left after a checkpoint, or None if it has.

    Args:
        saved_state: From `load`.
        max_epochs: The key `trainer.max_epochs`.
        metric: The key `trainer.monitor`.
        patience: The key `trainer.patience`.
    """
    path, rule = saved_state["path"], saved_state["monitor"] or {"name": None}
    if saved_state["epoch"] >= max_epochs:
        return f"trainer.max_epochs={max_epochs}: the checkpoint {path} has done {saved_state['epoch']} epochs"
    if patience is not None and metric in (rule["name"], AUTO) and rule.get("waited", 0) >= patience:
        return f"trainer.patience={patience}: trainer.monitor={rule['name']} has ended the run of the checkpoint {path}"
    return None


class Resume(Callback):
    """Starts a run at a checkpoint."""

    def __init__(self, saved_state: SavedState, identity: Identity, *, ends: bool = False) -> None:
        """Raises `UserError` if the checkpoint belongs to another run.

        Args:
            saved_state: From `load`.
            identity: The values of the resuming run.
            ends: Whether a run without remaining steps only writes its results.
        """
        check_identity(saved_state, identity)
        self.saved, self.path, self.ends = saved_state, saved_state["path"], ends
        self.is_over = False  # no steps remain

    def report_damage(self) -> None:
        """Reports which newer checkpoints are damaged."""
        for problem in self.saved["damaged"]:
            print(f"{problem}: goes on from {self.path}", file=sys.stderr, flush=True)

    def place(self, trainer: L.Trainer, module: TrainingModule) -> None:
        """Sets parameters, epoch and step, before `trainer.fit`. Collective.

        Raises `UserError` for a state of other parameters or workers, for ranks that
        read different checkpoints, and, unless `ends`, for a run that has completed all
        epochs or was ended by `trainer.monitor`.
        """
        assert trainer.max_epochs is not None
        epoch, step, steps = self.saved["epoch"], self.saved["step"], self.saved["global_step"]
        rule = monitor(trainer)
        monitor_keys = (None, None) if rule is None else (rule.name, rule.patience)
        reason = nothing_left(self.saved, trainer.max_epochs, *monitor_keys)
        if reason is not None and not (self.ends and epoch <= trainer.max_epochs):
            raise UserError(f"{reason}, ask for more")
        self.is_over = reason is not None
        self._check_alike(module.worker)
        self.own = own_state(self.saved, module)
        self._check_parameters(module)
        if module.exact_epochs is not None and (exact := self.own.get("exact_epochs")):
            module.exact_epochs.load_state_dict(exact)  # before the first epoch begins
        module.resumed = (epoch, step)
        module.load_state_dict(self.own["state_dict"])
        if rule is not None:
            rule.restore(self.own["monitor"], module.worker.comm.rank)
        restore_callbacks(self.own, trainer)
        _set_position(trainer, epoch, step, steps)
        if self.is_over:
            trainer.fit_loop.max_epochs = epoch

    def on_train_start(self, trainer: L.Trainer, module: Any) -> None:
        restore_optimisation(self.own, trainer, module, self.path)
        del self.own, self.saved  # frees a copy of everything that is trained

    def _check_alike(self, worker: Worker) -> None:
        """Raises `UserError` if hosts see different run folders. Collective."""
        steps = worker.comm.all_gather(self.saved["global_step"])
        ranks = torch.nonzero(steps != steps[0]).flatten().tolist()
        if ranks:
            raise UserError(
                f"trainer.resume: rank {ranks[0]} has read a checkpoint of step {steps[ranks[0]]}, rank 0 of step "
                f"{steps[0]}: let all hosts see one run folder, or copy {self.path} to each"
            )

    def _check_parameters(self, module: TrainingModule) -> None:
        saved_shapes = {name: list(value.shape) for name, value in self.own["state_dict"].items()}
        shapes = {name: list(value.shape) for name, value in module.state_dict().items()}
        for name in [*shapes, *(name for name in saved_shapes if name not in shapes)]:
            if saved_shapes.get(name) != shapes.get(name):
                raise UserError(
                    f"model: {name.removeprefix('model.')} has shape {shapes.get(name, 'none')}, but "
                    f"{saved_shapes.get(name, 'none')} in the checkpoint {self.path}: take the same model, or start anew"
                )


def restore_updates(rank_state: RankState, trainer: L.Trainer) -> None:
    """Restores the data that steps pass to later steps, from a `state`."""
    _updates(trainer).load_state_dict(rank_state["updates"], trainer.optimizers[0])


def restore_optimisation(rank_state: RankState, trainer: L.Trainer, module: TrainingModule, path: str) -> None:
    """Restores optimisers, schedules and strategy state.

    Raises `UserError` for a state of other optimisers or schedules.

    Args:
        rank_state: A state from `state`.
        trainer: This rank's trainer, with optimisers.
        module: This rank's module.
        path: The checkpoint, for the error.
    """
    schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
    try:
        for optimizer, state in zip(trainer.optimizers, rank_state["optimizer_states"], strict=True):
            optimizer.load_state_dict(state)
        for scheduler, state in zip(schedulers, rank_state["lr_schedulers"], strict=True):
            scheduler.load_state_dict(state)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"trainer.resume: optimizer or schedule is not that of the checkpoint {path}: {error}"
        ) from error
    restore_steps(rank_state, trainer, module)


def restore_steps(rank_state: RankState, trainer: L.Trainer, module: TrainingModule) -> None:
    """Restores what follows a gradient besides optimizers and schedules."""
    if rank_state["strategy"]:
        module.strategy.load_state_dict(rank_state["strategy"])
    if module.sync is not None:
        module.sync.load_state_dict(rank_state["sync"])
    restore_updates(rank_state, trainer)
    restore_embedding(rank_state, trainer, module)


def restore_callbacks(rank_state: RankState, trainer: L.Trainer) -> None:
    """Restores callbacks from a `state`."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if callback.state_key in rank_state["callbacks"]:
            callback.load_state_dict(rank_state["callbacks"][callback.state_key])


def restore_embedding(rank_state: RankState, trainer: L.Trainer, module: TrainingModule) -> None:
    """Restores learned input rows and their optimiser.

    Args:
        rank_state: A state from `state`.
        trainer: This rank's trainer, with optimisers.
        module: This rank's module.
    """
    if module.embedding is not None:
        module.embedding.load_state_dict(rank_state["embedding"], trainer.optimizers[0])


def _callbacks(trainer: L.Trainer) -> dict[str, Kept]:
    """Returns callback states by key. Raises `UserError` for unsupported data."""
    states = {callback.state_key: callback.state_dict() for callback in trainer.callbacks}  # type: ignore[attr-defined]
    callback_states = {key: state for key, state in states.items() if state}
    for key, state in callback_states.items():
        try:
            checkpoint.pack(state)
        except TypeError as error:
            raise UserError(f"callback: the state of {key} cannot be saved: {error}") from error
    return callback_states


def _updates(trainer: L.Trainer) -> Updates:
    """Returns the data that this rank's steps pass to later steps, empty with DDP."""
    updates: Updates = getattr(trainer.strategy, "updates", Updates())
    return updates


def _set_position(trainer: L.Trainer, epoch: int, step: int, steps: int) -> None:
    """Sets Lightning's counters.

    Within an epoch, `restarting` makes the inner loop keep the batch number. Between
    epochs, `restarting` would skip the first epoch.

    Args:
        trainer: This rank's trainer.
        epoch: The next epoch.
        step: The epoch's next step.
        steps: Number of completed optimiser steps.
    """
    loop = trainer.fit_loop
    counters: list[tuple[Any, int]] = [(loop.epoch_progress, epoch), (loop.epoch_loop.batch_progress, step)]
    for counter, done in counters:
        for progress in (counter.current, counter.total):
            progress.ready = progress.started = progress.processed = progress.completed = done
    loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.completed = steps
    loop.epoch_loop._batches_that_stepped = steps
    loop.epoch_loop.restarting = step > 0


def own_state(saved_state: SavedState, module: TrainingModule) -> RankState:
    """Returns this rank's state, if ranks differ.

    A worker that was lost continues from the leader's state.
    """
    if saved_state["workers"] is None:
        return saved_state
    rank = module.worker.comm.rank
    packed_state = saved_state["workers"][rank]
    assert packed_state is not None, f"the checkpoint was read without the state of rank {rank}"
    if rank and not len(packed_state):
        return saved_state | {"strategy": {}}
    rank_state: RankState = checkpoint.unpack(packed_state) if len(packed_state) else saved_state
    if rank_state["shard"] != fingerprint(module.worker.shard):
        raise UserError(
            f"partition: workers of the checkpoint {saved_state['path']} had other nodes: cut the graph alike"
        )
    return rank_state


def fingerprint(shard: Shard) -> str:
    """Hashes the ids of the rows that a rank owns and reads."""
    digest = hashlib.sha256(str(shard.grid).encode())
    for rows in (shard.owned, shard.halo, shard.partial):
        digest.update(np.asarray(rows, np.int64).tobytes())
    return digest.hexdigest()
