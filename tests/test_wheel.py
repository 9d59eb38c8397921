"""What is installed is not the checkout: the files of wheel and sdist."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    maturin = [sys.executable, "-m", "maturin"]
    for command in (["build", "--release"], ["sdist"]):
        subprocess.run([*maturin, *command, "--out", str(folder)], cwd=ROOT, check=True, capture_output=True)
    return folder


def expected() -> set[str]:
    """The Python and YAML files of the package, as they must be installed."""
    code = {path.relative_to(ROOT) for path in (ROOT / "gnnkit").rglob("*.py*") if path.suffix in (".py", ".pyi")}
    yaml = {Path("gnnkit") / path.relative_to(ROOT) for path in (ROOT / "conf").rglob("*.yaml")}
    return {path.as_posix() for path in code | yaml}


def test_the_wheel_holds_code_configuration_and_native_module(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert expected() <= names
    assert any(name.startswith("gnnkit/_core.") and name.endswith((".so", ".pyd")) for name in names)
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"gnnkit"}


def test_the_sdist_holds_code_configuration_and_rust(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    rust = {path.relative_to(ROOT).as_posix() for path in (ROOT / "rust").glob("*/src/**/*.rs")}
    assert expected() | rust | {"Cargo.lock", "pyproject.toml", "LICENSE"} <= names
