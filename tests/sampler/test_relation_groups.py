"""Draws by relation: each relation draws as a graph of its own would."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gnnkit.errors import UserError
from gnnkit.graph import CSC, RelationGroups
from gnnkit.sampler import (
    BalancedSampler,
    ClusterSampler,
    Fanouts,
    FullSampler,
    LaborSampler,
    Loader,
    MetropolisHastingsSampler,
    NeighborSampler,
    Sampler,
    WeightedSampler,
)
from gnnkit.sampler.base import Reading

NODES, RELATIONS = 60, 4  # the last relation has no edges
NAMES = ("a", "b", "c", "empty")
FANOUTS = {"default": [3, 2], "b": [0, 1], "c": [-1, -1]}
MAKERS: dict[str, Callable[[], Sampler]] = {
    "neighbor": lambda: NeighborSampler(FANOUTS, importance="sum"),
    "replace": lambda: NeighborSampler(FANOUTS, replace=True, importance="sum"),
    "fill": lambda: NeighborSampler(FANOUTS, fill=True, importance="mean"),
    "redraw": lambda: NeighborSampler(FANOUTS, redraw=True, importance="mean"),
    "weighted": lambda: WeightedSampler(FANOUTS, importance="sum"),
    "weighted, replace": lambda: WeightedSampler(FANOUTS, replace=True, alpha=0.5, importance="sum"),
    "labor": lambda: LaborSampler(FANOUTS, importance="sum"),
}


def edges(seed: int = 0) -> tuple[CSC, np.ndarray]:
    """Makes weighted edges, some parallel or of weight 0, and their relations."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, NODES - 5, (2, 900))
    weight = rng.random(900) * (rng.random(900) < 0.9)
    return CSC.from_edges(src, dst, NODES, weight), rng.integers(0, RELATIONS - 1, 900).astype(np.int16)


CSC_OF, TYPES = edges()
ROWS = RelationGroups.of(CSC_OF, TYPES, NAMES)


def of_relation(relation: int) -> tuple[CSC, np.ndarray]:
    """Returns the edges of one relation, and their positions in the graph."""
    chosen = np.flatnonzero(relation == TYPES)
    indptr = np.searchsorted(chosen, CSC_OF.indptr)
    return CSC(indptr, CSC_OF.indices[chosen], CSC_OF.weight[chosen]), chosen


def test_groups_have_the_edges_of_their_node_and_relation() -> None:
    assert ROWS.order is not None
    np.testing.assert_array_equal(ROWS.csc.indices, CSC_OF.indices[ROWS.order])
    np.testing.assert_array_equal(ROWS.csc.weight, CSC_OF.weight[ROWS.order])
    for group, code in enumerate(ROWS.codes):
        node, relation = divmod(int(code), RELATIONS)
        in_edges = np.arange(CSC_OF.indptr[node], CSC_OF.indptr[node + 1])
        expected = in_edges[TYPES[in_edges] == relation]
        np.testing.assert_array_equal(ROWS.order[ROWS.starts[group] : ROWS.starts[group + 1]], expected)
        pair = np.array([node]), np.array([relation])
        assert ROWS.counts(*pair) == len(expected)
        assert ROWS.degrees(*pair) == pytest.approx(CSC_OF.weight[expected].sum())
    assert ROWS.starts[-1] == CSC_OF.num_edges


def test_edges_in_order_of_relation_are_not_copied() -> None:
    grouped = RelationGroups.of(ROWS.csc, TYPES[ROWS.order], NAMES)
    assert grouped.order is None
    assert grouped.csc is ROWS.csc


@pytest.mark.parametrize("name", MAKERS)
def test_a_relation_draws_as_a_graph_of_its_own(name: str) -> None:
    sampler, nodes = MAKERS[name](), np.arange(NODES)[::-1].copy()
    reading = sampler.reading(CSC_OF)  # type: ignore[attr-defined]
    by_hop = Fanouts.parse(FANOUTS).by_hop(NAMES)
    for hop in range(2):
        drawn = sampler.draw(ROWS, nodes, hop, key=9)  # type: ignore[arg-type]
        np.testing.assert_array_equal(TYPES[drawn.edge_ids], drawn.relation)
        row = np.repeat(np.arange(NODES), np.diff(drawn.indptr))
        for relation in range(RELATIONS):
            csc, positions = of_relation(relation)
            alone = MAKERS[name]()
            alone.fanouts = Fanouts.parse([fanouts[relation] for fanouts in by_hop])
            keys = relation * NODES + nodes
            expected = alone.draw(Reading(csc, wanted=reading.wanted, keys=keys), nodes, hop, key=9)  # type: ignore[arg-type]
            mine = drawn.relation == relation
            np.testing.assert_array_equal(np.bincount(row[mine], minlength=NODES), np.diff(expected.indptr))
            np.testing.assert_array_equal(drawn.edge_ids[mine], positions[expected.edge_ids])
            np.testing.assert_array_equal(drawn.weight[mine], expected.weight)


def test_the_nodes_of_a_relation_share_its_budget() -> None:
    csc = CSC_OF.weighted(None)
    drawn = BalancedSampler(FANOUTS).draw(RelationGroups.of(csc, TYPES, NAMES), np.arange(NODES), 0, key=1)
    for relation, fanout in enumerate([3, 0, None]):
        degrees = np.diff(of_relation(relation)[0].indptr)
        budget = degrees.sum() if fanout is None else fanout * np.count_nonzero(degrees)
        assert np.count_nonzero(drawn.relation == relation) == min(budget, degrees.sum())


@pytest.mark.parametrize("name", [*MAKERS, "balanced", "full"])
def test_batches_do_not_depend_on_threads_or_the_loader(name: str) -> None:
    make = {**MAKERS, "balanced": lambda: BalancedSampler(FANOUTS), "full": FullSampler}[name]
    one, many = make(), make()
    one.threads, many.threads = 1, 4  # type: ignore[attr-defined]
    seeds = np.arange(20)
    first, second = (sampler.sample(ROWS, seeds, key=5) for sampler in (one, many))  # type: ignore[arg-type]
    for block, other in zip(first.blocks, second.blocks, strict=True):
        np.testing.assert_array_equal(block.edge_ids, other.edge_ids)
        np.testing.assert_array_equal(block.relation, TYPES[block.edge_ids])
        np.testing.assert_array_equal(block.src_nodes[block.indices], CSC_OF.indices[block.edge_ids])
    loaders = [Loader(ROWS, make(), seeds, batch_size=7, threads=threads, batching="balanced") for threads in (1, 3)]
    for batch, other in zip(*loaders, strict=True):
        np.testing.assert_array_equal(batch.seeds, other.seeds)
        for block, same in zip(batch.blocks, other.blocks, strict=True):
            np.testing.assert_array_equal(block.edge_ids, same.edge_ids)
            np.testing.assert_array_equal(block.relation, same.relation)


def test_the_trees_of_complete_relations_have_all_edges() -> None:
    seeds = np.arange(NODES)
    expected = FullSampler(2).costs(CSC_OF, seeds)
    np.testing.assert_allclose(NeighborSampler([-1, -1]).costs(ROWS, seeds), expected)
    assert NeighborSampler([2]).costs(ROWS, seeds).sum() == sum(
        np.minimum(np.diff(of_relation(relation)[0].indptr), 2).sum() for relation in range(RELATIONS)
    )


def test_samplers_that_do_not_draw_by_relation_are_refused() -> None:
    for sampler in (MetropolisHastingsSampler([2]), ClusterSampler(np.zeros(NODES, int))):
        with pytest.raises(UserError, match="does not draw by relation"):
            sampler.sample(ROWS, np.arange(3), key=0)
        with pytest.raises(UserError, match="does not draw by relation"):
            Loader(ROWS, sampler)
    with pytest.raises(UserError, match="does not draw by relation"):
        MetropolisHastingsSampler(FANOUTS)


def test_fanouts_that_do_not_fit_the_graph_are_refused() -> None:
    with pytest.raises(UserError, match=r"sampler\.fanouts\.x is not a relation of the graph: .* a, b, c, empty"):
        NeighborSampler({"default": [1], "x": [2]}).sample(ROWS, np.arange(3), key=0)
    with pytest.raises(UserError, match=r"sampler\.fanouts\.b=\[0,1\]: .* use one list, sampler\.fanouts=\[3,2\]"):
        NeighborSampler(FANOUTS).sample(CSC_OF, np.arange(3), key=0)
    with pytest.raises(UserError, match="fanout with replacement"):
        NeighborSampler({"default": [1], "b": [2**25]}, replace=True).sample(ROWS, np.arange(3), key=0)
