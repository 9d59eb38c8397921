"""The keys task.table and task.freeze, which the data set reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from gnnkit_tables import Tables

import gnnkit
from gnnkit.__main__ import main
from gnnkit.config import compose
from gnnkit.config.settings import settle
from gnnkit.errors import UserError
from tests.shops import MANIFEST, task, write

KEYS = ["strategy=individual_sample", "dataset=tables", "dataset.root=data"]


@pytest.mark.parametrize("name", ["node_classification", "regression"])
def test_keys_of_the_task_are_arguments_of_the_data_set(name: str) -> None:
    settings = settle(compose([*KEYS, f"task={name}", "task.table=returns", "task.freeze=test"]))
    assert settings.dataset.arguments["table"] == "returns"
    assert settings.dataset.arguments["freeze"] == "test"
    assert not settings.task.arguments.keys() & {"table", "freeze"}
    settings.task.check()
    assert settings.composed["task"]["table"] == "returns"
    assert settle(settings.composed) == settings


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["strategy=vertex_centric", "task.table=returns"],
            "task.table=returns: dataset=pystdlib has a single task; remove",
        ),
        ([*KEYS, "dataset.table=returns"], "dataset.table was removed: use task.table=NAME"),
        ([*KEYS, "dataset.freeze=test"], "dataset.freeze was removed: use task.freeze=test"),
        ([*KEYS, "task.tabel=returns"], "task.tabel"),
    ],
)
def test_other_keys_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError) as error:
        settle(compose(overrides))
    assert message in str(error.value)


@pytest.mark.slow
def test_a_run_and_its_predictions_use_the_named_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    folder = write(tmp_path / "data", form="csv")
    tasks = {**MANIFEST["tasks"], "again": MANIFEST["tasks"]["returns"]}
    (folder / "manifest.yaml").write_text(yaml.safe_dump({**MANIFEST, "tasks": tasks}), encoding="utf-8")
    (folder / "tasks/again.csv").write_text((folder / "tasks/returns.csv").read_text())
    monkeypatch.chdir(tmp_path)
    init = ["job=init", "dataset=tables", "dataset.root=data", "init.minutes=0", "output=new"]
    assert main(init) == 2
    assert "task.table=NAME selects one of the tasks again, returns" in capsys.readouterr().err
    assert main([*init, "task.table=again", "task.freeze=test"]) == 0
    written = yaml.safe_load((tmp_path / "new/experiment/mine.yaml").read_text())
    assert written["task"] == {"table": "again", "freeze": "test"}
    assert written["dataset"] == {"root": str(folder)}
    assert main(["--config-dir", "new", "+experiment=mine", "trainer.max_epochs=1", "report=false", "output=run"]) == 0
    assert main(["job=predict", "checkpoint=run", "output=same", "report=false"]) == 0
    until = ["dataset=tables", "dataset.root=data", "dataset.until=2024-02-01"]
    assert main(["job=predict", "checkpoint=run", *until, "output=later", "report=false"]) == 0
    assert "again has 4 train, 1 val, 1 test rows" in capsys.readouterr().out
    assert main(["job=predict", "checkpoint=run", *until, "task.freeze=none", "output=other"]) == 2
    assert "task.freeze cannot be changed for checkpoint" in capsys.readouterr().err


@pytest.mark.slow
def test_the_task_is_named_in_python(tmp_path: Path) -> None:
    rows = write(tmp_path / "data", returns=task(label=[0.5, 1.5, 2.5, 3.5, 4.5, 5.5]))
    result = gnnkit.train(
        dataset={"name": "tables", "root": str(rows)},
        task={"name": "regression", "table": "returns"},
        strategy="individual_sample",
        sampler={"fanouts": [2], "time": "strict"},
        model={"name": "rgcn", "num_layers": 1, "project": True},
        trainer={"max_epochs": 1},
        output=str(tmp_path / "run"),
        workers=1,
        report=False,
    )
    assert "test_mae" in result
    graph = Tables(str(rows), table="returns").load()
    again = gnnkit.predict(tmp_path / "run", graph, job="test", folder=tmp_path / "test", report=False)
    assert again["test_mae"] == pytest.approx(result["test_mae"])
