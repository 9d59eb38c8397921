"""The interface of launchers, and what they start."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from gnnkit.errors import UserError
from gnnkit.launch.environment import StartedRank, gpu_of
from gnnkit.launch.progress import progress
from gnnkit.ranges import even_ranges

if TYPE_CHECKING:
    from gnnkit.comm import Communicator, Mailbox

RANKS, JOBS = "ranks", "jobs"  # what a launcher may start


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks of one job, each in a process of its own or several in each.

    Can be pickled if the work can.
    """

    work: Callable[[Communicator], Any]  # of one rank, collective. Returns JSON
    world_size: int
    comm: type[Communicator]
    timeout: float  # seconds that a rank waits for another
    processes: int = 0  # that hold the ranks. 0: as many as ranks
    first: Callable[[Communicator], None] | None = None  # collective over the processes, before the work

    def __post_init__(self) -> None:
        object.__setattr__(self, "processes", self.processes or self.world_size)

    @property
    def by_process(self) -> list[range]:
        """The ranks of each process."""
        return even_ranges(self.world_size, self.processes)

    @property
    def names(self) -> list[str]:
        """What people call each process, by its ranks."""
        return [
            f"rank {ranks[0]}" if len(ranks) == 1 else f"process {process} (ranks {ranks[0]} to {ranks[-1]})"
            for process, ranks in enumerate(self.by_process)
        ]

    def run(self, rank: int) -> Any:
        """Is one rank, alone in this process. Returns what the work returns.

        The environment holds the variables of the rank (`StartedRank.variables`).
        Raises `UserError` where processes hold several ranks.

        Args:
            rank: This rank.
        """
        if self.processes != self.world_size:
            raise UserError(
                f"parts={self.world_size}: this launcher starts a process for each rank: choose launcher=processes"
            )
        return self.run_several(rank)[0]

    def run_several(self, process: int) -> list[Any]:
        """Is one process of ranks. Returns the results of its ranks.

        Args:
            process: This process, of `processes`.
        """
        progress("the meeting of the ranks")
        if not self.comm.in_threads:
            return [self._run_alone(process)]
        with contextlib.ExitStack() as stack:
            alone = self.processes == 1 and self.first is None
            several = {} if alone else {"among": self._meet(process, stack)}
            return self.comm.run(self.work, self.world_size, timeout=self.timeout, **several)

    def by_rank(self, results: Mapping[int, Sequence[Any]]) -> dict[int, Any]:
        """Returns the results of ranks, from those of `run_several` by process."""
        ranks = self.by_process
        return {
            rank: result
            for process, several in results.items()
            for rank, result in zip(ranks[process], several, strict=True)
        }

    def _meet(self, process: int, stack: contextlib.ExitStack) -> Mailbox:
        """Connects the processes. Collective over these.

        Args:
            process: This process.
            stack: Ends the watch over other hosts.
        """
        import torch

        from gnnkit.comm.process import Gloo
        from gnnkit.comm.sentry import sentry

        cpu = torch.device("cpu")
        meeting = Gloo.connect(process, self.processes, device=cpu, timeout=self.timeout)
        try:
            if self.first is not None:
                self.first(meeting)
            stack.enter_context(sentry(meeting))
            return meeting.mailbox()
        finally:
            meeting.close()  # Lightning would take ranks for processes of this group

    def _run_alone(self, rank: int) -> Any:
        import torch

        from gnnkit.comm.sentry import sentry

        device = torch.device(self.comm.device_type)
        if device.type == "cuda":
            device = torch.device("cuda", gpu_of(int(os.environ.get("LOCAL_RANK", rank)), torch.cuda.device_count()))
            torch.cuda.set_device(device)
        comm = self.comm.connect(rank, self.world_size, device=device, timeout=self.timeout)
        try:
            with sentry(comm):
                if self.first is not None:
                    self.first(comm)
                return self.work(comm)
        finally:
            comm.close()


@dataclass(frozen=True, slots=True)
class Jobs:
    """Jobs of a sweep. A job has two forms that do the same."""

    commands: Sequence[Sequence[str]]  # by job: the arguments of `gnnkit` that do the job alone
    work: Callable[[int], int]  # does a job in a process forked from this one. Returns the exit code
    preload: Callable[[], None]  # imports what jobs import, before forks
    logs: Sequence[Path]  # by job: the file that gets what the job prints. Its folder may not exist


class Launcher:
    """Starts the ranks of a job, the jobs of a sweep, or both.

    A launcher takes the methods of what it `starts`, and leaves the others alone.
    gnnkit refuses the launcher for anything else.
    """

    starts: ClassVar[Collection[str]] = (RANKS,)  # of RANKS and JOBS
    in_one_process: ClassVar[bool] = False  # True: all ranks are threads of one process
    inline: ClassVar[bool] = False  # True: and this process is that of the caller
    comm: ClassVar[str | None] = None  # the communicator of comm=auto. None: by the GPUs

    def check(self, what: str) -> None:
        """Raises `UserError` for a key that does not go with `what`: RANKS or JOBS."""

    def suits(self, *, in_one_process: bool) -> bool:
        """Says whether launcher=auto takes this launcher here.

        Args:
            in_one_process: Whether all ranks are threads of one process.
        """
        return in_one_process == self.in_one_process

    def started(self) -> StartedRank | None:
        """Returns this process's rank, where the launcher has started the ranks before.

        Every rank then runs the whole job, and `ranks` runs the one rank here.
        """
        return None

    def ranks(self, ranks: Ranks, meanwhile: Callable[[], None] = lambda: None) -> Mapping[int, Any]:
        """Runs the ranks, and returns the results by rank when all have ended.

        Each rank calls `ranks.run` in a process of its own. A launcher that can start
        fewer processes lets each of `ranks.processes` call `ranks.run_several`, and
        puts together what these return with `ranks.by_rank`. A rank that has called
        `progress.dispensable` and fails is left out of the result. After any other
        failure, an error of `meanwhile` or a signal, all ranks are ended before the
        method raises: the `UserError` of a rank with its message, else `RankError`,
        which names the rank that has failed first, and the error.

        Args:
            ranks: The ranks.
            meanwhile: Called a few times a second. Default: does nothing.
        """
        raise NotImplementedError(f"{type(self).__name__} starts no ranks")

    def jobs(self, jobs: Jobs) -> Generator[tuple[int, int]]:
        """Runs the jobs. Yields number and exit code of each job that has ended.

        0 is success. `close` of the generator ends jobs that still run.
        """
        raise NotImplementedError(f"{type(self).__name__} starts no jobs")
