"""Approximate training has exact first and last steps, on a schedule that it keeps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import gnnkit
from gnnkit.exchange.pipelined import Pipelined
from gnnkit.graph import CSC, Graph, Split
from gnnkit.leader.epochs import short
from gnnkit.strategy import vertex_centric
from gnnkit.strategy.base import Phases
from gnnkit.training import checkpoint
from gnnkit.training.exact_epochs import PARTS
from gnnkit.training.resume import position
from tests.cases import exhaustive, few, in_turn
from tests.jobs.test_train import small_graph
from tests.runs import BARE

SCHEMES: dict[str, dict[str, Any]] = {
    "supersteps": {"strategy": {"name": "vertex_centric", "local_iterations": 3}},
    "auto": {"strategy": {"name": "vertex_centric", "local_iterations": "auto"}},
    "leader": {"strategy": {"name": "vertex_centric", "local_iterations": 3}, "sync": "leader"},
    "pipelined": {"exchange": "pipelined"},
    "quantized": {"exchange": {"name": "quantized", "bits": 2}},
    "async": {"sync": {"name": "parameter_server", "mode": "async"}},
    "servers": {"sync": {"name": "parameter_server", "mode": "ssp", "servers": 2}},
    "ssp": {"sync": {"name": "leader", "mode": "ssp"}},
    "neighbour": {"sync": {"name": "neighbour", "exchange": "parameters"}},
    "preset": {"strategy": {"name": "preset_workload", "halo": "none"}},
    "preset averages": {"strategy": {"name": "preset_workload", "average": "parameters", "sync_every": 3}},
    "preset accumulates": {"strategy": {"name": "preset_workload", "sync_every": 3}},
    "preset rows": {"strategy": {"name": "preset_workload", "exchange_every": 3}},
    "clusters": {"strategy": {"name": "cluster", "clusters": 8, "clusters_per_batch": 2}},
}
SAMPLED: dict[str, dict[str, Any]] = {
    "individual": {"strategy": {"name": "individual_sample", "batch_size": 4}},
    "partitioned": {"strategy": {"name": "individual_sample", "batch_size": 4, "topology": "partitioned"}},
    "joint": {"strategy": {"name": "joint_sample", "batch_size": 4}},
}


@pytest.fixture(autouse=True)
def any_cut_has_supersteps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vertex_centric, "MAX_REMOTE", 1.0)


def run(
    folder: Path, trainer: dict[str, Any], *, data: Graph | None = None, **keys: Any
) -> tuple[dict[str, Any], Tensor]:
    """Trains three workers. Returns the result and the last parameters."""
    run_keys: dict[str, Any] = {"strategy": "vertex_centric", "workers": 3, "threads": 1, "comm": "threads"}
    run_keys |= {"partition": "1d", "model": {"name": "gcn", "hidden": 5, "dropout": 0.0}, **BARE, **keys}
    trainer = {"precision": 64, "monitor": None, "lr": 0.05} | trainer
    result = gnnkit.train(data or small_graph(), folder=folder, trainer=trainer, **run_keys)
    state = checkpoint.load(folder / "checkpoints/last.json")["state_dict"]
    return dict(result), torch.cat([value.flatten() for value in state.values()])


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Tensor]:
    """Returns the last parameters of exact training, once for each schedule."""
    return functools.cache(lambda **trainer: run(tmp_path_factory.mktemp("exact"), trainer)[1])


TIMED = ("async", "servers", "ssp")  # whose steps depend on timing
STEADY = [name for name in SCHEMES if name not in TIMED]
EPOCHS = [1, 3, 6, 8, 9]  # from which a run of ten epochs resumes


@pytest.mark.slow
@few("name", SCHEMES, default=["supersteps", "ssp"])
def test_exact_epochs_only_are_the_exact_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exact: Callable[..., Tensor]
) -> None:
    reference = exact(max_epochs=6)
    monkeypatch.setattr(Phases, "is_exact", lambda *_: True)
    result, actual = run(tmp_path / "run", {"max_epochs": 6}, **SCHEMES[name])
    assert float((actual - reference).abs().max()) <= 1e-10
    assert result["drift"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["individual", exhaustive("partitioned"), exhaustive("joint")])
def test_mini_batches_have_full_graph_steps_on_request(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exact: Callable[..., Tensor]
) -> None:
    keys = {**SAMPLED[name], "sampler": {"name": "neighbor", "fanouts": [2, 2]}}
    trainer = {"max_epochs": 6, "exact_shares": [0.2, 0.2]}
    assert run(tmp_path / "shares", trainer, **keys)[0]["schedule"]["approximate"] == 4
    assert run(tmp_path / "auto", {"max_epochs": 6}, **keys)[0]["schedule"] is None
    reference = exact(max_epochs=6)
    monkeypatch.setattr(Phases, "is_exact", lambda *_: True)
    _, result = run(tmp_path / "run", trainer, **keys)
    assert float((result - reference).abs().max()) <= 1e-10


@pytest.mark.slow
@few("name", SCHEMES, default=["pipelined", "preset averages"])
def test_the_schedule_is_printed_and_kept(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], exact: Callable[..., Tensor]
) -> None:
    """A loss that explodes changes nothing, and some epochs are approximate."""
    trainer = {"max_epochs": 10, "lr": 5.0}
    result, actual = run(tmp_path / "run", trainer, **SCHEMES[name])
    counts = {key: result["schedule"][key] for key in ("start", "approximate", "finish")}
    if name == "quantized":
        assert counts == {"start": 0, "approximate": 10, "finish": 0}
    else:
        assert counts == {"start": 1, "approximate": 7, "finish": 2}
        line = "schedule of 10 epochs: 1 to 1 exact, 2 to 8 approximate, 9 to 10 exact (trainer.exact_shares=auto)"
        assert capfd.readouterr().out.count(line) == 1
    if name not in TIMED:
        assert not torch.equal(actual, exact(**trainer))


@pytest.mark.slow
@few(
    "name,epoch",
    [*in_turn(STEADY, EPOCHS), *(("pipelined", epoch) for epoch in EPOCHS if epoch != 8)],
    default=[("supersteps", 1), ("leader", 6), ("pipelined", 9)],
)
def test_a_run_resumes_to_the_bit_in_every_phase(name: str, epoch: int, tmp_path: Path) -> None:
    """Epochs 0 and 8 to 9 are exact."""
    trainer = {"max_epochs": 10, "check_val_every_n_epoch": 4, "keep_checkpoints": 20, "checkpoint_every": 1}
    result, reference = run(tmp_path / "run", trainer, **SCHEMES[name])
    (resume,) = (path for path in (tmp_path / "run/checkpoints").glob("*.json") if epoch_of(path) == epoch)
    again, resumed_run = run(tmp_path / "rest", {**trainer, "resume": str(resume)}, **SCHEMES[name])
    assert torch.equal(resumed_run, reference)
    assert again["schedule"] == result["schedule"]
    assert again["best_evaluation"] == result["best_evaluation"] is not None


def epoch_of(path: Path) -> int:
    place = position(path)
    return -1 if place is None else place[0]


@pytest.mark.slow
def test_a_longer_run_has_the_schedule_of_its_own_epochs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "half", {"max_epochs": 10}, **SCHEMES["supersteps"])
    resume = str(tmp_path / "half/checkpoints/last.json")
    capfd.readouterr()
    result, _ = run(tmp_path / "rest", {"max_epochs": 20, "resume": resume}, **SCHEMES["supersteps"])
    assert result["supersteps"] == [[0, 1], [2, 3], [16, 1]]
    assert [result["schedule"][part] for part in PARTS] == [1, 7 + 6, 2 + 4]
    out, err = capfd.readouterr()
    assert "schedule of 20 epochs: 11 to 16 approximate, 17 to 20 exact (trainer.exact_shares=auto)" in out
    assert "13 of 20 epochs were approximate" in err


@pytest.mark.slow
def test_evaluations_before_a_run_resumed_without_more_steps_are_kept(tmp_path: Path) -> None:
    keys, trainer = SCHEMES["pipelined"], {"max_epochs": 6, "check_val_every_n_epoch": 2}
    result, _ = run(tmp_path / "run", trainer, **keys)
    (tmp_path / "run/result.json").unlink()  # as if the run had ended before its results
    again, _ = run(tmp_path / "run", trainer, overrides=["on_exists=resume"], **keys)
    assert again["schedule"] == result["schedule"]
    assert again["best_evaluation"] == result["best_evaluation"] is not None


@pytest.mark.slow
@pytest.mark.parametrize("exact", [False, True])
def test_asynchronous_mini_batches_have_synchronous_epochs_unless_exact_ones_are_requested(
    exact: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    keys = SAMPLED["individual"] | {
        "sampler": {"name": "neighbor", "fanouts": [2, 2]},
        "sync": SCHEMES["async"]["sync"],
    }
    trainer = {"max_epochs": 10, "exact_shares": [0.1, 0.2] if exact else "auto"}
    result, _ = run(tmp_path / "run", trainer, **keys)
    kind, shares = ("exact", "[0.1,0.2]") if exact else ("synchronous", "auto")
    out, err = capfd.readouterr()
    line = f"1 to 1 {kind}, 2 to 8 approximate, 9 to 10 {kind} (trainer.exact_shares={shares})"
    assert f"schedule of 10 epochs: {line}" in out
    assert ("trainer.exact_shares=[0.1,0.2] adds full-graph steps" in err) == (not exact)
    counts = {name: result["schedule"].get(name) for name in (*PARTS, "synchronous")}
    if exact:
        assert counts == {"start": 1, "approximate": 7, "finish": 2, "synchronous": None}
        assert "7 of 10 epochs were approximate, with" in err
    else:
        assert counts == {"start": 0, "approximate": 10, "finish": 0, "synchronous": 3}
        assert "10 of 10 epochs were approximate, 3 of them with synchronous steps" in err
        assert result["schedule"]["evaluations"]["best"] == result["best_evaluation"]


@pytest.mark.slow
@few(
    "keys",
    [
        {"exchange": {"name": "quantized", "bits": 32}},
        {"exchange": {"name": "pipelined", "staleness": 0}},
        {"exchange": {"name": "sampled", "keep": 1}},
        {"exchange": {"name": "adaptive", "variation": 0}},
        {"sync": {"name": "parameter_server", "mode": "ssp", "staleness": 0}},
    ],
    default=2,
)
def test_a_scheme_with_an_exact_setting_is_exact(keys: dict[str, Any], tmp_path: Path) -> None:
    result, actual = run(tmp_path / "run", {"max_epochs": 4}, **keys)
    assert (result["exact"], result["inexact"], result["approximate"]) == (True, [], [])
    assert torch.allclose(actual, run(tmp_path / "exact", {"max_epochs": 4})[1], rtol=0, atol=1e-10)


def test_moving_averages_of_current_rows_are_not_exact() -> None:
    assert Pipelined(0).exact
    assert not Pipelined(0, 0.5).exact
    assert Pipelined(0, 0.5).costs().startswith("exchange=pipelined: training is approximate")


@pytest.mark.slow
@few(
    "key,keys",
    [
        ("strategy.local_iterations=3", SCHEMES["supersteps"]),
        ("exchange=pipelined", SCHEMES["pipelined"]),
        ("exchange=quantized", SCHEMES["quantized"]),
        ("sync.mode=async", SCHEMES["async"]),
    ],
    default=2,
)
def test_one_worker_reports_that_a_scheme_does_nothing(
    key: str, keys: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result, actual = run(tmp_path / "run", {"max_epochs": 4}, workers=1, **keys)
    assert capfd.readouterr().err.count(f"{key} has no effect with one worker\n") == 1
    assert (result["exact"], result["approximate"], result["supersteps"]) == (True, [], [[0, 1]])
    assert torch.allclose(actual, run(tmp_path / "exact", {"max_epochs": 4}, workers=1)[1], rtol=0, atol=1e-10)


@pytest.mark.slow
def test_batches_are_approximate_with_one_worker_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    result, _ = run(tmp_path / "run", {"max_epochs": 4}, workers=1, **SCHEMES["clusters"])
    assert result["exact"] is False
    assert result["approximate"]
    assert "has no effect" not in capfd.readouterr().err


@pytest.mark.slow
def test_a_run_without_validation_reports_epochs_and_bytes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    graph = small_graph()
    graph = replace(graph, split=np.where(graph.split == Split.VAL, Split.TRAIN, graph.split))
    result, _ = run(tmp_path / "run", {"max_epochs": 10}, data=graph, **SCHEMES["supersteps"])
    (line,) = [text for text in capfd.readouterr().err.splitlines() if text.startswith("approximate training: ")]
    assert line.startswith("approximate training: the saved model is of epoch 10; 7 of 10 epochs were approximate; ")
    assert line.endswith(f"; the busiest worker sent {short(result['bytes_sent'])} bytes of rows per epoch")


@pytest.mark.slow
def test_a_run_that_ends_before_its_exact_finish_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trainer = {"max_epochs": 20, "monitor": "val_accuracy", "patience": 2, "lr": 1e-15, "check_val_every_n_epoch": 1}
    result, _ = run(tmp_path / "run", trainer, **SCHEMES["pipelined"])
    assert result["stopped"] is not None
    assert result["schedule"]["finish"] == 0
    assert "epochs were approximate" in (err := capfd.readouterr().err)
    assert "; training ended before the exact finish; " in err


@pytest.mark.slow
def test_shares_of_an_exact_run_have_no_effect(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "run", {"max_epochs": 2, "exact_shares": [0.05, 0.2]})
    assert "trainer.exact_shares has no effect: no epoch is approximate" in capfd.readouterr().err


@pytest.mark.slow
def test_a_step_that_predicts_all_edges_is_no_exact_step(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    keys = {"strategy": "preset_workload", "task": "link_prediction", "workers": 2, "threads": 1, "comm": "threads"}
    result = gnnkit.train(small_graph(), folder=tmp_path, trainer={"max_epochs": 12}, **BARE, **keys)
    assert result["schedule"] is None
    assert "a step that predicts all edges leaves none to pass messages" in "".join(capfd.readouterr())


def path_graph(num_nodes: int) -> Graph:
    """Only the first nodes train."""
    rng, ends = np.random.default_rng(0), np.arange(num_nodes - 1)
    split = np.where(np.arange(num_nodes) < 10, Split.TRAIN, Split.VAL).astype(np.int8)
    features = rng.normal(size=(num_nodes, 5)).astype(np.float32)
    csc = CSC.from_edges(np.r_[ends, ends + 1], np.r_[ends + 1, ends], num_nodes)
    return Graph(csc, features, rng.integers(0, 3, num_nodes), split)


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [
        exhaustive({"sync": {"name": "neighbour", "exchange": "gradients"}, "workers": 6}),
        {
            "sync": {"name": "leader", "average": "median"},
            "strategy": {"name": "vertex_centric", "local_iterations": 3},
        },
    ],
    ids=["neighbour", "leader"],
)
def test_ranks_that_have_never_stepped_finish_with_the_others(keys: dict[str, Any], tmp_path: Path) -> None:
    result, _ = run(tmp_path / "run", {"max_epochs": 10, "exact_shares": [0, 0.3]}, data=path_graph(60), **keys)
    assert result["schedule"]["finish"] == 3
