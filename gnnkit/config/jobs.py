"""The properties of a job, which its class sets."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from gnnkit.config.settings.fields import Section


class JobFacts:
    """A job's properties, as class attributes. The defaults hold for an unknown job."""

    name: ClassVar[str] = ""
    keys: ClassVar[type[Section] | None] = None  # reads the keys of `conf/jobs/NAME.yaml`, which other jobs lack
    trains: ClassVar[bool] = False  # writes trained models and a report, and supports loggers and callbacks
    several: ClassVar[bool] = False  # consists of several runs, each in a subfolder
    reads_checkpoint: ClassVar[bool] = False  # requires a trained run
    one_worker: ClassVar[bool] = False  # reads the complete graph on one worker
    reads_strategy: ClassVar[bool] = True
    reads_plan: ClassVar[bool] = False  # always reads the section `plan`
    needs_labels: ClassVar[bool] = True
    splits: ClassVar[tuple[str, ...]] = ("train",)  # one of these must contain a node, if labels are needed
    reads_rows: ClassVar[bool] = False  # reads feature rows for a model
    goes_on: ClassVar[bool] = False  # resumes an interrupted job of the same kind in the run folder
    one_run: ClassVar[bool] = True  # is a single run with its own folder
    cuts: ClassVar[bool] = False  # repartitions graphs, including stored ones
    headline: ClassVar[tuple[str, ...]] = ()  # beginnings of the figures printed without `verbose`. (): all
    keeps_inputs: ClassVar[bool] = False  # saves how the data's columns are read, for later runs

    @classmethod
    def check_keys(cls, names: Collection[str]) -> None:
        """Raises `UserError` for keys that the job does not read.

        Args:
            names: Keys that the user has set, such as `model.hidden`.
        """
