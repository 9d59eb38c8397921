"""Compares a model's outputs on several ranks with those on one, on small graphs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.engine import Adjacency, Engine, ShardAdjacency
from gnnkit.engine.default_dtype import default_dtype
from gnnkit.graph import Floats, Graph
from gnnkit.model.hetero import HeteroModel
from gnnkit.model.parameters import dtype_of
from gnnkit.partition.base import Partition
from gnnkit.partition.grid import Grid
from gnnkit.partition.shard import Shard, cut_all, uncut
from gnnkit.utils.checks import Array
from gnnkit.utils.ranges import even_ranges

_NODES, _EDGES = 26, 110
_TIMEOUT = 120.0  # deadline of a rank's waits, in seconds
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}  # relative to the largest output
_SHARES = ((0.8, 0.2), (0.5, 0.35, 0.15), (0.2, 0.8))  # of the nodes, by rank, of each comparison


class TypeCounts(NamedTuple):
    """Numbers of types that a model has weights for."""

    of_edges: int = 1
    of_nodes: int = 1

    @classmethod
    def of(cls, model: object) -> TypeCounts:
        """Reads a model's attributes."""
        return cls(*(int(getattr(model, name, 1)) for name in ("num_relations", "num_node_types")))


@dataclass(frozen=True, slots=True)
class TrialRows:
    """Rows of a trial's graphs. Without a run's rows, they are random."""

    in_features: int
    edge_width: int = 0  # 0: no edge features
    features: Floats | None = None  # [k, in_features] rows of nodes, or None
    edges: Mapping[str, Array] = field(default_factory=dict)  # columns [m, ...], by argument of `Graph.from_edges`
    scale: int = 1  # factor of the graphs' sizes
    train_size: tuple[int, int] | None = None  # nodes and edges of the graph to train on. None: unknown

    def graph(self, types: TypeCounts, draw: int) -> Graph:
        """Draws a graph, whose size depends on the draw."""
        rng, num_nodes, num_edges = np.random.default_rng(draw), *self.sizes(_NODES, _EDGES, draw)
        src, dst = rng.integers(0, num_nodes, (2, num_edges))
        sizes = [len(part) for part in even_ranges(num_nodes, types.of_nodes)]
        edge_types = rng.integers(0, types.of_edges, num_edges)
        return Graph.from_edges(
            src,
            dst,
            num_nodes,
            features=self.node_rows(rng, num_nodes),
            edge_types=edge_types,
            edge_type_names=[str(relation) for relation in range(types.of_edges)],
            node_types=tuple((str(number), size) for number, size in enumerate(sizes)),
            **self.edge_columns(rng, num_edges),  # type: ignore[arg-type]
        )

    def grown(self, draw: int) -> TrialRows:
        """Makes graphs grow with the draw, up to the graph to train on."""
        if self.train_size is None:
            return replace(self, scale=4**draw)
        nodes, edges = self.train_size
        largest = max(nodes // _NODES, (nodes + edges) // _EDGES) + 1  # edges may include self-loops
        return replace(self, scale=min(4**draw, largest))

    def sizes(self, num_nodes: int, num_edges: int, draw: int) -> tuple[int, int]:
        """Returns the numbers of nodes and edges of a draw."""
        return self.scale * num_nodes + draw, self.scale * num_edges + 11 * (draw % 4)

    def node_rows(self, rng: np.random.Generator, count: int) -> Floats:  # [count, in_features]
        """Draws rows of nodes."""
        if self.features is None or not len(self.features):
            return rng.normal(size=(count, self.in_features))
        rows: Floats = self.features[rng.choice(len(self.features), count, replace=len(self.features) < count)]
        return rows

    def edge_columns(self, rng: np.random.Generator, count: int) -> dict[str, Array]:  # [count, ...] each
        """Draws values of edges."""
        if self.edges:
            rows = rng.integers(0, len(next(iter(self.edges.values()))), count)
            return {name: values[rows] for name, values in self.edges.items()}
        return {"edge_features": rng.normal(size=(count, self.edge_width))} if self.edge_width else {}

    def fit(self, model: nn.Module, draw: int) -> tuple[nn.Module, Graph]:
        """Draws a graph with the model's types.

        Returns the model for this graph, which shares its parameters, and the graph.
        """
        if isinstance(model, HeteroModel):
            return model.on_small_graph(self, draw)
        return model, self.graph(TypeCounts.of(model), draw)


def differs(model: nn.Module, rows: TrialRows, *, draws: bool = False) -> bool:
    """Returns whether outputs depend on the number of ranks.

    Ranks are threads, with unequal numbers of nodes. The model runs in float64 or, if
    that fails, in its own dtype. Raises the model's error if that fails too.

    Args:
        model: The model, which is not modified.
        rows: The rows that it reads.
        draws: Whether the model draws random numbers in training mode, so that only
            evaluation mode can be compared.
    """
    try:
        return _differs(model, rows, draws, torch.float64)
    except Exception:
        return _differs(model, rows, draws, torch.float32)


def _differs(model: nn.Module, rows: TrialRows, draws: bool, dtype: torch.dtype) -> bool:
    modes = [not draws] * len(_SHARES) + [False] * (not draws)
    for draw, training in enumerate(modes):
        # One rank has at most a fourth of the nodes. So a limit, above which a model
        # does something else, is between that rank's rows and all rows of some draw.
        small_model, graph = rows.grown(draw).fit(model, draw)
        shares = _SHARES[draw % len(_SHARES)]
        owner = np.random.default_rng(draw).permutation(_owners(graph.num_nodes, shares))
        replica = copy.deepcopy(small_model).to(dtype).train(training)
        reference = _outputs(replica, graph, np.zeros_like(owner), dtype)
        if draws and not torch.equal(reference, _outputs(replica, graph, np.zeros_like(owner), dtype)):
            return False  # random in evaluation mode too
        outputs = _outputs(replica, graph, owner, dtype)
        if not torch.isfinite(reference).all():
            raise ValueError("outputs are not finite")
        if not (reference - outputs).abs().max() <= _TOLERANCE[dtype] * reference.abs().max():
            return True
    return False


def _owners(num_nodes: int, shares: Sequence[float]) -> Array:  # [num_nodes]
    """Assigns nodes to ranks, at least two to each."""
    ends = np.rint(np.cumsum(shares) * num_nodes)
    return np.searchsorted(ends, np.arange(num_nodes), side="right").clip(max=len(shares) - 1).astype(np.int32)


def run_alone(
    model: nn.Module, rows: TrialRows, wrap_engine: Callable[[Engine], Engine] = lambda engine: engine
) -> None:
    """Calls a model in training mode on a small graph, in this thread.

    Args:
        model: The model.
        rows: The rows that it reads.
        wrap_engine: Wraps the engine. Default: as it is.
    """
    model, graph = rows.fit(model, 0)
    dtype = dtype_of(model)
    comm = Threads.connect(0, 1, device=torch.device("cpu"), timeout=_TIMEOUT)
    layers = _layers(wrap_engine(Engine(uncut(graph), comm, dtype)), model)
    with default_dtype(dtype):
        model.train()(torch.tensor(np.asarray(graph.features), dtype=dtype), layers)


def _outputs(model: nn.Module, graph: Graph, owner: Array, dtype: torch.dtype) -> Tensor:  # [num_nodes, width]
    num_ranks = int(owner.max()) + 1
    shards = list(cut_all(graph, Partition(owner, None, Grid(num_ranks, 1, 1))))
    parts = Threads.run(lambda comm: _part(model, shards, comm, dtype), num_ranks, timeout=_TIMEOUT)
    order = torch.argsort(torch.cat([torch.from_numpy(shard.owned.astype(np.int64)) for shard in shards]))
    return torch.cat(parts)[order]


@torch.no_grad()
def _part(model: nn.Module, shards: Sequence[Shard], comm: Communicator, dtype: torch.dtype) -> Tensor:
    """Returns a rank's outputs [num_owned, width]."""
    replica, shard = copy.deepcopy(model), shards[comm.rank]
    engine = Engine(shard.with_self_loops() if getattr(replica, "self_loops", False) else shard, comm, dtype)
    layers = _layers(engine, replica)
    with default_dtype(dtype):
        outputs: Tensor = replica(torch.tensor(np.asarray(shard.features), dtype=dtype), layers)
    return outputs


def _layers(engine: Engine, model: nn.Module) -> tuple[Adjacency, ...]:
    """Returns the layers' adjacencies, with edge ages for models that read them."""
    layers = ShardAdjacency.layers(engine, model.num_layers, 0)  # type: ignore[arg-type]
    for layer in layers if getattr(model, "reads_edge_age", False) else ():
        layer.edge_age = layer.edge_ids.to(engine.topology.dtype)
    return layers
