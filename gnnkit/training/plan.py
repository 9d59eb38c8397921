"""Planning: data set -> partition -> shards on disk. Runs in a process of its own, once, before the ranks start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from gnnkit import plugins
from gnnkit.graph import Graph, Split
from gnnkit.partition import border
from gnnkit.partition.base import Partition
from gnnkit.partition.grid import make_grid
from gnnkit.partition.quality import quality
from gnnkit.partition.shard import cut_all


def load_graph(config: dict[str, Any]) -> Graph:
    """The data set that `config` names."""
    graph: Graph = plugins.create("dataset", config["dataset"]).load()
    return graph


def partition(graph: Graph, config: dict[str, Any], world_size: int) -> Partition:
    """The partition that `config` names, for so many ranks."""
    chosen = config["partition"]
    grid = make_grid(chosen["grid"], world_size, chosen["replication"])
    partitioner = plugins.create("partition", {"name": chosen["nodes"], "options": chosen["options"]})
    result: Partition = partitioner.assign(graph, grid)
    return border.improve(graph, result) if chosen["border"] == "min_words" else result


def plan(config: dict[str, Any], world_size: int, folder: Path, graph: Graph | None = None) -> dict[str, Any]:
    """Writes a folder of shards for every rank and returns what the launcher needs to know, as JSON can hold it."""
    graph = load_graph(config) if graph is None else graph
    if not np.any(graph.split == Split.TRAIN):
        raise ValueError("dataset: no node is in the training split")
    chosen = partition(graph, config, world_size)
    for shard in cut_all(graph, chosen):
        shard.save(folder / str(shard.rank))
    return {}
