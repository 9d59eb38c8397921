"""The figures of a training run, in the order of `result.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from gnnkit.utils.documents import Json

_OPTIONAL = ("edge_split", "evaluation")


class FigureTopic:
    """Figures that are computed together. Subclasses are dataclasses."""

    def to_dict(self) -> Json:
        """Returns the figures by name."""
        return {figure.name: getattr(self, figure.name) for figure in fields(self)}  # type: ignore[arg-type]


def merge(*parts: FigureTopic | Mapping[str, Any]) -> Json:
    """Merges figures in this order. Of equal names, the last value is used."""
    figures: Json = {}
    for part in parts:
        figures |= part.to_dict() if isinstance(part, FigureTopic) else part
    return figures


@dataclass(frozen=True, slots=True)
class Plugins(FigureTopic):
    """The names of the data set, the model and the other plugins."""

    strategy: str
    sampler: str | None
    exchange: str | None
    partition: str
    nodes: str
    grid: list[int]
    world_size: int
    dataset: str
    model: str
    task: str
    edge_split: str | None = None  # origin of the held-out edges. Only link tasks have the figure
    # fresh: each row is evaluated on the edges before its own time. frozen: on those
    # before the first held-out one. None, without the figure: neither.
    evaluation: str | None = None

    def to_dict(self) -> Json:
        figures = FigureTopic.to_dict(self)
        return {name: value for name, value in figures.items() if value is not None or name not in _OPTIONAL}


@dataclass(frozen=True, slots=True)
class Progress(FigureTopic):
    """Number of epochs, last loss and stragglers."""

    epochs: int
    train_loss: float | None
    stragglers: Mapping[str, float]  # ratio to the others' time, by worker


@dataclass(frozen=True, slots=True)
class Pace(FigureTopic):
    """The speed of training."""

    seconds_per_epoch: float  # median without the first epoch, which builds buffers and plans
    main_figure: Mapping[str, Any]  # name, and whether lower is better
    time_to_accuracy: float | None  # seconds


@dataclass(frozen=True, slots=True)
class TrafficFigures(FigureTopic):
    """The traffic of an epoch or step, as the maximum over ranks."""

    words_gathered: int
    words_reduced: int
    words_sliced: int
    words_fetched: int
    words_between_processes: int
    bytes_sent: int
    per_rank: Mapping[str, Sequence[int]]  # [world_size] by name


@dataclass(frozen=True, slots=True)
class Load(FigureTopic):
    """The distribution of work over the workers."""

    wait_share: float  # share of the time spent waiting for batches
    balance: Mapping[str, float]  # max/mean over workers


@dataclass(frozen=True, slots=True)
class Resources(FigureTopic):
    """What the run has used."""

    num_parameters: int  # trained ones, learned input rows included
    device: str
    phases: Mapping[str, float]  # seconds
    predicted: Mapping[str, Any] | None  # None if nothing was planned
    measured: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Circumstances(FigureTopic):
    """Why the layout was chosen, the versions and the seed."""

    why: str | None
    versions: Mapping[str, str]
    seed: int


@dataclass(frozen=True, slots=True)
class Classes(FigureTopic):
    """Figures by class."""

    per_class: Mapping[str, Mapping[str, Any]] | None = None  # by split and class name
    confusion: Mapping[str, Any] | None = None  # class names, and a matrix by split
    threshold: Mapping[str, float] | None = None  # lowest probability at which a class is predicted, by name
    thresholds: Mapping[str, Any] | None = None  # a class, and its precision and recall by threshold and split
    calibration: Mapping[str, float | None] | None = None  # temperature, and expected errors by split


@dataclass(frozen=True, slots=True)
class Drift(FigureTopic):
    """The largest difference of parameters between two ranks."""

    drift: float  # before the final average
    final_drift: float  # after the final average, of the saved model


@dataclass(frozen=True, slots=True)
class Skipped(FigureTopic):
    """Steps that were skipped because of non-finite values."""

    skipped_steps: int
    rollbacks: int


@dataclass(frozen=True, slots=True)
class Exactness(FigureTopic):
    """Whether several ranks train the same model as one."""

    exact: bool | None  # None if not checked
    inexact: list[str]  # the reasons why not
    not_checked: str | None  # why the model was not compared
    approximate: list[str]  # the approximations in training


@dataclass(frozen=True, slots=True)
class Verdict(FigureTopic):
    """Which model was saved, and whether it has learned."""

    saved_epoch: int
    best_evaluation: Mapping[str, float] | None
    schedule: Mapping[str, Any] | None  # numbers of exact and approximate epochs, and what they measured
    learned_nothing: str | None  # a warning
    one_class: str | None  # a warning


@dataclass(frozen=True, slots=True)
class Selection(FigureTopic):
    """The monitored value, and why training ended early."""

    best_epoch: int | None = None
    best_value: float | None = None
    best_figure: str | None = None  # the monitored name
    stopped: str | None = None


@dataclass(frozen=True, slots=True)
class Restarts(FigureTopic):
    """The restarts after failures."""

    restarts: int = 0
    restarted: Sequence[Mapping[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class Figures:
    """The leader's figures of a training run, which each phase of the run adds.

    Mappings are figures of plugins and of the user's model, under their own names.
    """

    plugins: Plugins = field(init=False)
    progress: Progress = field(init=False)
    scores: Mapping[str, float | None] = field(init=False)  # the task's metrics
    pace: Pace = field(init=False)
    traffic: TrafficFigures = field(init=False)
    load: Load = field(init=False)
    strategy: Mapping[str, Any] = field(init=False)
    resources: Resources = field(init=False)
    circumstances: Circumstances = field(init=False)
    classes: Classes = field(init=False)
    drift: Drift = field(init=False)
    skipped: Skipped = field(init=False)
    sync: Mapping[str, Any] = field(init=False)
    exactness: Exactness = field(init=False)
    verdict: Verdict = field(init=False)
    selection: Selection = field(init=False)
    lost: Mapping[str, list[str]] = field(init=False)
    hooks: Mapping[str, Any] = field(init=False)
    tests: Mapping[str, Any] = field(init=False)
    restarts: Restarts = field(default_factory=Restarts)  # replaced by the launching process

    def to_dict(self) -> Json:
        """Returns all figures by name. Every topic must be set."""
        return merge(*(getattr(self, topic.name) for topic in fields(self)))
