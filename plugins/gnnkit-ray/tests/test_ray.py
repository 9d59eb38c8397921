"""How ranks spread over the nodes of a cluster, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from gnnkit.errors import UserError

pytest.importorskip("ray", reason="launcher=ray needs the package ray: pip install ray")
gnnkit_ray = pytest.importorskip("gnnkit_ray")


@pytest.mark.parametrize(
    ("processes", "rooms", "nodes", "expected"),
    [
        (3, [3, 3], None, [2, 1]),
        (3, [3, 3], 1, [3]),
        (4, [1, 0, 8], None, [3, 1]),
        (2, [5, 5, 5], None, [1, 1]),
        (6, [2, 2, 2], 3, [2, 2, 2]),
    ],
)
def test_processes_spread_over_the_nodes(
    processes: int, rooms: list[int], nodes: int | None, expected: list[int]
) -> None:
    assert gnnkit_ray.spread(processes, rooms, nodes) == expected


@pytest.mark.parametrize(("rooms", "nodes"), [([1, 1], None), ([3], 2), ([9, 9, 9, 9], 4), ([], None)])
def test_too_little_room_is_told(rooms: list[int], nodes: int | None) -> None:
    with pytest.raises(UserError, match=r"launcher=ray: 3 ranks.* do not fit"):
        gnnkit_ray.spread(3, rooms, nodes)


@pytest.mark.parametrize(
    ("key", "value"), [("num_nodes", 0), ("cpus", 0), ("cpus", "many"), ("gpus", -1), ("wait", 0), ("wait", -1)]
)
def test_bad_options_are_refused(key: str, value: Any) -> None:
    with pytest.raises(UserError, match=f"launcher.{key}={value}"):
        gnnkit_ray.Ray(**{key: value})
