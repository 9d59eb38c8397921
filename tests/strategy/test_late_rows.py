"""Asynchronous modes delay rows where workers exchange rows in every step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import gnnkit
from gnnkit.strategy.base import Phases
from gnnkit.strategy.vertex_centric import FAR, HIGH_CUT, NEAR, LateRows, VertexCentric
from gnnkit.training import checkpoint
from tests.cases import few
from tests.jobs.test_train import small_graph
from tests.runs import BARE

SSP: dict[str, Any] = {"name": "parameter_server", "mode": "ssp", "staleness": 2}


def run(folder: Path, sync: Any = "all_reduce", **keys: Any) -> tuple[dict[str, Any], torch.Tensor]:
    trainer = {"max_epochs": 10, "precision": 64, "monitor": None, "exact_shares": [0, 0], **keys.pop("trainer", {})}
    run_keys: dict[str, Any] = {"strategy": "vertex_centric", "workers": 3, "threads": 1, "comm": "threads"}
    run_keys |= {"partition": "1d", "model": {"name": "gcn", "hidden": 5, "dropout": 0.0}, **BARE, **keys}
    result = gnnkit.train(small_graph(), folder=folder, trainer=trainer, sync=sync, **run_keys)
    state = checkpoint.load(folder / "checkpoints/last.json")["state_dict"]
    return dict(result), torch.cat([value.flatten() for value in state.values()])


@pytest.mark.slow
@few(
    "sync,every",
    [
        (SSP, 3),
        ({"name": "leader", "mode": "ssp", "staleness": 1}, 2),
        ({"name": "leader", "mode": "async"}, NEAR + 1),
        (SSP | {"servers": 2}, 3),
    ],
    default=1,
)
def test_an_asynchronous_mode_is_the_same_as_rows_every_few_epochs(
    sync: dict[str, Any], every: int, tmp_path: Path
) -> None:
    """`preset_workload` has these steps: all gradients, with the last rows."""
    preset = {"name": "preset_workload", "exchange_every": every}
    reference, parameters = run(tmp_path / "preset", strategy=preset)
    result, actual = run(tmp_path / "run", sync)
    assert float((actual - parameters).abs().max()) <= 1e-10
    assert result["bytes_sent"] == reference["bytes_sent"]
    assert result["row_staleness"] == every - 1
    assert any(line.startswith(f"sync.mode={sync['mode']}: training is approximate") for line in result["approximate"])


@pytest.mark.slow
@few("epoch", [1, 4, 6, 9], default=[6])
def test_a_run_with_late_rows_resumes_to_the_bit(epoch: int, tmp_path: Path) -> None:
    trainer = {"keep_checkpoints": 20, "checkpoint_every": 1, "exact_shares": "auto"}
    _, reference = run(tmp_path / "run", SSP, trainer=trainer)
    half = {**trainer, "max_epochs": 10, "max_time": None}
    files = sorted((tmp_path / "run/checkpoints").glob("*.json"))
    resume = next(str(path) for path in files if checkpoint.load(path)["epoch"] == epoch)
    _, resumed_run = run(tmp_path / "rest", SSP, trainer={**half, "resume": resume})
    assert torch.equal(resumed_run, reference)


@pytest.mark.slow
def test_a_run_with_late_rows_is_verified(tmp_path: Path) -> None:
    keys = {"workers": 3, "threads": 1, "comm": "threads", "strategy": "vertex_centric", "sync": SSP, **BARE}
    result = gnnkit.train(small_graph(), job="verify", folder=tmp_path / "run", trainer={"max_epochs": 10}, **keys)
    assert result["verified"], dict(result)


def test_rows_are_never_older_than_the_bound() -> None:
    late, phases = LateRows("sync.mode=ssp", 2), Phases.of(20)
    sent = [epoch for epoch in range(2, 16) if late.exchanges(epoch, phases)]
    assert sent == [2, 5, 8, 11, 14]


@pytest.mark.parametrize(("cut", "bound"), [(HIGH_CUT, FAR), (HIGH_CUT + 0.01, NEAR)])
def test_a_high_cut_has_newer_rows(cut: float, bound: int) -> None:
    late = LateRows("sync.mode=async", None)
    late.begin(cut, prints=True)
    assert late.bound == bound
    assert f"stale by up to {bound} epochs" in late.costs()


@pytest.mark.parametrize(("cut", "bound"), [(HIGH_CUT, FAR), (0.75, NEAR)])
def test_a_bound_above_the_default_of_the_cut_is_warned_about(
    cut: float, bound: int, capfd: pytest.CaptureFixture[str]
) -> None:
    LateRows("sync.mode=ssp", bound).begin(cut, prints=True)
    LateRows("sync.mode=ssp", bound + 1).begin(cut, prints=False)
    assert capfd.readouterr().err == ""
    late = LateRows("sync.mode=ssp", bound + 1)
    late.begin(cut, prints=True)
    text = f"sync.staleness={bound + 1} may cost accuracy: {cut:.0%} of the edges cross workers, and {bound} is the default"
    assert capfd.readouterr().err == text + "\n"
    assert late.bound == bound + 1


@pytest.mark.slow
def test_the_result_has_the_age_of_rows_that_a_step_has_read(tmp_path: Path) -> None:
    far = SSP | {"staleness": 1000}
    result, _ = run(tmp_path / "far", far, trainer={"exact_shares": "auto"})
    assert result["row_staleness"] == 6  # epochs 2 to 8 are approximate
    alone, _ = run(tmp_path / "alone", far, workers=1)
    assert "row_staleness" not in alone
    assert alone["exact"] is True


def test_supersteps_and_stale_exchanges_have_no_late_rows(tmp_path: Path) -> None:
    assert not VertexCentric(3).delay_rows("sync.mode=async", None)
    with pytest.raises(gnnkit.UserError, match=r"sync\.mode=ssp skips exchanges, but exchange=pipelined needs one"):
        run(tmp_path / "run", SSP, exchange="pipelined")


@pytest.mark.slow
def test_tasks_that_need_current_rows_keep_stale_gradients(tmp_path: Path) -> None:
    result, _ = run(tmp_path / "run", SSP, task="link_prediction")
    assert "gradients of workers that are behind are applied late" in result["approximate"][0]
