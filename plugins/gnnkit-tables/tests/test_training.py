"""Runs on tables, as of each target's time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import gnnkit
from tests.cases import few
from tests.shops import day, task, write

USERS = 240
RGCN = {"name": "rgcn", "project": True, "hidden": 16, "num_layers": 2, "inverse": False}


def future_noise(folder: Path) -> Path:
    """Writes a target of each user, and an order of the next day with its label."""
    rng = np.random.default_rng(0)
    label, at = rng.integers(0, 2, USERS), np.arange(USERS) // 4
    amounts = np.concatenate([rng.integers(0, 2, USERS), label]).astype(float)
    times = np.array([day(int(number)) for number in (*(at - 1), *(at + 1))])
    orders = {"order_id": np.arange(2 * USERS), "user_id": np.tile(np.arange(USERS), 2), "amount": amounts, "at": times}
    split = np.array(["train", "val", "test"])[np.digitize(at, [40, 50])]
    times = np.array([day(int(number)) for number in at])
    returns = task(user_id=np.arange(USERS), time=times, label=label, split=split)
    users = pa.table({"id": np.arange(USERS), "age": rng.normal(size=USERS)})
    items = pa.array(["a"] * 2 * USERS)
    return write(folder, users=users, orders=pa.table({**orders, "item_id": items}), returns=returns)


def train(folder: Path, output: Path, **keys: Any) -> gnnkit.Result:
    return gnnkit.train(
        strategy={"name": "individual_sample", "batch_size": 16},
        **{
            "dataset": {"name": "tables", "root": str(folder)},
            "model": RGCN,
            "workers": 1,
            "output": str(output),
            "report": False,
            "logger": [],
            "seed": 0,
            **keys,
        },
    )


def sampler(time: str) -> dict[str, Any]:
    pick = {} if time == "none" else {"pick": "last"}
    return {"name": "neighbor", "fanouts": [1, -1], "time": time, **pick}


@pytest.mark.slow
@few(("time", "low", "high"), [("strict", 0.2, 0.8), ("none", 0.95, 1.0)], default=[("strict", 0.2, 0.8)])
def test_an_order_of_the_future_is_seen_without_times_only(tmp_path: Path, time: str, low: float, high: float) -> None:
    folder, trainer = future_noise(tmp_path / "data"), {"max_epochs": 18, "lr": 0.01}
    result = train(folder, tmp_path / "run", sampler=sampler(time), trainer=trainer, write=[])
    assert low <= result["test_roc_auc"] <= high


@pytest.mark.slow
def test_a_trained_model_predicts_every_entity_as_of_a_later_time(tmp_path: Path) -> None:
    folder = future_noise(tmp_path / "data")
    run = train(folder, tmp_path / "run", sampler=sampler("strict"), trainer={"max_epochs": 1})
    arguments = {"name": "tables", "root": str(folder), "until": "2024-03-01"}
    predicted = gnnkit.predict(run.folder, dataset=arguments, output=str(tmp_path / "new"), write_format="parquet")
    table = pyarrow.parquet.read_table(predicted.folder / "predictions.parquet")
    ids = [name for name in table["id"].to_pylist() if name.endswith("@2024-03-01")]
    assert len(ids) == USERS


@pytest.mark.slow
def test_a_blend_learns_from_no_score_and_predicts_with_scores(tmp_path: Path) -> None:
    folder = future_noise(tmp_path / "data")
    data = {"name": "tables", "root": str(folder), "boosting": True}
    keys: dict[str, Any] = {"sampler": sampler("strict"), "trainer": {"max_epochs": 2}}
    run = train(folder, tmp_path / "run", dataset=data, model={"name": "blend", "num_layers": 2}, **keys)
    weights = gnnkit.load(run.folder).state_dict()
    assert not weights["project"][-4:].any()
    assert weights["project"][:-4].any(1).all()
    until = {"name": "tables", "root": str(folder), "until": "2024-03-01"}
    predicted = gnnkit.predict(run.folder, dataset=until, output=str(tmp_path / "new"), write=["logits"])
    assert len(np.load(next(predicted.folder.glob("logits*.npy")))) >= 2 * USERS
