"""A script of Lightning with ModelCheckpoint and EarlyStopping, moved to gnnkit."""

from __future__ import annotations

import contextlib
import functools
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import gnnkit
from tests.jobs.test_train import small_graph
from tests.pages import PAGE, change, scripts, section

HEADING = "## From Lightning"


def run(script: str, **names: Any) -> dict[str, Any]:
    names["__name__"] = "script"
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(script, "script", "exec"), names)
    return names


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_moved_script_trains_the_same_model_on_two_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the rounding of float32, and up to the same best epoch."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gnnkit, "train", functools.partial(gnnkit.train, threads=1, comm="threads"))
    graph = small_graph()
    dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))
    masks = {f"{name}_mask": torch.from_numpy(graph.split == i) for i, name in enumerate(("train", "val", "test"), 1)}
    edges = torch.from_numpy(np.stack([graph.csc.indices.astype(np.int64), dst]))
    data = Data(torch.from_numpy(graph.features), edges, y=torch.from_numpy(graph.labels), **masks)
    before, after = (run(script, data=data) for script in scripts(HEADING).values())
    assert after["result"]["world_size"] == 2
    assert after["accuracy"] == pytest.approx(before["accuracy"], abs=1e-6)
    for name, value in before["model"].state_dict().items():
        torch.testing.assert_close(after["model"].state_dict()[name], value, rtol=1e-3, atol=1e-4)
    assert after["result"]["best_value"] == pytest.approx(float(before["best"].best_model_score), rel=1e-4)


def test_the_documents_say_how_many_lines_are_new() -> None:
    text = change(*scripts(HEADING).values())
    page = (PAGE.parent / "howto/lightning.md").read_text(encoding="utf-8")
    assert text in section(HEADING).replace("\n", " ")
    assert text in page.replace("\n", " ")
