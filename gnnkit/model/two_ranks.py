"""Compares a model's outputs on two ranks with those on one, on a small graph."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.engine import Engine, ShardAdjacency
from gnnkit.engine.trial import TypeCounts
from gnnkit.graph import Graph
from gnnkit.model.hetero import HeteroModel
from gnnkit.model.parameters import dtype_of
from gnnkit.partition.base import Partition
from gnnkit.partition.grid import Grid
from gnnkit.partition.shard import Shard, cut_all, uncut
from gnnkit.utils.ranges import even_ranges

_NODES, _EDGES = 12, 40
_TIMEOUT = 20.0  # deadline of a rank's waits, in seconds
_TOLERANCE = 1e-6  # relative, in float64


def differs(model: nn.Module, in_features: int, edge_width: int = 0) -> bool:
    """Returns whether outputs in training mode depend on the number of ranks.

    Ranks are threads. The second one owns a sixth of the nodes.

    Args:
        model: The model, which is not modified.
        in_features: Number of node features.
        edge_width: Number of edge features. 0: no edge features.
    """
    model, graph = small_graph(model, in_features, edge_width)
    owner = np.zeros(graph.num_nodes, np.int32)
    one, two = _outputs(model, graph, owner, 1), _outputs(model, graph, owner + (np.arange(len(owner)) % 6 == 5), 2)
    return bool((one - two).abs().max() > _TOLERANCE * one.abs().max().clamp(min=1))


def small_graph(model: nn.Module, in_features: int, edge_width: int) -> tuple[nn.Module, Graph]:
    """Draws a small graph with the types that a model reads.

    Returns the model for this graph, which shares its parameters, and the graph.

    Args:
        model: The model.
        in_features: Number of node features.
        edge_width: Number of edge features. 0: no edge features.
    """
    if isinstance(model, HeteroModel):
        return model.on_small_graph(in_features, edge_width)
    return model, _graph(in_features, edge_width, TypeCounts.of(model))


def run_alone(
    model: nn.Module, in_features: int, edge_width: int, wrapped: Callable[[Engine], Engine] = lambda engine: engine
) -> None:
    """Calls a model in training mode on a small graph, in this thread.

    Args:
        model: The model.
        in_features: Number of node features.
        edge_width: Number of edge features. 0: no edge features.
        wrapped: Wraps the engine. Default: as it is.
    """
    model, graph = small_graph(model, in_features, edge_width)
    dtype = dtype_of(model)
    comm = Threads.connect(0, 1, device=torch.device("cpu"), timeout=_TIMEOUT)
    layers = ShardAdjacency.layers(wrapped(Engine(uncut(graph), comm, dtype)), model.num_layers, 0)  # type: ignore[arg-type]
    model.train()(torch.tensor(np.asarray(graph.features), dtype=dtype), layers)


def _graph(in_features: int, edge_width: int, types: TypeCounts) -> Graph:
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, _NODES, (2, _EDGES))
    edge_features = rng.normal(size=(_EDGES, edge_width)) if edge_width else None
    features = rng.normal(size=(_NODES, in_features))
    names = [str(relation) for relation in range(types.of_edges)]
    sizes = [len(part) for part in even_ranges(_NODES, types.of_nodes)]
    return Graph.from_edges(
        src,
        dst,
        _NODES,
        features=features,
        edge_features=edge_features,
        edge_types=rng.integers(0, types.of_edges, _EDGES),
        edge_type_names=names,
        node_types=tuple((str(number), size) for number, size in enumerate(sizes)),
    )


def _outputs(model: nn.Module, graph: Graph, owner: np.ndarray, ranks: int) -> Tensor:  # [num_nodes, width]
    partition = Partition(owner.astype(np.int32), None, Grid(ranks, 1, 1))
    shards = list(cut_all(graph, partition))
    parts = Threads.run(lambda comm: _part(model, shards, comm), ranks, timeout=_TIMEOUT)
    order = torch.argsort(torch.cat([torch.from_numpy(shard.owned.astype(np.int64)) for shard in shards]))
    return torch.cat(parts)[order]


@torch.no_grad()
def _part(model: nn.Module, shards: Sequence[Shard], comm: Communicator) -> Tensor:  # [num_owned, width]
    replica, shard = copy.deepcopy(model).double().train(), shards[comm.rank]
    engine = Engine(shard.with_self_loops() if getattr(replica, "self_loops", False) else shard, comm, torch.float64)
    layers = ShardAdjacency.layers(engine, replica.num_layers, 0)  # type: ignore[arg-type]
    outputs: Tensor = replica(torch.tensor(shard.features, dtype=torch.float64), layers)
    return outputs
