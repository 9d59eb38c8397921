"""Features that are mostly zeros train one model, whether zeros are kept or not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gnnkit_formats.synthetic import Synthetic

import gnnkit
from tests.cases import few, in_turn

DRAWN = {"batch_size": 40}
STRATEGIES: dict[str, dict[str, Any]] = {
    "vertex_centric": {"name": "vertex_centric"},
    "llcg": {"name": "llcg"},
    "individual_sample": {"name": "individual_sample", **DRAWN},
    "fetched": {
        "name": "individual_sample",
        "topology": "partitioned",
        "cache": "lru",
        "options": {"cache_rows": 20},
        **DRAWN,
    },
    "cooperative": {"name": "joint_sample", **DRAWN},
}
MODELS = ["gcn", "sage", "gat", "gin"]


@pytest.mark.slow
@few(
    "name,model",
    [*in_turn(STRATEGIES, MODELS), *(("vertex_centric", model) for model in MODELS[1:])],
    default=[("vertex_centric", "gat")],
)
def test_rows_without_zeros_train_what_dense_rows_do(name: str, model: str, tmp_path: Path) -> None:
    graph = Synthetic(num_nodes=120, num_edges=600, num_classes=3, width=80).load()
    kept = np.random.default_rng(0).random(graph.features.shape) < 0.05
    graph = replace(graph, features=np.asarray(graph.features) * kept)

    def train(rows: str) -> Any:
        return gnnkit.train(
            graph,
            strategy=STRATEGIES[name],
            partition="random",
            model={"name": model, "hidden": 8},
            workers=2,
            comm="threads",
            threads=1,
            input_rows=rows,
            trainer={"max_epochs": 2, "precision": 64},
            report=False,
            logger="none",
            folder=tmp_path / rows,
        )

    dense, sparse = train("dense"), train("sparse")
    assert sparse["train_loss"] == pytest.approx(dense["train_loss"], rel=1e-10)
    assert sparse["val_loss"] == pytest.approx(dense["val_loss"], rel=1e-10)
    assert sparse["test_accuracy"] == dense["test_accuracy"]
