"""The rows that models read, as features or learned."""

import functools
from dataclasses import dataclass
from typing import Annotated

from gnnkit.config.settings.fields import NotNegative, OnlyWith, Section, Switch, by_job, names
from gnnkit.config.settings.values import AUTO, size
from gnnkit.ranges import real

INPUTS = ("features", "degree", "learned")
TYPES = ("read", "ignore")
INPUT_ROWS = (AUTO, "dense", "sparse")
SCALES = ("standard", "row", "none")
TEXTS = ("one_hot", "known", "refuse")
FILLS = ("refuse", "mean", "zero", "drop")
DTYPES = ("as_is", "bf16", "int8")  # of dense feature rows in files and in memory
PLACES = ("memory", "mapped", "disk")  # of feature rows
READS = ("threads", "io_uring")  # how rows are read from disk
POLICIES = ("exact", "static", "lru")  # of the cache of rows on disk
DEFAULT_EMBEDDING = 64  # numbers of a learned row
MAX_SCALE = 1e6  # of initial learned rows

FEATURES = OnlyWith("inputs=features", lambda s: s.inputs == "features")
LEARNED = OnlyWith("inputs=learned", lambda s: s.inputs == "learned")
ROWS = by_job(lambda job: job.reads_rows)
DISK = OnlyWith("features.place=disk", lambda s: s.features.place in (AUTO, "disk"))


@dataclass(frozen=True, slots=True)
class FeaturesSettings(Section):
    """The section `features`."""

    scale: Annotated[str, names((AUTO, *SCALES)), FEATURES]  # AUTO: chosen by the columns
    fill: Annotated[str, names(FILLS), FEATURES]  # what replaces empty cells
    text: Annotated[str, names(TEXTS), FEATURES]  # how text columns are read
    dtype: Annotated[str, names(DTYPES), FEATURES]
    place: Annotated[str, names((AUTO, *PLACES)), ROWS, FEATURES]  # AUTO: chosen by the available memory
    cache: Annotated[int | None, size, ROWS, DISK]  # bytes of rows that each worker caches. None: chosen
    policy: Annotated[str, names(POLICIES), ROWS, DISK]
    direct: Annotated[Switch, ROWS, DISK]  # whether reads bypass the page cache
    reads: Annotated[str, names(READS), ROWS, DISK]

    @property
    def sets_disk_keys(self) -> bool:
        """Whether a key that place "disk" reads differs from its default."""
        return self.cache is not None or (self.policy, self.direct, self.reads) != (POLICIES[0], False, READS[0])


@dataclass(frozen=True, slots=True)
class LearnedSettings(Section):
    """The section `learned`."""

    conditions = (LEARNED,)

    scale: Annotated[float, functools.partial(real, above=0, high=MAX_SCALE)] | None  # standard deviation
    weight_decay: NotNegative | None  # L2 penalty on the rows. None: the model chooses
