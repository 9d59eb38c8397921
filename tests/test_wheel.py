"""The files of wheel and sdist, and a run from an empty environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def uv() -> str:
    found = os.environ.get("UV") or shutil.which("uv")
    return found or pytest.skip("needs uv, to make an empty environment")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    maturin = [sys.executable, "-m", "maturin"]
    for command in (["build", "--release"], ["sdist"]):
        subprocess.run([*maturin, *command, "--out", str(folder)], cwd=ROOT, check=True, capture_output=True)
    return folder


def expected() -> set[str]:
    """Lists the Python and YAML files of the package that must be installed."""
    code = {path.relative_to(ROOT) for path in (ROOT / "gnnkit").rglob("*.py*") if path.suffix in (".py", ".pyi")}
    yaml = {Path("gnnkit") / path.relative_to(ROOT) for path in (ROOT / "conf").rglob("*.yaml")}
    return {path.as_posix() for path in code | yaml}


@pytest.mark.slow
def test_the_wheel_holds_code_configuration_and_native_module(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert expected() <= names
    assert any(name.startswith("gnnkit/_core.") and name.endswith((".so", ".pyd")) for name in names)
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"gnnkit"}


@pytest.mark.slow
def test_the_sdist_holds_code_configuration_and_rust(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    rust = {path.relative_to(ROOT).as_posix() for path in (ROOT / "rust").glob("*/src/**/*.rs")}
    assert expected() | rust | {"Cargo.lock", "pyproject.toml", "LICENSE"} <= names


@pytest.mark.slow
def test_the_main_job_runs_from_an_empty_environment(built: Path, uv: str, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    python = environment / "bin" / "python"
    pinned = subprocess.run(
        [uv, "pip", "freeze", "--python", sys.executable], check=True, capture_output=True, text=True
    )
    (tmp_path / "pinned.txt").write_text("\n".join(line for line in pinned.stdout.splitlines() if "==" in line))
    install = ["pip", "install", "--quiet", "--python", str(python), "--constraints", str(tmp_path / "pinned.txt")]
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(environment)], check=True)
    subprocess.run([uv, *install, *map(str, built.glob("*.whl"))], check=True)

    command = [python, "-m", "gnnkit", "+strategy=vertex_centric", "partition=2d", "workers=2", "trainer.max_epochs=2"]
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (result,) = tmp_path.glob("outputs/*/*/result.json")
    assert json.loads(result.read_text())["epochs"] == 2
    where = subprocess.check_output([python, "-c", "import gnnkit; print(gnnkit.__file__)"], cwd=tmp_path, env=clean)
    assert Path(where.decode().strip()).is_relative_to(environment)
