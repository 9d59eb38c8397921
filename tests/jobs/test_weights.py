"""A model's file is what the run wrote, and a model that says nothing is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data

import gnnkit
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.jobs import weights
from gnnkit.jobs.models import Widths
from gnnkit.model.gcn import GCN
from tests.cases import few
from tests.jobs.test_train import small_graph
from tests.runs import BARE

WIDTHS = Widths(in_features=3, num_classes=2, edge_width=0)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run, as far as a model is concerned."""
    weights.save(GCN(3, 2, hidden=4), WIDTHS, tmp_path)
    model = {"name": "gcn", "hidden": 4}
    (tmp_path / "config.yaml").write_text(json.dumps({"model": model, "task": {"name": "node_classification"}}))
    return tmp_path


def test_what_was_saved_is_loaded(run: Path) -> None:
    kept = load_file(run / weights.FILE)
    assert all(torch.equal(value, kept[name]) for name, value in gnnkit.load(run).state_dict().items())


def test_no_byte_of_the_file_changes_the_model_without_a_word(run: Path) -> None:
    whole, kept = (run / weights.FILE).read_bytes(), load_file(run / weights.FILE)
    rng, told = np.random.default_rng(0), list[str]()
    for place in rng.integers(0, len(whole), 100):
        changed = bytearray(whole)
        changed[place] ^= 1 << int(rng.integers(8))
        (run / weights.FILE).write_bytes(changed)
        try:
            found = gnnkit.load(run).state_dict()
            assert found.keys() == kept.keys()
            assert all(torch.equal(found[name], kept[name]) for name in kept)  # the change says nothing
        except UserError as error:
            told.append(str(error))
    assert len(told) > 80
    assert all("was changed after the run wrote it" in text or "is not the model of a run" in text for text in told)


@pytest.mark.parametrize("width", [-1, 2**40, 1.5, "3", None, [3]])
def test_forged_widths_are_refused(run: Path, width: object) -> None:
    facts = json.dumps({"in_features": width, "num_classes": 2, "edge_width": 0, "sha256": ""})
    save_file(load_file(run / weights.FILE), run / weights.FILE, metadata={"gnnkit": facts})
    with pytest.raises(UserError, match=r"model.safetensors is not the model of a run: in_features="):
        gnnkit.load(run)


def test_another_width_with_a_digest_of_its_own_is_the_model_of_another_run(run: Path) -> None:
    weights.save(GCN(3, 2, hidden=4), Widths(9, 2, 0), run)
    with pytest.raises(UserError, match=r"model: convs.0.weight has shape .*, but .* in .*model.safetensors"):
        gnnkit.load(run)


def test_parameters_that_are_not_finite_are_named(run: Path) -> None:
    model = GCN(3, 2, hidden=4)
    name, parameter = next(iter(model.named_parameters()))
    with torch.no_grad():
        parameter.view(-1)[:2] = torch.nan
    weights.save(model, WIDTHS, run)
    with pytest.raises(UserError, match=rf"{name} has 2 of \d+ numbers that are not finite: train again"):
        gnnkit.load(run)


class Shifted(GCN):
    """A model whose buffer makes some outputs infinite."""

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__(in_features, num_classes, hidden=4)
        self.register_buffer("shift", torch.zeros(1))

    def forward(self, x, adjacencies):  # type: ignore[no-untyped-def]
        out = super().forward(x, adjacencies)
        return out + self.shift * (out[:, :1] > out[:, :1].median())


@pytest.mark.slow
def test_outputs_that_are_not_finite_are_counted(tmp_path: Path) -> None:
    graph: Graph = small_graph()
    keys = {"workers": 2, "comm": "threads", **BARE}
    trainer = {"max_epochs": 1}
    gnnkit.train(graph, strategy="vertex_centric", model=Shifted, folder=tmp_path / "run", trainer=trainer, **keys)
    tensors, widths = weights.read(tmp_path / "run")
    model = Shifted(widths.in_features, widths.num_classes)
    model.load_state_dict(tensors)
    model.shift.fill_(torch.inf)  # type: ignore[operator]
    weights.save(model, widths, tmp_path / "run")
    for job in ("predict", "test"):
        with pytest.raises(UserError, match=r"outputs of \d+ of 60 nodes are not finite"):
            gnnkit.predict(tmp_path / "run", graph, model=Shifted, folder=tmp_path / "no", job=job, **keys)
        assert not (tmp_path / "no").exists()


def test_names_of_classes_are_a_list_of_text(tmp_path: Path) -> None:
    assert weights.class_names(tmp_path) is None
    (tmp_path / weights.CLASSES).write_text('["cat", "dog"]')
    assert weights.class_names(tmp_path) == ["cat", "dog"]
    for text, told in (
        ('{"cat": 1}', "is not a list of names"),
        ("[1, 2]", "is not a list of names"),
        ("[", "is not JSON"),
    ):
        (tmp_path / weights.CLASSES).write_text(text)
        with pytest.raises(UserError, match=rf"checkpoint={tmp_path}: {weights.CLASSES} {told}"):
            weights.class_names(tmp_path)


class Embedding(nn.Module):
    """Reads a wide column and the numbers of categories."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.linear = nn.Embedding(3, 2), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.linear(torch.cat([x[:, :1], self.embed(x[:, 1].long())], 1))
        return rows


def data_of_wide_range() -> Data:
    draw = torch.Generator().manual_seed(0)
    wide, category = (torch.randint(0, most, (60, 1), generator=draw) for most in (2000, 3))
    data = Data(x=torch.cat([wide, category], 1).float(), edge_index=torch.randint(0, 60, (2, 200), generator=draw))
    data.y = torch.arange(60) % 3
    for number, name in enumerate(("train", "val", "test")):
        data[f"{name}_mask"] = torch.arange(60) // 3 % 3 == number
    return data


@few("scale", ["auto", "standard", "row", "none"], default=["standard"])
def test_a_loaded_class_gives_the_logits_of_the_run_on_the_data(tmp_path: Path, scale: str) -> None:
    data, keys = data_of_wide_range(), {"features": {"scale": scale}, "write": ["logits"], "workers": 1, **BARE}
    result = gnnkit.train(data, model=pyg.GCN(2, 4, 2, 3), folder=tmp_path / "run", trainer={"max_epochs": 2}, **keys)
    model = gnnkit.load(result.folder, pyg.GCN(2, 4, 2, 3))
    written = np.load(result.folder / "logits.npy")
    logits = model(data.x, data.edge_index).detach()
    np.testing.assert_allclose(logits, written, rtol=1e-4, atol=1e-5 * abs(written).max())
    named = model(x=data.x, edge_index=data.edge_index)
    assert torch.equal(named, model(data.x, data.edge_index))
    gnnkit.predict(result.folder, data, model=model, folder=tmp_path / "again", write=["logits"], **BARE)
    np.testing.assert_allclose(np.load(tmp_path / "again/logits.npy"), written, rtol=1e-4, atol=1e-5)
    assert torch.equal(model(data.x, data.edge_index), named)


def test_scaled_categories_are_an_error_with_the_remedy(tmp_path: Path) -> None:
    keys = {"model": Embedding(), "trainer": {"max_epochs": 1}, "workers": 1, **BARE}
    with pytest.raises(UserError, match=r"model=Embedding: index out of range.*use features\.scale=none"):
        gnnkit.train(data_of_wide_range(), folder=tmp_path / "auto", **keys)
    gnnkit.train(data_of_wide_range(), folder=tmp_path / "none", features={"scale": "none"}, **keys)
