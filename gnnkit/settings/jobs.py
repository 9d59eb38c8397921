"""Keys that some jobs read, such as `plan`, `compare` and `checkpoint`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from gnnkit.config import JobFacts
from gnnkit.errors import UserError
from gnnkit.ranges import MAX_COUNT, real, shown, switch, whole
from gnnkit.settings.choice import AUTO
from gnnkit.settings.values import LEAST_MEMORY, bytes_of, path_or_none

WAYS = ["vertex_centric", "preset_workload", "individual_sample", "joint_sample"]  # of job=compare
MAX_SEEDS = 100  # of job=compare
USUAL_MINUTES = 2
MAX_MINUTES = 1e5  # of trials
MAX_RATE = 1e9  # of numbers of a machine
MAX_RUNS = 64  # that one report compares


@dataclass(frozen=True, slots=True)
class LeaderSettings:
    """The section `leader`. The constructor checks the values."""

    rebalance: bool  # whether work moves away from a worker that stays slow

    def __post_init__(self) -> None:
        switch("leader.rebalance", self.rebalance)


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """The section `plan`: a cluster as numbers. The constructor checks the ranges."""

    flops: float | None  # GFLOP/s of a rank in dense products. None: measured here
    bandwidth: float | None  # GB/s that a rank receives from other hosts
    latency: float | None  # microseconds of a message to another host
    memory: float | None  # GiB for each rank
    ranks_per_host: int | None  # consecutive ones

    def __post_init__(self) -> None:
        for name in ("flops", "bandwidth", "memory"):
            if getattr(self, name) is not None:
                real(f"plan.{name}", getattr(self, name), high=MAX_RATE, above=0)
        if self.ranks_per_host is not None:
            whole("plan.ranks_per_host", self.ranks_per_host, 1, MAX_COUNT)
        if self.latency is not None:
            real("plan.latency", self.latency, 0, MAX_RATE)

    @property
    def is_cluster(self) -> bool:
        """Whether any number of another machine is given."""
        return any(getattr(self, field.name) is not None for field in fields(self))


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """A simulated link between ranks. The constructor checks the ranges."""

    key: str  # of the configuration
    gigabits: float  # in a second, of each rank's card
    milliseconds: float  # latency, one way

    def __post_init__(self) -> None:
        real(f"{self.key}.gigabits", self.gigabits, high=MAX_RATE, above=0)
        real(f"{self.key}.milliseconds", self.milliseconds, 0, MAX_RATE)


@dataclass(frozen=True, slots=True)
class CompareSettings:
    """The section `compare`. The constructor checks the values."""

    ways: tuple[str, ...]  # each a strategy's name and further overrides, separated by blanks
    seeds: int  # runs of each way
    link: LinkSettings | None  # between the ranks of each run

    def __post_init__(self) -> None:
        if not isinstance(self.ways, list | tuple) or not all(isinstance(way, str) for way in self.ways):
            raise UserError(f"compare.ways={shown(self.ways)} must be a list of strategies: [NAME,'NAME KEY=VALUE']")
        if not self.ways:
            raise UserError("compare.ways=[] must name a strategy or more")
        whole("compare.seeds", self.seeds, 1, MAX_SEEDS)


@dataclass(frozen=True, slots=True)
class InitSettings:
    """The section `init`. The constructor checks the range."""

    minutes: float  # of trials, 0 for none

    def __post_init__(self) -> None:
        real("init.minutes", self.minutes, 0, MAX_MINUTES)


def plan_of(job: JobFacts, config: Mapping[str, Any]) -> PlanSettings:
    """Reads the numbers of a cluster. Raises `UserError` where nothing reads these."""
    plan = PlanSettings(**config["plan"])
    named = (config["strategy"].get("name"), config["partition"].get("nodes"))
    if plan.is_cluster and not job.reads_plan and AUTO not in named:
        key = next(key for key, value in config["plan"].items() if value is not None)
        raise UserError(
            f"plan.{key}={config['plan'][key]} is read by job=plan, partition=auto and strategy=auto: leave it out"
        )
    return plan


def compare_of(job: JobFacts, section: Mapping[str, Any]) -> CompareSettings:
    """Reads the section `compare`. One way may stand without a list.

    Raises `UserError` for keys of another job.
    """
    for key, value in section.items():
        if not job.several and value != {"ways": AUTO, "seeds": 1, "link": None}[key]:
            raise UserError(f"compare.{key}={shown(value)} is read by job=compare: leave it out, or add job=compare")
    ways = WAYS if section["ways"] == AUTO else section["ways"]
    ways = [ways] if isinstance(ways, str) else ways
    link = link_of("compare.link", section["link"])
    return CompareSettings(tuple(ways) if isinstance(ways, list) else ways, section["seeds"], link)


def init_of(job: JobFacts, section: Mapping[str, Any]) -> InitSettings:
    """Reads the section `init`. Raises `UserError` for a value that nothing reads."""
    found = InitSettings(**section)
    if not job.reads_data_only and found.minutes != USUAL_MINUTES:
        raise UserError(f"init.minutes={found.minutes:g} is read by job=init: leave it out, or add job=init")
    return found


def link_of(key: str, value: object) -> LinkSettings | None:
    """Reads a simulated link. None: there is none."""
    if value is None:
        return None
    names = ("gigabits", "milliseconds")
    if not isinstance(value, Mapping) or {*value} != {*names}:
        raise UserError(f"{key}={shown(value)} must be null or {{gigabits:NUMBER,milliseconds:NUMBER}}")
    return LinkSettings(key, *(value[name] for name in names))


def memory_of(job: JobFacts, value: object) -> int | None:
    """Reads a number of bytes, such as 1GB. Raises `UserError` where none is read."""
    if value == AUTO:
        return None
    size = bytes_of("memory", value, LEAST_MEMORY)
    if not job.reads_memory:
        raise UserError(f"memory={shown(value)} must be auto: only job=import reads the key, and job={job}")
    return size


def checkpoint_of(job: JobFacts, value: object) -> str | None:
    path = path_or_none("checkpoint", value)
    if (path is None) == job.reads_checkpoint:
        means = "needs checkpoint=FOLDER of a run that has trained" if path is None else "reads no checkpoint"
        raise UserError(f"job={job} {means}" + ("" if path is None else ": trainer.resume goes on from one"))
    return path


def runs_of(job: JobFacts, value: object) -> tuple[str, ...]:
    """Returns the run folders of job=report. Raises `UserError` where none is read."""
    given = [] if value is None else value if isinstance(value, list) else [value]
    runs = tuple(path for each in given if (path := path_or_none("runs", each)) is not None)
    if job.reads_runs != bool(runs):
        means = "reads no runs" if runs else "needs runs=FOLDER or runs=[FOLDER,FOLDER] of runs that have trained"
        raise UserError(f"job={job} {means}")
    if len(runs) > MAX_RUNS:
        raise UserError(f"runs has {len(runs)} folders, at most {MAX_RUNS} are compared")
    return runs
