"""Words that joint samples move, beside batches that fetch features.

    uv run python benchmarks/joint.py [--nodes N] [--workers P] [--batch B] [--steps K]

Prints numbers received by all workers in a step, for GraphSAGE on a synthetic graph,
over widths of features and of hidden layers. All rows have batches of the same seeds:

- individual: feature rows of other owners, each once for a worker and batch, where
  features are partitioned by node
- joint: rows and gradients of rows, as the strategy counts them

`factor` is the words of individual divided by those of joint. Gradients of parameters
are left out, as these are the same in both.
"""

from __future__ import annotations

import argparse
import copy
import itertools
from dataclasses import replace

import numpy as np
import torch
from gnnkit_formats.synthetic import Synthetic
from torch import nn

from gnnkit.comm.threads import Threads
from gnnkit.graph import Graph
from gnnkit.model.sage import GraphSAGE
from gnnkit.partition import Grid, Partition, Shard, cut_all
from gnnkit.sampler import NeighborSampler
from gnnkit.strategy import ExecutionStrategy, Worker
from gnnkit.strategy.individual_sample import IndividualSample
from gnnkit.strategy.joint_sample import JointSample

FANOUTS = [10, 10]


def words(strategy: ExecutionStrategy, worker: Worker, model: nn.Module, steps: int) -> int:
    """Returns what one worker receives in some steps.

    Args:
        strategy: Hands out the batches.
        worker: The worker, with the whole graph.
        model: The model.
        steps: Steps of the first epoch.
    """
    if not strategy.reads.graph:
        worker = replace(worker, graph=None)
    model, num_words = copy.deepcopy(model), 0
    strategy.setup(worker, model)
    for batch in itertools.islice(strategy.batches(0), steps):
        model(batch.x, batch.adjacencies)[batch.rows].sum().backward()
        first = batch.adjacencies[0].src_nodes.cpu().numpy()
        num_words += int((~np.isin(first, worker.owned)).sum()) * batch.x.shape[1]
    return num_words if isinstance(strategy, IndividualSample) else sum(strategy.tally.words.values())


def total(graph: Graph, shards: list[Shard], strategy: ExecutionStrategy, hidden: int, steps: int) -> float:
    """Returns what all workers receive in a step.

    Args:
        graph: The whole graph.
        shards: The shard of each worker.
        strategy: Hands out the batches.
        hidden: Width of the hidden layer.
        steps: Steps to take.
    """
    torch.manual_seed(0)
    model = GraphSAGE(graph.features.shape[1], graph.num_classes, hidden=hidden, dropout=0.0)

    def work(comm: Threads) -> int:
        sampler = NeighborSampler(FANOUTS, threads=1)
        worker = Worker(comm, shards[comm.rank], torch.float32, 0, graph, sampler)
        return words(copy.deepcopy(strategy), worker, model, steps)

    return sum(Threads.run(work, len(shards), timeout=600.0)) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=128, help="seeds per worker and step")
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    edges = 10 * options.nodes
    print(f"{'features':>8} {'hidden':>7} {'individual':>12} {'joint':>12} {'factor':>7}")
    for width in (64, 256, 1024):
        graph = Synthetic(num_nodes=options.nodes, num_edges=edges, width=width, threads=1).load()
        owner = (np.arange(graph.num_nodes) * options.workers // graph.num_nodes).astype(np.int32)
        shards = list(cut_all(graph, Partition(owner, None, Grid(options.workers, 1, 1))))
        for hidden in (16, 64, 256):
            strategies = (IndividualSample(options.batch), JointSample(batch_size=options.batch))
            base, joint = (total(graph, shards, strategy, hidden, options.steps) for strategy in strategies)
            print(f"{width:8} {hidden:7} {base:12,.0f} {joint:12,.0f} {base / joint:7.1f}")


if __name__ == "__main__":
    main()
