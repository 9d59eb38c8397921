"""The section `partition`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gnnkit import plugins
from gnnkit.config import keys
from gnnkit.config.settings.choice import Choice, choice_of
from gnnkit.config.settings.values import AUTO
from gnnkit.errors import UserError
from gnnkit.utils.ranges import one_of, shown


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """The node assignment and the process grid."""

    nodes: Choice  # the partitioner
    grid: str | list[int]  # 1d, 1.5d, 2d, 3d or [rows, cols, slices]
    replication: int | None  # for grid 1.5d
    border: str  # a name in `gnnkit.partition.border`


def partition_of(config: Mapping[str, Any], workers: int) -> PartitionSettings:
    from gnnkit.partition.border import NAMES
    from gnnkit.partition.grid import make_grid

    section = config["partition"]
    grid, replication = section["grid"], section["replication"]
    make_grid(grid, workers, replication, key="workers" if config["parts"] is None else "parts")
    if plugins.plugin_name("partition", section) == AUTO:
        _check_auto(section)
    return PartitionSettings(
        choice_of("partition", config), grid, replication, one_of("partition.border", section["border"], NAMES)
    )


def _check_auto(section: Mapping[str, Any]) -> None:
    """Raises `UserError` for a key that `partition=auto` selects itself."""
    defaults = {key.name: key.value for key in keys.shared_keys("partition")}
    for key, value in section.items():
        if key != "nodes" and value != defaults.get(key):
            raise UserError(f"partition.{key}={shown(value)}: partition=auto chooses this key itself: leave it out")
