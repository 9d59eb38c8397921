"""Types of nodes and edges are read, ignored on purpose, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

import gnnkit
from gnnkit import config
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.sampler import Loader, NeighborSampler
from tests.cases import few
from tests.runs import BARE

N, M = 30, 90
RNG = np.random.default_rng(0)
ENDS = torch.from_numpy(RNG.integers(0, N, (2, M)))
MASKS = {f"{name}_mask": torch.arange(N) % 3 == place for place, name in enumerate(("train", "val", "test"))}
ROWS = {"x": torch.rand(N, 3), "y": torch.arange(N) % 2, **MASKS}
TWO = torch.arange(M) % 2  # types of edges


def hetero(folder: Path, *, relations: int = 2) -> Any:
    data = HeteroData()
    data["paper"].update(ROWS)
    data["author"].num_nodes = N
    data["author", "writes", "paper"].edge_index = ENDS
    if relations == 2:
        data["paper", "cites", "paper"].edge_index = ENDS.flip(0)
    return data


def one_relation(folder: Path) -> Any:
    return hetero(folder, relations=1)


def edge_type(folder: Path) -> Any:
    return Data(edge_index=ENDS, edge_type=TWO, **ROWS)


def node_type(folder: Path) -> Any:
    return Data(edge_index=ENDS, node_type=(torch.arange(N) > 9).long(), **ROWS)


def saved(folder: Path) -> Any:
    Graph.of(edge_type(folder)).save(folder)
    return {"name": "saved", "root": str(folder)}


def column(folder: Path) -> Any:
    _nodes(folder)
    lines = [f"{u},{v},{'ab'[kind]}" for u, v, kind in zip(*ENDS.tolist(), TWO.tolist(), strict=True)]
    (folder / "edges.csv").write_text("\n".join(["src,dst,type", *lines]))
    return {"name": "edges", "root": str(folder), "symmetrize": False}


def folder_of_relations(folder: Path) -> Any:
    _nodes(folder)
    (folder / "edges").mkdir()
    for name in "ab":
        (folder / f"edges/{name}.csv").write_text("\n".join(["src,dst", *(f"{u},{v}" for u, v in ENDS.T.tolist())]))
    return {"name": "edges", "root": str(folder), "symmetrize": False}


def store(folder: Path) -> Any:
    gnnkit.train(Graph.of(hetero(folder)), job="partition", strategy="auto", workers=2, folder=folder, cache=False)
    return {"name": "store", "root": str(folder)}


def imported(folder: Path) -> Any:
    gnnkit.train(dataset=column(folder / "data"), job="import", strategy="auto", workers=2, folder=folder / "store")
    return {"name": "store", "root": str(folder / "store")}


def _nodes(folder: Path) -> None:
    folder.mkdir(parents=True)
    split = np.array(["train", "val", "test"])[np.arange(N) % 3]
    lines = [f"{v},{v / 7},{'xy'[v % 2]},{split[v]}" for v in range(N)]
    (folder / "nodes.csv").write_text("\n".join(["id,a,label,split", *lines]))


class Own(nn.Module):
    """A model of (x, edge_index), as PyG's."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.weight = nn.Linear(in_features, num_classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        z: Tensor = self.weight(x)
        return z.index_add(0, edge_index[1], z[edge_index[0]])


def train(data: Any, folder: Path, **keys: Any) -> Any:
    given = {"dataset": data} if isinstance(data, dict) else {"graph": data}
    usual = {"strategy": "vertex_centric", "workers": 2, "threads": 1, "comm": "threads", "trainer": {"max_epochs": 1}}
    usual["model"] = "gcn"
    return gnnkit.train(**given, folder=folder / "run", **{**usual, **BARE, **keys})


DOORS = [
    hetero,
    one_relation,
    edge_type,
    node_type,
    saved,
    column,
    folder_of_relations,
    store,
    pytest.param(imported, marks=[pytest.mark.slow, pytest.mark.exhaustive]),
]


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
def test_types_that_the_model_does_not_read_are_refused_by_name(door: Any, tmp_path: Path) -> None:
    message = r"^model=gcn reads no types, and the graph has .*2 types of .*: choose model=rgcn, .*, or types=ignore"
    with pytest.raises(UserError, match=message) as caught:
        train(door(tmp_path / "data"), tmp_path)
    nodes, edges = ("types of nodes" in str(caught.value), "types of edges (" in str(caught.value))
    assert nodes == (door in (hetero, one_relation, node_type, store))
    assert edges == (door not in (one_relation, node_type))


@pytest.mark.slow
def test_a_graph_with_types_gets_a_model_that_reads_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = train(hetero(tmp_path / "data"), tmp_path, model=None)
    assert result["model"] == "rgat"
    assert "model=rgat: the graph has 2 types of nodes" in capsys.readouterr().out
    ignoring = train(hetero(tmp_path / "data"), tmp_path / "ignoring", model=None, types="ignore")
    assert ignoring["model"] == "gcn"


@pytest.mark.slow
def test_keys_of_the_model_that_reads_types_are_taken_and_composed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    composed, compose = [], config.compose
    monkeypatch.setattr(config, "compose", lambda overrides: composed.append(list(overrides)) or compose(overrides))
    result = train(hetero(tmp_path / "data"), tmp_path, model=None, overrides=["model.heads=4", "types=read"])
    assert [texts.count("model=rgat") for texts in composed] == [1]
    assert not any("model=gcn" in texts for texts in composed)
    assert (Path(result.folder) / "config.yaml").read_text().count("heads: 4") == 1


@pytest.mark.slow
@few(
    "keys",
    [
        *({"model": name} for name in ("sage", "gat", "gin", "gine", "label_propagation", "pagerank")),
        *({"strategy": name} for name in ("individual_sample", "preset_workload", "joint_sample", "auto")),
        {"model": Own},
        {"task": "link_prediction"},
        {"job": "verify", "trainer": {}},
    ],
    default=4,
)
def test_every_model_and_strategy_without_types_refuses(keys: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^model=\w+ reads no types"):
        train(hetero(tmp_path), tmp_path, **keys)


@pytest.mark.slow
@pytest.mark.exhaustive
@few("door", DOORS, default=(store,))
def test_types_are_ignored_on_purpose_or_read(door: Any, tmp_path: Path) -> None:
    data = door(tmp_path / "data")
    model = {"inputs": "degree"} if door in (store, imported) else {"inputs": "learned"}
    model = {} if door in (store, imported) else model
    result = train(data, tmp_path, types="ignore", **model)
    assert result["epochs"] == 1
    assert train(data, tmp_path / "read", model="rgcn", **model)["epochs"] == 1
    if not isinstance(data, dict):
        again = gnnkit.predict(result.folder, data, folder=tmp_path / "predicted", workers=1, comm="threads")
        assert again["checkpoint"]


def test_a_loader_takes_types_from_a_graph_alone() -> None:
    with pytest.raises(
        UserError,
        match=r"^HeteroData has node or edge types: use gnnkit\.pyg\.NeighborLoader, or pass a Graph from Graph\.from_pyg",
    ):
        Loader(hetero(Path()), NeighborSampler([2]))
    graph = Graph.of(hetero(Path()))
    batch = next(iter(Loader(graph, NeighborSampler([2]), batch_size=4)))
    assert graph.edge_types[batch.blocks[0].edge_ids].max() <= 1


@pytest.mark.slow
def test_types_that_training_did_not_have_are_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = train(Data(edge_index=ENDS, **ROWS), tmp_path)
    gnnkit.predict(run.folder, edge_type(tmp_path), folder=tmp_path / "new", workers=1, comm="threads")
    assert "edges have 2 types here, and those that trained the model" in capfd.readouterr().err
