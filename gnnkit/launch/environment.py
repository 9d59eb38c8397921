"""Ranks that somebody else has started: torchrun, SLURM."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from gnnkit.errors import UserError


@dataclass(frozen=True, slots=True)
class StartedRank:
    """This process as one rank of a run that torchrun or a batch system has started."""

    rank: int
    world_size: int
    local_rank: int  # among the ranks of this host
    local_world_size: int


def started_rank(environment: Mapping[str, str] | None = None) -> StartedRank | None:
    """Finds the rank that the environment names, or None where gnnkit starts the ranks.

    Reads torchrun's variables, else those of a SLURM step of several tasks.
    """
    environment = os.environ if environment is None else environment
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return _of_torchrun(environment)
    return None


def _of_torchrun(environment: Mapping[str, str]) -> StartedRank:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    rank, world_size = (_number(environment, name) for name in names[:2])
    local_rank = _number(environment, names[2]) if names[2] in environment else rank
    local_size = _number(environment, names[3]) if names[3] in environment else world_size
    return StartedRank(rank, world_size, local_rank, local_size)


def _number(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except (KeyError, ValueError):
        raise UserError(f"the environment's {name}={environment.get(name)} must be a whole number") from None
