"""Fixtures and settings of all tests."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gnnkit_formats.npz import Npz
from hypothesis import find, settings
from hypothesis.strategies import integers

from gnnkit.graph import Graph
from gnnkit.launch.lean import leave_out_unused
from gnnkit.launch.signals import HANDLED

leave_out_unused()  # as the program does, before something imports Lightning
pytest_plugins = ["pytester", "tests.rules"]
# A shell that starts the tests in the background turns Ctrl-C off. Tests need Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Tests start many interpreters. Each would compile Lightning anew, for 10 seconds.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False  # rewriting all assertions anew is half of the collection's seconds
gc.disable()  # until all is imported, which stays: passes of the collector were a third of the collection's seconds
RUNS = {"jobs", "leader", "training"}  # folders with tests of whole runs
SOME_RUNS = {"nn", "partition", "strategy", "sync", "task", "witness"}  # folders where slow tests have such runs

settings.register_profile("gnnkit", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("gnnkit")


@atexit.register
def let_go() -> None:
    """Lets Python free Triton's objects when it ends, as Triton warns of any left.

    Without Triton, all objects are left to the system, which takes no time.
    """
    if "triton._C.libtriton" in sys.modules:
        gc.unfreeze()


Install = Callable[..., Path]


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """Lets hypothesis look for random numbers while there are few objects to search."""
    find(integers(), lambda _: True)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Imports the loggers and the training once, before whole runs fork.

    Otherwise every run imports these anew. Processes of pytest-xdist compute on one
    thread each, because they share the cores.
    """
    if hasattr(session.config, "workerinput"):
        import torch

        torch.set_num_threads(1)
    if any(item.path.parent.name in RUNS for item in session.items):
        import torch.utils.tensorboard

        import gnnkit.jobs.train  # noqa: F401
    find(integers(), lambda _: True)  # reads the modules that have come since, for the first test of hypothesis
    gc.freeze()  # passes over all modules and tests were a tenth of the seconds of all tests
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps what tests cache out of the user's home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache-home")))
        yield


@pytest.fixture(autouse=True)
def signals_stay() -> Iterator[None]:
    """Fails a test that leaves signals ignored or blocked. Programs inherit these."""

    def handled() -> list[object]:
        return [[signal.getsignal(number) for number in HANDLED], signal.pthread_sigmask(signal.SIG_BLOCK, ())]

    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # LLVM, of Triton, takes the signal
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
    before = handled()
    yield
    assert handled() == before


@pytest.fixture(autouse=True)
def slow_ones_within(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keeps whole runs cheap, as `conftest.py` of `RUNS` does for all tests."""
    if request.path.parent.name not in SOME_RUNS or request.node.get_closest_marker("slow") is None:
        yield
        return
    from tests.runs import within_process

    with within_process():
        yield


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real graphs: GNNKIT_TEST_DATA, else `shared/data` above."""
    parents = Path(__file__).resolve().parents
    candidates = (
        [Path(value)] if (value := os.environ.get("GNNKIT_TEST_DATA")) else [p / "shared/data" for p in parents]
    )
    for folder in candidates:
        if (folder / "cora.npz").is_file():
            return folder
    pytest.skip("needs real graphs: set GNNKIT_TEST_DATA to a folder with cora.npz")


@pytest.fixture(scope="session")
def planetoid(data_folder: Path) -> Callable[[str], Graph]:
    """Loads a real graph by name, with row-normalised features: `planetoid("cora")`."""
    return lambda name: Npz(root=str(data_folder / f"{name}.npz"), row_normalize=True).load()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a distribution of plugins, with entry points and files.

    For example `install("name", {"gnnkit.model": {"x": "module:Class"}}, files)`.
    """

    def install(name: str, points: dict[str, dict[str, str]], files: dict[str, str] | None = None) -> Path:
        site = tmp_path / f"site-{name}"
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        sections = (f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in of.items()) for group, of in points.items())
        (info / "entry_points.txt").write_text("\n".join(sections))
        for path, text in (files or {}).items():
            (site / path).parent.mkdir(parents=True, exist_ok=True)
            (site / path).write_text(text)
        monkeypatch.syspath_prepend(str(site))
        return site

    return install
