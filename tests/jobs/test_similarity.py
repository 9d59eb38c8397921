"""Whole runs with walks that compare the rows of nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gnnkit_testing.graphs import check_graph

import gnnkit
from gnnkit.__main__ import main
from gnnkit.errors import UserError
from gnnkit.graph import Graph

NUM_NODES = 120
DATA = ["dataset=synthetic", f"dataset.num_nodes={NUM_NODES}", "dataset.num_edges=500", "dataset.width=8"]
SIMILAR = ["sampler=metropolis_hastings", "sampler.target=similarity", "sampler.fanouts=[4,4]"]
RUN = ["strategy=individual_sample", "strategy.batch_size=8", *DATA, *SIMILAR, "comm=threads", "workers=2", "threads=1",
       "report=false", "logger=none"]  # fmt: skip
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:metropolis_hastings walks"),
]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(name: str, *keys: str) -> dict[str, Any]:
    assert main([*RUN, "trainer.max_epochs=1", *keys, f"output={name}"]) == 0
    result: dict[str, Any] = json.loads(Path(name, "result.json").read_text())
    return result


@pytest.mark.exhaustive
def test_the_command_trains_with_features_and_with_embeddings() -> None:
    by_features = run("features")
    assert np.isfinite(by_features["train_loss"])
    assert by_features["train_loss"] == run("again", "threads=2")["train_loss"]
    assert by_features["train_loss"] != run("uniform", "sampler.target=null")["train_loss"]
    np.save("rows.npy", np.random.default_rng(1).standard_normal((NUM_NODES, 5)))
    by_rows = run("rows", "sampler.options.embeddings=rows.npy", "sampler.options.floor=0.01")
    assert by_rows["train_loss"] != by_features["train_loss"]


def test_two_ranks_are_verified_against_one() -> None:
    result = run("verify", "job=verify")
    assert result["verified"], result
    assert result["reference"] == "one rank with the whole graph"


def test_rows_for_another_number_of_nodes_end_the_command_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    np.save("rows.npy", np.ones((5, 2)))
    assert main([*RUN, "sampler.options.embeddings=rows.npy"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"gnnkit: error: sampler.options.embeddings has 5 rows, but the graph has {NUM_NODES} nodes"


def test_a_graph_without_features_is_refused() -> None:
    known = check_graph(60)
    graph = Graph(known.csc, np.empty((60, 0), np.float32), known.labels, known.split)
    keys = [*SIMILAR, "comm=threads", "workers=2", "inputs=learned"]
    with pytest.raises(UserError, match=r"sampler\.target=similarity compares node features, but the graph has none"):
        gnnkit.train(graph, strategy="individual_sample", overrides=keys)
