"""gnnkit's sampling by relation, in the environment that runs `typed_sampling.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from serve import BATCH_SIZE, Batches, Case, Maker, Size, one_by_one, serve
from typed_case import TypedArrays
from typed_graph import graph_of

from gnnkit import _core
from gnnkit.graph import RelationGroups
from gnnkit.sampler import LoadedBatch, Loader, NeighborSampler


def rows_of(case: Case) -> RelationGroups:
    return case.cached("rows", lambda: RelationGroups.of_graph(graph_of(case)))


def sample(redraw: bool) -> Maker:
    """One batch at a time. Each edge has a relation."""

    def maker(case: Case) -> Batches:
        rows, sampler = rows_of(case), NeighborSampler(case.fanouts, redraw=redraw, threads=case.threads)
        arrays = TypedArrays.of(case)
        first = arrays.firsts[arrays.seed_type]

        def draw(batch: int) -> Size:
            minibatch = sampler.sample(rows, case.seeds(batch) + first, key=batch)
            blocks = minibatch.blocks if redraw else minibatch.blocks[:1]
            return sum(len(block.indices) for block in blocks), len(minibatch.input_nodes)

        return one_by_one(draw)

    return maker


def load(count: Callable[[LoadedBatch], Size]) -> Maker:
    """A batch a thread."""

    def maker(case: Case) -> Batches:
        graph, sampler, seed_type = graph_of(case), NeighborSampler(case.fanouts), TypedArrays.of(case).seed_type

        def batches(first: int) -> Iterator[Size]:
            loader = case.cached(
                f"loader {case.fanouts} {case.threads} {first}",
                lambda: Loader(
                    graph,
                    sampler,
                    (seed_type, case.all_seeds(first)),
                    BATCH_SIZE,
                    threads=case.threads,
                    prefetch=case.threads,
                    shuffle=False,
                ),
            )
            return (count(batch) for batch in loader)

        return batches

    return maker


def divided(batch: LoadedBatch) -> Size:
    """Counts a batch after all of its blocks are divided by relation."""
    edges = [len(edges.indptr) and len(edges.row) for block in batch.blocks for edges in block.relations.values()]
    num_edges = len(batch.minibatch.blocks[0].indices)
    assert sum(edges) >= num_edges
    return num_edges, len(batch.minibatch.input_nodes)


serve(
    {"sample": sample(redraw=False), "sample redraw": sample(redraw=True), "load": load(divided)},
    f"gnnkit {_core.__version__}",
)
