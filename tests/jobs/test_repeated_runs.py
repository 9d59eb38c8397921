"""A process that somebody else has started takes part in any number of runs."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import torch.distributed as dist

import gnnkit
from gnnkit.errors import UserError
from tests.cases import few
from tests.forked import forked
from tests.graphs import random_graph
from tests.launch.outside import FOREIGN
from tests.ports import free_port
from tests.runs import BARE
from tests.waiting import GUARD

pytestmark = pytest.mark.slow
RANKS = range(2)
Environment = Callable[[int], Mapping[str, object]]  # variables of a rank


def of_torchrun(rank: int) -> Mapping[str, object]:
    variables = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True", "LOCAL_WORLD_SIZE": 2}
    return {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, **variables}


def by_hand(rank: int) -> Mapping[str, object]:
    return {"RANK": rank, "WORLD_SIZE": 2}


def of_slurm(rank: int) -> Mapping[str, object]:
    return {"SLURM_STEP_ID": 0, "SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_NTASKS": 2}


def of_mpi(rank: int) -> Mapping[str, object]:
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    return {f"OMPI_COMM_WORLD_{name}": rank if "RANK" in name else 2 for name in names}


class Fails(L.Callback):
    """Fails on rank 1 alone, while rank 0 waits for its rows."""

    def on_train_start(self, trainer: L.Trainer, module: Any) -> None:
        if trainer.global_rank == 1:
            raise ZeroDivisionError("of rank 1")


def train(folder: Path, timeout: float = GUARD, **keys: Any) -> None:
    given: dict[str, Any] = {"comm": {"name": "gloo", "timeout": timeout}, **BARE} | keys
    trainer = {"max_epochs": 1, "checkpoint": False}
    assert gnnkit.train(random_graph(), strategy="vertex_centric", folder=folder, trainer=trainer, **given) is not None


def add_up() -> None:
    """Uses torch alone, with a process group of the program."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=GUARD))
    total = torch.ones(1)
    dist.all_reduce(total)
    dist.destroy_process_group()
    assert total.item() == 2


def on_both(tmp_path: Path, environment: Environment, work: Callable[[int], None]) -> None:
    """Does the work in two processes with the variables of two ranks."""
    with contextlib.ExitStack() as stack:
        port = free_port()
        if environment is of_torchrun:  # which holds the store itself
            agent = dist.TCPStore("127.0.0.1", port, 2, True, timedelta(seconds=GUARD), wait_for_workers=False)
            stack.callback(lambda: agent)

        def begin(rank: int) -> None:
            for name in [name for name in os.environ if name.startswith((*FOREIGN, "OMPI_", "PMI"))]:
                del os.environ[name]
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
            os.environ.update({name: str(value) for name, value in {**place, **environment(rank)}.items()})
            work(rank)

        for rank in RANKS:
            (tmp_path / f"rank{rank}").mkdir()
        programs = [
            stack.enter_context(forked(functools.partial(begin, rank), tmp_path / f"rank{rank}")) for rank in RANKS
        ]
        for program in programs:
            code, errors = program.ended(3 * GUARD)
            assert code == 0, errors


@pytest.mark.exhaustive
@few(
    "environment,comm",
    [(of_torchrun, "gloo"), (by_hand, "threads"), (of_slurm, "gloo"), (of_mpi, "gloo")],
    default=((of_torchrun, "gloo"),),
)
def test_ranks_train_again_and_again(tmp_path: Path, environment: Environment, comm: str) -> None:
    keys = {} if comm == "gloo" else {"comm": {"name": "threads", "timeout": GUARD}, "parts": 4}

    def work(rank: int) -> None:
        for number in range(2):
            train(tmp_path / f"run{number}", **keys)

    on_both(tmp_path, environment, work)
    weights = {(tmp_path / f"run{number}/model.safetensors").read_bytes() for number in range(2)}
    assert len(weights) == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("environment", [of_torchrun, by_hand])
def test_a_run_goes_on_after_one_that_failed_on_one_rank(tmp_path: Path, environment: Environment) -> None:
    """In the middle of the run, or before the ranks met, on either rank."""

    def work(rank: int) -> None:
        with pytest.raises((ZeroDivisionError, RuntimeError)):
            train(tmp_path / "fails", callbacks=[Fails()])
        train(tmp_path / "again")
        for alone in RANKS:
            keys = {"exchange": {"name": "pipelined", "staleness": -1}} if rank == alone else {}
            with pytest.raises(UserError, match="exchange.staleness" if keys else "not all of 2 ranks met"):
                train(tmp_path / f"refused{alone}", timeout=8, **keys)
            train(tmp_path / f"after{alone}")

    on_both(tmp_path, environment, work)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("environment", "first"), [(of_torchrun, add_up), (by_hand, None)])
def test_runs_alternate_with_process_groups_of_the_program(
    tmp_path: Path, environment: Environment, first: Callable[[], None] | None
) -> None:
    def work(rank: int) -> None:
        if first is not None:
            first()
        train(tmp_path / "first")
        if first is None:
            add_up()
        train(tmp_path / "second")

    on_both(tmp_path, environment, work)


@pytest.mark.exhaustive
@few("environment", [of_torchrun, by_hand], default=[by_hand])
def test_runs_within_a_process_group_of_the_program_leave_it_as_it_was(
    tmp_path: Path, environment: Environment
) -> None:
    def work(rank: int) -> None:
        dist.init_process_group("gloo", timeout=timedelta(seconds=GUARD))
        train(tmp_path / "first")
        with pytest.raises((ZeroDivisionError, RuntimeError)):
            train(tmp_path / "fails", callbacks=[Fails()])
        train(tmp_path / "second")
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 2
        dist.destroy_process_group()
        train(tmp_path / "third")

    on_both(tmp_path, environment, work)
