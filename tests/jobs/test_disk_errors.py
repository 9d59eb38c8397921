"""Errors of a disk name the file and the cure, and leave a folder that can be used."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gnnkit_testing.graphs import check_graph
from lightning.fabric.loggers.csv_logs import _ExperimentWriter as CsvWriter
from torch.utils.tensorboard import SummaryWriter

from gnnkit.__main__ import main
from gnnkit.errors import UserError, of_disk
from gnnkit.utils import storage
from tests.cases import few
from tests.folders import digests_of

RUN = [
    "strategy=vertex_centric",
    "workers=2",
    "comm=threads",
    "cache=false",
    "report=false",
    "dataset=saved",
    "types=ignore",
]
NUMBERS = [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO, errno.EFBIG]
Fail = Callable[[pytest.MonkeyPatch, int], None]


def in_file(part: str) -> Fail:
    """Lets writing files fail whose path holds a text."""
    opened = storage.Path.open

    def broken(path: Path, mode: str = "r", *arguments: Any, **keys: Any) -> Any:
        if part in str(path) and set(mode) & set("wa"):
            raise OSError(broken.number, os.strerror(broken.number), str(path))  # type: ignore[attr-defined]
        return opened(path, mode, *arguments, **keys)

    def fail(patch: pytest.MonkeyPatch, number: int) -> None:
        broken.number = number  # type: ignore[attr-defined]
        patch.setattr(storage.Path, "open", broken)

    return fail


def without_name(owner: Any, name: str) -> Fail:
    """Lets a method fail as a write to an open file does, which names no file."""

    def fail(patch: pytest.MonkeyPatch, number: int) -> None:
        def broken(*_: Any, **__: Any) -> None:
            raise OSError(number, os.strerror(number))

        patch.setattr(owner, name, broken)

    return fail


FAILURES: dict[str, tuple[Fail, str]] = {
    "configuration": (in_file("config.yaml"), "run/config.yaml"),
    "record": (in_file("overrides.yaml"), "run/.hydra/overrides.yaml"),
    "shard": (in_file("indptr.npy"), "run/prepared/"),
    "steps": (in_file("workers.jsonl"), "run/workers.jsonl"),
    "epochs": (in_file("epochs.jsonl"), "run/epochs.jsonl"),
    "checkpoint": (in_file(".last.safetensors"), "run/checkpoints/last.json"),
    "csv": (without_name(CsvWriter, "save"), "run/csv/metrics.csv"),
    "tensorboard": (without_name(SummaryWriter, "add_scalar"), "run/tensorboard"),
}


@pytest.mark.slow
@few("name", FAILURES, default=["record", "shard", "checkpoint", "csv", "tensorboard"])
def test_a_full_disk_names_the_file_and_the_same_command_works_later(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check_graph().save(tmp_path / "graph")
    command = [
        *RUN,
        "types=ignore",
        f"dataset.root={tmp_path / 'graph'}",
        "trainer.max_epochs=1",
        f"output={tmp_path / 'run'}",
    ]
    fail, file = FAILURES[name]
    with monkeypatch.context() as patch:
        fail(patch, errno.ENOSPC)
        assert main(command) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith(f"gnnkit: error: {tmp_path}/{file}")
    assert "No space left on device: free some, or name a folder on another disk with output=FOLDER" in told
    assert main(command) == 0
    assert (tmp_path / "run/result.json").is_file()


@pytest.mark.parametrize("number", NUMBERS)
def test_each_error_of_a_disk_has_a_cure(number: int, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"x.json") as caught, storage.naming(tmp_path / "x.json"):
        raise OSError(number, os.strerror(number), *([str(tmp_path / "x.json")] if number == errno.EACCES else []))
    told = str(of_disk(caught.value))
    assert told.startswith(f"{tmp_path / 'x.json'}: {os.strerror(number)}: ")


def test_other_errors_stay_as_they_are(tmp_path: Path) -> None:
    for error in (ConnectionResetError(errno.ECONNRESET, "reset"), OSError("x"), PermissionError(errno.EPERM, "no")):
        with pytest.raises(type(error)) as caught, storage.naming(tmp_path):
            raise error
        assert caught.value is error
        assert of_disk(error) is None


@pytest.mark.slow
def test_a_run_without_a_checkpoint_makes_room_for_the_next_and_keeps_its_curves(tmp_path: Path) -> None:
    check_graph().save(tmp_path / "graph")
    command = [
        *RUN,
        "types=ignore",
        f"dataset.root={tmp_path / 'graph'}",
        "trainer.max_epochs=2",
        f"output={tmp_path / 'run'}",
    ]
    assert main([*command, "trainer.checkpoint=false"]) == 0
    for name in ("result.json", "model.safetensors"):  # as after a kill
        (tmp_path / "run" / name).unlink()
    curves = (tmp_path / "run/epochs.jsonl").read_text()
    assert main(command) == 0
    assert (tmp_path / "run/earlier-1/epochs.jsonl").read_text() == curves
    before = digests_of(tmp_path / "run")
    assert main(command) == 2
    assert digests_of(tmp_path / "run") == before


def test_a_line_that_finds_no_room_names_its_file(tmp_path: Path) -> None:
    lines = storage.Lines(tmp_path / "x.jsonl")
    lines.add("a")
    os.close(lines._file.fileno())
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, lines._file.fileno())
    with pytest.raises(OSError, match=r"No space left on device: '.*x.jsonl'"):
        lines.add("b")
    assert (tmp_path / "x.jsonl").read_text() == "a\n"
    with pytest.raises(UserError):
        raise of_disk(OSError(errno.ENOSPC, "full", "x")) or KeyError
