"""Checkpoints that stay beside the newest, and saves that are killed."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, NamedTuple

import pytest
import torch

from gnnkit.errors import UserError
from gnnkit.training import checkpoint, resume
from gnnkit.utils import storage
from tests.cases import exhaustive


def state(number: int) -> dict[str, Any]:
    return {"number": number, "x": torch.full((100,), float(number))}


def numbers(path: Path) -> list[int]:
    return [checkpoint.load(file)["number"] for file in checkpoint.list_checkpoints(path)]


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_checkpoints_stay_and_tensors_of_no_other(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "last.json"
    for number in range(5):
        checkpoint.save(state(number), path, keep)
        assert numbers(path) == list(range(number, max(number - keep, -1), -1))
    names = ["last.json", "last-1.json", "last-2.json"]
    assert [file.name for file in checkpoint.list_checkpoints(path)] == names[:keep]
    assert len(list(tmp_path.iterdir())) == 2 * keep
    checkpoint.save(state(9), path, 1)
    assert len(list(tmp_path.iterdir())) == 2


def test_the_same_state_saved_twice_is_one_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "last.json"
    for number in (1, 2, 2):
        checkpoint.save(state(number), path, 2)
    assert numbers(path) == [2, 1]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def newest_tensors(path: Path) -> Path:
    return path.with_name(json.loads(json.loads(path.read_text())["body"])["tensors"])


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink])
@pytest.mark.parametrize("of_tensors", [False, True])
def test_a_damaged_newest_checkpoint_is_told_and_the_one_before_counts(
    tmp_path: Path, damage: Callable[[Path], None], of_tensors: bool
) -> None:
    path = tmp_path / resume.FILE
    for number in (1, 2):
        checkpoint.save(state(number), path, 2)
    damage(newest_tensors(path) if of_tensors else path)
    loaded, file, damaged = checkpoint.load_whole(path)
    assert (loaded["number"], file.name) == (1, "last-1.json")
    assert len(damaged) == (1 if path.exists() else 0)
    message = checkpoint.use_newest_whole(path)
    assert message == (True, damaged)
    assert numbers(path) == [1]
    assert checkpoint.list_checkpoints(path) == [path]
    checkpoint.save(state(3), path, 2)
    assert numbers(path) == [3, 1]


def test_where_no_checkpoint_is_whole_nothing_is_deleted(tmp_path: Path) -> None:
    path = tmp_path / "last.json"
    for number in (1, 2):
        checkpoint.save(state(number), path, 2)
    for file in checkpoint.list_checkpoints(path):
        cut(file)
    is_whole, problems = checkpoint.use_newest_whole(path)
    assert (is_whole, len(problems)) == (False, 2)
    assert len(checkpoint.list_checkpoints(path)) == 2
    with pytest.raises(UserError, match=r"last\.json is not whole"):
        checkpoint.load_whole(path)


def damaged_at_random(file: Path, random: Random) -> str:
    """Damages a file in one of the ways in which disks and copies do. Returns how."""
    content, kind = bytearray(file.read_bytes()), random.choice(["flip", "cut", "zeros", "grow", "other", "gone"])
    place = random.randrange(len(content))
    if kind == "flip":
        content[place] ^= 1 << random.randrange(8)
    elif kind == "zeros":  # a page that was never written
        content[place : place + 4096] = bytes(len(content[place : place + 4096]))
    elif kind == "grow":
        content[place:place] = random.randbytes(random.randrange(1, 64))
    elif kind == "other":
        content[:] = random.randbytes(place)
    file.write_bytes(content[:place] if kind == "cut" else content)
    if kind == "gone":
        file.unlink()
    return f"{kind} at {place} of {file.name}"


@pytest.mark.slow
@pytest.mark.parametrize("cases", [100, exhaustive(int(os.environ.get("GNNKIT_DAMAGED", "400")))])
def test_no_damage_is_read_without_a_word(tmp_path: Path, cases: int) -> None:
    """Of one file or several. The older checkpoint counts, or the error names the file.

    GNNKIT_DAMAGED=10000 draws as many cases.
    """
    for number in (1, 2):
        checkpoint.save(state(number), tmp_path / "before/last.json", 2)
    outcomes: Counter[object] = Counter()
    for case in range(cases):
        random, folder = Random(case), tmp_path / "case"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tmp_path / "before", folder)
        files = random.sample(sorted(folder.iterdir()), random.choice([1, 1, 2, 3, 4]))
        how = [damaged_at_random(file, random) for file in files]
        try:
            loaded, _, problems = checkpoint.load_whole(folder / "last.json")
        except UserError as error:
            outcomes["refused" if "last" in str(error) else str(error)] += 1
            continue
        number = loaded["number"]
        assert torch.equal(loaded["x"], state(number)["x"]), how
        assert len(problems) == (number == 1 and (folder / "last.json").is_file()), how
        outcomes[number] += 1
    assert {*outcomes} == {"refused", 1, 2}


def copies_at_lines(folder: Path, copies: Path, save: Callable[[], None]) -> Iterator[Path]:
    """Saves, and yields a copy of the folder as a kill before any line would leave it.

    Buffers of the process are not in the copy, as they end with a process.
    """
    ours, before, number = {checkpoint.__file__, storage.__file__}, object(), 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal before, number
        if frame.f_code.co_filename not in ours:
            return None
        results = {path.name: path.lstat() for path in folder.iterdir()}
        if event == "line" and results != before:
            before, number = results, number + 1
            shutil.copytree(folder, copies / f"{number:04}")
        return trace

    sys.settrace(trace)
    try:
        save()
    finally:
        sys.settrace(None)
    yield from sorted(copies.iterdir())


@pytest.mark.slow
def test_a_save_that_is_killed_at_any_line_leaves_the_checkpoints_before_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "run/last.json"
    for number in (1, 2):
        checkpoint.save(state(number), path, 2)
    remaining = [
        numbers(copy / path.name)
        for copy in copies_at_lines(path.parent, tmp_path / "copies", lambda: checkpoint.save(state(3), path, 2))
    ]
    assert len(remaining) > 10
    assert all(found[0] in (2, 3) and 2 in found for found in remaining)
    assert (remaining[0], remaining[-1]) == ([2, 1], [3, 2])


def test_a_writer_that_was_given_up_changes_nothing(tmp_path: Path) -> None:
    """However far it has come, and whoever writes since."""
    path = tmp_path / "checkpoints/last.json"
    with checkpoint.writing(path) as early:
        for number in (1, 2):
            checkpoint.save(state(number), path, 2, early)
        (early / ".last.json.half").write_text("half")
        with checkpoint.writing(path) as late:
            assert not early.exists()
            checkpoint.save(state(3), path, 2, late)
            before = {file.name: file.read_bytes() for file in path.parent.iterdir() if file.is_file()}
            with pytest.raises(
                RuntimeError, match=r"last\.json has another writer: this start of the run was given up"
            ):
                checkpoint.save(state(4), path, 2, early)
            for change in (checkpoint._step_aside, checkpoint._forget_others):
                with pytest.raises(FileNotFoundError):
                    change(path, 1 + (change is checkpoint._step_aside), early)
            assert before == {file.name: file.read_bytes() for file in path.parent.iterdir() if file.is_file()}
    assert numbers(path) == [3, 2]
    assert len(list(path.parent.iterdir())) == 4


def test_a_writer_that_saves_nothing_leaves_no_folder(tmp_path: Path) -> None:
    with checkpoint.writing(tmp_path / "checkpoints/last.json") as writer:
        assert writer.is_dir()
    assert not list(tmp_path.iterdir())


def test_a_command_that_is_killed_while_it_leaves_out_a_damaged_checkpoint_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "last.json"
    for number in (1, 2, 3):
        checkpoint.save(state(number), path, 3)
    for file in checkpoint.list_checkpoints(path)[:2]:
        cut(file)

    def killed(self: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.use_newest_whole(path)
    assert checkpoint.load(path)["number"] == 1


class Pair(NamedTuple):
    first: int


def test_a_state_comes_back_as_it_was_and_other_values_are_refused(tmp_path: Path) -> None:
    run_keys = {"shape": torch.Size([2, 3]), "pair": (1, [None, "a", True, 0.5]), 7: {"x": torch.arange(3)}}
    checkpoint.save(run_keys, tmp_path / "last.json")
    actual = checkpoint.load(tmp_path / "last.json")
    assert actual[7].pop("x").tolist() == run_keys[7].pop("x").tolist()  # type: ignore[attr-defined]
    assert actual == run_keys
    for value, told in (
        ({"a": {1}}, "/a is a set"),
        ([Pair(1)], "/0 is a Pair"),
        ({"a": torch.zeros(1, dtype=torch.complex128)}, "checkpoints hold no tensors of torch.complex128: /a"),
    ):
        with pytest.raises(TypeError, match=told):
            checkpoint.save(value, tmp_path / "last.json")
    assert checkpoint.load(tmp_path / "last.json")["pair"] == (1, [None, "a", True, 0.5])


def test_a_run_folder_that_is_removed_is_not_blamed_on_another_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: None)  # as if removed at once
    with pytest.raises(FileNotFoundError, match=r"No such file or directory: '.*gone"):
        checkpoint.save(state(1), tmp_path / "gone/last.json")


def test_a_file_that_is_made_meanwhile_goes_with_the_folder_of_its_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, rmdir, late = tmp_path / "writer", Path.rmdir, iter([True])
    folder.mkdir()

    def filled(path: Path) -> None:
        if next(late, False):
            (path / "late").touch()
        rmdir(path)

    monkeypatch.setattr(Path, "rmdir", filled)
    checkpoint._take_away(folder)
    assert not folder.exists()
    folder.mkdir()
    monkeypatch.setattr(Path, "rmdir", refused)
    with pytest.raises(PermissionError):
        checkpoint._take_away(folder)
    assert folder.exists()


def refused(path: Path) -> None:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
