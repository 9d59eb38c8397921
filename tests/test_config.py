from __future__ import annotations

import time
from pathlib import Path

import pytest

from gnnkit.config import as_overrides, compose, of_file
from gnnkit.config.earlier import of_run
from gnnkit.config.settings import settle
from gnnkit.errors import UserError
from gnnkit.plugins import options
from tests.cases import exhaustive, few


@pytest.mark.slow
@pytest.mark.parametrize("spelling", ["strategy=vertex_centric", "+strategy=vertex_centric"])
def test_both_spellings_of_the_strategy_work_and_none_is_auto(spelling: str) -> None:
    assert compose([spelling])["strategy"]["name"] == "vertex_centric"
    assert compose([])["strategy"]["name"] == "auto"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["strategy=vertex"], r"^strategy=vertex is not known: did you mean vertex_centric\?"),
        (["strategy=vertex_centric", "model=gcm"], r"^model=gcm is not known: did you mean gcn\? there are: .*sage"),
        (
            ["strategy=vertex_centric", "strategy.supersteps=4"],
            r"^strategy\.supersteps is not known: did you mean strategy\.local_iterations\?",
        ),
        (
            ["strategy=vertex_centric", "sync=async"],
            r"^sync=async: use sync=parameter_server sync\.mode=async$",
        ),
        exhaustive((["strategy=vertex_centric", "sync=ssp"], r"^sync=ssp: use sync=parameter_server sync\.mode=ssp$")),
        (["strategy=vertex_centric", "model.hiden=3"], r"^model\.hiden is not known: did you mean model\.hidden\?"),
        exhaustive((["strategy=vertex_centric", "workrs=3"], r"^workrs is not known: did you mean workers\?")),
        exhaustive(
            (
                ["strategy=vertex_centric", "lr=3"],
                r"^lr is not known: did you mean trainer\.lr\? .*--help lists all keys$",
            )
        ),
        exhaustive(
            (["strategy=vertex_centric", "max_epoch=3"], r"^max_epoch is not known: did you mean trainer\.max_epochs\?")
        ),
        (
            ["strategy=vertex_centric", "trainer.hidden=3"],
            r"^trainer\.hidden is not known: did you mean model\.hidden\?",
        ),
        (
            ["strategy=vertex_centric", "trainer.gradient_clip_val=3"],
            r"^trainer\.gradient_clip_val is not known: did you mean trainer\.clip_norm\?",
        ),
        exhaustive(
            (
                ["strategy=vertex_centric", "trainer.learning_rate=3"],
                r"^trainer\.learning_rate is not known: did you mean trainer\.lr\?",
            )
        ),
        (["strategy=vertex_centric", "epochs=3"], r"^epochs is not known: did you mean trainer\.max_epochs\?"),
        exhaustive(
            (["strategy=vertex_centric", "trainr.lr=3"], r"^trainr\.lr is not known: did you mean trainer\.lr\?")
        ),
        (
            ["strategy=vertex_centric", "model.hidden.x=3"],
            r"^model\.hidden\.x is not known: did you mean model\.hidden\? there are: ",
        ),
        (
            ["strategy=vertex_centric", "trainer=3"],
            r"^trainer=3 must be keys with values, as in trainer\.KEY=VALUE or trainer={'KEY': VALUE}",
        ),
        (["strategy=vertex_centric", "partition=nan"], r"^partition=nan is not known: .*there are: .*1d"),
        (["strategy=vertex_centric", "dataset=1_000"], r"^dataset=1_000 is not known: there are: .*npz"),
        (["strategy=vertex_centric", "model=int(3)"], r"^model=int\(3\) is not known: .*there are: .*gcn"),
        (["strategy=vertex_centric", "~sampler=true"], r"^the configuration cannot be read: "),
        (["strategy=vertex_centric", "=3"], r"^cannot read '=3': write KEY=VALUE"),
        (["strategy=vertex_centric", "k" * 5000 + "=3"], r"^the configuration cannot be read: "),
        exhaustive(
            (["strategy=vertex_centric", "seed=" + "[" * 3000], r"^cannot read 'seed=\[+\.\.\.': write KEY=VALUE")
        ),
        (["strategy=vertex_centric", "sampler.fanouts=[5]"], r"^sampler\.fanouts needs a sampler, and none is chosen"),
        (["strategy=vertex_centric", "strategy=vertex_centric"], r"^strategy appears more than once"),
        (["strategy=vertex_centric", "seed=1,2"], r"^seed=1,2 is a sweep over 2 values: add -m \(--multirun\)"),
        (["strategy=vertex_centric", "seed=range(3)"], r"^seed=range\(3\) is a sweep over 3 values: add -m"),
        (["strategy=vertex_centric", "seed"], r"^cannot read 'seed': write KEY=VALUE"),
        (["job=compare", "compare.ways=[a,b c=d]"], r"quotes around text with blanks: KEY=\[A,'B C'\]"),
        (["strategy=vertex_centric", "seed=[1"], r"^cannot read 'seed=\[1': write KEY=VALUE"),
        (["strategy=vertex_centric", "seed=${no.such}"], r"Interpolation key 'no.such' not found"),
    ],
)
def test_what_hydra_refuses_is_one_line_with_the_key(overrides: list[str], expected: str) -> None:
    with pytest.raises(UserError, match=expected) as caught:
        compose(overrides)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_strategy_may_have_a_key_of_that_name(tmp_path: Path) -> None:
    (tmp_path / "strategy").mkdir()
    (tmp_path / "strategy/own.yaml").write_text("name: own\nkeep: 3\n")
    config = compose(["strategy=own", "strategy.keep=4"], config_dirs=[tmp_path])
    assert config["strategy"] == {"name": "own", "keep": 4}


@pytest.mark.slow
def test_two_exchanges_as_one_have_the_keys_of_both() -> None:
    config = compose(["strategy=vertex_centric", "exchange=quantized+pipelined", "exchange.staleness=3"])
    assert config["exchange"] == {"name": "quantized+pipelined", "bits": 8, "staleness": 3}
    with pytest.raises(UserError, match=r"^exchange=quantized\+pipelin is not known: did you mean pipelined"):
        compose(["strategy=vertex_centric", "exchange=quantized+pipelin"])


@pytest.mark.slow
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
        ("model.hidden=", "${oc.${now:env}:HOME}"),
        ("model.hidden=", "${${oc.env:HOME}}"),
        ("model.hidden=", "${oc.env:HOME,${eval:1}}"),
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
    with pytest.raises(UserError, match=r"refused|cannot be changed|cannot be moved|cannot read"):
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
        ("name: ${oc.decode:1}\n", "resolvers other than"),
        ("name: !!python/object/apply:os.mkdir [marker]\n", "cannot be read: could not determine a constructor"),
        ("name: [\n", "cannot be read"),
    ],
)
def test_files_that_would_run_code_are_refused(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text(text)
    with pytest.raises(UserError, match=expected):
        compose(["strategy=vertex_centric", "model=mine"], config_dirs=[tmp_path])


@pytest.mark.slow
def test_a_users_folder_adds_options(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "wide.yaml").write_text("defaults: [gcn]\nhidden: 99\n")
    config = compose(["strategy=vertex_centric", "model=wide"], config_dirs=[tmp_path])
    assert (config["model"]["name"], config["model"]["hidden"]) == ("gcn", 99)
    with pytest.raises(UserError, match="is not a folder"):
        compose(config_dirs=[tmp_path / "none"])


@pytest.mark.slow
def test_a_yaml_that_names_no_plugin_is_told(tmp_path: Path) -> None:
    (tmp_path / "sampler").mkdir()
    (tmp_path / "sampler" / "mine.yaml").write_text("replace: true\n")
    config = compose(["strategy=individual_sample", "sampler=mine"], config_dirs=[tmp_path])
    with pytest.raises(UserError, match=r"^sampler is missing: the YAML that is chosen has no line name: NAME, there"):
        settle(config)


@pytest.mark.slow
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
        "norm": "none",
        "skip": False,
        "options": {"x": text, "y": [1.5, None, True]},
    }
    assert config["trainer"]["lr"] == 1e-3


@pytest.mark.slow
@few("name", ["1d", "1.5d", "2d", "3d", "hash", "random", "balanced", "tiles", "contiguous"], default=["1.5d", "hash"])
def test_every_partition_has_the_keys_of_the_layout(name: str) -> None:
    section = compose(["strategy=vertex_centric", f"partition={name}"])["partition"]
    on_grid = name[0].isdigit()
    assert list(section) == ["nodes", "grid", "replication", "border", "options"]
    assert (section["nodes"], section["grid"]) == (("contiguous", name) if on_grid else (name, "1d"))


@pytest.mark.slow
def test_a_layout_and_a_node_assignment_go_together_in_either_order() -> None:
    overrides = [
        compose(["strategy=vertex_centric", *keys])["partition"]
        for keys in (["partition=2d", "partition.nodes=hash"], ["partition=hash", "partition.grid=2d"])
    ]
    assert overrides[0] == overrides[1]
    assert (overrides[0]["nodes"], overrides[0]["grid"]) == ("hash", "2d")


@pytest.mark.slow
def test_values_of_the_environment_and_the_time_are_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOT", "7")
    keys = ["strategy=vertex_centric", "dataset=npz", "dataset.root=${oc.env:ROOT}/${now:%Y}/${oc.env:NO_SUCH,x.npz}"]
    config = compose([*keys, "output=${oc.env:ROOT}"])
    assert config["dataset"]["root"] == f"7/{time.strftime('%Y')}/x.npz"
    assert config["output"] == "7", "a number stays text"
    with pytest.raises(UserError, match="Environment variable 'NO_SUCH' not found"):
        compose([*keys, "output=${oc.env:NO_SUCH}"])


@pytest.mark.slow
def test_a_plus_before_a_key_that_is_there_is_told() -> None:
    with pytest.raises(UserError, match=r"^\+trainer.precision adds a key that already exists: remove the \+"):
        compose(["strategy=vertex_centric", "+trainer.precision=64"])


@pytest.mark.slow
@few("value", ["${oc.env:HOME}", "${seed}", "a${eval:1}"], default=["${seed}"])
def test_values_of_the_environment_are_resolved_once(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVIL", value)
    with pytest.raises(UserError, match=r"the value of EVIL holds \$\{, which is refused"):
        compose(["strategy=vertex_centric", "output=${oc.env:EVIL}"])


@pytest.mark.slow
def test_values_of_the_environment_stand_in_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHS", "/graphs")
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset/mine.yaml").write_text("defaults: [npz]\nroot: ${oc.env:GRAPHS}/a.npz\n")
    config = compose(["strategy=vertex_centric", "dataset=mine"], config_dirs=[tmp_path])
    assert config["dataset"]["root"] == "/graphs/a.npz"


@pytest.mark.exhaustive
@pytest.mark.slow
def test_several_folders_of_a_user_are_searched(tmp_path: Path) -> None:
    for name, hidden in (("first", 1), ("second", 2)):
        (tmp_path / name / "model").mkdir(parents=True)
        (tmp_path / name / f"model/{name}.yaml").write_text(f"defaults: [gcn]\nhidden: {hidden}\n")
        (tmp_path / name / "model/both.yaml").write_text(f"defaults: [gcn]\nhidden: {hidden}\n")
    folders = [tmp_path / "first", tmp_path / "second"]
    for name, hidden in (("first", 1), ("second", 2), ("both", 1)):
        assert compose(["strategy=auto", f"model={name}"], config_dirs=folders)["model"]["hidden"] == hidden
    with pytest.raises(
        UserError,
        match=r"^model=firts is not known: did you mean first\? there are: blend, boosting, both, column, first, ",
    ):
        compose(["strategy=auto", "model=firts"], config_dirs=folders)


@pytest.mark.slow
def test_a_file_gives_values_before_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("strategy: {name: vertex_centric}\nmodel: {name: sage, hidden: 5}\nseed: 3\n")
    values, name = of_file("mine", [tmp_path], ["seed=4"])
    config = compose([*values, "seed=4"], config_name=name)
    assert (config["model"]["name"], config["model"]["hidden"], config["seed"]) == ("sage", 5, 4)
    values, name = of_file("mine.yaml", [tmp_path], ["model=gcn"])
    assert compose([*values, "model=gcn"], config_name=name)["model"]["hidden"] == 64, "of the model that is chosen"


@pytest.mark.slow
def test_a_file_with_defaults_is_a_main_configuration(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults:\n  - config\n  - override model: gin\n  - _self_\nseed: 9\n")
    values, name = of_file("mine", [tmp_path], [])
    config = compose([*values, "strategy=vertex_centric"], config_dirs=[tmp_path], config_name=name)
    assert (config["model"]["name"], config["seed"]) == ("gin", 9)


def test_a_secret_that_was_not_kept_must_be_given_again(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("model: {name: gcn, options: {api_key: '***'}}\n")
    with pytest.raises(UserError, match=r"model\.options\.api_key was a secret and was not saved: set "):
        of_file("config", [tmp_path], [])
    assert of_file("config", [tmp_path], ["model.options.api_key=x"])[1] == "config"


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("name", options("experiment"))
def test_experiments_choose_all_but_the_file_and_can_be_changed(name: str) -> None:
    overrides = [f"experiment={name}", "dataset.root=x.npz"]
    config = compose(overrides)
    assert (config["strategy"]["name"], config["dataset"]["name"]) == ("vertex_centric", "npz")
    assert config["trainer"]["max_epochs"] in (100, 200)
    settle(config)
    new_config = compose([*overrides, "strategy=individual_sample", "trainer.max_epochs=7", "model=gat"])
    assert (new_config["strategy"]["name"], new_config["trainer"]["max_epochs"]) == ("individual_sample", 7)
    assert new_config["model"]["name"] == "gat"
    with pytest.raises(UserError, match=r"^dataset\.root is missing"):
        compose([f"experiment={name}"])


def test_an_experiment_that_does_not_exist_is_named() -> None:
    with pytest.raises(UserError, match=r"^experiment=cora is not known: did you mean cora_gcn\?"):
        compose(["experiment=cora"])


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("config", "defaults: [gcn]\n", "config.yaml has defaults: rename the file, as this name is reserved"),
        ("mine", "- seed\n", r"mine\.yaml: expected a mapping of keys to values"),
    ],
)
def test_a_file_of_another_form_is_refused(name: str, text: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.yaml").write_text(text)
    with pytest.raises(UserError, match=expected):
        of_file(name, [tmp_path], [])


@pytest.mark.parametrize("text", ["- seed\n", "model: gcn\n", "", "seed: 3\n"])
def test_a_folder_of_something_else_than_a_run_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UserError, match=rf"checkpoint={tmp_path}: config\.yaml is not the configuration of a run"):
        of_run(tmp_path)


def test_a_key_that_earlier_runs_recorded_is_not_passed_on(tmp_path: Path) -> None:
    text = "model: {name: gcn}\ntask: {name: node_classification}\nsampler: {name: neighbor, edge_ids: true}\n"
    (tmp_path / "config.yaml").write_text(text)
    assert of_run(tmp_path)["sampler"] == {"name": "neighbor"}
