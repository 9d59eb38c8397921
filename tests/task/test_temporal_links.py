"""Links that are split by time are compared with rules that learn nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnkit
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.sampler.links import Links
from gnnkit.task.link_prediction import LinkPrediction
from gnnkit.task.recurrence import RULES
from tests.runs import BARE


def conversations(num_nodes: int = 30, num_events: int = 400) -> Graph:
    """Each message is answered in the next step, half of them at equal times."""
    rng = np.random.default_rng(0)
    ends = rng.integers(0, num_nodes, (num_events // 2, 2))
    ends[:, 1] += ends[:, 0] == ends[:, 1]
    events = np.stack([ends % num_nodes, ends[:, ::-1] % num_nodes], 1).reshape(-1, 2)
    time = 10 * (np.arange(num_events) - np.arange(num_events) % 2 * rng.integers(0, 2, num_events))
    graph = Graph.from_edges(*events.T, num_nodes, features=rng.normal(size=(num_nodes, 4)), edge_time=time)
    return graph.split_by_time([0.7, 0.15, 0.15])


def train(folder: Path, **keys: Any) -> Any:
    trainer = {"max_epochs": 2, "precision": 64}
    task = {"name": "link_prediction", "eval_negatives": 10}
    return gnnkit.train(
        conversations(),
        folder=folder,
        strategy="vertex_centric",
        model="sage",
        task=task,
        trainer=trainer,
        **BARE,
        **keys,
    )


@pytest.mark.slow
def test_rules_have_the_same_figures_on_any_number_of_ranks(tmp_path: Path) -> None:
    runs = [train(tmp_path / str(workers), workers=workers, comm="threads") for workers in (1, 3)]
    names = [f"{split}_{rule}_mrr" for split in ("val", "test") for rule in RULES]
    for name in names:
        assert runs[0][name] == pytest.approx(runs[1][name], rel=1e-12)
        assert 0 < runs[0][name] <= 1
    assert runs[0]["test_reply_mrr"] > runs[0]["test_edgebank_mrr"], "answers follow, but not at equal times"


@pytest.mark.slow
def test_a_model_below_a_rule_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "run", workers=1, comm="threads", threads=1)
    keys = {"trainer": {"max_epochs": 60, "lr": 1e-6}, "task": {"name": "link_prediction", "eval_negatives": 10}}
    gnnkit.train(
        conversations(), folder=tmp_path / "long", strategy="vertex_centric", model="sage", workers=1, **BARE, **keys
    )
    told = capfd.readouterr().err
    assert "where the best rule without a model gives" in told


def test_times_of_events_are_checked_and_stored(tmp_path: Path) -> None:
    _, links = LinkPrediction().prepare(conversations())
    assert links.events is not None
    assert links.events.shape == (400, 3)
    assert links.val_time is not None
    assert (links.val_time >= conversations().time_borders[0]).all()  # type: ignore[index]
    links.save(tmp_path / "links")
    np.testing.assert_array_equal(Links.load(tmp_path / "links").events, links.events)
    for field, value, message in [
        ("events", links.events[:, :2], "three columns"),
        ("val_time", links.val_time[1:], "val_time is not a list"),
        ("events", links.events + 1000, "events"),
    ]:
        with pytest.raises(UserError, match=message):
            replace(links, **{field: value}).check()
    assert LinkPrediction().prepare(replace(conversations(), time_borders=None))[1].events is None
