"""`trainer.accumulate`: several batches make one step, exactly."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import gnnkit
from gnnkit.config import compose
from gnnkit.config.settings import settle
from gnnkit.errors import UserError
from gnnkit.jobs import Order, check
from gnnkit.training import checkpoint
from gnnkit.training.module import accumulate_batches
from tests.cases import exhaustive
from tests.jobs.test_train import small_graph
from tests.runs import BARE

TRAINER = {"max_epochs": 3, "precision": 64, "optimizer": "sgd", "lr": 0.1}


def run(folder: Path, batch_size: int, workers: int = 1, **keys: Any) -> Any:
    """Batches without noise: all neighbours, no dropout, an order of the seed."""
    trainer = {**TRAINER, **keys.pop("trainer", {})}
    strategy = {"name": "individual_sample", "batch_size": batch_size}
    run_keys = {"sampler": "full", "model": {"name": "sage", "dropout": 0.0}, "threads": 1}
    run_keys |= BARE | keys
    return gnnkit.train(small_graph(), strategy=strategy, workers=workers, trainer=trainer, folder=folder, **run_keys)


def parameters(folder: Path) -> dict[str, Any]:
    return checkpoint.load(folder / "checkpoints/last.json")["state_dict"]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The run whose batches are three times as large."""
    return run(tmp_path_factory.mktemp("large") / "run", 12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "keys"),
    [
        (1, {"comm": "threads"}),
        exhaustive((2, {"comm": "gloo"})),
        exhaustive((2, {"comm": "threads", "sync": "leader"})),
        exhaustive((1, {"comm": "gloo"})),
        exhaustive((1, {"comm": "gloo", "sync": "leader"})),
        exhaustive((2, {"comm": "threads"})),
        exhaustive((2, {"comm": "gloo", "sync": "leader"})),
    ],
    ids=str,
)
def test_three_batches_make_the_step_of_one_three_times_as_large(
    tmp_path: Path, large: Any, workers: int, keys: dict[str, Any]
) -> None:
    """The last batches of an epoch are fewer, and hold fewer rows."""
    small = run(tmp_path / "small", 4 // workers, workers, trainer={"accumulate": 3}, **keys)
    assert small["train_loss"] == pytest.approx(large["train_loss"], rel=1e-10)
    assert small["exact"] is False, "batches are approximate"
    actual = parameters(tmp_path / "small")
    for name, value in parameters(large.folder).items():
        torch.testing.assert_close(actual[name], value, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_step_for_each_batch_is_another_run(tmp_path: Path, large: Any) -> None:
    assert run(tmp_path / "each", 4)["train_loss"] != pytest.approx(large["train_loss"], rel=1e-6)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_run_goes_on_between_two_steps_of_the_optimiser(tmp_path: Path) -> None:
    keys = {"accumulate": 2, "checkpoint_every_n_steps": 4}
    run(tmp_path / "whole", 4, trainer=keys)
    run(tmp_path / "first", 4, trainer={**keys, "max_epochs": 1})
    state = checkpoint.load(tmp_path / "first/checkpoints/last.json")
    assert (state["epoch"], state["updates"]["kept"]) == (1, [])
    run(tmp_path / "rest", 4, trainer={**keys, "resume": str(tmp_path / "first")})
    for name, value in parameters(tmp_path / "whole").items():
        assert torch.equal(parameters(tmp_path / "rest")[name], value), name
    with pytest.raises(UserError, match=r"trainer.accumulate=3 differs from 2 in the checkpoint"):
        run(tmp_path / "other", 4, trainer={"accumulate": 3, "resume": str(tmp_path / "first")})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ("strategy=vertex_centric", "strategy=vertex_centric has one batch per epoch"),
        (
            "strategy=individual_sample sync=parameter_server sync.mode=async",
            "sync=parameter_server with these options has ranks that do not step together",
        ),
        ("strategy=individual_sample inputs=learned", "inputs=learned updates the rows of each batch"),
        ("strategy=preset_workload strategy.average=parameters", "takes local steps between batches"),
    ],
)
def test_what_cannot_be_added_up_is_refused(overrides: str, why: str) -> None:
    with pytest.raises(UserError, match=rf"^trainer.accumulate=2: .*{why}: use trainer.accumulate=1$"):
        check(Order(settle(compose([*overrides.split(), "trainer.accumulate=2"]))))


@pytest.mark.slow
def test_an_epoch_of_one_batch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"trainer.accumulate=2: strategy=individual_sample has one batch per epoch here"
    ):
        run(tmp_path / "run", 1000, trainer={"accumulate": 2})


@pytest.mark.slow
def test_a_checkpoint_is_between_two_steps_of_the_optimiser() -> None:
    keys = ["strategy=individual_sample", "trainer.accumulate=2", "trainer.checkpoint_every_n_steps=3"]
    with pytest.raises(
        UserError, match=r"trainer.checkpoint_every_n_steps=3 must be a multiple of trainer.accumulate=2"
    ):
        settle(compose(keys))


@dataclass(frozen=True)
class Counted:
    total: int
    update: str = ""


def test_the_last_batches_of_an_epoch_make_a_step_of_their_own() -> None:
    actual = list(accumulate_batches(map(Counted, (1, 2, 3, 4, 5)), 2))  # type: ignore[arg-type]
    assert [batch.total for batch in actual] == [3, 3, 7, 7, 5]
    assert [batch.update for batch in actual] == ["accumulate", "synchronise"] * 2 + ["synchronise"]
