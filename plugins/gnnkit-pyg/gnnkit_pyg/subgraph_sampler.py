"""PyG's sampler interface over gnnkit's native core."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NodeSamplerInput,
    NumNeighbors,
    SamplerOutput,
)
from torch_geometric.sampler.base import SubgraphType
from torch_geometric.sampler.neighbor_sampler import edge_sample, node_sample

from gnnkit.errors import UserError
from gnnkit.graph import Ids
from gnnkit.sampler.fanouts import DRAW_BYTES, check_draws
from gnnkit.utils.checks import int64s
from gnnkit.utils.memory import available_memory
from gnnkit.utils.ranges import one_of, shown, shown_names
from gnnkit_pyg.checks import (
    EdgeType,
    check_edges,
    check_fanouts,
    check_ids,
    check_times,
    parse,
    read_negatives,
    read_times,
)
from gnnkit_pyg.negatives import SeededNegatives, TemporalNegatives
from gnnkit_pyg.pool import PooledTable, RowPool
from gnnkit_pyg.sampled_graph import ONE_EDGE_TYPE, ONE_NODE_TYPE, Container, SampledGraph, SampleOptions
from gnnkit_pyg.subgraph import DrawRule, LocalEdges, SampledSubgraph, Seeds, grow

_MAX_SEED = 2**63 - 1
_NONE = np.empty(0, np.int64)


class SubgraphSampler(BaseSampler):  # type: ignore[misc]  # PyG is untyped
    """Samples neighborhoods as PyG's `NeighborSampler` does, without pyg-lib.

    Takes the arguments of PyG's class, and fills the same outputs. The draws of a batch
    follow from one number of torch's default generator, so `torch.manual_seed` fixes
    them. They do not depend on the number of threads (`torch.get_num_threads`). Three
    rules differ from pyg-lib. Weights and times together draw by weight among the
    visible edges, where pyg-lib ignores the times. Edges of weight 0 are never drawn.
    Seeds that repeat in a batch draw independently.
    """

    def __init__(
        self,
        data: Container,
        num_neighbors: Any,
        subgraph_type: SubgraphType | str = "directional",
        replace: bool = False,
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        is_sorted: bool = False,
        share_memory: bool = False,
        directed: bool = True,
        sample_direction: str = "forward",
    ) -> None:
        """Sorts the edges by destination, and checks them once.

        Args:
            data: `Data`, `HeteroData`, or a pair of a feature and a graph store.
            num_neighbors: draws per node and hop, from the seeds outward. A dictionary
                by edge type, or `NumNeighbors`. Negative numbers take all edges.
            subgraph_type: directional, bidirectional or induced.
            replace: whether draws are with replacement.
            disjoint: whether each seed has a subgraph of its own. Always true with
                times.
            temporal_strategy: uniform, or last for the latest visible edges.
            time_attr: node or edge attribute. Seeds see edges of times up to their own.
            weight_attr: edge attribute with weights, at least 0. Weighted draws are
                proportional to it.
            is_sorted: whether edges are sorted by destination, and then by time.
            share_memory: whether to move the sorted edges to shared memory.
            directed: deprecated, as in PyG. False means `induced`.
            sample_direction: forward draws in-edges, backward out-edges.
        """
        if not directed:
            subgraph_type = SubgraphType.induced
            warnings.warn("'directed' is deprecated. Use `subgraph_type='induced'` instead.", stacklevel=2)
        self.temporal_strategy = one_of("temporal_strategy", temporal_strategy, ("uniform", "last"))
        self.sample_direction = one_of("sample_direction", sample_direction, ("forward", "backward"))
        if sample_direction == "backward" and time_attr is not None:
            raise NotImplementedError("'time_attr' is unsupported for sample_direction=backward")
        options = SampleOptions(time_attr, weight_attr, is_sorted, share_memory, sample_direction == "backward")
        self.replace = replace
        self.graph = SampledGraph.of(data, options)
        self.num_neighbors = num_neighbors
        self.subgraph_type = SubgraphType(subgraph_type)
        self.disjoint = disjoint
        self.time_attr = time_attr
        self.keep_orig_edges = False
        self._generator: torch.Generator | None = None
        self._threads: int | None = None
        self._pool: RowPool | None = None

    def drawing_from(self, generator: torch.Generator) -> SubgraphSampler:
        """Returns a copy for one of several threads, with a generator of its own."""
        sampler = copy.copy(self)
        sampler._generator, sampler._threads = generator, 1
        return sampler

    def filling(self, pool: RowPool) -> SubgraphSampler:
        """Returns a copy whose `edge_permutation` is read into recycled memory."""
        sampler = copy.copy(self)
        sampler._pool = pool
        return sampler

    @property
    def threads(self) -> int:
        """Threads that draw a batch."""
        return self._threads or torch.get_num_threads()

    @property
    def num_neighbors(self) -> NumNeighbors:
        return self._num_neighbors

    @num_neighbors.setter
    def num_neighbors(self, value: Any) -> None:
        self._num_neighbors = value if isinstance(value, NumNeighbors) else NumNeighbors(value)
        self.fanouts()  # checks them

    @property
    def is_hetero(self) -> bool:
        return self.graph.typed

    @property
    def is_temporal(self) -> bool:
        return bool(self.graph.node_time) or self.graph.has_edge_time

    @property
    def disjoint(self) -> bool:
        return self._disjoint or self.is_temporal

    @disjoint.setter
    def disjoint(self, value: bool) -> None:
        self._disjoint = value

    @property
    def num_nodes(self) -> int | dict[str, int]:
        """Number of nodes, by type in a heterogeneous graph."""
        return dict(self.graph.num_nodes) if self.is_hetero else self.graph.num_nodes[ONE_NODE_TYPE]

    @property
    def edge_permutation(self) -> Tensor | dict[EdgeType, Tensor | None] | None:
        """Position in the container of each edge of the CSC. None: the same order."""
        orders = self.graph.permutation.items()
        permutations = {name: None if order is None else self._pooled(order) for name, order in orders}
        return permutations if self.is_hetero else permutations[ONE_EDGE_TYPE]

    def sample_from_nodes(self, inputs: NodeSamplerInput, **kwargs: Any) -> SamplerOutput | HeteroSamplerOutput:
        return self._with_direction(node_sample(inputs, self._sample))

    def sample_from_edges(
        self, inputs: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None
    ) -> SamplerOutput | HeteroSamplerOutput:
        source, _, destination = inputs.input_type or ONE_EDGE_TYPE
        counts = self.graph.num_nodes.get(source, 0), self.graph.num_nodes.get(destination, 0)
        check_edges("edge_label_index", (inputs.row, inputs.col), counts, (source, destination))
        neg_sampling, times = read_negatives(neg_sampling, len(inputs.row), counts), self.graph.node_time
        check_times("edge_label_time", inputs.time, len(inputs.row))
        if inputs.time is not None and not self.disjoint:
            raise UserError("edge_label_time needs the times of nodes or edges: pass time_attr")
        if inputs.time is None and neg_sampling is not None and times:
            raise UserError("neg_sampling with time_attr needs edge_label_time")
        node_time = (dict(times) if self.is_hetero else times[ONE_NODE_TYPE]) if times else None
        if type(neg_sampling) is NegativeSampling and node_time is not None and inputs.time is not None:
            neg_sampling = TemporalNegatives.of_batch(self.graph, inputs, neg_sampling, self._generator)
            node_time = None
        elif neg_sampling is not None and self._generator is not None:
            neg_sampling = SeededNegatives.of(neg_sampling, self._generator)
        return self._with_direction(
            edge_sample(inputs, self._sample, self.num_nodes, self.disjoint, node_time, neg_sampling)
        )

    def _with_direction(self, output: SamplerOutput | HeteroSamplerOutput) -> SamplerOutput | HeteroSamplerOutput:
        if self.subgraph_type == SubgraphType.bidirectional:
            return output.to_bidirectional(keep_orig_edges=self.keep_orig_edges)
        return output

    def _sample(self, seed: Any, seed_time: Any = None, **kwargs: Any) -> SamplerOutput | HeteroSamplerOutput:
        """Samples around seeds [num_seeds], or around a dictionary of them by type."""
        if self.is_hetero:
            if not isinstance(seed, Mapping):  # PyG passes a tensor without the seeds' type
                raise UserError(
                    f"input_type=None: expected the seeds' type, one of {shown_names(self.graph.num_nodes)}"
                )
            return self._hetero_output(self._grow(seed, seed_time or {}))
        times = {} if seed_time is None else {ONE_NODE_TYPE: seed_time}
        return self._output(self._grow({ONE_NODE_TYPE: seed}, times))

    def _grow(self, seeds: Mapping[str, Tensor], times: Mapping[str, Tensor]) -> SampledSubgraph:
        key = int(torch.randint(_MAX_SEED, (1,), generator=self._generator))
        starts = {name: int64s("seeds", nodes) for name, nodes in seeds.items()}
        for name, nodes in starts.items():
            check_ids("seeds[", nodes, self.graph.num_nodes.get(name, 0), f" of type {name!r}" if name else "")
        self.check_draws({name: len(nodes) for name, nodes in starts.items()})
        bounds = self._bounds(starts, times) if self.is_temporal else None
        everywhere = {**starts, **{name: _NONE for name in self.graph.num_nodes if name not in starts}}
        around = Seeds(everywhere, self.disjoint, bounds)
        return grow(self.graph, around, key, self._rule())

    def _rule(self) -> DrawRule:
        fanouts, most_draws = self.fanouts(), sys.maxsize
        if self.replace and any(-1 in row for row in fanouts.values()):  # `check_draws` knows the mean degree only
            most_draws = int(min(2**62, available_memory() / (self._num_directions * DRAW_BYTES)))
        return DrawRule(
            fanouts,
            self.num_neighbors.num_hops,
            replace=self.replace,
            last=self.temporal_strategy == "last",
            induced=self.subgraph_type == SubgraphType.induced,
            most_draws=most_draws,
            threads=self.threads,
        )

    def fanouts(self) -> dict[EdgeType, list[int]]:
        """Returns the draws per node and hop of each edge type."""
        neighbors, names = self.num_neighbors, list(self.graph.relations)
        if not self.is_hetero and isinstance(neighbors.values, dict):
            raise ValueError("'num_neighbors' by edge type needs a heterogeneous graph: use a list")
        values = parse("num_neighbors", lambda: neighbors.get_mapped_values(names if self.is_hetero else None))
        lists = {name: values["__".join(name)] if self.is_hetero else values for name in names}
        return {name: check_fanouts("num_neighbors", fanouts, replace=self.replace) for name, fanouts in lists.items()}

    def check_draws(self, seeds: Mapping[str, int], num_batches: int = 1) -> None:
        """Raises `UserError` if draws with replacement may need too much memory.

        Without replacement, degrees bound the draws.

        Args:
            seeds: Largest number of seeds of a batch, by type.
            num_batches: Batches that are drawn at the same time.
        """
        if not self.replace:
            return
        num_trees = sum(seeds.values()) if self.disjoint else 1
        limits = {name: num_trees * count for name, count in self.graph.num_nodes.items()}
        relations = self.graph.relations
        fanouts = [
            (relation.source, relation.destination, row, relation.csc.num_edges / max(relation.csc.num_nodes, 1))
            for relation, row in ((relations[name], row) for name, row in self.fanouts().items())
        ]
        subject, num_batches = f"num_neighbors={shown(self.num_neighbors.values)}", self._num_directions * num_batches
        check_draws(subject, fanouts, seeds, limits, num_batches)

    @property
    def _num_directions(self) -> int:
        """Directions in which a batch has each drawn edge."""
        return 2 if self.subgraph_type == SubgraphType.bidirectional else 1

    def _bounds(self, seeds: Mapping[str, Ids], times: Mapping[str, Tensor]) -> Ids:  # [num_trees]
        """Returns the times of the seeds, or else of their nodes."""
        bounds = []
        for name, nodes in seeds.items():
            time = times.get(name)
            if time is None and name in self.graph.node_time:
                time = self.graph.node_time[name][torch.from_numpy(nodes)]
            if time is None:
                raise ValueError("seeds without times of their own need 'input_time' or 'edge_label_time'")
            bounds.append(read_times("seed times", time, len(nodes)))
        return np.concatenate(bounds)

    def _tensor(self, ids: Ids) -> Tensor:
        return torch.from_numpy(ids.astype(self.graph.dtype, copy=False))

    def _pooled(self, table: Tensor) -> Tensor:
        return table if self._pool is None else PooledTable.of(table, self._pool, self.threads)

    def _ends(self, edges: LocalEdges) -> tuple[Tensor, Tensor]:
        """Returns sources and destinations, in the direction of the container."""
        row, col = map(self._pooled, self._tensor(edges.ends))
        return (row, col) if self.sample_direction == "forward" else (col, row)

    def _output(self, subgraph: SampledSubgraph) -> SamplerOutput:
        """Returns the subgraph of a graph of one type, in the same fields."""
        by_type = vars(self._hetero_output(subgraph)).items()
        return SamplerOutput(**{name: values and next(iter(values.values())) for name, values in by_type})

    def _hetero_output(self, subgraph: SampledSubgraph) -> HeteroSamplerOutput:
        ends = {name: self._ends(edges) for name, edges in subgraph.edges.items()}
        counts = subgraph.counts
        return HeteroSamplerOutput(
            node={name: self._tensor(nodes) for name, nodes in subgraph.nodes.items()},
            row={name: row for name, (row, _) in ends.items()},
            col={name: col for name, (_, col) in ends.items()},
            edge={name: self._tensor(edges.edge) for name, edges in subgraph.edges.items()},
            batch=None if subgraph.trees is None else {k: self._tensor(tree) for k, tree in subgraph.trees.items()},
            num_sampled_nodes=None if counts is None else dict(counts),
            num_sampled_edges=None if counts is None else {k: list(e.counts or ()) for k, e in subgraph.edges.items()},
        )
