"""Where ranks meet, and what they say when one does not come or is lost there."""

from __future__ import annotations

import errno
import socket
import threading
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from gnnkit.comm import rendezvous
from gnnkit.comm.mailbox import PeerLost
from gnnkit.comm.rendezvous import FILE, report_absence
from gnnkit.errors import UserError
from tests.waiting import GUARD


def wait_at_store(seconds: float, *, dies: bool) -> None:
    """Waits for a rank that never comes, at the store of rank 0, which may die."""
    deadline = timedelta(seconds=GUARD)
    stores: list[Any] = [dist.TCPStore("127.0.0.1", 0, 2, True, deadline, wait_for_workers=False)]
    second = dist.TCPStore("127.0.0.1", stores[0].port, 2, False, deadline)
    second.set_timeout(timedelta(seconds=seconds))
    if dies:
        threading.Timer(0.05, stores.clear).start()
    with report_absence(2, seconds):
        second.get("never set")


def test_rank_0_that_dies_in_the_meeting_is_a_lost_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no mistake of the user, who would have to start the run again."""
    monkeypatch.delenv(FILE, raising=False)
    with pytest.raises(PeerLost, match=r"^lost its peer rank 0 while the ranks met at .*closed"):
        wait_at_store(GUARD, dies=True)


def test_a_rank_that_does_not_come_is_told_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FILE, raising=False)
    with pytest.raises(UserError, match=r"^not all of 2 ranks met at .*start all of them"):
        wait_at_store(0.1, dies=False)


@pytest.mark.parametrize("name", ["leader.svc", "10.255.255.1"])
def test_a_service_that_leads_here_is_met_on_all_interfaces(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def serve(address: tuple[str, int], **_: Any) -> str:
        tried.append(address)
        if address[0]:
            raise OSError(errno.EADDRNOTAVAIL, "of another machine")
        return "listener"

    def resolve(*_: Any, **__: Any) -> Any:
        if name == "leader.svc":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET,)]

    monkeypatch.delenv("GNNKIT_LOCAL", raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket, "create_server", serve)
    assert rendezvous._listen(name, 29500, 2) == "listener"
    assert tried == ([("", 29500)] if name == "leader.svc" else [(name, 29500), ("", 29500)])


def test_a_port_that_is_taken_is_named_and_no_other_interface_is_tried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"MASTER_PORT={port}: Address already in use; set another port"):
            rendezvous._listen("127.0.0.1", port, 2)
