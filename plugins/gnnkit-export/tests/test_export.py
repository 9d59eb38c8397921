"""Trained models as files of torch and of ONNX, called without gnnkit."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import multiprocessing
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gnnkit_export import export
from gnnkit_export.exported import PlainLayers
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import HeteroData

import gnnkit
from gnnkit import plugins
from gnnkit.config.settings import Choice
from gnnkit.engine import Adjacency
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.jobs import weights
from gnnkit.jobs.models import ModelSource, Widths
from gnnkit.model.base import is_iterated
from gnnkit.model.gat import GAT
from gnnkit.model.gcn import GCN
from gnnkit.model.gin import GIN, GINE
from gnnkit.model.hgt import HGT
from gnnkit.model.rgat import RGAT
from gnnkit.model.rgcn import RGCN
from gnnkit.model.sage import GraphSAGE
from gnnkit.model.simple_hgn import SimpleHGN
from gnnkit.prepare.trained import Inputs
from gnnkit.prepare.transform import Scale
from tests.cases import few
from tests.graphs import papers_and_authors
from tests.runs import BARE

NODES, WIDTH, CLASSES = 40, 5, 3
CALLS = itertools.count(1)  # of a model


class Net(nn.Module):
    """A class of PyG."""

    def __init__(self, in_features: int = WIDTH, num_classes: int = CLASSES) -> None:
        super().__init__()
        self.conv1, self.conv2 = pyg.GATConv(in_features, 4, heads=2), pyg.GCNConv(8, num_classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.conv2(self.conv1(x, edge_index).relu(), edge_index)
        return out


class Counting(nn.Module):
    """A class whose result depends on what torch takes for a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.linear(x) * next(CALLS)
        return out


class Peeking(Net):
    """A class that torch cannot look into."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(x, edge_index) if float(x.sum()) > 0 else x


TYPES, NODE_TYPES, EDGE_WIDTH = 3, 2, 2
SUFFIXES = ("pt2", "onnx")
PLAIN = Widths(WIDTH, CLASSES, 0)
WIDE = Widths(WIDTH, CLASSES, EDGE_WIDTH, TYPES)
OF_EDGES = ("edge_weight", "edge_attr", "edge_type")


def draw(num_nodes: int = NODES, reads: Collection[str] = ()) -> dict[str, Tensor]:
    """Draws a graph with repeated edges, loops, and a node without in-edges."""
    rng = np.random.default_rng(num_nodes)
    edges = rng.integers(0, num_nodes, (2, 4 * num_nodes))
    edges = np.concatenate([edges, edges[:, :5], [[0, 1, 1], [0, 1, 1]]], 1)
    edges = edges[:, edges[1] != 2]
    count = edges.shape[1]
    found = {
        "x": rng.normal(size=(num_nodes, WIDTH)),
        "edge_index": edges,
        "edge_weight": rng.random(count),
        "edge_attr": rng.normal(size=(count, EDGE_WIDTH)),
        "edge_type": rng.integers(0, TYPES, count),
        "node_type": np.sort(rng.integers(0, NODE_TYPES, num_nodes)),
    }
    return {name: torch.from_numpy(value) for name, value in found.items() if name in ("x", "edge_index", *reads)}


@pytest.fixture(scope="module", autouse=True)
def exporter() -> Iterator[Callable[..., Any]]:
    """Exports and calls in one process for all tests: it imports the exporters once.

    A process that has done so cannot fork, so this is not the process of the tests.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=obey, args=(theirs,), daemon=True)
    process.start()

    def ask(function: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
        ours.send_bytes(pickle.dumps((function, arguments)))
        found = pickle.loads(ours.recv_bytes())
        if isinstance(found, Exception):
            raise found
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "run_in_child", ask)
        yield ask
    process.kill()
    process.join()


def obey(asked: Connection) -> None:
    torch.set_num_threads(1)
    while True:
        function, arguments = pickle.loads(asked.recv_bytes())
        try:
            found = function(*arguments)
        except Exception as error:
            found = error
        asked.send_bytes(pickle.dumps(found))


def single(given: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.float() if value.is_floating_point() else value for name, value in given.items()}


def saved(folder: Path, model: nn.Module, widths: Widths = PLAIN, edge_weight: bool | None = False) -> Path:
    """Writes a folder as a run leaves it, without training."""
    folder.mkdir(parents=True)
    weights.save(model, widths, folder)
    Inputs(None, None, 1.0, False, edge_weight=edge_weight).save(folder)
    return folder


COLUMNS = {"rgcn of blocks": 8, "rgcn one-hot": 16 * (2 * TYPES + 1), "rgcn one-hot of bases": 16 * 3}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "gcn": lambda: GCN(WIDTH, CLASSES, norm="batch"),
    "sage": lambda: GraphSAGE(WIDTH, CLASSES),
    "sage max": lambda: GraphSAGE(WIDTH, CLASSES, aggregator="max"),
    "gat": lambda: GAT(WIDTH, CLASSES),
    "gin": lambda: GIN(WIDTH, CLASSES, norm="layer"),
    "gine": lambda: GINE(WIDTH, CLASSES, EDGE_WIDTH),
    "gat on edge features": lambda: GAT(WIDTH, CLASSES, edge_width=EDGE_WIDTH),
    "rgcn": lambda: RGCN(WIDTH, CLASSES, TYPES),
    "rgcn of bases": lambda: RGCN(WIDTH, CLASSES, TYPES, bases=2, project=True, self_loop=False),
    "rgcn of blocks": lambda: RGCN(COLUMNS["rgcn of blocks"], CLASSES + 1, TYPES, blocks=4, inverse=False),
    "rgat": lambda: RGAT(WIDTH, CLASSES, TYPES),
    "simple_hgn": lambda: SimpleHGN(WIDTH, CLASSES, TYPES, hidden=4, heads=2, num_layers=4),
    "rgat of given edges": lambda: RGAT(WIDTH, CLASSES, TYPES, inverse=False, self_loop=False, project=False),
    "hgt": lambda: HGT(WIDTH, CLASSES, TYPES),
    "hgt of given edges": lambda: HGT(WIDTH, CLASSES, TYPES, inverse=False, self_loop=True),
    "rgcn one-hot": lambda: RGCN(COLUMNS["rgcn one-hot"], CLASSES, TYPES, one_hot=True),
    "rgcn one-hot of bases": lambda: RGCN(COLUMNS["rgcn one-hot of bases"], CLASSES, TYPES, one_hot=True, bases=2),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("weighted", [False, True])
def test_plain_operations_compute_what_the_engine_computes(name: str, weighted: bool) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().double().eval()
    given = draw(reads=OF_EDGES if weighted else OF_EDGES[1:])
    given["x"] = torch.randn(NODES, COLUMNS.get(name, WIDTH), dtype=torch.float64)
    torch.testing.assert_close(PlainLayers(model, lambda x: x)(**given), model(**given), rtol=1e-10, atol=1e-10)


def test_plain_operations_read_node_types_as_the_engine_does() -> None:
    from gnnkit.model.base import takes_edges

    torch.manual_seed(0)
    model = HGT(WIDTH, CLASSES, TYPES, NODE_TYPES).double().eval()
    takes_edges(model)
    given = draw(reads=("edge_type", "node_type"))
    sizes = torch.bincount(given["node_type"]).tolist()
    graph = Graph.from_edges(
        *given["edge_index"].numpy(),
        NODES,
        features=given["x"].numpy(),
        edge_types=given["edge_type"].numpy(),
        node_types=[("paper", sizes[0]), ("author", sizes[1])],
    )
    torch.testing.assert_close(PlainLayers(model, lambda x: x)(**given), model(graph), rtol=1e-10, atol=1e-10)
    del given["node_type"]
    with pytest.raises(UserError, match=r"weights for num_node_types=2, but .* no node_type: .*edge_index, node_type"):
        PlainLayers(model, lambda x: x)(**given)


TRAINED = [path.stem for path in sorted((plugins.CONF / "model").glob("*.yaml"))]
TRAINED = [name for name in TRAINED if not is_iterated(plugins.load("model", name))]


@pytest.mark.slow
@few(
    ("name", "suffix"),
    [pytest.param(name, suffix, id=f"{name}-{suffix}") for name in TRAINED for suffix in SUFFIXES],
    default=["rgcn-onnx", "rgat-pt2"],
)
def test_every_model_is_written_where_edges_have_features_types_and_weights(
    tmp_path: Path, name: str, suffix: str, exporter: Any
) -> None:
    widths = Widths(WIDTH, CLASSES, EDGE_WIDTH, TYPES)
    source = ModelSource(Choice("model", name, {"num_layers": 2}))
    run = saved(tmp_path / "run", source.make_model(widths, 0), widths)
    path = gnnkit.export(run, tmp_path / f"m.{suffix}", model=source.make_model(widths, 1), edge_weight=True)
    model = gnnkit.load(run, source.make_model(widths, 1))
    reads = ["edge_weight", *(["edge_attr"] if name in ("gat", "gine") else [])]
    reads += ["edge_type"] * (source.reads_relations and name != "lightgcn")  # whose relations are alike
    for num_nodes in (3, 100):
        given = draw(num_nodes, reads)
        found = called(exporter, path, **(given if suffix == "pt2" else single(given)))  # a .pt2 takes any type
        torch.testing.assert_close(found, model(**single(draw(num_nodes, OF_EDGES))), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@few(("kind", "suffix"), itertools.product(["gcn", "PyG"], SUFFIXES), default=[("PyG", "pt2")])
def test_a_file_takes_what_its_model_reads(tmp_path: Path, kind: str, suffix: str, exporter: Any) -> None:
    model, edge_width = (GCN(WIDTH, CLASSES), 0) if kind == "gcn" else (Net(), EDGE_WIDTH)
    run = saved(tmp_path / "run", model, Widths(WIDTH, CLASSES, edge_width))
    path = gnnkit.export(run, tmp_path / f"model.{suffix}", model=model)
    for num_nodes in (3, 100):
        given = single(draw(num_nodes))
        torch.testing.assert_close(called(exporter, path, **given), model.eval()(**given), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_weights_that_a_class_does_not_take_are_refused(tmp_path: Path) -> None:
    run = saved(tmp_path / "run", Net())
    with pytest.raises(UserError, match="forward of model=Net has no parameter edge_weight: add the parameter"):
        gnnkit.export(run, tmp_path / "model.pt2", model=Net(), edge_weight=True)


def train(graph: Graph, model: Any, folder: Path, scale: str) -> Path:
    keys: dict[str, Any] = {"strategy": "vertex_centric", "comm": "threads", "workers": 2, **BARE}
    keys |= {"trainer": {"max_epochs": 1}, "features": {"scale": scale}, "write": ["logits", "predictions"]}
    return gnnkit.train(graph, model=model, folder=folder, **keys).folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], tuple[Path, dict[str, Any]]]:
    """Trains on edges with or without weights once. Returns the folder and the data."""

    def trained(weighted: bool) -> tuple[Path, dict[str, Any]]:
        rng = np.random.default_rng(0)
        x, ends, labels = rng.normal(size=(NODES, WIDTH)), rng.integers(0, NODES, (2, 160)), np.arange(NODES) % CLASSES
        weight = rng.random(160) if weighted else None
        graph = Graph.from_edges(
            ends[0], ends[1], NODES, features=x, labels=labels, split=1 + np.arange(NODES) % 3, weight=weight
        )
        run = train(graph, "gcn", tmp_path_factory.mktemp("trained") / "run", "none")
        return run, {"x": x, "edge_index": ends} | ({} if weight is None else {"edge_weight": weight})

    return functools.cache(trained)


@pytest.mark.slow
@pytest.mark.exhaustive
@few(("weighted", "suffix"), itertools.product([False, True], SUFFIXES), default=[(True, "pt2")])
def test_a_file_takes_weights_where_the_edges_that_trained_had_them(
    tmp_path: Path, weighted: bool, suffix: str, exporter: Any, trained: Any
) -> None:
    run, given = trained(weighted)
    path = gnnkit.export(run, tmp_path / f"net.{suffix}")
    found = called(exporter, path, **single({name: torch.from_numpy(value) for name, value in given.items()}))
    np.testing.assert_allclose(found, np.load(run / "logits.npy"), atol=1e-5)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_weights_that_a_model_does_not_read_are_no_input(tmp_path: Path, exporter: Any) -> None:
    model = GraphSAGE(WIDTH, CLASSES, aggregator="max")
    run = saved(tmp_path / "run", model, edge_weight=True)
    path = gnnkit.export(run, tmp_path / "net.pt2", model=model)
    given = single(draw())
    torch.testing.assert_close(called(exporter, path, **given), model.eval()(**given), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_run_that_does_not_say_whether_edges_had_weights_asks_for_the_argument(tmp_path: Path) -> None:
    run = saved(tmp_path / "run", model := GCN(WIDTH, CLASSES), edge_weight=None)
    with pytest.raises(UserError, match=r"inputs\.json does not record whether training edges had weights"):
        gnnkit.export(run, tmp_path / "net.pt2", model=model)
    gnnkit.export(run, tmp_path / "net.pt2", model=model, edge_weight=False)


def called(exporter: Any, path: Path, **given: Tensor) -> Tensor:
    return torch.tensor(exporter(numbers, path, given))


def numbers(path: Path, given: dict[str, Tensor]) -> Any:
    if path.suffix == ".pt2":
        return torch.export.load(path).module()(**given).tolist()
    import onnxruntime

    arrays = {name: value.numpy() for name, value in given.items()}
    return onnxruntime.InferenceSession(path).run(None, arrays)[0].tolist()


def by_numbers(data: HeteroData) -> dict[str, Tensor]:
    """Numbers nodes and relations in their order, as the documentation does."""
    rows = [data[name].get("x", torch.ones(data[name].num_nodes, 1)) for name in data.node_types]
    sizes = torch.tensor([len(x) for x in rows])
    first = dict(zip(data.node_types, (sizes.cumsum(0) - sizes).tolist(), strict=True))
    edges = [data[key].edge_index + torch.tensor([[first[key[0]]], [first[key[2]]]]) for key in data.edge_types]
    return {
        "x": torch.block_diag(*rows),
        "edge_index": torch.cat(edges, 1),
        "edge_type": torch.arange(len(edges)).repeat_interleave(torch.tensor([e.shape[1] for e in edges])),
        "node_type": torch.arange(len(rows)).repeat_interleave(sizes),
    }


# A machine without gnnkit, and first without torch. Other imports fail.
ALONE = """
import sys
for name in ("gnnkit", "torch_geometric", "lightning", "torch"):
    sys.modules[name] = None
import numpy as np
import onnxruntime
given = dict(np.load("given.npz"))
for path in sys.argv[1:]:
    if path.endswith(".onnx"):
        session = onnxruntime.InferenceSession(path)
        (found,) = session.run(None, {each.name: given[each.name] for each in session.get_inputs()})
        np.save(f"{path}.npy", found)
del sys.modules["torch"]
import torch
for path in sys.argv[1:]:
    if path.endswith(".pt2"):
        program = torch.export.load(path)
        names = program.graph_signature.user_inputs
        found = program.module()(**{name: torch.from_numpy(given[name]) for name in names})
        np.save(f"{path}.npy", found.detach().numpy())
"""


def alone(folder: Path, **given: Any) -> Callable[[str], Any]:
    """Calls all files of a folder. Returns a function that reads the result of one."""
    np.savez(folder / "given.npz", **given)
    paths = [path.name for path in folder.iterdir() if path.suffix[1:] in SUFFIXES]
    subprocess.run([sys.executable, "-c", ALONE, *paths], cwd=folder, check=True, timeout=240)
    return lambda name: np.load(folder / f"{name}.npy")


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.long("an interpreter imports torch and ONNX Runtime anew, on a machine without gnnkit")
def test_files_of_typed_models_equal_predict_on_another_graph_of_the_same_types(tmp_path: Path) -> None:
    unseen, folder = papers_and_authors(70, 9), tmp_path / "elsewhere"
    folder.mkdir()
    keys: dict[str, Any] = {"strategy": "vertex_centric", "workers": 1, "comm": "threads", **BARE}
    predict_keys = {"write": ["logits"], "workers": 1, "comm": "threads", "logger": "none"}
    predicted_logits = {}
    for name in ("rgat", "rgcn", "simple_hgn", "hgt"):
        keys |= {"model": None if name == "rgat" else name, "folder": tmp_path / name}  # rgat is the default
        run = gnnkit.train(papers_and_authors(40, 12), trainer={"max_epochs": 2}, **keys).folder
        path = gnnkit.predict(run, unseen, folder=tmp_path / f"{name} predicted", **predict_keys).folder
        predicted_logits[name] = np.load(Path(path) / "logits.npy")
        for suffix in SUFFIXES:
            gnnkit.export(run, folder / f"{name}.{suffix}")
    results = alone(folder, **{key: value.numpy() for key, value in single(by_numbers(unseen)).items()})
    for name, logits in predicted_logits.items():
        for suffix in SUFFIXES:
            np.testing.assert_allclose(results(f"{name}.{suffix}"), logits, atol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.long("an interpreter imports torch and ONNX Runtime anew, on a machine without gnnkit")
@few("kind", ["ours", "PyG"], default=["ours"])
def test_a_file_takes_raw_rows_on_a_machine_with_its_library_alone(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NODES, WIDTH)) * [1, 100, 0.01, 5, 1] + [0, 50, 0, 3, 1.7e9]  # beyond float32
    ends, labels = rng.integers(0, NODES, (2, 160)), rng.integers(0, CLASSES, NODES)
    graph = Graph.from_edges(ends[0], ends[1], NODES, features=x, labels=labels, split=1 + np.arange(NODES) % 3)
    model = None if kind == "ours" else Net()
    run = train(graph, model or "gcn", tmp_path / "run", "standard")
    there = tmp_path / "elsewhere"
    there.mkdir()
    for suffix in SUFFIXES:
        gnnkit.export(run, there / f"model.{suffix}", model=model)
    logits, predictions = np.load(run / "logits.npy"), np.load(run / "predictions.npy")
    shutil.rmtree(run)
    results = alone(there, x=x, edge_index=ends)
    for suffix in SUFFIXES:
        found = results(f"model.{suffix}")
        np.testing.assert_allclose(found, logits, atol=1e-5)
        assert np.array_equal(found.argmax(1), predictions)


def test_a_model_is_exported_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, asked = GCN(WIDTH, CLASSES), []
    run = saved(tmp_path / "run", model)
    monkeypatch.setattr(export, "run_in_child", lambda *given, **keys: asked.append((given, keys)))
    gnnkit.export(run, tmp_path / "model.pt2", model=model)
    assert asked == [((export._export, run, tmp_path / "model.pt2", model, None), {"always": True})]


@pytest.mark.parametrize("kind", ["none", "row", "standard", "tails"])
def test_rows_are_scaled_as_by_the_run(kind: str) -> None:
    rows = np.random.default_rng(0).normal(size=(60, WIDTH))  # also below 0
    rows[2] = 0
    rows[:, 0] = np.exp(9 * rows[:, 0])
    scale = Scale.standard(rows, np.arange(60)) if kind in ("standard", "tails") else Scale(kind)
    if kind == "tails":
        scale = scale.compress(rows, np.arange(60))
        assert np.flatnonzero(scale.spread or ()).tolist() == [0]
    transform = weights.row_transform(Inputs(None, None, 1.0, False, scale=scale))
    np.testing.assert_allclose(transform(torch.from_numpy(rows)), scale.apply(rows), rtol=1e-12)


def test_names_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    run = saved(tmp_path / "run", GCN(WIDTH, CLASSES))
    with pytest.raises(UserError, match=r"model\.bin must end with \.pt2 .*or \.onnx"):
        gnnkit.export(run, tmp_path / "model.bin")
    (tmp_path / "model.pt2").write_text("mine")
    with pytest.raises(UserError, match=r"model\.pt2 exists: choose another name"):
        gnnkit.export(run, tmp_path / "model.pt2")
    assert (tmp_path / "model.pt2").read_text() == "mine"
    with pytest.raises(UserError, match="there is no model"):
        gnnkit.export(tmp_path, tmp_path / "other.pt2")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Peeking(), "model=Peeking: torch cannot export this model: "),
        (Counting(), "model=Counting computes different values after export on a graph of another size"),
    ],
    ids=["by values", "by constants"],
)
def test_models_that_no_file_can_hold_are_refused(tmp_path: Path, model: nn.Module, message: str) -> None:
    run = saved(tmp_path / "run", model)
    with pytest.raises(UserError, match=message):
        gnnkit.export(run, tmp_path / "model.pt2", model=model)
    assert not (tmp_path / "model.pt2").exists()


class IndexAdd(nn.Module):
    """Sums of in-neighbours by `index_add`, which is `ScatterND` in ONNX."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        z = self.lin(x)
        return torch.zeros_like(z).index_add(0, edge_index[1], z[edge_index[0]])


def warnings_of(folder: Path, path: Path, model: nn.Module) -> str:
    with contextlib.redirect_stderr(io.StringIO()) as text:
        export._export(folder, path, model, False)
    return text.getvalue()


@pytest.mark.slow
def test_sums_that_onnx_runtime_computes_wrongly_are_named(tmp_path: Path, exporter: Any) -> None:
    run = saved(tmp_path / "run", IndexAdd())
    text = exporter(warnings_of, run, tmp_path / "m.onnx", IndexAdd())
    assert "use scatter_add in the model, or SessionOptions.intra_op_num_threads=1" in text
    source = ModelSource(Choice("model", "simple_hgn", {}))
    for number, model in enumerate((source.make_model(WIDE, 0), GCN(WIDTH, CLASSES))):
        run = saved(tmp_path / str(number), model, PLAIN if number else WIDE)
        assert not exporter(warnings_of, run, tmp_path / f"{number}.onnx", model)


def test_what_onnx_needs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = saved(tmp_path / "run", model := GCN(WIDTH, CLASSES))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UserError, match=r"\.onnx needs onnxruntime: pip install gnnkit\[onnx\]"):
        gnnkit.export(run, tmp_path / "model.onnx", model=model)


class Wide(nn.Module):
    """A model of (x, adjacencies) by a user, with messages."""

    num_layers = 1

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, adjacencies: list[Adjacency]) -> Tensor:
        (a,) = adjacencies
        z = a.aggregate_messages(x, lambda rows, _: rows.relu()) + a.aggregate(x) + a.in_degree[:, None]
        out: Tensor = self.linear(z)
        return out


def test_a_model_of_a_user_gets_sums_and_degrees() -> None:
    from gnnkit.model.base import takes_edges

    torch.manual_seed(0)
    model = Wide().double().eval()
    given = draw()
    found = PlainLayers(model, lambda x: x)(**given)
    takes_edges(model)
    torch.testing.assert_close(found, model(**given), rtol=1e-10, atol=1e-10)
