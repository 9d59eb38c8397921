"""Strangers on the machine of a run: they cannot join, read or stop it."""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import os
import re
import secrets
import socket
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gnnkit
from gnnkit.comm import Communicator, frames, shared_memory
from gnnkit.comm.process import Gloo
from gnnkit.comm.rendezvous import TOKEN, meeting
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.launch.environment import StartedRank
from gnnkit.launch.launcher import RankError, Ranks
from gnnkit.launch.launcher.builtin import Processes
from tests.cases import exhaustive, few
from tests.comm.processes import run_gloo
from tests.launch.outside import Outside, by_hand
from tests.launch.test_join import RUN
from tests.runs import BARE, within_process
from tests.waiting import GUARD

LISTENS = "0A"  # state of a TCP socket in /proc/net/tcp
RUBBISH = (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\xff" * 4096, secrets.token_bytes(64), b"")


class Stranger:
    """Connects to everything that the processes below this one listen at, and stays."""

    def __init__(self, firsts: Iterable[bytes] = RUBBISH, pause: float = 0.01) -> None:
        self.pause = pause  # seconds between two looks for listeners
        self.firsts = tuple(firsts)  # the first bytes of a connection each
        self.connections: list[socket.socket] = []
        self.found: set[Any] = set()
        self._ended = threading.Event()
        self.has_called = multiprocessing.get_context("fork").Event()
        self._thread = threading.Thread(target=self._call, daemon=True)

    def __enter__(self) -> Stranger:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def heard(self) -> bytes:
        """Returns all that anyone has told the stranger, and hangs up."""
        heard = b""
        for connection in self.connections:
            with connection, contextlib.suppress(OSError):
                connection.setblocking(False)
                heard += connection.recv(2**16)
        return heard

    def _call(self) -> None:
        while not self._ended.is_set():
            for address in _listening() - self.found:
                self.found.add(address)
                for first in self.firsts:
                    with contextlib.suppress(OSError):
                        self._connect(address, first)
            time.sleep(self.pause)

    def _connect(self, address: Any, first: bytes) -> None:
        by_name = isinstance(address, str)
        kind = (socket.AF_UNIX, socket.SOCK_SEQPACKET) if by_name else (socket.AF_INET, socket.SOCK_STREAM)
        connection = socket.socket(*kind)
        connection.settimeout(1.0)
        connection.connect(f"\0{address}" if by_name else address)
        self.connections.append(connection)
        if first:
            connection.send(first)
        self.has_called.set()


def _listening() -> set[Any]:
    """Lists where descendants of this process listen: addresses, and abstract names."""
    own_sockets = set[str]()
    for pid in _descendants(os.getpid()):
        with contextlib.suppress(OSError):
            links = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")]
            own_sockets |= {link[8:-1] for link in links if link.startswith("socket:")}
    results = set[Any]()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == LISTENS and fields[9] in own_sockets:
            address, port = fields[1].split(":")
            results.add((socket.inet_ntoa(bytes.fromhex(address)[::-1]), int(port, 16)))
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if len(fields) > 7 and fields[3] == "00010000" and fields[6] in own_sockets:
            results.add(fields[7].removeprefix("@"))
    return results


def _descendants(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for file in list(Path(f"/proc/{pid}/task").glob("*/children")):
            for child in map(int, file.read_text().split()):
                yield child
                yield from _descendants(child)


def small_graph() -> Graph:
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 60, (2, 300))
    features, labels = rng.normal(size=(60, 5)).astype(np.float32), rng.integers(0, 3, 60)
    return Graph.from_edges(src, dst, 60, features=features, labels=labels).draw_split([0.5, 0.25, 0.25])


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.skipif(not Path("/proc/net/unix").exists(), reason="looks for listeners in /proc")
@few(
    "keys",
    [
        pytest.param({"strategy": "vertex_centric"}, id="shared memory"),
        pytest.param({"strategy": "vertex_centric", "parts": 3, "workers": 2}, id="parts"),
        pytest.param(
            {"strategy": "individual_sample", "sync": {"name": "parameter_server", "servers": 1}}, id="servers"
        ),
    ],
    default=["servers"],
)
def test_a_stranger_at_every_listener_changes_no_bit_and_hears_nothing(keys: dict[str, Any], tmp_path: Path) -> None:
    keys = {"workers": 3, "trainer": {"max_epochs": 2}, "threads": 1, **BARE, **keys}
    with within_process():
        plain = gnnkit.train(small_graph(), output=str(tmp_path / "plain"), **keys)
        with Stranger() as stranger:
            disturbed = gnnkit.train(small_graph(), output=str(tmp_path / "disturbed"), **keys)
    assert stranger.connections, "the stranger reaches gloo at least"
    assert stranger.heard() == b""
    assert all(host[0].startswith("127.") for host in stranger.found if not isinstance(host, str))
    first, second = (gnnkit.load(each.folder).state_dict() for each in (plain, disturbed))
    assert all(torch.equal(first[name], second[name]) for name in first)


MARK = torch.full((1000,), 77, dtype=torch.uint8)  # what the ranks tell each other


def _tell(comm: Communicator, has_called: Event) -> list[int]:
    assert has_called.wait(GUARD)
    return comm.all_to_all(MARK.repeat(3), [1000] * 3, [1000] * 3).sum().tolist()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/net/unix").exists(), reason="looks for listeners in /proc")
def test_who_takes_the_place_of_a_rank_in_gloo_ends_the_run_and_hears_nothing_of_it() -> None:
    """Gloo lets in who knows its small numbers. What follows needs the token."""
    places = [struct.pack("<q", number) for number in range(40)]
    with Stranger(places, pause=0.002) as stranger, contextlib.suppress(RankError, UserError):
        tell = functools.partial(_tell, has_called=stranger.has_called)
        actual = Processes().ranks(Ranks(tell, 3, Gloo, 3.0))
        assert actual == {rank: 3 * int(MARK.sum()) for rank in range(3)}
    assert stranger.connections
    assert bytes(MARK[:8].tolist()) not in stranger.heard()


@pytest.mark.slow
def test_strangers_that_hold_their_connection_keep_no_rank_of_a_host_waiting() -> None:
    def work(comm: Communicator) -> None:
        assert isinstance(comm, Gloo)
        gather, strangers = comm._gather_bytes, list[socket.socket]()

        def gather_and_call(own: bytes) -> list[bytes]:
            everyone = gather(own)
            for first in (b"", b"x" * 36, frames.hello("0" * 32, 1)) if comm.rank == 1 and not strangers else ():
                strangers.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                strangers[-1].connect(bytes.fromhex(json.loads(everyone[0])["name"]))
                if first:
                    strangers[-1].send(first)
            return everyone

        met = shared_memory.meet(comm.rank, 2, gather_and_call, GUARD, able=True)
        assert met is not None
        assert list(met.links) == [1 - comm.rank]
        for stranger in strangers:
            stranger.settimeout(GUARD)
            assert stranger.recv(1) == b"", "the connection is closed"

    run_gloo(work, 2)


@pytest.mark.slow
def test_a_rank_with_another_token_is_not_let_in() -> None:
    def work(comm: Communicator) -> str:
        os.environ[TOKEN] = "token-of-ours" if comm.rank else "token-of-others"
        with pytest.raises(UserError) as error:
            comm.split([0, 1])
        return str(error.value)

    message = "rank {} does not have this run's token: set the same GNNKIT_TOKEN"
    results = run_gloo(work, 2)
    assert [text.startswith(message.format(1 - rank)) for rank, text in enumerate(results)] == [True, True], results


def test_the_meeting_point_of_one_host_is_on_loopback_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = by_hand(1)
    for name, value in {**first, "GNNKIT_LOCAL": "1", "GNNKIT_STORE": ""}.items():
        monkeypatch.setenv(name, value)
    with meeting(0, 1, GUARD) as store:
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        for number in (int(first["MASTER_PORT"]), store.port):
            port = f":{number:04X}"
            assert [line[1] for line in lines if line[1].endswith(port) and line[3] == LISTENS] == [f"0100007F{port}"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        with (
            pytest.raises(UserError, match=r"^MASTER_PORT=\d+: Address already in use; set another port"),
            meeting(0, 1, GUARD),
        ):
            pass


def test_a_token_that_is_short_is_refused() -> None:
    with pytest.raises(UserError, match=r"^GNNKIT_TOKEN has 5 characters, expected at least 16"):
        StartedRank(0, 2, 0, 2, "host0", 1, token="short").variables()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tokens", "codes"), [exhaustive((("a" * 16, "a" * 16), [0, 0])), (("a" * 16, "b" * 16), [2, 2])]
)
def test_ranks_started_outside_show_each_other_the_token_of_the_environment(
    outside: Outside, tmp_path: Path, tokens: tuple[str, str], codes: list[int]
) -> None:
    places = [{**place, TOKEN: token} for place, token in zip(by_hand(2), tokens, strict=True)]
    exits = outside.run(tmp_path, [[*RUN, "output=run"]] * 2, places)
    assert [process.code for process in exits] == codes, exits
    if any(codes):
        assert all(re.search("rank [01] does not have this run's token", process.output) for process in exits)
