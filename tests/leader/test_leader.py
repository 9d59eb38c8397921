"""The leader watches: states of workers, stragglers, and what a terminal shows."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gnnkit_report.terminal import Display, worker_table
from rich.console import Console
from torch import Tensor

import gnnkit
from gnnkit.comm import PeerLost
from gnnkit.comm.threads import Threads
from gnnkit.engine import Adjacency
from gnnkit.graph import Graph, Split
from gnnkit.leader.site import StateChannel
from gnnkit.leader.watch import Straggler, Stragglers, Watch, WorkerState, _is_listed
from gnnkit.model.gcn import GCN
from gnnkit.sampler import Loader, NeighborSampler
from tests.cases import exhaustive
from tests.jobs.test_train import small_graph
from tests.runs import BARE
from tests.waiting import GUARD

SLOW, FIRST_SLOW, SECONDS = 1, 6, 0.3  # rank, step, seconds it sleeps in each


class Sleeps(GCN):
    """One rank sleeps from some step on, longer than the rest of a step takes.

    On a busy machine all ranks are slow. The sleep then grows with the steps.
    """

    steps, awake = 0, 0.0

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        if self.training:
            self.steps += 1
            if int(os.environ["RANK"]) == SLOW and self.steps >= FIRST_SLOW:
                time.sleep(max(SECONDS, 10 * (time.perf_counter() - self.awake)))
            self.awake = time.perf_counter()
        return super().forward(x, adjacencies)


def train(folder: Path, model: Any = GCN, **keys: Any) -> dict[str, Any]:
    trainer = {"max_epochs": 16, "precision": 64, "checkpoint": False, **keys.pop("trainer", {})}
    run_keys = {"workers": 3, "threads": 1, "comm": "gloo", "trainer": trainer, **BARE, **keys}
    return gnnkit.train(small_graph(), strategy="vertex_centric", model=model, folder=folder, **run_keys)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.alone
@pytest.mark.parametrize("sync", ["all_reduce", exhaustive("leader")])
def test_a_slow_rank_is_named_within_ten_steps_and_changes_nothing(
    tmp_path: Path, sync: str, capfd: pytest.CaptureFixture[str]
) -> None:
    result = train(tmp_path / "slow", Sleeps, sync=sync)
    output = re.findall(r"step (\d+): rank (\d) is slow in compute, .* times the others'", capfd.readouterr().err)
    lines = [json.loads(line) for line in (tmp_path / "slow/workers.jsonl").read_text().splitlines()]
    compute, queue_seconds = (  # [num_steps, num_workers]
        np.array([line[f"seconds_{name}"] for line in lines]).reshape(-1, 3) for name in ("compute", "queued")
    )
    assert (queue_seconds <= compute).all()
    reports = [(slow.step + 1, slow.rank) for slow in find_stragglers(compute, queue_seconds)]
    assert [(int(step), int(rank)) for step, rank in output] == reports
    assert any(rank == SLOW and step <= FIRST_SLOW + 10 for step, rank in reports)
    assert result["stragglers"][f"rank {SLOW}"] >= 2  # rounded, and more than 2
    assert result["train_loss"] == train(tmp_path / "even", sync=sync)["train_loss"]
    check_states(lines)


def check_states(lines: Sequence[dict[str, Any]]) -> None:
    """They say where the time went: the slow rank computes, the others wait for it."""
    late = [line for line in lines if line["step"] > FIRST_SLOW]
    slow, waiting = ([line for line in late if (line["rank"] == SLOW) == own] for own in (True, False))
    assert all(line["seconds_compute"] >= SECONDS for line in slow)
    assert np.median([line["phase"] == "compute" for line in slow]) == 1
    assert np.median([line["phase"] != "compute" for line in waiting]) == 1


def find_stragglers(steps: np.ndarray, queued: np.ndarray | float = 0.0) -> list[Straggler]:
    """`steps` [num_steps, num_workers] seconds, and those without a processor."""
    watch = Stragglers(steps.shape[1])
    rows = zip(steps, np.broadcast_to(queued, steps.shape), strict=True)
    return [
        straggler
        for step, (row, waits) in enumerate(rows)
        for straggler in watch.observe(step, dict(enumerate(row.tolist())), dict(enumerate(waits.tolist())))
    ]


def test_noise_and_single_slow_steps_are_no_stragglers() -> None:
    rng = np.random.default_rng(0)
    steps = 0.02 * rng.lognormal(0, 0.3, (500, 4))
    steps[::5] *= rng.choice([1, 20], (100, 4))
    assert find_stragglers(steps) == []
    assert find_stragglers(np.full((50, 1), 1.0)) == []
    assert find_stragglers(np.tile([0.0001, 0.004], (50, 1))) == [], "too short to tell from noise"


def test_a_slow_worker_is_named_once_until_it_recovers() -> None:
    steps = np.full((90, 4), 0.02)
    steps[20:40, 2] = steps[60:80, 2] = 0.1
    assert [(s.rank, s.step, round(s.factor)) for s in find_stragglers(steps)] == [(2, 23, 5), (2, 63, 5)]


def test_two_slow_workers_of_five_are_both_named() -> None:
    steps = np.full((30, 5), 0.02)
    steps[:, [0, 3]] = 0.09
    assert [(s.rank, s.step) for s in find_stragglers(steps)] == [(0, 6), (3, 6)]


@pytest.mark.slow
def test_waits_for_a_processor_that_move_between_workers_are_no_stragglers() -> None:
    rng = np.random.default_rng(0)
    waits = np.repeat(rng.choice([0, 0.1], (80, 4), p=[0.9, 0.1]), 5, axis=0)  # for five steps in a row
    assert find_stragglers(0.02 + waits, waits) == []
    assert find_stragglers(0.02 + waits), "without knowing of the waits"


def test_a_worker_that_waits_for_a_processor_all_the_time_is_named() -> None:
    waits = np.tile([0.0, 0.08, 0.0], (80, 1))
    actual = find_stragglers(0.02 + waits, waits)
    assert [(slow.rank, slow.step) for slow in actual] == [(1, 49)]
    assert str(actual[0]).endswith("(in 3/4 of 50 steps); the others wait for it; other processes use its processor")


STATE = WorkerState(
    rank=0,
    epoch=6,
    step=7,
    loss=0.5,
    total=10,
    rows=10,
    synchronised=True,
    gradient_norm=1.25,
    seconds_wait=0.002,
    seconds_compute=0.003,
    seconds_exchange=0.02,
    seconds_sync=0.001,
    edges=5678,
    rows_per_second=1234.0,
    memory=2**30,
)


def test_a_step_counts_without_the_workers_that_are_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values: list[float] = []
    watch = Watch(
        3, tmp_path, 1, quiet=True, every=1, log=lambda scalars, step: values.append(scalars.get("train_loss", 0))
    )

    def take(rank: int, step: int) -> None:
        watch.take(replace(STATE, rank=rank, step=step, loss=1.0, rows=rank + 1, total=6))

    for rank in range(3):
        take(rank, 1)
    take(2, 2)  # the worker that is lost was ahead of the others
    for rank, step in itertools.product(range(2), (2, 3)):
        take(rank, step)
    assert values == [3, 3]
    watch.lose(2)
    watch.lose(2)
    assert capsys.readouterr().err == "after step 2: rank 2 is lost, the run continues\n"
    assert values == [3, 3, pytest.approx(2 * 6 / 3)], "the loss is the mean over the rows that are there"
    assert [state.rank for state in watch.states] == [0, 1]
    take(0, 4)
    take(1, 4)
    assert len(values) == 4
    watch.finish()
    assert watch.work_max_over_mean == [1.0]


@pytest.mark.parametrize("goes_on", [True, False])
def test_the_leader_waits_for_no_end_of_a_lost_worker(tmp_path: Path, goes_on: bool) -> None:
    def work(comm: Threads) -> int:
        watch = None if comm.rank else Watch(3, tmp_path, 1, quiet=True, every=1, log=lambda *_: None)
        with comm.mailbox() as mailbox:
            channel = StateChannel(mailbox, comm.rank, 3, watch, goes_on=goes_on)
            if comm.rank == 2:
                return 0
            channel.post(replace(STATE, rank=comm.rank, step=1))
            if comm.rank or goes_on:
                channel.finish(GUARD)
            else:
                with pytest.raises(PeerLost, match="rank 2"):
                    channel.finish(GUARD)
            mailbox.put(1 - comm.rank, "done")
            mailbox.take("done", src=1 - comm.rank, timeout=GUARD)
        return len(watch.states) if watch else 0

    assert Threads.run(work, 3)[0] == (2 if goes_on else 0)


def test_the_table_holds_every_workers_state() -> None:
    text = io.StringIO()
    Console(file=text, width=120).print(worker_table([STATE, replace(STATE, rank=2)]))
    rows = [line.split() for line in text.getvalue().splitlines()[2:]]
    assert rows == [
        [r, "7", "exchange", "0.5000", "1.25", "5.68k", "1.23k", "2.0", "3.0", "20.0", "1.0", "1024"] for r in "02"
    ]


def test_the_table_of_workers_fits_a_terminal_of_80_columns() -> None:
    text = io.StringIO()
    slow = replace(STATE, rank=15, step=9999, gradient_norm=0.000123, seconds_exchange=1.2345, edges=12_345_678)
    Console(file=text, width=80).print(worker_table([slow]))
    head, units, row = text.getvalue().splitlines()
    assert "\N{HORIZONTAL ELLIPSIS}" not in text.getvalue()
    assert head.split() == ["longest", "gradient", "rows", "wait", "compute", "exchange", "sync"]
    assert units.split() == ["rank", "step", "in", "loss", "norm", "edges", "/s", "ms", "ms", "ms", "ms", "MiB"]
    assert row.split() == [
        "15",
        "9999",
        "exchange",
        "0.5000",
        "0.000123",
        "12.3M",
        "1.23k",
        "2.0",
        "3.0",
        "1234.5",
        "1.0",
        "1024",
    ]


@pytest.mark.slow
def test_a_terminal_shows_workers_live_and_a_pipe_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    screen = tmp_path / "screen"

    class OnScreen(Display):
        def __init__(self, watch: Any) -> None:
            super().__init__(watch, Console(file=screen.open("w"), force_terminal=True, width=120))

    monkeypatch.setattr("gnnkit_report.terminal.Display", OnScreen)
    train(tmp_path / "terminal", comm="threads", trainer={"progress_bar": True, "max_epochs": 20})
    picture = screen.read_text()
    for expected in ("20/20", "train_loss", "gradient", "exchange", "seeds/s", "edges/s", "bytes/s"):
        assert expected in picture
    assert "\x1b[?25h" in picture[-200:], "the cursor is back"
    screen.unlink()
    train(tmp_path / "pipe", comm="threads", trainer={"progress_bar": "auto", "max_epochs": 2})
    assert not screen.exists()
    assert "\x1b" not in capfd.readouterr().out


WORKERS, EPOCHS = 3, 3


@cache
def skewed_graph() -> Graph:
    """Few nodes have most in-edges: the first ranks', if ids are cut into ranges."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 120, 1500), (120 * rng.random(1500) ** 4).astype(np.int64)
    keys = {"labels": rng.integers(0, 3, 120), "split": 1 + (rng.random(120) < 0.2).astype(np.int8)}
    return Graph.from_edges(src, dst, 120, features=rng.standard_normal((120, 5)), **keys)


def loader(batching: str, rank: int) -> Loader:
    graph = skewed_graph()
    sampler, seeds = NeighborSampler([20, 5]), graph.split == Split.TRAIN
    return Loader(graph, sampler, seeds, 6, rank=rank, world_size=WORKERS, batching=batching, threads=1)


def drawn_edges(batching: str, epoch: int) -> list[int]:
    """Edges in the blocks of each rank."""
    edges = []
    for rank in range(WORKERS):
        batches = loader(batching, rank)
        batches.set_epoch(epoch)
        edges.append(sum(len(block.indices) for batch in batches for block in batch.blocks))
    return edges


SAMPLED = ("strategy.batch_size=6", "sampler.fanouts=[20,5]")


def train_skewed(folder: Path, strategy: str, *overrides: str, **trainer: Any) -> dict[str, Any]:
    trainer = {"max_epochs": EPOCHS, "precision": 64, "checkpoint": False, **trainer}
    keys = {
        "workers": WORKERS,
        "threads": 1,
        "comm": "threads",
        "model": "sage",
        "trainer": trainer,
        "report": False,
        "logger": "csv",
    }
    return gnnkit.train(skewed_graph(), strategy=strategy, overrides=overrides, folder=folder, **keys)


def check_work(result: dict[str, Any], folder: Path, edges: np.ndarray) -> None:
    """The leader reports max/mean of `edges` [num_epochs, num_ranks]."""
    reference = edges.max(1) / edges.mean(1)
    assert reference.min() > 1, "it is uneven"
    assert result["balance"]["work_mean"] == pytest.approx(reference.mean())
    assert result["balance"]["work_worst"] == pytest.approx(reference.max())
    with (folder / "csv/metrics.csv").open() as file:
        logged = [float(row["work_max_over_mean"] or 0) for row in csv.DictReader(file)]
    assert [value for value in logged if value] == pytest.approx(reference, rel=1e-6)
    actual = np.zeros_like(edges)
    for line in map(json.loads, (folder / "workers.jsonl").read_text().splitlines()):
        actual[line["epoch"] - EPOCHS + len(edges), line["rank"]] += line["edges"]
    assert np.array_equal(actual, edges)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_work_of_sampled_batches_is_that_of_the_edges_drawn(tmp_path: Path) -> None:
    worst = {}
    for batching in ("plain", "balanced"):
        overrides = ("individual_sample", f"strategy.options.batching={batching}", *SAMPLED)
        result = train_skewed(tmp_path / batching, *overrides)
        check_work(result, tmp_path / batching, np.array([drawn_edges(batching, epoch) for epoch in range(EPOCHS)]))
        worst[batching] = result["balance"]["work_worst"]
    assert worst["balanced"] - 1 < (worst["plain"] - 1) / 2


@pytest.mark.slow
@pytest.mark.parametrize("local_iterations", [exhaustive(1), 2])
def test_the_work_of_vertex_centric_is_the_shards_edges_after_a_resume_too(
    tmp_path: Path, local_iterations: int
) -> None:
    overrides = ("vertex_centric", f"strategy.local_iterations={local_iterations}")
    train_skewed(tmp_path / "first", *overrides, max_epochs=EPOCHS - 2, checkpoint=True)
    result = train_skewed(tmp_path / "rest", *overrides, resume=str(tmp_path / "first/checkpoints/last.json"))
    edges = np.diff(skewed_graph().csc.indptr[[0, 40, 80, 120]])  # partition=contiguous; sage has two layers
    check_work(result, tmp_path / "rest", np.array([2 * edges] * 2))
    assert result["balance"]["work_worst"] == pytest.approx(result["balance"]["edges"])


def test_the_record_of_steps_grows_with_the_logarithm_of_their_number() -> None:
    listing = [step for step in range(1, 100_001) if _is_listed(step)]
    assert listing[:1023] == list(range(1, 1024))
    assert len(listing) < 1023 + 512 * 7
    assert all(after - before <= before / 512 for before, after in itertools.pairwise(listing[1023:]))
