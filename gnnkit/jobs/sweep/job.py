"""One job of a sweep, and what became of the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gnnkit.config import RECORD, key_of
from gnnkit.config.settings import Settings
from gnnkit.documents import read_object, read_yaml
from gnnkit.errors import UserError
from gnnkit.jobs.redacted import override

DONE, FAILED, LEFT = "done", "failed", "not finished"


@dataclass(frozen=True, slots=True, eq=False)
class SweepJob:
    """One job, checked and not started."""

    number: int
    overrides: tuple[str, ...]  # as typed, with one value for each key
    swept: Mapping[str, str]  # the values of swept keys
    settings: Settings
    folder: Path  # the run folder

    @property
    def log(self) -> Path:
        """The file that gets what the job prints."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def title(self) -> str:
        """The swept values, for people."""
        return " ".join(override(f"{key}={value}") for key, value in self.swept.items()) or "one job"

    def is_done(self) -> bool:
        """Tells whether the run folder holds the result of these overrides."""
        try:
            kept = read_yaml(self.folder / RECORD / "overrides.yaml")
        except UserError:
            return False
        same = isinstance(kept, list) and _by_key(kept) == _by_key([override(text) for text in self.overrides])
        return same and (self.folder / "result.json").is_file()


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What became of a job."""

    job: SweepJob
    status: str = LEFT
    exit_code: int | None = None
    error: str = ""  # the last line that the job printed about an error
    figures: Mapping[str, Any] = field(default_factory=dict)  # numbers of `result.json`

    @classmethod
    def of(cls, job: SweepJob, exit_code: int) -> Outcome:
        """Reads the result of a job that has ended."""
        status = FAILED if exit_code else DONE
        return cls(job, status, exit_code, _error(job.log) if exit_code else "", _figures(job.folder))


def _by_key(overrides: Sequence[str]) -> dict[str, str]:
    """Returns the override that counts for each key: the last one."""
    return {key_of(str(text)): str(text) for text in overrides}


def _figures(folder: Path) -> dict[str, Any]:
    try:
        result = read_object(folder / "result.json")
    except UserError:
        return {}
    return {name: value for name, value in result.items() if isinstance(value, int | float)}


def _error(log: Path) -> str:
    try:
        lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return ""
    ours = [line for line in lines if line.startswith("gnnkit: error: ")]
    return (ours or [line for line in lines if line] or [""])[-1].removeprefix("gnnkit: error: ")
