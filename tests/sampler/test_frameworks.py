from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import SAGEConv
from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE
from torch_geometric.utils import trim_to_layer

from gnnkit.graph import CSC, Graph
from gnnkit.sampler import LoadedBatch, Loader, NeighborSampler

NUM_NODES = 120


def graph() -> Graph:
    rng = np.random.default_rng(0)
    csc = CSC.from_edges(rng.integers(0, NUM_NODES, 700), rng.integers(0, NUM_NODES // 2, 700), NUM_NODES)
    features = rng.random((NUM_NODES, 6), np.float32)
    labels, split = rng.integers(0, 3, NUM_NODES), np.ones(NUM_NODES, np.int8)
    return Graph(csc, features, labels, split, rng.random((700, 2), np.float32))


GRAPH = graph()


def loader(**changes: Any) -> Loader:
    return Loader(**{"graph": GRAPH, "sampler": NeighborSampler([3, 4]), "batch_size": 16, "seed": 1} | changes)


class Sage(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList([SAGEConv(6, 8), SAGEConv(8, 3)])

    def forward(self, data: Any, trim: bool = False) -> torch.Tensor:
        x, edge_index = data.x, data.edge_index
        for i, layer in enumerate(self.layers):
            if trim:
                x, edge_index, _ = trim_to_layer(i, data.num_sampled_nodes, data.num_sampled_edges, x, edge_index)
            x = layer(x, edge_index).relu()
        return x[: data.batch_size]


def test_pyg_data_has_the_fields_and_meaning_of_neighbor_loaders() -> None:
    seeds = np.arange(90, 10, -1)
    for data in loader(seeds=seeds, transform=LoadedBatch.to_pyg):
        n_id, e_id = data.n_id.numpy(), data.e_id.numpy()
        assert data.num_nodes == len(n_id) == len(np.unique(n_id))
        np.testing.assert_array_equal(n_id[: data.batch_size], seeds[data.input_id.numpy()])
        np.testing.assert_array_equal(data.x, GRAPH.features[n_id])
        np.testing.assert_array_equal(data.y, GRAPH.labels[n_id])
        assert GRAPH.edge_features is not None
        np.testing.assert_array_equal(data.edge_attr, GRAPH.edge_features[e_id])
        source, target = n_id[data.edge_index.numpy()]
        np.testing.assert_array_equal(source, GRAPH.csc.indices[e_id])
        assert ((GRAPH.csc.indptr[target] <= e_id) & (e_id < GRAPH.csc.indptr[target + 1])).all()
        assert sum(data.num_sampled_nodes) == data.num_nodes
        assert sum(data.num_sampled_edges) == data.num_edges
        assert data.validate()


def test_edges_stand_in_order_of_hop_so_that_pyg_may_trim() -> None:
    model = Sage()
    for data in loader(transform=LoadedBatch.to_pyg):
        torch.testing.assert_close(model(data, trim=True), model(data))


@pytest.mark.skipif(
    not (WITH_PYG_LIB or WITH_TORCH_SPARSE), reason="PyG's NeighborLoader needs pyg-lib or torch-sparse"
)
def test_with_all_neighbours_batches_are_neighbor_loaders() -> None:
    target = np.repeat(np.arange(NUM_NODES), np.diff(GRAPH.csc.indptr))
    edge_index = torch.from_numpy(np.stack([GRAPH.csc.indices, target]).astype(np.int64))
    from torch_geometric.data import Data

    data = Data(x=torch.from_numpy(GRAPH.features), edge_index=edge_index)
    theirs = NeighborLoader(data, [-1, -1], batch_size=16)
    ours = loader(sampler=NeighborSampler([-1, -1]), shuffle=False, transform=LoadedBatch.to_pyg)
    for a, b in zip(ours, theirs, strict=True):
        assert a.num_sampled_nodes == b.num_sampled_nodes
        assert a.num_sampled_edges == b.num_sampled_edges
        assert set(a.n_id.tolist()) == set(b.n_id.tolist())
        assert set(a.e_id.tolist()) == set(b.e_id.tolist())
        torch.testing.assert_close(Sage()(a), Sage()(b))


def test_nodes_that_draw_anew_have_no_pyg_data() -> None:
    with pytest.raises(ValueError, match="redraw=false"):
        list(loader(sampler=NeighborSampler([3, 4], redraw=True), transform=LoadedBatch.to_pyg))


def test_a_batch_without_features_or_seeds_is_pyg_data_too() -> None:
    (data,) = loader(graph=GRAPH.csc, seeds=[4], rank=1, world_size=2, transform=LoadedBatch.to_pyg)
    assert (data.batch_size, data.num_nodes, data.num_edges, data.x) == (0, 0, 0, None)


def test_dgl_blocks_have_the_edges_of_ours() -> None:
    dgl = pytest.importorskip("dgl", reason="DGL has no build for this torch")
    for batch in loader():
        inputs, outputs, blocks = batch.to_dgl()
        assert (inputs.tolist(), outputs.tolist()) == (batch.input_nodes.tolist(), batch.seeds.tolist())
        for theirs, ours in zip(blocks, batch.blocks, strict=True):
            assert theirs.edata[dgl.EID].tolist() == ours.edge_ids.tolist()


class Classifier(lightning.LightningModule):
    """Trains on what a loader gives and remembers which seeds that was."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Sage()
        self.seen: list[list[int]] = []

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        if isinstance(batch, dict):  # what `LoadedBatch.to` makes
            self.seen.append(batch["seeds"].tolist())
            return self.model.layers[0].lin_r(batch["x"]).sum()
        self.seen.append(batch.n_id[: batch.batch_size].tolist())
        return torch.nn.functional.cross_entropy(self.model(batch), batch.y[: batch.batch_size])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(folder: Path, module: Classifier, own: Loader, resume_at: Path | None = None) -> lightning.Trainer:
    """Two epochs of eight steps, with a checkpoint after step 11."""
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=2,
        default_root_dir=folder,
        logger=False,
        callbacks=[ModelCheckpoint(folder, "{step}", every_n_train_steps=11)],
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit(module, own, ckpt_path=resume_at, weights_only=resume_at is not None)
    return trainer


@pytest.mark.parametrize("transform", [None, LoadedBatch.to_pyg])
def test_lightning_takes_a_loader_as_it_is(tmp_path: Path, transform: Any) -> None:
    module, own = Classifier(), loader(transform=transform)
    trainer = fit(tmp_path, module, own)
    assert trainer.train_dataloader is own
    again = loader()
    assert module.seen == [batch.seeds.tolist() for _ in range(2) for batch in again]


def test_lightning_resumes_a_loader_in_mid_epoch(tmp_path: Path) -> None:
    whole, resumed = Classifier(), Classifier()
    fit(tmp_path, whole, loader(transform=LoadedBatch.to_pyg))
    fit(tmp_path, resumed, loader(transform=LoadedBatch.to_pyg), resume_at=tmp_path / "step=11.ckpt")
    assert resumed.seen == whole.seen[11:]
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)
