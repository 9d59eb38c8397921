"""Ranks started by torchrun, a batch system or a user."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from gnnkit.errors import UserError
from gnnkit.launch import environment
from gnnkit.launch.allocator import keep_freed_memory
from gnnkit.launch.entry import die_with_parent
from gnnkit.launch.environment import StartedRank
from gnnkit.launch.launcher.base import Launcher, Ranks


class Outside(Launcher):
    """Reads this process's rank from the environment of torchrun, SLURM or MPI.

    A scheduler's tasks that are not ranks are an error.
    """

    def check(self, what: str) -> None:
        if self.started() is None:
            raise UserError(
                "launcher=outside finds no rank in the environment: start gnnkit with torchrun, srun or mpirun, set "
                "RANK and WORLD_SIZE, or remove launcher=outside"
            )

    def suits(self, *, in_one_process: bool) -> bool:
        return self.started() is not None

    def started(self) -> StartedRank | None:
        started = environment.started_rank()
        if started is None:
            environment.check_tasks()
        return started

    def ranks(self, ranks: Ranks, meanwhile: Callable[[], None] = lambda: None) -> Mapping[int, Any]:
        self.check("")
        started = self.started()
        assert started is not None
        if started.by_torchrun:
            die_with_parent()
        keep_freed_memory()  # before the communicator starts threads
        os.environ.update(started.variables())
        from gnnkit.comm.adopted import set_aside  # imports torch, which the run needs anyway

        with set_aside():
            return ranks.by_rank({started.rank: ranks.run_several(started.rank)})
