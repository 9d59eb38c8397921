"""Finished runs that all processes of a test session share.

A run is made where a test first asks for it: by the fixture `finished_run`, before the
test patches anything. The folders are read only. A test that changes one takes a copy.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import shutil
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.folders import digests_of
from tests.runs import BARE, within_process

EVERYTHING = ["predictions", "logits", "probabilities", "embeddings"]
DATA = ["dataset=synthetic", "dataset.num_nodes=60", "dataset.num_edges=200"]
COMMAND = ["strategy=vertex_centric", *DATA, "workers=2", "comm=threads", "trainer.checkpoint_every=1"]
PLAIN = ["report=false", "logger=csv"]  # of a run whose page nobody reads


def train_run(**keys: Any) -> Callable[[Path], object]:
    """Returns what trains on `small_graph()` with 64 bits, without a page.

    Args:
        **keys: As for `gnnkit.train`, in place of the usual ones. `change` maps the
            graph to the one to train on.
    """

    def make(folder: Path) -> None:
        import gnnkit
        from tests.jobs.test_train import small_graph

        usual: dict[str, Any] = {"strategy": "vertex_centric", "workers": 3, "threads": 1, "comm": "threads", **BARE}
        usual |= {"cache": False, "write": EVERYTHING}
        trainer = {"max_epochs": 4, "lr": 0.1, "precision": 64, **keys.get("trainer", {})}
        change = keys.get("change", lambda graph: graph)
        others = {key: value for key, value in keys.items() if key not in ("trainer", "change")}
        gnnkit.train(change(small_graph()), folder=folder, trainer=trainer, **{**usual, **others})

    return make


def run_command(*keys: str) -> Callable[[Path], object]:
    """Returns what runs the command `COMMAND` with further keys, in a new folder."""

    def make(folder: Path) -> None:
        from gnnkit.__main__ import main

        folder.mkdir()
        with contextlib.chdir(folder):
            code = main([*COMMAND, *keys, "output=run"])
        assert code == 0, f"the command ended with {code}"
        for path in [*(folder / "run").iterdir()]:
            path.rename(folder / path.name)
        (folder / "run").rmdir()

    return make


def _without_features(graph: Any) -> Any:
    return replace(graph, features=np.empty((graph.num_nodes, 0), np.float32))


def _with_numbers(graph: Any) -> Any:
    return replace(graph, labels=np.linspace(0, 1, graph.num_nodes))


_MONITORED = {"max_epochs": 6, "lr": 1.0, "monitor": "val_loss", "check_val_every_n_epoch": 1}
_INPUTS = {"change": _without_features, "trainer": _MONITORED, "write": ["logits"]}
RUNS: Mapping[str, Callable[[Path], object]] = {
    "gcn": train_run(),
    "sage": train_run(model="sage"),
    "gin": train_run(model="gin"),
    "gat": train_run(model={"name": "gat", "hidden": 4}),
    "gat 2d": train_run(model={"name": "gat", "hidden": 4}, partition="2d", workers=4),
    "gat sampled": train_run(
        model={"name": "gat", "hidden": 4}, strategy={"name": "individual_sample", "batch_size": 8}
    ),
    "three layers": train_run(model={"name": "gcn", "hidden": 6, "num_layers": 3}, workers=2),
    "learned": train_run(inputs="learned", **_INPUTS),
    "degree": train_run(inputs="degree", **_INPUTS),
    "links": train_run(
        task={"name": "link_prediction", "width": 4, "eval_negatives": 3}, write=["predictions"]
    ),
    "numbers": train_run(task="regression", change=_with_numbers, write=["predictions"]),
    "pagerank": train_run(model="pagerank", write=["predictions"], trainer={}),
    "command": run_command("trainer.max_epochs=1", *PLAIN),
    "command with page": run_command("trainer.max_epochs=1"),
    "command for a program": run_command("model=pagerank", *PLAIN),
    "command that partitions": run_command("job=partition"),
    "command with three epochs": run_command("trainer.max_epochs=3", *PLAIN),
    "command with six epochs": run_command("trainer.max_epochs=6", *PLAIN),
}  # fmt: skip


def graph_of(name: str) -> Any:
    """Returns the graph on which a run of `small_graph` was trained."""
    from tests.jobs.test_train import small_graph

    changes = {"learned": _without_features, "degree": _without_features, "numbers": _with_numbers}
    return changes.get(name, lambda graph: graph)(small_graph())


class Farm:
    """Gives the folders of finished runs: `farm(name)`.

    Args:
        folder: Of the runs, which all processes share.
        runs: The function that makes each run into a folder that is not there yet.
    """

    def __init__(self, folder: Path, runs: Mapping[str, Callable[[Path], object]] = RUNS) -> None:
        self.folder, self.runs = folder, runs

    def __call__(self, name: str) -> Path:
        """Returns the folder of the run. Raises the error of the run that failed."""
        run, error = self.folder / name / "run", self.folder / f"{name}.error"
        with _held(self.folder / f"{name}.lock"):
            if not run.exists() and not error.exists():
                self._make(name, error)
        if error.exists():
            pytest.fail(error.read_text(encoding="utf-8"), pytrace=False)
        return run

    def copy(self, name: str, folder: Path) -> Path:
        """Copies the run into a new folder, and returns this folder."""
        return Path(shutil.copytree(self(name), folder))

    def changed(self) -> list[str]:
        """Lists the files that are not as the runs left them."""
        return [
            f"{record.name}: {line}"
            for record in self.folder.glob("*.files")
            for line in {*record.read_text().splitlines()} ^ {*_lines(self.folder / record.stem / "run")}
        ]

    def _make(self, name: str, error: Path) -> None:
        """Makes a run beside its place. One that was broken off is made anew."""
        place = self.folder / name
        new_folder = self.folder / f"{name}.{os.getpid()}"
        log = io.StringIO()
        shutil.rmtree(new_folder, ignore_errors=True)
        new_folder.mkdir()
        try:
            with within_process(), contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
                self.runs[name](new_folder / "run")
        except Exception:
            text = f"the shared run {name!r} could not be made\n{log.getvalue()}{traceback.format_exc()}"
            error.write_text(text, encoding="utf-8")
            return
        new_folder.rename(place)
        (self.folder / f"{name}.files").write_text("\n".join(_lines(place / "run")))


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Farm]:
    """Gives the folder of a finished run by its name in `RUNS`."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if hasattr(request.config, "workerinput") else base) / "farm"
    with used(folder) as farm:
        yield farm


@contextlib.contextmanager
def used(folder: Path, runs: Mapping[str, Callable[[Path], object]] = RUNS) -> Iterator[Farm]:
    """Gives the farm in a folder, and removes the folder with the last user.

    Raises AssertionError where a test has changed a run.
    """
    with folder.with_name(f"{folder.name}.users").open("w") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        folder.mkdir(exist_ok=True)
        farm = Farm(folder, runs)
        try:
            yield farm
            assert not (lines := farm.changed()), f"a test has changed a shared run: take a copy\n{lines}"
        finally:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)


@contextlib.contextmanager
def _held(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _lines(run: Path) -> list[str]:
    return sorted(f"{digest} {path}" for path, digest in digests_of(run).items())
