"""Settings of the model's input rows, which are features or learned."""

import functools
from dataclasses import dataclass
from typing import Annotated

from gnnkit.config.settings.fields import MAX_SCALE, OnlyWith, Scale, Section, Switch, by_job, names
from gnnkit.config.settings.values import AUTO, size
from gnnkit.utils.ranges import real

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
