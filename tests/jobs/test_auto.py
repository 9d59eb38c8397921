"""partition=auto and strategy=auto: one decision, stored, and a run as if named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import gnnkit
from gnnkit import jobs, settings
from gnnkit.dataset.synthetic import Synthetic
from gnnkit.graph import Graph
from gnnkit.jobs import decide
from tests.launch.outside import Outside, by_hand
from tests.runs import BARE

QUICK = {"workers": 2, "trainer": {"max_epochs": 2, "check_val_every_n_epoch": 2}, **BARE}


@pytest.fixture(scope="module")
def graph() -> Graph:
    return Synthetic(num_nodes=300, num_edges=1500, width=4).load()


@pytest.fixture(scope="module")
def outside() -> Iterator[Outside]:
    launcher = Outside()
    yield launcher
    launcher.close()


@pytest.mark.parametrize(
    ("keys", "workers"),
    [({}, 1), ({"trainer": {"max_epochs": 2}}, 1), ({"workers": 2}, 2), ({"strategy": "vertex_centric"}, 4),
     ({"partition": "2d"}, 4), ({"sync": "leader"}, 4)], ids=str,
)  # fmt: skip
def test_a_call_with_a_small_graph_alone_takes_one_worker_and_says_so(
    keys: dict[str, Any],
    workers: int,
    graph: Graph,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    orders: list[Any] = []
    monkeypatch.setattr(jobs, "start", orders.append)
    gnnkit.train(graph, **keys)
    assert orders[0].settings.workers == workers
    assert ("workers=1" in orders[0].overrides) == ("edges are few" in capsys.readouterr().out) == (workers == 1)
    monkeypatch.setattr(settings, "FEW_EDGES", 10)
    gnnkit.train(graph, **keys)
    assert orders[1].settings.workers == (workers if "workers" in keys else 4)


def stored(folder: Path) -> dict[str, Any]:
    section: dict[str, Any] = yaml.safe_load((folder / "config.yaml").read_text())["partition"]
    return section


@pytest.mark.slow
def test_a_run_takes_the_leader_s_choice_as_if_it_was_named(
    graph: Graph, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = gnnkit.train(graph, strategy="vertex_centric", partition="auto", folder=tmp_path / "auto", **QUICK)
    decision = json.loads((tmp_path / "auto" / "coordination.json").read_text())["decision"]
    assert found["why"] == decision["why"]
    assert decision["why"] in capsys.readouterr().out
    assert all(each["seconds"] > 0 and each["memory"] > 0 for each in decision["layouts"].values())
    section = stored(tmp_path / "auto")
    assert section["nodes"] == found["nodes"] != "auto"
    named = found["why"].removeprefix("the leader takes ").partition(":")[0].split()
    again = gnnkit.train(graph, strategy="vertex_centric", overrides=named, folder=tmp_path / "named", **QUICK)
    assert again["train_loss"] == found["train_loss"]
    assert again["grid"] == found["grid"]
    assert again["words_gathered"] == found["words_gathered"]
    assert np.array_equal(*(np.load(tmp_path / run / "predictions.npy") for run in ("auto", "named")))


@pytest.mark.slow
def test_a_resumed_run_takes_the_decision_of_its_checkpoint(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = {"partition": "auto", "workers": 2, "folder": tmp_path / "first"}
    first = gnnkit.train(graph, strategy="auto", **chosen, trainer={"max_epochs": 1})

    def refuse(*_: object) -> None:
        raise AssertionError("a resumed run decides nothing")

    monkeypatch.setattr(decide, "_decide", refuse)
    trainer = {"max_epochs": 2, "resume": str(tmp_path / "first")}
    again = gnnkit.train(graph, strategy="auto", **chosen | {"folder": tmp_path / "second"}, trainer=trainer)
    assert (again["nodes"], again["grid"], again["strategy"]) == (first["nodes"], first["grid"], first["strategy"])
    assert "as decided in the run of" in again["why"]
    assert stored(tmp_path / "first") == stored(tmp_path / "second")


@pytest.mark.slow
def test_a_graph_that_does_not_fit_is_refused_or_sampled(graph: Graph, tmp_path: Path) -> None:
    tiny = {"overrides": ["plan.memory=1e-9"], **QUICK}
    with pytest.raises(gnnkit.UserError, match=r"would take [\d,]+ bytes .* of 1 at hand .*strategy=individual_sample"):
        gnnkit.train(graph, strategy="vertex_centric", partition="auto", folder=tmp_path / "refused", **tiny)
    found = gnnkit.train(graph, strategy="auto", partition="auto", folder=tmp_path / "sampled", **tiny)
    assert (found["strategy"], found["sampler"], found["nodes"]) == ("individual_sample", "neighbor", "contiguous")
    assert "would take" in found["why"]


@pytest.mark.slow
def test_a_graph_that_fits_is_trained_as_a_whole(graph: Graph, tmp_path: Path) -> None:
    found = gnnkit.train(graph, partition="2d", folder=tmp_path / "run", **QUICK)  # auto is the default
    assert (found["strategy"], found["nodes"], found["sampler"]) == ("vertex_centric", "contiguous", None)
    assert found["why"].startswith("the leader takes strategy=vertex_centric, whose ranks take ")


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["individual_sample", "preset_workload"])
def test_ranks_that_exchange_no_rows_get_the_nodes_with_fewest_words(
    strategy: str, graph: Graph, tmp_path: Path
) -> None:
    found = gnnkit.train(graph, strategy=strategy, partition="auto", folder=tmp_path / "run", **QUICK)
    assert found["grid"] == [2, 1, 1]
    assert "nodes of other ranks, fewest of" in found["why"]


@pytest.mark.slow
def test_learned_rows_are_foreseen(graph: Graph, tmp_path: Path) -> None:
    keys = {"overrides": ["inputs=learned", "embedding=8"], "partition": "auto", **QUICK}
    found = gnnkit.train(graph, strategy="vertex_centric", folder=tmp_path / "run", **keys)
    assert found["why"].startswith("the leader takes partition=")


@pytest.mark.slow
def test_a_program_takes_the_layout_with_fewest_words(graph: Graph, tmp_path: Path) -> None:
    keys = {"strategy": "vertex_centric", "model": "pagerank", "partition": "auto", "workers": 2}
    found = gnnkit.train(graph, folder=tmp_path / "run", **keys)
    assert "words in a step, the fewest" in found["why"]


class Net(torch.nn.Module):
    """A class of PyG's form, which reads whole graphs only."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.product = torch.nn.Linear(in_features, num_classes)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        src, dst = edge_index
        return torch.zeros(len(x), self.product.out_features).index_add_(0, dst, self.product(x)[src])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (
            {"model": "pagerank", "workers": 2, **BARE},
            "strategy=auto takes vertex_centric, as another is refused: strategy=",
        ),
        ({"model": Net, **QUICK}, "the leader takes strategy=vertex_centric, whose ranks take"),
        (
            {"model": "sage", "overrides": ["sync.on_lost=continue"], "sync": "leader", **QUICK},
            "takes individual_sample",
        ),
        (
            {"model": "sage", "task": "link_prediction", **QUICK},
            "whose memory is not predicted for task=link_prediction",
        ),
    ],
    ids=["program", "pyg", "lost", "links"],
)
def test_auto_takes_what_the_job_can_do(
    keys: dict[str, Any], told: str, graph: Graph, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gnnkit.train(graph, folder=tmp_path / "run", **keys)
    assert told in capsys.readouterr().out


@pytest.mark.parametrize("given", ["+strategy=joint_sample", "strategy=joint_sample", "+experiment=cora_gcn"])
def test_a_strategy_that_overrides_choose_is_taken(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(gnnkit, "_start", lambda overrides, *_, **__: seen.extend(overrides))
    gnnkit.train(overrides=[given])
    assert "strategy=auto" not in seen
    gnnkit.train(overrides=["trainer.lr=0.1"])
    assert "strategy=auto" in seen


@pytest.mark.slow
def test_a_job_that_no_strategy_can_do_is_refused_as_the_first(graph: Graph, tmp_path: Path) -> None:
    with pytest.raises(gnnkit.UserError, match=r"^sync.on_lost=continue.*vertex_centric"):
        gnnkit.train(
            graph,
            sync={"name": "leader", "on_lost": "continue"},
            task="link_prediction",
            folder=tmp_path / "run",
            **QUICK,
        )


@pytest.mark.slow
def test_a_cluster_as_numbers_is_planned_without_a_cluster(graph: Graph, tmp_path: Path) -> None:
    keys = {"strategy": "vertex_centric", "workers": 64, "partition": "2d"}
    slow, fast = (
        gnnkit.train(
            graph,
            folder=tmp_path / str(rate),
            overrides=["job=plan", f"plan.bandwidth={rate}", "plan.latency=10", "plan.flops=50", "plan.memory=4"],
            **keys,
        )
        for rate in (0.001, 1000)
    )
    assert slow["machine"]["between"] == {"latency": pytest.approx(10e-6), "bandwidth": pytest.approx(1e6)}
    assert slow["machine"]["ranks_per_host"] == 1
    assert slow["machine"]["memory"] == 4 * 2**30
    for name, layout in slow["layouts"].items():
        itemsize, received = 4, layout["words"]["max"]
        exchange = layout["seconds_of"]["exchange"]
        assert exchange >= received * itemsize / 1e6  # at 1 MB/s
        assert exchange > fast["layouts"][name]["seconds_of"]["exchange"]
        assert exchange <= received * itemsize / 1e6 + layout["messages"]["max"] * 10e-6 + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("key", ["grid=2d", "replication=2", "border=cover", "options.seed=1"])
def test_keys_that_auto_chooses_are_refused(key: str, tmp_path: Path) -> None:
    with pytest.raises(gnnkit.UserError, match=f"partition.{key.split('=', maxsplit=1)[0]}|partition.options"):
        gnnkit.train(strategy="vertex_centric", partition="auto", overrides=[f"partition.{key}"], folder=tmp_path / "a")


def test_numbers_of_a_cluster_that_nothing_reads_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        gnnkit.UserError, match=r"plan\.latency=3 is read by job=plan, partition=auto and strategy=auto"
    ):
        gnnkit.train(strategy="vertex_centric", overrides=["plan.latency=3"], folder=tmp_path / "run")


@pytest.mark.slow
def test_ranks_that_others_have_started_share_the_leader_s_decision(outside: Outside, tmp_path: Path) -> None:
    command = ["strategy=auto", "partition=auto", "dataset=synthetic", "dataset.num_nodes=300", "threads=1"]
    run = [*command, "trainer.max_epochs=1", "output=run", "comm.timeout=60"]
    ended = outside.run(tmp_path, [run] * 2, by_hand(2), timeout=120)
    assert [rank.code for rank in ended] == [0, 0], [rank.output for rank in ended]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["why"].startswith("the leader takes strategy=vertex_centric")
    assert stored(tmp_path / "run")["nodes"] == result["nodes"] != "auto"
