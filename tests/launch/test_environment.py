"""Environments of launchers that start the ranks themselves."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest

from gnnkit.config import compose
from gnnkit.config.settings import settle
from gnnkit.errors import UserError
from gnnkit.launch.environment import StartedRank, check_tasks, first_host, started_rank, tasks_per_node
from gnnkit.launch.launcher.builtin import Outside

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "host0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
}
SBATCH = {  # a batch script without srun
    "SLURM_JOB_ID": "4711",
    "SLURM_NTASKS": "8",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_JOB_NODELIST": "gpu[08-10]",
    "SLURM_NODELIST": "gpu[08-10]",
}
SRUN = SBATCH | {
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_TASKS_PER_NODE": "3(x2),2",
    "SLURM_STEP_NODELIST": "gpu[09-10],big1",
    "SLURM_PROCID": "7",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
}
ONE_NODE = SRUN | {"SLURM_STEP_TASKS_PER_NODE": "8", "SLURM_LOCALID": "7", "SLURM_NODEID": "0"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "prterun-host-77@1",
}


def place(started: StartedRank | None) -> tuple[int, int, int, int] | None:
    return started and (started.rank, started.world_size, started.local_rank, started.local_world_size)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        (TORCHRUN, (5, 8, 1, 4)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8, 3, 8)),
        (SBATCH, None),
        (SRUN, (7, 8, 1, 2)),
        (ONE_NODE, (7, 8, 7, 8)),
        (SRUN | {"SLURM_STEP_NUM_TASKS": "1"}, None),
        (SRUN | TORCHRUN, (5, 8, 1, 4)),
        (OPEN_MPI, (3, 4, 3, 4)),
        (OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "1"}, None),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}, (1, 2, 0, 1)),
        (SRUN | OPEN_MPI, (3, 4, 3, 4)),
    ],
)
def test_a_launchers_rank_is_recognised(environment: dict[str, str], expected: Any) -> None:
    assert place(started_rank(environment)) == expected


def test_a_step_without_a_count_of_its_own_has_the_tasks_of_the_job() -> None:
    environment = {key: value for key, value in SRUN.items() if key != "SLURM_STEP_NUM_TASKS"}
    assert place(started_rank(environment)) == (7, 8, 1, 2)


def test_a_step_meets_at_its_first_host_and_on_a_port_of_its_own() -> None:
    place_in_run, second = started_rank(SRUN), started_rank(SRUN | {"SLURM_STEP_ID": "3"})
    assert place_in_run is not None
    assert second is not None
    assert place_in_run.variables()["MASTER_ADDR"] == "gpu09"
    assert 12000 <= int(place_in_run.variables()["MASTER_PORT"]) < 32000
    assert place_in_run.master_port != second.master_port
    assert all(
        place_in_run.master_port == started_rank(SRUN | {"SLURM_PROCID": str(rank)}).master_port for rank in range(8)
    )  # type: ignore[union-attr]
    assert "GNNKIT_LOCAL" not in place_in_run.variables()


def test_a_step_on_one_host_stays_on_loopback() -> None:
    place_in_run = started_rank(ONE_NODE)
    assert place_in_run is not None
    variables = place_in_run.variables()
    assert variables["MASTER_ADDR"] == "127.0.0.1"
    assert variables["GNNKIT_LOCAL"] == "1"
    assert variables["GLOO_SOCKET_IFNAME"] in ("lo", "lo0")


def test_a_meeting_point_in_the_environment_is_taken() -> None:
    place_in_run = started_rank(SRUN | {"MASTER_ADDR": "head", "MASTER_PORT": "1234"})
    assert place_in_run is not None
    assert (place_in_run.master_addr, place_in_run.master_port) == ("head", 1234)


def test_an_unknown_meeting_point_is_asked_for() -> None:
    place_in_run = started_rank({"RANK": "0", "WORLD_SIZE": "2"})
    assert place_in_run is not None
    with pytest.raises(UserError, match=r"^MASTER_ADDR and MASTER_PORT are not set"):
        place_in_run.variables()


def test_only_torchrun_holds_the_meeting_point_itself() -> None:
    local = TORCHRUN | {"MASTER_ADDR": "127.0.0.1", "LOCAL_RANK": "5", "LOCAL_WORLD_SIZE": "8"}
    by_hand = {key: value for key, value in local.items() if key != "TORCHELASTIC_RUN_ID"}
    assert [started_rank(each).on_loopback for each in (local, by_hand)] == [False, True]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"SLURM_PROCID": "x"}, "SLURM_PROCID=x must be a whole number"),
        ({"SLURM_PROCID": "8"}, "rank 8 of 8"),
        ({"SLURM_LOCALID": "2"}, "2 of 2"),
        ({"SLURM_NODEID": "3"}, "SLURM_NODEID=3: SLURM_STEP_TASKS_PER_NODE has 3 nodes"),
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x"}, r"SLURM_STEP_TASKS_PER_NODE=4\(x must be counts"),
        ({"SLURM_STEP_NODELIST": "gpu[1-"}, r"SLURM_STEP_NODELIST=gpu\[1-: expected a list of hosts"),
        ({"SLURM_STEP_NODELIST": "gpu[a-b]"}, r"SLURM_STEP_NODELIST=gpu\[a-b\]: expected a list of hosts"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT=http must be a whole number"),
    ],
)
def test_what_a_launcher_cannot_mean_is_refused(changed: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        started_rank(SRUN | changed)


PYTORCH_JOB = {  # a pod of Kubeflow's PyTorchJob
    "RANK": "1",
    "WORLD_SIZE": "2",
    "MASTER_ADDR": "cites-master-0",
    "MASTER_PORT": "23456",
    "PET_NNODES": "2",
    "PET_NODE_RANK": "1",
    "PET_NPROC_PER_NODE": "auto",
}
TRAIN_JOB = {name: value for name, value in PYTORCH_JOB.items() if name.startswith("PET_")}  # Kubeflow's Trainer


def test_the_rank_of_a_pod_is_the_only_one_there() -> None:
    assert place(started_rank(PYTORCH_JOB)) == (1, 2, 0, 1)
    assert not started_rank(PYTORCH_JOB | {"MASTER_ADDR": "localhost"}).on_loopback  # type: ignore[union-attr]
    assert place(started_rank(PYTORCH_JOB | TORCHRUN)) == (5, 8, 1, 4)
    with pytest.raises(UserError, match=r"^PET_NPROC_PER_NODE=2 is set, but no rank: start gnnkit with torchrun"):
        started_rank(PYTORCH_JOB | {"PET_NPROC_PER_NODE": "2"})


@functools.cache
def composed(*keys: str) -> dict[str, Any]:
    return compose(["strategy=vertex_centric", "dataset=synthetic", "workers=2", *keys])


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"RANK": "0"}, "RANK=0 is set, but no rank: set RANK and WORLD_SIZE"),
        ({"RANK": "1"}, "RANK=1 is set"),
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE=4 is set, but no rank: set RANK"),
        (SBATCH, "SLURM_NTASKS=8 is set, but no rank: start gnnkit with srun, or choose a launcher"),
        ({"SLURM_NNODES": "2"}, "SLURM_NNODES=2 is set"),
        (
            {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"},
            "OMPI_COMM_WORLD_SIZE=2 is set, but no rank: OMPI",
        ),
        ({"PMI_SIZE": "2", "PMI_RANK": "0"}, "PMI_SIZE=2 is set, but no rank: MPI_LOCALRANKID or another"),
        (TRAIN_JOB, "PET_NNODES=2 is set, but no rank: start gnnkit with torchrun"),
        (
            {"RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"},
            "RAY_JOB_CONFIG_JSON_ENV_VAR={} is set, but no rank: this is a Ray job",
        ),
    ],
)
def test_tasks_without_ranks_are_refused_unless_a_launcher_is_named(
    environment: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert started_rank() is None
    for ask in (Outside().started, lambda: Outside().check("ranks")):
        with pytest.raises(UserError) as error:
            ask()
        assert str(error.value).startswith(told)
    with pytest.raises(UserError, match=re.escape(told)):
        settle(composed())
    assert settle(composed("launcher=processes")).started is None


@pytest.mark.parametrize(
    "environment",
    [
        {"WORLD_SIZE": "1"},
        {"SLURM_NTASKS": "1", "SLURM_NNODES": "1"},
        SRUN | {"SLURM_STEP_NUM_TASKS": "1"},
        {"OMPI_COMM_WORLD_SIZE": "1"},
        {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "1"},
        {"JOB_COMPLETION_INDEX": "3"},
    ],
)
def test_a_task_alone_is_no_error(environment: dict[str, str]) -> None:
    check_tasks(environment)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("solo", "solo"),
        ("node[01-03,7],other", "node01"),
        ("a-1,b[9-11]-ib", "a-1"),
        ("r[1-2]n[08-09]", "r1n08"),
        ("n[3],n[1]", "n3"),
    ],
)
def test_the_first_host_of_a_node_list_is_found(text: str, expected: str) -> None:
    assert first_host(text) == expected


def test_counts_of_tasks_are_expanded() -> None:
    assert tasks_per_node("4(x2),3") == [4, 4, 3]
