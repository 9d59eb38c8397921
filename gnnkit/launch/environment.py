"""Ranks started externally: by torchrun, SLURM or an MPI launcher."""

from __future__ import annotations

import os
import re
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from gnnkit.errors import UserError

LOOPBACK = "127.0.0.1"
LEAST_TOKEN = 16  # characters
_FIRST_PORT, _NUM_PORTS = 12000, 20000  # below Linux's ephemeral ports
_OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
_HYDRA = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")  # MPICH, Intel MPI


_num_calls = 0  # by `count_call`
_BY_HAND = "set RANK and WORLD_SIZE, both for each rank"
_TASKS = {  # scheduler variables with a number of tasks -> the command that makes them ranks
    "WORLD_SIZE": _BY_HAND,
    "RANK": _BY_HAND,
    "OMPI_COMM_WORLD_SIZE": f"OMPI_COMM_WORLD_LOCAL_RANK or another one is missing, {_BY_HAND}",
    "PMI_SIZE": f"MPI_LOCALRANKID or another one is missing, {_BY_HAND}",
    "SLURM_NTASKS": "start gnnkit with srun",
    "SLURM_NNODES": "start gnnkit with srun",
    "PET_NNODES": "start gnnkit with torchrun -m gnnkit, which reads the other variables",
    "PET_NPROC_PER_NODE": "start gnnkit with torchrun -m gnnkit, which reads the other variables",
    "RAY_JOB_CONFIG_JSON_ENV_VAR": "this is a Ray job: install gnnkit-ray and set launcher=ray",
}


@dataclass(frozen=True, slots=True)
class StartedRank:
    """This process as a rank of a run that was started externally."""

    rank: int
    world_size: int
    local_rank: int  # among this host's ranks
    local_world_size: int
    master_addr: str | None = None  # rank 0's host, or None if unknown
    master_port: int | None = None
    by_torchrun: bool = False  # torchrun is the parent, and hosts the rendezvous store
    store: str | None = None  # rendezvous file of ranks on this machine, or None if they meet at the port
    token: str | None = None  # the run's secret, or None for GNNKIT_TOKEN of the environment

    @property
    def on_loopback(self) -> bool:
        """Whether the rendezvous address is on loopback, for local ranks only."""
        is_local = self.local_world_size == self.world_size and self.master_addr in (LOOPBACK, "localhost")
        return is_local and not self.by_torchrun

    def variables(self) -> dict[str, str]:
        """Returns environment variables that describe this rank to torch and gnnkit.

        Raises `UserError` if the rendezvous address is unknown, or the token is too
        short.
        """
        token = os.environ.get("GNNKIT_TOKEN", "") if self.token is None else self.token
        if 0 < len(token) < LEAST_TOKEN:
            raise UserError(
                f"GNNKIT_TOKEN has {len(token)} characters, expected at least {LEAST_TOKEN}, which are hard to guess"
            )
        if self.master_addr is None or (self.master_port is None and self.store is None):
            raise UserError("MASTER_ADDR and MASTER_PORT are not set: set them to rank 0's host and a free port there")
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "MASTER_ADDR": self.master_addr,
            "MASTER_PORT": str(self.master_port or 0),
            "GNNKIT_STORE": self.store or "",
            "GNNKIT_TOKEN": token,
            "GNNKIT_CALL": str(_num_calls),
            **(local_only() if self.on_loopback else {}),
        }


def started_rank(environment: Mapping[str, str] = os.environ) -> StartedRank | None:
    """Returns the rank given by the environment, or None if gnnkit starts the ranks.

    Reads the variables of torchrun, then Open MPI or Hydra, then SLURM. MPI precedes
    SLURM, because `mpirun` in a SLURM job starts helper processes as a step. Returns
    None for a step or an MPI run with one task.

    Args:
        environment: Environment variables. Default: `os.environ`.
    """
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return _of_torchrun(environment)
    for names in (_OPEN_MPI, _HYDRA):
        if all(name in environment for name in names):
            return _of_mpi(environment, names)
    if "SLURM_STEP_ID" in environment and "SLURM_PROCID" in environment:
        return _of_slurm(environment)
    return None


def count_call() -> None:
    """Counts a job that all ranks run, for `StartedRank.variables`.

    Each process counts all its jobs, successful or not, so ranks agree on a job's
    number even after some of them rejected a job.
    """
    global _num_calls  # noqa: PLW0603 - one per process
    _num_calls += 1


def has_own_gpus(environment: Mapping[str, str] = os.environ) -> bool:
    """Returns whether SLURM gives each task exclusive GPUs.

    Args:
        environment: A task's environment variables. Default: `os.environ`.
    """
    per_task = environment.get("SLURM_GPUS_PER_TASK") or environment.get("SLURM_NTASKS_PER_GPU") == "1"
    return "SLURM_STEP_ID" in environment and bool(per_task)


def gpu_of(local_rank: int, visible: int) -> int:
    """Returns the index of a rank's GPU among those visible to its process.

    Args:
        local_rank: This rank among this host's ranks.
        visible: Number of GPUs visible to the process.
    """
    return 0 if visible == 1 else local_rank


def check_tasks(environment: Mapping[str, str] = os.environ) -> None:
    """Raises `UserError` for a scheduler's tasks that are not ranks.

    Each task would start its own run, or one task would run while the others idle.

    Args:
        environment: Environment variables, without a rank. Default: `os.environ`.
    """
    for name, remedy in _TASKS.items():
        is_step = name.startswith("SLURM_") and "SLURM_STEP_ID" in environment  # a step with one task
        alone = () if name == "RANK" else ("", "1")
        if name in environment and environment[name] not in alone and not is_step:
            raise UserError(
                f"{name}={environment[name]} is set, but no rank: {remedy}, or choose a launcher, such as "
                "launcher=processes for ranks on this machine only"
            )


def local_only() -> dict[str, str]:
    """Returns the variables that bind all of a rank's listeners to loopback."""
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    return {"GNNKIT_LOCAL": "1", "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", loopback)}


def first_host(text: str) -> str:
    """Returns the first host of a SLURM node list such as `node[01-03,7],other`.

    Raises `UserError` for invalid text.
    """
    match = re.fullmatch(r"((?:[^,\[\]]|\[\d[^\[\]]*\])+)(?:,.*)?", text)
    if match is None:
        raise UserError(f"SLURM_STEP_NODELIST={text}: expected a list of hosts")
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", match[1])


def tasks_per_node(text: str) -> list[int]:
    """Expands SLURM's tasks per node, such as `4(x2),3`.

    Raises `UserError` for invalid text.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise UserError(f"SLURM_STEP_TASKS_PER_NODE={text} must be counts such as 4(x2),3")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _of_torchrun(environment: Mapping[str, str]) -> StartedRank:
    rank, world_size = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
    by_torchrun = "TORCHELASTIC_RUN_ID" in environment
    if (of_pod := environment.get("PET_NPROC_PER_NODE")) and not by_torchrun:  # Kubeflow
        if of_pod.isdecimal():  # otherwise a word such as auto, for which ranks are pods
            check_tasks({"PET_NPROC_PER_NODE": of_pod})
        environment = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", **environment}
    local_rank = _number(environment, "LOCAL_RANK") if "LOCAL_RANK" in environment else rank
    local_size = _number(environment, "LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in environment else world_size
    return _make_rank(environment, rank, world_size, local_rank, local_size, by_torchrun=by_torchrun)


def _of_mpi(environment: Mapping[str, str], names: tuple[str, ...]) -> StartedRank | None:
    rank, world_size, local_rank, local_size = (_number(environment, name) for name in names)
    if world_size == 1:
        return None
    job = environment.get("PMIX_NAMESPACE") or environment.get("OMPI_MCA_ess_base_jobid")
    if job is None or local_size != world_size:
        return _make_rank(environment, rank, world_size, local_rank, local_size)
    return _make_rank(environment, rank, world_size, local_rank, local_size, host=LOOPBACK, job=job)


def _of_slurm(environment: Mapping[str, str]) -> StartedRank | None:
    size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"
    if size not in environment or (world_size := _number(environment, size)) == 1:
        return None
    rank, local_rank = _number(environment, "SLURM_PROCID"), _number(environment, "SLURM_LOCALID")
    counts = tasks_per_node(environment.get("SLURM_STEP_TASKS_PER_NODE") or str(world_size))
    node = _number(environment, "SLURM_NODEID") if len(counts) > 1 else 0
    if node >= len(counts):
        raise UserError(f"SLURM_NODEID={node}: SLURM_STEP_TASKS_PER_NODE has {len(counts)} nodes")
    node_list = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_NODELIST")
    host = LOOPBACK if len(counts) == 1 else first_host(node_list) if node_list else None
    job = f"{environment.get('SLURM_JOB_ID', '0')}.{environment['SLURM_STEP_ID']}"
    return _make_rank(environment, rank, world_size, local_rank, counts[node], host=host, job=job)


def _make_rank(
    environment: Mapping[str, str],
    rank: int,
    world_size: int,
    local_rank: int,
    local_world_size: int,
    *,
    host: str | None = None,
    job: str | None = None,
    by_torchrun: bool = False,
) -> StartedRank:
    """Creates the rank. Raises `UserError` for inconsistent numbers.

    Args:
        environment: Environment variables. MASTER_ADDR and MASTER_PORT override `host`
            and `job`.
        host: Rank 0's host. Default: unknown.
        job: Name of the run, which determines the port. Default: unknown.
    """
    if not 0 <= rank < world_size or not 0 <= local_rank < local_world_size <= world_size:
        raise UserError(
            f"the environment sets rank {rank} of {world_size}, on this host {local_rank} of {local_world_size}: "
            "each rank must be below the number of ranks"
        )
    of_job = None if job is None else _FIRST_PORT + zlib.crc32(job.encode()) % _NUM_PORTS  # the same on all hosts
    port = _number(environment, "MASTER_PORT") if "MASTER_PORT" in environment else of_job
    address = environment.get("MASTER_ADDR", host)
    return StartedRank(rank, world_size, local_rank, local_world_size, address, port or None, by_torchrun)


def _number(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except (KeyError, ValueError):
        raise UserError(f"the environment's {name}={environment.get(name)} must be a whole number") from None
