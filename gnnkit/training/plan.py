"""Planning: data set -> partition -> shards on disk. Runs in a process of its own, once, before the ranks start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gnnkit import plugins
from gnnkit.graph import Graph, Split
from gnnkit.partition.base import Partition
from gnnkit.partition.grid import make_grid, remark
from gnnkit.partition.shard import cut_all

SHARDS = "shards"  # folder in the run folder, one folder in it for each rank


def plan(config: dict[str, Any], folder: Path, graph: Graph | None = None) -> dict[str, Any]:
    """Cuts the graph as the leader assigns it, writes every rank's shard, and returns what the run needs to know of it."""
    graph = plugins.create("dataset", config["dataset"]).load() if graph is None else graph
    _check(graph)
    partition = assign(graph, config)
    nodes, edges, train = [], [], []
    for shard in cut_all(graph, partition):
        shard.save(folder / SHARDS / str(shard.rank))
        nodes.append(len(shard.owned))
        edges.append(shard.csc.num_edges)
        train.append(int(np.count_nonzero(shard.split == Split.TRAIN)))
    grid = partition.grid
    balance = {"nodes": _imbalance(nodes), "edges": _imbalance(edges), "train_nodes": _imbalance(train)}
    note = remark(config["partition"]["grid"], grid)
    summary = (
        f"{graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {graph.features.shape[1]} features; "
        f"{config['partition']['nodes']} on a {grid} grid; max/mean: "
        + ", ".join(f"{name} {value:.3f}" for name, value in balance.items())
    )
    return {
        "grid": [grid.rows, grid.cols, grid.slices],
        "balance": balance,
        "summary": summary if note is None else f"{summary}\n{note}",
    }


def assign(graph: Graph, config: dict[str, Any]) -> Partition:
    """The partition that the configuration names."""
    chosen = config["partition"]
    grid = make_grid(chosen["grid"], config["workers"], chosen["replication"])
    partition: Partition = plugins.create("partition", chosen).assign(graph, grid)
    return partition


def _check(graph: Graph) -> None:
    if not np.any(graph.split == Split.TRAIN):
        raise ValueError("dataset: no node is in the training split")
    unlabelled = np.flatnonzero((graph.split != Split.NONE) & (graph.labels < 0))
    if len(unlabelled):
        raise ValueError(f"dataset: node {unlabelled[0]} is in a split and has no label")


def _imbalance(counts: list[int]) -> float:
    """Largest over mean; 1 where there is nothing to share."""
    total = sum(counts)
    return max(counts) * len(counts) / total if total else 1.0
