"""Imports point one way: down the list of layers, and heavy packages only where they belong."""

from __future__ import annotations

import ast
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gnnkit
from gnnkit import plugins

PACKAGE = Path(gnnkit.__file__).parent
LAYERS = [
    "storage",
    "graph",
    "dataset",
    "partition",
    "sampler",
    "comm",
    "engine",
    "model",
    "strategy",
    "sync",
    "training",
]
# Beside the layers: what they may all use, and what uses them.
ANYWHERE = {"plugins", "_core", "errors", "checks", "ranges"}
TOP = {"config", "keys", "usage", "job", "testing", "__init__", "__main__"}
ALLOWED = {
    "torch": {*LAYERS[LAYERS.index("comm") :], "testing"},
    "lightning": {"training"},
    "hydra": {"config"},
    "omegaconf": {"config"},
    "gnnkit._core": {"graph", "dataset", "partition", "sampler", "comm", "engine"},
}


def sources() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if "conf" not in path.relative_to(PACKAGE).parts)


def layer(path: Path) -> str:
    """`graph` for graph.py, `comm` for comm/gloo.py."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports at run time, inside functions too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and node not in typing_only:
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node not in typing_only:
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{name.name}" for name in node.names)


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    own = layer(path)
    for module in imports(path):
        _, _, inner = module.partition("gnnkit.")
        target = inner.split(".")[0]
        if own in LAYERS and target and target not in ANYWHERE:
            assert target in LAYERS, f"{path} imports {module}"
            assert LAYERS.index(target) <= LAYERS.index(own), f"{path} imports {module}, which is above it"
        for package, places in ALLOWED.items():
            if module == package or module.startswith(f"{package}."):
                inside_function = (own in TOP or path.name == "frameworks.py") and module.startswith("torch")
                assert own in places or inside_function, f"{path} imports {module}"


def test_no_implementation_imports_another() -> None:
    for kind in plugins.KINDS:
        modules = {plugins.find(kind, name).module for name in plugins.names(kind)}
        for module in modules:
            path = PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py")
            if module.startswith("gnnkit.") and path.exists():
                others = {
                    other for other in modules - {module} for found in imports(path) if found.startswith(other + ".")
                }
                assert not others, f"{module} imports {others}"


def test_every_file_has_its_place() -> None:
    assert {layer(path) for path in sources()} <= {*LAYERS, *ANYWHERE, *TOP}


def modules_after(code: str) -> set[str]:
    """What a fresh interpreter has imported in the end."""
    command = [
        sys.executable,
        "-c",
        f"import json, sys\n{code}\nprint(json.dumps(sorted(sys.modules)), file=sys.stderr)",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_help_imports_neither_torch_nor_numpy() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    loaded = modules_after("from gnnkit.__main__ import main\nassert main(['--help']) == 0")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"python -m gnnkit --help: {seconds:.2f} CPU seconds")
    assert not loaded & {"torch", "numpy", "lightning", "hydra", "omegaconf"}


def test_a_configuration_is_composed_without_torch() -> None:
    loaded = modules_after("from gnnkit import config\nconfig.compose(['strategy=vertex_centric'])")
    assert not loaded & {"torch", "numpy", "lightning"}


@pytest.mark.parametrize("module", ["graph", "dataset", "partition", "sampler"])
def test_the_lower_layers_serve_any_framework(module: str) -> None:
    assert "torch" not in modules_after(f"import gnnkit.{module}")
