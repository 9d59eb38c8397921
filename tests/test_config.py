from __future__ import annotations

from pathlib import Path

import pytest

from gnnkit.config import as_overrides, compose


@pytest.mark.parametrize("spelling", ["strategy=vertex_centric", "+strategy=vertex_centric"])
def test_both_spellings_of_the_strategy_work(spelling: str) -> None:
    assert compose([spelling])["strategy"]["name"] == "vertex_centric"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], r"^strategy is missing: choose one with strategy=NAME, there are: .*vertex_centric"),
        (["strategy=vertex"], r"^strategy=vertex is not known: did you mean vertex_centric\?"),
        (["strategy=vertex_centric", "model=gcm"], r"^model=gcm is not known: did you mean gcn\? there are: .*sage"),
        (["strategy=vertex_centric", "model.hiden=3"], r"^model\.hiden is not known: did you mean model\.hidden\?"),
        (["strategy=vertex_centric", "workrs=3"], r"^workrs is not known: did you mean workers\?"),
        (["strategy=vertex_centric", "strategy=vertex_centric"], r"^strategy appears more than once"),
        (["strategy=vertex_centric", "seed=1,2"], r"^Ambiguous value for argument 'seed=1,2'"),
        (["strategy=vertex_centric", "seed"], r"^cannot read 'seed': write KEY=VALUE"),
        (["strategy=vertex_centric", "seed=[1"], r"^cannot read 'seed=\[1': write KEY=VALUE"),
        (["strategy=vertex_centric", "seed=${no.such}"], r"Interpolation key 'no.such' not found"),
    ],
)
def test_what_hydra_refuses_is_one_line_with_the_key(overrides: list[str], expected: str) -> None:
    with pytest.raises(ValueError, match=expected) as caught:
        compose(overrides)
    assert "\n" not in str(caught.value)


def test_interpolations_of_other_keys_are_resolved() -> None:
    assert compose(["strategy=vertex_centric", "model.hidden=${workers}", "workers=3"])["model"]["hidden"] == 3


MARKER = "marker-of-executed-code"
PAYLOADS = [
    f"{prefix}{key}{value}"
    for prefix in ("", "+", "++")
    for key, value in [
        ("model._target_=", "os.mkdir"),
        ("model.options._target_=", f"os.mkdir('{MARKER}')"),
        ("x=", f"{{_target_:os.mkdir,path:{MARKER}}}"),
        ("model.options.x=", f"{{deep:[{{_target_:os.mkdir,path:{MARKER}}}]}}"),
        ("hydra.callbacks.x=", f"{{_target_:os.mkdir,path:{MARKER}}}"),
        ("hydra.callbacks.x._target_=", "pathlib.Path.write_text"),
        ("hydra/launcher=", "basic"),
        ("hydra/job_logging=", "custom"),
        ("hydra.launcher._target_=", "os.mkdir"),
        ("hydra.sweeper._target_=", "torch.hub.load"),
        ("hydra.job_logging.handlers.x.class=", f"os.mkdir({MARKER})"),
        ("hydra.searchpath=", "[file:///tmp]"),
        ("hydra.run.dir=", MARKER),
        ("model@hydra.callbacks=", "gcn"),
        ("model.hidden=", "${oc.env:HOME}"),
        ("model.hidden=", "${eval:1+1}"),
        ("model.hidden=", "'${oc.decode:${oc.env:HOME}}'"),
        ("model.options.x=", "[${ oc.env:HOME}]"),
    ]
]


@pytest.mark.parametrize("payload", PAYLOADS)
def test_overrides_that_would_run_code_are_refused(
    payload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"refused|cannot be changed|cannot be moved|cannot read"):
        compose(["strategy=vertex_centric", payload])
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: gcn\n_target_: os.mkdir\n", "_target_ is refused"),
        ("name: gcn\nx: [{deep: {_target_: os.mkdir}}]\n", "_target_ is refused"),
        ('name: gcn\n"\\x5ftarget_": os.mkdir\n', "_target_ is refused"),
        ("# @package hydra.callbacks.x\nname: gcn\n", "cannot be changed"),
        ("# @package _global_\nhydra: {callbacks: {}}\n", "cannot be changed"),
        ("defaults:\n  - override /hydra/launcher: x\n", "cannot be changed"),
        ("name: ${oc.env:HOME}\n", "resolvers such as"),
        ("name: !!python/object/apply:os.mkdir [marker]\n", "cannot be read: could not determine a constructor"),
        ("name: [\n", "cannot be read"),
    ],
)
def test_files_that_would_run_code_are_refused(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text(text)
    with pytest.raises(ValueError, match=expected):
        compose(["strategy=vertex_centric", "model=mine"], config_dir=tmp_path)


def test_a_users_folder_adds_options(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "wide.yaml").write_text("defaults: [gcn]\nhidden: 99\n")
    config = compose(["strategy=vertex_centric", "model=wide"], config_dir=tmp_path)
    assert (config["model"]["name"], config["model"]["hidden"]) == ("gcn", 99)
    with pytest.raises(ValueError, match="is not a folder"):
        compose(config_dir=tmp_path / "none")


def test_python_values_become_overrides_that_compose_to_them() -> None:
    text = "quotes ' \" and \\ and , [ { = #"
    keys = {
        "strategy": "vertex_centric",
        "model": {"name": "sage", "hidden": 8, "options": {"x": text, "y": [1.5, None, True]}},
        "trainer": {"lr": 1e-3},
    }
    config = compose(as_overrides(keys))
    assert config["model"] == {
        "name": "sage",
        "hidden": 8,
        "num_layers": 2,
        "dropout": 0.5,
        "aggregator": "mean",
        "options": {"x": text, "y": [1.5, None, True]},
    }
    assert config["trainer"]["lr"] == 1e-3
