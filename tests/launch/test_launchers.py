"""Which launcher starts what, and what is refused."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gnnkit_sweep.sweep import _Sweep

from gnnkit import config
from gnnkit.__main__ import main
from gnnkit.comm.threads import Threads
from gnnkit.config.settings import Settings, settle
from gnnkit.errors import UserError
from gnnkit.launch.launcher import Launcher, Ranks
from tests.runs import within_process

pytestmark = pytest.mark.usefixtures("within")
PLAIN = ["strategy=vertex_centric", "dataset=synthetic", "workers=2"]
STARTED = {"RANK": "1", "WORLD_SIZE": "2"}


@pytest.fixture(scope="module")
def within() -> Iterator[None]:
    with within_process():
        yield


@functools.cache
def composed(*keys: str) -> dict[str, object]:
    return config.compose([*PLAIN, *keys])


def settle_keys(*keys: str) -> Settings:
    return settle(composed(*keys))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "environment", "expected"),
    [
        ([], {}, "Processes"),
        (["comm=threads"], {}, "Threads"),
        (["launcher=threads"], {}, "Threads"),
        ([], STARTED, "Outside"),
        (["launcher=outside"], STARTED, "Outside"),
        (["launcher.ask=[processes,outside]"], {}, "Processes"),
    ],
)
def test_ranks_get_the_launcher_that_is_named_or_says_so(
    keys: list[str], environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = settle_keys(*keys)
    assert type(settings.create_launcher()).__name__ == expected
    assert (settings.started is not None) == (expected == "Outside")
    if environment:
        assert type(settings.create_launcher(additional=True)).__name__ == "Processes", (
            "a measurement has ranks of its own"
        )


@pytest.mark.slow
def test_ranks_that_are_threads_get_a_communicator_of_threads() -> None:
    assert settle_keys("launcher=threads").comm.name == "threads"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "environment", "told"),
    [
        (["launcher=outside"], {}, "launcher=outside finds no rank in the environment"),
        (["launcher=processes", "launcher.n_jobs=2"], {}, "launcher.n_jobs=2 applies to sweeps only: add -m"),
        (
            ["launcher=processes"],
            STARTED,
            "launcher=processes: this process is rank 1 of 2, which were started externally",
        ),
        (
            ["launcher.ask=[processes]"],
            STARTED,
            "launcher=auto: this process is rank 1 of 2, which were started externally",
        ),
        (["launcher=processes", "comm=threads"], {}, "comm=threads runs all ranks in one process, but launcher=proc"),
        (["launcher=threads", "comm=gloo"], {}, "launcher=threads runs all ranks in one process, but comm=gloo runs"),
        (["launcher.ask=[outside]"], {}, "launcher.ask=['outside']: none of these starts the ranks of comm=gloo"),
        (
            ["launcher.ask=[mars]"],
            {},
            "launcher.ask=['mars'] must be a list of launchers, there are: inline, outside, pr",
        ),
        (["launcher=mars"], {}, "launcher=mars is not known"),
    ],
)
def test_a_launcher_that_cannot_start_the_ranks_is_refused(
    keys: list[str], environment: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as error:
        settle_keys(*keys).create_launcher()
    assert str(error.value).startswith(told)


@pytest.mark.slow
@pytest.mark.parametrize("job", ["train", "partition"])
def test_a_launcher_of_jobs_needs_a_sweep(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("submitit")
    assert main([*PLAIN, f"job={job}", "launcher=submitit"]) == 2
    message = "launcher=submitit starts jobs, not ranks: add -m to run a sweep, or leave the launcher out"
    assert message in capsys.readouterr().err


def make_sweep(keys: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Launcher, list[str]]:
    """Returns the launcher of a sweep, and what the jobs are told of launchers."""
    monkeypatch.chdir(tmp_path)
    overrides, hydra = config.split([*PLAIN, "job=partition", "seed=1,2", *keys])
    actual = _Sweep(overrides, [], hydra, config.compose)
    return actual.launcher, [text for text in actual.overrides if text.startswith("launcher")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "expected", "left"),
    [
        ([], "Processes", []),
        (["launcher=processes", "launcher.n_jobs=3"], "Processes", []),
        (["launcher=submitit", "launcher.cluster=local"], "Submitit", []),
        (["launcher=threads"], "Processes", ["launcher=threads"]),
        (["launcher=threads,processes"], "Processes", ["launcher=threads,processes"]),
        (["hydra/launcher=submitit_local", "launcher=processes"], "Submitit", ["launcher=processes"]),
    ],
)
def test_a_launcher_is_of_the_jobs_of_a_sweep_where_it_starts_jobs(
    keys: list[str], expected: str, left: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit")
    launcher, message = make_sweep(keys, tmp_path, monkeypatch)
    assert type(launcher).__name__ == expected
    assert message == left
    if "launcher.n_jobs=3" in keys:
        assert launcher.n_jobs == 3  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (["launcher=processes", "launcher.n_jobs=0"], "launcher.n_jobs=0 must be -1 or a whole number from 1"),
        (
            ["launcher=submitit", "launcher.cluster=local", "launcher.qos=x"],
            "launcher.qos=x applies to launcher.cluster=sl",
        ),
        (["hydra/launcher=submitit_slurm"], "hydra/launcher=submitit_slurm needs SLURM, but srun was not found"),
        (["launcher=outside"], "launcher=outside finds no rank in the environment"),
    ],
)
def test_a_launcher_that_cannot_start_the_jobs_is_refused(
    keys: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("submitit")
    with pytest.raises(UserError) as error:
        make_sweep(keys, tmp_path, monkeypatch)
    assert str(error.value).startswith(told)


def test_a_sweep_within_ranks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in STARTED.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="-m starts its own jobs: remove torchrun, srun"):
        make_sweep([], tmp_path, monkeypatch)


def test_keys_of_a_communicator_reach_ranks_that_are_threads() -> None:
    class Keyed(Threads):
        @classmethod
        def run(cls, function: Any, world_size: int, *, timeout: float, among: Any = None, delay: int = 0) -> list[Any]:
            return [delay] * world_size

    ranks = Ranks(lambda comm: comm.rank, 2, Keyed, 10.0, processes=1, keys={"delay": 3})
    assert ranks.run_several(0) == [3, 3]
