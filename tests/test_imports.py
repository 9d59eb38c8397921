"""Imports point one way, down the list of rooms.

Configuration is read in one place. Plugins are asked, not recognised.
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
import re
import resource
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from lightning.pytorch.callbacks import Callback as LightningCallback

import gnnkit
from gnnkit import plugins
from gnnkit.comm import Communicator, Mailbox
from gnnkit.config.settings import Settings
from gnnkit.dataset.base import Dataset
from gnnkit.engine import Adjacency
from gnnkit.engine.remote import FeatureStore
from gnnkit.exchange import RowExchange
from gnnkit.launch.launcher import Launcher
from gnnkit.model.base import GraphModel, Program
from gnnkit.partition.base import Partitioner
from gnnkit.partition.order import NodeOrder
from gnnkit.sampler import Sampler
from gnnkit.strategy import ExecutionStrategy
from gnnkit.sync import Aggregation, GradientSync
from gnnkit.task import Task
from gnnkit.task.evaluation import Evaluation
from gnnkit.training.logger import RunLogger

PACKAGE = Path(gnnkit.__file__).parent
ROOT = PACKAGE.parent
# From the bottom up. A room imports from itself and from the rooms before it only.
LAYERS = [
    "utils.redaction",
    "errors",
    "utils",
    "_core",
    "plugins",
    "graph",
    "partition",
    "partition.order",
    "sampler",
    "partition.store",
    "dataset",
    "comm",
    "pyg",
    "kernels",
    "exchange",
    "engine",
    "engine.remote",
    "nn",
    "model",
    "strategy",
    "sync",
    "task.evaluation",
    "task",
    "launch",
    "launch.launcher",
    "config",
    "result",
    "leader",
    "prepare",
    "training.logger",
    "callback",
    "training",
    "jobs",
    "testing",
    "from_python",
    "__init__",
    "command",
    "__main__",
]
FROM_COMM_ON = {
    "comm",
    "pyg",
    "kernels",
    "exchange",
    "engine",
    "engine.remote",
    "nn",
    "model",
    "strategy",
    "sync",
    "task.evaluation",
    "task",
    "launch",
    "launch.launcher",
    "leader",
    "prepare",
    "callback",
    "training",
    "jobs",
}
COMMAND = {"from_python", "__init__", "__main__", "command"}
# Who may import what, wherever it stands in the list.
ALLOWED = {
    "torch": {*FROM_COMM_ON, "testing"},
    "lightning": {"training.logger", "callback", "training", "jobs", "testing"},
    "hydra": {"config"},
    "omegaconf": {"config"},
    "lazyedges": {"kernels", "model"},
    "gnnkit_formats": {"graph", "sampler"},
    "gnnkit_pyg": {"pyg"},
    "gnnkit_testing": {"testing"},
    "gnnkit._core": {
        *("graph", "dataset", "partition", "partition.order", "sampler", "comm", "kernels", "engine.remote")
    },
    "gnnkit.config": {"prepare", "training", "jobs", "testing", *COMMAND},
    "gnnkit.plugins": {"strategy", "sync", "config", "jobs", "testing", *COMMAND},
}
IN_FUNCTIONS = {"torch": {"ranks.py", "loaded_batch.py"}}  # files that import a package only when they need it
ABOVE_PLUGINS = ("task.evaluation", "launch", "result", "prepare", "leader", "training", "jobs")
BASES = (
    Adjacency, Aggregation, Communicator, Dataset, Evaluation, ExecutionStrategy, FeatureStore, GradientSync, GraphModel, Launcher, Mailbox,
    NodeOrder, Partitioner, Program, RowExchange, RunLogger, Sampler, Task, LightningCallback,
)  # fmt: skip
BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")  # fields of statements that hold statements
READ_CONFIGURATION = {"config", "plugins"}
CONFIGURATIONS = {"composed", "compose", "config", "cfg"}  # names of composed configurations


def sources(*rooms: str) -> list[Path]:
    """Lists the files of some rooms, or of the package."""
    actual = (path for path in PACKAGE.rglob("*.py") if "conf" not in path.relative_to(PACKAGE).parts)
    return sorted(path for path in actual if not rooms or room(path) in rooms)


def room(path: Path) -> str:
    """Returns `graph` for graph/csc.py, `engine.remote` for engine/remote/tier.py."""
    return room_of(path.relative_to(PACKAGE).with_suffix("").parts)


def room_of(parts: Sequence[str]) -> str:
    """Returns the room of a module, such as `errors` for `errors.UserError`."""
    package = ".".join(parts[:2])
    return package if package in LAYERS else parts[0]


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def statements(node: ast.AST, in_function: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Yields the statements below a node, and whether a function holds each.

    Leaves out what only type checkers see.
    """
    for child in (child for block in BLOCKS for child in getattr(node, block, ())):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child, in_function
        yield from statements(child, in_function or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Yields the modules that a file imports, and whether a function imports each."""
    for node, in_function in statements(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((name.name, in_function) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from ((f"{node.module}.{name.name}", in_function) for name in node.names)


@pytest.mark.slow
@pytest.mark.long("parses all modules")
def test_imports_point_one_way() -> None:
    wrong = [f"{path} imports {module}, {why}" for path in sources() for module, why in misplaced(path)]
    assert wrong == []


def misplaced(path: Path) -> Iterator[tuple[str, str]]:
    """Yields the modules that a file may not import, with the reason."""
    own = room(path)
    for module, in_function in imports(path):
        if module.startswith("gnnkit."):
            target = room_of(module.split(".")[1:])
            if target not in LAYERS:
                yield module, "which is no room"
            elif LAYERS.index(target) > LAYERS.index(own):
                yield module, "which is above it"
        for package, rooms in ALLOWED.items():
            if f"{module}.".startswith(f"{package}."):
                where_needed = in_function and path.name in IN_FUNCTIONS.get(package, ())
                if not (own in rooms or own == package.rpartition(".")[2] or where_needed):
                    yield module, "which is not for this room"


@pytest.mark.slow
def test_the_core_imports_only_those_of_its_packages_that_it_requires() -> None:
    packages = {path.parent.name for path in ROOT.glob("plugins/*/*/__init__.py")}
    packages_in_use = {module.partition(".")[0] for path in sources() for module, _ in imports(path)} & packages
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = {re.split(r"\W*>=", name)[0].replace("-", "_") for name in project["dependencies"]}
    assert packages_in_use == {"gnnkit_formats", "gnnkit_pyg", "gnnkit_testing", "lazyedges"}
    assert packages_in_use <= requirements & packages
    assert requirements & packages == packages_in_use | {"gnnkit_plan", "gnnkit_report"}  # found by their entry points


def test_a_wrong_import_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a class, in a handler and in a function. Not where types are checked."""
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    (tmp_path / "graph.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import hydra\n"
        "class A:\n    import torch\ntry:\n    pass\nexcept ValueError:\n    from gnnkit import jobs\n"
        "def f():\n    with open('x'):\n        import lightning.pytorch\n    import gnnkit.nowhere\n"
    )
    results = [module for module, _ in misplaced(tmp_path / "graph.py")]
    assert results == ["torch", "gnnkit.jobs", "lightning.pytorch", "gnnkit.nowhere"]
    (tmp_path / "ranks.py").write_text("import torch\ndef f():\n    import torch\n")
    assert len(list(misplaced(tmp_path / "ranks.py"))) == 1


@pytest.mark.slow
def test_no_implementation_imports_another() -> None:
    for kind in plugins.KINDS:
        modules = {plugins.find(kind, name).module for name in plugins.names(kind)}
        for module in modules:
            path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
            if module.startswith("gnnkit.") and path.exists():
                results = [name for name, _ in imports(path)]
                other_modules = {
                    other for other in modules - {module} for name in results if name.startswith(f"{other}.")
                }
                assert not other_modules, f"{module} imports {other_modules}"


def test_every_file_has_its_room_and_every_room_a_file() -> None:
    native = {"_core"}
    assert {room(path) for path in sources()} | native == set(LAYERS)


def test_the_design_draws_the_rooms_in_the_order_of_imports() -> None:
    text = (ROOT / "DESIGN.md").read_text(encoding="utf-8")
    match = re.search(r"(?:^    .*\n)*^    utils\.redaction\b.*\n(?:^    .*\n)*", text, re.MULTILINE)
    assert match is not None
    rooms = [word for line in match[0].splitlines() for word in re.split(r" {2,}", line[4:])[0].split()]
    assert rooms == [layer for layer in LAYERS if not layer.startswith("_")]


@pytest.mark.slow
def test_nobody_above_the_plugins_recognises_a_plugin_by_its_class() -> None:
    classes, wrong = plugin_classes(), []
    for path in naming(sources(*ABOVE_PLUGINS), "isinstance", "issubclass"):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
                names = {part.id for part in ast.walk(node.args[1]) if isinstance(part, ast.Name)}
                names |= {part.attr for part in ast.walk(node.args[1]) if isinstance(part, ast.Attribute)}
                if names & classes:
                    wrong.append(f"{path}:{node.lineno}: {ast.unparse(node)}: ask a method instead")
    assert wrong == []


def naming(paths: list[Path], *words: str) -> list[Path]:
    """Returns the files in which one of the words stands."""
    pattern = re.compile(rf"\b({'|'.join(words)})\b")
    return [path for path in paths if pattern.search(path.read_text(encoding="utf-8"))]


def plugin_classes() -> set[str]:
    """Names the classes of all installed plugins, and their interfaces."""
    return {
        *(plugins.load(kind, name).__name__ for kind in plugins.KINDS for name in plugins.names(kind)),
        *(base.__name__ for base in BASES),
    }


def test_every_kind_of_plugin_has_an_interface_in_the_list_above() -> None:
    for kind in plugins.KINDS:
        for name in plugins.names(kind):
            cls = plugins.load(kind, name)
            assert issubclass(cls, BASES), f"{kind}={name}"


@pytest.mark.slow
def test_the_composed_configuration_is_read_in_one_place() -> None:
    wrong = [
        f"{path}:{node.lineno}: {ast.unparse(node)}: Settings has a field"  # type: ignore[attr-defined]
        for path in naming(sources(), *CONFIGURATIONS)
        if room(path) not in READ_CONFIGURATION
        for node in ast.walk(tree(path))
        if key_read(node) is not None
    ]
    assert wrong == []


def key_read(node: ast.AST) -> str | None:
    """Returns the key by which the code reads a composed configuration, if any."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        source, key = node.value, node.slice.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
        source, key = node.func.value, getattr(node.args[0], "value", None)
    else:
        return None
    names = {part.id for part in ast.walk(source) if isinstance(part, ast.Name)}
    names |= {part.attr for part in ast.walk(source) if isinstance(part, ast.Attribute)}
    return key if isinstance(key, str) and names & CONFIGURATIONS else None


def test_settings_have_a_field_for_every_section() -> None:
    assert set(plugins.KINDS) <= set(inspect.get_annotations(Settings))


def modules_after(code: str) -> set[str]:
    """Returns what a fresh interpreter has imported in the end."""
    command = [
        sys.executable,
        "-c",
        f"import json, sys\n{code}\nprint(json.dumps(sorted(sys.modules)), file=sys.stderr)",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.slow
def test_help_imports_neither_torch_nor_numpy() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    loaded = modules_after("from gnnkit.__main__ import main\nassert main(['--help']) == 0")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"python -m gnnkit --help: {seconds:.2f} CPU seconds")
    assert not loaded & {"torch", "numpy", "lightning", "hydra", "omegaconf"}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_configuration_is_composed_without_torch() -> None:
    loaded = modules_after("from gnnkit import config\nconfig.compose(['strategy=vertex_centric'])")
    assert not loaded & {"torch", "numpy", "lightning"}


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(("job", "without"), [("partition", ["lightning"]), ("plan", ["sympy"])])
def test_a_job_runs_without_what_it_has_no_use_for(job: str, without: list[str], tmp_path: Path) -> None:
    code = f"""
for name in {without}:
    sys.modules[name] = None  # an import fails, in the forked process too
from gnnkit.__main__ import main
from gnnkit.launch.lean import leave_out_unused
leave_out_unused()  # as the program does
keys = ["workers=2", "dataset=synthetic", "dataset.num_nodes=50", "dataset.num_edges=99", "cache=false"]
assert main(["strategy=vertex_centric", "job={job}", "output={tmp_path}/run", *keys]) == 0
"""
    modules_after(code)


@pytest.mark.slow
def test_the_lower_rooms_serve_any_framework() -> None:
    assert "torch" not in modules_after("import gnnkit.graph, gnnkit.dataset, gnnkit.partition, gnnkit.sampler")
