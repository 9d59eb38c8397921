"""Jobs submitted through submitit, on this machine or to SLURM.

submitit passes a function to another process as a pickle. The function is submitit's
own `CommandFunction` with a command line, so no gnnkit object is pickled.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, Literal

from gnnkit.errors import UserError
from gnnkit.launch.launcher import JOBS, Jobs, Launcher
from gnnkit.utils.ranges import MAX_COUNT, real, whole

POLL = 0.5  # seconds between checks
FOLDER = ".submitit"  # next to the logs, for submitit's files


class Submitit(Launcher):
    """Submits each job as a command line, to run on any machine of the cluster."""

    starts = (JOBS,)

    def __init__(
        self,
        cluster: Literal["slurm", "local"] | None = None,
        timeout_min: int = 60,
        cpus_per_task: int | None = None,
        gpus_per_node: int | None = None,
        mem_gb: float | None = None,
        partition: str | int | None = None,
        account: str | int | None = None,
        qos: str | int | None = None,
        array_parallelism: int | None = None,
    ) -> None:
        counts = {"timeout_min": timeout_min, "cpus_per_task": cpus_per_task, "gpus_per_node": gpus_per_node}
        for name, value in {**counts, "array_parallelism": array_parallelism}.items():
            if value is not None:
                whole(f"launcher.{name}", value, 1, MAX_COUNT)
        if mem_gb is not None:
            real("launcher.mem_gb", mem_gb, above=0)
        of_slurm = {"partition": partition, "account": account, "qos": qos, "array_parallelism": array_parallelism}
        self._cluster = _find_cluster(cluster)
        if self._cluster != "slurm" and (slurm_only := [name for name in of_slurm if of_slurm[name] is not None]):
            raise UserError(
                f"launcher.{slurm_only[0]}={of_slurm[slurm_only[0]]} applies to launcher.cluster=slurm only: remove it"
            )
        keys = {**counts, "mem_gb": mem_gb, **{f"slurm_{name}": value for name, value in of_slurm.items()}}
        self._keys = {name: value for name, value in keys.items() if value is not None}

    def jobs(self, jobs: Jobs) -> Generator[tuple[int, int]]:
        running = dict(enumerate(self._submit(jobs)))
        try:
            while running:
                for number, handle in list(running.items()):
                    if handle.done():
                        del running[number]
                        yield number, _exit_code(jobs.logs[number], handle)
                time.sleep(POLL)
        finally:
            for handle in running.values():
                with contextlib.suppress(Exception):  # the job may have just ended
                    handle.cancel()

    def _submit(self, jobs: Jobs) -> list[Any]:
        import submitit
        from submitit.helpers import CommandFunction

        executor: Any = submitit.AutoExecutor(folder=jobs.logs[0].parent / FOLDER, cluster=self._cluster)
        executor.update_parameters(name="gnnkit", **self._keys)
        commands = [[sys.executable, "-m", "gnnkit", *command] for command in jobs.commands]
        with executor.batch():
            return [executor.submit(CommandFunction(command, cwd=Path.cwd())) for command in commands]


def _find_cluster(cluster: str | None) -> str:
    """Returns slurm or local. Raises `UserError` if it is not installed."""
    try:
        import submitit
    except ImportError as error:
        raise UserError("launcher=submitit needs the package submitit: pip install 'gnnkit[submitit]'") from error
    has_slurm = submitit.SlurmExecutor.affinity() >= 0
    if cluster == "slurm" and not has_slurm:
        raise UserError("launcher=submitit needs SLURM, but srun was not found on this machine")
    return cluster or ("slurm" if has_slurm else "local")


def _exit_code(log: Path, handle: Any) -> int:
    """Saves the job's output, and returns 0 or 1."""
    has_failed = handle.exception() is not None
    parts = [handle.stdout() or "", handle.stderr() or ""]
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(os.linesep.join(filter(None, parts)), encoding="utf-8")
    return int(has_failed)
