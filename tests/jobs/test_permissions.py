"""Who may read the files of a run."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from gnnkit_testing.graphs import check_graph

from gnnkit.__main__ import main
from gnnkit.jobs.folder import apply_permissions
from tests.cases import exhaustive

RUN = ["strategy=vertex_centric", "types=ignore", "workers=2", "comm=threads", "trainer.max_epochs=1", "dataset=saved"]


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(folder: Path) -> set[str]:
    """Returns the modes of a folder and of all that it holds, as `d700` and `f600`."""
    paths = [folder, *folder.rglob("*")]
    return {f"{'d' if path.is_dir() else 'f'}{stat.S_IMODE(path.stat().st_mode):o}" for path in paths}


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("keys", "expected"),
    [([], {"d700", "f600"}), exhaustive((["permissions=shared"], {"d755", "f644", "f600"}))],
)
def test_a_run_folder_is_as_private_as_asked(keys: list[str], expected: set[str], tmp_path: Path) -> None:
    check_graph().save(tmp_path / "graph")
    data = f"dataset.root={tmp_path / 'graph'}"
    for job in ("train", "partition"):
        assert main([*RUN, data, f"job={job}", f"output={tmp_path / job}", *keys]) == 0
        assert modes(tmp_path / job) <= expected
        assert "d700" in modes(tmp_path / job) if not keys else "d755" in modes(tmp_path / job)
    jobs = ["-m", "seed=1", "report=false", "logger=none", f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    assert main([*RUN, data, *jobs, *keys]) == 0
    assert modes(tmp_path / "sweep") <= expected


def test_the_umask_is_as_before_and_never_widened(tmp_path: Path) -> None:
    os.umask(0o037)
    for permissions in ("private", "shared"):
        with apply_permissions(permissions):
            (tmp_path / permissions).touch()
        assert os.umask(0o037) == 0o037
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o640
