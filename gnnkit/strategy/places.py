"""Checks where a graph's edges and features are stored, and which rows are cached."""

from __future__ import annotations

from typing import Any

from gnnkit.errors import UserError
from gnnkit.utils.ranges import MAX_COUNT, one_of, whole

_PLACES = ("shared", "partitioned")


def place(key: str, value: Any) -> str:
    """Returns the value. Raises `UserError` if it is invalid.

    Args:
        key: "topology" or "features".
        value: The configured value.
    """
    if value == "replicated":
        raise UserError(
            f"strategy.{key}=replicated is not supported: all workers of a host map one copy: use strategy.{key}=shared"
        )
    placement: str = one_of(f"strategy.{key}", value, _PLACES)
    return placement


def check_places(topology: str, features: str, batching: str) -> None:
    """Raises `UserError` for contradicting keys of `individual_sample`.

    Args:
        topology: "shared" or "partitioned".
        features: "shared" or "partitioned".
        batching: "plain" or "balanced".
    """
    if topology == "partitioned" and features == "shared":
        raise UserError(
            "strategy.features=shared with strategy.topology=partitioned: features are the larger part of most graphs, "
            "so a host that holds all features can hold the topology: use strategy.topology=shared"
        )
    if topology == "partitioned" and batching == "balanced":
        raise UserError(
            "strategy.batching=balanced with strategy.topology=partitioned: the cost of a seed is the size of its "
            "tree, which reaches into the in-edges of other workers: leave batching out"
        )


def check_cache(features: str, cache: str, cache_rows: int | None) -> None:
    """Raises `UserError` for a cache if all features are shared.

    Args:
        features: "shared" or "partitioned".
        cache: Name of the cache, or "none".
        cache_rows: Number of cached rows, or None.
    """
    if features == "shared" and cache != "none":
        raise UserError(f"strategy.cache={cache} keeps rows of other workers: use strategy.features=partitioned")
    if cache_rows is not None:
        whole("strategy.cache_rows", cache_rows, 1, MAX_COUNT)
        if cache == "none":
            raise UserError(f"strategy.cache_rows={cache_rows} needs a strategy.cache")
