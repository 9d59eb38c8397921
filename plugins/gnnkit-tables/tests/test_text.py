"""Columns of text: hashed pieces, or the embeddings of another package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from gnnkit_tables import Tables, encode
from gnnkit_tables.encode import hash_text

from gnnkit.__main__ import main
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from tests.conftest import Install
from tests.shops import days, tables, task, write

MODULE = """
import numpy as np

def lengths(texts):
    return [[len(text), text.count("e"), 1] for text in texts]

def short(texts):
    return np.ones((1, 4))

def infinite(texts):
    return np.full((len(texts), 2), np.inf)
"""
COUNT = 60
NOTES = [f"note {number} of a client" if number % 7 else None for number in range(COUNT)]


@pytest.fixture
def folder(tmp_path: Path, install: Install) -> Path:
    points = {name: f"some_embeddings:{name}" for name in ("lengths", "short", "infinite")}
    install("embeddings", {"gnnkit.text": points}, {"some_embeddings.py": MODULE})
    users = {"id": np.arange(10, 10 + COUNT), "age": np.arange(COUNT) * 1.0, "note": NOTES}
    split = np.array(["train", "val", "test"])[np.digitize(np.arange(COUNT), [40, 50])]
    returns = task(user_id=users["id"], time=days(*range(4, 4 + COUNT)), label=np.arange(COUNT) % 2, split=split)
    return write(tmp_path / "data", users=pa.table(users), returns=returns)


def notes_of(graph: Graph) -> Any:
    places = [place for place, name in enumerate(graph.feature_names) if name.startswith("users.note#")]
    return np.asarray(graph.features)[graph.schema.nodes("users")][:, places]


def test_text_is_hashed_by_default(folder: Path) -> None:
    rows = notes_of(Tables(str(folder)).load())
    np.testing.assert_array_equal(rows, notes_of(Tables(str(folder), text="hashed").load()))
    counts = hash_text(["" if note is None else note for note in NOTES])
    expected = counts / np.linalg.norm(counts, axis=1, keepdims=True)
    expected[[note is None for note in NOTES]] = 0
    np.testing.assert_allclose(rows, expected, rtol=1e-6)


def test_another_package_embeds_text(folder: Path) -> None:
    graph = Tables(str(folder), text="lengths").load()
    lengths = np.array([[len(note), note.count("e"), 1] if note else [0, 0, 0] for note in NOTES], float)
    expected = lengths / np.maximum(np.linalg.norm(lengths, axis=1, keepdims=True), 1)
    np.testing.assert_allclose(notes_of(graph), expected, rtol=1e-6)
    assert not any(name.startswith("returns.") and "note" in name for name in graph.feature_names), "left to the entity"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("short", r"dataset.text: column 'note' has embeddings of shape \[1, 4\], expected \d+ rows"),
        ("infinite", r"dataset.text: column 'note' has embeddings of shape \[\d+, 2\], expected \d+ rows of finite"),
        (
            "absent",
            r"dataset.text=absent is not known: did you mean hashed\? there are: hashed, infinite, lengths, short",
        ),
    ],
)
def test_what_is_wrong_with_embeddings_is_named(folder: Path, name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Tables(str(folder), text=name).load()


@pytest.mark.slow
def test_a_prediction_embeds_text_as_its_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    data = ["dataset=tables", f"dataset.root={folder}", "comm=threads", "report=false", "logger=none", "cache=false"]
    model = ["+strategy=individual_sample", "workers=1", "model=rgcn", "types=read", "trainer.max_epochs=1"]
    time = ["sampler.time=strict", "model.project=true"]
    assert main([*data, *model, *time, "dataset.text=lengths", "output=run"]) == 0
    calls = []
    monkeypatch.setattr(encode, "hash_text", calls.append)
    assert main(["job=predict", "checkpoint=run", *data, "dataset.until=2024-03-20", "output=new"]) == 0
    assert not calls


def test_short_columns_of_text_are_categories(folder: Path) -> None:
    graph = Tables(str(write(folder.parent / "other", users=tables()["users"])), text="lengths").load()
    assert "users.city=Rome" in graph.feature_names
