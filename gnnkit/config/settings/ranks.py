"""Resolves every `auto` in the numbers of ranks and threads."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnkit import plugins
from gnnkit.config.settings.choice import Choice, choice_of
from gnnkit.config.settings.fields import AUTO
from gnnkit.errors import UserError
from gnnkit.launch import environment
from gnnkit.utils.documents import Json
from gnnkit.utils.ranges import MAX_COUNT, MAX_THREADS, num_cores, shown, switch, whole

if TYPE_CHECKING:
    from gnnkit.launch.environment import StartedRank

DEFAULT_WORKERS = 4
MAX_WORKERS = 2**16


@dataclass(frozen=True, slots=True)
class AutoWorkers:
    """The candidates for workers=auto."""

    counts: tuple[int, ...]  # numbers of workers, ascending
    usual: int  # default number of workers, used without a prediction
    threads: int | str  # as configured
    comm: str  # as configured


def replace_auto(
    config: Json, launcher: Choice, started_rank: StartedRank | None
) -> tuple[tuple[str, ...], AutoWorkers | None]:
    """Replaces each `auto`, and workers=auto provisionally by the fewest workers.

    Returns notes for the user, one line each, and the candidates for workers=auto.
    """
    notes, auto = [], None
    servers = servers_of(plugins.arguments_of("sync", config["sync"]))
    if config["parts"] is not None:
        config["workers"] = _processes(config, started_rank, servers)
    elif started_rank is not None:
        config["workers"] = _started_workers(config["workers"], started_rank.world_size, servers)
    elif config["workers"] is None:
        config["workers"] = _default_workers(servers)
        if num_gpus() == 1 and config["comm"].get("name") == "auto":
            notes.append(f"{DEFAULT_WORKERS} workers on CPUs, one GPU stays idle: use workers=1 or workers=auto")
    elif config["workers"] == "auto":
        auto = _auto_workers(config, servers)
        config["workers"] = auto.counts[0]
    share_machine(config, launcher, started_rank)
    if config["trainer"]["progress_bar"] == "auto":
        config["trainer"]["progress_bar"] = in_notebook() or (bool(sys.stderr) and sys.stderr.isatty())
    switch("trainer.progress_bar", config["trainer"]["progress_bar"], what="auto, true or false")
    if config["trainer"]["check_val_every_n_epoch"] == "auto":
        epochs = whole("trainer.max_epochs", config["trainer"]["max_epochs"], 1, MAX_COUNT)
        config["trainer"]["check_val_every_n_epoch"] = min(max(epochs // 10, 1), 10)
    return tuple(notes), auto


def share_machine(config: Json, launcher: Choice, started_rank: StartedRank | None) -> None:
    """Replaces `auto` for threads and communicator, given the number of workers."""
    gpus, servers = num_gpus(), servers_of(plugins.arguments_of("sync", config["sync"]))
    num_local_ranks = _ranks_here(num_ranks(config) + servers, started_rank)
    if config["threads"] == "auto":
        alone = plugins.load("job", config["job"]).one_worker
        config["threads"] = 1 if alone else max(num_cores() // num_local_ranks, 1)  # threads slow small tensors down
    if config["comm"].get("name") == "auto":
        usual = None if launcher.name == AUTO else launcher.load().comm
        several = None if config["parts"] is None else "threads"
        one_each = gpus >= num_local_ranks or (started_rank is not None and gpus > 0 and environment.has_own_gpus())
        config["comm"]["name"] = several or usual or ("nccl" if one_each else "gloo")


def _default_workers(servers: int) -> int:
    gpus = num_gpus()
    return max(gpus - servers, 1) if gpus > 1 else DEFAULT_WORKERS


def _auto_workers(config: Mapping[str, Any], servers: int) -> AutoWorkers:
    """Lists the candidates for workers=auto: powers of two up to the GPUs or cores.

    Raises `UserError` if the job does not train, or if the grid has a fixed size.
    """
    job, grid = plugins.load("job", config["job"]), config["partition"]["grid"]
    if job.one_run and not job.trains:
        raise UserError(f"workers=auto requires a job that trains: set a number for job={job.name}, such as workers=4")
    if isinstance(grid, list):
        raise UserError(
            f"workers=auto: partition.grid={shown(grid)} fixes the number of workers: set workers to this number"
        )
    threads, comm = config["threads"], config["comm"].get("name")
    gpus = num_gpus()
    if gpus and comm != "auto" and choice_of("comm", config).load().device_type != "cuda":
        gpus = 0
    cores = num_cores() // (1 if threads == "auto" else count_of("threads", threads, MAX_THREADS))
    max_workers = max(gpus - servers if gpus else cores, 1)
    counts = {2**power for power in range(max_workers.bit_length())} | {max_workers}
    return AutoWorkers(tuple(sorted(counts)), _default_workers(servers), threads, comm)


def _ranks_here(ranks: int, started_rank: StartedRank | None) -> int:
    """Returns this host's number of ranks. All processes have the same number."""
    return ranks if started_rank is None else -(-ranks // started_rank.world_size) * started_rank.local_world_size


def servers_of(arguments: Mapping[str, object]) -> int:
    """Returns `sync.servers`, or 0 if the synchronisation has no such key."""
    return whole("sync.servers", arguments.get("servers", 0), 0, MAX_WORKERS)


def num_ranks(config: Mapping[str, object]) -> int:
    """Returns the number of training ranks: `parts` if set, otherwise `workers`."""
    if config["parts"] is None:
        return whole("workers", config["workers"], 1, MAX_WORKERS, what="null, auto or a whole number")
    return whole("parts", config["parts"], 1, MAX_WORKERS, what="null or a whole number")


def _processes(config: Mapping[str, object], started_rank: StartedRank | None, servers: int) -> int:
    """Returns the number of processes, each of which may run several ranks."""
    ranks = num_ranks(config) + servers
    processes = "auto" if config["workers"] is None else config["workers"]
    if started_rank is not None and processes not in ("auto", started_rank.world_size):
        raise UserError(f"workers={shown(processes)} but {started_rank.world_size} processes were started")
    if processes == "auto":
        processes = min(ranks, num_cores()) if started_rank is None else started_rank.world_size
    return whole("workers", processes, 1, ranks, what="auto or a whole number, of processes that hold parts,")


def _started_workers(workers: object, num_started: int, servers: int) -> int:
    """Returns the number of workers among the started ranks.

    Raises `UserError` if `workers` is set to another number.
    """
    serving = f", of which sync.servers={servers} serve" if servers else ""
    if num_started <= servers or workers not in (None, "auto", num_started - servers):
        text = "null" if workers is None else shown(workers)
        raise UserError(f"workers={text} but {num_started} ranks were started{serving}")
    return num_started - servers


def count_of(key: str, value: object, high: int) -> int:
    """Reads a positive integer. The message mentions `auto` as an alternative."""
    return whole(key, value, 1, high, what="auto or a whole number")


def num_gpus() -> int:
    """Counts the GPUs available to torch, which is only imported if a driver exists."""
    if not any(Path(driver).exists() for driver in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")):
        return 0
    import torch

    return torch.cuda.device_count()


def in_notebook() -> bool:
    """Returns whether this process's output appears in a notebook."""
    return type(sys.stderr).__module__.startswith("ipykernel.")


def in_ipython() -> bool:
    """Returns whether this process runs in IPython or a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    return shell() is not None
