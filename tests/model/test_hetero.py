"""PyG's heterogeneous classes on several ranks, against PyG by itself."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import nn as pyg
from torch_geometric.data import HeteroData

import gnnkit
from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.engine import Engine, ShardAdjacency
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.model.exactness import inexact
from gnnkit.model.unchanged import adapted
from gnnkit.partition import Grid, Partition, Shard, cut_all
from tests.cases import few
from tests.graphs import pyg_data
from tests.runs import train_on_threads, within_process

HIDDEN, CLASSES, PAPERS = 8, 3, 24
SIZES = {"paper": PAPERS, "author": 11, "venue": 5}
WIDTHS = {"paper": 6, "author": 4}
ENDS = [
    ("author", "writes", "paper"),
    ("paper", "written_by", "author"),
    ("paper", "cites", "paper"),
    ("paper", "in", "venue"),
    ("venue", "holds", "paper"),
]


def hetero_data(dtype: torch.dtype = torch.float32, features: bool = True) -> HeteroData:
    """Papers with labels, types of other widths, and a type without features."""
    draw, data = torch.Generator().manual_seed(3), HeteroData()
    for name, size in SIZES.items():
        if name in WIDTHS:
            data[name].x = torch.randn(size, WIDTHS[name], generator=draw).to(dtype)
        else:
            data[name].num_nodes = size
    data["paper"].y = torch.arange(PAPERS) % CLASSES
    for number, name in enumerate(("train_mask", "val_mask", "test_mask")):
        data["paper"][name] = torch.arange(PAPERS) % 4 == number
    for source, name, destination in ENDS:
        ends = [torch.randint(SIZES[end], (40,), generator=draw) for end in (source, destination)]
        data[source, name, destination].edge_index = torch.stack(ends)
        if features:
            data[source, name, destination].edge_attr = torch.randn(40, 2, generator=draw).to(dtype)
    return data


METADATA = hetero_data().metadata()


def dictionaries(data: HeteroData, dtype: torch.dtype) -> tuple[Any, Any, Any]:
    """Returns x_dict, edge_index_dict and edge_attr_dict, with ones for venues."""
    x = {name: data[name].x if name in WIDTHS else torch.ones(SIZES[name], 1, dtype=dtype) for name in SIZES}
    return x, data.edge_index_dict, {key: data[key].edge_attr for key in data.edge_types}


class HGT(nn.Module):
    """PyG's example of HGT."""

    def __init__(self, num_layers: int = 2) -> None:
        super().__init__()
        self.lins = nn.ModuleDict({name: pyg.Linear(-1, HIDDEN) for name in SIZES})
        self.convs = nn.ModuleList(pyg.HGTConv(HIDDEN, HIDDEN, METADATA, 2) for _ in range(num_layers))
        self.out = pyg.Linear(HIDDEN, CLASSES)

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Tensor:
        x_dict = {name: self.lins[name](x).relu_() for name, x in x_dict.items()}
        for conv in self.convs:
            x_dict = conv(x_dict, edge_index_dict)
        out: Tensor = self.out(x_dict["paper"])
        return out


class Typed(HGT):
    def __init__(self, metadata: Any, num_classes: int) -> None:
        super().__init__(len(metadata))


class Convolutions(nn.Module):
    """HeteroConv of GraphSAGE, GAT and others, with dropout and normalisation."""

    def __init__(self, make: Callable[[tuple[str, str, str]], nn.Module], p: float = 0.0) -> None:
        super().__init__()
        self.convs = nn.ModuleList(pyg.HeteroConv({key: make(key) for key in ENDS}) for _ in range(2))
        self.norm = nn.ModuleDict({name: nn.BatchNorm1d(HIDDEN) for name in SIZES})
        self.lin, self.p = pyg.Linear(HIDDEN, CLASSES), p

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
        for conv in self.convs:
            x_dict = conv(x_dict, edge_index_dict)
            x_dict = {name: F.dropout(self.norm[name](x).relu(), self.p, self.training) for name, x in x_dict.items()}
        return {"paper": self.lin(x_dict["paper"])}


class Attributes(nn.Module):
    """Edge features of each relation."""

    def __init__(self) -> None:
        super().__init__()
        make = functools.partial(pyg.GATv2Conv, (-1, -1), HIDDEN, edge_dim=2, add_self_loops=False)
        self.conv, self.lin = pyg.HeteroConv({key: make() for key in ENDS}, aggr="mean"), nn.Linear(HIDDEN, CLASSES)

    def forward(self, x_dict: Any, edge_index_dict: Any, edge_attr_dict: Any) -> Tensor:
        out: Tensor = self.lin(self.conv(x_dict, edge_index_dict, edge_attr_dict=edge_attr_dict)["paper"])
        return out


def sage_or_gat(key: tuple[str, str, str]) -> nn.Module:
    if key[1] in ("writes", "cites"):
        return pyg.GATConv((-1, -1), HIDDEN, add_self_loops=False)
    return pyg.SAGEConv((-1, -1), HIDDEN)


def several(key: tuple[str, str, str]) -> nn.Module:
    if key[1] == "cites":
        return pyg.GATConv(-1, HIDDEN)  # loops within one type
    return pyg.TransformerConv((-1, -1), HIDDEN) if key[1] == "in" else pyg.GraphConv((-1, -1), HIDDEN)


def convert_names() -> nn.Module:
    return pyg.to_hetero(pyg.models.GraphSAGE((-1, -1), HIDDEN, 2, CLASSES), METADATA, aggr="sum")


def rgat(key: tuple[str, str, str]) -> nn.Module:
    return pyg.RGATConv(HIDDEN, HIDDEN, num_relations=1)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "HGT": HGT,
    "HeteroConv": lambda: Convolutions(sage_or_gat),
    "several": lambda: Convolutions(several),
    "to_hetero": convert_names,
    "to_hetero GAT": lambda: pyg.to_hetero(
        pyg.models.GAT((-1, -1), HIDDEN, 2, CLASSES, add_self_loops=False), METADATA, aggr="mean"
    ),
    "edge_attr_dict": Attributes,
}


def make_model(name: str, schema: Any) -> Any:
    """Makes an adapted model with initialised layers, in float64."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # types that are no destination
        model = adapted(MODELS[name]())
    model.fit_types(schema, sum(WIDTHS.values()) + 1, 2)
    return model.double()


def differentiate(logits: Tensor, labels: Tensor, model: nn.Module) -> tuple[Tensor, list[Tensor]]:
    loss = F.cross_entropy(logits, labels, reduction="sum", ignore_index=-1) / PAPERS
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach(), [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]


def arguments_of(shard: Shard, comm: Communicator) -> tuple[Tensor, list[Any]]:
    """A rank's rows and layers."""
    x = shard.features.dense() if hasattr(shard.features, "dense") else np.asarray(shard.features)
    return torch.tensor(x, dtype=torch.float64), ShardAdjacency.layers(Engine(shard, comm, torch.float64), 1, 0)


def on_rank(shards: list[Shard], model: nn.Module, comm: Communicator) -> tuple[Tensor, list[Tensor]]:
    model, shard = copy.deepcopy(model), shards[comm.rank]  # ranks are threads
    logits = model(*arguments_of(shard, comm))
    loss, gradients = differentiate(logits, torch.from_numpy(shard.labels), model)
    return comm.all_reduce(loss), [comm.all_reduce(gradient.clone()) for gradient in gradients]


def cut(graph: Graph, ranks: int) -> list[Shard]:
    owners = np.random.default_rng(1).integers(0, ranks, graph.num_nodes).astype(np.int32)
    if ranks == 3:
        owners[owners == 1] = 2  # a rank without nodes
    return list(cut_all(graph, Partition(owners, None, Grid(ranks, 1, 1))))


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_a_heterogeneous_class_of_pyg_gives_what_pyg_gives(name: str, ranks: int) -> None:
    data = hetero_data(torch.float64)
    graph = Graph.of(data)
    model = make_model(name, graph.schema)
    parts = Threads.run(functools.partial(on_rank, cut(graph, ranks), model), ranks)
    x, edges, features = dictionaries(data, torch.float64)
    plain = copy.deepcopy(model.module).double().train()
    out = plain(x, edges, features) if name == "edge_attr_dict" else plain(x, edges)
    loss, gradients = differentiate(out if isinstance(out, Tensor) else out["paper"], data["paper"].y, plain)
    for part in parts:
        assert abs(float(part[0] - loss)) <= 1e-12
        for mine, theirs in zip(part[1], gradients, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


@few("name", MODELS, default=["HGT", "HeteroConv", "to_hetero"])
def test_heterogeneous_layers_are_exact_on_any_number_of_workers(name: str) -> None:
    model = make_model(name, Graph.of(hetero_data()).schema)
    assert inexact(model, sum(WIDTHS.values()) + 1, 2) == []


@pytest.mark.parametrize("name", MODELS)
def test_heterogeneous_layers_compute_no_row_per_edge(name: str) -> None:
    graph = Graph.of(hetero_data())
    model = make_model(name, graph.schema)
    Threads.run(lambda comm: model(*arguments_of(cut(graph, 1)[0], comm)), 1)
    assert model.fallbacks == {}


def test_the_order_of_reads_is_compared_between_ranks() -> None:
    from gnnkit.model.exactness import calls

    model = make_model("to_hetero", Graph.of(hetero_data()).schema)
    reads = calls(model, sum(WIDTHS.values()) + 1, 2)
    assert len(reads) == 2 * len(ENDS)


class Dropped(Convolutions):
    def __init__(self) -> None:
        super().__init__(lambda key: pyg.GATConv((-1, -1), HIDDEN, add_self_loops=False, dropout=0.5), 0.5)


def train(folder: Path, model: Any, **keys: Any) -> gnnkit.Result:
    return train_on_threads(hetero_data(), model, folder / "run", 2, **keys)


@pytest.mark.slow
@few("model", [HGT(), Dropped(), convert_names(), lambda *_: Dropped(), Attributes()], default=1)
def test_training_is_that_of_one_process(tmp_path: Path, model: Any) -> None:
    result = train(tmp_path, model, job="verify")
    assert result["verified"], result["largest_difference"]
    assert result["note"] is None


@pytest.mark.long("plans and trains")
@pytest.mark.slow
@pytest.mark.exhaustive
def test_planned_words_are_an_upper_bound(tmp_path: Path) -> None:
    plan = train(tmp_path / "plan", convert_names(), job="plan")
    run = train(tmp_path / "run", convert_names(), trainer={"max_epochs": 2})
    assert "words are an upper bound: layers of dictionaries" in plan.summary
    assert plan["layouts"]["chosen"]["bytes_sent"]["max"] >= run["bytes_sent"] > 0


@pytest.mark.slow
@few("make", [HGT, convert_names], default=1)
def test_a_run_is_loaded_into_a_new_model_and_predicts(tmp_path: Path, make: Callable[[], nn.Module]) -> None:
    result = train(tmp_path, make())
    assert result["exact"]
    trained_model = gnnkit.load(result.folder, make())  # with lazy layers again
    data = hetero_data()
    out = trained_model(*dictionaries(data, torch.float32)[:2])
    with within_process():
        predictions = gnnkit.predict(
            result.folder, data, model=make(), write=["logits"], folder=tmp_path / "new", comm="threads", workers=2
        )
    logits = np.load(predictions.folder / "logits.npy")[:PAPERS]
    np.testing.assert_allclose(logits, (out["paper"] if isinstance(out, dict) else out).detach(), atol=1e-5)
    without_venues, narrow = data.node_type_subgraph(["paper", "author"]), hetero_data()
    narrow["author"].x = narrow["author"].x[:, 1:]
    for other, message in (
        (without_venues, "node types are paper, author here, and paper, author, venue in the training data"),
        (
            narrow,
            rf"columns of features \(paper {WIDTHS['paper']}, author {WIDTHS['author'] - 1}, venue 1\), the model",
        ),
    ):
        with within_process(), pytest.raises(UserError, match=message):
            gnnkit.predict(result.folder, other, model=make(), folder=tmp_path / "other", comm="threads")


class Reads(nn.Module):
    """A model that returns what a function computes."""

    def __init__(self, compute: Callable[[Any, Any, nn.Module], Any], width: int = 6) -> None:
        super().__init__()
        self.lin, self.compute = nn.Linear(width, CLASSES), compute

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
        return self.compute(x_dict, edge_index_dict, self.lin)


def of_papers(x_dict: Any, edge_index_dict: Any, lin: nn.Module) -> Tensor:
    out: Tensor = lin(x_dict["paper"])
    return out


def of_authors(x_dict: Any, edge_index_dict: Any, lin: nn.Module) -> Tensor:
    out: Tensor = lin(x_dict["author"])
    return out


LOOPED = pyg.GATConv((6, 4), HIDDEN, add_self_loops=True)


def of_loops(x_dict: Any, edge_index_dict: Any, lin: nn.Module) -> Tensor:
    LOOPED.to(x_dict["paper"].dtype)(
        (x_dict["paper"], x_dict["author"]), edge_index_dict["paper", "written_by", "author"]
    )
    return of_papers(x_dict, edge_index_dict, lin)


class NeedsTimes(nn.Module):
    def forward(self, x_dict: Any, edge_index_dict: Any, time_dict: Any) -> Any:
        return x_dict


class NoRows(nn.Module):
    def forward(self, edge_index_dict: Any) -> Any:
        return edge_index_dict


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (NeedsTimes, "model=NeedsTimes: forward asks for time_dict, and a graph of several types gives x_dict"),
        (NoRows, r"model=NoRows: forward\(edge_index_dict\) takes no rows: write forward\(x_dict, edge_index_dict\)"),
        (
            lambda: Reads(lambda x, *_: x["paper"].sum()),
            r"must return the rows of one node type, or a dictionary of rows by node type, found shape \[\]",
        ),
        (
            lambda: Reads(lambda x, *_: x["book"]),
            "fails on a small graph with the types of this graph: KeyError: 'book'",
        ),
    ],
)
def test_a_model_that_no_worker_can_call_is_refused_before(make: Callable[[], nn.Module], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        adapted(make()).fit_types(Graph.of(hetero_data()).schema, sum(WIDTHS.values()) + 1, 2)


def test_a_predicted_relation_needs_rows_of_both_ends() -> None:
    model = make_model("HGT", Graph.of(hetero_data()).schema)
    model.check_link_ends(ENDS.index(("paper", "cites", "paper")))
    with pytest.raises(UserError, match="predicted relation author-writes-paper needs rows of author: return a dict"):
        model.check_link_ends(ENDS.index(("author", "writes", "paper")))


def test_self_loops_between_two_types_are_refused() -> None:
    data = hetero_data()
    model = adapted(Reads(of_loops))
    model.fit_types(Graph.of(data).schema, sum(WIDTHS.values()) + 1, 2)
    with pytest.raises(
        UserError, match=r"GATConv looks for self-loops, or adds them, between nodes of two types: use add"
    ):
        Threads.run(functools.partial(on_rank, cut(Graph.of(data), 2), model.double()), 2)


@pytest.mark.slow
def test_what_a_run_cannot_give_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"model=Reads: forward returns rows of author, and the labels are those of paper"
    ):
        train(tmp_path, Reads(of_authors, 4))
    with pytest.raises(
        UserError, match=r"model=Typed is a class, which .* pass an instance, such as Typed\(data.metadata"
    ):
        train(tmp_path, Typed)
    with pytest.raises(UserError, match=r"distributes a node's in-edges over ranks.*; use partition.grid=1d"):
        train(tmp_path, HGT(), partition="2d", workers=4)
    with pytest.raises(
        UserError, match=r"model=Reads: .* reads the node types of each relation, but the graph has none"
    ):
        train_on_threads(pyg_data(6, CLASSES), Reads(of_papers), tmp_path / "plain", 1)


@pytest.mark.slow
def test_a_dictionary_model_is_not_exported(tmp_path: Path) -> None:
    result = train(tmp_path, Reads(of_papers))
    with pytest.raises(UserError, match=r"takes dictionaries of rows and edges by type, .*: use gnnkit\.load"):
        gnnkit.export(result.folder, tmp_path / "model.pt2", model=Reads(of_papers))


@pytest.mark.slow
def test_types_without_features_have_learned_rows(tmp_path: Path) -> None:
    data = hetero_data(features=False)
    for name in WIDTHS:
        del data[name].x
        data[name].num_nodes = SIZES[name]
    result = train_on_threads(data, HGT(), tmp_path / "run", 2, inputs="learned", embedding=6, job="verify")
    assert result["verified"], result["largest_difference"]


def test_a_lightning_step_of_a_hetero_data_is_refused() -> None:
    import lightning

    class Stepping(HGT, lightning.LightningModule):
        def training_step(self, batch: Any) -> Any:
            return self(batch.x_dict, batch.edge_index_dict)

    with pytest.raises(UserError, match="model=Stepping: training_step reads a HeteroData"):
        adapted(Stepping())
