"""The rows that models read, as features or learned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gnnkit.config import JobFacts
from gnnkit.errors import UserError
from gnnkit.ranges import MAX_WIDTH, one_of, real, shown, switch, whole
from gnnkit.settings.choice import AUTO
from gnnkit.settings.values import bytes_of

INPUTS = ("features", "degree", "learned")
TYPES = ("read", "ignore")
INPUT_ROWS = ("auto", "dense", "sparse")
SCALES = ("standard", "row", "none")
TEXTS = ("one_hot", "known", "refuse")
FILLS = ("refuse", "mean", "zero", "drop")
DTYPES = ("as_is", "bf16", "int8")  # of dense rows of features in files and in memory
PLACES = ("memory", "mapped", "disk")  # of the rows of features
READS = ("threads", "io_uring")  # of rows on disk
POLICIES = ("exact", "static", "lru")  # of the rows that are kept in memory
DEFAULT_EMBEDDING = 64  # numbers of a learned row
MAX_SCALE = 1e6  # of first learned rows


@dataclass(frozen=True, slots=True)
class FeaturesSettings:
    """The section `features`. The constructor checks the values."""

    scale: str  # of SCALES, or AUTO: chosen by the columns
    fill: str  # of FILLS: what takes the place of empty cells
    text: str  # of TEXTS: what columns of text are read as
    dtype: str  # of DTYPES: how rows are kept
    place: str  # of PLACES, or AUTO: chosen by the memory at hand
    cache: int | None  # bytes of rows that each worker keeps, with place "disk". None: chosen
    policy: str  # of POLICIES
    direct: bool  # whether reads pass by the system's cache of files
    reads: str  # of READS: how rows are read from disk

    def __post_init__(self) -> None:
        one_of("features.scale", self.scale, (AUTO, *SCALES))
        one_of("features.fill", self.fill, FILLS)
        one_of("features.text", self.text, TEXTS)
        one_of("features.dtype", self.dtype, DTYPES)
        one_of("features.place", self.place, (AUTO, *PLACES))
        one_of("features.policy", self.policy, POLICIES)
        switch("features.direct", self.direct)
        one_of("features.reads", self.reads, READS)

    @property
    def of_disk(self) -> list[str]:
        """Lists the keys that were set of those that place "disk" reads."""
        usual = {"cache": None, "policy": "exact", "direct": False, "reads": "threads"}
        return [key for key, value in usual.items() if getattr(self, key) != value]


@dataclass(frozen=True, slots=True)
class LearnedSettings:
    """The section `learned`. The constructor checks the ranges."""

    scale: float | None  # deviation of the first rows' numbers. None: 1 / sqrt(embedding)
    weight_decay: float | None  # L2 penalty on the rows. None: the model chooses

    def __post_init__(self) -> None:
        if self.scale is not None:
            real("learned.scale", self.scale, high=MAX_SCALE, above=0)
        if self.weight_decay is not None:
            real("learned.weight_decay", self.weight_decay, 0)


def input_rows_of(inputs: str, rows: object) -> str:
    """Returns how features are kept. Raises `UserError` where none are."""
    given: str = one_of("input_rows", rows, INPUT_ROWS)
    if given != "auto" and inputs != "features":
        raise UserError(f"input_rows={given} must be auto: only inputs=features reads the key, and inputs={inputs}")
    return given


def features_of(job: JobFacts, inputs: str, section: Mapping[str, Any]) -> FeaturesSettings:
    """Reads the section `features`. Raises `UserError` where there are no features."""
    cache = None if section["cache"] == AUTO else bytes_of("features.cache", section["cache"], 0)
    features = FeaturesSettings(**{**section, "cache": cache})
    for key in features.of_disk:
        if features.place not in (AUTO, "disk"):
            raise UserError(
                f"features.{key}={shown(section[key])} is of features.place=disk, and features.place={features.place}: leave "
                "the key out"
            )
    for key in [*(["place"] if features.place != AUTO else []), *features.of_disk]:
        if not job.reads_rows:
            raise UserError(f"features.{key}={shown(section[key])}: job={job} computes with no rows, leave the key out")
    for key, usual in (("scale", AUTO), ("fill", "refuse"), ("text", "one_hot"), ("dtype", "as_is"), ("place", AUTO)):
        if (value := getattr(features, key)) != usual and inputs != "features":
            raise UserError(
                f"features.{key}={value} must be {usual}: only inputs=features reads the key, and inputs={inputs}"
            )
    return features


def embedding_of(inputs: str, width: object) -> int | None:
    """Returns the numbers of a learned row, None where rows are not learned.

    Raises `UserError` for a width that nothing reads.
    """
    if width is None:
        return DEFAULT_EMBEDDING if inputs == "learned" else None
    given = whole("embedding", width, 1, MAX_WIDTH, what="null or a whole number")
    if inputs != "learned":
        raise UserError(f"embedding={given} must be null: only inputs=learned reads the key, and inputs={inputs}")
    return given


def learned_of(inputs: str, section: Mapping[str, Any]) -> LearnedSettings:
    """Reads the section `learned`. Raises `UserError` where no rows are learned."""
    learned = LearnedSettings(**section)
    for key, value in section.items():
        if value is not None and inputs != "learned":
            raise UserError(
                f"learned.{key}={value} must be null: only inputs=learned reads the key, and inputs={inputs}"
            )
    return learned
