"""The figures of a training run, in the order of `result.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from gnnkit.utils.documents import Json


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


@dataclass(frozen=True, slots=True)
class EvaluationProtocol(FigureTopic):
    """Which edges are held out, and what their evaluation reads. Omits None."""

    edge_split: str | None  # origin of the held-out edges. Only link tasks have the figure
    # fresh: each row is evaluated on the edges before its own time. frozen: on those
    # before the first held-out one. None: neither.
    evaluation: str | None

    def to_dict(self) -> Json:
        return {name: value for name, value in FigureTopic.to_dict(self).items() if value is not None}


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

    @classmethod
    def of(cls, details: Mapping[str, Any], names: Sequence[str] | None) -> Classes:
        """Labels the parts that `Task.details` returns with class names.

        Args:
            details: From `Task.details`.
            names: Class names, or None.
        """

        def name(number: int) -> str | int:
            return number if names is None else names[number]

        per_class, confusion = details.get("per_class"), details.get("confusion")
        if per_class is not None:
            per_class = {split: {str(name(i)): row for i, row in enumerate(rows)} for split, rows in per_class.items()}
        if confusion is not None:
            confusion = {"classes": [name(i) for i in range(len(next(iter(confusion.values()))))], **confusion}
        threshold, table = details.get("threshold"), details.get("thresholds")
        return cls(
            per_class,
            confusion,
            None if threshold is None else {str(name(number)): level for number, level in threshold.items()},
            None if table is None else {**table, "class": name(table["class"])},
            details.get("calibration"),
        )


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
class PhaseFigures:
    """What the phases of a training run report before its last one, on the leader."""

    exactness: Exactness = field(init=False)
    drift: Drift = field(init=False)
    selection: Selection = field(init=False)
    tests: Mapping[str, Any] = field(default_factory=dict)  # of the user's model, under their own names
