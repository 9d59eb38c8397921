"""The section `trainer`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gnnkit.errors import UserError
from gnnkit.ranges import MAX_COUNT, one_of, real, switch, whole
from gnnkit.settings.values import path_or_none

SCHEDULES = ("cosine", "linear", "plateau")
PRECISIONS = (32, 64, "bf16-mixed")
MAX_KEPT = 1000  # checkpoints of a run
OnNan = Literal["stop", "skip", "rollback"]


@dataclass(frozen=True, slots=True)
class OptimizerKind:
    """One value of `trainer.optimizer`."""

    torch_name: str  # of the class in `torch.optim`
    moments: int  # numbers that the optimiser keeps for each parameter


OPTIMIZERS = {
    "adam": OptimizerKind("Adam", 2),
    "adamw": OptimizerKind("AdamW", 2),
    "sgd": OptimizerKind("SGD", 0),
}


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """The section `trainer`. The constructor checks types and ranges."""

    max_epochs: int
    optimizer: str
    lr: float
    weight_decay: float
    schedule: str | None  # of SCHEDULES
    warmup_epochs: int
    plateau_factor: float | None  # of schedule plateau
    plateau_patience: int | None  # of schedule plateau: looks at the value
    clip_norm: float | None
    accumulate: int  # batches that make one step
    max_time: float | None  # seconds
    precision: int | str  # one of PRECISIONS
    check_val_every_n_epoch: int
    log_every_n_steps: int
    progress_bar: bool
    checkpoint: bool
    checkpoint_every: int  # epochs
    checkpoint_every_n_steps: int | None  # within an epoch
    checkpoint_every_minutes: float | None
    keep_checkpoints: int  # of the newest
    resume: str | None
    on_nan: OnNan
    final_average: bool
    evaluation_memory: float  # MiB
    monitor: str | None  # the value whose best model is kept. The task names more
    patience: int | None  # looks at that value without a better one
    min_delta: float | None  # change that counts as better

    def __post_init__(self) -> None:
        counts = ("max_epochs", "accumulate", "check_val_every_n_epoch", "log_every_n_steps", "checkpoint_every")
        optional = () if self.checkpoint_every_n_steps is None else ("checkpoint_every_n_steps",)
        whole("trainer.keep_checkpoints", self.keep_checkpoints, 1, MAX_KEPT)
        for name in (*counts, *optional):
            whole(f"trainer.{name}", getattr(self, name), 1, MAX_COUNT)
        for name in ("progress_bar", "checkpoint", "final_average"):
            switch(f"trainer.{name}", getattr(self, name))
        for name in ("lr", "evaluation_memory"):
            real(f"trainer.{name}", getattr(self, name), above=0)
        real("trainer.weight_decay", self.weight_decay, 0)
        one_of("trainer.optimizer", self.optimizer, OPTIMIZERS)
        one_of("trainer.precision", self.precision, PRECISIONS)
        one_of("trainer.on_nan", self.on_nan, OnNan.__args__)  # type: ignore[attr-defined]
        path_or_none("trainer.resume", self.resume)
        if self.schedule is not None:
            one_of("trainer.schedule", self.schedule, SCHEDULES)
        whole("trainer.warmup_epochs", self.warmup_epochs, 0, MAX_COUNT)
        for name in ("clip_norm", "max_time", "checkpoint_every_minutes"):
            if getattr(self, name) is not None:
                real(f"trainer.{name}", getattr(self, name), above=0)
        self._check_plateau()
        self._check_monitor()
        if self.checkpoint_every_n_steps is not None and self.checkpoint_every_n_steps % self.accumulate:
            raise UserError(
                f"trainer.checkpoint_every_n_steps={self.checkpoint_every_n_steps} must be a multiple of "
                f"trainer.accumulate={self.accumulate}: a checkpoint is between two steps of the optimiser"
            )

    def _check_plateau(self) -> None:
        if self.plateau_factor is not None:
            real("trainer.plateau_factor", self.plateau_factor, above=0, below=1)
        if self.plateau_patience is not None:
            whole("trainer.plateau_patience", self.plateau_patience, 0, MAX_COUNT)
        if self.schedule != "plateau":
            for name in ("plateau_factor", "plateau_patience"):
                if getattr(self, name) is not None:
                    raise UserError(f"trainer.{name}={getattr(self, name)} is read by trainer.schedule=plateau only")
        elif self.monitor is None:
            raise UserError("trainer.schedule=plateau follows trainer.monitor, which is null: choose a value")
        elif self.warmup_epochs:
            raise UserError(
                f"trainer.warmup_epochs={self.warmup_epochs}: trainer.schedule=plateau has no warm-up, leave it out"
            )

    def _check_monitor(self) -> None:
        if self.patience is not None:
            whole("trainer.patience", self.patience, 1, MAX_COUNT)
        if self.min_delta is not None:
            real("trainer.min_delta", self.min_delta, 0)
        if self.monitor is not None:
            return  # the names are known with the task
        for name in ("patience", "min_delta"):
            if getattr(self, name) is not None:
                raise UserError(
                    f"trainer.{name}={getattr(self, name)} is of trainer.monitor, which is null: choose a value"
                )
