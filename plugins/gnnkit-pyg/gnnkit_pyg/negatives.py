"""Negative sampling from a generator of one's own, and among the nodes of a time."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling

from gnnkit.errors import UserError
from gnnkit.graph import Floats, Ids
from gnnkit.sampler.events import codes
from gnnkit.sampler.links import pairs_of
from gnnkit_pyg.checks import read_times
from gnnkit_pyg.relation import RelationEdges
from gnnkit_pyg.sampled_graph import ONE_EDGE_TYPE, SampledGraph

_ALWAYS = np.iinfo(np.int64).min
_ROUNDS = 100  # of draws until a pair is negative


class SeededNegatives(NegativeSampling):  # type: ignore[misc]  # PyG is untyped
    """PyG's negative sampling, whose draws follow from a generator."""

    generator: torch.Generator | None

    @classmethod
    def of(cls, rule: NegativeSampling, generator: torch.Generator | None) -> Any:
        negatives = copy.copy(rule)
        negatives.__class__ = cls
        negatives.generator = generator
        return negatives

    def sample(self, num_samples: int, endpoint: Literal["src", "dst"], num_nodes: int | None = None) -> Tensor:
        weight = self.src_weight if endpoint == "src" else self.dst_weight
        if weight is None:
            return torch.randint(num_nodes or 0, (num_samples,), generator=self.generator)
        return torch.multinomial(weight, num_samples, replacement=True, generator=self.generator)


@dataclass(frozen=True, eq=False)
class Timeline:
    """The nodes of one type that negatives may have, in the order of their times."""

    nodes: Ids  # [num_nodes + 1] nodes with a weight above 0, and -1 at the end
    times: Ids  # [num_nodes] ascending
    total: Floats  # [num_nodes + 1] sums of the weights before each node

    @classmethod
    def of(cls, num_nodes: int, time: Tensor | None, weight: Tensor | None) -> Timeline:
        """Sorts nodes by time. Nodes without times exist at all times."""
        times = np.full(num_nodes, _ALWAYS) if time is None else time.cpu().numpy()
        weights = np.ones(num_nodes) if weight is None else weight.detach().cpu().double().numpy()
        order = np.argsort(times, kind="stable")
        order = order[weights[order] > 0]
        total = np.append(0, np.cumsum(weights[order]))
        return cls(np.append(order, -1), times[order], total)

    def draw(self, bounds: Ids, generator: torch.Generator | None) -> Ids:  # [k]
        """Draws a node that exists at each of k times, or -1 if there is none."""
        counts = np.searchsorted(self.times, bounds, side="right")
        values = torch.rand(len(bounds), dtype=torch.float64, generator=generator).numpy() * self.total[counts]
        return self.nodes[np.minimum(np.searchsorted(self.total[1:], values, side="right"), counts - 1)]


class TemporalNegatives(SeededNegatives):
    """Draws pairs of nodes that exist at the time of a positive, and are no edges.

    Weights draw as in PyG's class. Nodes without times exist at all times.
    """

    timelines: tuple[Timeline, Timeline]  # of sources and destinations
    pairs: Ids  # [num_pos, 2] int64 positives of the batch
    bounds: Ids  # [num_pos] their times
    edges: tuple[Ids, Ids]  # ascending codes of the graph's edges, and of the positives
    num_destinations: int

    @classmethod
    def of_batch(
        cls, graph: SampledGraph, inputs: EdgeSamplerInput, rule: NegativeSampling, generator: torch.Generator | None
    ) -> TemporalNegatives:
        """Returns the rule that draws the negatives of one batch."""
        drawing: TemporalNegatives = cls.of(rule, generator)
        edge_type = inputs.input_type or ONE_EDGE_TYPE
        source, destination = edge_type[0], edge_type[2]
        drawing.num_destinations = count = graph.num_nodes[destination]
        drawing.timelines = (
            graph.cached(Timeline.of, graph.num_nodes[source], graph.node_time.get(source), rule.src_weight),
            graph.cached(Timeline.of, count, graph.node_time.get(destination), rule.dst_weight),
        )
        drawing.pairs = torch.stack([inputs.row, inputs.col], 1).to(torch.int64).numpy()
        drawing.bounds = read_times("edge_label_time", inputs.time, len(drawing.pairs))
        edges = graph.cached(_sorted_codes, graph.relations.get(edge_type), (source, destination), count)
        drawing.edges = edges, np.sort(codes(drawing.pairs[:, ::-1], count))
        return drawing

    def sample(self, num_samples: int, endpoint: Literal["src", "dst"], num_nodes: int | None = None) -> Tensor:
        """Draws both ends at the first call. The second call returns the other end."""
        if endpoint == "src" or self.is_triplet():
            self._drawn = self._draw(np.arange(num_samples) % len(self.pairs))
        return torch.from_numpy(self._drawn[int(endpoint == "dst")])

    def _draw(self, positives: Ids) -> Ids:  # [k] -> [2, k]
        """Draws a negative pair for each of k positives of the batch."""
        pairs, open_pairs = self._pairs(positives), np.arange(len(positives))
        for _ in range(_ROUNDS):
            open_pairs = open_pairs[~self._are_negative(pairs[:, open_pairs])]
            if not len(open_pairs):
                return pairs
            pairs[:, open_pairs] = self._pairs(positives[open_pairs])
        source = f" of source {self.pairs[positives[open_pairs[0]], 0]}" if self.is_triplet() else ""
        raise UserError(
            f"neg_sampling: none of {_ROUNDS} pairs{source} that exist at time {self.bounds[positives[open_pairs[0]]]} is "
            "negative: all are edges, or no node exists then; leave these edges out, or use neg_sampling=None"
        )

    def _pairs(self, positives: Ids) -> Ids:  # [k] -> [2, k]
        """Draws a pair that exists at the time of each of k positives."""
        sources, bounds = self.pairs[positives, 0], self.bounds[positives]
        if self.is_binary():
            sources = self.timelines[0].draw(bounds, self.generator)
        return np.stack([sources, self.timelines[1].draw(bounds, self.generator)])

    def _are_negative(self, pairs: Ids) -> npt.NDArray[np.bool_]:  # [2, k] -> [k]
        negative: npt.NDArray[np.bool_] = (pairs[0] >= 0) & (pairs[1] >= 0)
        numbers = codes(pairs[::-1].T, self.num_destinations)
        for edges in self.edges:
            negative &= np.append(edges, -1)[np.searchsorted(edges, numbers)] != numbers
        return negative


def _sorted_codes(relation: RelationEdges | None, ends: tuple[str, str], num_destinations: int) -> Ids:
    """Returns the ascending codes of a relation's edges, in their own direction."""
    if relation is None:
        return np.empty(0, np.int64)
    pairs = pairs_of(relation.csc)
    return np.sort(codes(pairs[:, ::-1] if relation.source == ends[0] else pairs, num_destinations))
