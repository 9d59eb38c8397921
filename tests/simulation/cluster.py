"""Hosts, processes and messages, and a launcher as that of Ray above them.

What decides is the real code: `restarting`, `_RayRun` of gnnkit-ray, the report of an
agent, `Group` and `Child`, the token, `Checkpoints`, the lock. Processes, connections,
Ray and the steps of training are played.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from gnnkit.comm import rendezvous
from gnnkit.comm.mailbox import DeadlineExceeded, PeerLost
from gnnkit.errors import UserError
from gnnkit.launch import child, processes
from gnnkit.training import resume
from gnnkit.training.saving import Checkpoints
from tests.simulation.disk import Disk
from tests.simulation.world import Signal, Task, World

TIMEOUT = 20.0  # comm.timeout
SILENCE = 4.0  # seconds after which a connection to a host that is cut off ends
START = 12345


def advance(x: int, step: int) -> int:
    """Is a step of training."""
    return (x * 1103515245 + step + 12345) % 2**31


def after(steps: int) -> int:
    """Returns the weights of a run without a fault."""
    return functools.reduce(advance, range(steps), START)


class Process:
    """A process of a host."""

    _pids = itertools.count(1000).__next__

    def __init__(self, cluster: Cluster, host: Host, name: str, parent: Process | None = None) -> None:
        self.cluster, self.host, self.name = cluster, host, name
        self.pid, self.exitcode, self.stopped_until = Process._pids(), None, 0.0
        self.tasks, self.children = list[Task](), list[Process]()
        self.died, self.sentinel, self.reported = Signal(), Signal(), Signal()
        self.environment: dict[str, str] = {}
        self.start: Any = None  # the start of the ranks that it belongs to
        self.group: Meeting | None = None
        self.work: Any = None
        self.stdin_ended = False
        self.report: bytes | None = None
        host.processes.append(self)
        cluster.by_pid[self.pid] = self
        if parent is not None:
            parent.children.append(self)

    def spawn(self, name: str, do: Callable[[], Any]) -> Task:
        task = self.cluster.world.spawn(name, self, do)
        self.tasks.append(task)
        return task

    def begin(self, do: Callable[[], Any]) -> None:
        """Runs the main thread. The process ends with it."""

        def main() -> None:
            do()
            self.end(0)

        self.spawn(self.name, main)

    def end(self, code: int) -> None:
        """Ends the process, and its children with it, as PR_SET_PDEATHSIG does."""
        if self.exitcode is not None:
            return
        self.exitcode = code  # type: ignore[assignment]
        world = self.cluster.world
        for task in self.tasks:
            world.kill(task)
        self.cluster.disk.close_all(self)
        if self.group is not None:
            self.group.leave(self)
        for signal in (self.died, self.sentinel):
            world.fire(signal)
        for each in self.children:
            world.at(world.random.uniform(0, 0.01), functools.partial(each.end, -9))

    # What `Child` asks of `multiprocessing.Process`.
    def join(self, seconds: float) -> None:
        self.cluster.world.until(lambda: self.exitcode is not None, self.died, seconds)

    # What `Child` asks of the pipe.
    def poll(self) -> bool:
        return self.report is not None or self.exitcode is not None

    def recv_bytes(self) -> bytes:
        if self.report is None:
            raise EOFError
        return self.report

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        return


class Host:
    """A machine. Its id changes when it comes back."""

    _ids = itertools.count().__next__

    def __init__(self, number: int) -> None:
        self.number, self.processes = number, list[Process]()
        self.come_back()

    def come_back(self) -> None:
        self.id = f"{Host._ids():08d}"
        self.is_up, self.seems_up, self.is_cut, self.draining = True, True, False, False

    @property
    def address(self) -> str:
        return f"10.0.0.{self.number}"


class Cluster:
    """The hosts, what the head knows of them, and messages."""

    def __init__(self, world: World, disk: Disk, hosts: int) -> None:
        self.world, self.disk = world, disk
        self.hosts = [Host(number) for number in range(hosts)]
        self.by_pid: dict[int, Process] = {}
        self.meetings: dict[Any, Meeting] = {}
        self.actors: list[Actor] = []
        self.late = 0.05  # seconds of a message, at most

    def reach(self, host: Host, do: Callable[[], None]) -> None:
        """Sends something between the head and a host. Lost if the host has died."""
        known = host.id

        def arrive() -> None:
            if host.id != known or not host.is_up:
                return
            if host.is_cut:
                self.world.at(0.5, arrive)
            else:
                do()

        self.world.at(self.world.random.random() ** 3 * self.late, arrive)

    def lose_power(self, host: Host, away: float) -> None:
        """Ends a host, which comes back later."""
        for process in list(host.processes):
            process.end(-9)
        host.processes.clear()
        host.is_up = False
        self._notice(host, host.id)
        self.world.at(away, lambda: self._bring_back(host))

    def _bring_back(self, host: Host) -> None:
        if not host.is_up:
            host.come_back()

    def _notice(self, host: Host, known: str, after: float | None = None) -> None:
        """Lets the head notice, after a while, that a host does not answer."""

        def look() -> None:
            if host.id == known and (host.is_cut or not host.is_up):
                host.seems_up = False
            if host.id != known or not host.seems_up:
                for actor in self.actors:
                    if actor.host is host and actor.known == known:
                        actor.lose("NodeDiedError")

        self.world.at(self.world.random.uniform(0.3, 6.0) if after is None else after, look)

    def cut(self, host: Host, seconds: float) -> None:
        """Cuts the cable of a host. All reach the disk nevertheless."""
        host.is_cut, known = True, host.id
        self._notice(host, known)
        for meeting in list(self.meetings.values()):
            meeting.cut(host)

        def mend() -> None:
            if host.id != known or not host.is_up:
                return
            host.is_cut = False
            if not host.seems_up:  # it hears that it was given up, and ends
                self.world.at(self.world.random.uniform(0, 3), lambda: self._give_up(host, known))

        self.world.at(seconds, mend)

    def _give_up(self, host: Host, known: str) -> None:
        if host.id == known and host.is_up:
            self.lose_power(host, 0.5)

    def preempt(self, host: Host) -> None:
        host.draining, known = True, host.id
        self.world.at(2.0, lambda: self.lose_power(host, 1.0) if host.id == known and host.is_up else None)

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": host.id, "Alive": host.seems_up} for host in self.hosts]

    def ready(self) -> list[Host]:
        return [host for host in self.hosts if host.seems_up and not host.draining]

    def driver_died(self, driver: Process) -> None:
        """Lets the cluster end the actors of a driver that is gone."""
        for actor in self.actors:
            if actor.driver is driver:
                self.reach(actor.host, functools.partial(self.world.at, self.world.random.uniform(0, 2), actor.end))

    def meet(self, number: int, size: int, process: Process) -> Meeting:
        """Returns the group of a rank, once all are there and have proved the token."""
        environment = process.environment
        key = environment["GNNKIT_STORE"] or (environment["MASTER_ADDR"], environment["MASTER_PORT"])
        if number == 0:
            open_ = self.meetings.get(key)
            if open_ is not None and open_.is_open:
                raise UserError(f"MASTER_PORT={key}: in use")
            self.meetings[key] = Meeting(self.world, size)
        end = self.world.now + TIMEOUT
        while True:
            meeting = self.meetings.get(key)
            if meeting is not None and meeting.is_open and meeting.enter(number, process):
                break
            if self.world.now > end:
                raise DeadlineExceeded(f"rank {number}: timed out waiting for the meeting")
            self.world.sleep(0.05)
        meeting.wait(number, lambda: len(meeting.members) == size)
        meeting.prove(number)
        return meeting


class Meeting:
    """Ranks that are connected to each other."""

    def __init__(self, world: World, size: int) -> None:
        self.world, self.size = world, size
        self.members: dict[int, Process] = {}
        self.changed = Signal()
        self.lost: str | None = None
        self.arrived: set[int] = set()
        self.rounds = 0
        self.positions: set[int] = set()

    @property
    def is_open(self) -> bool:
        return self.lost is None and (0 not in self.members or self.members[0].exitcode is None)

    def enter(self, number: int, process: Process) -> bool:
        """Takes the place of a rank, if it is free and the first one can be reached."""
        first = self.members.get(0)
        apart = first is not None and first.host is not process.host and (first.host.is_cut or process.host.is_cut)
        if number in self.members or apart or number >= self.size:
            return False
        self.members[number], process.group = process, self
        self.world.fire(self.changed)
        return True

    def prove(self, number: int) -> None:
        """Asks all others for an answer that only who knows the token has."""
        request, tokens = b"challenge", {rank: each.environment["GNNKIT_TOKEN"] for rank, each in self.members.items()}
        for peer, token in tokens.items():
            known, message = (
                rendezvous._answer(each.encode(), request, peer, number) for each in (tokens[number], token)
            )
            if known != message:
                raise UserError(f"rank {peer} does not know the token of this run")

    def all_reduce(self, number: int) -> None:
        """Waits for all members."""
        mine = self.rounds
        self.arrived.add(number)
        if len(self.arrived) == self.size and not self._is_apart():
            self._complete()
        self.wait(number, lambda: self.rounds > mine)

    def wait(self, number: int, is_so: Callable[[], bool]) -> None:
        actual = self.world.until(lambda: is_so() or self.lost is not None, self.changed, TIMEOUT)
        if is_so():
            return
        if not actual:
            raise DeadlineExceeded(f"rank {number}: timed out after {TIMEOUT:g} s waiting for its peers")
        raise PeerLost(f"rank {number}: lost its peer {self.lost}: connection closed", 0)

    def leave(self, process: Process) -> None:
        self.world.at(self.world.random.uniform(0.001, 0.05), lambda: self._lose(process.name))

    def cut(self, host: Host) -> None:
        """Ends the connections of a host that stays cut off."""
        if not any(member.host is host for member in self.members.values()):
            return

        def look() -> None:
            if self._is_apart():
                self._lose(f"host {host.number}")
            elif len(self.arrived) == self.size:
                self._complete()

        for seconds in (0.5, 1.0, 2.0, 3.0, SILENCE):
            self.world.at(seconds, look if seconds == SILENCE else self._look_again)

    def _look_again(self) -> None:
        if len(self.arrived) == self.size and not self._is_apart():
            self._complete()

    def _is_apart(self) -> bool:
        hosts = {member.host for member in self.members.values()}
        return len(hosts) > 1 and any(host.is_cut for host in hosts)

    def _complete(self) -> None:
        self.rounds += 1
        self.arrived.clear()
        self.world.fire(self.changed)

    def _lose(self, why: str) -> None:
        self.lost = self.lost or why
        self.world.fire(self.changed)


class RayError(Exception):
    """An error of Ray."""


class Reference:
    """A result of Ray that may come."""

    def __init__(self, world: World) -> None:
        self.world, self.value, self.error = world, None, None
        self.signal, self.is_done = Signal(), False

    def settle(self, value: Any = None, error: Exception | None = None) -> None:
        if not self.is_done:
            self.value, self.error, self.is_done = value, error, True  # type: ignore[assignment]
            self.world.fire(self.signal)


class Actor:
    """The agent of a host, as the driver sees it. `remote` of its methods sends."""

    def __init__(self, cluster: Cluster, host: Host, driver: Process) -> None:
        self.cluster, self.host, self.known, self.driver = cluster, host, host.id, driver
        self.references: list[Reference] = []
        self.agent: Process | None = None
        self.is_ended = False
        cluster.actors.append(self)
        for name in ("place", "run", "stop"):
            setattr(self, name, SimpleNamespace(remote=functools.partial(self._call, getattr(self, f"_{name}"))))

    def _call(self, method: Callable[..., None], *arguments: Any) -> Reference:
        reference = Reference(self.cluster.world)
        self.references.append(reference)
        if self.host.id != self.known or not self.host.seems_up:
            reference.settle(error=RayError("NodeDiedError"))
        else:
            self.cluster.reach(self.host, lambda: None if self.is_ended else method(reference, *arguments))
        return reference

    def lose(self, reason: str) -> None:
        for reference in self.references:
            reference.settle(error=RayError(reason))

    def end(self) -> None:
        """Ends the actor. Its agent hears so by the end of standard input."""
        self.is_ended = True
        if self.agent is not None:
            self.agent.stdin_ended = True
        self.lose("ActorDiedError")

    def _place(self, reference: Reference) -> None:
        world = self.cluster.world
        port = world.random.randint(1, 2)  # few, so that starts meet at one
        self._answer(reference, (self.host.id, self.host.address, port))

    def _answer(self, reference: Reference, value: Any) -> None:
        self.cluster.reach(self.host, lambda: reference.settle(value))

    def _run(self, reference: Reference, ranks: Any, places: Any, folder: str) -> None:
        self.agent = agent = Process(self.cluster, self.host, f"agent of host {self.host.number}")
        agent.start, agent.work = ranks.start, (ranks, places)

        def main() -> None:
            from gnnkit_ray import __main__ as agents

            try:
                report = agents._report(folder)
            except SystemExit:
                report = {"error": "the ranks were stopped", "is_user_error": False, "failure": {"lost_peer": True}}
            agent.report = json.dumps(report).encode()

        def tell() -> None:
            self.cluster.world.until(lambda: agent.exitcode is not None, agent.died, None)
            lost = {"lost": "its agent died"}
            self._answer(reference, lost if agent.report is None else json.loads(agent.report))

        agent.begin(main)
        self.cluster.world.spawn("actor", None, tell)

    def _stop(self, reference: Reference) -> None:
        if self.agent is not None:
            self.agent.stdin_ended = True


def fake_ray(world: World) -> Any:
    """Makes what gnnkit-ray calls of Ray."""

    def get(what: Any, timeout: float | None = None) -> Any:
        if isinstance(what, list):
            end = math.inf if timeout is None else world.now + timeout
            return [get(each, end - world.now) for each in what]
        if not world.until(lambda: what.is_done, what.signal, timeout):
            raise RayError("GetTimeoutError")
        if what.error is not None:
            raise what.error
        return what.value

    def wait(what: Sequence[Reference], num_returns: int = 1, timeout: float | None = None) -> Any:
        end = None if timeout is None else world.now + timeout
        while True:
            done = [each for each in what if each.is_done]
            seconds_left = None if end is None else end - world.now
            if len(done) >= num_returns or (seconds_left is not None and seconds_left <= 0):
                return done[: len(done)], [each for each in what if not each.is_done]
            world.wait([each.signal for each in what], seconds_left)

    def kill(actor: Actor) -> None:
        actor.cluster.reach(actor.host, actor.end)
        actor.lose("ActorDiedError")

    return SimpleNamespace(get=get, wait=wait, kill=kill, exceptions=SimpleNamespace(RayError=RayError))


class PlayedChild(child.Child):
    """A process that a group starts."""

    def start(self) -> None:
        agent = TASKS[-1].task.process
        environment, function, arguments = self._work
        process = Process(agent.cluster, agent.host, self.name, agent)
        process.environment, process.start, process.board = dict(environment), agent.start, self.board
        self._process = self._reader = process  # type: ignore[assignment]
        self._stacks = None

        def main() -> None:
            try:
                report = {"result": function(*arguments)}
            except Exception as error:
                kind, mendable = type(error).__name__, isinstance(error, UserError)
                report = {
                    "error": f"{kind}: {error}",
                    "message": str(error),
                    "is_user_error": mendable,
                    "traceback": "",
                }
            process.report = json.dumps(report).encode()
            agent.cluster.world.fire(process.reported)

        process.begin(main)

    def events(self) -> list[Any]:
        return [self._process.sentinel, *([self._process.reported] if self._reader else [])]


class PlayedGroup(processes.Group):
    """A group that starts its processes without a thread."""

    def run(self) -> dict[int, Any]:
        with self._ending():
            for child in self._children:
                child.start()
            self._start_event.set()
            try:
                self._watch()
            except (KeyboardInterrupt, SystemExit):
                self._let_save()
                raise
        return {number: child.report.result for number, child in enumerate(self._children) if not child.lost}


TASKS: list[World] = []  # the world at hand


class PlayedRanks:
    """The ranks of a start, which take steps and save checkpoints."""

    comm = SimpleNamespace(device_type="cpu")
    timeout = TIMEOUT

    def __init__(self, cluster: Cluster, story: Any, job: Any, start: Any) -> None:
        self.cluster, self.story, self.job, self.start = cluster, story, job, start
        self.processes = story.ranks
        self.names = [f"rank {rank}" for rank in range(self.processes)]

    def run_several(self, number: int) -> list[Any]:
        world, story, job = self.cluster.world, self.story, self.job
        process = world.task.process
        world.sleep(world.random.uniform(0.05, 0.4))
        try:
            meeting = self.cluster.meet(number, self.processes, process)
        except UserError:
            story.has_refused()
            raise
        story.has_met(meeting)
        step, x = 0, START
        if job.settings.trainer.resume is not None:
            state = resume.load(job.settings.trainer.resume)
            step, x = state["global_step"], int(state["state_dict"]["x"][0])
            story.has_read(step, x)
        meeting.positions.add(step)
        meeting.all_reduce(number)
        story.agree(meeting)
        path = job.folder / resume.FILE
        with Checkpoints(path, story.identity, story.keep, job.writer) as checkpoints:
            while step < story.steps:
                process.board.step, process.board.epoch, process.board.training = step + 1, step + 1, True
                process.board.count += 1
                world.sleep(world.random.uniform(0.02, 0.15))
                story.may_fail(number, step)
                meeting.all_reduce(number)
                x, step = advance(x, step), step + 1
                checkpoints.look()
                if number == 0 and (step % story.every == 0 or step == story.steps):
                    checkpoints.save(*_state_of(step, x), (step, 0))
            process.board.training = False
        return [{"x": x, "step": step}]


def _state_of(step: int, x: int) -> tuple[Any, Any]:
    """Returns what `Checkpoints.save` reads of a trainer and a module."""
    module = SimpleNamespace(
        settle=lambda: None,
        embedding=None,
        sync=None,
        drifts=False,
        x=torch.tensor([x, step]),
        worker=SimpleNamespace(comm=SimpleNamespace(rank=0, device=torch.device("cpu"))),
        strategy=SimpleNamespace(steps=SimpleNamespace(keep_state=False)),
    )
    return SimpleNamespace(global_step=step), module
