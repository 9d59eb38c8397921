"""Draws random graphs, models and configurations, including corner cases.

All draws come from a `random.Random`. Hypothesis provides one that supports shrinking.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import torch
from gnnkit_lossy_exchange import Adaptive, Sampled
from gnnkit_testing.graphs import CLASSES, EDGE_WIDTH, RELATIONS
from gnnkit_witness.plan import Plan
from torch import nn

from gnnkit.exchange.pipelined import Pipelined
from gnnkit.exchange.quantized import Quantized
from gnnkit.graph import Graph, Split
from gnnkit.model.gat import GAT
from gnnkit.model.gcn import GCN
from gnnkit.model.gin import GIN, GINE
from gnnkit.model.hgt import HGT
from gnnkit.model.rgat import RGAT
from gnnkit.model.rgcn import RGCN
from gnnkit.model.sage import GraphSAGE
from gnnkit.model.simple_hgn import SimpleHGN
from gnnkit.partition import Grid, Partition
from gnnkit.sampler import FullSampler, NeighborSampler, Sampler
from gnnkit.strategy.individual_sample import IndividualSample
from gnnkit.strategy.joint_sample import JointSample
from gnnkit.strategy.preset_workload import PresetWorkload
from gnnkit.strategy.vertex_centric import VertexCentric
from gnnkit.sync.all_reduce import AllReduce
from gnnkit.sync.leader import LeaderSync
from gnnkit.sync.neighbour import Neighbour
from gnnkit.sync.parameter_server import ParameterServer
from tests.witness.models import BEFORE, HIDDEN, READS, WRITES, Recipe, RecipeModel
from tests.witness.negatives import NegativeCounts, check_negatives

_GRIDS = [(1, 1, 1), (2, 1, 1), (3, 1, 1), (1, 2, 1), (1, 3, 1), (2, 2, 1), (1, 1, 2), (2, 1, 2)]
NODE_TYPES = 3
_NOT_LINEAR = ("max", "messages", "attend")  # nonlinear ways to read rows
_MODELS: dict[str, Callable[..., nn.Module]] = {
    "gcn": GCN,
    "sage": GraphSAGE,
    "sage-max": functools.partial(GraphSAGE, aggregator="max"),
    "gat": functools.partial(GAT, heads=2, edge_width=EDGE_WIDTH),
    "gin": GIN,
    "gine": functools.partial(GINE, edge_width=EDGE_WIDTH),
}


def _simple_hgn(in_features: int, num_classes: int, norm: str, **options: Any) -> nn.Module:
    return SimpleHGN(in_features, num_classes, **options)  # has no normalisation between layers


_RELATIONAL: dict[str, Callable[..., nn.Module]] = {
    "rgcn": functools.partial(RGCN, num_relations=RELATIONS),
    "rgcn of bases": functools.partial(RGCN, num_relations=RELATIONS, bases=2, inverse=False),
    "rgat": functools.partial(RGAT, num_relations=RELATIONS, heads=2),
    "simple_hgn": functools.partial(_simple_hgn, num_relations=RELATIONS, heads=2, relation_width=4),
    "hgt": functools.partial(HGT, num_relations=RELATIONS, num_node_types=NODE_TYPES, heads=2),
    "rgat of given edges": functools.partial(
        RGAT, num_relations=RELATIONS, heads=2, bases=2, inverse=False, self_loop=False, project=False
    ),
}


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A random plan, with a description."""

    words: str
    plan: Plan


@dataclass(frozen=True, slots=True)
class _ExactStrategy:
    """An exact strategy, and the options that it supports."""

    strategy: Callable[[], Any]
    along_nodes: bool = True  # whether a node's in-edges must be on its owner
    samples: bool = False
    learns: bool = True  # whether input rows may be learned
    averages: bool = False  # whether to average parameters instead of gradients
    linear: bool = False  # whether other workers' rows may only be read in sums and means
    relations: bool = False  # whether edges have types
    most_layers: int = 3


def _way(rng: Random) -> tuple[str, _ExactStrategy]:
    size, later = rng.randint(1, 4), functools.partial(VertexCentric)
    ways: dict[str, _ExactStrategy] = {
        "exact": _ExactStrategy(later, along_nodes=False, relations=True),
        "quantized": _ExactStrategy(
            functools.partial(VertexCentric, exchange=Quantized(bits=32)), along_nodes=False, relations=True
        ),
        "pipelined": _ExactStrategy(functools.partial(VertexCentric, exchange=Pipelined(staleness=0))),
        "sampled": _ExactStrategy(functools.partial(VertexCentric, exchange=Sampled(keep=1.0)), linear=True),
        "adaptive": _ExactStrategy(functools.partial(VertexCentric, exchange=Adaptive(variation=0.0))),
        "individual": _ExactStrategy(functools.partial(IndividualSample, batch_size=size), samples=True),
        "features": _ExactStrategy(
            functools.partial(IndividualSample, batch_size=size, features="partitioned"), samples=True
        ),
        "partitioned": _ExactStrategy(
            functools.partial(IndividualSample, batch_size=size, topology="partitioned"), samples=True
        ),
        "cooperative": _ExactStrategy(functools.partial(JointSample, batch_size=size), samples=True),
        "exchanged": _ExactStrategy(functools.partial(PresetWorkload, exchange_every=1), learns=False),
        "one hop": _ExactStrategy(PresetWorkload, learns=False, most_layers=1),
        "averages": _ExactStrategy(
            functools.partial(PresetWorkload, average="parameters"), learns=False, averages=True, most_layers=1
        ),
    }
    name = rng.choice(["exact"] * 8 + list(ways))
    return name, ways[name]


def draw(rng: Random) -> Case:
    """Draws a case."""
    name, way = _way(rng)
    graph = _graph(rng)
    embedding = HIDDEN if way.learns and rng.random() < 0.15 else None
    model_name, model = _model(rng, way)
    shape = rng.choice([grid for grid in _GRIDS if not way.along_nodes or grid[1] == grid[2] == 1])
    partition = _partition(rng, graph, Grid(*shape), cut=not way.along_nodes)
    sync_name, sync = _sync(rng, partition.grid.world_size, way)
    exact_optimizer = way.averages or embedding is not None
    keys: dict[str, Any] = {
        "optimizer": rng.choice(["sgd"] if exact_optimizer else ["sgd", "sgd", "adam", "adamw"]),
        "lr": rng.choice([0.02, 0.1]),
        "weight_decay": rng.choice([0.0, 0.0, 0.1]),
        "clip_norm": rng.choice([None, None, 0.5]) if sync().steps_here and not exact_optimizer else None,
        "accumulate": rng.randint(1, 3) if way.samples and embedding is None else 1,
        "embedding": embedding,
        "sparse": bool(getattr(model, "reads_sparse", False)) and not way.samples and embedding is None
        and name in ("exact", "quantized") and rng.random() < 0.5,
        "epochs": rng.randint(2, 3),
        "seed": rng.randint(0, 99),
        "learned_decay": 0.0 if embedding is None else rng.choice([0.0, 0.1]),
    }  # fmt: skip
    sampler = _sampler(rng, int(model.num_layers)) if way.samples else None  # type: ignore[arg-type]
    plan = Plan(graph, partition, model, way.strategy, sync, sampler, **keys)
    edges = f"{graph.num_nodes} nodes, {graph.num_edges} edges"
    key_text = ", ".join(f"{key}={value}" for key, value in keys.items() if value)
    return Case(f"{name} of {model_name} on {partition.grid} with {sync_name}: {edges}, {key_text}", plan)


def draw_negatives(rng: Random) -> Callable[[], NegativeCounts]:
    """Draws a check of one strategy's negatives."""
    size, n = rng.randint(20, 80), rng.randint(8, 20)
    ways: list[tuple[Callable[[], Any], bool]] = [  # with whether a node's in-edges must be on its owner
        (VertexCentric, False),
        (PresetWorkload, True),
        (functools.partial(PresetWorkload, halo="none"), True),
        (functools.partial(IndividualSample, batch_size=size), True),
        (functools.partial(IndividualSample, batch_size=size, features="partitioned"), True),
        (functools.partial(IndividualSample, batch_size=size, topology="partitioned"), True),
        (functools.partial(JointSample, batch_size=size), True),
    ]
    make, along_nodes = rng.choice(ways)
    share, loops, is_undirected = rng.choice([0.2, 0.5, 0.8]), rng.random() < 0.5, rng.random() < 0.5
    pairs = [(u, v) for u in range(n) for v in range(n) if rng.random() < share and (loops or u != v)]
    src, dst = np.array([(0, 1), (1, 2), *pairs]).T
    graph = Graph.from_edges(src, dst, n + 3, features=np.eye(n + 3))  # three nodes without edges
    grid = Grid(*rng.choice([grid for grid in _GRIDS if not along_nodes or grid[1] == grid[2] == 1]))
    keys: dict[str, Any] = {"val_share": 0.2, "test_share": 0.2, "negatives": 2, "eval_negatives": 5, "width": 4}
    graph = graph.symmetrize() if is_undirected else graph
    return functools.partial(check_negatives, make, graph, grid, NeighborSampler([3, 3], threads=1), **keys)


def _graph(rng: Random) -> Graph:
    n, m = rng.randint(1, 9), rng.randint(0, 24)
    src, dst = ([rng.randrange(n) for _ in range(m)] for _ in range(2))
    if m and rng.random() < 0.5:  # repeated edges
        src, dst = src + src[: m // 2], dst + dst[: m // 2]
    numbers = np.random.default_rng(rng.randrange(1000))
    split = [rng.choice([Split.TRAIN, Split.TRAIN, Split.VAL, Split.NONE]) for _ in range(n)]
    split[rng.randrange(n)] = Split.TRAIN
    ends = sorted([0, *(rng.randint(0, n) for _ in range(NODE_TYPES - 1)), n])
    features = numbers.normal(size=(n, HIDDEN)) * numbers.integers(0, 2, (n, HIDDEN))  # some features are 0
    return Graph.from_edges(
        np.array(src, np.int64),
        np.array(dst, np.int64),
        n,
        features=features,
        labels=numbers.integers(0, CLASSES, n),
        split=np.array(split, np.int8),
        weight=numbers.choice([0.0, 0.5, 1.0, 2.0], len(src)) if rng.random() < 0.5 else None,
        edge_features=numbers.normal(size=(len(src), EDGE_WIDTH)),
        edge_types=numbers.integers(0, RELATIONS, len(src)),
        edge_type_names=[str(relation) for relation in range(RELATIONS)],
        node_types=tuple((str(number), ends[number + 1] - ends[number]) for number in range(NODE_TYPES)),
    )


def _partition(rng: Random, graph: Graph, grid: Grid, *, cut: bool) -> Partition:
    ranks = rng.sample(range(grid.world_size), rng.randint(1, grid.world_size))  # the others own nothing
    owners = np.array([rng.choice(ranks) for _ in range(graph.num_nodes)], np.int32)
    if not cut or (grid.cols, grid.slices) != (1, 1) or rng.random() < 0.5:
        return Partition(owners, None, grid)
    cells = np.array([rng.randrange(grid.num_cells) for _ in range(graph.num_edges)], np.int32)
    return Partition(owners, cells, grid)


def _model(rng: Random, way: _ExactStrategy) -> tuple[str, nn.Module]:
    layers = rng.randint(1, way.most_layers)
    if rng.random() < 0.6:
        recipe = _recipe(rng, layers, [read for read in READS if not way.linear or read not in _NOT_LINEAR])
        return str(recipe), _draw_parameters(rng, RecipeModel(recipe, HIDDEN, CLASSES))
    models = _MODELS | _RELATIONAL if way.relations else _MODELS
    names = ("gcn", "sage", "gin") if way.linear else tuple(models)
    name = rng.choice(names)
    options = {"hidden": rng.choice([3, 4, 5]), "num_layers": layers, "norm": rng.choice(["none", "batch", "layer"])}
    options["dropout"] = rng.choice([0.0, 0.4])
    return f"{name} {options}", _draw_parameters(rng, models[name](HIDDEN, CLASSES, **options))


@torch.no_grad()
def _draw_parameters(rng: Random, model: nn.Module) -> nn.Module:
    """Draws the parameters.

    A bias of 0 would put rows at the kink of a ReLU, where rounding errors matter.
    """
    generator = torch.Generator().manual_seed(rng.randrange(1000))
    for parameter in model.double().parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype) / 2)
    return model


def _recipe(rng: Random, layers: int, reads: list[str]) -> Recipe:
    def choose(names: list[str]) -> tuple[str, ...]:
        return tuple(rng.choice(names) for _ in range(layers))

    return Recipe(
        choose(["sum", "mean", "normalized"] * 3 + reads),
        choose(["add", *WRITES]),
        choose(["nothing"] * 6 + list(BEFORE)),
        norm=rng.random() < 0.2,
        tied=rng.random() < 0.3,
        jumps=rng.random() < 0.3,
        self_loops=rng.random() < 0.3,
    )


def _sampler(rng: Random, num_layers: int) -> Sampler:
    if rng.random() < 0.5:
        return FullSampler(num_hops=num_layers, threads=1)
    return NeighborSampler([-1] * num_layers, redraw=rng.random() < 0.5, threads=1)


def _sync(rng: Random, num_workers: int, way: _ExactStrategy) -> tuple[str, Callable[[], Any]]:
    syncs: dict[str, Callable[[], Any]] = {
        "all_reduce": AllReduce,
        "leader": LeaderSync,
        "a server": ParameterServer,
        "two servers": functools.partial(ParameterServer, servers=2),
    }
    if num_workers <= 2:  # all are neighbours
        syncs["neighbour"] = Neighbour
    name = "all_reduce" if way.averages else rng.choice(["all_reduce"] * 3 + list(syncs))
    return name, syncs[name]
