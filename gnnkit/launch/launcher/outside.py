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

    def check(self, target: str) -> None:
        if self.started() is None:
            raise UserError(
                "launcher=outside finds no rank in the environment: start gnnkit with torchrun, srun or mpirun, set "
                "RANK and WORLD_SIZE, or remove launcher=outside"
            )

    def suits(self, *, in_one_process: bool) -> bool:
        return self.started() is not None

    def started(self) -> StartedRank | None:
        started_rank = environment.started_rank()
        if started_rank is None:
            environment.check_tasks()
        return started_rank

    def ranks(self, ranks: Ranks, meanwhile: Callable[[], None] = lambda: None) -> Mapping[int, Any]:
        self.check("")
        started_rank = self.started()
        assert started_rank is not None
        if started_rank.by_torchrun:
            die_with_parent()
        keep_freed_memory()  # before the communicator starts threads
        os.environ.update(started_rank.variables())
        from gnnkit.comm.adopted import set_aside  # imports torch, which the run needs anyway

        with set_aside():
            return ranks.by_rank({started_rank.rank: ranks.run_several(started_rank.rank)})
