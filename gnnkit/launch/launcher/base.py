"""The interface of launchers, and the ranks and jobs that they start."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from gnnkit.errors import UserError
from gnnkit.launch.environment import StartedRank, gpu_of
from gnnkit.launch.progress import progress
from gnnkit.utils.ranges import even_ranges

if TYPE_CHECKING:
    from gnnkit.comm import Communicator, Mailbox

RANKS, JOBS = "ranks", "jobs"  # values of `Launcher.starts`


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks of one job, in processes of one or several ranks.

    Can be pickled if `work` can.
    """

    work: Callable[[Communicator], Any]  # runs on each rank, collective. Returns a JSON value
    world_size: int
    comm: type[Communicator]
    timeout: float  # deadline of every wait for another rank, in seconds
    processes: int = 0  # number of processes, or 0 for one per rank
    first: Callable[[Communicator], None] | None = None  # collective over the processes, before `work`
    keys: Mapping[str, Any] = field(default_factory=dict)  # the communicator's own, from the section `comm`

    def __post_init__(self) -> None:
        object.__setattr__(self, "processes", self.processes or self.world_size)

    @property
    def by_process(self) -> list[range]:
        """Each process's ranks."""
        return even_ranges(self.world_size, self.processes)

    @property
    def names(self) -> list[str]:
        """Each process's name in messages, such as `rank 0`."""
        return [
            f"rank {ranks[0]}" if len(ranks) == 1 else f"process {process} (ranks {ranks[0]} to {ranks[-1]})"
            for process, ranks in enumerate(self.by_process)
        ]

    def run(self, rank: int) -> Any:
        """Runs one rank in this process and returns the result of `work`.

        The environment must contain the rank's variables (`StartedRank.variables`).
        Raises `UserError` if processes hold several ranks.
        """
        if self.processes != self.world_size:
            raise UserError(f"parts={self.world_size}: this launcher runs one rank per process: use launcher=processes")
        return self.run_several(rank)[0]

    def run_several(self, process: int) -> list[Any]:
        """Runs all ranks of process number `process`, and returns their results."""
        progress("the rendezvous of the ranks")
        if not self.comm.in_threads:
            return [self._run_alone(process)]
        with contextlib.ExitStack() as stack:
            alone = self.processes == 1 and self.first is None
            several = {} if alone else {"among": self._meet(process, stack)}
            return self.comm.run(self.work, self.world_size, timeout=self.timeout, **several, **self.keys)

    def by_rank(self, results: Mapping[int, Sequence[Any]]) -> dict[int, Any]:
        """Converts results of `run_several`, by process, to results by rank."""
        ranks = self.by_process
        return {
            rank: result
            for process, several in results.items()
            for rank, result in zip(ranks[process], several, strict=True)
        }

    def _meet(self, number: int, stack: contextlib.ExitStack) -> Mailbox:
        """Connects the processes. Collective over them."""
        import torch

        from gnnkit.comm import links, process

        cpu = torch.device("cpu")
        meeting = process.Gloo.connect(number, self.processes, device=cpu, timeout=self.timeout)
        try:
            if self.first is not None:
                self.first(meeting)
            stack.enter_context(links.monitor_hosts(meeting))
            return meeting.mailbox()
        finally:
            meeting.close()  # Lightning would mistake it for the ranks' process group

    def _run_alone(self, rank: int) -> Any:
        import torch

        from gnnkit.comm.links import monitor_hosts

        device = torch.device(self.comm.device_type)
        if device.type == "cuda":
            device = torch.device("cuda", gpu_of(int(os.environ.get("LOCAL_RANK", rank)), torch.cuda.device_count()))
            torch.cuda.set_device(device)
        comm = self.comm.connect(rank, self.world_size, device=device, timeout=self.timeout, **self.keys)
        try:
            with monitor_hosts(comm):
                if self.first is not None:
                    self.first(comm)
                return self.work(comm)
        finally:
            comm.close()


def run_process(ranks: Ranks, process: int, processes: int) -> list[Any]:
    """Runs all ranks of one process, as `gnnkit.launch.processes.launch` calls it."""
    return ranks.run_several(process)


@dataclass(frozen=True, slots=True)
class Jobs:
    """The jobs of a sweep. A job can run as a command or in a forked process."""

    commands: Sequence[Sequence[str]]  # by job: command-line arguments of `gnnkit`
    work: Callable[[int], int]  # runs a job in a process forked from this one, returns the exit code
    preload: Callable[[], None]  # imports the jobs' modules, before forking
    logs: Sequence[Path]  # by job: the file for its output, whose folder may not exist yet


class Launcher:
    """Starts the ranks of a job, the jobs of a sweep, or both.

    A launcher implements the methods of what it `starts`. gnnkit rejects it for
    anything else.
    """

    starts: ClassVar[Collection[str]] = (RANKS,)  # RANKS, JOBS or both
    in_one_process: ClassVar[bool] = False  # True: all ranks are threads of one process
    inline: ClassVar[bool] = False  # True: ranks are threads of the calling process
    comm: ClassVar[str | None] = None  # communicator for comm=auto, or None if it depends on the GPUs

    def check(self, target: str) -> None:
        """Raises `UserError` for a key unsupported with `target`: RANKS or JOBS."""

    def suits(self, *, in_one_process: bool) -> bool:
        """Returns whether launcher=auto may select this launcher.

        Args:
            in_one_process: Whether all ranks are threads of one process.
        """
        return in_one_process == self.in_one_process

    def started(self) -> StartedRank | None:
        """Returns this process's rank, if ranks were started before gnnkit.

        Each rank then runs the complete job, and `ranks` runs this rank only.
        """
        return None

    def ranks(self, ranks: Ranks, meanwhile: Callable[[], None] = lambda: None) -> Mapping[int, Any]:
        """Runs the ranks to completion and returns their results by rank.

        Each rank calls `ranks.run` in a separate process. A launcher that supports
        several ranks per process has each of `ranks.processes` processes call
        `ranks.run_several`, and combines the results with `ranks.by_rank`.

        A rank that fails after calling `progress.dispensable` is omitted from the
        result. After any other failure, an error in `meanwhile` or a signal, all ranks
        are terminated before the method raises. It raises a rank's `UserError`
        unchanged, and otherwise `RankError` with the first failed rank and its error. A
        rank that lost its peer may fail before the peer reports, so the error of a rank
        whose `RankReport.lost_peer` is false is preferred.

        Args:
            ranks: The ranks.
            meanwhile: Called a few times per second.
        """
        raise NotImplementedError(f"{type(self).__name__} does not start ranks")

    def jobs(self, jobs: Jobs) -> Generator[tuple[int, int]]:
        """Runs the jobs, and yields (job number, exit code) as each job ends.

        Closing the generator terminates the remaining jobs.
        """
        raise NotImplementedError(f"{type(self).__name__} does not start jobs")
