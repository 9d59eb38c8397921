"""Keys of earlier versions are refused with what to use instead."""

from __future__ import annotations

import ast
import copy
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gnnkit import plugins
from gnnkit.__main__ import main
from gnnkit.config import compose, dotted_keys, of_file, of_run
from gnnkit.config.keys import read, removed_keys, shared_keys
from gnnkit.config.settings import Choice, settle
from gnnkit.errors import UserError
from gnnkit.plugins import KINDS, SEVERAL
from tests.cases import few

ROOT = Path(__file__).resolve().parents[1]
REMOVED = removed_keys()
SECTIONS = {"model": {"name": "gcn"}, "task": {"name": "node_classification"}}


OVERRIDES = ("logger=[wandb,mlflow]", "callback=[summary]", "strategy=vertex_centric", "partition=ldg")


@pytest.fixture(scope="module")
def composed() -> dict[str, Any]:
    return compose([*OVERRIDES, "sampler=neighbor", "exchange=quantized"])


@pytest.mark.parametrize("key", REMOVED)
def test_a_removed_key_is_refused_with_its_replacement(key: str, composed: dict[str, Any]) -> None:
    config = copy.deepcopy(composed)
    *parents, name = key.split(".")
    section = config
    for parent in parents:
        section[parent] = section.get(parent) or {}
        section = section[parent]
    section[name] = 0.1
    with pytest.raises(UserError) as raised:
        settle(config)
    assert str(raised.value) == f"{key} was removed: {REMOVED[key][1]}"


@few("key", [key for number, key in enumerate(REMOVED) if number % 5 == 0], default=3)
def test_a_removed_key_is_refused_before_it_is_composed(key: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(key)} was removed: "):
        settle(compose([*OVERRIDES, f"{key}=0.1"]))


def test_a_removed_split_is_refused_for_another_variant_too() -> None:
    with pytest.raises(UserError, match=r"strategy=dynamic \(.*\), which cannot be combined with llcg or coverage$"):
        compose(["strategy=llcg", "strategy.split=dynamic"])


def test_no_advice_installs_a_package_that_is_not_published() -> None:
    packages = {package for names in plugins.PACKAGES.values() for package in names.values()}
    advice = "\n".join(advice for _, advice in REMOVED.values())
    assert {*re.findall(r"pip install (gnnkit[\w-]*)", advice)} <= packages
    assert {path.name for path in ROOT.glob("plugins/*")} >= packages


def test_messages_name_options_as_they_are_given() -> None:
    options = {}
    for key, (_, advice) in REMOVED.items():
        section, _, last = key.rpartition(".")
        if f"use {section}.options.{last}" in advice and not section.startswith("logger"):
            options[key] = re.compile(rf"(?<![\w.]){re.escape(key)}(?!\w)")
    assert "sampler.fill" in options
    wrong = [
        f"{path.relative_to(ROOT)}: {key}"
        for path in sorted((ROOT / "gnnkit").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for key, pattern in options.items()
        if pattern.search(node.value)
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("keys", "strategy"),
    [
        ({"correction": "llcg", "correction_steps": 3}, {"name": "llcg", "correction_steps": 3, "sync_every": 2}),
        ({"correction": "coverage", "split": "dynamic", "resplit_every": 2}, {"name": "coverage", "resplit_every": 2}),
        ({"split": "dynamic", "halo": "none"}, {"name": "dynamic", "halo": "none", "sync_every": 2}),
        (
            {"halo": "cluster", "clusters": 6, "degrees": "local"},
            {"name": "cluster", "clusters": 6, "sync_every": 2, "options": {"degrees": "local"}},
        ),
    ],
)
def test_a_recorded_run_of_a_variant_has_its_strategy(
    keys: dict[str, Any], strategy: dict[str, Any], tmp_path: Path
) -> None:
    record = dict.fromkeys(("halo", "clusters", "clusters_by", "average", "split", "chunks", "resplit_every"))
    record |= {"name": "preset_workload", "sync_every": 2, "correction": "none", "degrees": "global", **keys}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(SECTIONS | {"strategy": record}))
    config = of_run(tmp_path)["strategy"]
    assert {"degrees": "global", **config.pop("options", {})} == {"degrees": "global", **strategy.pop("options", {})}
    assert config == strategy
    assert settle(compose([f"strategy={config.pop('name')}", *(f"strategy.{k}={v}" for k, v in config.items())]))


def test_a_removed_key_is_refused_beside_a_section_without_options() -> None:
    with pytest.raises(UserError, match=r"^strategy\.correction was removed: use strategy=llcg or strategy=coverage"):
        compose(["strategy=preset_workload", "logger=[]", "strategy.correction=llcg"])


@few("key", ["sampler.redraw", "sync.damping", "trainer.min_delta"], default=["sync.damping"])
def test_a_removed_key_is_refused_however_it_is_given(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    section, _, name = key.partition(".")
    sections = {section: {name: 1}}
    Path("mine.yaml").write_text(yaml.safe_dump(sections))
    Path("experiment").mkdir()
    Path("experiment/own.yaml").write_text(f"# @package _global_\n{yaml.safe_dump(sections)}")
    command = ["strategy=individual_sample"]
    for overrides in (
        [f"{key}=1"],
        [f"+{key}=1"],
        [f"++{key}=1"],
        ["--config-dir", ".", "--config-name", "mine"],
        ["--config-dir", ".", "+experiment=own"],
        ["-m", f"{key}=1,2"],
    ):
        assert main([*command, *overrides]) == 2
        assert capsys.readouterr().err.splitlines()[-1] == (f"gnnkit: error: {key} was removed: {REMOVED[key][1]}"), (
            overrides
        )


def test_no_yaml_file_of_the_core_has_a_removed_key() -> None:
    present = {f"{section}.{key.name}" for section in (*KINDS, "trainer") for name in (path.stem for path in (plugins.CONF / section).glob("*.yaml"))
               for key in (*shared_keys(section), *read(section, name).keys)} | {key.name for key in read("", "config").keys}  # fmt: skip
    assert not present & REMOVED.keys()


def record(folder: Path, key: str, name: str, value: Any) -> None:
    """Writes the configuration of an earlier run, in which a plugin has a key."""
    section, *parents, last = key.split(".")
    node: dict[str, Any] = {last: value}
    if section in KINDS and section not in SEVERAL:
        node["nodes" if section == "partition" else "name"] = name
    for parent in reversed(parents):
        node = {parent: {"name": parent, **node} if section in SEVERAL else node}
    if section == "partition" and parents:
        node = {"nodes": name, "options": {last: value}}
    (folder / ".hydra").mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(SECTIONS | {section: node if parents or "." in key else value}))


def plugins_of(key: str) -> list[str]:
    """Returns the plugins that have lost a key: those of other packages may have it."""
    section, last = key.partition(".")[0], key.rpartition(".")[2]
    if section not in KINDS or section in SEVERAL:
        return [key.split(".")[1]]
    own = [name for name in plugins.names(section) if (plugins.CONF / section / f"{name}.yaml").exists()]
    return [name for name in own if last not in [each.name.rpartition(".")[2] for each in read(section, name).keys]]


@few("key", [key for key in REMOVED if "." in key], default=12)
def test_a_recorded_run_may_have_removed_keys_at_their_defaults(key: str, tmp_path: Path) -> None:
    section, last = key.partition(".")[0], key.rpartition(".")[2]
    for name in plugins_of(key):
        parameters = inspect.signature(plugins.load(section, name)).parameters if section in KINDS else {}
        for value in (parameters[last].default,) if last in parameters else REMOVED[key][0]:
            record(tmp_path, key, name, value)
            assert key not in dotted_keys(of_run(tmp_path))
            overrides, _ = of_file("config", [tmp_path], [])
            assert not [text for text in overrides if text.partition("=")[0] == key]


def test_an_argument_of_the_class_is_converted_in_a_recorded_run(tmp_path: Path) -> None:
    record(tmp_path, "sampler.alpha", "weighted", 1.0)  # the default of another sampler
    assert of_run(tmp_path)["sampler"] == {"name": "weighted", "options": {"alpha": 1.0}}
    overrides, _ = of_file("config", [tmp_path], [])
    config = compose(["strategy=individual_sample", *overrides])
    options = {
        "fanouts": [15, 10],
        "replace": False,
        "time": "none",
        "window": None,
        "pick": "uniform",
        "time_bound": "seed",
        "alpha": 1.0,
    }
    assert settle(config).sampler == Choice("sampler", "weighted", options)


def test_a_value_that_nothing_reads_any_more_is_dropped_for_predictions_and_refused_for_a_new_run(
    tmp_path: Path,
) -> None:
    record(tmp_path, "sync.damping", "leader", "staleness")
    assert of_run(tmp_path)["sync"] == {"name": "leader"}
    overrides, _ = of_file("config", [tmp_path], [])
    with pytest.raises(UserError, match=r"^sync.damping was removed: "):
        compose(["strategy=vertex_centric", *overrides])


def test_a_plugin_of_another_package_may_have_a_key_of_a_removed_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf" / "sampler").mkdir(parents=True)
    (tmp_path / "conf" / "sampler" / "walks.yaml").write_text("name: walks\nalpha: 1.0  # restarts\n")
    folders = [*plugins.conf_folders(), tmp_path / "conf"]
    monkeypatch.setattr(sys.modules["gnnkit.config.compose"], "conf_folders", lambda: folders)
    monkeypatch.setattr("gnnkit.config.keys.conf_folders", lambda: folders)
    assert compose(["strategy=individual_sample", "sampler=walks", "sampler.alpha=2"])["sampler"]["alpha"] == 2
    record(tmp_path, "sampler.alpha", "walks", 3.0)
    assert of_run(tmp_path)["sampler"] == {"name": "walks", "alpha": 3.0}
