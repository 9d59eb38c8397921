"""Runs jobs through submitit: on this machine, or as jobs of SLURM.

submitit hands a function to another process as a pickle of its own. The function is
submitit's `CommandFunction` with a command line, so nothing of gnnkit is pickled.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gnnkit.errors import UserError
from gnnkit.jobs.sweep.job import SweepJob
from gnnkit.ranges import MAX_COUNT, real, whole

POLL = 0.5  # seconds between two looks
_COUNTS = ("timeout_min", "cpus_per_task", "gpus_per_node", "array_parallelism")


class Cluster:
    """The jobs of a sweep, each as a command line."""

    def __init__(self, name: str, keys: Mapping[str, Any], command: Callable[[SweepJob], list[str]]) -> None:
        """Checks the keys.

        Args:
            name: local or slurm.
            keys: The keys under `hydra.launcher`.
            command: Returns the arguments of `gnnkit` for a job.
        """
        try:
            import submitit
        except ImportError as error:
            raise UserError(
                f"hydra/launcher=submitit_{name} needs the package submitit: pip install 'gnnkit[submitit]'"
            ) from error
        if name == "slurm" and submitit.SlurmExecutor.affinity() < 0:
            raise UserError("hydra/launcher=submitit_slurm needs SLURM: srun is not found on this machine")
        self._name, self._command = name, command
        self._keys = {key: _checked(f"hydra.launcher.{key}", value) for key, value in keys.items() if value is not None}

    def __call__(self, jobs: Sequence[SweepJob]) -> Iterator[tuple[SweepJob, int]]:
        running = self._submit(jobs)
        try:
            while running:
                for job, submitted in list(running):
                    if submitted.done():
                        running.remove((job, submitted))
                        yield job, _exit_code(job, submitted)
                time.sleep(POLL)
        finally:
            for _, submitted in running:
                with contextlib.suppress(Exception):  # has just ended
                    submitted.cancel()

    def _submit(self, jobs: Sequence[SweepJob]) -> list[tuple[SweepJob, Any]]:
        import submitit
        from submitit.helpers import CommandFunction

        folder = jobs[0].folder.parent / ".submitit"
        executor: Any = submitit.AutoExecutor(folder=folder, cluster=self._name)
        executor.update_parameters(name="gnnkit", **_spelt(self._keys))
        commands = [[sys.executable, "-m", "gnnkit", *self._command(job)] for job in jobs]
        with executor.batch():
            submitted = [executor.submit(CommandFunction(command, cwd=Path.cwd())) for command in commands]
        return list(zip(jobs, submitted, strict=True))


def _checked(key: str, value: Any) -> Any:
    name = key.rpartition(".")[2]
    if name in _COUNTS:
        return whole(key, value, 1, MAX_COUNT)
    if name == "mem_gb":
        return real(key, value, above=0)
    if not isinstance(value, str | int):
        raise UserError(f"{key}={value} must be a name")
    return str(value)


def _spelt(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keys as submitit spells these."""
    general = ("timeout_min", "cpus_per_task", "gpus_per_node", "mem_gb")
    return {name if name in general else f"slurm_{name}": value for name, value in keys.items()}


def _exit_code(job: SweepJob, submitted: Any) -> int:
    """Keeps what the job has printed, and returns 0 or 1."""
    failed = submitted.exception() is not None
    parts = [submitted.stdout() or "", submitted.stderr() or ""]
    job.log.parent.mkdir(parents=True, exist_ok=True)
    job.log.write_text(os.linesep.join(filter(None, parts)), encoding="utf-8")
    return int(failed)
