"""The files of wheel and sdist, and a run from an empty environment without Rust.

`GNNKIT_WHEELS` names a folder with wheels and an sdist, as `.ci/wheels` makes them.
Otherwise the tests build one wheel for this machine.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first test waits for the core's build
ROOT = Path(__file__).resolve().parents[2]
MACHINES = {62: "x86_64", 183: "aarch64"}  # by number of the ELF header
MAX_MIB = 8  # of a wheel
CODE = (".py", ".pyi", ".json", ".txt")  # with the files that it reads
REQUIRED = (
    "gnnkit-formats",
    "gnnkit-plan",
    "gnnkit-pyg",
    "gnnkit-report",
    "gnnkit-testing",
    "lazyedges",
)  # packages of this project that gnnkit requires


@pytest.fixture(scope="module")
def uv() -> str:
    actual = os.environ.get("UV") or shutil.which("uv")
    return actual or pytest.skip("needs uv, to make an empty environment")


@pytest.fixture(scope="module")
def wheel_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with wheels and the sdist."""
    if (given := os.environ.get("GNNKIT_WHEELS")) is not None:
        return Path(given)
    folder = tmp_path_factory.mktemp("dist")
    maturin = [sys.executable, "-m", "maturin"]
    for command in (["build", "--release"], ["sdist"]):
        subprocess.run([*maturin, *command, "--out", str(folder)], cwd=ROOT, check=True, capture_output=True)
    return folder


def expected() -> set[str]:
    """Lists the files of the package that must be installed besides the core."""
    code = {path.relative_to(ROOT) for path in (ROOT / "gnnkit").rglob("*.*") if path.suffix in CODE}
    yaml = {Path("gnnkit") / path.relative_to(ROOT) for path in (ROOT / "conf").rglob("*.yaml")}
    return {path.as_posix() for path in code | yaml | {Path("gnnkit/dataset/pystdlib.npz")}}


def test_wheels_hold_code_configuration_stubs_and_native_module(wheel_folder: Path) -> None:
    wheels = list(wheel_folder.glob("gnnkit-*.whl"))
    assert wheels
    for wheel in wheels:
        archive = zipfile.ZipFile(wheel)
        names = set(archive.namelist())
        assert expected() | {"gnnkit/py.typed", "gnnkit/_core.pyi"} <= names
        (native,) = (name for name in names if name.startswith("gnnkit/_core.") and name.endswith((".so", ".pyd")))
        assert ".abi3." in native
        assert wheel.name.split("-")[2:4] == ["cp311", "abi3"]
        assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"gnnkit"}
        if "linux" in wheel.name:
            machine = int.from_bytes(archive.read(native)[18:20], "little")  # of the ELF header
            assert MACHINES[machine] in wheel.name
        assert wheel.stat().st_size < MAX_MIB * 2**20


@pytest.mark.skipif("GNNKIT_WHEELS" not in os.environ, reason=".ci/wheels builds for both machines")
def test_there_is_a_wheel_for_both_machines_on_an_old_system(wheel_folder: Path) -> None:
    names = [wheel.name for wheel in wheel_folder.glob("gnnkit-*.whl")]
    assert {machine for name in names for machine in MACHINES.values() if machine in name} == set(MACHINES.values())
    assert all("manylinux" in name for name in names)


def test_the_sdist_holds_code_configuration_and_rust(wheel_folder: Path) -> None:
    (sdist,) = wheel_folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    rust = {path.relative_to(ROOT).as_posix() for path in (ROOT / "rust").glob("*/src/**/*.rs")}
    assert expected() | rust | {"Cargo.lock", "pyproject.toml", "LICENSE", "packaging/gnnkit_build.py"} <= names


@pytest.mark.parametrize("hook", ["get_requires_for_build_wheel", "build_editable"])
def test_a_build_without_rust_ends_in_one_line(hook: str) -> None:
    command = [sys.executable, "-c", f"import gnnkit_build; print(gnnkit_build.{hook})"]
    environment = {"PYTHONPATH": str(ROOT / "packaging"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("gnnkit: a build from source needs Rust")
    assert done.stderr.count("\n") == 1
    actual = subprocess.run(command, check=False, env={**environment, "PATH": os.environ["PATH"]})
    assert actual.returncode == 0


def test_a_copy_of_the_sources_without_the_link_to_conf_ends_in_one_line(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "packaging", tmp_path / "packaging")
    shutil.copytree(ROOT / "gnnkit", tmp_path / "gnnkit", ignore=lambda *_: {"conf", "__pycache__"})
    for command in (["-c", "import gnnkit_build; gnnkit_build.build_wheel"], ["-m", "gnnkit", "strategy=auto"]):
        environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{tmp_path / 'packaging'}"}
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, env=environment, cwd=tmp_path, check=False
        )
        assert done.returncode in (1, 2)
        assert done.stderr.count("\n") == 1
        assert "ln -s ../conf" in done.stderr


def test_the_main_job_runs_from_an_empty_environment(wheel_folder: Path, uv: str, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    python = environment / "bin" / "python"
    pinned = subprocess.run(
        [uv, "pip", "freeze", "--python", sys.executable], check=True, capture_output=True, text=True
    )
    (tmp_path / "pinned.txt").write_text("\n".join(line for line in pinned.stdout.splitlines() if "==" in line))
    install = ["pip", "install", "--quiet", "--python", str(python), "--constraints", str(tmp_path / "pinned.txt")]
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(environment)], check=True)
    (wheel,) = (wheel for wheel in wheel_folder.glob("*.whl") if platform.machine() in wheel.name)
    without_rust = {**os.environ, "PATH": "/usr/bin:/bin"}
    assert shutil.which("cargo", path=without_rust["PATH"]) is None
    wheels = {
        name: next(wheel_folder.glob(f"{name.replace('-', '_')}-*.whl"), ROOT / f"plugins/{name}") for name in REQUIRED
    }
    subprocess.run([uv, *install, str(wheel), *map(str, wheels.values())], check=True, env=without_rust)

    command = [python, "-m", "gnnkit", "+strategy=vertex_centric", "partition=2d", "workers=2", "trainer.max_epochs=2"]
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (result,) = tmp_path.glob("outputs/*/*/result.json")
    assert json.loads(result.read_text())["epochs"] == 2
    assert result.with_name("report.html").exists()
    place = subprocess.check_output([python, "-c", "import gnnkit; print(gnnkit.__file__)"], cwd=tmp_path, env=clean)
    assert Path(place.decode().strip()).is_relative_to(environment)
