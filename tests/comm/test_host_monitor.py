"""Connections with a host that does not answer are shut, and no others."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from gnnkit.comm import frames, links
from tests.waiting import GUARD


@contextlib.contextmanager
def connect_sockets(host: str) -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server((host, 0)) as listener, socket.create_connection(listener.getsockname()) as near:
        far, _ = listener.accept()
        with far:
            for each in (near, far):
                each.settimeout(GUARD)
            yield near, far


def test_a_wait_for_a_host_that_is_hung_up_on_ends_and_no_other_does() -> None:
    with connect_sockets("127.0.0.2") as (lost, _), connect_sockets("127.0.0.1") as (near, far):
        waiting = threading.Timer(0.05, links.hang_up, ["127.0.0.2"])
        waiting.start()
        assert lost.recv(1) == b""
        waiting.join()
        far.send(b"x")
        assert near.recv(1) == b"x"


def test_connections_of_this_host_stay_where_all_others_are_shut() -> None:
    with connect_sockets("127.0.0.1") as (near, far):
        links.hang_up(None)
        far.send(b"x")
        assert near.recv(1) == b"x"


def test_who_does_not_know_the_token_is_no_process_of_the_run() -> None:
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        callers = [stack.enter_context(socket.create_connection(listener.getsockname())) for _ in range(2)]
        for caller, token in zip(callers, ("a" * 32, "b" * 32), strict=True):
            caller.send(frames.hello(token, 1))
        ((rank, link),) = links.accept_ranks([1], listener, "b" * 32, time.monotonic() + GUARD)
        stack.enter_context(link)
        assert (rank, link.getpeername()) == (1, callers[1].getsockname())


@pytest.mark.parametrize("error", [ConnectionAbortedError, BlockingIOError])
def test_a_caller_that_leaves_before_it_is_accepted_ends_no_meeting(
    monkeypatch: pytest.MonkeyPatch, error: type[OSError]
) -> None:
    errors, accept = [error], socket.socket.accept

    def fail_once(listener: socket.socket) -> tuple[socket.socket, object]:
        if errors:
            raise errors.pop()
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", fail_once)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as caller:
        caller.send(frames.hello("b" * 32, 1))
        ((rank, link),) = links.accept_ranks([1], listener, "b" * 32, time.monotonic() + GUARD)
        link.close()
    assert (rank, errors) == (1, [])
