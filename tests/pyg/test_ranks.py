"""Loaders under Lightning's DDP give each rank its share of the seeds."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch_geometric.nn import SAGEConv

from gnnkit.pyg import LightningLinkData, LightningNodeData, LinkNeighborLoader, NeighborLoader
from tests.forked import forked
from tests.pyg.graphs import NUM_EDGES, NUM_NODES, homogeneous

QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
WEIGHTED: dict[str, Any] = {"num_neighbors": [3, 2], "batch_size": 10, "weight_attr": "edge_weight"}


class Net(L.LightningModule):
    """Writes the inputs that its rank has trained on."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.conv = SAGEConv(1, 2)
        self.folder, self.inputs = folder, list[int]()

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        self.inputs += batch.input_id.tolist()
        assert (batch.edge_weight > 0).all()
        return self.conv(batch.x, batch.edge_index).square().mean()

    def on_train_end(self) -> None:
        (self.folder / f"{self.global_rank}.json").write_text(json.dumps(self.inputs))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


MAKERS: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "nodes": (NUM_NODES, lambda data: NeighborLoader(data, shuffle=True, **WEIGHTED)),
    "links": (NUM_EDGES, lambda data: LinkNeighborLoader(data, neg_sampling="binary", **WEIGHTED)),
    "node data": (NUM_NODES, lambda data: LightningNodeData(data, torch.arange(NUM_NODES), **WEIGHTED)),
    "link data": (NUM_EDGES, lambda data: LightningLinkData(data, data.edge_index, loader="link_neighbor", **WEIGHTED)),
}


def fit(kind: str, folder: Path, devices: int, use_distributed_sampler: bool) -> None:
    """Trains an epoch, in the calling process or its forks."""
    torch.set_num_threads(1)
    torch.cuda._is_in_bad_fork = lambda: False  # type: ignore[assignment]  # the ranks use no GPU
    data = homogeneous()
    data.edge_weight[::2] = 0  # lost where Lightning's copy of the loader lacks the sampler
    options: dict[str, Any] = (
        {"strategy": "ddp_fork", "use_distributed_sampler": use_distributed_sampler} if devices > 1 else {}
    )
    trainer = L.Trainer(devices=devices, accelerator="cpu", max_epochs=1, limit_val_batches=0, **options, **QUIET)
    trainer.fit(Net(folder), MAKERS[kind][1](data))


def fit_apart(kind: str, folder: Path, use_distributed_sampler: bool) -> tuple[list[list[int]], str]:
    """Trains on two ranks, forks of a fork. Returns each rank's inputs, and the log."""

    def work() -> None:
        warnings.showwarning = lambda message, *_: print(message)  # type: ignore[assignment]  # pytest's keeps them
        fit(kind, folder, 2, use_distributed_sampler)

    with forked(work, folder) as program:
        code, text = program.ended()
    assert code == 0, text
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)], text


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "nodes",
        pytest.param("links", marks=pytest.mark.exhaustive),
        "node data",
        pytest.param("link data", marks=pytest.mark.exhaustive),
    ],
)
def test_two_ranks_of_ddp_share_the_inputs(kind: str, tmp_path: Path) -> None:
    (one, other), _ = fit_apart(kind, tmp_path, True)
    assert sorted([*one, *other]) == list(range(MAKERS[kind][0]))
    assert len(one) == len(other)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_ranks_that_read_the_same_inputs_are_warned(tmp_path: Path) -> None:
    (one, other), text = fit_apart("nodes", tmp_path, False)
    assert sorted(one) == sorted(other) == list(range(NUM_NODES))
    assert "each rank reads all seeds of its own NeighborLoader" in text


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKERS)
def test_one_process_reads_all_inputs(kind: str, tmp_path: Path) -> None:
    fit(kind, tmp_path, 1, True)
    assert sorted(json.loads((tmp_path / "0.json").read_text())) == list(range(MAKERS[kind][0]))
