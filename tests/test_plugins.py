from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Sequence
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any, Literal

import pytest

import gnnkit
from gnnkit import plugins
from gnnkit.__main__ import main
from gnnkit.config import compose, with_run
from gnnkit.config.settings import Choice
from gnnkit.errors import UserError
from tests.conftest import Install

ROOT = Path(__file__).parent.parent
NOT_INSTALLED = [(kind, name) for kind, packages in plugins.PACKAGES.items() for name in packages]


class Example:
    """A plugin with the annotations that configurations can hold."""

    def __init__(
        self,
        width: int,
        rate: float = 0.5,
        sizes: Sequence[int] = (1,),
        mode: Literal["mean", "sum"] = "mean",
        root: str | Path | None = None,
    ) -> None:
        if width < 1:
            raise ValueError(f"width={width} must be positive")
        if rate > 1:
            raise ValueError("the rate is too high")
        self.arguments = (width, rate, sizes, mode, root)


class Extended(Example):
    """A plugin that passes keys on."""

    def __init__(self, height: int = 1, **keys: Any) -> None:
        super().__init__(**keys)
        self.height = height


def create(kind: str, section: dict[str, Any], **extra: Any) -> Any:
    """Makes the plugin that a section of the configuration names."""
    name = plugins.plugin_name(kind, section)
    return Choice(kind, name, plugins.arguments_of(kind, section)).create(**extra)


@pytest.fixture
def example(install: Install) -> None:
    install("example", {"gnnkit.model": {"example": f"{__name__}:Example"}})


def test_entry_points_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    points = plugins.entry_points()
    monkeypatch.setattr(plugins, "entry_points", lambda: reads.append(1) or points)
    monkeypatch.syspath_prepend("/nowhere")  # cached by path
    for kind in plugins.KINDS:
        assert plugins.names(kind)
    assert len(reads) == 1


def test_listing_imports_nothing(install: Install) -> None:
    install("broken", {"gnnkit.model": {"broken": "gnnkit_broken:Model"}}, {"gnnkit_broken.py": "raise SystemExit(3)"})
    assert {"broken", "gcn", "sage"} <= set(plugins.names("model"))
    assert {"broken", "gcn", "sage"} <= set(plugins.options("model"))
    assert "gnnkit_broken" not in sys.modules


@pytest.mark.parametrize("statement", ["raise SystemExit(3)", "raise RuntimeError('no')", "import no_such_module"])
def test_a_plugin_that_fails_on_import_is_named_when_it_is_chosen(install: Install, statement: str) -> None:
    install("broken", {"gnnkit.model": {"broken": "gnnkit_broken:Model"}}, {"gnnkit_broken.py": statement})
    reference = (
        r"model=broken: gnnkit_broken:Model of broken fails on import: \w+: .* \(python -c 'import gnnkit_broken'"
    )
    with pytest.raises(UserError, match=reference):
        plugins.load("model", "broken")


def test_an_unknown_name_gets_the_nearest_one_and_all(example: None) -> None:
    with pytest.raises(UserError, match=r"model=exmaple is not known: did you mean example\? there are: .*gcn.*sage"):
        plugins.load("model", "exmaple")


@pytest.mark.parametrize("name", ["tgn", "jodie", "dyrep"])
def test_models_with_memories_are_refused_with_what_to_use(name: str) -> None:
    with pytest.raises(UserError, match=rf"^model={name}: .*order of events.*model=mixer or model=tgat"):
        plugins.load("model", name)
    with pytest.raises(UserError, match=rf"^sampler={name} is not known"):
        plugins.load("sampler", name)


def test_a_removed_data_set_is_refused_with_what_to_do() -> None:
    with pytest.raises(
        UserError, match=r"^dataset=graphar: its package was removed; .*docs/howto/own-graph\.md#apache-g"
    ):
        compose(["strategy=vertex_centric", "dataset=graphar"])


def test_two_distributions_with_one_name_are_both_named(install: Install) -> None:
    install("first", {"gnnkit.model": {"twice": "first:Model"}})
    install("second", {"gnnkit.model": {"twice": "second:Model"}})
    with pytest.raises(UserError, match=r"model=twice is defined by (first and by second|second and by first)"):
        plugins.load("model", "twice")


def test_built_in_names_cannot_be_shadowed(install: Install) -> None:
    install("shadow", {"gnnkit.model": {"gcn": "shadow:Model"}})
    with pytest.raises(UserError, match=r"model=gcn is defined by .*shadow"):
        plugins.load("model", "gcn")


def test_keys_and_options_become_arguments(example: None) -> None:
    config = {"name": "example", "width": 3, "options": {"sizes": [2, 1], "mode": "sum"}}
    assert create("model", config).arguments == (3, 0.5, [2, 1], "sum", None)
    assert create("model", {"name": "example"}, width=4).arguments[0] == 4


def test_an_argument_may_be_called_as_the_key_of_a_partition() -> None:
    section = {"name": "edges", "nodes": "people.csv", "grid": 2}
    assert plugins.plugin_name("dataset", section) == "edges"
    assert plugins.arguments_of("dataset", section) == {"nodes": "people.csv", "grid": 2}
    assert plugins.arguments_of("partition", {"nodes": "ldg", "grid": 2, "options": {"passes": 3}}) == {"passes": 3}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"width": 3, "rat": 1}, r"^model\.rat is not known: did you mean model\.rate\? there are: .*model\.width"),
        ({}, r"^model\.width is missing"),
        ({"width": "wide"}, r"^model\.width=wide must be a whole number$"),
        ({"width": True}, r"^model\.width=True must be a whole number$"),
        ({"width": 3, "rate": "x"}, r"^model\.rate=x must be a number$"),
        ({"width": 3, "sizes": [1, "x"]}, r"^model\.sizes=\[1, 'x'\] must be a list, each entry a whole number$"),
        ({"width": 3, "mode": "max"}, r"^model\.mode=max must be mean or sum$"),
        ({"width": 3, "root": 1}, r"^model\.root=1 must be text or a path or null$"),
        ({"width": 0}, r"^model\.width=0 must be positive"),
        ({"width": 3, "rate": 2.0}, r"^model=example: the rate is too high"),
        ({"width": 3, "options": {"width": 4}}, r"^model\.width is given twice"),
        ({"width": 3, "options": [1]}, r"^model\.options=\[1\] must be a mapping"),
    ],
)
def test_wrong_arguments_are_refused_with_their_key(example: None, arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        create("model", {"name": "example", **arguments})


def test_whole_numbers_are_numbers_and_none_is_a_value(example: None) -> None:
    assert create("model", {"name": "example", "width": 3, "rate": 1, "root": None}).arguments[1] == 1


def test_an_argument_of_the_caller_is_not_the_users(example: None) -> None:
    with pytest.raises(UserError, match=r"model\.width is not known"):
        create("model", {"name": "example", "width": 3}, width=4)


def test_the_partition_names_its_plugin_by_nodes(install: Install) -> None:
    install("example", {"gnnkit.partition": {"example": f"{__name__}:Example"}})
    config = {"nodes": "example", "grid": "2d", "replication": None, "border": "none", "options": {"width": 2}}
    assert create("partition", config).arguments[0] == 2
    with pytest.raises(UserError, match=r"^partition\.options\.width=0 must be positive"):
        create("partition", {**config, "options": {"width": 0}})
    with pytest.raises(UserError, match=r"^partition\.nodes=exampel is not known: did you mean example\?"):
        create("partition", {**config, "nodes": "exampel"})


def test_a_wrong_key_that_a_constructor_passes_on_is_refused(install: Install) -> None:
    install("extended", {"gnnkit.model": {"extended": f"{__name__}:Extended"}})
    assert create("model", {"name": "extended", "width": 3, "height": 2}).arguments[0] == 3
    with pytest.raises(UserError, match=r"^model\.widht is not known: .*model\.height"):
        create("model", {"name": "extended", "height": 2, "widht": 3})


@pytest.mark.slow
def test_a_plugin_without_yaml_is_an_option_with_any_argument(example: None) -> None:
    config = compose(["strategy=vertex_centric", "model=example", "model.options.width=3"])
    assert create("model", config["model"]).arguments[0] == 3


@pytest.mark.slow
def test_yaml_of_a_plugin_is_found_without_importing_its_package(install: Install) -> None:
    files = {
        "gnnkit_far/__init__.py": "raise SystemExit(3)",
        "gnnkit_far/conf/model/far.yaml": "name: example\nwidth: 7\n",
        "gnnkit_far/conf/model/gcn.yaml": "name: gcn\nhidden: 1\n",
    }
    points = {"gnnkit.model": {"example": f"{__name__}:Example"}, "gnnkit.conf": {"far": "gnnkit_far"}}
    install("far", points, files)
    assert "far" in plugins.options("model")
    config = compose(["strategy=vertex_centric", "model=far", "model.width=8"])
    assert config["model"] == {"name": "example", "width": 8}
    assert compose(["strategy=vertex_centric"])["model"]["hidden"] == 64, "our own YAML is not shadowed"
    assert "gnnkit_far" not in sys.modules


def test_every_built_in_plugin_has_one_owner() -> None:
    for kind in plugins.KINDS:
        for name in plugins.names(kind):
            assert isinstance(plugins.find(kind, name), EntryPoint)


def test_a_key_that_no_part_of_a_joined_plugin_takes_is_refused() -> None:
    with pytest.raises(UserError, match=r"exchange\.bit is not known: did you mean exchange\.bits\?"):
        plugins.check(Choice("exchange", "quantized+pipelined", {"bit": 8}))
    plugins.check(Choice("exchange", "quantized+pipelined", {"bits": 8}))


def test_a_section_that_chooses_nothing_is_refused_with_the_names() -> None:
    with pytest.raises(UserError, match=r"model is missing: choose one with model=NAME, there are: .*gcn"):
        plugins.plugin_name("model", {})


def test_a_copy_of_the_sources_without_its_link_says_how_to_make_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "CONF", tmp_path / "conf")
    with pytest.raises(UserError, match=r"conf is missing, and was a symbolic link to \.\./conf: make it with ln -s"):
        plugins.conf_folders()


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only gnnkit itself is installed."""
    points = plugins._points

    def own(kind: str) -> EntryPoints:
        return EntryPoints(point for point in points(kind) if point.dist is not None and point.dist.name == "gnnkit")

    monkeypatch.setattr(plugins, "_points", own)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(("kind", "name"), NOT_INSTALLED)
def test_a_plugin_whose_package_is_not_installed_is_refused_with_the_command_that_installs_it(
    kind: str, name: str
) -> None:
    package = plugins.PACKAGES[kind][name]
    with pytest.raises(UserError, match=f"[=.]{name}: the package {package} is not installed: pip install {package}$"):
        plugins.load(kind, name)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(
    ("override", "package"),
    [
        ("dataset=graphbolt", "gnnkit-graphbolt"),
        ("partition=metis", "gnnkit-metis"),
        ("exchange=quantized+error_feedback", "gnnkit-error-feedback"),
        ("exchange=sampled", "gnnkit-lossy-exchange"),
        ("strategy=llcg", "gnnkit-preset"),
    ],
)
def test_a_configuration_names_the_package_that_is_not_installed(override: str, package: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(override)}: the package {package} is not installed"):
        compose([override] if override.startswith("strategy") else ["strategy=vertex_centric", override])


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("name", plugins.PACKAGES["job"])
def test_a_job_whose_package_is_not_installed_is_refused_before_its_keys_and_the_run_are_read(name: str) -> None:
    package = plugins.PACKAGES["job"][name]
    message = f"^job={name}: the package {package} is not installed: pip install {package}$"
    with pytest.raises(UserError, match=message):
        with_run([f"job={name}", "checkpoint=RUN", "nodes=3"])


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("name", plugins.PACKAGES[plugins.FUNCTION])
def test_a_function_whose_package_is_not_installed_names_it(name: str) -> None:
    package = plugins.PACKAGES[plugins.FUNCTION][name]
    message = rf"^gnnkit\.{name}: the package {package} is not installed: pip install {package}$"
    with pytest.raises(UserError, match=message):
        getattr(gnnkit, name)("RUN", "net.pt2")


@pytest.mark.usefixtures("bare")
def test_a_sweep_without_its_package_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", "strategy=vertex_centric", "seed=1,2"]) == 2
    assert "-m: the package gnnkit-sweep is not installed: pip install gnnkit-sweep\n" in capsys.readouterr().err


def test_the_table_of_packages_lists_all_plugins_of_this_project() -> None:
    reference: dict[str, dict[str, str]] = {}
    for path in ROOT.glob("plugins/gnnkit-*/pyproject.toml"):
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        for group, points in project.get("entry-points", {}).items():
            kind = group.removeprefix("gnnkit.")
            reference.setdefault(kind, {}).update(dict.fromkeys(points, project["name"]))
    reference.pop("conf")
    assert reference == plugins.PACKAGES
