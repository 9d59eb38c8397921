"""Approximate training ends with exact steps, or restarts where it does not learn."""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from torch import Tensor

import gnnkit
from gnnkit.exchange.quantized import Quantized
from gnnkit.graph import CSC, Graph, Split
from gnnkit.model.gcn import GCN
from gnnkit.strategy.individual_sample import IndividualSample
from gnnkit.strategy.preset_workload import PresetWorkload
from gnnkit.strategy.vertex_centric import VertexCentric
from gnnkit.training import checkpoint, exact_finish, gradient_check
from gnnkit.training.exact_finish import ExactFinish
from gnnkit.training.gradient_check import GradientCheck
from gnnkit.training.module import TrainingModule
from tests.cases import exhaustive, few
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
    "clusters": {"strategy": {"name": "preset_workload", "halo": "cluster", "clusters": 8, "clusters_per_batch": 2}},
}
SAMPLED: dict[str, dict[str, Any]] = {
    "individual": {"strategy": {"name": "individual_sample", "batch_size": 4}},
    "partitioned": {"strategy": {"name": "individual_sample", "batch_size": 4, "topology": "partitioned"}},
    "joint": {"strategy": {"name": "joint_sample", "batch_size": 4}},
}


def run(
    folder: Path, trainer: dict[str, Any], *, data: Graph | None = None, **keys: Any
) -> tuple[dict[str, Any], Tensor]:
    """Trains three workers. Returns the result and the last parameters."""
    chosen: dict[str, Any] = {"strategy": "vertex_centric", "workers": 3, "threads": 1, "comm": "threads"}
    chosen |= {"partition": "1d", "model": {"name": "gcn", "hidden": 5, "dropout": 0.0}, **BARE, **keys}
    trainer = {"precision": 64, "monitor": None, "lr": 0.05} | trainer
    result = gnnkit.train(data or small_graph(), folder=folder, trainer=trainer, **chosen)
    state = checkpoint.load(folder / "checkpoints/last.json")["state_dict"]
    return dict(result), torch.cat([value.flatten() for value in state.values()])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [name if name in ("supersteps", "pipelined", "ssp", "preset averages") else exhaustive(name) for name in SCHEMES],
)
def test_steps_that_are_taken_back_leave_the_exact_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Six epochs remain, which start from the initial parameters."""
    _, expected = run(tmp_path / "exact", {"max_epochs": 6})
    monkeypatch.setattr(ExactFinish, "_problem", lambda *_: "which a test dislikes")
    monkeypatch.setattr(exact_finish, "POOR", -1)
    result, found = run(tmp_path / "run", {"max_epochs": 10, "check_val_every_n_epoch": 4}, **SCHEMES[name])
    assert float((found - expected).abs().max()) <= 1e-10
    assert result["drift"] == 0
    assert (result["exact_finish"]["epoch"], result["exact_finish"]["since"]["epoch"]) == (5, 8)
    told = (
        "which a test dislikes: approximate steps are taken back, and the remaining 6 epochs are exact from the initial"
    )
    assert told in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["individual", exhaustive("partitioned"), exhaustive("joint")])
def test_mini_batches_end_with_full_graph_steps_on_request(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six epochs remain, which a test lets start from the initial parameters."""
    _, expected = run(tmp_path / "exact", {"max_epochs": 6})
    monkeypatch.setattr(ExactFinish, "restarts", property(lambda _: True, lambda *_: None), raising=False)
    monkeypatch.setattr(ExactFinish, "acts", True)
    monkeypatch.setattr(ExactFinish, "_problem", lambda *_: None)
    keys = {**SAMPLED[name], "sampler": {"name": "neighbor", "fanouts": [2, 2]}}
    result, found = run(tmp_path / "run", {"max_epochs": 10, "exact_finish": 0.6}, **keys)
    assert result["exact_finish"]["epoch"] == 5
    assert float((found - expected).abs().max()) <= 1e-10


@pytest.mark.slow
def test_the_last_epochs_of_supersteps_are_exact_and_start_from_the_mean(tmp_path: Path) -> None:
    keys = SCHEMES["supersteps"]
    approximate, _ = run(tmp_path / "no", {"max_epochs": 10, "exact_finish": 0}, **keys)
    assert approximate["drift"] > 0
    result, expected = run(tmp_path / "run", {"max_epochs": 10, "exact_finish": 0.5}, **keys)
    assert result["drift"] == 0
    assert result["supersteps"] == [[0, 3], [5, 1]]
    run(tmp_path / "half", {"max_epochs": 7, "exact_finish": 0.3}, **keys)
    resume = str(tmp_path / "half/checkpoints/last.json")
    _, resumed = run(tmp_path / "rest", {"max_epochs": 10, "exact_finish": 0.5, "resume": resume}, **keys)
    assert torch.equal(resumed, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "cosine", "epochs"),
    [
        (SCHEMES["quantized"], 0.5, [3, 6, 9]),
        ({"exchange": {"name": "quantized", "bits": 16}}, 1 - 1e-5, [3, 6, 9]),
        exhaustive(({"exchange": {"name": "quantized", "bits": 16}, "comm": "gloo"}, 1 - 1e-5, [3, 6, 9])),
        exhaustive(({"exchange": "quantized", "inputs": "learned", "embedding": 4}, 0.5, [3, 6, 9])),
        (SCHEMES["pipelined"], -1.0, [3, 6, 9]),
        (SCHEMES["supersteps"], -1.0, [5, 8]),
        exhaustive((SCHEMES["leader"], -1.0, [5, 8])),
    ],
    ids=["2 bits", "16 bits", "processes", "learned", "pipelined", "supersteps", "leader"],
)
def test_a_run_measures_its_gradients_against_exact_ones_and_stays_the_same(
    keys: dict[str, Any], cosine: float, epochs: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = {"max_epochs": 10, "check_val_every_n_epoch": 3, "exact_finish": 0.1}
    result, found = run(tmp_path / "run", trainer, **keys)
    measured = result["exact_finish"]["gradients"]
    assert [epoch for epoch, _, _ in measured] == epochs
    assert all(cosine <= each <= 1 + 1e-12 and 0.2 < ratio < 5 for _, each, ratio in measured)
    assert min(each for _, each, _ in measured) < 1 - 1e-12
    monkeypatch.setattr(TrainingModule, "look_at_gradient", lambda *_, **__: None)
    if keys.get("comm") is None:
        assert torch.equal(run(tmp_path / "other", trainer, **keys)[1], found)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["supersteps", "async", exhaustive("ssp"), exhaustive("servers"), exhaustive("neighbour")]
)
def test_workers_without_common_edges_have_the_exact_gradient(name: str, tmp_path: Path) -> None:
    """Workers stay at the initial parameters, and have different numbers of rows."""
    graph = small_graph()
    nodes = np.arange(graph.num_nodes)
    loops = Graph(CSC.from_edges(nodes, nodes, len(nodes)), graph.features, graph.labels, graph.split)
    trainer = {"max_epochs": 10, "check_val_every_n_epoch": 3, "exact_finish": 0.1, "lr": 1e-15}
    result, _ = run(tmp_path / "run", trainer, data=loops, **SCHEMES[name])
    measured = torch.tensor(result["exact_finish"]["gradients"], dtype=torch.float64)
    assert measured[:, 0].tolist() == ([5, 8] if name == "supersteps" else [3, 6, 9])
    assert float((measured[:, 1:] - 1).abs().max()) <= 1e-9


class OwnStep(L.LightningModule):
    """Computes its loss itself."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.gcn, self.num_layers = GCN(in_features, num_classes), 2

    def forward(self, x: Tensor, adjacencies: Any) -> Any:
        return self.gcn(x, adjacencies)

    def training_step(self, batch: Any, index: int) -> Tensor:
        out = batch.outputs(self(batch.x, batch.adjacencies))
        return torch.nn.functional.cross_entropy(out, batch.labels, reduction="sum") / batch.total


@pytest.mark.slow
def test_a_run_says_why_a_gradient_is_not_measured(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    result, _ = run(tmp_path / "run", {"max_epochs": 3}, model=OwnStep, **SCHEMES["pipelined"])
    reason = "model=OwnStep defines training_step, which may not be called twice"
    assert result["exact_finish"]["unmeasured"] == reason
    assert f"the gradient was not compared with the exact one, because {reason}" in capfd.readouterr().err
    run(tmp_path / "auto", {"max_epochs": 1}, model=OwnStep, exchange={"name": "quantized", "bits": "auto"})
    assert f"exchange.bits=auto: numbers keep all bits, because {reason}" in "".join(capfd.readouterr())


@pytest.mark.slow
def test_a_fixed_share_keeps_steps_and_reports_the_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ExactFinish, "_problem", lambda *_: "which a test dislikes")
    trainer = {"max_epochs": 10, "check_val_every_n_epoch": 4, "exact_finish": 0}
    finish = run(tmp_path / "run", trainer, **SCHEMES["pipelined"])[0]["exact_finish"]
    assert (finish["epoch"], finish["taken_back"]) == (None, False)
    assert finish["problem"].endswith("which a test dislikes")
    assert [epoch for epoch, _, _ in finish["gradients"]] == [4, 8]
    assert capfd.readouterr().err.count("trainer.exact_finish=0 keeps the approximate steps") == 1


@pytest.mark.parametrize(
    ("epochs", "share", "first"), [(100, "auto", 90), (9, "auto", 9), (100, 0.25, 75), (7, 0.3, 5)]
)
def test_the_last_tenth_is_exact_rounded_down(epochs: int, share: Any, first: int) -> None:
    assert ExactFinish(epochs, share).first == first


@pytest.mark.parametrize(
    ("losses", "epoch", "latest", "problem"),
    [
        ([[0, 2.0]], 10, 2.1, "above 2 before training"),
        ([[0, 2.0]], 10, math.nan, "above 2 before training"),
        ([[0, 2.0]], 10, 1.99, None),
        ([[0, 2.0], [30, 1.0]], 40, 0.97, "which does not fall: it was 1 earlier"),
        ([[0, 2.0], [30, 1.0]], 40, 0.93, None),
        ([[0, 2.0], [35, 1.0]], 40, 0.97, None),
        ([[0, 2.0], [20, 1.0]], 30, 0.97, None),
        ([[0, 2.0], [30, 0.1]], 40, 0.15, None),
    ],
    ids=["worse", "nan", "better", "stands", "falls", "looked too soon", "too early", "learned"],
)
def test_a_loss_that_does_not_fall_is_a_problem(
    losses: list[list[float]], epoch: int, latest: float, problem: str | None
) -> None:
    finish = ExactFinish(100, "auto")
    finish.losses = losses
    assert finish._problem(epoch, latest) == problem


def test_a_longer_run_finishes_later_unless_steps_were_taken_back() -> None:
    short, longer = ExactFinish(100, "auto"), ExactFinish(200, "auto")
    longer.load_state_dict(short.state_dict())
    assert longer.first == 180
    short.first, short.problem = 40, "loss of 3"
    longer.load_state_dict(short.state_dict())
    assert longer.first == 40


@pytest.mark.parametrize(
    ("values", "lower", "num_validated", "problem"),
    [
        ([0.7, 0.8, 0.77], False, 10_000, None),
        ([0.7, 0.8, 0.75], False, 10_000, "val_x of 0.75, after 0.8 in epoch 2"),
        ([0.7, 0.8, 0.75], False, 200, None),  # within two standard errors
        ([math.nan, 0.8, 0.75], False, 10_000, "val_x of 0.75, after 0.8 in epoch 2"),
        ([2.0, 1.0, 1.04], True, 10, None),
        ([2.0, 1.0, 1.06], True, 10, "val_x of 1.06, after 1 in epoch 2"),
    ],
)
def test_a_metric_that_falls_is_a_problem(
    values: list[float], lower: bool, num_validated: int, problem: str | None
) -> None:
    finish = ExactFinish(100, 0.1, num_validated=num_validated)
    for epoch, value in enumerate(values):
        look(finish, epoch, value, lower=lower)
    assert finish.problem == problem


def look(finish: ExactFinish, epoch: int, value: float, *, lower: bool = False, train: float = 1.0) -> None:
    """Shows metrics to a rule, as after an epoch of a task about edges."""
    task = SimpleNamespace(
        progress="val_x",
        is_lower_better=lambda name: lower,
        chance=lambda outputs, worker: {"train_x": 0.2},
        least_skill=0.1,
        without_learning="the mean",
    )
    worker = SimpleNamespace(comm=SimpleNamespace(rank=1))
    module = SimpleNamespace(task=task, worker=worker, current_epoch=epoch)
    finish.look(module, torch.empty(0), None, {"val_x": value, "train_x": train})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("epochs", "epoch", "train", "problem", "restarts"),
    [
        (100, 19, 0.27, False, False),
        (100, 20, 0.27, True, True),
        (100, 20, 0.29, False, False),  # 0.2 is chance, so this is a skill of 0.11
        (100, 60, 0.27, True, False),  # too late to start again
        (200, 39, 0.27, False, False),
        (50, 20, 0.27, True, True),
        (20, 17, 0.27, False, False),
    ],
)
def test_a_model_no_better_than_chance_is_a_problem(
    epochs: int, epoch: int, train: float, problem: bool, restarts: bool
) -> None:
    finish = ExactFinish(epochs, "auto")
    look(finish, epoch - 1, 0.3, train=train)
    assert (finish.problem == "val_x of 0.3, hardly better than the mean") == problem == finish.taken_back
    assert finish.restarts == restarts


@pytest.mark.parametrize(("train", "restarts"), [(0.39, True), (0.41, False)], ids=["little", "more"])
def test_a_run_that_has_learned_little_starts_again(train: float, restarts: bool) -> None:
    finish = ExactFinish(100, "auto")
    look(finish, 9, 0.9)
    look(finish, 19, 0.1, train=train)
    assert finish.problem == "val_x of 0.1, after 0.9 in epoch 10"
    assert finish.restarts == restarts


@pytest.mark.slow
@pytest.mark.parametrize(("cosine", "epoch"), [(0.8, 15), (0.95, 19)], ids=["differ", "similar"])
def test_gradients_that_differ_make_the_finish_longer(
    cosine: float, epoch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GradientCheck, "mean_cosine", cosine)
    monkeypatch.setattr(ExactFinish, "_report", lambda *_: None)
    result, _ = run(tmp_path / "run", {"max_epochs": 20}, **SCHEMES["quantized"])
    assert result["exact_finish"]["epoch"] == epoch


@pytest.mark.slow
def test_auto_chooses_the_fewest_bits_that_it_measures_to_be_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    auto = {"exchange": {"name": "quantized", "bits": "auto"}}
    trainer = {"max_epochs": 10, "check_val_every_n_epoch": 4, "exact_finish": 0}
    exact, expected = run(tmp_path / "exact", trainer)
    result, found = run(tmp_path / "run", trainer, **auto)
    message = capfd.readouterr().err
    assert re.search(
        r"exchange\.bits=auto: (8|4|16) bits from epoch 2 on, for which the gradient has cosine (0\.99|1\.00)", message
    )
    assert result["bytes_sent"] < exact["bytes_sent"] / 2
    assert result["exchange_bits"][0][0] == 1
    assert result["exact_finish"]["gradients"][0] == [1, pytest.approx(1), pytest.approx(1)]
    assert not torch.equal(found, expected)
    run(tmp_path / "half", {**trainer, "max_epochs": 6}, **auto)
    trainer["resume"] = str(tmp_path / "half/checkpoints/last.json")
    assert torch.equal(run(tmp_path / "rest", trainer, **auto)[1], found)
    monkeypatch.setattr(gradient_check, "CLOSE", 2)  # no exchange is that close
    trainer.pop("resume")
    assert torch.equal(run(tmp_path / "none", trainer, **auto)[1], expected)


def test_a_preset_workload_takes_a_number_of_bits() -> None:
    with pytest.raises(gnnkit.UserError, match=r"exchange\.bits=auto needs strategy=vertex_centric"):
        PresetWorkload(exchange_every=2, exchange=Quantized("auto"))


@pytest.mark.slow
def test_a_step_that_predicts_all_edges_is_no_exact_step(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    keys = {"strategy": "preset_workload", "task": "link_prediction", "workers": 2, "threads": 1, "comm": "threads"}
    result = gnnkit.train(small_graph(), folder=tmp_path, trainer={"max_epochs": 12}, **BARE, **keys)
    assert result["exact_finish"] is None
    assert "a step that predicts all edges leaves none to pass messages" in "".join(capfd.readouterr())


@pytest.mark.slow
@pytest.mark.parametrize("poor", [-1, math.inf], ids=["from the start", "on"])
@few("name", ["pipelined", "supersteps"], default=["pipelined"])
def test_a_run_that_has_taken_steps_back_resumes_exactly(
    name: str, poor: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ExactFinish, "_problem", lambda *_: "which a test dislikes")
    monkeypatch.setattr(exact_finish, "POOR", poor)
    trainer = {"max_epochs": 20, "check_val_every_n_epoch": 4}
    _, expected = run(tmp_path / "run", trainer, **SCHEMES[name])
    run(tmp_path / "half", {**trainer, "max_epochs": 12}, **SCHEMES[name])
    resume = str(tmp_path / "half/checkpoints/last.json")
    _, resumed = run(tmp_path / "rest", {**trainer, "resume": resume}, **SCHEMES[name])
    assert torch.equal(resumed, expected)


@pytest.mark.slow
def test_auto_leaves_mini_batches_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the synchronisation becomes exact."""
    monkeypatch.setattr(ExactFinish, "_problem", lambda *_: "which a test dislikes")
    whole: list[int] = []
    monkeypatch.setattr(IndividualSample, "make_exact", lambda _, epoch: whole.append(epoch))
    keys = {**SAMPLED["individual"], **SCHEMES["async"], "sampler": {"name": "neighbor", "fanouts": [2, 2]}}
    result, _ = run(tmp_path / "run", {"max_epochs": 10, "check_val_every_n_epoch": 4}, **keys)
    assert result["exact_finish"]["taken_back"]
    assert result["exact_finish"]["unmeasured"].endswith("reads other rows in each step")
    assert whole == []


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
        {"sync": {"name": "neighbour", "exchange": "gradients"}, "workers": 6},
        {
            "sync": {"name": "leader", "average": "median"},
            "strategy": {"name": "vertex_centric", "local_iterations": "auto", "max_iterations": 1},
        },
    ],
    ids=["neighbour", "leader"],
)
def test_ranks_that_have_never_stepped_finish_with_the_others(keys: dict[str, Any], tmp_path: Path) -> None:
    result, _ = run(tmp_path / "run", {"max_epochs": 10, "exact_finish": 0.3}, data=path_graph(60), **keys)
    assert result["exact_finish"]["epoch"] == 8


@pytest.mark.slow
@few("decoder", ["dot", "mlp"], default=["mlp"])
def test_gradients_of_a_decoder_are_compared_too(decoder: str, tmp_path: Path) -> None:
    """Steps of a rate of almost 0 are exact."""
    task = {"name": "link_prediction", "decoder": decoder}
    trainer = {"max_epochs": 10, "check_val_every_n_epoch": 3, "exact_finish": 0.1, "lr": 1e-15}
    result, _ = run(tmp_path / "run", trainer, task=task, **SCHEMES["async"])
    assert result["exact_finish"]["gradients"]
    for _, cosine, ratio in result["exact_finish"]["gradients"]:
        assert (cosine, ratio) == (pytest.approx(1, abs=1e-6), pytest.approx(1, abs=1e-6))


@pytest.mark.slow
def test_gradients_of_one_cluster_are_not_compared_with_the_graph(tmp_path: Path) -> None:
    result, _ = run(tmp_path / "run", {"max_epochs": 10}, **SCHEMES["clusters"])
    assert result["exact_finish"]["unmeasured"] == "strategy=preset_workload reads other rows in each step"
    assert result["exact_finish"]["gradients"] == []


@pytest.mark.slow
def test_a_fixed_share_compares_no_gradients_that_may_not_fit(tmp_path: Path) -> None:
    trainer = {"max_epochs": 10, "exact_finish": 0, "evaluation_memory": 1e-6}
    result, _ = run(tmp_path / "run", trainer, **SCHEMES["preset"])
    assert "trainer.evaluation_memory" in result["exact_finish"]["unmeasured"]
    assert result["exact_finish"]["gradients"] == []


@pytest.mark.slow
def test_adopted_bits_stay_when_the_graph_is_cut_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codecs: list[object] = []
    setup, end_epoch = VertexCentric.setup, VertexCentric.end_epoch

    def set_up(self: Any, worker: Any, model: Any) -> None:
        self.given = worker
        setup(self, worker, model)

    def set_up_again(self: Any, epoch: int, measured: Any, model: Any) -> None:
        end_epoch(self, epoch, measured, model)
        if epoch == 2:
            before = type(self.passes.codec)
            self.setup(self.given, model)
            codecs.append(before is type(self.passes.codec) is not type(None))

    monkeypatch.setattr(VertexCentric, "setup", set_up)
    monkeypatch.setattr(VertexCentric, "end_epoch", set_up_again)
    auto = {"exchange": {"name": "quantized", "bits": "auto"}}
    run(tmp_path / "run", {"max_epochs": 6, "check_val_every_n_epoch": 4, "exact_finish": 0}, **auto)
    assert codecs == [True] * 3
