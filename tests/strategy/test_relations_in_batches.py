"""Batches of a relational model, by every strategy that draws or cuts them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gnnkit_testing.graphs import check_graph
from numpy.testing import assert_allclose

import gnnkit
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Relation
from gnnkit.graph.edge_order import with_inverse_edges
from tests.cases import few
from tests.runs import BARE, within_process

ALL = {"name": "neighbor", "fanouts": [-1, -1]}
SOME = {"name": "neighbor", "fanouts": {"default": [2, 1], "1": [0, -1]}}
PARTITIONED = {"name": "individual_sample", "batch_size": 4, "topology": "partitioned"}
STRATEGIES: dict[str, dict[str, Any]] = {
    "shared": {"name": "individual_sample", "batch_size": 4},
    "features": {"name": "individual_sample", "batch_size": 4, "features": "partitioned"},
    "partitioned": PARTITIONED,
    "joint": {"name": "joint_sample", "batch_size": 4},
}
MODELS = ["rgcn", "rgat", "simple_hgn", "hgt"]


def run(folder: Path, graph: Graph | None, **keys: Any) -> Any:
    """Runs a job on three ranks that are threads, unless keys say otherwise."""
    usual: dict[str, Any] = {"workers": 3, "comm": "threads", "model": {"name": "rgcn", "hidden": 4}, **BARE}
    trainer = {"max_epochs": 2, "precision": 64, "lr": 0.1}
    with within_process():
        return gnnkit.train(graph, folder=folder, **(usual | {"trainer": trainer} | keys))


def with_lone_relations(graph: Graph) -> Graph:
    """Adds node types, a relation of one edge, and an empty relation and node type."""
    types = np.array(graph.edge_types)
    types[7] = 3
    node_types = (("a", 10), ("empty", 0), ("b", graph.num_nodes - 10))
    return replace(graph, edge_types=types, edge_type_names=("0", "1", "2", "lone", "empty"), node_types=node_types)


GRAPH = with_lone_relations(check_graph())
UNWEIGHTED = replace(GRAPH, csc=GRAPH.csc.weighted(None))


def options_of(model: str, inverse: bool) -> dict[str, Any]:
    """Returns the keys of a run of three epochs that writes logits."""
    options = {"name": model, "hidden": 4, "num_layers": 2, "inverse": inverse, "dropout": 0.0}
    return {"model": options, "write": ["logits"], "trainer": {"max_epochs": 3, "precision": 64, "lr": 0.1}}


@pytest.fixture(scope="module")
def full_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], Any]:
    """Trains on the full graph, once for each model."""
    return functools.cache(
        lambda model, inverse: run(
            tmp_path_factory.mktemp("full"), GRAPH, strategy="vertex_centric", **options_of(model, inverse)
        )
    )


@pytest.mark.slow
@few(
    "inverse,model,name",
    [(bool(i // 2 % 2), model, name) for i, model in enumerate(MODELS) for j, name in enumerate(STRATEGIES) if (i + j) % 2 == 0],
    default=[(False, "rgcn", "shared"), (True, "hgt", "joint")],
)  # fmt: skip
def test_batches_of_all_neighbours_compute_what_the_full_graph_does(
    tmp_path: Path, name: str, model: str, inverse: bool, full_run: Callable[[str, bool], Any]
) -> None:
    everything = {**STRATEGIES[name], "batch_size": 1000}
    sampled_run = run(tmp_path, GRAPH, strategy=everything, sampler=ALL, **options_of(model, inverse))
    full = full_run(model, inverse)
    assert sampled_run["train_loss"] == pytest.approx(full["train_loss"], rel=1e-10)
    logits = [np.load(result.folder / "logits.npy") for result in (sampled_run, full)]
    assert_allclose(*logits, rtol=1e-8, atol=1e-9)


@pytest.mark.slow
@few("name", ["shared", "joint"], default=["shared"])
def test_one_hot_rows_learn_in_batches_what_they_learn_on_the_graph(tmp_path: Path, name: str) -> None:
    """The model is made once the number of relations and learned columns is known."""
    relations = 2 * GRAPH.num_relations + 1
    keys: dict[str, Any] = {"model": {"name": "rgcn", "one_hot": True, "hidden": 4}, "embedding": 4 * relations}
    keys |= {"inputs": "learned", "write": ["logits"], "trainer": {"max_epochs": 3, "precision": 64, "lr": 0.1}}
    everything = {**STRATEGIES[name], "batch_size": 1000}
    sampled_run = run(tmp_path / "sampled", GRAPH, strategy=everything, sampler=ALL, **keys)
    full = run(tmp_path / "full", GRAPH, strategy="vertex_centric", **keys)
    assert sampled_run["train_loss"] == pytest.approx(full["train_loss"], rel=1e-10)


@pytest.mark.slow
@few("name", ["partitioned", "joint"], default=["joint"])
def test_a_sampler_of_all_in_edges_needs_no_weights(tmp_path: Path, name: str) -> None:
    results = [
        run(tmp_path / str(number), UNWEIGHTED, strategy=STRATEGIES[name], sampler=sampler)
        for number, sampler in enumerate((ALL, "full"))
    ]
    assert results[0]["train_loss"] == pytest.approx(results[1]["train_loss"], rel=1e-12)


@pytest.mark.slow
@few(
    "model,weighted,name",
    [(model, (i + j) % 2 == 0, name) for i, model in enumerate(MODELS) for j, name in enumerate(STRATEGIES)],
    default=[("hgt", False, "partitioned")],
)
def test_ranks_compute_what_one_process_does(tmp_path: Path, name: str, weighted: bool, model: str) -> None:
    sampler = {"name": "neighbor", "fanouts": {"default": [2, 2], "1": [-1, -1]}}  # equal at every hop
    result = run(
        tmp_path,
        GRAPH if weighted else UNWEIGHTED,
        job="verify",
        model={"name": model, "num_layers": 2},
        strategy=STRATEGIES[name],
        sampler=sampler,
    )
    assert result["verified"]
    assert result["reference"] == "one rank with the whole graph"


@pytest.mark.slow
@few("name", ["neighbor", "weighted", "labor", "balanced"], default=["labor"])
def test_owners_draw_what_the_whole_graph_gives(tmp_path: Path, name: str) -> None:
    """The batches have equal bits, wherever nodes draw."""
    sampler = {**SOME, "name": name}
    names = ("shared", "features", "partitioned") if name != "balanced" else ("shared", "features")
    results = [run(tmp_path / mode, GRAPH, strategy=STRATEGIES[mode], sampler=sampler) for mode in names]
    assert len({result["train_loss"] for result in results}) == 1


@pytest.mark.slow
@few(
    "halo,model",
    [(halo, model) for halo in ("one_hop", "none", "cluster") for model in ("rgcn", "hgt")],
    default=[("one_hop", "rgcn"), ("cluster", "hgt")],
)
def test_shares_of_a_graph_have_relations(tmp_path: Path, halo: str, model: str) -> None:
    clusters = {"name": "cluster", "clusters": 4, "clusters_per_batch": 2}
    strategy = clusters if halo == "cluster" else {"name": "preset_workload", "halo": halo}
    options = {"name": model, "hidden": 4}
    assert run(tmp_path / "ranks", GRAPH, job="verify", strategy=strategy, model=options)["verified"]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_store_has_node_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores of earlier versions have them in the manifest only."""
    options, store = {"name": "hgt", "hidden": 4, "heads": 2}, tmp_path / "store"
    keys: dict[str, Any] = {"strategy": "vertex_centric", "model": options}
    reference = run(tmp_path / "graph", GRAPH, **keys)["train_loss"]
    run(store, GRAPH, job="partition", strategy="vertex_centric")

    def trained(name: str) -> float:
        loss: float = run(tmp_path / name, None, dataset={"name": "store", "root": str(store)}, **keys)["train_loss"]
        return loss

    assert trained("stored") == reference
    monkeypatch.setattr("gnnkit.partition.shard._read_type_sizes", lambda meta: None)
    assert trained("earlier") == reference


@pytest.mark.slow
def test_the_share_of_one_rank_is_the_graph(tmp_path: Path) -> None:
    runs = [run(tmp_path / name, GRAPH, strategy=name, workers=1) for name in ("preset_workload", "vertex_centric")]
    assert runs[0]["train_loss"] == pytest.approx(runs[1]["train_loss"], rel=1e-10)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_resumed_run_draws_the_same(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"strategy": STRATEGIES["shared"], "sampler": SOME, "write": ["logits"]}
    trainer = {"precision": 64, "lr": 0.1}
    run(tmp_path / "whole", GRAPH, **keys, trainer=trainer | {"max_epochs": 3})
    run(tmp_path / "first", GRAPH, **keys, trainer=trainer | {"max_epochs": 1})
    resume = str(tmp_path / "first")
    run(tmp_path / "rest", GRAPH, **keys, trainer=trainer | {"max_epochs": 3, "resume": resume})
    logits = [np.load(tmp_path / name / "logits.npy") for name in ("whole", "rest")]
    np.testing.assert_array_equal(*logits)


@pytest.mark.slow
def test_a_trained_model_predicts_under_any_strategy(tmp_path: Path) -> None:
    run(tmp_path / "run", GRAPH, strategy=STRATEGIES["shared"], sampler=SOME, write=["logits"])
    run(tmp_path / "predicted", GRAPH, job="predict", checkpoint=str(tmp_path / "run"), write=["logits"])
    logits = [np.load(tmp_path / name / "logits.npy") for name in ("run", "predicted")]
    assert_allclose(*logits, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.long("runs several jobs")
@pytest.mark.exhaustive
def test_a_model_of_node_types_expects_those_of_training(tmp_path: Path) -> None:
    options = {"name": "hgt", "hidden": 4, "heads": 2}
    run(tmp_path / "run", GRAPH, strategy=STRATEGIES["shared"], model=options)
    again: dict[str, Any] = {"job": "predict", "checkpoint": str(tmp_path / "run"), "model": options}
    run(tmp_path / "predicted", GRAPH, **again)
    model = gnnkit.load(tmp_path / "run")
    assert model(GRAPH).shape == (GRAPH.num_nodes, GRAPH.num_classes)
    second = replace(GRAPH, node_types=(("b", 10), ("empty", 0), ("a", GRAPH.num_nodes - 10)))
    message = "node types are b, empty, a here, and a, empty, b in the training data"
    with pytest.raises((UserError, RuntimeError), match=message):
        run(tmp_path / "other", second, **again)
    with pytest.raises(UserError, match=message):
        model(second)
    with pytest.raises((UserError, RuntimeError), match="node types are not named here, and a, empty, b"):
        run(tmp_path / "untyped", replace(GRAPH, node_types=None), **again)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"sampler": {"name": "metropolis_hastings"}}, "does not draw by relation"),
        ({"sampler": {"name": "neighbor", "fanouts": {"default": [2, 2], "x": [1, 1]}}}, "x is not a relation"),
        (
            {"sampler": {"name": "neighbor", "fanouts": {"default": [2, 2], ("a", "x", "b"): [1, 1]}}},
            "a-x-b is not a relation",
        ),
        ({"model": "gcn", "types": "ignore", "sampler": SOME}, "reads no relations"),
        (
            {"strategy": {"name": "preset_workload", "options": {"degrees": "local"}}},
            "does not weigh edges by relation",
        ),
    ],
)
def test_what_does_not_draw_by_relation_is_refused(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    with pytest.raises((UserError, RuntimeError), match=message):
        run(tmp_path / "run", GRAPH, **{"strategy": STRATEGIES["shared"], **keys})


def test_inverse_edges_have_relations_of_their_own() -> None:
    graph = with_inverse_edges(GRAPH)
    assert graph.edge_type_names == (*GRAPH.edge_type_names, *(f"rev_{name}" for name in GRAPH.edge_type_names))

    def edges(graph: Graph, of: Graph, *, reverse: bool) -> set[tuple[int, ...]]:
        dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))
        src, weight, types = graph.csc.indices, graph.csc.weight, graph.edge_types
        ends = (dst, src) if reverse else (src, dst)
        return set(zip(*ends, types % of.num_relations, np.float32(weight), graph.edge_features[:, 0], strict=True))

    is_inverse = graph.edge_types >= GRAPH.num_relations
    assert is_inverse.sum() == GRAPH.num_edges == (~is_inverse).sum()
    given = edges(GRAPH, GRAPH, reverse=False)
    for mask, reverse in ((is_inverse, True), (~is_inverse, False)):
        dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))[mask]
        indptr = np.searchsorted(dst, np.arange(graph.num_nodes + 1))
        csc = replace(graph.csc, indptr=indptr, indices=graph.csc.indices[mask], weight=graph.csc.weight[mask])
        columns = {"edge_types": graph.edge_types[mask], "edge_features": graph.edge_features[mask]}
        part = replace(graph, csc=csc, edge_positions=None, **columns)
        assert edges(part, GRAPH, reverse=reverse) == given


def test_inverse_relations_are_named_after_the_given_ones() -> None:
    relations = (Relation("a", "likes", "b"), Relation("b", "knows", "b"))
    names = tuple(relation.edge_type for relation in relations)
    ends = ([0, 2], [2, 3])
    graph = Graph.from_edges(
        *ends,
        4,
        edge_types=[0, 1],
        edge_type_names=names,
        node_types=(("a", 2), ("b", 2)),
        relations=relations,
    )
    two_way_graph = with_inverse_edges(graph)
    assert two_way_graph.edge_type_names == (*names, "b-rev_likes-a", "b-rev_knows-b")
    assert two_way_graph.relations == (*relations, Relation("b", "rev_likes", "a"), Relation("b", "rev_knows", "b"))
