"""Runs a gnnkit command on hosts of this machine that a slow link joins.

    sudo uv run python benchmarks/link.py --hosts 4 strategy=vertex_centric \\
        partition=2d threads=1 trainer.max_epochs=20 output=/tmp/run1
    sudo uv run python benchmarks/link.py --quick   # measures the link, trains 3 epochs

A host is a network namespace. One end of a veth pair is the card of the host, and the
other end is a port of a bridge. Both ends send at the rate of the link (tc-tbf), so a
host sends and receives at this rate, and two senders share a receiver. Cards delay
packets by the latency (tc-netem). A kernel without netem adds nothing to the latency of
the machine itself, and `--latency` is refused there. The link is measured before the
command starts: rate of a transfer, and round trip of one byte.

Ranks are started as torchrun starts them, one to a host (`--ranks-per-host`). They
share disk, memory and cores, so `output` needs no shared disk and `threads=1` is fair.
Needs root and iproute2. Bridge and hosts are removed at the end, after an error and
after Ctrl-C. What a killed process has left is removed by the next command.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

CARD = "eth0"  # of every host, in its own namespace
PORT = 29500  # of the meeting point, on the first host
BURST = 10_000  # bytes sent at once after a pause, for each Gb/s. Fewer cost more CPU
QUEUE = "1mb"  # of a port
GRACE = 10.0  # seconds for the other ranks to report, once one has failed
DEFAULT_LATENCY = 0.1  # ms
CLONE_NEWNET, PR_SET_PDEATHSIG = 0x40000000, 1
NAMESPACES = Path("/run/netns")  # where iproute2 keeps names
QUICK = ["strategy=vertex_centric", "dataset=synthetic", "dataset.num_nodes=2000", "threads=1", "trainer.max_epochs=3"]


class Unavailable(RuntimeError):
    """Raised where this machine or user cannot make a link."""


@dataclass(frozen=True)
class Shape:
    """The card of every host, in each direction."""

    gigabits: float = 1.0  # Gb/s
    latency: float | None = None  # ms one way. None: DEFAULT_LATENCY where the kernel delays packets

    def __str__(self) -> str:
        delay = "no added latency" if self.latency is None else f"{self.latency:g} ms"
        return f"{self.gigabits:g} Gb/s, {delay}"


@dataclass(frozen=True)
class Measured:
    """The link as two sockets see it."""

    gigabits: float  # Gb/s of a long transfer, payload
    round_trip: float  # ms of one byte between two threads, median

    def __str__(self) -> str:
        return f"{self.gigabits:.3f} Gb/s, round trip {self.round_trip:.3f} ms"


class Network:
    """Hosts on one bridge, for the time of a `with` statement."""

    def __init__(self, num_hosts: int, shape: Shape) -> None:
        self.num_hosts, self.shape = num_hosts, shape
        self.name = f"gk{os.getpid()}"  # of the bridge. Names of interfaces have at most 15 characters

    def __enter__(self) -> Network:
        check_machine()
        remove_leftovers()
        try:
            _run("ip", "link", "add", self.name, "type", "bridge")
            _run("ip", "link", "set", self.name, "up")
            for host in range(self.num_hosts):
                self._add_host(host)
            self.shape = Shape(self.shape.gigabits, self._latency())
            for host in range(self.num_hosts):
                self._shape_host(host)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._remove()

    def host(self, number: int) -> str:
        """Returns the name of a host, which its namespace and its port bear."""
        return f"{self.name}.{number}"

    @staticmethod
    def address(number: int) -> str:
        return f"10.77.{(number + 1) // 256}.{(number + 1) % 256}"

    def command(self, number: int) -> list[str]:
        """Returns the words before a command that runs on a host."""
        return ["ip", "netns", "exec", self.host(number)]

    def sent(self) -> list[int]:
        """Returns the bytes that each host has sent so far, headers included."""
        files = [Path(f"/sys/class/net/{self.host(i)}/statistics/rx_bytes") for i in range(self.num_hosts)]
        return [int(file.read_text()) for file in files]

    def measure(self, size: int = 64 << 20, rounds: int = 200) -> Measured:
        """Measures the link between the first two hosts.

        Args:
            size: Bytes of the long transfer. Default: 64 MiB.
            rounds: Number of round trips. Default: 200.
        """
        with self._connected() as (near, far):
            gigabits = 8e-9 * size / _transfer(near, far, size)
            threading.Thread(target=_echo, args=[far, rounds]).start()
            return Measured(gigabits, 1e3 * statistics.median(_round_trip(near) for _ in range(rounds)))

    def run(self, overrides: Sequence[str], ranks_per_host: int = 1, output: IO[str] | None = None) -> int:
        """Runs `python -m gnnkit` on all hosts. Returns 0, or a rank's other exit code.

        Args:
            overrides: Of the command.
            ranks_per_host: Number of ranks on each host. Default: 1.
            output: Takes what ranks print. Default: the terminal.
        """
        processes: list[subprocess.Popen[str]] = []
        try:
            for rank in range(self.num_hosts * ranks_per_host):
                processes.append(self._start(rank, ranks_per_host, overrides, output))
            return _wait(processes)
        finally:
            end(processes)

    def _start(
        self, rank: int, ranks_per_host: int, overrides: Sequence[str], output: IO[str] | None
    ) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(self.num_hosts * ranks_per_host),
            "LOCAL_RANK": str(rank % ranks_per_host),
            "LOCAL_WORLD_SIZE": str(ranks_per_host),
            "MASTER_ADDR": self.address(0),
            "MASTER_PORT": str(PORT),
            "GLOO_SOCKET_IFNAME": CARD,
        }
        command = [*self.command(rank // ranks_per_host), sys.executable, "-m", "gnnkit", *overrides]
        return subprocess.Popen(
            command,
            env=environment,
            stdout=output,
            stderr=output,
            text=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - one system call, before any thread starts
        )

    def _add_host(self, number: int) -> None:
        name = self.host(number)
        _run("ip", "netns", "add", name)
        _run("ip", "link", "add", name, "type", "veth", "peer", "name", CARD, "netns", name)
        _run("ip", "link", "set", name, "master", self.name, "up")
        _run("ip", "-n", name, "address", "add", f"{self.address(number)}/16", "dev", CARD)
        for interface in ("lo", CARD):
            _run("ip", "-n", name, "link", "set", interface, "up")

    def _latency(self) -> float | None:
        """Returns the latency to add. Raises `Unavailable` without netem."""
        try:
            _run("tc", "-n", self.host(0), "qdisc", "replace", "dev", CARD, "root", "netem", "delay", "1ms")
        except Unavailable as error:
            if self.shape.latency is None:
                return None
            raise Unavailable(f"--latency {self.shape.latency:g}: this kernel has no netem ({error})") from None
        _run("tc", "-n", self.host(0), "qdisc", "delete", "dev", CARD, "root")
        return DEFAULT_LATENCY if self.shape.latency is None else self.shape.latency

    def _shape_host(self, number: int) -> None:
        name, parent = self.host(number), ["root"]
        rate, burst = f"{self.shape.gigabits * 1e3:.0f}mbit", str(int(BURST * max(self.shape.gigabits, 1)))
        bucket = ["tbf", "rate", rate, "burst", burst, "limit", QUEUE]
        card = ["tc", "-n", name, "qdisc", "add", "dev", CARD]
        if self.shape.latency:
            delay = ["netem", "delay", f"{self.shape.latency * 1e3:.0f}us", "limit", "10000"]
            _run(*card, "root", "handle", "1:", *delay)
            parent = ["parent", "1:1"]
        _run(*card, *parent, *bucket)
        _run("tc", "qdisc", "add", "dev", name, "root", *bucket)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[tuple[socket.socket, socket.socket]]:
        with inside(self.host(1)):
            listener = socket.create_server((self.address(1), 0))
        with inside(self.host(0)):
            near = socket.create_connection(listener.getsockname(), timeout=10)
        with listener, near, listener.accept()[0] as far:
            for endpoint in (near, far):
                endpoint.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                endpoint.settimeout(60)
            yield near, far

    def _remove(self) -> None:
        """Removes hosts, with their cards and ports, and the bridge."""
        for host in range(self.num_hosts):
            if (NAMESPACES / self.host(host)).exists():
                _run("ip", "netns", "delete", self.host(host))
        remove_interfaces(self.name)


def check_machine() -> None:
    """Raises `Unavailable` without root or iproute2."""
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if sys.platform != "linux" or missing:
        raise Unavailable(f"needs Linux with iproute2, here are no {' and '.join(missing) or 'namespaces'}")
    if os.geteuid():
        raise Unavailable("needs root, to make network namespaces: run the command with sudo")


def remove_leftovers() -> None:
    """Removes hosts and bridges of processes that have ended."""
    for path in NAMESPACES.glob("gk*.*") if NAMESPACES.exists() else ():
        if _ended(path.name.partition(".")[0]):
            _run("ip", "netns", "delete", path.name)
    for interface in Path("/sys/class/net").glob("gk*"):
        if _ended(interface.name.partition(".")[0]):
            remove_interfaces(interface.name)


def remove_interfaces(name: str) -> None:
    """Removes a bridge, or a port whose host has not gone yet."""
    for interface in Path("/sys/class/net").glob(f"{name}*"):
        with contextlib.suppress(Unavailable):  # a port goes with its host
            _run("ip", "link", "delete", interface.name)


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Lets this thread open sockets in the namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open() as own_namespace, (NAMESPACES / namespace).open() as other_namespace:
        if libc.setns(other_namespace.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the namespace {namespace}")
        try:
            yield
        finally:
            libc.setns(own_namespace.fileno(), CLONE_NEWNET)


def end(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Ends the processes that still run, in order where they answer in time."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(processes: Sequence[subprocess.Popen[str]]) -> int:
    """Waits for all processes, for `GRACE` seconds once one has failed."""
    deadline = float("inf")
    while time.monotonic() < deadline:
        codes = [process.poll() for process in processes]
        if None not in codes:
            return next((code for code in codes if code), 0)
        if any(codes):
            deadline = min(deadline, time.monotonic() + GRACE)
        time.sleep(0.1)
    return next(code for code in (process.poll() for process in processes) if code)


def _transfer(near: socket.socket, far: socket.socket, size: int) -> float:
    """Returns the seconds from the first byte to the last of a transfer."""
    sender = threading.Thread(target=near.sendall, args=[bytes(size)])
    begin = time.perf_counter()
    sender.start()
    while size:
        size -= len(far.recv(min(size, 1 << 20)))
    sender.join()
    return time.perf_counter() - begin


def _echo(far: socket.socket, rounds: int) -> None:
    for _ in range(rounds):
        far.sendall(far.recv(1))


def _round_trip(near: socket.socket) -> float:
    begin = time.perf_counter()
    near.sendall(b"?")
    near.recv(1)
    return time.perf_counter() - begin


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _ended(name: str) -> bool:
    """Whether the name is of a process that has ended."""
    match = re.fullmatch(r"gk(\d+)", name)
    return match is not None and not Path(f"/proc/{match[1]}").exists()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"{' '.join(command)}: {done.stderr.strip()}")


def stop_in_order() -> None:
    """Lets SIGTERM end this process as an exception does, so that hosts are removed."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that describe a link."""
    parser.add_argument("--gigabits", type=float, default=1.0, help="rate of every card, Gb/s (default: 1)")
    parser.add_argument("--latency", type=float, help="ms one way (default: 0.1 if the kernel has netem, else none)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--ranks-per-host", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="train for three epochs on two hosts")
    parser.add_argument("overrides", nargs="*", help="of gnnkit. None: only measures the link")
    add_arguments(parser)
    options = parser.parse_args()
    stop_in_order()
    overrides, num_hosts = (QUICK, 2) if options.quick else (options.overrides, options.hosts)
    if num_hosts < 2:
        parser.error("--hosts must be 2 or more")
    try:
        with Network(num_hosts, Shape(options.gigabits, options.latency)) as network:
            print(f"{num_hosts} hosts, {network.shape}; measured {network.measure()}", flush=True)
            before = network.sent()
            code = network.run(overrides, options.ranks_per_host) if overrides else 0
            sent_bytes = [after - begin for after, begin in zip(network.sent(), before, strict=True)]
            print(f"MB sent by each host: {' '.join(f'{bytes_ / 1e6:.2f}' for bytes_ in sent_bytes)}")
            return code
    except Unavailable as error:
        print(f"link.py: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
