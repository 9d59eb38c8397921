"""Sections that only some jobs read, such as `plan`."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self

from gnnkit import plugins
from gnnkit.config.settings.choice import Choice
from gnnkit.config.settings.fields import OnlyWith, Section, Switch
from gnnkit.config.settings.values import AUTO
from gnnkit.errors import UserError
from gnnkit.utils.ranges import real, switch

MAX_RATE = 1e9  # upper limit of numbers that describe a machine

Rate = Annotated[float, functools.partial(real, above=0, high=MAX_RATE)]
Latency = Annotated[float, functools.partial(real, low=0, high=MAX_RATE)]


@dataclass(frozen=True, slots=True)
class LeaderSettings(Section):
    """The section `leader`: a switch for each plugin of the leader."""

    rebalance: Switch  # whether work is moved away from a straggler
    other_plugins: tuple[str, ...] = ()  # other enabled plugins. Not a key, since it has a default

    @classmethod
    def optional_keys(cls) -> list[str]:
        return plugins.names("leader")

    @classmethod
    def read(cls, section: str, values: Mapping[str, Any]) -> Self:
        names = [name for name, value in values.items() if switch(f"{section}.{name}", value)]
        for name in names:
            if name not in plugins.names("leader"):
                package = plugins.PACKAGES["leader"][name]
                raise UserError(f"{section}.{name}=true: the package {package} is not installed: pip install {package}")
        return cls("rebalance" in names, tuple(name for name in names if name != "rebalance"))

    @property
    def hooks(self) -> tuple[Choice, ...]:
        """The enabled plugins."""
        return tuple(Choice("leader", name, {}) for name in ("rebalance",) * self.rebalance + self.other_plugins)


@dataclass(frozen=True, slots=True)
class PlanSettings(Section):
    """The section `plan`, which may describe a machine other than this one."""

    conditions = (
        OnlyWith(
            "job=plan, partition=auto or strategy=auto",
            lambda s: s.job.reads_plan or AUTO in (s.strategy.name, s.partition.nodes.name),
        ),
    )

    bandwidth: Rate | None  # GB/s that a rank sends to others
    memory: Rate | None  # GiB per rank
