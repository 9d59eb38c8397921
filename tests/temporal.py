"""Brute force over the edges that rows see at a time, for samplers to be compared with.

A sampled tree is compared edge by edge with loops over all edges of small graphs, typed
and not: `compare_sampler` and `compare_loader` do so for one drawn graph.
`count_draws` looks for later edges among many draws from a large graph. `tests.noise`
trains on labels that only the future explains. To compare 10,000 graphs, to look at
10^8 draws, and to train with ten seeds:

    uv run python -m tests.temporal graphs 10000
    uv run python -m tests.temporal draws 1e8
    uv run python -m tests.temporal noise 10
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData

from gnnkit.graph import CSC, Graph, Ids, RelationGroups
from gnnkit.graph.edge_order import in_time_order
from gnnkit.graph.times import ALWAYS, NEVER
from gnnkit.pyg import NeighborLoader
from gnnkit.sampler import NeighborSampler, WeightedSampler
from gnnkit.sampler.base import TIME_BOUNDS
from tests import noise

LOW, HIGH = ALWAYS + 1, NEVER - 1  # the first and the last time
Row = tuple[int, int]  # node and time
Rule = str | int  # strict, inclusive, or how long before its time a row sees edges
Edges = Counter[tuple[Row, int]]  # each row's edges, by position
SCALES = ([0, 1, 2, 3], [-3, -2, 0, 5], [LOW, LOW + 1, -1, 0, HIGH - 1, HIGH], [10**18, 10**18 + 1, 10**18 + 2])


@dataclass(frozen=True)
class TimedGraph:
    """Edges in the order in which they are listed, of nodes of several types."""

    node_type: Ids  # [num_nodes] ascending
    source: Ids  # [num_edges]
    destination: Ids  # [num_edges]
    relation: Ids  # [num_edges]
    edge_time: list[int | None]  # [num_edges] None: the edge is static
    node_time: list[int | None]  # [num_nodes]
    relations: tuple[tuple[int, int], ...]  # [num_relations] types of sources and destinations
    scale: list[int]  # the times that occur

    @cached_property
    def into(self) -> list[list[int]]:  # [num_nodes]
        """The edges into each node."""
        return [np.flatnonzero(self.destination == node).tolist() for node in range(len(self.node_type))]

    def times_of(self, edge: int) -> list[int]:
        """Returns the times of an edge and of its source, if they have any."""
        times = self.edge_time[edge], self.node_time[self.source[edge]]
        return [time for time in times if time is not None]

    def is_seen(self, edge: int, bound: int, rule: Rule) -> bool:
        """Returns whether an edge is visible, from the later of its times on."""
        times = self.times_of(edge)
        if rule == "inclusive":
            return all(time <= bound for time in times)
        is_late = isinstance(rule, str) or not times or bound - rule <= max(times)
        return is_late and all(time < bound for time in times)

    def seen(self, row: Row, rule: Rule, last: int | None = None) -> list[int]:
        """Returns the edges into a row, of each relation the latest `last` ones."""
        node, bound = row
        edges: list[int] = []
        for relation in range(len(self.relations)):
            of_relation = (edge for edge in self.into[node] if self.relation[edge] == relation)
            into = [edge for edge in of_relation if self.is_seen(edge, bound, rule)]
            into.sort(key=lambda edge: (max(self.times_of(edge), default=ALWAYS), edge))
            edges += into if last is None else into[max(len(into) - last, 0) :]
        return edges

    def source_row(self, row: Row, edge: int, bound: str) -> Row:
        """Returns the row that an edge leads to, at its seed's or its own time."""
        times = self.times_of(edge) if bound == "path" else []
        return int(self.source[edge]), max(times, default=row[1])

    def tree(self, seeds: Iterable[Row], hops: int, rule: Rule, last: int | None = None, bound: str = "seed") -> Edges:
        """Returns the edges of the rows that seeds reach, each row drawing once."""
        front = list(dict.fromkeys(seeds))
        reached, edges = set(front), Edges()
        for _ in range(hops):
            drawn = [(row, edge) for row in front for edge in self.seen(row, rule, last)]
            edges.update(drawn)
            front = list(dict.fromkeys(self.source_row(row, edge, bound) for row, edge in drawn))
            front = [row for row in front if row not in reached]
            reached.update(front)
        return edges


def draw_untyped(rng: np.random.Generator) -> TimedGraph:
    """Draws events with parallel edges, loops, and static and missing times."""
    n, m, scale = int(rng.integers(1, 8)), int(rng.integers(0, 25)), SCALES[rng.integers(len(SCALES))]

    def times(count: int) -> list[int | None]:
        drawn = [int(scale[i]) for i in rng.integers(0, len(scale), count)]
        if not rng.integers(3):
            return [None] * count
        return [(None, NEVER, time)[int(rng.choice(3, p=[0.1, 0.1, 0.8]))] for time in drawn]

    source, destination = rng.integers(0, n, (2, m))
    types = np.zeros(n, np.int64), np.zeros(m, np.int64)
    return TimedGraph(types[0], source, destination, types[1], times(m), times(n), ((0, 0),), scale)


def draw_tables(rng: np.random.Generator) -> TimedGraph:
    """Draws tables with keys, of which two have no times and one has keys to itself.

    A key is a relation from the row to its parent, and one from the parent to the row.
    Some keys are null. The third table has two keys to the first.
    """
    scale = SCALES[rng.integers(len(SCALES))]
    counts = rng.integers(1, 8, 5)
    first = np.concatenate([[0], np.cumsum(counts)])
    keys = ((2, 0), (2, 0), (2, 1), (3, 2), (4, 3), (4, 4))  # the tables of rows and of their parents
    columns: list[tuple[Ids, Ids, int]] = []
    for number, (child, parent) in enumerate(keys):
        rows = np.flatnonzero(rng.random(counts[child]) > 0.15)
        parents = rng.integers(0, counts[parent], len(rows))
        ends = first[child] + rows, first[parent] + parents
        columns += [(*ends, 2 * number), (*ends[::-1], 2 * number + 1)]
    order = rng.permutation(sum(len(source) for source, _, _ in columns))
    source, destination = (np.concatenate([column[end] for column in columns])[order] for end in (0, 1))
    relation = np.concatenate([np.full(len(column[0]), column[2]) for column in columns])[order]
    node_type = np.repeat(np.arange(5), counts)
    node_time = [None if kind < 2 else int(scale[rng.integers(len(scale))]) for kind in node_type]
    ends_of = tuple(pair for child, parent in keys for pair in ((child, parent), (parent, child)))
    return TimedGraph(node_type, source, destination, relation, [None] * len(source), node_time, ends_of, scale)


def draw(number: int, typed: bool) -> tuple[TimedGraph, np.random.Generator]:
    rng = np.random.default_rng([number, typed])
    return (draw_tables if typed else draw_untyped)(rng), rng


def draw_seeds(graph: TimedGraph, rng: np.random.Generator, nodes: Ids) -> list[Row]:
    """Draws nodes at times at, before and after those of the graph."""
    times = np.array(graph.scale)[rng.integers(0, len(graph.scale), len(nodes))].tolist()
    moved = [min(max(time + int(rng.integers(-1, 2)), LOW), HIGH) for time in times]
    return list(dict.fromkeys(zip(nodes.tolist(), moved, strict=True)))


def native(graph: TimedGraph) -> tuple[CSC | RelationGroups, Ids]:
    """Returns a graph for `NeighborSampler`, and the position of each of its edges."""
    edge_time = [ALWAYS if time is None else time for time in graph.edge_time]
    node_time = [ALWAYS if time is None else time for time in graph.node_time]
    typed = len(graph.relations) > 1
    ordered = in_time_order(
        Graph.from_edges(
            graph.source,
            graph.destination,
            len(graph.node_type),
            edge_time=np.array(edge_time, np.int64),
            node_time=np.array(node_time, np.int64),
            edge_types=graph.relation if typed else None,
        )
    )
    csc = CSC(ordered.csc.indptr, ordered.csc.indices, time=ordered.edge_time)
    positions = np.arange(csc.num_edges) if ordered.edge_positions is None else ordered.edge_positions
    names = tuple(str(number) for number in range(len(graph.relations)))
    return RelationGroups.of(csc, ordered.edge_types, names) if typed else csc, positions


def sampled(graph: TimedGraph, seeds: list[Row], hops: int, key: int, **options: Any) -> list[Edges]:
    """Returns the edges that `NeighborSampler` draws, of the batch or of each seed."""
    disjoint, fanout = options.pop("disjoint", False), options.pop("fanout", -1)
    drawn, positions = native(graph)
    nodes, times = np.array(seeds, np.int64).reshape(-1, 2).T.copy()
    batch = NeighborSampler([fanout] * hops, **options).sample(drawn, nodes, key=key, times=times, disjoint=disjoint)
    outer = batch.blocks[0]
    assert batch.nodes is not None
    assert batch.times is not None
    assert outer.edge_ids is not None
    rows = list(zip(batch.nodes.tolist(), batch.times.tolist(), strict=True))
    tree_of = np.arange(len(rows)) if disjoint else np.zeros(len(rows), np.int64)
    trees = [Edges() for _ in range(len(seeds) if disjoint else 1)]
    for number in range(outer.num_dst):
        for place in range(outer.indptr[number], outer.indptr[number + 1]):
            edge, source = int(positions[outer.edge_ids[place]]), int(outer.indices[place])
            assert rows[source] == graph.source_row(rows[number], edge, options.get("time_bound", "seed"))
            if disjoint and source >= len(seeds):
                tree_of[source] = tree_of[number]
            trees[tree_of[number]][rows[number], edge] += 1
    return trees


def compare_sampler(number: int, typed: bool) -> int:
    """Compares one drawn graph with brute force. Returns the number of edges."""
    graph, rng = draw(number, typed)
    n, hops, last = len(graph.node_type), int(rng.integers(1, 4)), int(rng.integers(1, 4))
    seeds, count = draw_seeds(graph, rng, rng.integers(0, n, rng.integers(0, 5))), 0
    spans = np.diff(sorted(graph.scale)).tolist()
    for rule in ("strict", "inclusive", int(rng.choice([1, 2, *(span for span in spans if span < NEVER)]))):
        by_rule: dict[str, Any] = {"time": rule} if isinstance(rule, str) else {"time": "window", "window": rule}
        for (pick, fanout), bound in product((("uniform", -1), ("last", last)), TIME_BOUNDS):
            limit = None if pick == "uniform" else last
            options = {**by_rule, "pick": pick, "fanout": fanout, "time_bound": bound}
            (edges,) = sampled(graph, seeds, hops, number, **options)
            assert edges == graph.tree(seeds, hops, rule, limit, bound), (number, typed, options)
            apart = sampled(graph, seeds, hops, number, disjoint=True, **options)
            assert apart == [graph.tree([seed], hops, rule, limit, bound) for seed in seeds], (number, typed, options)
            count += sum(edges.values())
        bound = TIME_BOUNDS[number % 2]
        (some,) = sampled(graph, seeds, hops, number, fanout=last, time_bound=bound, **by_rule)
        for row in {row for row, _ in some}:
            drawn = [edge for at, edge in some.elements() if at == row]
            seen = graph.seen(row, rule)
            assert set(drawn) <= set(seen), (number, typed, rule)
            for relation in range(len(graph.relations)):
                of_drawn, of_seen = (np.sum(graph.relation[edges] == relation) for edges in (drawn, seen))
                assert of_drawn == min(last, of_seen), (number, typed, rule)
    later = [(node, time) for node, time in seeds if time > LOW]
    before = [(node, time - 1) for node, time in later]
    strict, inclusive = (
        sampled(graph, rows, hops, number, time=rule)[0] for rows, rule in ((later, "strict"), (before, "inclusive"))
    )
    assert Edges({((row[0], row[1] - 1), edge): k for (row, edge), k in strict.items()}) == inclusive, (number, typed)
    return count


def container(graph: TimedGraph) -> tuple[Data | HeteroData, Ids]:
    """Returns PyG's container, and the place of each edge in its relation."""
    place = np.zeros(len(graph.source), np.int64)
    if len(graph.relations) == 1:
        data = Data(edge_index=torch.from_numpy(np.stack([graph.source, graph.destination])))
        data.num_nodes, data.edge_time = len(graph.node_type), torch.tensor(graph.edge_time, dtype=torch.int64)
        return data, np.arange(len(graph.source))
    data, first = HeteroData(), np.searchsorted(graph.node_type, np.arange(6))
    for kind in range(5):
        times = graph.node_time[first[kind] : first[kind + 1]]
        data[str(kind)].num_nodes = len(times)
        if kind > 1:
            data[str(kind)].edge_time = torch.tensor(times, dtype=torch.int64)
    for number, (child, parent) in enumerate(graph.relations):
        edges = np.flatnonzero(graph.relation == number)
        place[edges] = np.arange(len(edges))
        ends = np.stack([graph.source[edges] - first[child], graph.destination[edges] - first[parent]])
        data[str(child), str(number), str(parent)].edge_index = torch.from_numpy(ends)
    return data, place


def loaded(graph: TimedGraph, seeds: list[Row], hops: int, last: int | None, kind: int) -> list[Edges]:
    """Returns the edges that `NeighborLoader` draws for each seed."""
    data, place = container(graph)
    first = np.searchsorted(graph.node_type, np.arange(6))
    nodes, times = torch.tensor(seeds, dtype=torch.int64).reshape(-1, 2).T
    typed = isinstance(data, HeteroData)
    loader = NeighborLoader(
        data,
        [-1 if last is None else last] * hops,
        (str(kind), nodes - first[kind]) if typed else nodes,
        times,
        time_attr="edge_time",
        temporal_strategy="uniform" if last is None else "last",
        batch_size=max(len(seeds), 1),
        threads=0,
    )
    trees = [Edges() for _ in seeds]
    for batch in loader:
        for number, (child, parent) in enumerate(graph.relations):
            of_relation = np.flatnonzero(graph.relation == number)
            store = batch[str(child), str(number), str(parent)] if typed else batch
            target = batch[str(parent)] if typed else batch
            at = target.n_id + (first[parent] if typed else 0)
            for edge, column in zip(store.e_id.tolist(), store.edge_index[1].tolist(), strict=True):
                tree = int(target.batch[column])
                assert place[of_relation[edge]] == edge
                trees[tree][(int(at[column]), seeds[tree][1]), int(of_relation[edge])] += 1
    return trees


def compare_loader(number: int, typed: bool) -> int:
    """Compares the trees of PyG's loader like `compare_sampler`."""
    graph, rng = draw(number, typed)
    if not typed:  # PyG's edges have times where its nodes have none
        times: list[int | None] = [max(graph.times_of(edge), default=LOW) for edge in range(len(graph.source))]
        graph = replace(graph, edge_time=times, node_time=[None] * len(graph.node_time))
    kind = int(rng.integers(5)) if typed else 0
    nodes = np.flatnonzero(graph.node_type == kind)
    hops, last = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    seeds, count = draw_seeds(graph, rng, rng.choice(nodes, rng.integers(1, 5))), 0
    for limit in (None, last):
        expected = [graph.tree([seed], hops, "inclusive", limit) for seed in seeds]
        assert loaded(graph, seeds, hops, limit, kind) == expected, (number, typed, limit)
        count += sum(sum(edges.values()) for edges in expected)
    return count


def large(num_nodes: int, num_edges: int) -> CSC:
    """Draws a graph with 1,000 times, and degrees with a heavy tail."""
    rng = np.random.default_rng(0)
    dst = np.sort((num_nodes * rng.random(num_edges) ** 2).astype(np.int64))
    times = rng.integers(-500, 500, num_edges)
    indptr = np.append(0, np.cumsum(np.bincount(dst, minlength=num_nodes)))
    weight, src = rng.random(num_edges), rng.integers(0, num_nodes, num_edges)
    return CSC(indptr, src, weight, time=times[np.lexsort((times, dst))])


def count_draws(csc: CSC, num_draws: int) -> dict[str, tuple[int, int]]:
    """Draws edges by all rules, and counts them, and those that are not visible.

    Args:
        csc: The graph, with weights and times.
        num_draws: The least number of draws of each rule.
    """
    rng, counts, since = np.random.default_rng(1), {}, np.asarray(csc.time)
    for rule, window in (("strict", None), ("inclusive", None), ("window", 300)):
        by_time: dict[str, Any] = {"time": rule, "window": window}
        samplers = {
            "uniform": NeighborSampler([15, 10, 5], **by_time),
            "last": NeighborSampler([15, 10, 5], **by_time, pick="last"),
            "replace": NeighborSampler([15, 10, 5], **by_time, replace=True),
            "weighted": WeightedSampler([15, 10, 5], **by_time),
            "path": NeighborSampler([15, 10, 5], **by_time, time_bound="path"),
        }
        for name, sampler in samplers.items():
            drawn = future = key = 0
            while drawn < num_draws:
                seeds, times = rng.choice(csc.num_nodes, 512, replace=False), rng.integers(-500, 501, 512)
                batch, key = sampler.sample(csc, seeds, key=key, times=times), key + 1
                outer = batch.blocks[0]
                assert batch.times is not None
                assert outer.edge_ids is not None
                bounds = np.repeat(batch.times[: outer.num_dst], np.diff(outer.indptr))
                drawn_at = since[outer.edge_ids]
                late = drawn_at > bounds if rule == "inclusive" else drawn_at >= bounds
                late |= drawn_at < bounds - (window or 2**62)
                drawn, future = drawn + len(late), future + int(late.sum())
            counts[f"{rule}, {name}"] = drawn, future
    return counts


def main() -> None:
    torch.set_num_threads(1)
    kind, count = sys.argv[1], float(sys.argv[2])
    if kind == "noise":
        with tempfile.TemporaryDirectory() as folder:
            noise.report(range(int(count)), Path(folder))
    if kind == "draws":
        counts = count_draws(large(10**6, 12 * 10**6), int(count / 12))
        for name, (drawn, future) in counts.items():
            print(f"{name}: {drawn:,} draws, {future} not visible", flush=True)
    for compare in (compare_sampler, compare_loader) if kind == "graphs" else ():
        for typed in (False, True):
            edges = sum(compare(number, typed) for number in range(int(count)))
            print(f"{compare.__name__}, typed={typed}: {edges:,} edges of {count:.0f} graphs", flush=True)


if __name__ == "__main__":
    main()
