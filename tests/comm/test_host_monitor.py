"""Connections with a host that does not answer are shut, and no others."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from gnnkit.comm import host_monitor
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
        waiting = threading.Timer(0.05, host_monitor.hang_up, ["127.0.0.2"])
        waiting.start()
        assert lost.recv(1) == b""
        waiting.join()
        far.send(b"x")
        assert near.recv(1) == b"x"


def test_connections_of_this_host_stay_where_all_others_are_shut() -> None:
    with connect_sockets("127.0.0.1") as (near, far):
        host_monitor.hang_up(None)
        far.send(b"x")
        assert near.recv(1) == b"x"


def test_who_does_not_know_the_token_is_no_process_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_monitor, "_MEETING", 0.3)
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        for token in (b"a" * 32, b"b" * 32):
            stack.enter_context(socket.create_connection(listener.getsockname())).send(token)
        (link,) = host_monitor._accept(listener, b"b" * 32, 2, stack)
        assert link.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
