"""A script of Lightning with ModelCheckpoint and EarlyStopping, moved to gnnkit."""

from __future__ import annotations

import contextlib
import difflib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from tests.jobs.test_train import small_graph

HEAD = """
import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric.nn import SAGEConv
"""
BEFORE = (
    HEAD
    + """
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch_geometric.loader import DataLoader


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.second = SAGEConv(8, 16), SAGEConv(16, 3)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)

    def training_step(self, batch, index):
        logits = self(batch.x, batch.edge_index)[batch.train_mask]
        loss = F.cross_entropy(logits, batch.y[batch.train_mask])
        return loss

    def validation_step(self, batch, index):
        logits = self(batch.x, batch.edge_index)[batch.val_mask]
        labels = batch.y[batch.val_mask]
        self.log("own_loss", F.cross_entropy(logits, labels), batch_size=len(labels))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


torch.manual_seed(0)
model, loader = Model(), DataLoader([data])
best, stop = ModelCheckpoint("best", monitor="own_loss"), EarlyStopping("own_loss", patience=5)
trainer = L.Trainer(max_epochs=60, callbacks=[best, stop], logger=False, accelerator="cpu", enable_progress_bar=False)
trainer.fit(model, loader, loader)
model = Model.load_from_checkpoint(best.best_model_path).eval()
found = model(data.x, data.edge_index).argmax(1)
accuracy = float((found == data.y)[data.test_mask].float().mean())
"""
)
AFTER = (
    HEAD
    + """
import gnnkit


class Model(L.LightningModule):
    num_layers = 2

    def __init__(self):
        super().__init__()
        self.first, self.second = SAGEConv(8, 16), SAGEConv(16, 3)

    def forward(self, x, adjacencies):
        a, b = adjacencies
        x = self.first((a.with_halo(x), x[: a.num_dst]), a.rank_graph.edge_index).relu()
        return self.second((b.with_halo(x), x[: b.num_dst]), b.rank_graph.edge_index)

    def training_step(self, batch, index):
        logits = self(batch.x, batch.adjacencies)[batch.rows]
        loss = F.cross_entropy(logits, batch.labels, reduction="sum") / batch.total
        return loss

    def validation_step(self, batch, index):
        loss = F.cross_entropy(batch.logits, batch.labels, reduction="sum") / batch.total
        self.log("own_loss", loss, sync_dist=True, reduce_fx="sum")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


torch.manual_seed(0)
model = Model()
trainer = {"max_epochs": 60, "monitor": "val_loss", "patience": 5, "check_val_every_n_epoch": 1}
result = gnnkit.train(data, strategy="vertex_centric", model=model, workers=2, threads=1, trainer=trainer, comm="threads")
model = gnnkit.load(result.folder, Model())
accuracy = result["test_accuracy"]
"""
)
LINES = 15  # of the moved script that are new


def changed() -> list[str]:
    lines = difflib.ndiff(BEFORE.splitlines(), AFTER.splitlines())
    return [line for line in lines if line.startswith("+ ") and line.strip() != "+"]


def run(script: str, **names: Any) -> dict[str, Any]:
    names["__name__"] = "script"
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(script, "script", "exec"), names)
    return names


@pytest.mark.slow
def test_a_moved_script_trains_the_same_model_on_two_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the rounding of float32, and up to the same best epoch."""
    monkeypatch.chdir(tmp_path)
    graph = small_graph()
    dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))
    masks = {f"{name}_mask": torch.from_numpy(graph.split == i) for i, name in enumerate(("train", "val", "test"), 1)}
    edges = torch.from_numpy(np.stack([graph.csc.indices.astype(np.int64), dst]))
    data = Data(torch.from_numpy(graph.features), edges, y=torch.from_numpy(graph.labels), **masks)
    before, after = run(BEFORE, data=data), run(AFTER, data=data)
    assert after["result"]["world_size"] == 2
    assert after["accuracy"] == pytest.approx(before["accuracy"], abs=1e-6)
    for name, value in before["model"].state_dict().items():
        torch.testing.assert_close(after["model"].state_dict()[name], value, rtol=1e-3, atol=1e-4)
    assert after["result"]["best_value"] == pytest.approx(float(before["best"].best_model_score), rel=1e-4)


def test_few_lines_change() -> None:
    assert len(changed()) <= LINES, changed()
