"""Shared runs are made once, fail alike for all, and stay as they are."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.farm import Farm, used

Runs = Mapping[str, Callable[[Path], object]]


def counting(log: Path, *, fails: bool = False) -> Runs:
    """Returns a run that adds a line to a file."""

    def make(folder: Path) -> None:
        with log.open("a") as file:
            file.write("made\n")
        print("said by the run")
        if fails:
            raise ValueError("no room")
        folder.mkdir()
        (folder / "result.json").write_text("{}")

    return {"one": make}


@pytest.mark.slow
def test_processes_share_a_run_that_is_made_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def ask() -> None:
        with used(tmp_path / "farm", counting(tmp_path / "log")) as farm:
            assert (farm("one") / "result.json").is_file()

    with used(tmp_path / "farm", counting(tmp_path / "log")) as farm:
        processes = [multiprocessing.get_context("fork").Process(target=ask) for _ in range(3)]
        for process in processes:
            process.start()
        run = farm("one")
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0] * 3
        assert farm.copy("one", tmp_path / "copy") == tmp_path / "copy"
        assert {path.name for path in run.iterdir()} == {path.name for path in (tmp_path / "copy").iterdir()}
    assert (tmp_path / "log").read_text() == "made\n"
    assert not (tmp_path / "farm").exists()
    assert capsys.readouterr().out == "", "what the run prints is no output of the test"


def test_a_run_that_fails_is_tried_once_and_fails_each_test_alike(tmp_path: Path) -> None:
    with used(tmp_path / "farm", counting(tmp_path / "log", fails=True)) as farm:
        errors = []
        for _ in range(2):
            with pytest.raises(pytest.fail.Exception) as caught:
                farm("one")
            errors.append(str(caught.value))
    assert errors[0] == errors[1]
    assert "the shared run 'one' could not be made\nsaid by the run\n" in errors[0]
    assert "ValueError: no room" in errors[0]
    assert (tmp_path / "log").read_text() == "made\n"


def test_a_run_that_was_broken_off_is_made_anew(tmp_path: Path) -> None:
    def broken(folder: Path) -> None:
        raise KeyboardInterrupt

    with used(tmp_path / "farm", {"one": broken}) as farm:
        with pytest.raises(KeyboardInterrupt):
            farm("one")
        assert Farm(farm.folder, counting(tmp_path / "log"))("one").is_dir()


@pytest.mark.parametrize("change", [lambda run: (run / "new").touch(), lambda run: (run / "result.json").unlink()])
def test_a_change_of_a_shared_run_is_an_error(change: Callable[[Path], object], tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match="a test has changed a shared run: take a copy"),
        used(tmp_path / "farm", counting(tmp_path / "log")) as farm,
    ):
        change(farm("one"))
    assert not (tmp_path / "farm").exists()
