"""partition=auto and strategy=auto: one decision, stored, and a run as if named."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from gnnkit_formats.synthetic import Synthetic
from gnnkit_plan import candidates as planning
from gnnkit_plan import decide, trial_steps
from gnnkit_sweep.compare import Compare

import gnnkit
from gnnkit import config, jobs
from gnnkit.config.settings import ranks, settle
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.jobs import check, run
from gnnkit.jobs.order import Order
from gnnkit.launch.environment import StartedRank
from gnnkit.utils.ranges import num_cores
from tests.cases import exhaustive, few
from tests.launch.outside import Outside, by_hand
from tests.runs import BARE

pytestmark = pytest.mark.usefixtures("short_trials")
QUICK = {"workers": 2, "comm": "threads", "trainer": {"max_epochs": 2, "check_val_every_n_epoch": 2}, **BARE}


@pytest.fixture(scope="module")
def graph() -> Graph:
    return Synthetic(num_nodes=300, num_edges=1500, width=4).load()


@pytest.fixture(scope="module")
def outside() -> Iterator[Outside]:
    launcher = Outside()
    yield launcher
    launcher.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "is_auto"),
    [({}, True), ({"trainer": {"max_epochs": 2}}, True), ({"workers": 2}, False), ({"strategy": "vertex_centric"}, False),
     ({"partition": "2d"}, False), ({"sync": "leader"}, False)], ids=str,
)  # fmt: skip
def test_a_call_with_a_graph_alone_leaves_the_workers_to_the_leader(
    keys: dict[str, Any], is_auto: bool, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders: list[Order] = []
    monkeypatch.setattr(jobs, "start", orders.append)
    gnnkit.train(graph, **keys)
    settings = orders[0].settings
    assert (settings.auto_workers is not None) == ("workers=auto" in orders[0].overrides) == is_auto
    assert is_auto or settings.workers == keys.get("workers", 4)


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "num_cores", lambda: 8)
    monkeypatch.setattr(ranks, "num_gpus", lambda: 0)
    monkeypatch.setattr(decide, "FEW_EDGES", 1000)


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("seconds", "edges", "taken", "tried", "told"),
    [
        ({1: 1.0, 2: 0.95}, 2000, 1, [1, 2], "workers=1: 1 s an epoch in a trial, workers=2 0.95 s"),
        ({1: 1.0, 2: 0.6, 4: 0.3, 8: 0.4}, 2000, 4, [1, 2, 4, 8], "workers=4: 0.3 s an epoch in a trial, workers=8 0.4 s"),
        ({1: 1.0, 2: 0.6, 4: 0.3, 8: 0.2}, 2000, 8, [1, 2, 4, 8], "workers=8: 0.2 s an epoch in a trial"),
        ({1: 1.0}, 1000, 1, [1], "workers=1: 1 s an epoch in a trial; 1,000 edges are too few"),
        ({1: None}, 2000, 4, [1], "workers=4: the default number"),
    ],
)  # fmt: skip
def test_workers_double_while_more_are_faster(
    seconds: dict[int, float | None],
    edges: int,
    taken: int,
    tried: list[int],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []

    def tried_order(order: Order, _: object) -> decide._Decision:
        seen.append(order.settings.workers)
        return decide._Decision(order.settings, seconds[order.settings.workers], edges)

    monkeypatch.setattr(decide, "_decide", tried_order)
    order = Order(settle(config.compose(["strategy=vertex_centric", "workers=auto"])))
    found = decide._with_workers(order, lambda: None)
    assert (found.workers, found.threads, seen) == (taken, 8 // taken, tried)
    assert found.decided is not None
    assert found.decided["why"].startswith(f"the leader chose {told}")
    assert not found.is_open


@pytest.mark.slow
@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    "keys", [["strategy=individual_sample"], ["strategy=vertex_centric", "task=link_prediction"]], ids=str
)
def test_the_usual_workers_are_taken_where_nothing_is_measured(keys: list[str]) -> None:
    order = Order(settle(config.compose([*keys, "workers=auto"])))
    found = decide._with_workers(order, lambda: None)
    assert found.workers == 4
    assert found.decided is not None
    assert (
        "workers=4: the default number, because trials measure only full-graph training of node tasks"
        in found.decided["why"]
    )


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("keys", "small", "threads", "told"),
    [([], 2869, 1, "edges are too few for several workers or threads"),
     ([], 2868, 8, "edges are too few for several workers"), (["threads=3"], 2869, 3, "edges are too few for several workers")], ids=str,
)  # fmt: skip
def test_a_small_graph_is_trained_by_one_thread(
    keys: list[str], small: int, threads: int, told: str, graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decide, "FEW_EDGES", 3000)
    monkeypatch.setattr(decide, "SMALL_EDGES", small)
    order = Order(settle(config.compose(["strategy=vertex_centric", "workers=auto", *keys])), graph=graph)
    found = decide._with_workers(order, lambda: None)
    assert (found.workers, found.threads, found.composed["threads"]) == (1, threads, threads)
    assert found.decided is not None
    assert found.decided["why"] == f"the leader chose workers=1: 2,869 {told}"


@pytest.mark.slow
@pytest.mark.usefixtures("eight_cores")
def test_numbers_of_workers_that_are_refused_are_not_tried() -> None:
    order = Order(settle(config.compose(["strategy=vertex_centric", "workers=auto", "leader.rebalance=true"])))
    auto = check(order).settings.auto_workers
    assert auto is not None
    assert auto.counts == (2, 4, 8)  # one worker has no other to give work to
    with pytest.raises(gnnkit.UserError, match="exchange=quantized: strategy=individual_sample takes no exchange"):
        check(Order(settle(config.compose(["strategy=individual_sample", "exchange=quantized", "workers=auto"]))))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_run_takes_the_workers_that_are_fastest_as_if_named(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(decide, "FEW_EDGES", 10)
    keys = {**QUICK, "workers": "auto", "strategy": "vertex_centric"}
    found = gnnkit.train(graph, folder=tmp_path / "auto", **keys)
    workers = found["world_size"]
    assert found["why"].startswith(f"the leader chose workers={workers}: ")
    assert "s an epoch in a trial" in found["why"]
    assert found["why"] in capsys.readouterr().out
    whole = yaml.safe_load((tmp_path / "auto" / "config.yaml").read_text())
    assert (whole["workers"], whole["threads"]) == (workers, max(num_cores() // workers, 1))
    again = gnnkit.train(graph, folder=tmp_path / "named", **{**keys, "workers": workers})
    assert again["train_loss"] == found["train_loss"]
    monkeypatch.setattr(decide, "_with_workers", None)  # a resumed run decides nothing
    trainer = {"max_epochs": 3, "resume": str(tmp_path / "auto")}
    on = gnnkit.train(graph, folder=tmp_path / "on", **{**keys, "trainer": trainer})
    assert on["world_size"] == workers
    assert "as decided in the run of" in on["why"]


@pytest.mark.slow
def test_a_graph_alone_is_trained_by_one_worker(graph: Graph, tmp_path: Path) -> None:
    found = gnnkit.train(graph, folder=tmp_path / "run", trainer={"max_epochs": 2}, **BARE)
    assert (found["world_size"], found["strategy"]) == (1, "vertex_centric")
    assert found["why"].startswith("the leader chose workers=1: 2,869 edges are too few")
    assert "; strategy=vertex_centric, whose ranks take" in found["why"]


def stored(folder: Path) -> dict[str, Any]:
    section: dict[str, Any] = yaml.safe_load((folder / "config.yaml").read_text())["partition"]
    return section


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_run_takes_the_leader_s_choice_as_if_it_was_named(
    graph: Graph, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = {**QUICK, "strategy": "vertex_centric", "comm": "gloo"}
    found = gnnkit.train(graph, partition="auto", folder=tmp_path / "auto", **keys)
    decision = json.loads((tmp_path / "auto" / "coordination.json").read_text())["decision"]
    assert found["why"] == decision["why"]
    assert decision["why"] in capsys.readouterr().out
    assert all(each["memory"] > 0 for each in decision["layouts"].values())
    section = stored(tmp_path / "auto")
    assert section["nodes"] == found["nodes"] != "auto"
    named = found["why"].removeprefix("the leader chose ").partition(":")[0].split()
    again = gnnkit.train(graph, overrides=named, folder=tmp_path / "named", **keys)
    assert again["train_loss"] == found["train_loss"]
    assert again["grid"] == found["grid"]
    assert again["words_gathered"] == found["words_gathered"]
    assert np.array_equal(*(np.load(tmp_path / run / "predictions.npy") for run in ("auto", "named")))
    predicted, measured = found["predicted"], found["measured"]
    assert predicted.keys() == measured.keys()
    assert predicted["seconds_per_epoch"] in [each.get("seconds") for each in decision["layouts"].values()]
    assert predicted["bytes_sent"] == measured["bytes_sent"] > 0
    assert measured["seconds_per_epoch"] == found["seconds_per_epoch"]
    assert 0.5 < predicted["memory"] / measured["memory"] < 2
    assert again["predicted"] is again["measured"] is None


@pytest.mark.slow
@pytest.mark.long("plans and trains twice")
@pytest.mark.exhaustive
def test_a_resumed_run_takes_the_decision_of_its_checkpoint(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = {"partition": "auto", "workers": 2, "comm": "threads", "folder": tmp_path / "first", **BARE}
    first = gnnkit.train(graph, strategy="auto", **chosen, trainer={"max_epochs": 1})

    def refuse(*_: object) -> None:
        raise AssertionError("a resumed run decides nothing")

    monkeypatch.setattr(decide, "_decide", refuse)
    trainer = {"max_epochs": 2, "resume": str(tmp_path / "first")}
    again = gnnkit.train(graph, strategy="auto", **chosen | {"folder": tmp_path / "second"}, trainer=trainer)
    assert first["measured"]["memory"] > 0
    assert (first["measured"]["seconds_per_epoch"], first["measured"]["bytes_sent"]) == (None, None)  # of one epoch
    assert again["predicted"] is again["measured"] is None
    assert (again["nodes"], again["grid"], again["strategy"]) == (first["nodes"], first["grid"], first["strategy"])
    assert "as decided in the run of" in again["why"]
    assert stored(tmp_path / "first") == stored(tmp_path / "second")


TINY = {"overrides": ["plan.memory=1e-9"], **QUICK}


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_graph_that_does_not_fit_is_refused_for_a_strategy_that_was_named(graph: Graph, tmp_path: Path) -> None:
    with pytest.raises(
        gnnkit.UserError, match=r"would take [\d,]+ bytes .* of 1 available .*strategy=individual_sample"
    ):
        gnnkit.train(graph, strategy="vertex_centric", partition="auto", folder=tmp_path / "run", **TINY)


@pytest.mark.slow
@pytest.mark.long("plans and trains")
@pytest.mark.exhaustive
def test_a_graph_that_does_not_fit_is_sampled(graph: Graph, tmp_path: Path) -> None:
    found = gnnkit.train(graph, strategy="auto", partition="auto", folder=tmp_path / "run", **TINY)
    assert (found["strategy"], found["sampler"], found["nodes"]) == ("individual_sample", "neighbor", "contiguous")
    assert "would take" in found["why"]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_graph_that_fits_is_trained_as_a_whole(graph: Graph, tmp_path: Path) -> None:
    found = gnnkit.train(graph, partition="2d", folder=tmp_path / "run", **QUICK)  # auto is the default
    assert (found["strategy"], found["nodes"], found["sampler"]) == ("vertex_centric", "contiguous", None)
    assert found["why"].startswith("the leader chose strategy=vertex_centric, whose ranks take ")
    assert found["predicted"]["bytes_sent"] == found["measured"]["bytes_sent"]
    assert found["grid"] == [2, 1, 1]
    with pytest.raises(UserError, match=r"partition.grid=\[4,1,1\] needs 4 workers, got workers=2"):
        gnnkit.train(graph, partition={"name": "1d", "grid": [4, 1, 1]}, folder=tmp_path / "refused", **QUICK)


@pytest.mark.slow
@few("strategy", ["individual_sample", "preset_workload"], default=["preset_workload"])
def test_ranks_that_exchange_no_rows_get_the_nodes_with_fewest_words(
    strategy: str, graph: Graph, tmp_path: Path
) -> None:
    found = gnnkit.train(graph, strategy=strategy, partition="auto", folder=tmp_path / "run", **QUICK)
    assert found["grid"] == [2, 1, 1]
    assert "nodes of other ranks, fewest of" in found["why"]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_learned_rows_are_tried(graph: Graph, tmp_path: Path) -> None:
    keys = {"overrides": ["inputs=learned", "embedding=8"], "partition": "auto", **QUICK}
    found = gnnkit.train(graph, strategy="vertex_centric", folder=tmp_path / "run", **keys)
    assert found["why"].startswith("the leader chose partition=")


@pytest.mark.slow
def test_a_program_takes_the_layout_with_fewest_words(graph: Graph, tmp_path: Path) -> None:
    keys = {
        "strategy": "vertex_centric",
        "model": "pagerank",
        "partition": "auto",
        "workers": 2,
        "comm": "threads",
        **BARE,
    }
    found = gnnkit.train(graph, folder=tmp_path / "run", **keys)
    assert "nodes of other ranks, fewest of" in found["why"]


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
            {"model": "pagerank", "workers": 2, "comm": "threads", **BARE},
            "strategy=auto takes vertex_centric, as another is refused: strategy=",
        ),
        exhaustive(({"model": Net, **QUICK}, "the leader chose strategy=vertex_centric, whose ranks take")),
        exhaustive(
            (
                {"model": "sage", "overrides": ["sync.on_lost=continue"], "sync": "leader", **QUICK, "comm": "gloo"},
                "takes individual_sample",
            )
        ),
        (
            {"model": "sage", "task": "link_prediction", **QUICK},
            "whose memory is not measured for task=link_prediction",
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
    monkeypatch.setattr("gnnkit.from_python.start", lambda overrides, *_, **__: seen.extend(overrides))
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
@pytest.mark.parametrize("key", ["grid=2d", "replication=2", "border=cover", "options.seed=1"])
def test_keys_that_auto_chooses_are_refused(key: str, tmp_path: Path) -> None:
    with pytest.raises(gnnkit.UserError, match=f"partition.{key.split('=', maxsplit=1)[0]}|partition.options"):
        gnnkit.train(strategy="vertex_centric", partition="auto", overrides=[f"partition.{key}"], folder=tmp_path / "a")


@pytest.mark.slow
def test_numbers_of_a_cluster_that_nothing_reads_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        gnnkit.UserError,
        match=r"plan\.bandwidth=3 is read by job=plan, partition=auto or strategy=auto only: leave the key out",
    ):
        gnnkit.train(strategy="vertex_centric", overrides=["plan.bandwidth=3"], folder=tmp_path / "run")


@pytest.mark.slow
@pytest.mark.exhaustive
def test_ranks_that_others_have_started_share_the_leader_s_decision(outside: Outside, tmp_path: Path) -> None:
    command = ["strategy=auto", "partition=auto", "dataset=synthetic", "dataset.num_nodes=300", "threads=1"]
    run = [*command, "trainer.max_epochs=1", "output=run", "comm.timeout=120"]
    ended = outside.run(tmp_path, [run] * 2, by_hand(2))
    assert [rank.code for rank in ended] == [0, 0], [rank.output for rank in ended]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["why"].startswith("the leader chose strategy=vertex_centric")
    assert stored(tmp_path / "run")["nodes"] == result["nodes"] != "auto"


@pytest.mark.slow
def test_a_decision_is_one_that_is_possible_and_travels_with_its_sampler() -> None:
    asked = settle(config.compose(["strategy=auto", "workers=2", "partition=auto"]))
    possible = decide.possible(asked)
    assert [each.strategy.name for each in possible] == ["vertex_centric", "individual_sample"]
    chosen = replace(possible[1], decided={"why": "made up"})
    assert decide.possible(chosen) == [chosen]
    found = run.adopt(asked, json.loads(json.dumps(run.decision_of(chosen))))
    assert (found.strategy, found.sampler, found.partition) == (chosen.strategy, chosen.sampler, chosen.partition)
    assert found.sampler is not None
    assert run.adopt(asked, None) is asked


@pytest.mark.slow
def test_the_layout_with_the_fastest_measured_epoch_is_chosen(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settle(config.compose(["strategy=vertex_centric", "workers=4", "partition=auto", "comm=threads"]))
    named = planning.candidates(4, planning.auto_names(), grids=True)
    tried, few_steps = list[str](), trial_steps.few_steps

    def timed(module: Any, job: Any, mailbox: Any) -> list[tuple[float, float]]:
        epochs = few_steps(module, job, mailbox)
        if module.worker.comm.rank > 0:
            return [(0.0, 0.0)] * len(epochs)
        tried.append(job.folder.name)
        return [(9.0 - len(tried), 0.0)] * len(epochs)  # later trials are faster

    monkeypatch.setattr(trial_steps, "few_steps", timed)
    order = Order(settings, graph=graph, folder=tmp_path)
    decided = decide.decide(order)
    assert 1 < len(tried) <= 3
    assert decided.partition == named[tried[-1]]
    assert decided.decided is not None
    assert f"in a trial, {len(tried)} of " in decided.decided["why"]
    rows = [line for line in capsys.readouterr().out.splitlines() if "x" in line and line.startswith(tuple(tried))]
    assert len(rows) == len(tried)


NO_PLANNER = """
import sys
from gnnkit.__main__ import main

strategies = "vertex_centric", "individual_sample"
code = max(main([f"strategy={name}", *sys.argv[2:], f"output={sys.argv[1]}/{name}"]) for name in strategies)
print([name for name in sys.modules if name.startswith("gnnkit_plan")])
raise SystemExit(code)
"""


@pytest.mark.long("trains in a process of its own")
@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_run_without_auto_does_not_import_the_planner(tmp_path: Path) -> None:
    keys = [
        "workers=2",
        "dataset=synthetic",
        "dataset.num_nodes=60",
        "trainer.max_epochs=1",
        "comm=threads",
        "threads=1",
    ]
    command = [sys.executable, "-c", NO_PLANNER, str(tmp_path), "partition=1d", *keys]
    ended = subprocess.run(
        [*command, "launcher=inline", "report=false", "logger=[]"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "[]"


def test_a_comparison_starts_ranks_of_its_own() -> None:
    started: Any = SimpleNamespace(started=StartedRank(0, 2, 0, 2))
    with pytest.raises(UserError, match="job=compare starts its own runs: remove torchrun, srun or mpirun"):
        Compare().check(Order(started))


@pytest.mark.slow
@pytest.mark.parametrize("job", ["train", "plan"])
@pytest.mark.parametrize("partition", ["auto", "hash"])
def test_only_layouts_that_the_exchange_supports_are_compared(
    job: str, partition: str, graph: Graph, tmp_path: Path
) -> None:
    keys: dict[str, Any] = {**QUICK, "workers": 4, "strategy": "vertex_centric", "overrides": ["exchange=pipelined"]}
    found = gnnkit.train(graph, job=job, partition=partition, folder=tmp_path / "run", **keys)
    grids = [layout["grid"] for layout in found["layouts"].values()] if "layouts" in found else [found["grid"]]
    assert grids
    assert all(grid == [4, 1, 1] for grid in grids)
    assert not any("cover" in name for name in found.get("layouts", {}))


@pytest.mark.slow
def test_an_exchange_that_the_named_border_does_not_support_is_refused(graph: Graph, tmp_path: Path) -> None:
    keys: dict[str, Any] = {**QUICK, "strategy": "vertex_centric", "overrides": ["exchange=pipelined"], "job": "plan"}
    with pytest.raises(UserError, match=r"use partition\.grid=1d, partition\.border=none"):
        gnnkit.train(graph, partition={"name": "hash", "border": "cover"}, folder=tmp_path / "run", **keys)


@pytest.mark.slow
@pytest.mark.parametrize("keys", [{"partition": "auto"}, {"partition": "hash"}], ids=str)
def test_a_run_prints_its_schedule_once(
    keys: dict[str, Any], graph: Graph, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {**QUICK, "trainer": {"max_epochs": 10}, "overrides": ["exchange=pipelined"], **keys}
    strategy = "vertex_centric" if keys["partition"] == "auto" else "auto"
    if strategy == "auto":
        given["overrides"] = ["sync=leader", "sync.mode=ssp"]
    gnnkit.train(graph, strategy=strategy, folder=tmp_path / "run", **given)
    assert capsys.readouterr().out.count("schedule of 10 epochs") == 1
