"""job=verify tells results equal to one process from others."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

import gnnkit
from gnnkit.engine import Adjacency
from gnnkit.sync.all_reduce import AllReduce
from gnnkit.training.ddp import SyncMeter
from tests.jobs.test_plan import make_graph
from tests.runs import BARE


def verify(folder: Path, *overrides: str, **keys: Any) -> dict[str, Any]:
    chosen = {"workers": 4, "comm": "threads", "partition": "2d", **BARE, **keys}
    return gnnkit.train(
        make_graph(), strategy="vertex_centric", overrides=["job=verify", *overrides], folder=folder / "run", **chosen
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("comm", "overrides", "reference"),
    [
        ("threads", [], "one rank with the whole graph"),
        ("gloo", [], "one rank with the whole graph"),
        ("threads", ["strategy.local_iterations=2"], "4 ranks as threads of one process"),
        ("gloo", ["strategy.local_iterations=2"], "4 ranks as threads of one process"),
        ("threads", ["sync=leader", "sync.average=mean"], "4 ranks as threads of one process"),
    ],
)
def test_runs_equal_one_process(tmp_path: Path, comm: str, overrides: list[str], reference: str) -> None:
    result = verify(tmp_path, *overrides, model="gat", comm=comm)
    assert result["verified"], result
    assert result["reference"] == reference
    assert set(result["largest_difference"]) == {"logits", "loss", "gradients", "parameters"}


@pytest.mark.slow
def test_an_error_in_ddps_all_reduce_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer of `job=train` is verified."""

    original = SyncMeter.hook

    @functools.wraps(original)  # DDP reads the annotations
    def hook(meter: SyncMeter, group: Any, bucket: Any) -> Any:
        bucket.buffer().mul_(1 + 1e-6)
        return original(meter, group, bucket)

    monkeypatch.setattr(SyncMeter, "hook", hook)
    result = verify(tmp_path, comm="gloo")
    assert not result["verified"]
    assert 0 < result["largest_difference"]["gradients"] < 1e-5


class TorchDropout(nn.Module):
    """A model whose noise depends on the rows that a rank has."""

    num_layers = 1

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.linear, self.noise = nn.Linear(in_features, num_classes), nn.Dropout(0.5)

    def forward(self, x: Tensor, adjacencies: list[Adjacency]) -> Tensor:
        return adjacencies[0].aggregate(self.linear(self.noise(x)))


@pytest.mark.slow
def test_noise_that_is_not_keyed_is_found_and_explained(tmp_path: Path) -> None:
    result = verify(tmp_path, model=TorchDropout)
    assert not result["verified"]
    assert "torch's own Dropout" in result["note"]


def test_asynchronous_modes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AllReduce, "lockstep", False)
    with pytest.raises(ValueError, match="job=verify needs ranks that step together, the result of sync=all_reduce"):
        verify(tmp_path)
