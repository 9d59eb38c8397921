"""One process at a time writes into a run folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest
from gnnkit_report import Report, ReportKeys

from gnnkit import config, plugins
from gnnkit.config.settings import Settings, settle
from gnnkit.errors import UserError
from gnnkit.jobs import Order, start
from gnnkit.jobs import folder as run_folders
from gnnkit.jobs.folder import locked


@pytest.fixture(scope="module")
def settings() -> Settings:
    return settle(config.compose(["strategy=vertex_centric", "dataset=synthetic", "workers=1", "job=partition"]))


@pytest.mark.parametrize("on_exists", ["refuse", "resume", "replace"])
def test_a_folder_in_use_is_refused_and_left_as_it_is(settings: Settings, on_exists: str, tmp_path: Path) -> None:
    again = replace(settings, on_exists=on_exists)
    with run_folders.open_folder(Order(settings, folder=tmp_path / "run")) as made:
        before = sorted(path.name for path in made.iterdir())
        with (
            pytest.raises(
                UserError, match=rf"{made}: process {os.getpid()} on \S+ is writing there: wait until it ends"
            ),
            run_folders.open_folder(Order(again, folder=made)),
        ):
            raise AssertionError
        assert sorted(path.name for path in made.iterdir()) == before
    assert sorted(path.name for path in made.iterdir()) == [".hydra", "config.yaml"]


def test_of_many_runs_with_one_new_folder_one_wins(settings: Settings, tmp_path: Path) -> None:
    ready, done = Barrier(12), Barrier(12)

    def run(_: int) -> str:
        with contextlib.ExitStack() as held:
            ready.wait()
            try:
                held.enter_context(run_folders.open_folder(Order(settings, folder=tmp_path / "new")))
            except UserError as error:
                return str(error)
            finally:
                done.wait()
        return "won"

    with ThreadPoolExecutor(12) as threads:
        told = list(threads.map(run, range(12)))
    assert told.count("won") == 1
    assert all("is writing there" in text for text in told if text != "won")


@pytest.mark.slow
def test_a_lock_of_a_process_that_has_died_keeps_nobody_out(settings: Settings, tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        with run_folders.open_folder(Order(settings, folder=tmp_path / "run")):
            os._exit(0)
    os.waitpid(child, 0)
    assert f"process {child} on " in (tmp_path / "run/.lock").read_text()
    with run_folders.open_folder(Order(replace(settings, on_exists="replace"), folder=tmp_path / "run")):
        pass
    assert not (tmp_path / "run/.lock").exists()


def test_a_disk_without_locks_is_told_and_used(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with run_folders.open_folder(Order(settings, folder=tmp_path / "run")):
        pass
    assert "the file system has no locks" in capsys.readouterr().out


def test_a_report_into_a_folder_in_use_is_refused(settings: Settings, tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(UserError, match="is writing there"):
        start(Order(replace(settings, job=Report, job_keys=ReportKeys((str(tmp_path),)))))


def refuse(settings: Settings, folder: Path, steps: str, *files: str) -> None:
    """Refuses a job that has written some files, and these."""
    with contextlib.suppress(UserError), run_folders.open_folder(Order(settings, folder=folder)) as made:
        for name in ("node_ids.npy", *files):
            (made / name).parent.mkdir(exist_ok=True)
            (made / name).write_bytes(b"")
        (made / "workers.jsonl").write_text(steps)
        raise UserError("no edge")


def test_a_job_that_is_refused_leaves_no_folder(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty"):
        refuse(settings, tmp_path / name, "")
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


@pytest.mark.parametrize(("steps", "files"), [("{}", []), ("", ["checkpoints/last.json"])], ids=["step", "checkpoint"])
def test_a_run_that_was_refused_after_a_step_stays(
    settings: Settings, steps: str, files: list[str], tmp_path: Path
) -> None:
    refuse(settings, tmp_path / "run", steps, *files)
    assert (tmp_path / "run/workers.jsonl").exists()


@pytest.mark.slow
def test_a_job_that_was_refused_while_reading_can_be_tried_again(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/edges.csv").write_text("from,to\n0,1\n")
    keys = ["strategy=vertex_centric", "dataset=edges", f"dataset.root={tmp_path}/data", "job=partition", "workers=1"]
    refused = settle(config.compose([*keys, f"output={tmp_path}/run"]))
    with pytest.raises(UserError, match="has no column 'src'"):
        start(Order(refused))
    (tmp_path / "data/edges.csv").write_text("src,dst\n0,1\n")
    start(Order(refused))
    assert (tmp_path / "run/result.json").exists()


def test_a_lock_that_its_holder_removes_meanwhile_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, is_at = iter([False]), run_folders._is_at
    monkeypatch.setattr(run_folders, "_is_at", lambda *of: next(found, None) is None and is_at(*of))
    with locked(tmp_path):
        assert (tmp_path / run_folders.LOCK).read_text().startswith(f"process {os.getpid()} on ")
        with pytest.raises(UserError, match="is writing there"), locked(tmp_path):
            raise AssertionError
    assert not any(tmp_path.iterdir())


def _unusable(folder: Path) -> dict[str, Path]:
    """Returns output folders that no process can create or lock."""
    (folder / "file").write_text("")
    (folder / "dangling").symlink_to(folder / "nowhere" / "deeper")
    (folder / "circle").symlink_to(folder / "circle")
    (folder / "locked").mkdir()
    (folder / "locked" / run_folders.LOCK).symlink_to(folder / "nowhere" / "lock")
    (folder / "no file").mkdir()
    (folder / "no file" / run_folders.LOCK).mkdir()
    return {
        "no process": Path("/proc/x/y"),
        "one level": Path("/proc/x"),
        "deep": Path("/sys/x/y/z"),
        "device": Path("/dev/null/x"),
        "file": folder / "file",
        "below a file": folder / "file" / "run" / "deeper",
        "dangling": folder / "dangling",
        "below dangling": folder / "dangling" / "run",
        "circle": folder / "circle" / "run",
        "lock elsewhere": folder / "locked",
        "lock is a folder": folder / "no file",
        "long name": folder / ("a" * 300),
        "long path": folder.joinpath(*["a" * 100] * 60),
        "surrogate": folder / "run\ud800",
    }


@pytest.mark.parametrize("name", _unusable(Path(tempfile.mkdtemp())))
@pytest.mark.parametrize("job", ["partition", "init"])
@pytest.mark.timeout(120)
def test_a_folder_that_cannot_be_made_is_one_error_at_once(
    settings: Settings, name: str, job: str, tmp_path: Path
) -> None:
    output = _unusable(tmp_path)[name]
    order = Order(replace(settings, job=plugins.load("job", job)), folder=output)
    with pytest.raises(UserError, match=r"^(cannot make the run folder|output=)"):
        start(order)
