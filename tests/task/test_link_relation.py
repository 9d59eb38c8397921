"""Links of one relation: no leak through any relation, negatives of the right types."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData

import gnnkit
from gnnkit.comm.threads import Threads
from gnnkit.config.settings import Choice
from gnnkit.engine import ShardAdjacency
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Ids, Relation
from gnnkit.graph.edge_order import with_inverse_edges
from gnnkit.jobs.models import ModelSource, Widths
from gnnkit.model.gcn import GCN
from gnnkit.model.hgt import HGT
from gnnkit.model.rgat import RGAT
from gnnkit.model.rgcn import RGCN
from gnnkit.model.sage import GraphSAGE
from gnnkit.model.simple_hgn import SimpleHGN
from gnnkit.partition import Grid
from gnnkit.sampler import FullSampler, LaborSampler, NeighborSampler, Sampler, WeightedSampler
from gnnkit.sampler.links import codes, links_of, load_rows, pairs_of
from gnnkit.strategy import Batch, ExecutionStrategy, Worker
from gnnkit.strategy.individual_sample import IndividualSample
from gnnkit.strategy.joint_sample import JointSample
from gnnkit.strategy.preset_workload import PresetWorkload
from gnnkit.strategy.vertex_centric import VertexCentric
from gnnkit.task.link_prediction import LinkPrediction
from gnnkit.task.node_classification import NodeClassification
from tests.cases import few
from tests.graphs import shop
from tests.runs import BARE, within_process
from tests.task.steps import make_workers, run_steps
from tests.turns import turns

USERS, ITEMS, TAGS = 20, 14, 6
BUYS, SOLD, VIEWS, HAS, FOLLOWS = range(5)
GRAPH = shop(USERS, ITEMS, TAGS, num_buys=90)
N = GRAPH.num_nodes
NAME = "user-buys-item"
TASK = LinkPrediction(width=6, negatives=2, eval_negatives=5, val_share=0.1, test_share=0.2, relation=NAME)
PREPARED, LINKS = TASK.prepare(GRAPH)
INVERSE = with_inverse_edges(PREPARED)
assert LINKS is not None
INVERSE_LINKS = LINKS.with_inverse_edges(GRAPH.num_relations)
HELD = np.concatenate([LINKS.val.pairs, LINKS.test.pairs])
GRIDS = (Grid(2, 1, 1), Grid(3, 1, 1), Grid(2, 2, 1), Grid(1, 3, 1), Grid(2, 1, 2))
MODELS: dict[str, Callable[..., nn.Module]] = {"rgcn": RGCN, "rgat": RGAT, "simple_hgn": SimpleHGN, "hgt": HGT}
UNTYPED: dict[str, Callable[..., nn.Module]] = {"gcn": GCN, "sage": GraphSAGE}


def make_model(name: str, *, inverse: bool = True) -> nn.Module:
    torch.manual_seed(1)
    width = PREPARED.features.shape[1]
    if name in UNTYPED:
        return UNTYPED[name](width, 6, hidden=4, dropout=0.3).double()
    options: dict[str, Any] = {"hidden": 4, "num_layers": 2, "dropout": 0.3, "inverse": inverse}
    options |= {} if name == "rgcn" else {"heads": 2}
    options |= {"num_node_types": 3} if name == "hgt" else {}
    return MODELS[name](width, 6, PREPARED.num_relations, **options).double()


def triples(pairs: Ids, types: Ids) -> set[tuple[int, int, int]]:
    return {(int(u), int(v), int(kind)) for (u, v), kind in zip(pairs, types, strict=True)}


def edges_of(graph: Graph) -> set[tuple[int, int, int]]:
    assert graph.edge_types is not None
    return triples(pairs_of(graph.csc), graph.edge_types)


def test_held_out_edges_and_their_reverse_leave_and_all_other_relations_stay() -> None:
    before, after = edges_of(GRAPH), edges_of(PREPARED)
    edges = {(int(u), int(v), BUYS) for u, v in HELD}
    assert len(edges) == len(HELD) > 15
    assert before - after == edges | {(v, u, SOLD) for u, v, _ in edges}
    assert any((u, v, VIEWS) in after for u, v, _ in edges)  # another relation between the same nodes
    assert LINKS is not None
    assert LINKS.relation is not None
    assert LINKS.relation.hidden == (BUYS, SOLD)
    assert LINKS.relation.ends == (0, USERS, USERS, USERS + ITEMS)
    again, _ = LinkPrediction(val_share=0.1, test_share=0.2, relation=NAME).prepare(GRAPH)
    assert edges_of(again) == after


@pytest.mark.parametrize("evaluates", [False, True])
def test_negatives_keep_their_source_and_have_destinations_of_the_right_type(evaluates: bool) -> None:
    assert LINKS is not None
    edges = pairs_of(PREPARED.csc)[PREPARED.edge_types == BUYS]
    pairs = np.concatenate([HELD, edges])
    negatives = LINKS.negative_pairs(pairs, np.arange(len(pairs)), 300, 3, evaluates=evaluates)
    assert (negatives[:, :, 0] == pairs[:, None, 0]).all()
    bought = codes(pairs if evaluates else edges, N)
    for edge, others in zip(pairs, negatives, strict=True):
        items = np.arange(USERS, USERS + ITEMS)
        allowed = items[~np.isin(items * N + edge[0], bought) & (items != edge[1])]
        assert set(others[:, 1]) == set(allowed)


def test_a_source_with_every_destination_is_replaced_within_its_type() -> None:
    src, dst = np.r_[np.zeros(5, int), 1, 2], np.r_[np.arange(5), 0, 1] + 4
    graph = Graph.from_edges(
        src, dst, 9, edge_types=np.zeros(7, int), edge_type_names=["a-to-b"],
        node_types=(("a", 4), ("b", 5)), relations=(Relation("a", "to", "b"),),
    )  # fmt: skip
    _, links = LinkPrediction().prepare(graph)
    assert links is not None
    negatives = links.negative_pairs(np.array([[0, 5]]), np.arange(1), 200, 0, evaluates=True)[0]
    assert set(map(tuple, negatives.tolist())) == {(1, 5), (3, 5)}


def test_the_candidates_of_a_share_are_split_by_type() -> None:
    assert LINKS is not None
    among = np.array([30, 1, 22, 21, 2, 37])
    negatives = LINKS.negative_pairs(np.array([[1, 22]]), np.arange(1), 100, 0, among)[0]
    assert set(negatives[:, 1]) <= {21, 22, 30}
    assert set(negatives[:, 0]) <= {1, 2}


def test_a_single_relation_is_the_default_and_its_ends_count() -> None:
    edges = np.flatnonzero(np.asarray(GRAPH.edge_types) == BUYS)
    pairs = pairs_of(GRAPH.csc, edges)
    fields = {"edge_types": np.zeros(len(edges), int), "edge_type_names": [NAME]}
    fields |= {"node_types": GRAPH.node_types, "relations": (Relation("user", "buys", "item"),)}
    _, links = LinkPrediction().prepare(Graph.from_edges(*pairs.T, N, **fields))
    assert links is not None
    assert links.relation is not None
    assert links.relation.ends == (0, USERS, USERS, USERS + ITEMS)
    _, links = LinkPrediction().prepare(Graph.from_edges(*pairs.T, N))
    assert links is not None
    assert links.relation is None  # without types, all as before


def test_without_end_types_negatives_are_any_nodes_and_edges_show_the_reverse_relation() -> None:
    _, links = LinkPrediction(relation="1").prepare(replace(GRAPH, relations=None, edge_type_names=None))
    assert links is not None
    assert links.relation is not None
    assert (links.relation.hidden, links.relation.ends) == ((SOLD, BUYS), None)
    pairs = links.val.pairs[:1]
    negatives = links.negative_pairs(pairs, np.arange(1), 400, 0, evaluates=True)[0]
    assert {int((edge != pairs[0]).nonzero()[0][0]) for edge in negatives} == {0, 1}
    assert (negatives[:, 0] < USERS).any()


def test_a_reverse_relation_may_have_further_edges_which_stay() -> None:
    pairs, types = pairs_of(GRAPH.csc), np.asarray(GRAPH.edge_types)
    sold = {(int(u), int(v)) for u, v in pairs[types == SOLD]}
    further = [(u, v) for u in range(USERS, USERS + ITEMS) for v in range(USERS) if (u, v) not in sold][::7]
    graph = Graph.from_edges(
        *np.concatenate([pairs, further]).T, N, edge_types=np.append(types, np.full(len(further), SOLD)),
        edge_type_names=GRAPH.edge_type_names, node_types=GRAPH.node_types, relations=GRAPH.relations,
    )  # fmt: skip
    after, links = LinkPrediction(val_share=0.1, test_share=0.2, relation=NAME).prepare(graph)
    assert links is not None
    assert links.relation is not None
    assert links.relation.hidden == (BUYS, SOLD)
    remaining = edges_of(after)
    assert not {(int(v), int(u), SOLD) for u, v in np.concatenate([links.val.pairs, links.test.pairs])} & remaining
    assert {(u, v, SOLD) for u, v in further} <= remaining


@pytest.mark.slow
def test_a_share_with_one_destination_node_is_refused(tmp_path: Path) -> None:
    users = np.arange(20)
    graph = Graph.from_edges(
        users, 20 + users % 2, 22, features=np.eye(22, 3), node_types=(("user", 20), ("country", 2)),
        edge_type_names=("user-lives_in-country",), relations=(Relation("user", "lives_in", "country"),),
    )  # fmt: skip
    strategy, task = {"name": "preset_workload", "halo": "none"}, {"relation": "user-lives_in-country"}
    with pytest.raises(UserError, match=r"worker 0 has a single destination node.*strategy\.halo=one_hop"):
        run(graph, tmp_path, strategy=strategy, inputs="features", task=task)


def test_a_reverse_relation_by_name_hides_the_edges_that_it_has() -> None:
    """After a split, the reverse relation may also have the held-out edges."""
    assert GRAPH.relations is not None
    relations = (*GRAPH.relations[:1], Relation("item", "rev_buys", "user"), *GRAPH.relations[2:])
    named_graph = replace(GRAPH, relations=relations, edge_type_names=tuple(r.edge_type for r in relations))
    forward = np.flatnonzero(np.asarray(GRAPH.edge_types) == BUYS)
    test = pairs_of(GRAPH.csc, forward[::5])
    keep = np.delete(np.arange(GRAPH.num_edges), forward[::5])
    columns = {name: take[keep] for name, take in named_graph.edge_columns.items() if name in ("features", "weight")}
    source_graph = Graph.from_edges(
        *pairs_of(named_graph.csc, keep).T, N, edge_types=np.asarray(named_graph.edge_types)[keep], node_types=named_graph.node_types,
        edge_type_names=named_graph.edge_type_names, relations=relations, features=named_graph.features, **columns,
    )  # fmt: skip
    after, links = LinkPrediction(relation=NAME).prepare(replace(source_graph, test_edges=test))
    assert links is not None
    assert links.relation is not None
    assert links.relation.hidden == (BUYS, SOLD)
    assert links.given
    left = edges_of(after)
    assert not {(int(v), int(u), SOLD) for u, v in test} & left
    with pytest.raises(UserError, match=r"test_edges\[0, 1\] = \d+ is no tag, the destination type of item-has-tag"):
        LinkPrediction(relation="item-has-tag").prepare(
            replace(source_graph, test_edges=np.array([[USERS, USERS + 1], [USERS, N - 1]]))
        )


def test_a_relation_between_nodes_of_one_type_holds_both_directions_out() -> None:
    task = LinkPrediction(relation="user-follows-user", val_share=0.3)
    after, links = task.prepare(GRAPH)
    assert links is not None
    follows = {(u, v) for u, v, kind in edges_of(after) if kind == FOLLOWS}
    assert len(links.val) > 3
    assert not {tuple(edge) for edge in links.val.pairs.tolist()} & follows
    assert not {tuple(edge[::-1]) for edge in links.val.pairs.tolist()} & follows
    assert {edge for edge in edges_of(GRAPH) if edge[2] != FOLLOWS} <= edges_of(after)


def test_relations_survive_a_folder_and_bad_ones_are_refused(tmp_path: Path) -> None:
    assert INVERSE_LINKS.relation is not None
    assert INVERSE_LINKS.relation.hidden == (BUYS, SOLD, BUYS + 5, SOLD + 5)
    INVERSE_LINKS.save(tmp_path)
    assert links_of(load_rows(tmp_path)).relation == INVERSE_LINKS.relation
    for change, message in (
        ({"ends": (0, N + 1, 0, 1)}, r"ends\[1\] = 41"),
        ({"ends": (5, 4, 0, 1)}, r"ends=\[5, 4, 0, 1\] must be the first and last"),
        ({"ends": (5, 6, 1)}, r"ends=\[5, 6, 1\] must be"),
        ({"hidden": (1,)}, "must include the relation 0"),
        ({"hidden": (0, -1)}, r"hidden\[1\] = -1"),
        ({"hidden": ("a",)}, "hidden is not a list of integers"),
    ):
        bad = replace(INVERSE_LINKS, relation=replace(INVERSE_LINKS.relation, **change))  # type: ignore[arg-type]
        bad.save(tmp_path)
        with pytest.raises(UserError, match=message):
            links_of(load_rows(tmp_path))


def test_unknown_relations_and_relations_without_edges_are_refused() -> None:
    for name in ("buys", "user-buy-item", ("user", "buys", "items")):
        message = r"task.relation=\S+ is not known: did you mean user-buys-item\? there are: item-.*, user-buys-item"
        with pytest.raises(UserError, match=message):
            LinkPrediction(relation=name).prepare(GRAPH)
    with pytest.raises(UserError, match=r"task.relation=buys: the graph's edges have no types: remove the key"):
        LinkPrediction(relation="buys").prepare(Graph.from_edges([0, 1], [1, 2], 3))
    assert LinkPrediction(relation=["user", "buys", "item"]).relation == "user-buys-item"
    for bad in ("", True, 1.5, ["a"], ["user", "", "item"], ["user", 1, "item"]):
        with pytest.raises(UserError, match=r"task.relation=.* must be the name of a relation"):
            LinkPrediction(relation=bad)  # type: ignore[arg-type]
    names = {"edge_types": [0, 0], "edge_type_names": ["a", "b"]}
    with pytest.raises(UserError, match="the dataset has no training edges of the relation b"):
        LinkPrediction(relation="b").prepare(Graph.from_edges([0, 1], [1, 2], 3, **names))
    src, dst = np.divmod(np.arange(6), 3)
    ends = {"node_types": (("a", 2), ("b", 3)), "relations": (Relation("a", "to", "b"),), "edge_type_names": ["a-to-b"]}
    with pytest.raises(UserError, match="each of the 2 sources has an edge to all 3 destinations"):
        LinkPrediction().prepare(Graph.from_edges(src, dst + 2, 5, edge_types=np.zeros(6, int), **ends))


@functools.cache
def on_grid(name: str, grid: Grid, inverse: bool) -> Tensor:
    """Returns loss and gradient of each step of full-graph training."""
    workers = make_workers(PREPARED, grid, whole=False, rows=LINKS)
    return run_steps(VertexCentric(), TASK, make_model(name, inverse=inverse), workers, grid.world_size)


@pytest.mark.slow
@turns(name=[*MODELS, *UNTYPED], grid=GRIDS, inverse=[True, False])
def test_full_graph_ranks_compute_together_what_one_process_computes(name: str, grid: Grid, inverse: bool) -> None:
    reference = on_grid(name, Grid(1, 1, 1), inverse)
    torch.testing.assert_close(on_grid(name, grid, inverse), reference, rtol=1e-10, atol=1e-10)


def edges_read(batch: Batch) -> set[tuple[int, int, int]]:
    """Returns the edges that a full-graph batch reads."""
    adjacency = batch.adjacencies[0]
    assert isinstance(adjacency, ShardAdjacency)
    shard = adjacency.engine.shard
    ends = shard.sources[shard.csc.indices], np.repeat(shard.targets, np.diff(shard.csc.indptr))
    types = PREPARED.edge_types
    assert types is not None
    edge_ids = shard.edge_ids < PREPARED.num_edges
    return triples(np.stack(ends, 1)[edge_ids], types[shard.edge_ids[edge_ids]])


def positives_of(batch: Batch) -> Ids:  # [k, 2]
    last = batch.adjacencies[-1]
    ends = batch.outputs(last.src_nodes[: last.num_dst, None].double())[:, :, 0].long().numpy()
    labels = batch.labels.numpy() == 1
    negative = ends[~labels]
    assert ((negative[:, 0] < USERS) & (negative[:, 1] >= USERS) & (negative[:, 1] < USERS + ITEMS)).all()
    return np.asarray(ends[labels])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rgcn", "gcn"])
def test_a_full_graph_step_reads_all_edges_but_those_that_it_predicts_and_their_reverse(name: str) -> None:
    counts = []

    def look(batch: Batch) -> None:
        positive, read = positives_of(batch), edges_read(batch)
        hidden = {(int(u), int(v), BUYS) for u, v in positive}
        assert read == edges_of(PREPARED) - hidden - {(v, u, SOLD) for u, v, _ in hidden}
        counts.append(len(hidden))

    run_steps(VertexCentric(), TASK, make_model(name), make_workers(PREPARED, Grid(1, 1, 1), whole=False, rows=LINKS),
              1, look)  # fmt: skip
    assert min(counts) > 5


@pytest.mark.slow
@few("grid", GRIDS, [Grid(2, 2, 1)])
def test_degrees_within_relations_are_those_of_the_graph_without_the_edges(grid: Grid) -> None:
    """Compares with a graph that never had the edges, on one rank."""
    model = make_model("rgcn").eval()
    pairs = pairs_of(PREPARED.csc)
    types = np.asarray(PREPARED.edge_types)
    left_out = np.isin(types, (BUYS, SOLD)) & (pairs.sum(1) % 3 == 0)
    weight = np.random.default_rng(0).uniform(0.5, 2, len(pairs))
    weighted_graph = PREPARED.with_edges(PREPARED.csc.weighted(weight.astype(np.float32)), PREPARED.edge_columns)
    from gnnkit.task.link_split import with_edges

    without = with_edges(weighted_graph, np.flatnonzero(~left_out))

    def out(graph: Graph, grid: Grid, *, leaves: bool) -> Tensor:
        workers = make_workers(graph, grid, whole=False)

        def work(comm: Threads) -> tuple[Ids, Tensor]:
            worker = workers(comm)
            engine = worker.engine(model)
            if leaves:
                engine = engine.select_edges(np.flatnonzero(~left_out[engine.shard.edge_ids]), (BUYS, SOLD))
            with torch.no_grad():
                rows = model(worker.features.rows(worker.owned), ShardAdjacency.layers(engine, 2, 0))
                return worker.owned, rows

        parts = Threads.run(work, grid.world_size)
        return torch.cat([rows for _, rows in parts])[np.argsort(np.concatenate([nodes for nodes, _ in parts]))]

    reference = out(without, Grid(1, 1, 1), leaves=False)
    for layout in (Grid(1, 1, 1), grid):
        torch.testing.assert_close(out(weighted_graph, layout, leaves=True), reference, rtol=1e-10, atol=1e-10)


STRATEGIES: dict[str, Callable[[int], ExecutionStrategy]] = {
    "shared": lambda size: IndividualSample(batch_size=size),
    "features apart": lambda size: IndividualSample(batch_size=size, features="partitioned"),
    "topology apart": lambda size: IndividualSample(batch_size=size, topology="partitioned"),
    "cooperative": lambda size: JointSample(batch_size=size),
}
SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "neighbor": lambda: NeighborSampler([3, 3], threads=1),
    "weighted": lambda: WeightedSampler([3, 2], alpha=0.5, threads=1),
    "labor": lambda: LaborSampler([3, 3], threads=1),
    "full": FullSampler,
}


def workers_of(strategy: ExecutionStrategy, name: str, ranks: int, sampler: Sampler | None) -> Callable[..., Worker]:
    """Returns workers whose graph has inverse edges if the model reads these."""
    graph, links = (PREPARED, LINKS) if name in UNTYPED else (INVERSE, INVERSE_LINKS)
    reads = {"whole": strategy.reads.graph, "features": not strategy.reads.from_owners}
    make = make_workers(graph, Grid(ranks, 1, 1), sampler=sampler, rows=links, **reads)
    return lambda comm: replace(make(comm), inverse_edges=name not in UNTYPED, relation_names=graph.edge_type_names)


def total(kind: str, size: int, name: str, ranks: int, sampler: str) -> Tensor:
    strategy = STRATEGIES[kind](size)
    return run_steps(strategy, TASK, make_model(name), workers_of(strategy, name, ranks, SAMPLERS[sampler]()), ranks)


@pytest.mark.slow
@turns(
    name=["rgcn", "sage", "rgat", "simple_hgn", "gcn"],
    sampler=list(SAMPLERS),
    kind=["topology apart", "features apart"],
)
def test_sampled_links_have_the_bits_of_a_shared_graph(name: str, sampler: str, kind: str) -> None:
    for size in (4, 24):  # the larger one predicts all edges of the relation in one step
        assert torch.equal(total(kind, size, name, 3, sampler), total("shared", size, name, 3, sampler))


@pytest.mark.slow
@turns(name=["rgcn", "sage", "rgat", "simple_hgn", "hgt"], sampler=list(SAMPLERS))
def test_links_sampled_together_have_loss_and_gradient_of_one_rank(name: str, sampler: str) -> None:
    actual = total("cooperative", 12, name, 3, sampler)
    torch.testing.assert_close(actual, total("shared", 36, name, 1, sampler), rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@turns(kind=list(STRATEGIES), name=["rgcn", "gcn"], sampler=["full", "neighbor"])
def test_no_rank_reads_an_edge_of_the_step_nor_its_reverse_nor_one_held_out(kind: str, name: str, sampler: str) -> None:
    graph = PREPARED if name in UNTYPED else INVERSE
    pairs, types = pairs_of(graph.csc), np.asarray(graph.edge_types)

    def work(comm: Threads) -> list[tuple[Ids, Ids]]:
        strategy = STRATEGIES[kind](10)
        strategy.setup(workers_of(strategy, name, 3, SAMPLERS[sampler]())(comm), make_model(name))
        steps = []
        for batch in strategy.batches(0):
            ids = np.concatenate([adjacency.edge_ids.numpy() for adjacency in batch.adjacencies])
            steps.append((positives_of(batch), ids[ids < graph.num_edges]))
        strategy.close()
        return steps

    predicted_edges: list[tuple[int, int]] = []
    for step in zip(*Threads.run(work, 3), strict=True):
        positive, read = (np.concatenate(arrays) for arrays in zip(*step, strict=True))
        edges = triples(pairs[read], types[read])
        for u, v in (*positive.tolist(), *HELD.tolist()):
            for kind_of_edge in (BUYS, SOLD + 5):
                assert (u, v, kind_of_edge) not in edges
            for kind_of_edge in (SOLD, BUYS + 5):
                assert (v, u, kind_of_edge) not in edges
        if sampler == "full":  # the other relations between the same nodes are read
            assert any((u, v, VIEWS) in edges for u, v in positive.tolist())
            assert {BUYS, SOLD, VIEWS, FOLLOWS} <= {edge[2] for edge in edges}
        predicted_edges += map(tuple, positive.tolist())
    bought = pairs_of(PREPARED.csc)[np.asarray(PREPARED.edge_types) == BUYS]
    assert sorted(predicted_edges) == sorted(map(tuple, bought.tolist()))  # every edge once in an epoch


@pytest.mark.slow
def test_the_mean_over_a_relation_is_over_the_edges_that_a_step_leaves() -> None:
    """A step with all in-edges equals the full graph without the predicted edges."""
    strategy, model = IndividualSample(batch_size=15), make_model("rgcn").eval()
    worker = workers_of(strategy, "rgcn", 1, FullSampler())

    def work(comm: Threads) -> list[tuple[Tensor, Tensor]]:
        strategy.setup(worker(comm), model)
        results = []
        for batch in strategy.batches(0):
            with torch.no_grad():
                out = model(batch.x, batch.adjacencies)
            hidden = {(int(u), int(v)) for u, v in positives_of(batch)}
            pairs, types = pairs_of(PREPARED.csc), np.asarray(PREPARED.edge_types)
            is_hidden = [
                kind in (BUYS, SOLD) and bool({(u, v), (v, u)} & hidden)
                for (u, v), kind in zip(pairs.tolist(), types, strict=True)
            ]
            graph_worker = make_workers(PREPARED, Grid(1, 1, 1), whole=False)(comm)
            engine = graph_worker.engine(model).select_edges(np.flatnonzero(~np.array(is_hidden)), (BUYS, SOLD))
            with torch.no_grad():
                rows = model(graph_worker.features.rows(graph_worker.owned), ShardAdjacency.layers(engine, 2, 0))
            last = batch.adjacencies[-1]
            results.append((out, rows[last.src_nodes[: last.num_dst]]))
        strategy.close()
        return results

    for actual, reference in Threads.run(work, 1)[0]:
        torch.testing.assert_close(actual, reference, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rgcn", "sage"])
@pytest.mark.parametrize("halo", ["none", "one_hop"])
def test_shares_predict_edges_of_the_relation_and_read_none_of_these(halo: str, name: str) -> None:
    graph = PREPARED if name in UNTYPED else INVERSE
    pairs, types = pairs_of(graph.csc), np.asarray(graph.edge_types)
    strategy = PresetWorkload(halo=halo)
    batches: list[Batch] = []
    run_steps(strategy, TASK, make_model(name), workers_of(strategy, name, 3, None), 3, batches.append)
    num_predicted = 0
    for batch in batches:
        ids = torch.cat([adjacency.edge_ids for adjacency in batch.adjacencies]).numpy()
        edges = triples(pairs[ids[ids < graph.num_edges]], types[ids[ids < graph.num_edges]])
        for u, v in positives_of(batch).tolist():
            assert not {(u, v, BUYS), (v, u, SOLD), (v, u, BUYS + 5), (u, v, SOLD + 5)} & edges
            num_predicted += 1
    assert num_predicted > 10
    assert sum(len(batch.rows) for batch in batches) == sum({batch.total for batch in batches})


def run(graph: Any, folder: Path, **keys: Any) -> Any:
    task = {"name": "link_prediction", "relation": NAME, "eval_negatives": 20, **keys.pop("task", {})}
    usual = {"strategy": "vertex_centric", "workers": 2, "comm": "threads", "inputs": "learned", "model": "rgcn"}
    with within_process():
        return gnnkit.train(graph, task=task, folder=folder, **{**usual, **BARE, **keys})


@pytest.mark.slow
@pytest.mark.long("trains 100 epochs")
@few("model", ["rgcn", "simple_hgn"], [])  # the others learn tastes
def test_models_with_defaults_beat_chance_clearly(model: str, tmp_path: Path) -> None:
    result = run(shop(80, 40, 8, num_buys=500), tmp_path / "run", model=model)
    assert result["test_roc_auc"] > 0.7
    assert result["test_mrr"] > 0.3  # 0.17 by chance
    assert result["test_hits_10"] > 0.6  # 0.48 by chance


def tastes(num_users: int, num_items: int) -> HeteroData:
    """Draws purchases by latent factors, of which features are noisy observations."""
    rng = np.random.default_rng(0)
    users, items = rng.normal(size=(num_users, 4)), rng.normal(size=(num_items, 4))
    scores = users @ items.T + rng.gumbel(size=(num_users, num_items))
    data = HeteroData()
    for name, factors in (("user", users), ("item", items)):
        data[name].x = torch.from_numpy(factors + rng.normal(size=factors.shape)).float()
    bought = np.argsort(-scores, 1)[:, :8]
    ends = np.stack([np.repeat(np.arange(num_users), 8), bought.ravel()])
    data["user", "buys", "item"].edge_index = torch.from_numpy(ends)
    return data


@pytest.mark.slow
@pytest.mark.long("trains 100 epochs")
@few("model", ["rgat", "hgt"], ["rgat"])
def test_models_with_defaults_learn_tastes(model: Any, tmp_path: Path) -> None:
    result = run(tastes(200, 100), tmp_path / "run", model=model, workers=1, inputs="features")
    assert result["test_roc_auc"] > 0.65


@pytest.mark.parametrize("name", ["rgat", "simple_hgn"])
def test_attention_has_no_dropout_in_link_prediction_unless_configured(name: str) -> None:
    widths, nodes = Widths(4, 3, 0, 2), NodeClassification()
    for task, arguments, reference in (
        (LinkPrediction(), {}, 0.0),
        (LinkPrediction(), {"dropout": 0.3}, 0.3),
        (nodes, {}, 0.5),
        (nodes, {"dropout": 0.0}, 0.0),
    ):
        model = ModelSource(Choice("model", name, arguments)).make_model(widths, 0, task)
        assert model.dropout == model.convs[0].dropout == reference  # type: ignore[index, union-attr]
    with pytest.raises(UserError, match=r"^model.embeds is not known"):
        ModelSource(Choice("model", name, {"embeds": True})).trial()


@pytest.mark.slow
@few(
    "keys",
    [
        {"strategy": {"name": "individual_sample", "batch_size": 64}},
        {"strategy": {"name": "individual_sample", "batch_size": 64, "topology": "partitioned"}, "model": "rgat"},
        {"strategy": {"name": "joint_sample", "batch_size": 64}, "model": {"name": "simple_hgn", "num_layers": 2}},
        {"strategy": "preset_workload", "inputs": "degree"},
        {"model": "gcn", "types": "ignore"},
        {"model": "rgcn", "partition": "2d", "workers": 4, "job": "verify"},
        {"strategy": {"name": "individual_sample", "batch_size": 64}, "job": "verify"},
    ],
    default=3,
)
def test_whole_runs_predict_one_relation(keys: dict[str, Any], tmp_path: Path) -> None:
    result = run(shop(60, 30, 6, num_buys=300), tmp_path / "run", trainer={"max_epochs": 2}, **keys)
    if keys.get("job") == "verify":
        assert result["verified"], dict(result)
        return
    assert 0 <= result["test_roc_auc"] <= 1
    rows = np.load(tmp_path / "run" / "predictions.npy")
    assert (rows[:, 0] < 60).all()
    assert ((rows[:, 1] >= 60) & (rows[:, 1] < 90)).all()


@pytest.mark.slow
def test_a_typed_model_needs_the_name_of_the_relation(tmp_path: Path) -> None:
    message = (
        r"^task.relation is not set, and the graph has 5 relations \(user-buys-item, item-sold_to-user, .*"
        r"\): name the relation to predict, such as task.relation=user-buys-item$"
    )
    graph = shop(30, 20, 4, num_buys=120)
    with pytest.raises(UserError, match=message):
        run(graph, tmp_path / "run", task={"relation": None})
    keys: dict[str, Any] = {"task": {"relation": None}, "trainer": {"max_epochs": 1}}
    assert run(graph, tmp_path / "all", model="gcn", types="ignore", **keys)["epochs"] == 1
    store = {"job": "partition", "folder": tmp_path / "store", "cache": False}
    with within_process():
        task = {"name": "link_prediction", "eval_negatives": 20}
        gnnkit.train(graph, strategy="vertex_centric", task=task, inputs="learned", workers=2, **store)
    data = {"dataset": {"name": "store", "root": str(tmp_path / "store")}}
    with pytest.raises(UserError, match=message):
        run(None, tmp_path / "stored", task={"relation": None}, **data)


@pytest.mark.slow
def test_a_store_of_one_relation_trains_as_the_graph_does(tmp_path: Path) -> None:
    graph = shop(30, 20, 4, num_buys=120)
    trainer = {"max_epochs": 2}
    reference = run(graph, tmp_path / "run", trainer=trainer)
    with within_process():
        task = {"name": "link_prediction", "relation": NAME, "eval_negatives": 20}
        gnnkit.train(graph, strategy="vertex_centric", task=task, inputs="learned", workers=2, comm="threads",
                     job="partition", folder=tmp_path / "store", cache=False)  # fmt: skip
    data = {"dataset": {"name": "store", "root": str(tmp_path / "store")}}
    assert run(None, tmp_path / "stored", trainer=trainer, **data)["test_mrr"] == reference["test_mrr"]
    with pytest.raises(UserError, match=r"task.relation=item-has-tag: the store .* was cut with task.relation=user-b"):
        run(None, tmp_path / "other", task={"relation": "item-has-tag"}, **data)
