"""A run with faults, drawn from a seed, and the rules that it must keep."""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import Any

import gnnkit_ray
from gnnkit_ray import __main__ as agents

import gnnkit
from gnnkit.errors import UserError
from gnnkit.jobs import folder, restarts
from gnnkit.jobs.rank_job import RankJob
from gnnkit.launch import child, processes, watchdog
from gnnkit.launch.launcher import RankError
from gnnkit.training import checkpoint, resume, saving
from gnnkit.training.checkpoint import damage, list_checkpoints  # of the rules, also where a test takes these out
from gnnkit.utils import storage
from tests.simulation.cluster import (
    TASKS,
    Actor,
    Cluster,
    PlayedChild,
    PlayedGroup,
    PlayedRanks,
    Process,
    after,
    fake_ray,
)
from tests.simulation.disk import Disk, safe_open
from tests.simulation.world import Signal, Task, World, play

END = 900.0  # seconds after which a run hangs
LEFT = 60.0  # seconds after which no process of a run is left
OURS = ("no restart is left", "the same failure occurred twice at the same step")


class Broken(Exception):
    """A rule was broken."""


@functools.cache
def settings(most: int, on_exists: str) -> Any:
    return gnnkit.config.settings.settle(
        gnnkit.config.compose(["strategy=vertex_centric", f"restarts={most}", f"on_exists={on_exists}"])
    )


@dataclass(frozen=True)
class Asked:
    """What `folder.resume_order` reads of an order."""

    settings: Any
    named_folder: str


@dataclass
class StartOf:
    """A start of all ranks."""

    number: int
    ended: bool = False


class Story:
    """One schedule."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = World(self.random)
        self.disk = Disk(self.world)
        self.world.moved = self.moved  # type: ignore[attr-defined]
        draw = self.random
        self.cluster = Cluster(self.world, self.disk, draw.choice([1, 2, 2, 3, 3]))
        self.ranks, self.steps, self.every = draw.randint(1, 4), draw.randint(4, 10), draw.choice([1, 1, 2, 3])
        self.most, self.keep = draw.randint(0, 3), draw.choice([1, 2, 2, 3])
        self.disk.seconds = draw.choice([0.002, 0.02, 0.1])
        self.cluster.late = draw.choice([0.02, 0.2, 2.0])
        self.identity = resume.Identity({}, {})
        self.folder = self.disk.path("/run")
        self.last = self.disk.path("/run/checkpoints/last.json")
        self.fails_at = (draw.randrange(self.ranks), draw.randrange(self.steps)) if draw.random() < 0.05 else None
        self.driver: Process | None = None
        self.starts: list[StartOf] = []
        self.started_here = 0  # by the driver at hand
        self.failures: list[Any] = []
        self.named = self.durable = 0  # step of the newest checkpoint: with a name, and after a power cut
        self.hurt = False  # the newest checkpoint was damaged, and nothing was saved since
        self.holds = False  # a launching process holds the folder
        self.excused = False  # a full disk or the program may end the run in another way
        self.outcome: Any = None
        self.ending = Signal()
        self.told: list[str] = []
        self.problem: str | None = None

    # What happens

    def play(self) -> None:
        """Plays the schedule. Raises `Broken` for a rule that does not hold."""
        with self._in_place():
            try:
                play(self.world, self._play)
            finally:
                if self.problem is not None:
                    raise Broken(self.problem)

    def _play(self) -> None:
        world = self.world
        for _ in range(self.random.choice([0, 1, 1, 2, 2, 3, 4, 6])):
            fault = self.random.choice(FAULTS)
            world.at(self.random.uniform(0, 6) * self.random.choice([0.3, 1, 2]), functools.partial(fault, self))
        self._begin_driver(resuming=False)
        for again in range(6):
            if not world.until(lambda: self.driver.exitcode is not None, self.driver.died, END):  # type: ignore[union-attr]
                self.break_("the run hangs")
            if self.outcome is not None or self.problem:
                break
            world.sleep(self.random.uniform(0.05, 3))
            self._begin_driver(resuming=True)
            assert again < 5
        self._look_at_end()
        end = world.now + LEFT
        while any(self._running()) and world.now < end:
            world.sleep(1.0)
        if left := list(self._running()):
            self.break_(f"{left[0].name} is left {LEFT:g} s after the run")
        self._look_at_end()
        for task in world.tasks:
            if task is not world.task:
                world.kill(task)
        world.sleep(1.0)

    def _running(self) -> Iterator[Process]:
        for host in self.cluster.hosts:
            yield from (process for process in host.processes if process.exitcode is None)

    def _begin_driver(self, *, resuming: bool) -> None:
        self.driver = process = Process(self.cluster, self.cluster.hosts[0], "the launching process")
        self.started_here, self.outcome = 0, None
        process.begin(functools.partial(self._drive, process, resuming))

        def gone() -> None:
            self.world.until(lambda: process.exitcode is not None, process.died, None)
            self.cluster.driver_died(process)

        self.world.spawn("the cluster", None, gone)

    def _drive(self, process: Process, resuming: bool) -> None:
        """Is the launching process."""
        try:
            request: Any = Asked(settings(self.most, "resume" if resuming else "refuse"), "/run")
            request = folder.resume_order(request)
            with folder.locked(self.folder), self._holding():  # type: ignore[arg-type]
                folder._end_writers(self.folder, request.settings)  # type: ignore[arg-type]
                self.outcome = restarts.restarting(functools.partial(self._start, process), self._job(request))
        except UserError as error:
            again = any(why in str(error) for why in ("is writing there", "try again"))
            self.outcome = None if again else error
        except RankError as error:
            self.outcome = error
        except Exception as error:
            self.break_(f"the launching process fails: {type(error).__name__}: {error}")

    @contextlib.contextmanager
    def _holding(self) -> Iterator[None]:
        if self.holds:
            self.break_("two launching processes hold one folder")
        self.holds = True
        try:
            yield
        finally:
            self.holds = False

    def _job(self, asked: Any) -> RankJob:
        if asked.settings.trainer.resume is not None:
            folder._use_whole_checkpoint(self.folder)  # type: ignore[arg-type]
        elif self.named:
            self.break_(f"a run with a checkpoint of step {self.named} would begin anew, and delete it")
        return RankJob(asked.settings, self.folder, SimpleNamespace())  # type: ignore[arg-type]

    def _start(self, process: Process, job: RankJob) -> dict[str, Any]:
        """Starts the ranks, as `run_ranks` does with launcher=ray."""
        start = StartOf(len(self.starts))
        self.started_here += 1
        if self.started_here > self.most + 1:
            self.break_(f"start {self.started_here} with restarts={self.most}")
        if len(self.failures) >= 2 and self.started_here > 2 and _same(*self.failures[-2:]):
            self.break_("a start after the same failure occurred twice at one step")
        try:
            with job.writing() as own:
                self.starts.append(start)  # from here on no earlier one may write
                self._look_at_newest("a start")
                if job.settings.trainer.resume is None and self.named:
                    self.break_(f"a start from the beginning, with a checkpoint of step {self.named}")
                ranks = PlayedRanks(self.cluster, self, own, start)
                nodes = self._nodes(process)
                actual: dict[str, Any] = gnnkit_ray._RayRun(nodes, ranks).results(lambda: None)[0][0]  # type: ignore[arg-type]
                return actual
        except RankError as error:
            if self.started_here == 1:
                self.failures.clear()
            self.failures.append((error.failure, self.named))
            raise
        finally:
            start.ended = process.exitcode is None  # else it goes on until another one begins

    def _nodes(self, process: Process) -> list[Any]:
        ready = self.cluster.ready()
        while not ready:
            self.world.sleep(0.5)
            ready = self.cluster.ready()
        counts = gnnkit_ray.spread(self.ranks, [4] * len(ready), None)
        return [
            SimpleNamespace(processes=count, agent=functools.partial(Actor, self.cluster, host, process))
            for host, count in zip(ready, counts, strict=False)
        ]

    # Rules

    def break_(self, why: str) -> None:
        if self.problem is None:
            self.problem = why

    def moved(self, target: Any) -> None:
        """Looks at a checkpoint that has just got the name of the newest."""
        if target != self.last:
            return
        process = self.world.task.process
        if process.start is not None and (process.start is not self.starts[-1] or process.start.ended):
            self.break_(f"start {process.start.number} writes while {len(self.starts) - 1} is the newest, or has ended")
        step = self._look_at_newest("a save")
        if process.start is not None and step < self.named:
            self.break_(f"the newest checkpoint goes back from step {self.named} to {step}")
        self.named, self.hurt = max(self.named, step), self.hurt and process.start is None

    def _look_at_newest(self, when: str) -> int:
        """Checks that the newest checkpoint is whole, and as new as one ever was."""
        self.disk.quiet = True
        try:
            if self.hurt or not self.last.is_file():
                step = self._newest_whole()
            elif (problem := damage(self.last)) is not None:  # type: ignore[arg-type]
                self.break_(f"{when}: the newest checkpoint is not whole: {problem}")
                step = self.named
            else:
                step = int(checkpoint.whole_numbers(self.last)["global_step"])  # type: ignore[arg-type]
        finally:
            self.disk.quiet = False
        if step < self.named:
            self.break_(f"{when}: the newest checkpoint is of step {step}, and step {self.named} was there")
        return step

    def _newest_whole(self) -> int:
        quiet, self.disk.quiet = self.disk.quiet, True
        try:
            for file in list_checkpoints(self.last):  # type: ignore[arg-type]
                if damage(file) is None:
                    return int(checkpoint.whole_numbers(file)["global_step"])
            return 0
        finally:
            self.disk.quiet = quiet

    def has_met(self, meeting: Any) -> None:
        if len({id(process.start) for process in meeting.members.values()}) > 1:
            self.break_("ranks of two starts are in one group")

    def has_refused(self) -> None:
        """Takes note that a rank of an earlier start came to a later one."""
        self.excused = True

    def has_read(self, step: int, x: int) -> None:
        if x != after(step):
            self.break_(f"a checkpoint of step {step} holds other weights")

    def agree(self, meeting: Any) -> None:
        if len(meeting.positions) > 1:
            self.break_(f"ranks of one start go on from steps {sorted(meeting.positions)}")

    def may_fail(self, rank: int, step: int) -> None:
        if (rank, step) == self.fails_at:
            self.excused = True
            raise ZeroDivisionError("mine")

    def has_saved(self, step: int) -> None:
        self.durable = max(self.durable, step)

    def _look_at_end(self) -> None:
        """Checks how the run has ended."""
        if self.problem is not None:
            return
        self._look_at_newest("the end")
        if isinstance(self.outcome, dict):
            if (self.outcome["step"], self.outcome["x"]) != (self.steps, after(self.steps)):
                self.break_(f"the run ends with other weights, or at step {self.outcome['step']}")
            if self._newest_whole() != self.steps and not self.hurt:
                self.break_("the last checkpoint of a run that ended well is of an earlier step")
        elif isinstance(self.outcome, RankError):
            if not (self.excused or self.most == 0 or any(ours in str(self.outcome) for ours in OURS)):
                self.break_(f"the run ends with restarts left: {self.outcome}")
        elif not self.excused:
            self.break_(f"a fault of machines ends the run at once: {self.outcome}")

    # Faults

    def _process(self, begin: str) -> Process | None:
        results = [process for process in self._running() if process.name.startswith(begin)]
        return self.random.choice(results) if results else None

    def _kill(self, begin: str) -> None:
        if (process := self._process(begin)) is not None:
            process.end(-9)

    def kill_rank(self) -> None:
        self._kill("rank")

    def kill_leader(self) -> None:
        self._kill("rank 0")

    def kill_agent(self) -> None:
        self._kill("agent")

    def kill_driver(self) -> None:
        self._kill("the launching")

    def begin_another(self) -> None:
        """Starts the command once more, while the first may be at it."""
        host = self.cluster.hosts[0]

        def drive() -> None:
            with contextlib.suppress(UserError), folder.locked(self.folder), self._holding():  # type: ignore[arg-type]
                self.world.sleep(0.1)

        if host.is_up:
            Process(self.cluster, host, "another launching process").begin(drive)

    def kill_actor(self) -> None:
        results = [actor for actor in self.cluster.actors if not actor.is_ended]
        if results:
            self.random.choice(results).end()

    def kill_host(self) -> None:
        host = self.random.choice(self.cluster.hosts)
        if host.is_up:
            self.cluster.lose_power(host, self.random.uniform(0.5, 10))

    def cut_host(self) -> None:
        hosts = [host for host in self.cluster.hosts[1:] if host.is_up and not host.is_cut]
        if hosts:
            self.cluster.cut(self.random.choice(hosts), self.random.uniform(0.3, 40) * self.random.choice([0.1, 1]))

    def preempt_host(self) -> None:
        hosts = [host for host in self.cluster.hosts[1:] if host.is_up and not host.is_cut]
        if hosts:
            self.cluster.preempt(self.random.choice(hosts))

    def stop_process(self) -> None:
        if (process := self._process(self.random.choice(["rank", "rank 0", "agent"]))) is not None:
            process.stopped_until = self.world.now + self.random.uniform(0.1, 30) * self.random.choice([0.1, 1])

    def slow_disk(self) -> None:
        before, self.disk.seconds = self.disk.seconds, self.random.uniform(0.5, 5)

        def mend() -> None:
            self.disk.seconds = before

        self.world.at(self.random.uniform(0.5, 8), mend)

    def fill_disk(self) -> None:
        self.disk.full = self.excused = True

        def mend() -> None:
            self.disk.full = False

        self.world.at(self.random.uniform(0.1, 3), mend)

    def turn_clock(self) -> None:
        self.disk.clock += self.random.uniform(-3600, 3600)

    def black_out(self) -> None:
        """Ends all hosts and the disk, with what was not synced."""
        for host in self.cluster.hosts:
            self.cluster.lose_power(host, 0.01)
        self.disk.cut_power()
        step = self._look_after_loss("a power cut")
        if step < self.durable:
            self.break_(f"a power cut leaves step {step}, and step {self.durable} was saved")
        self.named = self.durable = step

    def damage_newest(self) -> None:
        """Ends all hosts, and damages the newest checkpoint where there is another."""
        for host in self.cluster.hosts:
            self.cluster.lose_power(host, 0.01)
        self.disk.quiet = True
        files = list_checkpoints(self.last)  # type: ignore[arg-type]
        if len(files) > 1 and files[0] == self.last and all(damage(file) is None for file in files):
            named = [checkpoint._named_tensors(file) for file in files]
            places = [self.last] + ([self.last.with_name(named[0])] if named[0] not in named[1:] else [])
            for file in files[1:]:  # a name of the same file is damaged too
                if self.disk.names[str(file)] is self.disk.names[str(self.last)]:
                    places = []
            if places:
                hurt = self.disk.names[str(self.random.choice(places))]
                content = bytearray(hurt.data)
                content[self.random.randrange(len(content))] ^= 1 << self.random.randrange(8)
                hurt.data = hurt.synced = bytes(content)
                self.named = self.durable = self._newest_whole()
                self.hurt = True
        self.disk.quiet = False

    def _look_after_loss(self, when: str) -> int:
        self.disk.quiet = True
        is_there, problem = self.last.is_file(), damage(self.last)  # type: ignore[arg-type]
        self.disk.quiet = False
        if is_there and problem is not None and not self.hurt:
            self.break_(f"{when}: the newest checkpoint is not whole: {problem}")
        return self._newest_whole()

    # The real code in this world

    @contextlib.contextmanager
    def _in_place(self) -> Iterator[None]:
        """Lets the real code run in this world."""
        world, disk, draw = self.world, self.disk, Random(self.random.random())
        names = (f"{number:016x}" for number in itertools.count())
        clock = SimpleNamespace(
            monotonic=lambda: world.now, time=lambda: world.now + disk.clock, time_ns=lambda: int(world.now * 1e9)
        )
        secret = SimpleNamespace(token_hex=lambda size=16: f"{draw.getrandbits(64):016x}{next(names)}"[: 2 * size])

        def silent(*_: Any, **__: Any) -> None:
            """Says nothing."""

        class PlayedThread:
            def __init__(self, target: Any, args: Any, **_: Any) -> None:
                self.do, self.task = functools.partial(target, *args), Task("", None)

            def start(self) -> None:
                self.task = world.task.process.spawn("the writer", self.do)

            def join(self, seconds: float | None = None) -> None:
                world.until(lambda: self.task.ended, self.task.end, seconds)

        def kill(pid: int, number: int) -> None:
            process = self.cluster.by_pid[pid]
            if number == 9:
                process.end(-9)
            elif number == 15 and process.stopped_until <= world.now:
                process.end(-15)
            elif number == 18:
                process.stopped_until = 0.0

        def wait(events: list[Signal], seconds: float) -> None:
            if not any(event.fired for event in events):
                world.wait(events, seconds)

        def save(state: Any, path: Any, *rest: Any) -> None:
            checkpoint.save(state, path, *rest)
            self.has_saved(state["global_step"])

        used = SimpleNamespace(exit=sys.exit, stdin=SimpleNamespace(buffer=None))
        saved = SimpleNamespace(copy_to_host=checkpoint.copy_to_host, save=save)
        patches: list[tuple[Any, str, Any]] = [
            *((module, "time", clock) for module in (restarts, processes, child, watchdog, gnnkit_ray)),
            *((module, "secrets", secret) for module in (storage, checkpoint, processes, gnnkit_ray)),
            *((module, "print", silent) for module in (restarts, processes, watchdog)),
            *((module, "say", silent) for module in (folder,)),
            (storage, "_wait_for", lambda path: path.sync()),
            (resume, "Path", disk.path),
            (folder, "Path", disk.path),
            (folder, "local_path", lambda key, name, *_: disk.path(name)),
            (folder, "os", disk.os),
            (folder, "fcntl", disk.fcntl),
            (saving, "threading", SimpleNamespace(Thread=PlayedThread)),
            (saving, "state", _state),
            (saving, "checkpoint", saved),
            (checkpoint, "safe_open", safe_open),
            (child, "os", SimpleNamespace(kill=kill, getpid=lambda: 1)),
            (processes, "connection", SimpleNamespace(wait=wait)),
            (processes, "is_stopped", self._is_stopped),
            (watchdog, "is_stopped", self._is_stopped),
            (watchdog, "cpu_seconds", lambda pid: 0.0),
            (watchdog, "could_run", lambda pid: False),
            (processes, "Child", PlayedChild),
            (processes, "Group", PlayedGroup),
            (gnnkit_ray, "_nodes", self.cluster.nodes),
            (gnnkit_ray, "_draining", lambda: [host.id for host in self.cluster.hosts if host.draining]),
            (agents, "sys", used),
            (agents, "select", SimpleNamespace(select=self._select)),
            (agents, "unpickled", lambda stream: world.task.process.work),
            (agents, "_enter", lambda folder: None),
        ]
        missing = object()
        before = [(module, name, vars(module).get(name, missing)) for module, name, _ in patches]
        ray = sys.modules.get("ray")
        TASKS.append(world)
        try:
            sys.modules["ray"] = fake_ray(world)
            for module, name, value in patches:
                setattr(module, name, value)
            yield
        finally:
            TASKS.pop()
            sys.modules.pop("ray")
            if ray is not None:
                sys.modules["ray"] = ray
            for module, name, value in before:
                if value is missing:
                    delattr(module, name)
                else:
                    setattr(module, name, value)

    def _is_stopped(self, pid: int) -> bool:
        return self.cluster.by_pid[pid].stopped_until > self.world.now

    def _select(self, readers: list[Any], *_: Any) -> tuple[list[Any]]:
        return (readers if self.world.task.process.stdin_ended else [],)


def _state(trainer: Any, module: Any) -> dict[str, Any]:
    """Stands for `resume.state`."""
    return {
        "state_dict": {"x": module.x},
        "optimizer_states": [],
        "lr_schedulers": [],
        "monitor": None,
        "shard": "",
        **{name: {} for name in ("strategy", "updates", "embedding", "sync", "callbacks")},
    }


def _same(one: Any, other: Any) -> bool:
    """Says whether two failures are one, by rank, cause, step and checkpoint."""
    (first, before), (second, then) = one, other
    fields = ("name", "cause", "step")
    return before == then and all(getattr(first, field) == getattr(second, field) for field in fields)


FAULTS: list[Callable[[Story], None]] = [
    Story.kill_rank,
    Story.kill_rank,
    Story.kill_leader,
    Story.kill_agent,
    Story.kill_driver,
    Story.begin_another,
    Story.kill_actor,
    Story.kill_host,
    Story.cut_host,
    Story.cut_host,
    Story.preempt_host,
    Story.stop_process,
    Story.slow_disk,
    Story.fill_disk,
    Story.turn_clock,
    Story.black_out,
    Story.damage_newest,
]
