from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import trim_to_layer

from gnnkit.errors import UserError
from gnnkit.graph import CSC, Graph
from gnnkit.pyg import NeighborLoader
from gnnkit.sampler import LoadedBatch, Loader, NeighborSampler, Sampler, WeightedSampler
from gnnkit.sampler.loaded_batch import tensor
from tests.cases import few

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


@pytest.mark.parametrize("sampler", [NeighborSampler([3, 4]), WeightedSampler([3, 4], importance="sum")], ids=type)
@pytest.mark.parametrize("symmetrize", [False, True])
def test_edges_of_pyg_data_are_counted_as_in_the_users_edge_index(sampler: Sampler, symmetrize: bool) -> None:
    edge_index = torch.randint(0, NUM_NODES, (2, 700), generator=torch.Generator().manual_seed(0))
    data = Data(
        edge_index=edge_index,
        x=torch.zeros(NUM_NODES, 1),
        edge_attr=torch.arange(700.0)[:, None],
        edge_weight=torch.arange(700.0) + 1,
    )
    graph = Graph.from_pyg(data).symmetrize() if symmetrize else Graph.from_pyg(data)
    backwards = 0
    for batch in loader(graph=graph, sampler=sampler, transform=LoadedBatch.to_pyg):
        torch.testing.assert_close(data.edge_attr[batch.e_id], batch.edge_attr, check_dtype=False)
        torch.testing.assert_close(data.edge_weight[batch.e_id], batch.edge_weight, check_dtype=False)
        ends = batch.n_id[batch.edge_index]
        forward = (ends == edge_index[:, batch.e_id]).all(dim=0)
        assert (forward | (ends.flip(0) == edge_index[:, batch.e_id]).all(dim=0)).all()
        backwards += int((~forward).sum())
        assert ("importance" in batch) is (sampler.importance is not None)
    assert (backwards > 0) is symmetrize


def test_pyg_data_of_a_loaded_graph_keeps_its_edges_apart(tmp_path: Path) -> None:
    graph = Graph.from_edges([5, 1, 3], [0, 0, 0], NUM_NODES, weight=[50, 10, 30])
    graph.save(tmp_path / "graph")
    for known in (graph, Graph.load(tmp_path / "graph")):
        (data,) = loader(graph=known, seeds=[0], transform=LoadedBatch.to_pyg)
        assert sorted(zip(data.e_id.tolist(), data.edge_weight.tolist(), strict=True)) == [(0, 50), (1, 10), (2, 30)]


def test_pyg_data_without_edge_ids_has_no_attributes_of_edges() -> None:
    (data, *_) = loader(sampler=NeighborSampler([3, 4], edge_ids=False), transform=LoadedBatch.to_pyg)
    assert not {"e_id", "edge_attr", "edge_weight"} & set(data.keys())


def test_edges_stand_in_order_of_hop_so_that_pyg_may_trim() -> None:
    model = Sage()
    for data in loader(transform=LoadedBatch.to_pyg):
        torch.testing.assert_close(model(data, trim=True), model(data))


def test_with_all_neighbours_batches_are_neighbor_loaders() -> None:
    target = np.repeat(np.arange(NUM_NODES), np.diff(GRAPH.csc.indptr))
    edge_index = torch.from_numpy(np.stack([GRAPH.csc.indices, target]).astype(np.int64))
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
    (data,) = loader(graph=GRAPH.csc, seeds=[4], rank=1, world_size=2, repeat=False, transform=LoadedBatch.to_pyg)
    assert (data.batch_size, data.num_nodes, data.num_edges, data.x) == (0, 0, 0, None)


def typed_data() -> HeteroData:
    data = HeteroData()
    data["paper"].x, data["author"].x = torch.rand(4, 2), torch.rand(3, 2)
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 1, 2], [0, 1, 3]])
    return data


@pytest.mark.parametrize("is_graph", [False, True])
@pytest.mark.parametrize("seeds", ["paper", ("paper", [0, 3]), ("paper", np.array([True, False, False, True]))])
def test_seeds_of_a_node_type_are_refused_with_the_loader_to_use(seeds: Any, is_graph: bool) -> None:
    data: Any = Graph.from_pyg(typed_data()) if is_graph else typed_data()
    for fanouts in ([2, 2], {"default": [2, 2], ("author", "writes", "paper"): [1, 2]}):
        with pytest.raises(
            UserError, match=r"^seeds=.*: seeds with a node type were .* use gnnkit.pyg.NeighborLoader$"
        ):
            Loader(
                data, fanouts, seeds, batch_size=2, features={"paper": np.ones((4, 2))}, transform=LoadedBatch.to_pyg
            )


def test_a_graph_with_types_is_refused_with_the_loader_to_use() -> None:
    with pytest.raises(UserError, match=r"^HeteroData has node or edge types: use gnnkit.pyg.NeighborLoader, or"):
        Loader(typed_data(), [2, 2], batch_size=2)


class Classifier(lightning.LightningModule):
    """Remembers the seeds that each stage was given."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Sage()
        self.seen: dict[str, list[list[int]]] = {"train": [], "val": [], "test": [], "predict": []}

    def loss(self, stage: str, batch: Any) -> torch.Tensor:
        if isinstance(batch, dict):  # as from `LoadedBatch.to`
            self.seen[stage].append(batch["input_nodes"].tolist())
            return self.model.layers[0].lin_r(batch["x"]).sum()
        self.seen[stage].append(batch.n_id.tolist())
        return torch.nn.functional.cross_entropy(self.model(batch), batch.y[: batch.batch_size])

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        return self.loss("train", batch)

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", self.loss("val", batch), batch_size=16)

    def test_step(self, batch: Any, index: int) -> None:
        self.log("test_loss", self.loss("test", batch), batch_size=16)

    def predict_step(self, batch: Any, index: int) -> torch.Tensor:
        self.loss("predict", batch)
        return batch["seeds"] if isinstance(batch, dict) else batch.n_id[: batch.batch_size]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer_in(folder: Path, save_at: int = 11, **changes: Any) -> lightning.Trainer:
    """Trains two epochs of eight steps, with a checkpoint after step `save_at`."""
    return lightning.Trainer(
        accelerator="cpu",
        max_epochs=2,
        default_root_dir=folder,
        logger=False,
        callbacks=[ModelCheckpoint(folder, "{step}", every_n_train_steps=save_at, save_top_k=-1)],
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        **changes,
    )


def validation(**changes: Any) -> Loader:
    return loader(seeds=np.arange(40, 0, -1), shuffle=False, seed=2, **changes)


def input_nodes(own: Loader, epoch: int) -> list[list[int]]:
    own.set_epoch(epoch)
    return [batch.input_nodes.tolist() for batch in own]


@pytest.mark.slow
@pytest.mark.parametrize("transform", [None, LoadedBatch.to_pyg])
def test_lightning_takes_loaders_for_training_and_validation(tmp_path: Path, transform: Any) -> None:
    module, own = Classifier(), loader(transform=transform)
    trainer = trainer_in(tmp_path)
    trainer.fit(module, own, validation(transform=transform))
    assert trainer.train_dataloader is own
    assert module.seen["train"] == [nodes for epoch in range(2) for nodes in input_nodes(loader(), epoch)]
    sanity, *epochs = (input_nodes(validation(), epoch) for epoch in (0, 0, 1))
    assert module.seen["val"] == sanity[:2] + epochs[0] + epochs[1]
    assert epochs[0] != epochs[1]
    assert torch.isfinite(trainer.callback_metrics["val_loss"])


@pytest.mark.slow
@pytest.mark.parametrize("transform", [None, LoadedBatch.to_pyg])
@pytest.mark.filterwarnings("error:.*(batch_sampler|shuffl)")
def test_lightning_takes_loaders_for_validation_test_and_prediction(tmp_path: Path, transform: Any) -> None:
    module, trainer = Classifier(), trainer_in(tmp_path)
    assert "val_loss" in trainer.validate(module, validation(transform=transform), verbose=False)[0]
    assert "test_loss" in trainer.test(module, loader(transform=transform), verbose=False)[0]
    seeds = torch.cat(trainer.predict(module, validation(transform=transform)))
    assert seeds.tolist() == list(range(40, 0, -1))
    assert module.seen["val"] == module.seen["predict"] == input_nodes(validation(), 0)
    assert module.seen["test"] == input_nodes(loader(), 0)


@pytest.mark.slow
@few("step", [3, 8, 11], default=[8])  # 8: the last of the first epoch
def test_lightning_resumes_a_loader_in_mid_epoch(tmp_path: Path, step: int) -> None:
    whole, resumed = Classifier(), Classifier()
    trainer_in(tmp_path, step).fit(
        whole, loader(transform=LoadedBatch.to_pyg), validation(transform=LoadedBatch.to_pyg)
    )
    trainer_in(tmp_path, step).fit(
        resumed,
        loader(transform=LoadedBatch.to_pyg),
        validation(transform=LoadedBatch.to_pyg),
        ckpt_path=tmp_path / f"step={step}.ckpt",
        weights_only=True,
    )
    assert resumed.seen["train"] == whole.seen["train"][step:]
    assert resumed.seen["val"][-3:] == whole.seen["val"][-3:]  # the last epoch's, whatever was validated before
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


def test_rows_of_bfloat16_are_the_same_memory() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    rows = torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16)
    array = rows.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    found = tensor(array)
    assert (found.dtype, found.tolist()) == (torch.bfloat16, [[1.5, -2.0]])
    rows[0, 0] = 7
    assert found[0, 0] == 7
