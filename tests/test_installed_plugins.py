"""A distribution of others, with one plugin of every kind, runs a job as ours do."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from gnnkit.__main__ import main
from gnnkit.plugins import KINDS
from tests.folders import digests_of

Run = Callable[..., tuple[int, str]]

CODE = """
import os
from pathlib import Path

import lightning as L
import numpy as np
from lightning.pytorch.loggers import CSVLogger
from torch import nn

from gnnkit.comm.process import Gloo
from gnnkit.dataset.base import Dataset
from gnnkit_formats.pieces import EdgePiece, GraphPieces, NodeFields, list_positions
from gnnkit.exchange import RowExchange
from gnnkit.graph import Graph
from gnnkit.launch.launcher.builtin import Processes
from gnnkit.training.logger import RunLogger
from gnnkit.model.base import Program
from gnnkit.partition.order import NodeOrder
from gnnkit.partition import NodePartitioner
from gnnkit.sampler import Hop, Sampler
from gnnkit.strategy.individual_sample import IndividualSample
from gnnkit.strategy.vertex_centric import VertexCentric
from gnnkit.sync import Aggregation
from gnnkit.sync.base import GradientSync, trained
from gnnkit.task.node_classification import NodeClassification


def used(kind):
    Path(os.environ["USED"], kind).touch()


class Ring(Dataset):
    def __init__(self, size: int):
        self.size = size

    def load(self):
        used("dataset")
        ids = np.arange(self.size)
        return Graph.from_edges(ids, (ids + 1) % self.size, features=np.eye(self.size), labels=ids % 2, split=1 + ids % 3)


    def in_pieces(self):
        return RingPieces(self.size)


class RingPieces(GraphPieces):
    def __init__(self, size: int):
        super().__init__(Path(__file__))
        self.size = size

    @property
    def files(self):
        return [Path(__file__)]

    def open(self, room):
        used("pieces")
        return self.size

    def edges(self, rows):
        for first in range(0, self.size, 5):
            ids = np.arange(first, min(first + 5, self.size))
            yield EdgePiece("ring", ids, (ids + 1) % self.size, positions=list_positions(first, len(ids)))

    def nodes(self, num_nodes, room):
        ids = np.arange(num_nodes)
        return NodeFields(labels=ids % 2, split=1 + ids % 3)

    def features(self, room):
        for node in range(self.size):
            yield np.eye(1, self.size, node)


class Deal(NodePartitioner):
    def assign_nodes(self, graph, num_parts):
        used("partition")
        return np.arange(graph.num_nodes) % num_parts


class Last(NodeOrder):
    def order(self, csc, nodes):
        used("order")
        return np.arange(len(nodes))[::-1]


class First(Sampler):
    num_hops = 1

    def __init__(self, most: int = 2):
        self.most = most

    def draw(self, graph, nodes, hop, *, key):
        used("sampler")
        edges = [range(graph.indptr[v], min(graph.indptr[v + 1], graph.indptr[v] + self.most)) for v in nodes]
        edge_ids = np.array([edge for own in edges for edge in own], np.int64)
        indptr = np.cumsum([0, *map(len, edges)])
        return Hop(indptr, graph.indices[edge_ids], edge_ids)


class Strategy(VertexCentric):
    def batches(self, epoch, first=0):
        used("strategy")
        yield from super().batches(epoch, first)


class Sampling(IndividualSample):
    def __init__(self):
        super().__init__(batch_size=2)

    def setup(self, worker, model):
        super().setup(worker, model)
        if os.environ.get("FAIL"):
            raise ValueError("the strategy is at fault")


class Refusing(VertexCentric):
    def __init__(self, size: int = 0):
        if size < 1:
            raise ValueError(f"size={size} must be at least 1")


class Rows(RowExchange):
    def schedule(self):
        used("exchange")


class Comm(Gloo):
    def all_to_all(self, rows, send_counts, recv_counts):
        used("comm")
        return super().all_to_all(rows, send_counts, recv_counts)


class Launcher(Processes):
    def ranks(self, ranks, meanwhile=lambda: None):
        used("launcher")
        return super().ranks(ranks, meanwhile)


class Sync(GradientSync):
    def step(self, module, optimizer, share):
        used("sync")
        for parameter in trained(module):
            self.comm.all_reduce(parameter.grad)
        optimizer.step()


class OfRank0(Aggregation):
    def combine(self, gradients, shares):
        used("aggregation")
        return gradients[0] / shares[0]


class Goal(NodeClassification):
    def measure(self, outputs, worker):
        used("task")
        return super().measure(outputs, worker)


class Model(L.LightningModule):
    num_layers = 1

    def __init__(self, in_features, num_classes, bias: bool = False):
        super().__init__()
        self.linear = nn.Linear(in_features, num_classes, bias=bias)

    def forward(self, x, adjacencies):
        used("model")
        return adjacencies[0].aggregate(self.linear(x))

    def training_step(self, batch, index):
        logits = self(batch.x, batch.adjacencies)[batch.rows]
        self.log("rows", float(len(batch.rows)), sync_dist=True, reduce_fx="sum")
        return nn.functional.cross_entropy(logits, batch.labels, reduction="sum") / batch.total


class Curves(RunLogger):
    def __init__(self, folder_name: str = "mine"):
        self.folder_name = folder_name

    def make(self, folder):
        used("logger")
        return CSVLogger(folder, "", self.folder_name)


class Companion(L.Callback):
    def __init__(self, epochs: int = 1):
        self.epochs = epochs

    def on_train_epoch_end(self, trainer, module):
        used("callback")
        trainer.should_stop = trainer.current_epoch + 1 == self.epochs


class Steps(Program):
    def __init__(self, steps: int = 3):
        super().__init__(0.0, steps)

    def start(self, nodes):
        return nodes.adjacency.in_degree[:, None] * 0

    def step(self, x, nodes):
        return x + 1
"""
CLASSES = dict(
    zip(
        KINDS,
        (
            "Ring",
            "Deal",
            "Last",
            "First",
            "Strategy",
            "Rows",
            "Comm",
            "Launcher",
            "Sync",
            "Model",
            "Goal",
            "Curves",
            "Companion",
        ),
        strict=True,
    )
)
YAML = {"dataset": "name: others_dataset\nsize: 12  # nodes\n", "model": "name: others_model\nbias: true\n"}
BARE = ["report=false", "logger=none"]  # of a run whose page and loggers nobody reads
BROKEN = "import sys\nsys.exit(3)\n"


def install(site: Path, name: str, points: dict[str, dict[str, str]], files: dict[str, str]) -> None:
    """Writes an installed distribution: files and metadata."""
    info = site / f"{name}-1.0.dist-info"
    sections = (f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in of.items()) for group, of in points.items())
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    for path, text in {
        **files,
        f"{info.name}/METADATA": metadata,
        f"{info.name}/entry_points.txt": "\n".join(sections),
    }.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with the plugins of others, and with broken ones."""
    site = tmp_path / "site"
    points = {f"gnnkit.{kind}": {f"others_{kind}": f"others:{name}"} for kind, name in CLASSES.items()}
    points["gnnkit.aggregation"] = {"others_aggregation": "others:OfRank0"}
    points["gnnkit.model"]["others_program"] = "others:Steps"
    points["gnnkit.strategy"] |= {"others_sampling": "others:Sampling", "others_refusing": "others:Refusing"}
    yaml = {f"others/conf/{kind}/others_{kind}.yaml": text for kind, text in YAML.items()}
    install(site, "others", {**points, "gnnkit.conf": {"others": "others"}}, {"others/__init__.py": CODE, **yaml})
    broken = {f"gnnkit.{kind}": {f"broken_{kind}": "broken:Class"} for kind in KINDS}
    install(site, "broken", {**broken, "gnnkit.conf": {"broken": "broken"}}, {"broken.py": BROKEN})
    return site


@pytest.fixture
def run(site: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs the command where these distributions are installed.

    Returns the exit code and the text of both streams.
    """
    (site.parent / "used").mkdir()
    monkeypatch.setenv("USED", str(site.parent / "used"))
    monkeypatch.syspath_prepend(site)
    monkeypatch.chdir(site.parent)
    yield lambda *arguments: (main(arguments), "".join(capfd.readouterr()))
    sys.modules.pop("others", None)


@pytest.mark.slow
def test_a_job_runs_with_a_plugin_of_every_kind_from_another_distribution(site: Path, run: Run) -> None:
    overrides = [f"{kind}=others_{kind}" for kind in KINDS if kind not in ("sampler", "logger")]
    overrides += ["logger=[csv,others_logger]", "logger.others_logger.options.folder_name=yours"]
    overrides += ["callback.others_callback.options.epochs=2"]
    code, text = run(*overrides, "trainer.max_epochs=5", "dataset.size=18", "workers=2", "threads=1")
    assert code == 0, text
    (result,) = site.parent.glob("outputs/*/*/result.json")
    figures = json.loads(result.read_text())
    assert [figures[key] for key in ("strategy", "nodes", "dataset", "model", "world_size", "epochs")] == [
        "others_strategy", "others_partition", "others_dataset", "others_model", 2, 2,
    ]  # fmt: skip
    with (result.parent / "csv/metrics.csv").open() as file:
        assert [float(row["rows"]) for row in csv.DictReader(file) if row["rows"]] == [6, 6]
    assert (result.parent / "yours/metrics.csv").read_text() == (result.parent / "csv/metrics.csv").read_text()
    assert {path.name for path in (site.parent / "used").iterdir()} == set(KINDS) - {"sampler"}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_data_set_from_another_distribution_is_imported_in_pieces(site: Path, run: Run) -> None:
    keys = ("strategy=individual_sample", "dataset=others_dataset", "workers=2", "cache=false")
    for job in ("import", "partition"):
        code, text = run(f"job={job}", *keys, f"output={job}")
        assert code == 0, text
    assert {path.name for path in (site.parent / "used").iterdir()} == {"dataset", "pieces"}
    imported, cut = (digests_of(site.parent / job / "parts") for job in ("import", "partition"))
    assert imported == cut


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_strategy_that_draws_runs_with_a_sampler_from_another_distribution(site: Path, run: Run) -> None:
    overrides = [f"{kind}=others_{kind}" for kind in ("dataset", "sampler", "model")] + BARE
    code, text = run("strategy=others_sampling", *overrides, "workers=1", "comm=threads", "trainer.max_epochs=1")
    assert code == 0, text
    assert {path.name for path in (site.parent / "used").iterdir()} == {"dataset", "sampler", "model"}


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("sync", ["leader", "parameter_server"])
def test_gradients_are_averaged_by_an_aggregation_from_another_distribution(sync: str, site: Path, run: Run) -> None:
    overrides = (
        f"sync={sync}",
        "sync.average=others_aggregation",
        "dataset=others_dataset",
        "trainer.max_epochs=1",
        *BARE,
    )
    code, text = run("strategy=vertex_centric", *overrides, "workers=2", "comm=threads", "output=run")
    assert code == 0, text
    assert {path.name for path in (site.parent / "used").iterdir()} == {"dataset", "aggregation"}
    assert not json.loads((site.parent / "run/result.json").read_text())["exact"]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_strategy_that_draws_and_has_no_yaml_gets_the_default_sampler(site: Path, run: Run) -> None:
    sizes = ("workers=1", "comm=threads", "trainer.max_epochs=1", *BARE)
    code, text = run("strategy=others_sampling", "dataset=others_dataset", *sizes, "output=run")
    assert code == 0, text
    assert json.loads((site.parent / "run/result.json").read_text())["sampler"] == "neighbor"
    section = yaml.safe_load((site.parent / "run/config.yaml").read_text())["sampler"]
    assert (section["name"], section["fanouts"]) == ("neighbor", [15, 10])


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_value_error_of_a_plugin_on_a_rank_keeps_its_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIL", "yes")
    code, text = run("strategy=others_sampling", "dataset=others_dataset", "workers=2", "trainer.max_epochs=1")
    assert code == 1
    assert "gnnkit: error: rank " in text
    assert "ValueError: the strategy is at fault" in text
    assert "Traceback" in text


@pytest.mark.slow
def test_a_value_error_of_a_plugins_constructor_is_the_users_to_mend(run: Run) -> None:
    code, text = run("strategy=others_refusing", "dataset=others_dataset")
    assert (code, *text.splitlines()[1:]) == (2, "gnnkit: error: strategy=others_refusing: size=0 must be at least 1")
    code, text = run("strategy=others_refusing", "dataset=others_dataset", "strategy.options.size=-3")
    assert (code, *text.splitlines()[1:]) == (2, "gnnkit: error: strategy.size=-3 must be at least 1")


@pytest.mark.slow
def test_a_program_from_another_distribution_runs(site: Path, run: Run) -> None:
    code, text = run("strategy=vertex_centric", "model=others_program", "dataset=others_dataset", "comm=threads", *BARE)
    assert code == 0, text
    assert np.load(next(site.parent.glob("outputs/*/*/values.npy"))).tolist() == [3] * 12


@pytest.mark.slow
def test_help_lists_them_all_and_imports_none(run: Run) -> None:
    code, text = run("--help")
    assert code == 0
    assert "others" not in sys.modules
    for kind in KINDS:
        assert f"others_{kind}" in text
        assert f"broken_{kind}" in text


@pytest.mark.slow
def test_a_broken_plugin_that_is_chosen_is_named(run: Run) -> None:
    code, text = run("strategy=vertex_centric", "dataset=others_dataset", "partition=broken_partition", "workers=1")
    assert code == 2
    assert "partition.nodes=broken_partition: broken:Class of broken fails on import: SystemExit: 3" in text
    assert "(python -c 'import broken' shows where)" in text


@pytest.mark.slow
def test_two_distributions_with_one_name_are_refused_naming_both(site: Path, run: Run) -> None:
    install(site, "rival", {"gnnkit.model": {"others_model": "rival:Model"}}, {})
    code, text = run("strategy=vertex_centric", "dataset=others_dataset", "model=others_model")
    assert code == 2
    assert "others" in text
    assert "rival" in text
