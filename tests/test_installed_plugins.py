"""A distribution of others, with one plugin of every kind, runs a job as ours do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gnnkit.plugins import KINDS

CODE = """
import os
from pathlib import Path

import numpy as np
from torch import nn

from gnnkit.comm.process import Gloo
from gnnkit.dataset.base import Dataset
from gnnkit.graph import Graph
from gnnkit.partition import NodePartitioner
from gnnkit.sampler.neighbor import NeighborSampler
from gnnkit.strategy.vertex_centric import VertexCentric
from gnnkit.sync.base import GradientSync, trained


def used(kind):
    Path(os.environ["USED"], kind).touch()


class Ring(Dataset):
    def __init__(self, size: int):
        self.size = size

    def load(self):
        used("dataset")
        ids = np.arange(self.size)
        return Graph.from_edges(ids, (ids + 1) % self.size, features=np.eye(self.size), labels=ids % 2, split=1 + ids % 3)


class Deal(NodePartitioner):
    def assign_nodes(self, graph, num_parts):
        used("partition")
        return np.arange(graph.num_nodes) % num_parts


class Sampler(NeighborSampler):
    pass


class Strategy(VertexCentric):
    def batches(self, epoch):
        used("strategy")
        yield from super().batches(epoch)


class Comm(Gloo):
    def all_to_all(self, rows, send_counts, recv_counts):
        used("comm")
        return super().all_to_all(rows, send_counts, recv_counts)


class Sync(GradientSync):
    def step(self, module, optimizer, share):
        used("sync")
        for parameter in trained(module):
            self.comm.all_reduce(parameter.grad)
        optimizer.step()


class Model(nn.Module):
    num_layers = 1

    def __init__(self, in_features, num_classes, bias: bool = False):
        super().__init__()
        self.linear = nn.Linear(in_features, num_classes, bias=bias)

    def forward(self, x, adjacencies):
        used("model")
        return adjacencies[0].aggregate(self.linear(x))
"""
CLASSES = dict(zip(KINDS, ("Ring", "Deal", "Sampler", "Strategy", "Comm", "Sync", "Model"), strict=True))
YAML = {"dataset": "name: others_dataset\nsize: 12  # nodes\n", "model": "name: others_model\nbias: true\n"}
BROKEN = "import sys\nsys.exit(3)\n"


def install(site: Path, name: str, points: dict[str, dict[str, str]], files: dict[str, str]) -> None:
    """What an installer leaves of a distribution: its files and its metadata."""
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
    yaml = {f"others/conf/{kind}/others_{kind}.yaml": text for kind, text in YAML.items()}
    install(site, "others", {**points, "gnnkit.conf": {"others": "others"}}, {"others/__init__.py": CODE, **yaml})
    broken = {f"gnnkit.{kind}": {f"broken_{kind}": "broken:Class"} for kind in KINDS}
    install(site, "broken", {**broken, "gnnkit.conf": {"broken": "broken"}}, {"broken.py": BROKEN})
    return site


def gnnkit(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    used = site.parent / "used"
    used.mkdir(exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(site), "USED": str(used), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "gnnkit", *arguments]
    return subprocess.run(
        command, cwd=site.parent, env=environment, capture_output=True, text=True, timeout=200, check=False
    )


def test_a_job_runs_with_a_plugin_of_every_kind_from_another_distribution(site: Path) -> None:
    chosen = [f"{kind}=others_{kind}" for kind in KINDS]
    done = gnnkit(site, *chosen, "dataset.size=18", "workers=2", "threads=1", "trainer.max_epochs=2")
    assert done.returncode == 0, done.stderr
    (result,) = site.parent.glob("outputs/*/*/result.json")
    run = json.loads(result.read_text())
    assert [run[key] for key in ("strategy", "nodes", "dataset", "model", "world_size", "epochs")] == [
        "others_strategy", "others_partition", "others_dataset", "others_model", 2, 2,
    ]  # fmt: skip
    # No strategy asks for a sampler yet that covers the whole graph.
    assert {path.name for path in (site.parent / "used").iterdir()} == set(KINDS) - {"sampler"}


def test_help_lists_them_all_and_imports_none(site: Path) -> None:
    done = gnnkit(site, "--help")
    assert done.returncode == 0
    for kind in KINDS:
        assert f"others_{kind}" in done.stdout
        assert f"broken_{kind}" in done.stdout


def test_a_broken_plugin_that_is_chosen_is_named(site: Path) -> None:
    done = gnnkit(site, "strategy=vertex_centric", "dataset=others_dataset", "partition=broken_partition", "workers=1")
    assert done.returncode == 2
    assert "partition.nodes=broken_partition: broken:Class of broken fails on import: SystemExit: 3" in done.stderr


def test_two_distributions_with_one_name_are_refused_naming_both(site: Path) -> None:
    install(site, "rival", {"gnnkit.model": {"others_model": "rival:Model"}}, {})
    done = gnnkit(site, "strategy=vertex_centric", "dataset=others_dataset", "model=others_model")
    assert done.returncode == 2
    assert "others" in done.stderr
    assert "rival" in done.stderr
