"""Runs a function on real gloo processes, as `Threads.run` does on threads."""

from __future__ import annotations

import io
import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from gnnkit.comm import Communicator
from gnnkit.comm.process import Gloo


def run_gloo(
    function: Callable[[Communicator], Any],
    world_size: int,
    *,
    timeout: float = 30.0,
    kind: type[Communicator] = Gloo,
    dies: int | None = None,
) -> list[Any]:
    """Calls `function(communicator)` on processes, and returns the results by rank.

    Args:
        function: What each rank does.
        world_size: Number of ranks.
        timeout: Deadline of the collectives in seconds. Default: 30.
        kind: Communicator to connect. Default: gloo.
        dies: Rank that is expected to end without a result. Default: none.
    """
    context = multiprocessing.get_context("fork")
    listener = socket.create_server(("127.0.0.1", 0))
    environment = {"GNNKIT_LOCAL": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(listener.getsockname()[1])}
    environment |= {"GLOO_SOCKET_IFNAME": "lo"}

    def work(rank: int, pipe: Connection) -> None:
        os.environ.update(environment)
        torch.set_num_threads(1)
        try:
            comm = kind.connect(
                rank, world_size, device=torch.device("cpu"), timeout=timeout, listener=listener if rank == 0 else None
            )
            result = function(comm)
            comm.close()
            buffer = io.BytesIO()
            torch.save(result, buffer)  # tensors in a pipe would be shared memory that goes with this process
            pipe.send((buffer.getvalue(), None))
        except BaseException:
            pipe.send((None, traceback.format_exc()))

    pipes, processes = [], []
    for rank in range(world_size):
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=work, args=(rank, there), daemon=True)
        process.start()
        pipes.append(here)
        processes.append(process)
    answers = [
        pipe.recv() if pipe.poll(timeout * 2) else (None, "no answer")
        for rank, pipe in enumerate(pipes)
        if rank != dies
    ]
    for process in processes:
        process.join(5)
        process.kill()
    listener.close()
    errors = [error for _, error in answers if error]
    assert not errors, "\n".join(errors)
    return [torch.load(io.BytesIO(result)) for result, _ in answers]
