"""Samplers in Python that draw from each relation, and at the owners of nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from gnnkit.errors import UserError
from gnnkit.graph import CSC, Ids, RelationGroups
from gnnkit.graph.types import offsets_of
from gnnkit.sampler import Hop, Loader, Sampler
from gnnkit.strategy.individual_sample import IndividualSample
from tests.conftest import Install
from tests.strategy.test_relations_in_batches import GRAPH, STRATEGIES, UNWEIGHTED, run

COUNT = 2
ROWS = RelationGroups.of_graph(UNWEIGHTED)


class Lowest(Sampler):
    """Each node draws the `COUNT` in-edges with the lowest random numbers."""

    by_relation = True

    @property
    def draws_at_owners(self) -> bool:
        return True

    @property
    def rank_invariant(self) -> bool:
        return True

    def draw(self, graph: CSC, nodes: Ids, hop: int, *, key: int) -> Hop:
        edges, counts = graph.in_edges(nodes)
        ends = np.repeat(nodes.astype(np.uint64), counts) << np.uint64(32) | graph.indices[edges].astype(np.uint64)
        numbers = (ends ^ np.uint64(key % 2**64)) * np.uint64(0x9E3779B97F4A7C15)
        numbers ^= numbers >> np.uint64(29)
        rows = np.repeat(np.arange(len(nodes)), counts)
        order = np.lexsort((numbers * np.uint64(0xBF58476D1CE4E5B9), rows))
        place = np.arange(len(edges)) - np.repeat(offsets_of(counts)[:-1], counts)
        kept = np.sort(order[place < COUNT])
        indptr = offsets_of(np.minimum(counts, COUNT))
        return Hop(indptr, graph.indices[edges[kept]], edges[kept] if self.names_edges else None)

    names_edges = True


class Nameless(Lowest):
    """Returns no positions of edges."""

    names_edges = False


@pytest.fixture
def lowest(install: Install) -> None:
    install("samplers", {"gnnkit.sampler": {"lowest": f"{__name__}:Lowest", "nameless": f"{__name__}:Nameless"}})


def test_each_relation_is_drawn_with_positions_in_the_graph() -> None:
    seeds = np.arange(0, GRAPH.num_nodes, 3)
    batch = Lowest().sample(ROWS, seeds, key=5)
    types = np.array(UNWEIGHTED.edge_types)
    for block in batch.blocks:
        assert block.edge_ids is not None
        assert block.relation is not None
        assert np.array_equal(block.relation, types[block.edge_ids])
        assert np.array_equal(block.src_nodes[block.indices], UNWEIGHTED.csc.indices[block.edge_ids])
        rows = np.repeat(np.arange(block.num_dst), np.diff(block.indptr))
        drawn = np.bincount(rows * ROWS.num_relations + block.relation, minlength=block.num_dst * ROWS.num_relations)
        nodes = block.src_nodes[: block.num_dst]
        ends = np.repeat(np.arange(UNWEIGHTED.num_nodes), np.diff(UNWEIGHTED.csc.indptr))
        held = np.bincount(ends * ROWS.num_relations + types, minlength=UNWEIGHTED.num_nodes * ROWS.num_relations)
        assert np.array_equal(
            drawn.reshape(len(nodes), -1), np.minimum(held.reshape(-1, ROWS.num_relations)[nodes], COUNT)
        )
    assert any(
        batch.input_nodes.tolist() != Lowest().sample(ROWS, seeds, key=key).input_nodes.tolist() for key in range(6, 9)
    )


def test_one_relation_has_the_draws_of_an_untyped_graph() -> None:
    rows, seeds = RelationGroups.of(UNWEIGHTED.csc, None, ("only",)), np.arange(7)
    typed, plain = Lowest().sample(rows, seeds, key=3), Lowest().sample(UNWEIGHTED.csc, seeds, key=3)
    for block, other in zip(typed.blocks, plain.blocks, strict=True):
        assert np.array_equal(block.indptr, other.indptr)
        assert block.edge_ids is not None
        assert other.edge_ids is not None
        assert block.edge_ids.tolist() == other.edge_ids.tolist()


def test_the_loader_draws_from_each_relation() -> None:
    (batch,) = Loader(ROWS, Lowest(), np.arange(6), batch_size=6, shuffle=False, threads=1)
    assert batch.blocks[0].relation is not None
    assert set(batch.blocks[0].relation.tolist()) > {0}


@pytest.mark.parametrize("model", ["rgcn", "gcn"])
def test_owners_draw_what_ranks_with_the_graph_draw(model: str, tmp_path: Path, lowest: None) -> None:
    graph = UNWEIGHTED if model == "rgcn" else replace(UNWEIGHTED, edge_types=None, edge_type_names=None)
    graph = graph if model == "rgcn" else replace(graph, node_types=None)
    losses = {
        name: run(tmp_path / name, graph, strategy=strategy, sampler="lowest", model={"name": model, "hidden": 4})[
            "train_loss"
        ]
        for name, strategy in STRATEGIES.items()
    }
    for name in ("features", "partitioned"):
        assert_allclose(losses[name], losses["shared"], rtol=1e-12, err_msg=name)
    one = {"name": "individual_sample", "batch_size": 12}
    alone = run(tmp_path / "one", graph, strategy=one, sampler="lowest", model={"name": model, "hidden": 4}, workers=1)
    assert_allclose(losses["joint"], alone["train_loss"], rtol=1e-10)


def test_draws_without_positions_are_refused(tmp_path: Path, lowest: None) -> None:
    with pytest.raises(UserError, match=r"Nameless\.draw must return edge_ids, because by_relation=True"):
        Nameless().sample(ROWS, np.arange(3), key=0)
    untyped: Any = replace(UNWEIGHTED, edge_types=None, edge_type_names=None, node_types=None)
    with pytest.raises(UserError, match=r"Nameless\.draw must return edge_ids, because draws_at_owners is True"):
        run(
            tmp_path / "run",
            untyped,
            strategy=STRATEGIES["partitioned"],
            sampler="nameless",
            model={"name": "gcn", "hidden": 4},
        )


def test_owners_do_not_sample_by_time_in_python() -> None:
    sampler = Lowest()
    sampler.time = "strict"
    with pytest.raises(UserError, match=r"sampler=Lowest samples by time in Python; use sampler=neighbor"):
        IndividualSample(topology="partitioned").check(sampler, 2)
