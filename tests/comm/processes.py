"""Runs a function on real gloo processes, as `Threads.run` does on threads."""

from __future__ import annotations

import functools
import io
import multiprocessing
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from gnnkit.comm import Communicator
from gnnkit.comm.process import Gloo
from tests.waiting import GUARD


def run_gloo(
    function: Callable[[Communicator], Any],
    world_size: int,
    *,
    timeout: float = GUARD,
    kind: type[Communicator] = Gloo,
    dies: int | None = None,
) -> list[Any]:
    """Calls `function(communicator)` on processes, and returns the results by rank.

    Args:
        function: The work of each rank.
        world_size: Number of ranks.
        timeout: Deadline of the collectives in seconds. Default: `GUARD`.
        kind: Communicator to connect. Default: gloo.
        dies: Rank that is expected to end without a result. Default: none.
    """
    context = multiprocessing.get_context("fork")
    store = os.memfd_create("store")
    pipes, processes = [], []
    for rank in range(world_size):
        here, child_end = context.Pipe(duplex=False)
        meet = functools.partial(_meet, kind, rank, world_size, timeout, f"/proc/{os.getpid()}/fd/{store}")
        process = context.Process(target=_work, args=(meet, function, child_end), daemon=True)
        process.start()
        child_end.close()  # so that the end of the process ends the wait for its answer
        pipes.append(here)
        processes.append(process)
    answers = [_answer(pipe, timeout) for rank, pipe in enumerate(pipes) if rank != dies]
    for rank, process in enumerate(processes):
        process.join(0 if rank == dies else GUARD)  # who is expected to end may be stopped
        process.kill()
    os.close(store)
    errors = [error for _, error in answers if error]
    assert not errors, "\n".join(errors)
    return [torch.load(io.BytesIO(result)) for result, _ in answers]


def _answer(pipe: Connection, timeout: float) -> tuple[Any, str | None]:
    """Returns result and error of a rank. Waits long, because a machine may be busy."""
    try:
        return pipe.recv() if pipe.poll(timeout * 2 + 60) else (None, "no answer")
    except EOFError:
        return None, "ended without an answer"


def _meet(kind: type[Communicator], rank: int, world_size: int, timeout: float, store: str) -> Communicator:
    variables = {"GNNKIT_LOCAL": "1", "GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1", "GNNKIT_STORE": store}
    os.environ.update(variables)
    return kind.connect(rank, world_size, device=torch.device("cpu"), timeout=timeout)


def _work(meet: Callable[[], Communicator], function: Callable[[Communicator], Any], pipe: Connection) -> None:
    """Runs the function on one rank, and sends the result or the error."""
    torch.set_num_threads(1)
    try:
        comm = meet()
        result = function(comm)
        comm.close()
        buffer = io.BytesIO()
        torch.save(result, buffer)  # a tensor in a pipe is shared memory, lost with this process
        pipe.send((buffer.getvalue(), None))
    except BaseException:
        pipe.send((None, traceback.format_exc()))
