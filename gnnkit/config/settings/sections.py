"""The sections `trainer`, `features` and `learned`."""

import functools
from dataclasses import dataclass
from typing import Annotated, Literal

from gnnkit.config.settings.fields import (
    AUTO,
    MAX_SCALE,
    Count,
    LocalPath,
    OnlyWith,
    Positive,
    Scale,
    Section,
    Switch,
    by_job,
    names,
    size,
)
from gnnkit.errors import UserError
from gnnkit.utils.ranges import one_of, real, shown, whole

CONSTANT = "constant"
SCHEDULES = (CONSTANT, "cosine", "linear", "plateau")
PRECISIONS = (32, 64, "bf16-mixed")
ON_NAN = ("stop", "skip", "rollback")
OnNan = Literal["stop", "skip", "rollback"]


@dataclass(frozen=True, slots=True)
class OptimizerKind:
    """A value of `trainer.optimizer`."""

    torch_name: str  # class name in `torch.optim`
    moments: int  # optimizer state numbers per parameter


OPTIMIZERS = {
    "adam": OptimizerKind("Adam", 2),
    "adamw": OptimizerKind("AdamW", 2),
    "sgd": OptimizerKind("SGD", 0),
}


def _auto_or_shares(key: str, value: object) -> tuple[float, float] | Literal["auto"]:
    if value == AUTO:
        return "auto"
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise UserError(f"{key}={shown(value)} must be auto or [START,FINISH], such as [0.1,0.2]")
    start, finish = (real(key, item, low=0, below=1) for item in value)
    real(f"the sum of {key}", start + finish, below=1)
    return start, finish


def _auto_or_epochs(key: str, value: object) -> int | Literal["auto"]:
    return "auto" if value == AUTO else whole(key, value, 0)


def _schedule(key: str, value: object) -> str | None:
    return None if value in (None, CONSTANT) else str(one_of(key, value, SCHEDULES))


_MONITOR = OnlyWith("trainer.monitor=NAME", lambda s: s.trainer.monitor is not None, hint="set trainer.monitor")


@dataclass(frozen=True, slots=True)
class TrainerSettings(Section):
    """The section `trainer`."""

    max_epochs: Count
    optimizer: Annotated[str, names(OPTIMIZERS)]
    lr: Annotated[float, functools.partial(real, above=0, high=MAX_SCALE)] | None
    weight_decay: Scale | None
    schedule: Annotated[str | None, _schedule]  # None if constant
    warmup_epochs: Annotated[int | Literal["auto"], _auto_or_epochs]
    clip_norm: Positive | None
    accumulate: Count  # batches per optimizer step
    max_time: Positive | None  # seconds
    precision: Annotated[Literal[32, 64, "bf16-mixed"], names(PRECISIONS)]
    check_val_every_n_epoch: Count
    log_every_n_steps: Count
    progress_bar: Switch
    checkpoint: Switch
    checkpoint_every: Count  # epochs
    checkpoint_every_n_steps: Count | None  # within an epoch
    checkpoint_every_minutes: Positive | None
    keep_checkpoints: Annotated[int, functools.partial(whole, low=1, high=1000)]  # the latest ones
    resume: LocalPath | None
    on_nan: Annotated[OnNan, names(ON_NAN)]
    exact_shares: Annotated[tuple[float, float] | Literal["auto"], _auto_or_shares]
    evaluation_memory: Positive  # MiB
    monitor: str | None  # metric that selects the best model, or auto. The task checks the name
    patience: Annotated[Count | None, _MONITOR]  # evaluations without improvement

    def __post_init__(self) -> None:
        if self.schedule == "plateau" and self.monitor is None:
            raise UserError("trainer.schedule=plateau follows trainer.monitor, which is null: choose a metric")
        if self.schedule == "plateau" and self.warmup_epochs not in (0, AUTO):
            raise UserError(
                f"trainer.warmup_epochs={self.warmup_epochs}: trainer.schedule=plateau has no warm-up: leave the key out"
            )
        if self.checkpoint_every_n_steps is not None and self.checkpoint_every_n_steps % self.accumulate:
            raise UserError(
                f"trainer.checkpoint_every_n_steps={self.checkpoint_every_n_steps} must be a multiple of "
                f"trainer.accumulate={self.accumulate}: a checkpoint is saved between two optimizer steps"
            )

    def learning_rate(self, model: object) -> float:
        """Returns `trainer.lr`, or the model's `default_lr`, or 0.01."""
        return float(getattr(model, "default_lr", 0.01)) if self.lr is None else self.lr


INPUTS = ("features", "degree", "learned")
TYPES = ("read", "ignore")
INEXACT = ("refuse", "allow")
INPUT_ROWS = (AUTO, "dense", "sparse")
SCALES = ("standard", "row", "none")
TEXTS = ("one_hot", "known", "refuse")
FILLS = ("refuse", "mean", "zero", "drop")
DTYPES = ("as_is", "bf16", "int8")  # number formats of dense feature rows, in files and in memory
PLACES = ("memory", "mapped", "disk")  # where feature rows are stored
DEFAULT_EMBEDDING = 64  # width of a learned row, for tasks without task.width

LabelShare = Annotated[float, functools.partial(real, above=0, below=1)]  # of the training nodes

FEATURES = OnlyWith("inputs=features", lambda s: s.inputs == "features")
LEARNED = OnlyWith("inputs=learned", lambda s: s.inputs == "learned")
ROWS = by_job(lambda job: job.reads_rows)
DISK = OnlyWith("features.place=disk", lambda s: s.features.place in (AUTO, "disk"))


@dataclass(frozen=True, slots=True)
class FeaturesSettings(Section):
    """The section `features`."""

    scale: Annotated[str, names((AUTO, *SCALES)), FEATURES]  # AUTO: depends on the columns
    fill: Annotated[str, names(FILLS), FEATURES]  # replacement for empty cells
    text: Annotated[str, names(TEXTS), FEATURES]  # encoding of text columns
    degree: Annotated[Switch, FEATURES]  # whether log(1 + number of in-edges) is another column
    dtype: Annotated[str, names(DTYPES), FEATURES]
    place: Annotated[str, names((AUTO, *PLACES)), ROWS, FEATURES]  # AUTO: depends on the available memory
    cache: Annotated[int | None, size, ROWS, DISK]  # cache size per worker, in bytes, or None if automatic


@dataclass(frozen=True, slots=True)
class LearnedSettings(Section):
    """The section `learned`."""

    conditions = (LEARNED,)

    scale: Annotated[float, functools.partial(real, above=0, high=MAX_SCALE)] | None  # standard deviation
    weight_decay: Scale | None  # L2 penalty on the rows, or None for the model's default
