"""The leader's plan: why this partition, who exchanges what with whom."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gnnkit
from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.config import compose
from gnnkit.config.settings import Choice, settle
from gnnkit.engine import Engine
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.partition.base import Grid, Partition
from gnnkit.partition.quality import Quality, measure
from gnnkit.partition.shard import Shard, cut_all
from gnnkit.prepare import cut, steps
from gnnkit.task.regression import Regression
from tests.cases import few
from tests.jobs.test_train import small_graph
from tests.runs import BARE

WIDTH = 6


def received(shards: list[Shard], comm: Communicator) -> tuple[dict[int, dict[str, int]], dict[int, int]]:
    """By peer: words received in one aggregation, forward, and messages sent."""
    engine = Engine(shards[comm.rank], comm, torch.float64)
    engine.sum(torch.ones(len(shards[comm.rank].owned), WIDTH, dtype=torch.float64), 0)
    words: dict[int, dict[str, int]] = {}
    messages: dict[int, int] = {}
    for (_, step, peer), number in engine.tally.words.items():
        words.setdefault(peer, {})[step] = number
    for (_, _, peer), number in engine.tally.messages.items():
        messages[peer] = messages.get(peer, 0) + number
    return words, messages


def expected_words(pair: dict[str, int], columns: list[int]) -> dict[str, int]:
    mine, theirs = columns[pair["rank"] % len(columns)], columns[pair["peer"] % len(columns)]
    words = {
        "gather": pair["gather_rows"] * mine,
        "reduce": pair["reduce_rows"] * mine,
        "slice": pair["slice_rows"] * mine + pair["unslice_rows"] * theirs,
    }
    return {step: number for step, number in words.items() if number}


@pytest.mark.parametrize("shape", [(4, 1, 1), (2, 2, 1), (1, 3, 1), (2, 2, 2), (1, 1, 4), (3, 1, 2)], ids=str)
def test_the_table_of_pairs_is_what_ranks_exchange(shape: tuple[int, int, int]) -> None:
    graph, grid = small_graph(), Grid(*shape)
    owner = np.random.default_rng(1).integers(0, grid.world_size, graph.num_nodes).astype(np.int32)
    partition = Partition(owner, None, grid)
    pairs = measure(graph, partition).to_dict()["peers"]
    results = Threads.run(functools.partial(received, list(cut_all(graph, partition))), grid.world_size)
    columns = [len(part) for part in np.array_split(np.arange(WIDTH), grid.slices)]
    expected = {(pair["rank"], pair["peer"]): expected_words(pair, columns) for pair in pairs}
    assert {(rank, peer): w for rank, (words, _) in enumerate(results) for peer, w in words.items()} == expected
    sent = {(peer, rank): count for rank, (_, messages) in enumerate(results) for peer, count in messages.items()}
    assert sent == {(pair["rank"], pair["peer"]): pair["messages"] for pair in pairs}


def train(folder: Path, graph: Graph, **keys: Any) -> dict[str, Any]:
    trainer = {"max_epochs": 1, "checkpoint": False}
    chosen = {"workers": 6, "threads": 1, "comm": "threads", "trainer": trainer, **BARE, **keys}
    return gnnkit.train(graph, strategy="vertex_centric", folder=folder, **chosen)


def ring(num_nodes: int = 60) -> Graph:
    nodes = np.arange(num_nodes)
    features, labels = np.eye(3)[nodes % 3], nodes % 3
    return Graph.from_edges(
        nodes, (nodes + 1) % num_nodes, num_nodes, features=features, labels=labels, split=1 + nodes % 3
    )


@pytest.mark.slow
def test_on_a_ring_every_worker_reads_one_row_of_the_one_before_it(tmp_path: Path) -> None:
    result = train(tmp_path / "run", ring(), partition="1d")
    coordination = json.loads((tmp_path / "run/coordination.json").read_text())
    nothing = {"reduce_rows": 0, "slice_rows": 0, "unslice_rows": 0, "messages": 1}
    assert coordination["peers"] == [
        {"rank": rank, "peer": (rank - 1) % 6, "gather_rows": 1, **nothing} for rank in range(6)
    ]
    assert [region["edges"] for region in coordination["regions"]] == [10] * 6
    decision = coordination["decision"]
    assert decision["why"] == result["why"]
    assert decision["why"] == (
        "partition.grid=1d: the busiest rank receives 1.0 words per feature column and aggregation; job=plan compares "
        "other layouts"
    )
    assert decision["layouts"].keys() == {"chosen"}
    assert decision["layouts"]["chosen"]["grid"] == [6, 1, 1]


@pytest.mark.slow
def test_a_run_measures_its_own_layout_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grids: list[Grid] = []

    def noted(graph: Graph, partition: Partition) -> Quality:
        grids.append(partition.grid)
        return measure(graph, partition)

    monkeypatch.setattr(cut, "measure", noted)
    train(tmp_path / "run", ring(), partition="2d")
    assert grids == [Grid(3, 2, 1)]


@pytest.mark.slow
@few("name, told", [("contiguous", True), ("hash", False)], default=[("contiguous", True)])
def test_training_nodes_of_few_workers_are_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, told: bool
) -> None:
    graph = small_graph(300)
    split = np.where(np.arange(300) < 60, 1, 2).astype(np.int8)
    train(tmp_path / "run", replace(graph, split=split), partition=name, workers=2)
    assert ("; partition=hash divides training nodes evenly" in capfd.readouterr().out) == told


class Degrees(Regression):
    """A task that makes its labels and its split."""

    def read(self, graph: Graph) -> Graph:
        degrees = np.diff(graph.csc.indptr).astype(np.float32)
        return replace(graph, labels=degrees, split=(np.arange(graph.num_nodes) % 3 + 1).astype(np.int8))


def test_a_task_may_make_labels_of_a_graph_without_any(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settle(compose(["strategy=vertex_centric", "workers=1", "task=regression"]))
    graph = replace(small_graph(), labels=np.full(60, -1), split=np.zeros(60, np.int8))
    with pytest.raises(UserError, match="no node is in the training split: no node has a label"):
        steps.read(settings, graph, relational=False)
    monkeypatch.setattr(Choice, "create", lambda _: Degrees())
    assert steps.read(settings, graph, relational=False)[0].labelled.all()
