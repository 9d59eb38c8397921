"""A copy of the run folder at a URL, here in fsspec's own memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from gnnkit_upload import ObjectStoreCopy

import gnnkit
from gnnkit import plugins
from gnnkit.__main__ import main
from gnnkit.errors import UserError
from gnnkit.jobs.folder import copy_checkpoints, copy_to
from gnnkit.training import checkpoint

URL = "memory://bucket/run"
KEYS = ["strategy=vertex_centric", "dataset=synthetic", "dataset.num_nodes=60", "workers=1", "report=false"]
QUICK = ["trainer.max_epochs=1", "logger=none", "cache=false"]


@pytest.fixture
def store() -> Iterator[Any]:
    """The files in memory, of which there are none."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()


def names(system: Any) -> set[str]:
    return {path.removeprefix("/bucket/run/") for path in system.find("/bucket")}


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_copy_has_the_files_of_the_run_and_the_url_of_a_run_is_refused(
    tmp_path: Path, store: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main([*KEYS, *QUICK, f"output={run}", f"upload={URL}"]) == 0
    assert names(store) == files(run)
    assert "result.json" in files(run)
    assert all(store.cat(f"/bucket/run/{name}") == (run / name).read_bytes() for name in files(run))
    capsys.readouterr()
    again = tmp_path / "again"
    assert main([*KEYS, *QUICK, f"output={again}", f"upload={URL}"]) == 2
    assert f"upload={URL} contains a run: choose another folder" in capsys.readouterr().err
    assert not again.exists()
    predicted = ["job=predict", f"checkpoint={run}", f"output={again}", f"upload={URL}", "on_exists=replace"]
    assert main([*KEYS, "cache=false", *predicted]) == 0
    assert names(store) == files(again)
    assert "model.safetensors" not in names(store)


@pytest.mark.slow
def test_a_failed_copy_is_one_line_and_the_run_stays(
    tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_file = type(store).put_file

    def put(self: Any, path: str, target: str) -> None:
        if "safetensors" in target:
            raise ConnectionError("the line is\ncut")
        put_file(self, path, target)

    monkeypatch.setattr(type(store), "put_file", put)
    run = tmp_path / "run"
    assert main([*KEYS, *QUICK, f"output={run}", f"upload={URL}"]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert line == f"gnnkit: error: upload={URL}: the line is cut: {run} has all files, but the copy is incomplete"
    assert gnnkit.load(run) is not None
    assert (run / "result.json").is_file()
    assert "result.json" not in names(store)
    monkeypatch.undo()
    copy_to(URL).put_folder(run)  # a copy that is not whole is no run
    assert names(store) == files(run)


def test_the_key_finds_the_package() -> None:
    assert plugins.load("upload", "fsspec") is ObjectStoreCopy


def test_without_the_package_the_key_is_refused_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("gnnkit.jobs.folder.names", lambda kind: [])
    keys = [*KEYS, *QUICK, f"output={tmp_path / 'run'}", "upload=s3://me:secret@bucket/run"]
    assert main(keys) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    missing = "the package gnnkit-upload is not installed: pip install gnnkit-upload"
    assert line == f"gnnkit: error: upload=s3://***@bucket/run: {missing}"
    assert not (tmp_path / "run").exists()


def test_files_of_others_are_never_written_over_or_removed(tmp_path: Path, store: Any) -> None:
    store.pipe("/bucket/run/notes.txt", b"mine")
    for on_exists in ("refuse", "replace"):
        with pytest.raises(UserError, match=f"upload={URL} contains files that do not belong to a run"):
            copy_to(URL).check(on_exists)
    for name in ("config.yaml", "result.json", "figures/loss.png", "parts/1/features.npy", "deep/er/model.safetensors"):
        store.pipe(f"/bucket/run/{name}", b"old")
    (tmp_path / "config.yaml").write_text("new")
    (tmp_path / ".lock").touch()
    copy_to(URL).put_folder(tmp_path)
    assert names(store) == {"notes.txt", "config.yaml", "deep/er/model.safetensors"}
    assert store.cat("/bucket/run/config.yaml") == b"new"


def test_what_tells_a_run_comes_first_and_what_tells_a_whole_copy_last(
    tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "config.yaml", "result.json", "store.json", "z"):
        (tmp_path / name).touch()
    put = []
    monkeypatch.setattr(type(store), "put_file", lambda _, path, target: put.append(Path(target).name))
    copy_to(URL).put_folder(tmp_path)
    assert put == ["config.yaml", "a", "z", "store.json", "result.json"]


def checkpoint_of(folder: Path, step: int) -> Path:
    """Writes a checkpoint, and what makes the folder that of a run."""
    checkpoint.save({"global_step": step, "weight": torch.full((3,), step)}, folder / "checkpoints/last.json")
    (folder / "config.yaml").touch()
    return folder


def test_the_newer_checkpoint_counts_and_an_older_one_is_no_silent_choice(tmp_path: Path, store: Any) -> None:
    upload, old = copy_to(URL), checkpoint_of(tmp_path / "old", 3)
    upload.put_checkpoints(old, None)
    upload.put_checkpoints(checkpoint_of(tmp_path / "new", 5), None)
    assert len(names(store)) == 3, "files of the older checkpoint are left"
    with pytest.raises(UserError, match=f"^upload={URL} has a checkpoint of step 5, but .*old an older one of step 3"):
        upload.fetch_checkpoint(old)
    newest = checkpoint_of(tmp_path / "newest", 7)
    upload.fetch_checkpoint(newest)
    assert checkpoint.whole_numbers(newest / "checkpoints/last.json")["global_step"] == 7
    with pytest.raises(UserError, match=r"has a checkpoint, but .*empty has none, and externally started ranks"):
        upload.fetch_checkpoint(tmp_path / "empty", alone=False)
    upload.fetch_checkpoint(tmp_path / "empty")
    assert torch.equal(checkpoint.load(tmp_path / "empty/checkpoints/last.json")["weight"], torch.full((3,), 5))


def test_no_file_is_brought_to_another_place(tmp_path: Path, store: Any) -> None:
    upload = copy_to(URL)
    upload.put_checkpoints(checkpoint_of(tmp_path / "run", 5), None)
    store.store["/bucket/run/checkpoints/last/../../../stolen"] = store.store["/bucket/run/config.yaml"]
    assert "checkpoints/last/../../../stolen" in upload._names()
    upload.fetch_checkpoint(tmp_path / "deep/er/folder")
    assert not list(tmp_path.rglob("stolen"))
    assert (tmp_path / "deep/er/folder/checkpoints/last.json").exists()


def test_a_writer_that_was_given_up_replaces_no_checkpoint(tmp_path: Path, store: Any) -> None:
    upload = copy_to(URL)
    upload.put_checkpoints(checkpoint_of(tmp_path / "new", 5), None)
    before = {name: store.cat(f"/bucket/run/{name}") for name in names(store)}
    upload.put_checkpoints(checkpoint_of(tmp_path / "old", 3), tmp_path / "gone")
    assert {name: store.cat(f"/bucket/run/{name}") for name in names(store)} == before


def test_a_checkpoint_that_cannot_be_copied_is_a_line_and_the_run_goes_on(
    tmp_path: Path, store: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def put(self: Any, path: str, target: str) -> None:
        raise ConnectionError("the line is\ncut")

    monkeypatch.setattr(type(store), "put_file", put)
    copy_checkpoints(URL, checkpoint_of(tmp_path / "run", 3), None)
    told = f"a checkpoint was not copied, the run continues: upload={URL}: the line is cut\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("nowhere://bucket/run", "Protocol not known: nowhere"),
        ("ftp://me:secret@host:1/run", r"upload=ftp://\*\*\*@host:1/run: "),
    ],
)
def test_a_place_that_does_not_answer_is_named_without_secrets(url: str, told: str) -> None:
    with pytest.raises(UserError, match=told) as caught:
        copy_to(url).check("refuse")
    assert "secret" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("keys", [["job=compare", *KEYS], ["job=report", "runs=x"]], ids=lambda keys: keys[0])
def test_jobs_without_a_run_folder_refuse_the_key(keys: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*keys, f"upload={URL}"]) == 2
    assert (
        f"upload={URL} is read by job=explain|hubs|import|partition|plan|predict|test|train|verify only: leave the key out"
        in capsys.readouterr().err
    )
