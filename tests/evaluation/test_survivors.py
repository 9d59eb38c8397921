"""Evaluation covers all nodes, whichever rank is lost at whichever moment."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from gnnkit_testing.graphs import CLASSES, WIDTH, check_graph
from gnnkit_testing.ranks import by_node
from torch import Tensor, nn

from gnnkit.comm import Survivors
from gnnkit.comm.threads import Threads
from gnnkit.graph import Graph
from gnnkit.model.gcn import GCN
from gnnkit.partition import Grid, Partition, cut_all
from gnnkit.partition.store.parts import RankParts
from gnnkit.result.result import PREPARED
from gnnkit.strategy import Worker
from gnnkit.task.evaluation import Evaluation, SurvivorsEvaluation
from gnnkit.task.node_classification import NodeClassification

GRAPH = check_graph(60)
RANKS, LAST = 3, 2


class Leaves(Exception):
    """The end of the last rank."""


class Leaving(GCN):
    """A model that ends its rank at some call of a layer."""

    calls = 0
    last_call = -1

    def layer(self, index: int, x: Tensor, adjacency: object) -> Tensor:
        self.calls += 1
        if self.calls == self.last_call:
            raise Leaves
        return super().layer(index, x, adjacency)  # type: ignore[arg-type]


def prepare(folder: Path) -> None:
    """Writes the graph and the shards as the leader does."""
    owner = np.random.default_rng(0).integers(0, RANKS, GRAPH.num_nodes).astype(np.int32)
    GRAPH.save(folder / PREPARED / "graph")
    for shard in cut_all(GRAPH, Partition(owner, None, Grid(RANKS, 1, 1))):
        shard.save(folder / PREPARED / str(shard.rank))


def figures(logits: Tensor, worker: Worker) -> tuple[Tensor, Tensor, dict[str, float]]:
    return torch.tensor(worker.owned), logits, NodeClassification().measure(logits, worker)


def evaluate_survivors(model: nn.Module, folder: Path, scratch: Path | None) -> tuple[Tensor, list[dict[str, float]]]:
    """Returns the logits of all nodes, and the accuracies on every rank left."""

    def work(comm: Threads) -> tuple[Tensor, Tensor, dict[str, float]] | None:
        replica = copy.deepcopy(model)
        if comm.rank != LAST and isinstance(replica, Leaving):
            replica.last_call = -1
        survivors = Survivors(comm, comm.mailbox(), range(RANKS))
        worker = Worker(
            survivors,
            RankParts(folder / PREPARED).shard(comm.rank),
            torch.float64,
            0,
            Graph.load(folder / "prepared/graph"),
        )
        evaluation = SurvivorsEvaluation(
            worker,
            survivors,
            lambda worker: Evaluation.of(worker, replica, 1e-3, scratch),
            RankParts(folder / PREPARED).adopting,
        )
        try:
            return evaluation.read(replica, figures)
        except Leaves:
            return None
        finally:
            survivors.close()

    results = [result for result in Threads.run(work, RANKS) if result is not None]
    return by_node([(nodes, logits) for nodes, logits, _ in results]), [told for _, _, told in results]


@pytest.mark.slow
def test_the_nodes_of_a_lost_rank_are_evaluated_all_the_same(tmp_path: Path) -> None:
    prepare(tmp_path)
    torch.manual_seed(0)
    model = Leaving(WIDTH, CLASSES, hidden=4, num_layers=3).double()
    reference, message = evaluate_survivors(model, tmp_path, tmp_path)
    assert len(message) == RANKS
    for last_call, where in ((1, "at the begin"), (3, "in the first layer"), (12, "in the last layer")):
        model.last_call = last_call
        actual, left = evaluate_survivors(model, tmp_path, tmp_path)
        # Chunks differ, and with them the last bits of a product.
        assert torch.allclose(actual, reference, rtol=0, atol=1e-12), where
        assert left == [pytest.approx(each, abs=1e-12) for each in message[1:]], where


@pytest.mark.slow
def test_the_adopting_shard_owns_the_nodes_of_all_its_ranks(tmp_path: Path) -> None:
    prepare(tmp_path)
    parts = RankParts(tmp_path / PREPARED)
    shard = parts.adopting(frozenset({LAST}))
    nodes = np.sort(np.concatenate([parts.shard(rank).owned for rank in (0, LAST)]))
    assert np.array_equal(shard.owned, nodes)
    assert np.array_equal(shard.labels, GRAPH.labels[nodes])
    assert np.array_equal(shard.split, GRAPH.split[nodes])
    assert shard.rank == 0
