"""A plain trainer of Lightning takes the loader in fit, validate, test and predict."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import Tensor, nn
from torch.nn import functional as F

from gnnkit.errors import UserError
from gnnkit.graph import SPLITS, Split
from gnnkit.sampler import FullSampler, Loader, NeighborSampler
from gnnkit.training.data import GraphDataModule
from tests.forked import forked
from tests.jobs.test_train import small_graph


class Classifier(L.LightningModule):
    """A usual module of Lightning, which knows nothing of gnnkit."""

    def __init__(self, width: int = 8, classes: int = 3) -> None:
        super().__init__()
        self.linear = nn.Linear(width, classes)
        self.seen: dict[str, list[int]] = {"train": [], "val": [], "test": [], "predict": []}

    def forward(self, batch: dict[str, Any]) -> Tensor:
        x, block = batch["x"], batch["blocks"][-1]
        sources = x[block["indices"].long()]
        rows = torch.repeat_interleave(torch.arange(len(batch["seeds"])), block["indptr"].diff())
        mean = torch.zeros(len(batch["seeds"]), x.shape[1]).index_reduce_(0, rows, sources, "mean", include_self=False)
        logits: Tensor = self.linear(x[: len(mean)] + mean)
        return logits

    def _step(self, batch: dict[str, Any], split: str) -> Tensor:
        self.seen[split] += batch["seeds"].tolist()
        loss = F.cross_entropy(self(batch), batch["y"].long())
        self.log(f"{split}_loss", loss, batch_size=len(batch["seeds"]), on_epoch=True, sync_dist=True)
        return loss

    def training_step(self, batch: Any, index: int) -> Tensor:
        return self._step(batch, "train")

    def validation_step(self, batch: Any, index: int) -> None:
        self._step(batch, "val")

    def test_step(self, batch: Any, index: int) -> None:
        self._step(batch, "test")

    def predict_step(self, batch: Any, index: int) -> tuple[Tensor, Tensor]:
        self.seen["predict"] += batch["seeds"].tolist()
        return batch["seeds"], self(batch)

    def teardown(self, stage: str) -> None:
        if "SEEN" in os.environ:  # a rank tells what it has read
            path = Path(os.environ["SEEN"]) / f"{stage.lower()}-{self.trainer.global_rank}.json"
            path.write_text(json.dumps(self.seen))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.05)


def nodes(split: Split) -> list[int]:
    return np.flatnonzero(small_graph().split == split).tolist()  # type: ignore[no-any-return]


def trainer(folder: Path, **options: Any) -> L.Trainer:
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return L.Trainer(max_epochs=3, accelerator="cpu", default_root_dir=folder, **{**quiet, **options})


def data(**keys: Any) -> GraphDataModule:
    return GraphDataModule(small_graph(), NeighborSampler(fanouts=[4]), 7, eval_sampler=FullSampler(1), **keys)


@pytest.mark.slow
def test_a_trainer_takes_the_data_module_in_all_four(tmp_path: Path) -> None:
    model, graph = Classifier(), small_graph()
    best = ModelCheckpoint(tmp_path, monitor="val_loss")
    user_trainer = trainer(tmp_path, callbacks=[best, EarlyStopping("val_loss", patience=3)], num_sanity_val_steps=0)
    user_trainer.fit(model, datamodule=data())
    assert sorted(model.seen["train"]) == sorted(nodes(Split.TRAIN) * 3)
    assert model.seen["train"][: len(nodes(Split.TRAIN))] != nodes(Split.TRAIN)
    assert model.seen["val"] == nodes(Split.VAL) * 3
    assert Path(best.best_model_path).exists()
    (validated,) = user_trainer.validate(model, datamodule=data(), verbose=False)
    (tested,) = user_trainer.test(model, datamodule=data(), verbose=False)
    assert model.seen["test"] == nodes(Split.TEST)
    assert 0 < validated["val_loss"] < 2
    predictions = user_trainer.predict(model, datamodule=data())
    assert predictions is not None
    assert torch.cat([seeds for seeds, _ in predictions]).tolist() == list(range(graph.num_nodes))
    logits = torch.cat([rows for _, rows in predictions])
    test = torch.tensor(nodes(Split.TEST))
    reference = F.cross_entropy(logits[test], torch.from_numpy(graph.labels)[test])
    assert tested["test_loss"] == pytest.approx(float(reference), rel=1e-5)


@pytest.mark.slow
def test_loaders_alone_serve_a_trainer_too(tmp_path: Path) -> None:
    graph, model = small_graph(), Classifier()
    loaders = {
        split: Loader(graph, FullSampler(1), graph.split == split, 7, shuffle=split == Split.TRAIN)
        for split in (Split.TRAIN, Split.VAL, Split.TEST)
    }
    user_trainer = trainer(tmp_path, num_sanity_val_steps=1, enable_checkpointing=False)
    user_trainer.fit(model, loaders[Split.TRAIN], loaders[Split.VAL])
    assert sorted(model.seen["train"]) == sorted(nodes(Split.TRAIN) * 3)
    user_trainer.validate(model, loaders[Split.VAL], verbose=False)
    user_trainer.test(model, loaders[Split.TEST], verbose=False)
    assert model.seen["test"] == nodes(Split.TEST)
    predictions = user_trainer.predict(model, loaders[Split.TEST])
    assert predictions is not None
    assert torch.cat([seeds for seeds, _ in predictions]).tolist() == nodes(Split.TEST)


RANKS: dict[str, Any] = {"devices": 2, "strategy": "ddp_fork", "num_sanity_val_steps": 0, "enable_checkpointing": False}


def in_fork(work: Callable[[], object], folder: Path) -> None:
    """Does the work in a fork, as the trainer changes its process."""

    def alone() -> None:
        torch.set_num_threads(1)  # the threads of OpenMP do not survive a fork
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.cuda, "_is_in_bad_fork", lambda: False)  # the ranks use no GPU
            work()

    with forked(alone, folder) as program:
        code, text = program.ended()
    assert code == 0, text


@pytest.mark.slow
@pytest.mark.exhaustive
def test_two_ranks_of_ddp_share_every_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEEN", str(tmp_path))

    def work() -> None:
        user_trainer = trainer(tmp_path, **RANKS)
        user_trainer.fit(Classifier(), datamodule=data())
        user_trainer.predict(Classifier(), datamodule=data(), return_predictions=False)

    in_fork(work, tmp_path)
    reference = {"train": nodes(Split.TRAIN) * 3, "val": nodes(Split.VAL) * 3}
    reference["predict"] = list(range(small_graph().num_nodes))
    stages = {"train": "fit", "val": "fit", "predict": "predict"}
    for split, ids in reference.items():
        first, second = (
            json.loads((tmp_path / f"{stages[split]}-{rank}.json").read_text())[split] for rank in range(2)
        )
        assert sorted(first + second) == sorted(ids), split
        assert min(len(first), len(second)) > 0


def test_what_the_trainer_decides_is_refused() -> None:
    with pytest.raises(UserError, match="GraphDataModule: world_size follows from the split and the trainer"):
        data(world_size=2)
    with pytest.raises(UserError, match=r"sampler=4 must be a Sampler or fanouts, got int"):
        GraphDataModule(small_graph(), 4)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="batch_size=0"):
        data(eval_batch_size=0)


@pytest.mark.parametrize("num_nodes", [1, 2, 5, 6, 9])
@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_every_loss_of_every_rank_is_a_mean_over_some_node(num_nodes: int, batch_size: int) -> None:
    """Whatever the sizes, so that no rank's NaN reaches the others through DDP."""
    split = np.repeat(np.array([Split.TRAIN, Split.VAL, Split.TEST], np.int8), num_nodes)
    split_of_one = np.zeros(small_graph().num_nodes, np.int8)
    split_of_one[: len(split)] = split
    graph = replace(small_graph(), split=split_of_one)
    for world_size in (2, 3, 4):
        batches: dict[str, list[list[list[int]]]] = {}  # seeds by rank, batch
        for rank in range(world_size):
            module = GraphDataModule(graph, NeighborSampler(fanouts=[2]), batch_size, threads=1)
            module.trainer = cast(L.Trainer, SimpleNamespace(global_rank=rank, world_size=world_size))
            for name in ("train", "val", "test", "predict"):
                loader = getattr(module, f"{name}_dataloader")()
                batches.setdefault(name, []).append([batch.seeds.tolist() for batch in loader])
        for name, of_ranks in batches.items():
            assert len({len(of_rank) for of_rank in of_ranks}) == 1, "all ranks take as many steps"
            seeds = [seed for of_rank in of_ranks for batch in of_rank for seed in batch]
            if name == "predict":
                assert sorted(seeds) == list(range(graph.num_nodes))
            else:
                assert all(batch for of_rank in of_ranks for batch in of_rank)
                assert {*seeds} == {*np.flatnonzero(graph.split == SPLITS[name]).tolist()}


class Logs(Classifier):
    """Writes down the last loss that a rank has seen."""

    def on_train_end(self) -> None:
        loss = self.trainer.callback_metrics["val_loss"]
        (Path(os.environ["SEEN"]) / f"loss-{self.global_rank}").write_text(str(float(loss)))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_ranks_whose_last_batch_would_be_empty_train_to_a_finite_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEEN", str(tmp_path))
    split = np.zeros(small_graph().num_nodes, np.int8)
    split[:5], split[5:10] = Split.TRAIN, Split.VAL
    module = GraphDataModule(replace(small_graph(), split=split), NeighborSampler(fanouts=[4]), 2)
    in_fork(lambda: trainer(tmp_path, **RANKS).fit(Logs(), datamodule=module), tmp_path)
    assert all(np.isfinite(float((tmp_path / f"loss-{rank}").read_text())) for rank in range(2))
