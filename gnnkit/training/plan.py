"""Planning: data set -> partition -> shards on disk. Runs in a process of its own, once, before the ranks start."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gnnkit import plugins
from gnnkit.graph import Graph, Split
from gnnkit.partition.base import Partition
from gnnkit.partition.border import improve_border
from gnnkit.partition.grid import Grid, make_grid, remark
from gnnkit.partition.quality import Quality, measure
from gnnkit.partition.shard import Shard, cut_all
from gnnkit.training.models import Given, make_program

SHARDS = "shards"  # folder in the run folder, one folder in it for each rank
COMPARED_EDGES = 20_000_000  # up to so many the leader compares layouts, some seconds' work; job=plan always does
WHOLE = "whole"  # in it, for job=verify: the whole graph


def plan(config: dict[str, Any], folder: Path, graph: Graph | None = None, model: Given = None) -> dict[str, Any]:
    """Cuts the graph as the leader assigns it, writes every rank's shard, and returns what the run needs to know of it."""
    trains = make_program(config, model) is None
    graph = load(config, graph)
    if trains:
        check_trainable(graph)
    partition = assign(graph, config)

    def saved(shard: Shard) -> Shard:
        shard.save(folder / SHARDS / str(shard.rank))
        return shard

    quality = measure(graph, partition, map(saved, cut_all(graph, partition)))
    if config["job"] == "verify":
        whole = Partition(np.zeros(graph.num_nodes, np.int32), None, Grid(1, 1, 1))
        next(iter(cut_all(graph, whole))).save(folder / SHARDS / WHOLE)
    report, decision = quality.to_dict(), decide(config, graph, quality)
    coordination = {"decision": decision} | {key: report[key] for key in ("regions", "peers")}
    (folder / "coordination.json").write_text(json.dumps(coordination))
    balance = {name: quality.balance()[name] for name in ("nodes", "edges", "train_nodes")}
    lines = [*describe(graph, config, quality), decision["why"], f"max/mean: {_spelt(balance)}"]
    return {
        "grid": _shape(partition.grid),
        "balance": balance,
        "why": decision["why"],
        "summary": "\n".join(lines),
    }


def decide(config: dict[str, Any], graph: Graph, quality: Quality) -> dict[str, Any]:
    """The scheme of a run, what each layout would move and how evenly it would spread the edges, and why this one."""
    chosen = config["partition"]
    layouts = {"chosen": _figures(quality)}
    if graph.num_edges <= COMPARED_EDGES:
        layouts |= {name: _figures(other) for name, other in alternatives(config, graph, quality)}
    words = {name: figures["words_per_column"] for name, figures in layouts.items()}
    others = ", ".join(f"{name} {number:,.1f}" for name, number in words.items() if name != "chosen")
    best = min(words, key=words.__getitem__)
    verdict = "no other layout has fewer" if words[best] == words["chosen"] else f"partition.grid={best} has fewest"
    why = (
        f"partition.grid={chosen['grid']}: the busiest rank receives {words['chosen']:,.1f} words per feature column and "
        "aggregation; " + (f"{verdict} ({others})" if others else "job=plan compares it with other layouts")
    )
    return {"nodes": chosen["nodes"], "why": why, "layouts": layouts}


def alternatives(config: dict[str, Any], graph: Graph, chosen: Quality) -> Iterator[tuple[str, Quality]]:
    """The other layouts for the configured number of workers and assignment of nodes, as far as these go together; those that
    come to the same grid are measured once, `chosen` being known."""
    measured = {chosen.partition.grid: chosen}
    workers = config["workers"]
    for spec in ("1d", "1.5d", "2d", "3d", [1, 1, workers]):
        choice = {**config["partition"], "grid": spec}
        if spec != "1.5d":
            choice["replication"] = None
        try:
            grid = make_grid(spec, workers, choice["replication"])
            if grid not in measured:
                measured[grid] = measure(graph, assign(graph, {**config, "partition": choice}))
        except ValueError:  # this assignment of nodes or edges does not go with that grid
            continue
        yield str(spec).replace(" ", ""), measured[grid]  # the name is as the command line takes it


def _figures(quality: Quality) -> dict[str, Any]:
    return {
        "grid": _shape(quality.partition.grid),
        "words_per_column": float(quality.words.max()),
        "balance": quality.balance(),
    }


def _shape(grid: Grid) -> list[int]:
    return [grid.rows, grid.cols, grid.slices]


def store_partition(config: dict[str, Any], folder: Path, graph: Graph | None = None) -> dict[str, Any]:
    """Measures the partition and stores it with its report in `folder/partition`; the result is the report."""
    graph = load(config, graph)
    quality = measure(graph, assign(graph, config))
    quality.save(folder / "partition")
    return {"summary": "\n".join([*describe(graph, config, quality), *quality.table()]), **quality.to_dict()}


def load(config: dict[str, Any], graph: Graph | None = None) -> Graph:
    """The given graph, or that of the configured data set."""
    loaded: Graph = plugins.create("dataset", config["dataset"]).load() if graph is None else graph
    return loaded


def assign(graph: Graph, config: dict[str, Any]) -> Partition:
    """The partition that the configuration names."""
    chosen = config["partition"]
    grid = make_grid(chosen["grid"], config["workers"], chosen["replication"])
    partition: Partition = plugins.create("partition", chosen).assign(graph, grid)
    return improve_border(graph, partition, chosen["border"])


def check_trainable(graph: Graph) -> None:
    """Raises `ValueError` for a graph that nothing can be learnt from."""
    if not np.any(graph.split == Split.TRAIN):
        raise ValueError("dataset: no node is in the training split")
    unlabelled = np.flatnonzero((graph.split != Split.NONE) & (graph.labels < 0))
    if len(unlabelled):
        raise ValueError(f"dataset: node {unlabelled[0]} is in a split and has no label")


def describe(graph: Graph, config: dict[str, Any], quality: Quality) -> list[str]:
    """What was planned, for people."""
    chosen, grid = config["partition"], quality.partition.grid
    note = remark(chosen["grid"], grid)
    return [
        f"{graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {graph.features.shape[1]:,} features, "
        f"{graph.num_classes} classes; {chosen['nodes']} nodes on a {grid} grid",
        *([note] if note else []),
    ]


def _spelt(balance: dict[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in balance.items())
