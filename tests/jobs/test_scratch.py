"""Evaluation shares a file between ranks of one host only."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gnnkit.jobs.rank_job import RankJob


@pytest.mark.parametrize(
    ("local_world_size", "servers", "processes", "shared"),
    [
        ("4", 0, None, True),
        ("6", 2, None, True),
        ("4", 2, None, False),
        ("2", 0, None, False),
        ("1", 0, 1, True),
        ("2", 0, 2, True),
        ("1", 0, 2, False),
    ],
)
def test_ranks_of_several_hosts_share_no_file(
    local_world_size: str,
    servers: int,
    processes: int | None,
    shared: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", local_world_size)
    comm: Any = SimpleNamespace(in_threads=processes is not None, world_size=4)
    settings = SimpleNamespace(world_size=4 + servers, processes=processes)
    job: Any = SimpleNamespace(folder=tmp_path, settings=settings)
    assert RankJob.scratch_folder(job, comm) == (tmp_path if shared else None)
