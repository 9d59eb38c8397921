"""Evaluation shares a file between ranks of one host only."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gnnkit.jobs.rows import scratch


@pytest.mark.parametrize(
    ("local_world_size", "servers", "in_one_process", "shared"),
    [
        ("4", 0, False, True),
        ("6", 2, False, True),
        ("4", 2, False, False),
        ("2", 0, False, False),
        ("1", 0, True, True),
    ],
)
def test_ranks_of_several_hosts_share_no_file(
    local_world_size: str,
    servers: int,
    in_one_process: bool,
    shared: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", local_world_size)
    comm: Any = SimpleNamespace(in_one_process=in_one_process, world_size=4)
    job: Any = SimpleNamespace(folder=tmp_path, settings=SimpleNamespace(world_size=4 + servers))
    assert scratch(job, comm) == (tmp_path if shared else None)
