"""Exact evaluation: the full pass, in memory that is bounded as configured."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gnnkit_testing.graphs import CLASSES, WIDTH, check_graph
from gnnkit_testing.ranks import by_node
from torch import Tensor, nn

from gnnkit.comm.threads import Threads
from gnnkit.engine.remote import FeatureStore
from gnnkit.graph import Floats, Split
from gnnkit.model.gcn import GCN
from gnnkit.partition import Grid, Partition, cut_all
from gnnkit.strategy import Worker
from gnnkit.task.evaluation import MIB, ChunkEvaluation, Evaluation, chunks
from tests.cases import exhaustive
from tests.models import MODELS

GRAPH = check_graph(60)


class Wrapped(nn.Module):
    """A model without layers that can be called one by one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.num_layers, self.self_loops = model, model.num_layers, getattr(model, "self_loops", False)

    def forward(self, x: Tensor, adjacencies: list[object]) -> Tensor:
        logits: Tensor = self.model(x, adjacencies)
        return logits


def evaluate_ranks(model: nn.Module, ranks: int, *, whole: bool, memory: float, scratch: Path | None = None) -> Tensor:
    """Logits of all nodes, [num_nodes, CLASSES]. The last rank owns nothing."""
    owner = np.random.default_rng(0).integers(0, max(ranks - 1, 1), GRAPH.num_nodes).astype(np.int32)
    shards = list(cut_all(GRAPH, Partition(owner, None, Grid(ranks, 1, 1))))

    def work(comm: Threads) -> tuple[Tensor, Tensor]:
        worker, replica = (
            Worker(comm, shards[comm.rank], torch.float64, 0, GRAPH if whole else None),
            copy.deepcopy(model),
        )
        return torch.tensor(worker.owned), Evaluation.of(worker, replica, memory, scratch).logits(replica)

    return by_node(Threads.run(work, ranks))


@pytest.mark.slow
@pytest.mark.parametrize("layerwise", [True, False], ids=["layer by layer", "as a whole"])
def test_nodes_of_some_splits_have_the_logits_of_all_nodes(layerwise: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = GCN(WIDTH, CLASSES, hidden=4, num_layers=3).double()
    shards = list(cut_all(GRAPH, Partition(np.arange(60, dtype=np.int32) % 3, None, Grid(3, 1, 1))))
    memory, scratch = 0.001, tmp_path if layerwise else None  # less than the rows between two layers

    def work(comm: Threads) -> tuple[Tensor, Tensor, list[int]]:
        worker, replica = Worker(comm, shards[comm.rank], torch.float64, 0, GRAPH), copy.deepcopy(model)
        of_all = Evaluation.of(worker, replica, memory, scratch).logits(replica)
        split_evaluation = Evaluation.of(worker, replica, memory, scratch, splits=["val"])
        rows = torch.from_numpy(shards[comm.rank].split == Split.VAL)
        assert (split_evaluation.worker.shard.split == Split.VAL).all()
        return of_all[rows], split_evaluation.logits(replica), split_evaluation.worker.owned.tolist()

    results = Threads.run(work, 3)
    for reference, logits, _ in results:
        torch.testing.assert_close(logits, reference, rtol=1e-12, atol=1e-12)
    evaluate_ranks = [node for _, _, owned in results for node in owned]
    assert sorted(evaluate_ranks) == np.flatnonzero(GRAPH.split == Split.VAL).tolist() != []
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_slow_rank_still_opens_the_rows_that_a_fast_one_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounded = ChunkEvaluation._bounded

    def slowly(self: ChunkEvaluation, table: Floats) -> FeatureStore:
        time.sleep(0.1 * self.worker.comm.rank)
        return bounded(self, table)

    monkeypatch.setattr(ChunkEvaluation, "_bounded", slowly)
    model = GCN(WIDTH, CLASSES, hidden=4, num_layers=2).double()
    actual = evaluate_ranks(model, 2, whole=True, memory=0.001, scratch=tmp_path)
    torch.testing.assert_close(actual, evaluate_ranks(model, 1, whole=False, memory=1), rtol=1e-10, atol=1e-10)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "layerwise"),
    [
        *(pytest.param(name, True, id=f"{name}-layer by layer") for name in MODELS),
        pytest.param("gcn", False, id="gcn-as a whole"),
        *(exhaustive(pytest.param(name, False, id=f"{name}-as a whole")) for name in MODELS if name != "gcn"),
    ],
)
def test_chunks_of_any_size_give_the_logits_of_the_full_pass(name: str, layerwise: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = MODELS[name](WIDTH, CLASSES, hidden=4, num_layers=3).double()
    reference = evaluate_ranks(model, 1, whole=False, memory=1)
    tested = model if layerwise else Wrapped(model)
    for ranks, kilobytes in ((1, 1000), (1, 1), (3, 4), (4, 0.01)):
        actual = evaluate_ranks(tested, ranks, whole=True, memory=kilobytes / 1024, scratch=tmp_path)
        torch.testing.assert_close(actual, reference, rtol=1e-10, atol=1e-10)
    assert not list(tmp_path.iterdir()), "the rows between layers are gone"


@pytest.mark.parametrize("mode", [True, False])
def test_evaluation_is_without_noise_and_leaves_the_mode_of_the_model_as_it_was(mode: bool) -> None:
    model = GCN(WIDTH, CLASSES, dropout=0.9).double().train(mode)
    (shard,) = cut_all(GRAPH, Partition(np.zeros(GRAPH.num_nodes, np.int32), None, Grid(1, 1, 1)))
    worker = Worker(Threads.connect(0, 1, device=torch.device("cpu"), timeout=1), shard, torch.float64, 0)
    first, second = (Evaluation.of(worker, model, 1).logits(model) for _ in range(2))
    assert torch.equal(first, second)
    assert model.training == mode


def test_chunks_cover_the_nodes_in_order_within_the_budget() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        nodes, costs = np.arange(rng.integers(0, 30)), rng.integers(1, 9, 30).astype(float)
        parts = list(chunks(nodes, costs[: len(nodes)], 12.0))
        assert np.array_equal(np.concatenate(parts), nodes)
        assert all(len(part) == 1 or costs[part].sum() <= 12 for part in parts if len(part))
        assert len(parts) >= 1


MEMORY, NODES, HIDDEN = 6, 125_000, 128  # MiB, and a layer's rows take 61 MiB

MEASURE = f"""
import json, sys, threading, numpy as np, torch
from pathlib import Path
from typing import Any
from gnnkit.comm.threads import Threads
from gnnkit.task.evaluation import Evaluation
from gnnkit.graph import Graph
from gnnkit.model.sage import GraphSAGE
from gnnkit.partition import Grid, Partition, cut_all
from gnnkit.engine.remote import FeatureStore
from gnnkit.strategy import Worker
from gnnkit_testing.graphs import check_graph

torch.set_num_threads(1)

def prepared(graph, folder):
    whole = Partition(np.zeros(graph.num_nodes, np.int32), None, Grid(1, 1, 1))
    comm = Threads.connect(0, 1, device=torch.device("cpu"), timeout=1)
    worker = Worker(comm, next(iter(cut_all(graph, whole))), torch.float32, 0, graph)
    model = GraphSAGE(graph.features.shape[1], 4, hidden={HIDDEN}, num_layers=3)
    evaluation = Evaluation.of(worker, model, {MEMORY}, folder)
    return lambda: evaluation.logits(model)

def megabytes():
    \"\"\"Memory that is no file's. Pages of mapped files are the system's to take back.\"\"\"
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon:"))

def watch(peak, ended):
    while not ended.wait(0.001):
        peak[0] = max(peak[0], megabytes())

folder = Path(sys.argv[1])
prepared(check_graph(), folder)()  # the code that is used is in memory from now on
graph = Graph.load(folder / "graph")
evaluate = prepared(graph, folder)
peak, ended, before = [0.0], threading.Event(), megabytes()
watcher = threading.Thread(target=watch, args=(peak, ended))
watcher.start()
logits = evaluate()
ended.set()
watcher.join()
print(json.dumps(dict(grown=peak[0] - before, finite=bool(logits.isfinite().all()))))
"""


def measured(folder: Path) -> dict[str, Any]:
    """Evaluates the graph of a folder in a process of its own."""
    given_back = dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), "65536")  # freed memory, at once
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        env=os.environ | given_back,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_peak_of_memory_is_bounded_where_activations_are_ten_times_as_large(tmp_path: Path) -> None:
    from gnnkit.graph import Graph

    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, NODES, (2, 3 * NODES))
    features = rng.standard_normal((NODES, 8), np.float32)
    Graph.from_edges(src, dst, NODES, features=features, labels=np.zeros(NODES, np.int64)).save(tmp_path / "graph")
    actual = measured(tmp_path)
    assert actual["finite"]
    assert NODES * HIDDEN * 4 / MIB > 10 * MEMORY
    by_node = NODES * (3 * 8 + 2 * 16 + 4) / MIB  # offsets, costs of nodes twice, logits twice, the sampler's table
    assert actual["grown"] < MEMORY + by_node
