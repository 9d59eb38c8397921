"""Files of a run that ranks items: recommendations and vectors of the score."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import yaml
from gnnkit_plan.init import recommended

import gnnkit
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Relation
from gnnkit.graph.edge_order import with_inverse_edges
from gnnkit.sampler.links import pairs_of
from gnnkit.task.link_prediction import LinkPrediction
from tests.runs import BARE

USERS, ITEMS, K = 30, 24, 5
PAGE = Path(__file__).resolve().parents[2] / "docs/howto/recommend.md"
FLAT_INDEX = """
import numpy as np

METRIC_INNER_PRODUCT = 0


class IndexHNSWFlat:
    def __init__(self, width, links, metric):
        assert metric == METRIC_INNER_PRODUCT

    def add(self, rows):
        self.rows = rows

    def search(self, queries, k):
        scores = queries @ self.rows.T
        order = np.argsort(-scores, 1)[:, :k]
        return np.take_along_axis(scores, order, 1), order
"""  # stands in for faiss


def users_and_items() -> Graph:
    """Returns users of two tastes, with items of both, and text ids."""
    rng = np.random.default_rng(0)
    chosen = rng.random((USERS, ITEMS)) < np.where(np.arange(USERS)[:, None] % 2 == np.arange(ITEMS) % 2, 0.5, 0.05)
    src, dst = np.nonzero(chosen)
    return Graph.from_edges(
        src,
        dst + USERS,
        USERS + ITEMS,
        edge_types=np.zeros(len(src), np.int64),
        edge_type_names=["user-buys-item"],
        node_types=(("user", USERS), ("item", ITEMS)),
        relations=(Relation("user", "buys", "item"),),
        node_ids=np.array([*(f"u{i}" for i in range(USERS)), *(f"i{i}" for i in range(ITEMS))]),
    )


def run(folder: Path, **keys: Any) -> Any:
    task = {"name": "link_prediction", "width": 8, "loss": "softmax", "negatives": 3, "top_k": K}
    task |= keys.pop("task", {})
    return gnnkit.train(
        users_and_items(),
        strategy="vertex_centric",
        workers=keys.pop("workers", 1),
        comm="threads",
        inputs="learned",
        embedding=8,
        model="lightgcn",
        task=task,
        trainer=keys.pop("trainer", {"max_epochs": 15, "lr": 0.05}),
        output=str(folder),
        **BARE,
        **keys,
    )


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_a_run_recommends_unseen_items_by_the_vectors_it_writes(workers: int, tmp_path: Path) -> None:
    graph, folder = users_and_items(), tmp_path / "run"
    result = run(folder, workers=workers, write=["predictions", "vectors"])
    top = pyarrow.parquet.read_table(folder / "topk.parquet").to_pydict()
    assert list(top) == ["user", "rank", "item", "score"]
    vectors = {name: np.load(folder / "vectors" / f"{name}.npy") for name in ("user", "item")}
    ids = {name: np.load(folder / "vectors" / f"{name}_ids.npy") for name in ("user", "item")}
    assert graph.node_ids is not None
    np.testing.assert_array_equal(np.concatenate([ids["user"], ids["item"]]), graph.node_ids)
    scores = (vectors["user"] @ vectors["item"].T).astype(np.float64)
    seen = np.zeros(scores.shape, bool)
    seen[graph.csc.indices, np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr)) - USERS] = True
    scores[seen] = -np.inf
    best = np.argsort(-scores, 1)[:, :K]
    assert top["item"] == ids["item"][best].ravel().tolist()
    assert top["user"] == np.repeat(ids["user"], K).tolist()
    assert top["rank"] == [*range(1, K + 1)] * USERS
    np.testing.assert_allclose(top["score"], np.take_along_axis(scores, best, 1).ravel(), rtol=1e-5)
    assert result["test_recall_5"] > result["test_popularity_recall_5"]
    assert result["best_value"] == pytest.approx(result["val_ndcg_5"], rel=1e-5)


@pytest.mark.slow
def test_a_graph_alone_gets_the_keys_of_job_init(tmp_path: Path) -> None:
    graph = users_and_items()
    trained = gnnkit.train(graph, workers=1, trainer={"max_epochs": 2}, output=str(tmp_path / "run"), **BARE)
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    for key, value in recommended(graph).items():
        section, _, name = key.rpartition(".")
        found = config[section][name] if section else config[key]
        expected = 2 if key == "trainer.max_epochs" else value
        assert (found["name"] if isinstance(found, dict) else found) == expected, key
    assert trained["model"] == "lightgcn"
    assert trained["test_recall_20"] > 0


@pytest.mark.slow
def test_another_strategy_and_reverse_relations_are_configured_too(tmp_path: Path) -> None:
    graph, keys = users_and_items(), {"workers": 1, "comm": "threads", "trainer": {"max_epochs": 1}}
    automatic = gnnkit.train(graph, strategy="auto", output=str(tmp_path / "auto"), **keys, **BARE)
    assert (automatic["model"], automatic["strategy"]) == ("lightgcn", recommended(graph)["strategy"])
    scored = {"name": "link_prediction", "decoder": "mlp"}
    gnnkit.train(graph, task=scored, output=str(tmp_path / "mlp"), **keys, **BARE)
    sampled = gnnkit.train(graph, strategy="individual_sample", output=str(tmp_path / "sampled"), **keys, **BARE)
    assert (sampled["model"], sampled["strategy"]) == ("lightgcn", "individual_sample")
    both = gnnkit.train(with_inverse_edges(graph), output=str(tmp_path / "both"), **keys, **BARE)
    once = gnnkit.train(graph, output=str(tmp_path / "once"), **keys, **BARE)
    assert both["test_ndcg_20"] == pytest.approx(once["test_ndcg_20"], rel=1e-5)


def recommend(run: Path, graph: Graph, folder: Path) -> dict[tuple[str, str], float]:
    """Returns the scores that job=predict writes, by user and item."""
    gnnkit.predict(run, graph, output=str(folder), comm="threads", **BARE)
    assert not list(folder.glob("predictions*"))
    columns = pyarrow.parquet.read_table(folder / "topk.parquet").to_pydict()
    return dict(zip(zip(columns["user"], columns["item"], strict=True), columns["score"], strict=True))


@pytest.mark.slow
def test_predict_recommends_items_without_an_edge_to_known_and_new_users(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph, places = users_and_items(), np.random.default_rng(1).permutation(USERS)
    run(tmp_path / "run")
    known = recommend(tmp_path / "run", graph, tmp_path / "known")
    assert graph.node_ids is not None
    edges = {tuple(pair) for pair in graph.node_ids[pairs_of(graph.csc)].tolist()}
    assert len(known) == USERS * K
    assert not edges & known.keys()
    users = np.concatenate([places, np.arange(USERS, USERS + ITEMS)])
    ids = np.empty_like(graph.node_ids)
    ids[users] = graph.node_ids
    src, dst = users[pairs_of(graph.csc)].T
    fields = {"edge_type_names": graph.edge_type_names, "node_types": graph.node_types, "relations": graph.relations}
    fields |= {"edge_types": np.zeros(len(src), np.int64)}
    moved = replace(Graph.from_edges(src, dst, len(ids), **fields), node_ids=ids)
    assert recommend(tmp_path / "run", moved, tmp_path / "moved") == pytest.approx(known, rel=1e-4)
    assert "not in the training data" not in capsys.readouterr().err
    renamed = replace(graph, node_ids=np.where(graph.node_ids == "u3", "new", graph.node_ids))
    items = {item for user, item in recommend(tmp_path / "run", renamed, tmp_path / "new") if user == "new"}
    assert f"1 of {USERS + ITEMS} nodes are not in the training data" in capsys.readouterr().err
    assert len(items) == K
    assert not {("u3", item) for item in items} & edges


@pytest.mark.slow
def test_learned_rows_without_ids_belong_to_the_numbers_and_types_of_training(tmp_path: Path) -> None:
    graph, keys = replace(users_and_items(), node_ids=None), {"workers": 1, "comm": "threads"}
    trained = gnnkit.train(graph, trainer={"max_epochs": 1}, output=str(tmp_path / "run"), **keys, **BARE)
    moved = replace(graph, node_types=(("user", USERS + 1), ("item", ITEMS - 1)))
    with pytest.raises(
        (UserError, RuntimeError), match=r"have 31, 23 nodes, and 30, 24 in the training data: .* need node ids"
    ):
        gnnkit.predict(trained.folder, moved, output=str(tmp_path / "moved"), comm="threads", **BARE)
    src, dst = pairs_of(graph.csc).T
    fields = {"edge_type_names": graph.edge_type_names, "relations": graph.relations, "edge_types": graph.edge_types}
    types = (("item", ITEMS), ("user", USERS))
    swapped = Graph.from_edges(src + ITEMS, dst - USERS, USERS + ITEMS, node_types=types, **fields)
    with pytest.raises(
        (UserError, RuntimeError), match="node types are item, user here, and user, item in the training"
    ):
        gnnkit.predict(trained.folder, swapped, output=str(tmp_path / "swapped"), comm="threads", **BARE)


def test_pairs_of_one_type_are_not_recommended() -> None:
    graph = Graph.from_edges([0, 1, 2], [1, 2, 0], 3)
    with pytest.raises(UserError, match=r"recommends if task.relation joins two node types, .*write=\[logits\]"):
        LinkPrediction().prepare_known(graph)


@pytest.mark.slow
def test_early_stopping_and_a_trained_model_rank_items_too(tmp_path: Path) -> None:
    trained = run(tmp_path / "run", trainer={"max_epochs": 60, "patience": 2, "check_val_every_n_epoch": 1, "lr": 0.05})
    assert trained["stopped"] is not None
    tested = gnnkit.predict(tmp_path / "run", users_and_items(), job="test", output=str(tmp_path / "test"))
    assert tested["test_recall_5"] == pytest.approx(trained["test_recall_5"])
    one, other = (pyarrow.parquet.read_table(tmp_path / name / "topk.parquet") for name in ("run", "test"))
    assert one.column("item").equals(other.column("item"))


def test_vectors_need_a_dot_product(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"write=\['vectors'\]: vectors need .*task.decoder=dot"):
        run(tmp_path / "run", write=["vectors"], task={"decoder": "mlp"})


@pytest.mark.slow
def test_the_documented_search_finds_the_items_of_the_vectors(tmp_path: Path) -> None:
    """Runs the command of the page where faiss is installed, else in NumPy."""
    run(tmp_path / "RUN", write=["vectors"])
    vectors = {name: np.load(tmp_path / "RUN/vectors" / f"{name}.npy") for name in ("user", "item")}
    expected = np.argsort(-(vectors["user"][:3] @ vectors["item"].T), 1)[:, :10].tolist()
    command = re.findall(r"```shell\npython -c \"(.*?)\"\n```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]
    if importlib.util.find_spec("faiss") is None:
        (tmp_path / "faiss.py").write_text(FLAT_INDEX)
    done = subprocess.run([sys.executable, "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == expected
