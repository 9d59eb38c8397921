"""Learning rates, clipping and the limit of time are the same on all ranks."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import Parameter

import gnnkit
from gnnkit import plugins
from gnnkit.config import compose
from gnnkit.config.settings import settle
from gnnkit.errors import UserError
from gnnkit.jobs import Order, check
from gnnkit.training import checkpoint
from gnnkit.training.schedule import RateSchedule, check_optimizers, clip
from tests.cases import exhaustive, few
from tests.jobs.test_train import small_graph
from tests.runs import BARE
from tests.training.test_resume import Scheduled

OfOne = Callable[..., dict[str, Any]]


def run(folder: Path, **keys: Any) -> Any:
    trainer = {"max_epochs": 6, "precision": 64, "lr": 0.1, "optimizer": "sgd", **keys.pop("trainer", {})}
    run_keys = {
        "strategy": "vertex_centric",
        "workers": 3,
        "threads": 1,
        "comm": "threads",
        "model": "gcn",
        **BARE,
        **keys,
    }
    return gnnkit.train(small_graph(), folder=folder, trainer=trainer, **run_keys)


def state(folder: Path) -> dict[str, Any]:
    return checkpoint.load(folder / "checkpoints/last.json")  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def of_one(tmp_path_factory: pytest.TempPathFactory) -> OfOne:
    """The state after a run on one worker, made once for each choice of keys."""

    @functools.cache
    def of_one(**trainer: Any) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp("one") / "run"
        run(folder, workers=1, trainer=trainer)
        return state(folder)

    return of_one


def test_rates_rise_and_fall_as_the_formula_says() -> None:
    rates = [RateSchedule("cosine", 2, 10).factor(epoch) for epoch in range(12)]
    reference = [1 / 3, 2 / 3, *(0.5 * (1 + math.cos(math.pi * k / 8)) for k in range(8)), 0, 0]
    assert rates == pytest.approx(reference, abs=1e-15)
    assert [RateSchedule("linear", 0, 4).factor(epoch) for epoch in range(5)] == [1, 0.75, 0.5, 0.25, 0]
    assert [RateSchedule(None, 1, 3).factor(epoch) for epoch in range(3)] == [0.5, 1, 1]


def test_a_gradient_of_a_large_norm_is_scaled_down_before_the_step() -> None:
    first, second = Parameter(torch.zeros(2, dtype=torch.float64)), Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = torch.optim.SGD([{"params": [first]}, {"params": [second]}], lr=1.0)
    clip(optimizer, 1.0)
    first.grad, second.grad = torch.tensor([3.0, 0.0]).double(), torch.tensor([4.0]).double()
    optimizer.step()
    torch.testing.assert_close(torch.cat([first, second]), torch.tensor([-0.6, 0, -0.8]).double(), rtol=1e-5, atol=0)
    first.grad, second.grad = torch.tensor([0.3, 0.0]).double(), torch.tensor([0.4]).double()
    optimizer.step()
    torch.testing.assert_close(torch.cat([first, second]), torch.tensor([-0.9, 0, -1.2]).double(), rtol=1e-5, atol=0)


@pytest.mark.slow
@few("sync", ["all_reduce", "leader", "parameter_server"], default=["parameter_server"])
def test_a_schedule_reaches_every_step(tmp_path: Path, of_one: OfOne, sync: str) -> None:
    """Also where a server steps."""
    keys: dict[str, Any] = {"schedule": "linear", "warmup_epochs": 1}
    run(tmp_path / "run", sync=sync, trainer=keys)
    actual, alone = state(tmp_path / "run"), of_one(**keys)
    assert actual["optimizer_states"][0]["param_groups"][0]["lr"] == pytest.approx(0)
    for name, value in alone["state_dict"].items():
        torch.testing.assert_close(actual["state_dict"][name], value, rtol=1e-10, atol=1e-12)
    assert not torch.equal(of_one()["state_dict"][name], value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sync", "comm"),
    [
        exhaustive(("all_reduce", "gloo")),
        ("leader", "threads"),
        exhaustive(("all_reduce", "threads")),
        exhaustive(("leader", "gloo")),
    ],
)
def test_the_norm_is_that_of_the_whole_gradient(tmp_path: Path, of_one: OfOne, sync: str, comm: str) -> None:
    """So that several ranks step as one does. With Lightning's DDP too."""
    keys: dict[str, Any] = {"clip_norm": 0.05, "max_epochs": 3}
    run(tmp_path / "run", sync=sync, comm=comm, trainer=keys)
    actual, alone = (each["state_dict"] for each in (state(tmp_path / "run"), of_one(**keys)))
    for name, value in alone.items():
        torch.testing.assert_close(actual[name], value, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(of_one(max_epochs=3)["state_dict"][name], value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "warms_up"),
    [
        ({"strategy": "individual_sample"}, True),
        exhaustive(({"exchange": "pipelined"}, True)),
        exhaustive(({"exchange": "pipelined", "workers": 1}, False)),
        exhaustive(({"exchange": "quantized"}, False)),
        exhaustive(({}, False)),
    ],
    ids=["batches", "pipelined", "pipelined-alone", "quantized", "exact"],
)
def test_mini_batches_and_stale_rows_warm_up_for_a_tenth(tmp_path: Path, keys: dict[str, Any], warms_up: bool) -> None:
    runs = {"auto": {}, "tenth": {"warmup_epochs": 1}, "none": {"warmup_epochs": 0}}
    results = {name: tmp_path / name for name in runs}
    for name, trainer in runs.items():
        run(results[name], trainer={"max_epochs": 10} | trainer, **keys)
    auto, tenth, none = (list(state(folder)["state_dict"].values()) for folder in results.values())
    assert all(map(torch.equal, auto, tenth if warms_up else none))
    assert not all(map(torch.equal, tenth, none))


@pytest.mark.slow
def test_a_run_of_few_mini_batches_is_resumed_by_one_that_warms_up(tmp_path: Path) -> None:
    run(tmp_path / "few", strategy="individual_sample", trainer={"max_epochs": 3})
    trainer = {"max_epochs": 12, "resume": str(tmp_path / "few")}
    assert run(tmp_path / "more", strategy="individual_sample", trainer=trainer)["epochs"] == 9


@pytest.mark.slow
@few("comm", ["threads", "gloo"], default=["threads"])
def test_training_ends_when_time_is_over(tmp_path: Path, comm: str, capfd: pytest.CaptureFixture[str]) -> None:
    result = run(tmp_path / "run", comm=comm, trainer={"max_epochs": 100_000, "max_time": 0.5})
    assert 0 < result["epochs"] < 100_000
    assert result["stopped"] == f"trainer.max_time=0.5: ended after epoch {result['epochs']}"
    assert capfd.readouterr().err.count(result["stopped"]) == 1
    assert state(tmp_path / "run")["epoch"] == result["epochs"]


@pytest.mark.slow
def test_a_model_with_schedules_of_its_own_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"trainer.schedule=cosine: model=Scheduled brings optimisers"):
        run(tmp_path / "run", model=lambda *_: Scheduled("epoch", 4), trainer={"schedule": "cosine"})


@pytest.mark.slow
def test_servers_do_not_clip() -> None:
    for sync in ("parameter_server", "leader sync.mode=async"):
        overrides = ["strategy=preset_workload", *f"sync={sync}".split(), "trainer.clip_norm=1"]
        with pytest.raises(UserError, match=r"trainer.clip_norm=1(.0)?: with sync=.* servers step"):
            check(Order(settle(compose(overrides))))


def test_schedules_that_several_ranks_cannot_have_are_refused() -> None:
    optimizer = torch.optim.SGD([Parameter(torch.zeros(1))], lr=1.0)
    steps = {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1), "interval": "step"}
    assert (
        check_optimizers({"optimizer": optimizer, "lr_scheduler": steps}, "Mine", by_steps=True)[1][0]["interval"]
        == "step"
    )
    with pytest.raises(UserError, match=r"model=Mine: a schedule with interval=step would count each batch of trainer"):
        check_optimizers({"optimizer": optimizer, "lr_scheduler": steps}, "Mine", by_steps=False)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    for schedule in (plateau, {"scheduler": plateau}, {"scheduler": steps["scheduler"], "reduce_on_plateau": True}):
        with pytest.raises(UserError, match="model=Mine: ReduceLROnPlateau needs monitor, such as val_loss, beside"):
            check_optimizers(([optimizer], [schedule]), "Mine", by_steps=True)


@pytest.mark.parametrize(("model", "rate"), [("gcn", 0.01), ("hgt", 0.003)])
def test_a_model_has_its_own_default_rate(model: str, rate: float) -> None:
    options = {"num_relations": 2} if model == "hgt" else {}
    module = plugins.load("model", model)(4, 3, **options)
    default, explicit = (
        settle(compose(["strategy=vertex_centric", *more])).trainer for more in ([], ["trainer.lr=0.5"])
    )
    assert default.learning_rate(module) == rate
    assert default.learning_rate(torch.nn.Linear(2, 2)) == 0.01, "a user's module"
    assert explicit.learning_rate(module) == 0.5
