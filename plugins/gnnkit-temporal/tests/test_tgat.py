"""model=tgat attends over earlier edges by their ages, exactly on several workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gnnkit_temporal import TGAT
from torch import Tensor

import gnnkit
from gnnkit.engine.block import BlockLayers
from gnnkit.engine.visible import TimedEdges, TimedLayers
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Graph, RelationGroups
from gnnkit.graph.edge_order import in_time_order
from gnnkit.graph.times import ALWAYS
from gnnkit.result.result import Result
from gnnkit.sampler import NeighborSampler
from tests.task.test_temporal_links import conversations

N, SPAN, RECENT, CUT = 300, 100_000, 4_000, 60_000
KEYS: dict[str, Any] = {
    "sampler": {"name": "neighbor", "fanouts": [8, 2], "time": "strict", "pick": "last"},
    "model": {"name": "tgat", "hidden": 16, "time_width": 8},
    "trainer": {"max_epochs": 2, "precision": 64},
    "comm": "threads",
    "report": False,
}


def recent(after: int | None = None) -> Graph:
    """Returns nodes whose labels say whether an edge of the latest time is positive.

    All nodes look alike, so that only ages and features of edges together tell labels.

    Args:
        after: Time from which edges are drawn anew. None: none are.
    """
    rng = np.random.default_rng(0)
    src, dst = N + rng.integers(0, N, 20 * N), rng.integers(0, N, 20 * N)
    edge_time, node_time = rng.integers(0, SPAN, 20 * N), np.sort(rng.integers(SPAN // 4, SPAN, N))
    features = rng.choice([-1.0, 1.0], (20 * N, 1))
    age = node_time[dst] - edge_time
    hits = (age > 0) & (age <= RECENT) & (features[:, 0] > 0)
    labels = np.append(np.isin(np.arange(N), dst[hits]), np.full(N, -1))
    if after is not None:
        later = edge_time >= after
        src[later], features[later] = N + np.random.default_rng(1).integers(0, N, int(later.sum())), 0
    graph = Graph.from_edges(
        src,
        dst,
        2 * N,
        features=np.ones((2 * N, 1)),
        edge_features=features,
        labels=labels,
        edge_time=edge_time,
        node_time=np.append(node_time, np.full(N, ALWAYS)),
    )
    return graph.split_by_time(borders=[CUT, 80_000])


def train(folder: Path, graph: Graph, workers: int = 1, **keys: Any) -> Result:
    values = {**KEYS, "strategy": {"name": "individual_sample", "batch_size": 48 // workers}, **keys}
    return gnnkit.train(graph, folder=folder, workers=workers, launcher="threads", **values)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_labels_that_ages_tell_are_learned(tmp_path: Path) -> None:
    trainer = {"max_epochs": 30, "lr": 0.01}
    result = train(tmp_path / "run", recent(), trainer=trainer)
    assert result["test_roc_auc"] > 0.85
    sage = train(tmp_path / "sage", recent(), trainer=trainer, model={"name": "gine", "hidden": 16})
    assert result["test_roc_auc"] > sage["test_roc_auc"] + 0.1


@pytest.mark.slow
@pytest.mark.exhaustive
def test_figures_are_those_of_one_worker_on_several(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    results = [train(tmp_path / str(workers), recent(), workers) for workers in (1, 2, 4)]
    assert "not checked" not in capfd.readouterr().out
    for name in ("train_loss", "val_loss", "test_loss", "test_roc_auc"):
        assert [result[name] for result in results] == pytest.approx([results[0][name]] * 3, abs=1e-10), name


@pytest.mark.slow
def test_edges_after_a_node_change_no_output(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"write": ["logits"], "trainer": {"max_epochs": 2, "monitor": None}}
    graphs = {"first": recent(), "second": recent(after=CUT)}
    rows = {}
    for name, graph in graphs.items():
        folder = train(tmp_path / name, graph, **keys).run_folder
        assert folder is not None
        rows[name] = np.load(folder / "logits.npy")[:N]
    assert graphs["first"].node_time is not None
    before = graphs["first"].node_time[:N] <= CUT
    np.testing.assert_array_equal(rows["first"][before], rows["second"][before])
    assert not np.array_equal(rows["first"], rows["second"])


@pytest.mark.slow
def test_labelled_edges_are_predicted_from_what_came_before(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    ends, time = rng.integers(0, 40, (2, 600)), rng.integers(0, 1000, 600)
    labels = rng.integers(0, 2, 600)
    graph = Graph.from_edges(*ends, 40, features=np.ones((40, 1)), edge_labels=labels, edge_time=time)
    result = train(tmp_path / "run", graph.split_by_time([0.6, 0.2, 0.2]), task="edge_classification")
    assert 0.3 < result["test_roc_auc"] < 0.7


@pytest.mark.slow
@pytest.mark.exhaustive
def test_links_are_predicted_by_the_ages_of_earlier_events(tmp_path: Path) -> None:
    task = {"name": "link_prediction", "eval_negatives": 10}
    sampler = {**KEYS["sampler"], "fanouts": [4, 4]}
    figures = []
    places: list[dict[str, str]] = [{}, {"topology": "partitioned"}, {"name": "joint_sample"}]
    for place in places:
        workers = 3 if place else 1
        strategy = {"name": "individual_sample", "batch_size": 60 // workers, **place}
        folder = tmp_path / str(len(figures))
        result = train(folder, conversations(), workers, task=task, sampler=sampler, strategy=strategy)
        assert result["evaluation"] == "fresh"
        figures.append([result[name] for name in ("train_loss", "val_mrr", "test_mrr", "test_roc_auc")])
    np.testing.assert_allclose(figures[1:], figures[:1] * 2, atol=1e-10)


def test_runs_that_do_not_sample_by_time_are_refused(tmp_path: Path) -> None:
    match = "model=tgat reads edge times.*sampler.time=strict and strategy=individual_sample"
    with pytest.raises(UserError, match=match):
        train(tmp_path / "none", recent(), sampler={"name": "neighbor", "fanouts": [2, 2]})
    with pytest.raises(UserError, match=match):
        gnnkit.train(recent(), folder=tmp_path / "full", strategy="vertex_centric", model="tgat", report=False)
    with pytest.raises(UserError, match="model=tgat reads edge times"):
        TGAT(1, 2)(torch.ones(3, 1), torch.tensor([[0], [1]]))
    with pytest.raises(UserError, match=r"model\.hidden=7 must be a multiple of model\.heads=2"):
        TGAT(1, 2, hidden=7)


def by_hand(model: TGAT, x: Tensor, graph: Graph, index: int, node: int, time: int) -> Tensor:
    """Computes a node's row of layer `index` before a time, edge by edge."""
    if index < 0:
        return x[node]
    conv: Any = model.convs[index]
    below = (lambda rows: rows.relu()) if index else (lambda rows: rows)
    own = below(by_hand(model, x, graph, index - 1, node, time))
    assert graph.edge_time is not None
    assert graph.edge_features is not None
    keys, values = [], []
    for edge in range(graph.csc.indptr[node], graph.csc.indptr[node + 1]):
        since = int(graph.edge_time[edge])
        if since < time:
            row = below(by_hand(model, x, graph, index - 1, int(graph.csc.indices[edge]), time))
            age = torch.tensor([float("nan") if since == ALWAYS else float(time - since)], dtype=torch.float64)
            encoded = torch.cat([model.time(age)[0], torch.from_numpy(graph.edge_features[edge])])
            key, value = (conv.row(row) + conv.edge(encoded)).chunk(2)
            keys.append(key)
            values.append(value)
    query, attended = conv.query(own), torch.zeros(conv.query.out_features, dtype=torch.float64)
    for head in torch.arange(len(query)).chunk(conv.heads) if keys else ():
        scores = torch.stack([query[head] @ key[head] for key in keys]) / len(head) ** 0.5
        attended[head] = scores.softmax(0) @ torch.stack(values)[:, head]
    out: Tensor = conv.out(torch.cat([attended, own]))
    return out


def test_outputs_are_those_of_a_loop_over_earlier_edges() -> None:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    n, m = 8, 40
    time = np.where(rng.random(m) < 0.1, ALWAYS, rng.integers(0, 20, m))
    features = rng.normal(size=(m, 2))
    graph = in_time_order(Graph.from_edges(*rng.integers(0, n, (2, m)), n, edge_time=time, edge_features=features))
    csc, x = CSC(graph.csc.indptr, graph.csc.indices, time=graph.edge_time), torch.from_numpy(rng.normal(size=(n, 3)))
    model = TGAT(3, 2, hidden=4, time_width=5, edge_width=2).double().eval()
    seeds, times = np.arange(n), rng.integers(0, 22, n)
    sampler = NeighborSampler([-1, -1], time="strict")
    batch = sampler.sample(csc, seeds, key=0, times=times)
    values = BlockLayers(graph, model, torch.float64, torch.device("cpu"))
    timed = TimedEdges(csc, lambda: RelationGroups.of(csc, None, ("",)))
    layers = TimedLayers.of(values, timed, batch, sampler)
    out = model(x[torch.from_numpy(batch.input_nodes)], layers.layers(batch.blocks, key=0))
    expected = [by_hand(model, x, graph, 1, int(node), int(time)) for node, time in zip(seeds, times, strict=True)]
    torch.testing.assert_close(out, torch.stack(expected))
