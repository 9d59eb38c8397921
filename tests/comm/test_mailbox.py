from __future__ import annotations

import functools
import json
import os
import random
import signal
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from gnnkit.comm import Communicator, DeadlineExceeded, Mailbox, PeerLost, frames, links
from gnnkit.comm.sockets import SocketMailbox
from gnnkit.comm.threads import Threads
from gnnkit.errors import UserError
from tests.cases import few
from tests.comm.processes import run_gloo
from tests.waiting import GUARD, NEVER

RUNNERS: dict[str, Callable[..., list[Any]]] = {"threads": Threads.run, "gloo": run_gloo}
TOKEN = "0123456789abcdef" * 2


@contextmanager
def connect_mailboxes(
    world_size: int, intrude: Callable[[list[socket.socket]], Any] = lambda listeners: None, **keys: Any
) -> Iterator[list[SocketMailbox]]:
    """Opens mailboxes of several ranks in this process, after `intrude(listeners)`."""
    listeners = [links.listen(world_size) for _ in range(world_size)]
    addresses = [listener.getsockname() for listener in listeners]
    intrude(listeners)

    def meet(rank: int) -> SocketMailbox:
        return SocketMailbox(rank, listeners[rank], addresses, TOKEN, **{"timeout": GUARD, **keys})

    with ThreadPoolExecutor(world_size) as pool:
        boxes = list(pool.map(meet, range(world_size)))
    try:
        yield boxes
    finally:
        for box in boxes:
            box.close()


@contextmanager
def raw_rank() -> Iterator[tuple[list[SocketMailbox], socket.socket]]:
    """Yields mailboxes of ranks 0 and 1, and rank 2's bare connection to rank 0."""
    listeners = [links.listen(3) for _ in range(3)]
    addresses = [listener.getsockname() for listener in listeners]
    bare = [socket.create_connection(address) for address in addresses[:2]]
    for connection in bare:
        connection.sendall(frames.hello(TOKEN, 2))
        connection.settimeout(GUARD)
    with ThreadPoolExecutor(2) as pool:
        boxes = list(pool.map(lambda rank: SocketMailbox(rank, listeners[rank], addresses, TOKEN, GUARD), range(2)))
    try:
        yield boxes, bare[0]
    finally:
        for each in (*bare, *boxes, *listeners):
            each.close()


def barrier(comm: Communicator) -> None:
    comm.all_reduce(torch.zeros(1))


# Promises between ranks.


def traffic(comm: Communicator, num_messages: int = 150) -> list[tuple[int, str, int]]:
    """Puts messages at random and takes all. Returns sender, tag and number of each."""
    rng = random.Random(comm.rank)
    counter: Counter[int] = Counter()
    with comm.mailbox() as box:
        for number in range(num_messages):
            dst, size = rng.randrange(comm.world_size), rng.choice([0, 1, 1000, 100_000])
            x = torch.full((size,), number, dtype=torch.float32)
            box.put(dst, rng.choice("ab"), {"number": number, "size": size}, {"x": x})
            counter[dst] += 1
        counts = comm.all_reduce(torch.tensor([counter[rank] for rank in range(comm.world_size)]))
        messages = [box.take(timeout=GUARD) for _ in range(int(counts[comm.rank]))]
        assert all(
            torch.equal(message.tensors["x"], torch.full((message.fields["size"],), float(message.fields["number"])))
            for message in messages
        )
        assert box.poll() is None
        barrier(comm)
    return [(message.src, message.tag, message.fields["number"]) for message in messages]


@pytest.mark.slow
@few("comm", RUNNERS, default=["threads"])
def test_random_traffic_of_four_ranks_delivers_each_message_once_and_in_order(comm: str) -> None:
    arrived = RUNNERS[comm](traffic, 4)
    every = [(src, number) for messages in arrived for src, _, number in messages]
    assert sorted(every) == [(src, number) for src in range(4) for number in range(150)]
    for messages in arrived:
        for src, tag in {(src, tag) for src, tag, _ in messages}:
            numbers = [number for *key, number in messages if key == [src, tag]]
            assert numbers == sorted(numbers)


def slow_receiver(comm: Communicator) -> None:
    with comm.mailbox() as box:
        if comm.rank == 0:
            for _ in range(20):
                box.put(1, "x", tensors={"x": torch.ones(2**18)})
        barrier(comm)  # before any is taken
        if comm.rank == 1:
            assert all(box.take("x", src=0, timeout=GUARD).tensors["x"].sum() == 2**18 for _ in range(20))
        barrier(comm)


@pytest.mark.slow
@pytest.mark.parametrize("comm", RUNNERS)
def test_a_sender_does_not_wait_until_its_messages_are_taken(comm: str) -> None:
    RUNNERS[comm](slow_receiver, 2)


def leaves_early(comm: Communicator) -> None:
    box = comm.mailbox()
    if comm.rank == 1:
        box.put(0, "last", {"value": 7})
        box.close()
    else:
        assert box.take("last", src=1, timeout=GUARD).fields == {"value": 7}
        with pytest.raises(PeerLost, match="rank 0: lost its peer rank 1, which has closed its mailbox") as caught:
            box.take("more", src=1, timeout=GUARD)
        assert caught.value.rank == 1
        assert box.gone() == {1}
        with pytest.raises(PeerLost, match="rank 1, which has closed"):
            box.put(1, "late")
        box.close()
        with pytest.raises(RuntimeError, match="rank 0 has closed its mailbox"):
            box.take(timeout=GUARD)
    barrier(comm)


@pytest.mark.slow
@pytest.mark.parametrize("comm", RUNNERS)
def test_what_a_rank_has_put_arrives_although_it_closes_its_mailbox(comm: str) -> None:
    RUNNERS[comm](leaves_early, 2)


@pytest.mark.slow
@pytest.mark.parametrize("comm", RUNNERS)
def test_errors_of_the_caller_name_what_is_wrong(comm: str) -> None:
    def work(comm: Communicator) -> None:
        with comm.mailbox() as box:
            for wrong, told in {"dst": "rank 5 does not exist", "src": "rank -1 does not exist"}.items():
                with pytest.raises(ValueError, match=told):
                    box.put(5, "x") if wrong == "dst" else box.take("x", src=-1, timeout=1)
            with pytest.raises(
                TypeError, match=r"message 'x': tensor 'z' is torch\.complex64.*expected a dense tensor of"
            ):
                box.put(0, "x", tensors={"z": torch.zeros(1, dtype=torch.complex64)})
            with pytest.raises(TypeError, match="message 'x': fields must be plain JSON values"):
                box.put(0, "x", {"value": object()})
            with pytest.raises(ValueError, match=r"take 1048\d+ bytes as JSON, the maximum is 1048576"):
                box.put(0, "x", {"value": "x" * 2**20})

    RUNNERS[comm](work, 1)


# Ranks that go.


def killed(comm: Communicator) -> None:
    """Kills rank 2, which `take` and `put` of the others name."""
    box = comm.mailbox()
    if comm.rank == 2:
        for rank in range(2):
            box.put(rank, "killed")
        os.kill(os.getpid(), signal.SIGKILL)
    box.take("killed", src=2, timeout=GUARD)
    with pytest.raises(PeerLost, match="lost its peer rank 2, which closed its connection without a goodbye") as caught:
        box.take("gradient", src=2, timeout=NEVER)
    assert caught.value.rank == 2
    assert box.gone() == {2}
    with pytest.raises(PeerLost, match="rank 2"):
        box.put(2, "gradient")
    box.put(1 - comm.rank, "gradient")
    assert box.take("gradient", timeout=GUARD).src == 1 - comm.rank
    with pytest.raises(DeadlineExceeded, match="no message 'more' from any rank; rank 2 closed its connection"):
        box.take("more", timeout=0.05)
    box.put(1 - comm.rank, "bye")
    box.take("bye", timeout=GUARD)
    box.close()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_killed_peer_is_named_without_waiting_for_a_deadline() -> None:
    run_gloo(killed, 3, dies=2, timeout=NEVER)


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_thread_that_fails_ends_the_wait_for_its_messages(world_size: int) -> None:
    noticed: list[int] = []

    def work(comm: Communicator) -> None:
        box = comm.split(list(range(comm.world_size))).mailbox()
        if comm.rank == 1:
            raise ZeroDivisionError("mine")
        with pytest.raises(PeerLost, match="lost its peer rank 1, which failed"):
            box.take("x", src=1, timeout=NEVER)
        noticed.append(comm.rank)

    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        Threads.run(work, world_size)
    assert caught.value.__notes__ == ["on rank 1"]
    assert sorted(noticed) == [rank for rank in range(world_size) if rank != 1]


def test_without_any_peer_left_nothing_is_waited_for() -> None:
    with connect_mailboxes(3) as boxes:
        boxes[1].close()
        boxes[2].close()
        with pytest.raises(PeerLost, match="has closed its mailbox"):
            boxes[0].take("x", timeout=GUARD)


def test_ranks_that_do_not_connect_are_named() -> None:
    listeners = [links.listen(3) for _ in range(3)]
    addresses = [listener.getsockname() for listener in listeners]
    with pytest.raises(DeadlineExceeded, match=r"rank 0: timed out: ranks \[1, 2\] did not connect"):
        SocketMailbox(0, listeners[0], addresses, TOKEN, 0.1)
    with pytest.raises(PeerLost, match=r"rank 1: cannot reach its peer rank 0 at 127\.0\.0\.1:"):
        SocketMailbox(1, listeners[1], addresses, TOKEN, 0.1)
    listeners[2].close()


# Too many messages.


def put_often(box: Mailbox, tensors: dict[str, Tensor], times: int = 1000) -> None:
    for number in range(times):
        box.put(0, "x", {"number": number}, tensors)


@pytest.mark.slow
def test_a_sender_whose_messages_are_not_taken_waits_and_then_names_the_receiver() -> None:
    with connect_mailboxes(3, limit=2**16, timeout=2.0) as boxes:
        big = {"x": torch.zeros(2**14)}  # 64 KiB
        with pytest.raises(DeadlineExceeded, match=r"rank 1: timed out after 2 s: rank 0 takes no messages, 'x' waits"):
            put_often(boxes[1], big)
        boxes[2].put(0, "x", {"from": 2})  # is not held up
        assert boxes[0].take("x", src=2, timeout=GUARD).fields == {"from": 2}
        with pytest.raises(
            DeadlineExceeded, match=r"rank 1 waits, because \d+ bytes of its other messages are not taken"
        ):
            boxes[0].take("y", src=1, timeout=0.05)


@pytest.mark.slow
def test_a_sender_that_waited_goes_on_when_messages_are_taken() -> None:
    with connect_mailboxes(2, limit=2**16) as (receiver, sender):
        big = {"x": torch.zeros(2**14)}
        thread = threading.Thread(target=put_often, args=(sender, big, 300), daemon=True)
        thread.start()
        thread.join(0.2)
        assert [receiver.take("x", timeout=GUARD).fields["number"] for _ in range(300)] == list(range(300))
        thread.join(GUARD)
        assert not thread.is_alive()


@pytest.mark.parametrize("box", ["sockets", "threads"])
def test_a_rank_that_floods_itself_is_told(box: str) -> None:
    def work(comm: Communicator) -> None:
        with SocketMailbox.open(comm) if box == "sockets" else comm.mailbox() as mailbox:
            mailbox._inbox.limit = 2**10
            mailbox.put(0, "x", tensors={"x": torch.zeros(2**8)})
            with pytest.raises(DeadlineExceeded, match="rank 0 takes no messages"):
                mailbox.put(0, "x")

    Threads.run(work, 1, timeout=0.1)


@pytest.mark.slow
def test_a_put_that_is_interrupted_halfway_does_not_garble_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(link: links.SocketLink, deadline: float) -> None:
        raise KeyboardInterrupt

    with connect_mailboxes(2) as (receiver, sender):
        monkeypatch.setattr(links.SocketLink, "_wait_for_room", interrupt)
        with pytest.raises(KeyboardInterrupt):
            sender.put(0, "x", tensors={"x": torch.zeros(2**25)})
        with pytest.raises(PeerLost, match="rank 0"):
            sender.put(0, "x")
        with pytest.raises(PeerLost, match="lost its peer rank 1, which closed its connection without a goodbye"):
            receiver.take("x", src=1, timeout=GUARD)


# Strangers, and frames that are malformed.


def test_a_stranger_without_the_token_is_refused_and_disturbs_nobody() -> None:
    strangers: list[socket.socket] = []

    def intrude(listeners: list[socket.socket]) -> None:
        for first in (b"", b"GET / HTTP/1.1\r\n\r\n", frames.hello("guess", 1), frames.hello(TOKEN, 7), b"\0" * 12):
            strangers.append(socket.create_connection(listeners[0].getsockname(), timeout=GUARD))
            strangers[-1].sendall(first)

    with connect_mailboxes(3, intrude) as boxes:
        for stranger in strangers:
            with stranger:
                assert ended(stranger)
        check_pairs(boxes)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(intruded(boxes), timeout=GUARD)


def intruded(boxes: list[SocketMailbox]) -> Any:
    """Where rank 0 listened."""
    return boxes[1]._links[0].socket.getpeername()


def test_a_stranger_who_says_nothing_is_refused_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnnkit.comm.links.HELLO", 0.1)
    listeners = [links.listen(2) for _ in range(2)]
    addresses = [listener.getsockname() for listener in listeners]
    with ThreadPoolExecutor(1) as pool, socket.create_connection(addresses[0], timeout=GUARD) as stranger:
        first = pool.submit(SocketMailbox, 0, listeners[0], addresses, TOKEN, GUARD)
        assert ended(stranger)
        monkeypatch.setattr("gnnkit.comm.links.HELLO", GUARD)
        with SocketMailbox(1, listeners[1], addresses, TOKEN, GUARD), first.result() as box:
            box.put(1, "x")


def ended(connection: socket.socket) -> bool:
    """Whether the other side has ended the connection."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def check_pairs(boxes: list[SocketMailbox]) -> None:
    for sender in boxes:
        for receiver in boxes:
            sender.put(receiver.rank, "x", tensors={"x": torch.tensor([sender.rank])})
            assert receiver.take("x", src=sender.rank, timeout=GUARD).tensors["x"].tolist() == [sender.rank]


def frame(header: Any, body: bytes = b"", announced: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("!IQ", len(text), len(body) if announced is None else announced) + text + body


def message(tensors: Any) -> dict[str, Any]:
    return {"tag": "x", "fields": {}, "tensors": tensors}


NO_TENSOR = "malformed frame: .* is not the name, dtype and shape of a tensor"
NO_HEADER = "malformed frame: a header needs tag, fields and tensors"
MALFORMED = {
    "huge header": (struct.pack("!IQ", 2**32 - 1, 0), "malformed frame: .* exceeds 1048576 and"),
    "huge body": (struct.pack("!IQ", 10, 2**63), "malformed frame: .* exceeds 1048576 and"),
    "no JSON": (frame(b"\x80\x04\x95 pickle"), "malformed frame"),
    "nested deeply": (frame(b"[" * 100_000), "malformed frame: the header is nested too deeply"),
    "a list": (frame([]), NO_HEADER),
    "no tag": (frame({"fields": {}, "tensors": []}), NO_HEADER),
    "tag of another type": (frame({"tag": 1, "fields": {}, "tensors": []}), NO_HEADER),
    "unknown dtype": (frame(message([["x", "object", [1]]]), bytes(8)), NO_TENSOR),
    "negative shape": (frame(message([["x", "uint8", [-1]]]), announced=0), NO_TENSOR),
    "two negative sizes": (frame(message([["x", "uint8", [-2, -2]]]), bytes(4)), NO_TENSOR),
    "boolean shape": (frame(message([["x", "uint8", [True]]]), bytes(1)), NO_TENSOR),
    "no shape": (frame(message([["x", "int64"]]), bytes(8)), NO_TENSOR),
    "shape too large for its bytes": (frame(message([["x", "int64", [2**40]]]), bytes(8)), "were announced as 8 bytes"),
    "one name twice": (frame(message([["x", "uint8", [1]]] * 2), bytes(2)), "were announced as 2 bytes"),
    "empty and huge": (frame(message([["x", "int64", [0, 2**62, 2**62]]])), "malformed frame"),
    "message without its end": (frame(message([["x", "uint8", [4]]]), bytes(2), announced=4), "without a goodbye"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_frame_ends_its_connection_only(name: str) -> None:
    with raw_rank() as (boxes, bare):
        bare.sendall(frame(message([["x", "uint8", [1]]]), b"\x07"))
        malformed, told = MALFORMED[name]
        bare.sendall(malformed)
        bare.shutdown(socket.SHUT_WR)
        assert ended(bare)
        assert boxes[0].take("x", src=2, timeout=GUARD).tensors["x"].tolist() == [7]
        with pytest.raises(PeerLost, match=f"lost its peer rank 2, which .*{told}"):
            boxes[0].take("x", src=2, timeout=GUARD)
        check_pairs(boxes)
        boxes[1].put(2, "x")  # the other connection of rank 2 is whole


# Nothing left behind.


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_closed_mailbox_leaves_no_thread_and_no_socket() -> None:
    threads, files = threading.active_count(), open_files()
    for _ in range(3):
        with connect_mailboxes(3) as boxes:
            boxes[0].put(1, "not taken", tensors={"x": torch.zeros(1000)})
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("mailbox")]
    assert threading.active_count() <= threads  # a thread that an earlier test left may end
    assert open_files() <= files


def test_a_mailbox_that_cannot_be_opened_leaves_nothing() -> None:
    listeners = [links.listen(2) for _ in range(2)]
    addresses = [listener.getsockname() for listener in listeners]
    files = open_files()
    with pytest.raises(DeadlineExceeded):
        SocketMailbox(0, listeners[0], addresses, TOKEN, 0.05)
    assert open_files() <= files - 1  # the listener is closed too
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("mailbox")]
    listeners[1].close()


def test_mailboxes_listen_on_loopback_unless_an_interface_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def host(**environment: str) -> str:
        for name in ("GNNKIT_LOCAL", "GLOO_SOCKET_IFNAME", "MASTER_ADDR"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with links.listen(1) as listener:
            return str(listener.getsockname()[0])

    assert host() == "127.0.0.1"
    assert host(GNNKIT_LOCAL="1", MASTER_ADDR="192.0.2.1") == "127.0.0.1"
    assert host(MASTER_ADDR="127.0.0.1") == "127.0.0.1"
    assert host(GLOO_SOCKET_IFNAME="lo", MASTER_ADDR="192.0.2.1") == "127.0.0.1"
    with pytest.raises(UserError, match="GLOO_SOCKET_IFNAME=none0: expected an interface with an IPv4 address"):
        host(GLOO_SOCKET_IFNAME="none0")


def exchange_large(comm: Communicator, x: Tensor) -> None:
    """Sends both ways at once."""
    with comm.mailbox() as box:
        for _ in range(3):
            barrier(comm)
            box.put(1 - comm.rank, "x", tensors={"x": x})
            received = box.take("x", timeout=GUARD).tensors["x"]
            assert torch.equal(received, x)
        barrier(comm)


@pytest.mark.slow
def test_large_tensors_cross_each_other_without_a_deadlock() -> None:
    x = torch.arange(2**23, dtype=torch.float32)
    run_gloo(functools.partial(exchange_large, x=x), 2)


def test_a_communicator_of_others_has_mailboxes_for_free() -> None:
    class Others(Threads):
        mailbox = Communicator.mailbox

    def work(comm: Communicator) -> Mailbox:
        with comm.mailbox() as box:
            box.put(1 - comm.rank, "x", {"from": comm.rank})
            assert box.take("x", timeout=GUARD).fields == {"from": 1 - comm.rank}
            barrier(comm)
            return box

    assert all(isinstance(box, SocketMailbox) for box in Others.run(work, 2))
