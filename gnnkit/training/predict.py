"""job=plan: what a training step moves and holds on every layout, from the partition alone; nothing is trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from gnnkit.engine.planning import Volume, exchanges, volume
from gnnkit.graph import Graph
from gnnkit.partition.quality import Quality, measure
from gnnkit.partition.shard import Shard, cut_all
from gnnkit.partition.traffic import Traffic
from gnnkit.training.models import Given, make_model, make_program
from gnnkit.training.plan import alternatives, assign, describe, load

_MOMENTS = {"adam": 2, "adamw": 2, "sgd": 0}  # of each parameter, held by the optimiser


def predict(config: dict[str, Any], graph: Graph | None, given: Given) -> dict[str, Any]:
    """The layouts for the configured number of workers, node assignment and model, and why one is to be preferred.

    Words and messages are those of one training step that exchanges, forward and backward, to the word. Raises `ValueError`
    for a chosen layout that cannot be; others that cannot be are left out.
    """
    if make_program(config, given) is not None:
        raise ValueError(f"job=plan is for models that are trained, model={config['model']['name']} is a program")
    graph = load(config, graph)
    torch.manual_seed(config["seed"])
    model = make_model(config, given, graph)
    quality = measure(graph, assign(graph, config))
    layouts = {"chosen": layout(config, graph, model, quality)}
    for name, other in alternatives(config, graph):
        layouts[name] = layout(config, graph, model, other)
    best = min((name for name in layouts), key=lambda name: (layouts[name]["words"]["max"], layouts[name]["memory"]))
    chosen, least = layouts["chosen"]["words"]["max"], layouts[best]["words"]["max"]
    why = (
        f"partition.grid={config['partition']['grid']}: no layout moves fewer words to its busiest rank"
        if chosen == least
        else f"{best} moves fewest words to its busiest rank, {least:,} in a step; the chosen layout {chosen:,}"
    )
    lines = [*describe(graph, config, quality), *_table(layouts), why]
    return {
        "job": "plan",
        "model": config["model"]["name"],
        "why": why,
        "layouts": layouts,
        "summary": "\n".join(lines),
    }


def layout(config: dict[str, Any], graph: Graph, model: nn.Module, quality: Quality) -> dict[str, Any]:
    """The figures of one layout; lists are by rank."""
    itemsize = config["trainer"]["precision"] // 8
    moved, held = step_volume(graph, model, quality)
    state = sum(p.numel() for p in model.parameters()) * itemsize * (2 + _MOMENTS[config["trainer"]["optimizer"]])
    rows = quality.traffic.num_owned * graph.features.shape[1] * itemsize
    memory = rows + held * 16 + state + moved.received * itemsize
    grid = quality.partition.grid
    return {
        "grid": [grid.rows, grid.cols, grid.slices],
        "words": _spread(moved.received)
        | {
            "gathered": moved.total("gather").tolist(),
            "reduced": moved.total("reduce").tolist(),
            "sliced": moved.total("slice").tolist(),
        },
        "messages": _spread(moved.messages),
        "bytes_sent": _spread(moved.words_sent * itemsize),
        # Features, edges (a source and an id each), parameters with gradient and optimiser state, and all rows received.
        "memory": int(memory.max()),
        "balance": quality.balance(),
    }


def step_volume(graph: Graph, model: nn.Module, quality: Quality) -> tuple[Volume, np.ndarray]:
    """What one training step exchanges, and each rank's held edges, added self-loops included."""
    grid = quality.partition.grid
    edge_width = 0 if graph.edge_features is None else graph.edge_features.shape[1]
    plain = replace(graph, features=np.empty((graph.num_nodes, 0), np.float32), edge_features=None)
    held: list[int] = []

    def shards() -> Iterator[Shard]:
        for shard in cut_all(plain, quality.partition):
            looped = shard.with_self_loops() if getattr(model, "self_loops", False) else shard
            held.append(looped.csc.num_edges)
            yield looped

    traffic = Traffic.of(shards())
    by_slice = [exchanges(model, graph.features.shape[1], edge_width, grid.slices, s) for s in range(grid.slices)]
    return volume(traffic, held, by_slice), np.array(held)


def _spread(values: np.ndarray) -> dict[str, Any]:
    return {"max": int(values.max()), "total": int(values.sum()), "per_rank": values.tolist()}


def _table(layouts: dict[str, Any]) -> list[str]:
    header = f"{'layout':<17}{'grid':>12}{'words, busiest':>16}{'words, all':>16}{'messages':>10}{'MiB a rank':>12}{'edges max/mean':>16}"
    return [header] + [
        f"{name:<17}{'x'.join(map(str, figures['grid'])):>12}{figures['words']['max']:>16,}{figures['words']['total']:>16,}"
        f"{figures['messages']['max']:>10,}{figures['memory'] / 2**20:>12.1f}{figures['balance']['edges']:>16.3f}"
        for name, figures in layouts.items()
    ]
