"""`parts=P workers=R`: the same bits, however many processes hold the ranks.

`GNNKIT_EVERY=1` takes 8 parts in 1, 2, 3, 4 and 8 processes, and goes on from each of
these numbers with each, in every strategy, layout and synchronisation: 504 runs.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import json
import os
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest

import gnnkit
from gnnkit.__main__ import main
from gnnkit.config import compose
from gnnkit.config.settings import settle
from gnnkit.errors import UserError
from gnnkit.launch.launcher import RankError
from tests.cases import few, in_turn
from tests.forked import forked
from tests.jobs.test_train import small_graph
from tests.launch.outside import by_hand
from tests.runs import BARE

PARTS, EPOCHS = 5, 2
WAYS: dict[str, dict[str, Any]] = {
    "grid": {"strategy": "vertex_centric", "partition": {"name": "2d"}, "parts": 4},
    "attention": {"strategy": "vertex_centric", "model": "gat", "sync": "leader"},
    "late": {"strategy": "vertex_centric", "exchange": "quantized", "inputs": "learned"},
    "served": {"strategy": "preset_workload", "sync": {"name": "parameter_server", "servers": 2}},
    "averages": {"strategy": {"name": "preset_workload", "average": "parameters"}},
    "sampled": {"strategy": {"name": "individual_sample", "batch_size": 4, "topology": "partitioned"}},
    "joint": {"strategy": {"name": "joint_sample", "batch_size": 2}, "trainer": {"checkpoint_every_n_steps": 2}},
}


EVERY = "GNNKIT_EVERY" in os.environ
PROCESSES = (1, 2, 3, 4, 8) if EVERY else (1, 3)
SYNCS: dict[str, Any] = {"all_reduce": "all_reduce", "leader": "leader"}
SERVED: dict[str, Any] = {"served": {"name": "parameter_server", "servers": 1}}
LAYOUTS = {"vertex_centric": ("1d", "2d", "3d")}  # others cut by nodes
BATCHES = {"individual_sample": 4, "joint_sample": 9}
MATRIX = [
    (strategy, layout, sync)
    for strategy in ("vertex_centric", "individual_sample", "joint_sample", "preset_workload")
    for layout, sync in product(LAYOUTS.get(strategy, ("1d",)), SYNCS | (SERVED if strategy[0] in "ip" else {}))
]


def train(folder: Path, workers: int, **keys: Any) -> tuple[Any, bytes]:
    """Returns result and weights of a run whose ranks are in `workers` processes.

    One process is that of the test.
    """
    trainer = {"max_epochs": EPOCHS} | keys.pop("trainer", {})
    run_keys = {"parts": PARTS, "threads": 1, "workers": workers, **BARE, **keys}
    run_keys |= {"launcher": "inline"} if workers == 1 else {}
    result = gnnkit.train(small_graph(), folder=folder, trainer=trainer, **run_keys)
    return result, (folder / "model.safetensors").read_bytes()


def command(argv: list[str]) -> None:
    assert main(argv) == 0


def figures(result: Any) -> dict[str, Any]:
    names = (
        "train_loss",
        "val_loss",
        "test_loss",
        "test_accuracy",
        "words_gathered",
        "words_fetched",
        "drift",
        "exact",
    )
    return {name: result[name] for name in names}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], tuple[Any, bytes]]:
    """Trains in a way once for each number of processes."""
    return functools.cache(lambda way, workers: train(tmp_path_factory.mktemp(way) / "run", workers, **WAYS[way]))


@pytest.mark.slow
@few(
    ("way", "workers"),
    [*in_turn(WAYS, (3, PARTS)), ("sampled", 3)],
    default=[("averages", 3)],
)
def test_weights_and_figures_do_not_depend_on_the_number_of_processes(way: str, workers: int, run: Any) -> None:
    (expected, all_weights), (result, weights) = run(way, 1), run(way, workers)
    assert weights == all_weights
    assert figures(result) == figures(expected)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("strategy", "layout", "sync"), MATRIX if EVERY else [("vertex_centric", "3d", "leader")])
def test_runs_go_on_from_each_number_of_processes_with_each_other(
    strategy: str, layout: str, sync: str, tmp_path: Path
) -> None:
    batches = {"batch_size": BATCHES[strategy]} if strategy in BATCHES else {}
    keys = {"strategy": {"name": strategy, **batches}, "partition": layout, "sync": (SYNCS | SERVED)[sync], "parts": 8}
    expected, weights = train(tmp_path / "whole", 1, **keys, trainer={"max_epochs": 4})
    for first in PROCESSES:
        half = tmp_path / f"{first}"
        train(half, first, **keys, trainer={"max_epochs": 2})
        for then in PROCESSES:
            place = shutil.copytree(half, tmp_path / f"{first}-{then}")
            result, new_weights = train(place, then, **keys, trainer={"max_epochs": 4}, on_exists="resume")
            assert new_weights == weights, (first, then)
            assert result["epochs"] == 2
            assert result["test_loss"] == expected["test_loss"]
            shutil.rmtree(place)
    for workers in PROCESSES[1:]:
        result, new_weights = train(tmp_path / f"whole-{workers}", workers, **keys, trainer={"max_epochs": 4})
        assert new_weights == weights, workers
        assert figures(result) == figures(expected)


@pytest.mark.slow
@pytest.mark.exhaustive
@few("apart", [3, PARTS], default=[3])
def test_rows_between_ranks_of_one_process_are_no_words_between_processes(apart: int, run: Any) -> None:
    words = {
        workers: sum(run("attention", workers)[0]["per_rank"]["words_between_processes"]) for workers in (1, 3, apart)
    }
    total = int(np.load(run("attention", 1)[0].folder / "words_between.npy").sum())
    assert words[1] == 0 < words[3] < total
    assert (words[apart] == total) == (apart == PARTS)


@pytest.mark.slow
@pytest.mark.exhaustive
@few(("first", "then"), [(3, 1), (1, 3), (5, 2)], default=[(3, 1)])
def test_a_run_goes_on_with_another_number_of_processes(first: int, then: int, run: Any, tmp_path: Path) -> None:
    """From a checkpoint in the middle of an epoch."""
    way, (_, expected) = WAYS["joint"], run("joint", 1)

    class Stop(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
            if trainer.global_step == 3:
                raise KeyError("mine")

    with pytest.raises((RankError, KeyError), match="mine"):
        train(tmp_path / "run", first, **way, callbacks=[Stop()])
    result, weights = train(tmp_path / "run", then, **way, on_exists="resume")
    assert weights == expected
    assert result["epochs"] == EPOCHS


@pytest.mark.slow
@pytest.mark.exhaustive
@few(("workers", "more"), [(3, []), (2, ["parts=4"])], default=[(2, ["parts=4"])])
def test_a_store_is_trained_by_fewer_workers_than_it_has_parts(workers: int, more: list[str], tmp_path: Path) -> None:
    store = tmp_path / "store"
    cut = ["job=partition", "strategy=vertex_centric", "partition=2d", "workers=4", "dataset=synthetic"]
    command([*cut, "dataset.num_nodes=200", f"output={store}"])
    run = ["strategy=vertex_centric", "dataset=store", f"dataset.root={store}", "trainer.max_epochs=2", "threads=1"]
    run += ["report=false", "logger=none"]
    alone, folder = tmp_path / "alone", tmp_path / "run"
    command([*run, "launcher=inline", "workers=1", f"output={alone}"])
    command([*run, *more, f"workers={workers}", f"output={folder}"])
    assert [json.loads((each / "result.json").read_text())["world_size"] for each in (alone, folder)] == [4, 4]
    assert (folder / "model.safetensors").read_bytes() == (alone / "model.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.exhaustive
@few("size", [1, 3], default=[3])
def test_ranks_are_threads_of_processes_that_were_started_from_outside(size: int, tmp_path: Path) -> None:
    argv = ["strategy=vertex_centric", "dataset=synthetic", "dataset.num_nodes=200", "trainer.max_epochs=2", "parts=4"]
    argv += ["threads=1", "report=false", "logger=none"]
    command([*argv, "launcher=inline", "workers=1", f"output={tmp_path / 'here'}"])
    expected = (tmp_path / "here/model.safetensors").read_bytes()

    def rank(variables: dict[str, str], output: Path) -> None:
        os.environ.update(variables)
        raise SystemExit(contextvars.Context().run(main, [*argv, f"output={output}"]))

    output, folders = tmp_path / "run", [tmp_path / f"rank{number}" for number in range(size)]
    with contextlib.ExitStack() as stack:
        for folder in folders:
            folder.mkdir()
        ranks = [
            stack.enter_context(forked(functools.partial(rank, variables, output), folder))
            for variables, folder in zip(by_hand(size), folders, strict=True)
        ]
        ended = [each.ended() for each in ranks]
    assert [code for code, _ in ended] == [0] * size, ended
    assert (output / "model.safetensors").read_bytes() == expected
    assert not (output / "prepared").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            ["comm=gloo"],
            "parts=4: comm=gloo runs one rank per process; use comm=threads, or leave parts out",
        ),
        (["launcher=threads"], "launcher=threads runs all ranks in one process, but workers=2: leave launcher out"),
        (["workers=5"], "workers=5 must be auto or a whole number, of processes that hold parts, from 1 to 4"),
    ],
)
def test_what_does_not_go_with_parts_is_refused(keys: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        settle(compose(["strategy=vertex_centric", "parts=4", "workers=2", *keys])).create_launcher()
