"""The leader cuts the graph again, in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from gnnkit_rebalancing.recut import Change, Request, pays, recut

from gnnkit import config
from gnnkit.config.settings import Settings, settle
from gnnkit.graph import Graph
from gnnkit.jobs.rank_run import RankRun
from gnnkit.launch import program
from gnnkit.launch.watchdog import Patience
from gnnkit.leader.watch import WINDOW, Stragglers
from gnnkit.partition.shard import Shard
from gnnkit.prepare.cut import prepare
from gnnkit.prepare.facts import Needs, Preparation
from gnnkit.prepare.run_partition import load_partition, load_rebalanced
from gnnkit.result.result import COORDINATION, PREPARED
from tests.jobs.test_train import small_graph

SECONDS = [0.1, 0.3, 0.1]  # of a step, by rank
NEEDS = Needs(trains=True, graph=False, reference=False, recut=True)


def run_recut(request: Request, meanwhile: Callable[[], None] = lambda: None) -> Change:
    return Change(**program.run("gnnkit_rebalancing.recut", asdict(request), Patience(), meanwhile))


def settings(*overrides: str) -> Settings:
    return settle(config.compose(["strategy=vertex_centric", "workers=3", "cache=false", *overrides]))


@pytest.fixture
def request_of(tmp_path: Path) -> Callable[..., Request]:
    """Prepares a run, and creates requests to repartition its graph."""
    graph: Graph = small_graph()
    prepare(Preparation(settings(), NEEDS, tmp_path, graph))
    return lambda **keys: replace(Request(str(tmp_path), "again-1", SECONDS, 1000, 1.0), **keys)


@pytest.mark.slow
def test_new_shards_hold_every_edge_once_and_the_slow_rank_fewest(
    tmp_path: Path, request_of: Callable[..., Request]
) -> None:
    answer = run_recut(request_of())
    assert answer.moved > 0
    shards = [Shard.load(tmp_path / PREPARED / "again-1" / str(rank)) for rank in range(3)]
    edges = np.concatenate([shard.edge_ids for shard in shards])
    assert np.array_equal(np.sort(edges), np.arange(small_graph().num_edges))
    owned = [len(shard.owned) for shard in shards]
    assert owned[1] == min(owned)
    assert answer.after < 0.6 * answer.before == pytest.approx(0.18)
    partition, meta = load_partition(tmp_path)
    assert np.bincount(partition.node_rank).tolist() == owned
    assert meta["rebalanced"]
    regions = json.loads((tmp_path / COORDINATION).read_text())["regions"]
    assert [region["nodes"] for region in regions] == owned


def test_a_change_that_does_not_pay_writes_nothing(tmp_path: Path, request_of: Callable[..., Request]) -> None:
    before = load_partition(tmp_path)[0].node_rank.copy()
    for keys in ({"steps": 2}, {"cost": 1e6}, {"seconds": [0.1, 0.105, 0.1]}):
        assert recut(request_of(**keys)).moved == 0
    assert not (tmp_path / PREPARED / "again-1").exists()
    assert np.array_equal(load_partition(tmp_path)[0].node_rank, before)


def test_a_gain_must_exceed_its_cost_twice() -> None:
    assert pays(1.0, 0.5, 10, 2.4)
    assert not pays(1.0, 0.5, 10, 2.5)
    assert not pays(1.0, 0.9, 10**6, 0.0)


@pytest.mark.slow
def test_a_program_that_fails_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    request = Request(str(tmp_path / "nowhere"), "again-1", SECONDS, 100, 1.0)
    with pytest.raises(RuntimeError, match=r"the process gnnkit_rebalancing\.recut ended with exit code 1"):
        run_recut(request)
    assert "nowhere" in capfd.readouterr().err


@pytest.mark.slow
def test_a_program_that_is_given_up_is_ended(request_of: Callable[..., Request]) -> None:
    def give_up() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        run_recut(request_of(), give_up)


@pytest.mark.slow
def test_a_later_run_finds_the_partition_unless_it_names_another(
    tmp_path: Path, request_of: Callable[..., Request]
) -> None:
    resume, graph = f"trainer.resume={tmp_path}", small_graph()
    assert load_rebalanced(settings(resume), graph.num_nodes) == (None, [])  # as configured so far
    recut(request_of())
    found, lines = load_rebalanced(settings(resume), graph.num_nodes)
    assert found is not None
    assert np.array_equal(found.node_rank, load_partition(tmp_path)[0].node_rank)
    assert "as rebalanced" in lines[0]
    for others in ([resume, "partition=hash"], [resume, "workers=4"], []):
        assert load_rebalanced(settings(*others), graph.num_nodes) == (None, [])
    assert load_rebalanced(settings(resume), 61) == (None, [])
    (tmp_path / "partition/meta.json").write_text("{")
    assert "not read" in load_rebalanced(settings(resume), graph.num_nodes)[1][0]


def test_changes_are_added_to_the_coordination(tmp_path: Path, request_of: Callable[..., Request]) -> None:
    RankRun.note(SimpleNamespace(folder=tmp_path), {"rebalanced": [{"epoch": 3}]})  # type: ignore[arg-type]
    stored = json.loads((tmp_path / COORDINATION).read_text())
    assert stored["rebalanced"] == [{"epoch": 3}]
    assert stored["decision"]["why"]


def test_the_pace_is_the_median_of_the_last_steps() -> None:
    watched = Stragglers(2)
    for step in range(WINDOW):
        watched.observe(step, {0: 0.1, 1: 0.4 if step else 9.0})
    assert watched.slow == {1}
    assert watched.pace() == [0.1, 0.4]
