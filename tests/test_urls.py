"""A URL is refused wherever a path is read."""

from __future__ import annotations

from pathlib import Path

import pytest

import gnnkit
from gnnkit.__main__ import main
from gnnkit.errors import UserError

KEYS = ["strategy=vertex_centric", "dataset=synthetic", "workers=1"]


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        (["output=s3://bucket/x"], "output"),
        (["hydra.run.dir=s3://bucket/x"], "output"),
        (["cache=s3://bucket/x"], "cache"),
        (["trainer.resume=s3://bucket/x"], "trainer.resume"),
        (["job=report", "runs=s3://bucket/x"], "runs"),
        pytest.param(["-m", "hydra.sweep.dir=s3://bucket/x", "seed=1"], "hydra.sweep.dir", marks=pytest.mark.slow),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_command_refuses_a_url(
    keys: list[str], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*KEYS, *keys]) == 2
    assert f"gnnkit: error: {named}=s3://bucket/x is a URL" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["edges", "npz", "ogb", "saved", "graphbolt", "graphsaint", "tables"])
def test_a_data_set_refuses_a_url(name: str, tmp_path: Path) -> None:
    from gnnkit.config.settings import Choice

    with pytest.raises(UserError, match=r"dataset.root=s3://bucket/x is a URL"):
        Choice("dataset", name, {"root": "s3://bucket/x"}).create()


def test_a_trained_model_is_not_loaded_from_a_url() -> None:
    for call in (gnnkit.load, gnnkit.predict):
        with pytest.raises(UserError, match=r"checkpoint=s3://bucket/x is a URL"):
            call("s3://bucket/x")
