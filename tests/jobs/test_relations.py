"""Runs of the relational model, on every layout and with what it does not serve."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData

import gnnkit
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Split
from tests.cases import few, in_turn
from tests.runs import BARE

RGCN = {"name": "rgcn", "hidden": 8}
RGAT = {"name": "rgat", "hidden": 4, "heads": 2}
HGT = {"name": "hgt", "hidden": 4, "heads": 2}
BASES = {"bases": 2, "inverse": False}


def told_by_types(n: int = 120, seed: int = 0) -> Graph:
    """Makes a graph without features whose classes only the types of edges tell.

    Each node has an edge from one of 4 hubs by its class's type, and one by a type that
    says nothing. Hubs have no label.
    """
    rng = np.random.default_rng(seed)
    labels, hubs = rng.integers(0, 2, n), rng.integers(n, n + 4, (2, n))
    nodes = np.arange(n)
    return Graph.from_edges(
        hubs.ravel(),
        np.r_[nodes, nodes],
        n + 4,
        labels=np.r_[labels, [-1] * 4],
        split=np.r_[rng.choice([Split.TRAIN, Split.VAL, Split.TEST], n), [Split.NONE] * 4],
        edge_types=np.r_[labels, np.full(n, 2)],
        edge_type_names=["good", "bad", "neither", "unused"],
    )


def train(folder: Path, graph: Graph | None = None, **keys: Any) -> Any:
    trainer = {"max_epochs": 12, "lr": 0.1, "precision": 64}
    run_keys = {"strategy": "vertex_centric", "workers": 4, "comm": "threads", "trainer": trainer, "inputs": "learned"}
    graph = told_by_types() if graph is None else graph
    return gnnkit.train(graph, folder=folder, **{**BARE, "embedding": 8, "model": RGCN, **run_keys, **keys})


@pytest.mark.slow
@pytest.mark.exhaustive
def test_all_layouts_learn_the_same_from_types(tmp_path: Path) -> None:
    results = {
        partition: train(tmp_path / partition, partition=partition, write=["logits"])
        for partition in ("1d", "1.5d", "2d", "3d")
    }
    for partition, result in results.items():
        assert result["test_accuracy"] == 1, partition
        assert result["train_loss"] == pytest.approx(results["1d"]["train_loss"], rel=1e-9)
        logits = (np.load(tmp_path / name / "logits.npy") for name in (partition, "1d"))
        np.testing.assert_allclose(*logits, rtol=1e-8)


@pytest.mark.slow
@pytest.mark.exhaustive
@few("bases,width", [(None, 8 * (2 * 4 + 1)), (3, 8 * (3 + 1))], default=[(3, 8 * (3 + 1))])
def test_all_layouts_learn_the_rows_of_the_first_weights(tmp_path: Path, bases: int | None, width: int) -> None:
    model = {**RGCN, "one_hot": True, "bases": bases, "dropout": 0.3}
    for partition in ("1d", "2d", "3d"):
        keys = {"model": model, "embedding": width, "trainer": {"max_epochs": 4, "lr": 0.1, "precision": 64}}
        train(tmp_path / partition, partition=partition, write=["logits"], **keys)
        logits = (np.load(tmp_path / name / "logits.npy") for name in (partition, "1d"))
        np.testing.assert_allclose(*logits, rtol=1e-8)


@pytest.mark.slow
@few("bases,width", [(None, 8 * (2 * 4 + 1)), (3, 8 * (3 + 1))], default=[(3, 8 * (3 + 1))])
def test_rows_of_another_width_than_the_first_weights_are_refused(
    tmp_path: Path, bases: int | None, width: int
) -> None:
    with pytest.raises(UserError, match=rf"8 columns of input rows, but .*embedding={width}$"):
        train(tmp_path / "run", model={**RGCN, "one_hot": True, "bases": bases})


@pytest.mark.slow
@few("partition", ["1d", "1.5d", "2d", "3d"], default=("1d",))
def test_rows_that_decay_are_verified(tmp_path: Path, partition: str) -> None:
    model, learned = {**RGCN, "one_hot": True, "bases": 2}, {"scale": 0.1, "weight_decay": 0.1}
    keys: dict[str, Any] = {"model": model, "learned": learned, "embedding": 24, "partition": partition}
    result = train(tmp_path, overrides=["job=verify"], **keys)
    assert result["verified"], result
    assert result["largest_difference"]["embedding"] < 1e-10


@pytest.mark.slow
@pytest.mark.exhaustive
def test_one_hot_rows_decay_as_weights_unless_told_otherwise(tmp_path: Path) -> None:
    """Rows of first weights follow `trainer.weight_decay`, and other rows do not."""

    def rows(name: str, one_hot: bool, decay: float, own: float | None = None) -> Any:
        model = {**RGCN, "one_hot": one_hot, "bases": 2}
        trainer = {"max_epochs": 1, "lr": 0.02, "precision": 64, "optimizer": "sgd", "weight_decay": decay}
        keys = {"model": model, "trainer": trainer, "learned": {"weight_decay": own}, "embedding": 24}
        train(tmp_path / name, workers=1, **keys)
        return np.load(tmp_path / name / "embedding.npy")

    free, decayed = rows("free", True, 0.0), rows("decayed", True, 0.5)
    assert np.abs(free - decayed).max() > 1e-4
    np.testing.assert_array_equal(rows("own", True, 0.0, 0.5), decayed)
    np.testing.assert_array_equal(rows("kept", True, 0.5, 0.0), free)
    np.testing.assert_array_equal(rows("other", False, 0.5), rows("other free", False, 0.0))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_model_of_one_type_cannot_tell(tmp_path: Path) -> None:
    plain = replace(told_by_types(), edge_types=None, edge_type_names=None)
    assert train(tmp_path, plain)["test_accuracy"] < 0.8


@pytest.mark.slow
@few(
    "partition,options",
    [
        *in_turn(("1d", "1.5d", "2d", "3d"), (RGCN, RGCN | BASES, RGAT, HGT)),
        ("2d", HGT),
        ("3d", RGAT),
        ("1d", RGCN | BASES),
    ],
    default=[("2d", HGT)],
)
def test_a_run_is_verified(tmp_path: Path, partition: str, options: dict[str, Any]) -> None:
    features = np.random.default_rng(0).normal(size=(124, 6))
    graph = replace(told_by_types(), features=features, node_types=(("node", 120), ("hub", 4)))
    model = {**options, "dropout": 0.4}
    result = train(tmp_path, graph, overrides=["job=verify"], partition=partition, inputs="features", embedding=None, model=model)  # fmt: skip
    assert result["verified"], result


@pytest.mark.slow
def test_other_data_are_read_by_the_names_of_types(tmp_path: Path) -> None:
    graph = replace(told_by_types(), features=np.random.default_rng(0).normal(size=(124, 6)))
    keys = {"write": ["logits"], "inputs": "features", "embedding": None}
    train(tmp_path / "run", graph, **keys)
    order = np.array([3, 2, 0, 1])
    assert graph.edge_types is not None
    assert graph.edge_type_names is not None
    names = np.array(graph.edge_type_names)[np.argsort(order)].tolist()
    renamed = replace(graph, edge_types=order[graph.edge_types], edge_type_names=tuple(names))
    gnnkit.predict(tmp_path / "run", renamed, folder=tmp_path / "again", write=["logits"], workers=2, comm="threads")
    first, again = (np.load(tmp_path / name / "logits.npy") for name in ("run", "again"))
    np.testing.assert_allclose(first, again, rtol=1e-10)
    further = replace(graph, edge_type_names=("good", "bad", "other", "unused"))
    with pytest.raises(UserError, match=r"dataset has 5 types of edges, the model of .* reads 4"):
        gnnkit.predict(tmp_path / "run", further, folder=tmp_path / "never", workers=2, comm="threads")


def hetero(n: int = 90) -> HeteroData:
    """Makes papers whose class is the kind of the subject that they are about."""
    rng = np.random.default_rng(0)
    data, subject = HeteroData(), rng.integers(0, 6, n)
    data["author"].num_nodes = 10
    data["paper"].y, data["subject"].num_nodes = torch.tensor(subject % 3), 6
    for number, name in enumerate(("train_mask", "val_mask", "test_mask")):
        data["paper"][name] = torch.arange(n) % 3 == number
    data["author", "writes", "paper"].edge_index = torch.stack([torch.arange(n) % 10, torch.arange(n)])
    data["paper", "about", "subject"].edge_index = torch.stack([torch.arange(n), torch.tensor(subject)])
    return data


@pytest.mark.slow
@pytest.mark.exhaustive
def test_typed_data_of_pyg_train_with_learned_rows(tmp_path: Path) -> None:
    model, trainer = {"name": "rgcn", "dropout": 0.6}, {"max_epochs": 40, "lr": 0.1}
    result = train(tmp_path, hetero(), partition="2d", model=model, trainer=trainer, embedding=16)  # type: ignore[arg-type]
    assert result["test_accuracy"] > 0.9


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("input_rows", ["dense", "sparse"])
def test_types_of_nodes_may_have_rows_of_their_own_widths(tmp_path: Path, input_rows: str) -> None:
    data = hetero()
    data["subject"].x, data["paper"].x = torch.eye(6), torch.rand(90, 3)
    keys = {"inputs": "features", "embedding": None, "input_rows": input_rows, "write": ["logits"]}
    results = {
        partition: train(
            tmp_path / partition,
            data,
            partition=partition,
            model={**RGCN, "project": True},
            **keys,  # type: ignore[arg-type]
        )
        for partition in ("1d", "2d")
    }
    assert all(result["test_accuracy"] == 1 for result in results.values())
    logits = (np.load(tmp_path / partition / "logits.npy") for partition in results)
    np.testing.assert_allclose(*logits, rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [
        {"strategy": {"name": "preset_workload", "options": {"degrees": "local"}}},
        {"strategy": {"name": "vertex_centric", "local_iterations": 2}},
        {"strategy": {"name": "vertex_centric"}, "exchange": "sampled"},
    ],
    ids=lambda keys: str(keys["strategy"]),
)
def test_options_whose_edges_have_no_types_are_refused(tmp_path: Path, keys: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"model=rgcn distinguishes edge types, and strategy=.*: (use|remove)"):
        train(tmp_path, **keys)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bases": 0}, r"model\.bases=0 must be"),
        ({"bases": 2, "blocks": 2}, r"model\.blocks=2: model\.bases=2 is the other form of weights"),
        ({"blocks": 3}, r"model\.hidden=8 cannot be divided by model\.blocks=3"),
        ({"blocks": 4}, r"2 outputs cannot be divided by model\.blocks=4"),
        ({"hidden": 0}, r"model\.hidden=0 must be"),
        ({"one_hot": True, "project": True}, r"model\.one_hot=true: .*model\.project=true must go"),
    ],
)
def test_weights_that_cannot_be_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        train(tmp_path, model={**RGCN, **options})
