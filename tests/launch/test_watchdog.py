"""Processes that go on no more: stopped, asleep, looping, or waiting for another."""

from __future__ import annotations

import functools
import os
import re
import resource
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import gnnkit
from gnnkit.comm.process import Gloo
from gnnkit.launch import progress as board
from gnnkit.launch import watchdog
from gnnkit.launch.processes import RankError, launch, run_in_child, waits_in
from gnnkit.launch.progress import progress
from gnnkit.launch.watchdog import FEWEST, PERIOD, Patience, Watchdog, could_run, cpu_seconds
from gnnkit.model.gcn import GCN
from tests.cases import few
from tests.runs import BARE, within_process
from tests.waiting import GUARD, wait_until

NEVER = 1e6  # seconds


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def shows(message: str, action: Callable[[], None]) -> bool:
    """Whether the stacks show `action`. A stopped process may go on meanwhile."""
    return action is stop or f"in {action.__name__}" in message


def loop(seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def work_in_steps(seconds: float) -> str:
    end, step = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        progress(f"step {step}")
        step += 1
        time.sleep(0.05)
    return "done"


def run_a_program(seconds: float) -> int:
    """Waits for a descendant that computes."""
    return os.system(f"timeout {seconds} sh -c 'sh -c \"while :; do :; done\"; :'")


@dataclass
class FakeRank:
    """A process as the watchdog sees it."""

    pid: int
    name: str
    share: float | None = 0.0  # of a core that the process uses. None: unknown
    training: bool = True
    stopped: bool = False
    could_run: bool = False
    count: int = 0
    phase: str = "step 7"
    seconds: float = 0.0  # CPU time

    @property
    def board(self) -> Any:
        return self


Behave = Callable[[float, list[FakeRank]], None]  # changes the ranks. Takes the seconds since the begin
Watch = Callable[..., tuple[float, str] | None]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Watches three ranks in virtual time: `watch(behave, patience, until=...)`.

    Returns the second and the message of the verdict, or None if there is none.
    """

    def watch(
        behave: Behave, patience: Patience, *, until: float = 100.0, tick: float = 0.5
    ) -> tuple[float, str] | None:
        now, ranks = 0.0, [FakeRank(rank, f"rank {rank}") for rank in range(3)]
        monkeypatch.setattr(watchdog, "time", SimpleNamespace(monotonic=lambda: now))
        monkeypatch.setattr(
            watchdog, "cpu_seconds", lambda pid: None if ranks[pid].share is None else ranks[pid].seconds
        )
        monkeypatch.setattr(watchdog, "could_run", lambda pid: ranks[pid].could_run)
        monkeypatch.setattr(watchdog, "is_stopped", lambda pid: ranks[pid].stopped)
        dog = Watchdog(patience)
        while now < until:
            now += tick
            behave(now, ranks)
            for rank in ranks:
                rank.seconds += (rank.share or 0.0) * tick
            if message := dog.look(ranks):
                return now, message
        return None

    return watch


def set_ranks(**values: Any) -> Behave:
    """Sets attributes of all ranks: `set_ranks(share=0.1)`. A list has one for each."""

    def behave(now: float, ranks: list[FakeRank]) -> None:
        for name, value in values.items():
            for rank in ranks:
                setattr(rank, name, value[rank.pid] if isinstance(value, list) else value)

    return behave


PLACES = "rank 0 in step 7, rank 1 in step 7, rank 2 in step 7"
IDLE = Patience(NEVER, 5.0, NEVER)


@pytest.mark.parametrize(
    ("behave", "patience", "seconds", "message"),
    [
        (set_ranks(), IDLE, 5.0, f"no progress for 5 s, and nothing computes: {PLACES}"),
        (set_ranks(share=0.001), IDLE, 5.0, f"no progress for 5 s, and nothing computes: {PLACES}"),
        (set_ranks(share=0.08), IDLE, 5.0, f"no step for 6 s, and no process does more than poll in .*: {PLACES}"),
        (set_ranks(share=0.2), IDLE, 5.0, "no step for 6 s"),
        (set_ranks(share=0.1, training=[False, False, True]), IDLE, 5.0, "no step for 6 s"),
        (set_ranks(share=[0, 0, 1]), Patience(NEVER, 5.0, 8.0), 8.0,
         f"no progress for 9 s of computing, 30 times comm.timeout, which a larger comm.timeout extends: {PLACES}"),
        (set_ranks(stopped=[False, True, False]), Patience(2.0, 5.0, NEVER), 2.0,
         r"rank 1 has been stopped for 2 s \(SIGSTOP\), in step 7$"),
    ],
)  # fmt: skip
def test_ranks_without_progress_are_named_after_the_patience(
    watch: Watch, behave: Behave, patience: Patience, seconds: float, message: str
) -> None:
    actual = watch(behave, patience)
    assert actual is not None
    assert re.match(message, actual[1])
    assert seconds < actual[0] <= seconds + 2 * PERIOD


def report(now: float, ranks: list[FakeRank]) -> None:
    ranks[1].count = int(now / 3)


def stop_and_go_on(now: float, ranks: list[FakeRank]) -> None:
    ranks[0].stopped = int(now) % 4 > 1
    ranks[1].count = int(now)


def run_every_second_look(now: float, ranks: list[FakeRank]) -> None:
    ranks[2].share, ranks[2].could_run = 0.1, int(now) % 2 == 0


@pytest.mark.parametrize(
    "behave",
    [
        report,
        set_ranks(share=[0, 0, 1]),
        set_ranks(share=[0, 0, 0.3]),
        set_ranks(share=[0.1, 0, 0], could_run=[True, False, False]),
        set_ranks(share=[0.01, 0, 0], training=False),
        set_ranks(share=[None, 0, 0]),
        run_every_second_look,
    ],
    ids=["report", "compute", "use a part of a core", "could run", "download", "unknown", "could run now and then"],
)
def test_ranks_that_report_or_work_are_left_alone(watch: Watch, behave: Behave) -> None:
    assert watch(behave, IDLE) is None


def test_a_rank_that_goes_on_in_time_has_not_been_stopped(watch: Watch) -> None:
    assert watch(stop_and_go_on, Patience(2.5, NEVER, NEVER)) is None


def test_time_in_which_the_launcher_was_stopped_does_not_count(watch: Watch) -> None:
    assert watch(set_ranks(), IDLE, until=1000.0, tick=60.0) == (
        180.0,
        f"no progress for 4 s, and nothing computes: {PLACES}",
    )


@pytest.mark.parametrize(
    ("share", "patience", "seconds"),
    [(0.0, IDLE, 20.0), (0.1, IDLE, 20.0), (1.0, Patience(NEVER, NEVER, 5.0), 600.0)],
    ids=["idle", "poll in short sleeps", "compute"],
)
def test_bounds_grow_with_the_time_between_two_signs(
    watch: Watch, share: float, patience: Patience, seconds: float
) -> None:
    def behave(now: float, ranks: list[FakeRank]) -> None:
        ranks[0].count, ranks[0].share = min(int(now), 8), share  # a sign each second, 20 or 600 are the bound

    actual = watch(behave, patience, until=1000.0)
    assert actual is not None
    assert 8 + seconds <= actual[0] <= 8 + seconds + 2 * PERIOD


def test_few_signs_do_not_change_a_bound(watch: Watch) -> None:
    def behave(now: float, ranks: list[FakeRank]) -> None:
        ranks[0].count = min(int(now), FEWEST - 1)

    actual = watch(behave, IDLE)
    assert actual is not None
    assert actual[0] < 8 + FEWEST


@pytest.mark.parametrize(
    ("behave", "told"),
    [
        (set_ranks(share=[0, 1, 0]), "rank 1 in step 7, 2 others wait"),
        (set_ranks(share=1), PLACES),
        (set_ranks(share=1, training=False), None),
        (set_ranks(share=0.01), None),
    ],
    ids=["one", "all", "outside of training", "none"],
)
def test_slow_ranks_of_training_are_named_once(
    watch: Watch, capsys: pytest.CaptureFixture[str], behave: Behave, told: str | None
) -> None:
    def begin_well(now: float, ranks: list[FakeRank]) -> None:
        ranks[0].count = min(int(now), 10)
        behave(now, ranks)

    assert watch(begin_well, Patience(NEVER, NEVER, NEVER)) is None
    output = capsys.readouterr().err
    assert (output == "") if told is None else re.fullmatch(rf"no step for 20 s, longer than usual: {told}\n", output)


def test_the_patience_with_idle_ranks_is_the_deadline_of_transfers() -> None:
    assert Patience.of(120.0) == Patience(10.0, 120.0, 3600.0)
    assert Patience.of(2.0) == Patience(10.0, 10.0, 300.0)


@pytest.mark.slow
@few(
    "function,patience,message",
    [
        (
            stop,
            Patience(0.5, NEVER, NEVER),
            r"the process of stop has been stopped for \d+ s \(SIGSTOP\), in its start",
        ),
        (loop, Patience(NEVER, NEVER, 1.0), r"no progress for \d+ s of computing, .* the process of loop in its start"),
        (lambda: time.sleep(GUARD), Patience(NEVER, 5.0, NEVER), r"no progress for \d+ s, and nothing computes"),
    ],
    default=1,
)
def test_a_child_that_does_not_go_on_is_ended_with_its_stack(
    function: Callable[[], None], patience: Patience, message: str
) -> None:
    with pytest.raises(RankError, match=message) as caught:
        run_in_child(function, patience=patience)
    assert "stacks of " in str(caught.value)
    assert shows(str(caught.value), function)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize(("function", "result"), [(work_in_steps, "done"), (loop, None), (run_a_program, 31744)])
def test_a_child_that_reports_or_computes_is_left_alone(function: Callable[[float], Any], result: Any) -> None:
    assert run_in_child(function, 4.0, patience=Patience(1.0, 2.5, NEVER)) == result


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.alone
def test_a_bound_grows_with_the_time_between_two_signs() -> None:
    def slow_at_last() -> str:
        for step in range(16):
            progress(f"step {step}")
            time.sleep(0.3)
        time.sleep(3.0)  # more than idle, less than 20 steps
        return "done"

    assert run_in_child(slow_at_last, patience=Patience(NEVER, 2.0, NEVER)) == "done"


@pytest.mark.slow
def test_what_is_done_meanwhile_can_end_the_child() -> None:
    calls = []

    def meanwhile() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("nobody waits any more")

    with pytest.raises(RuntimeError, match=r"^nobody waits any more$"):
        run_in_child(time.sleep, 60, meanwhile=meanwhile)


def test_progress_outside_of_started_processes_does_nothing() -> None:
    progress("step 1")


def test_cpu_time_is_unknown_for_a_process_that_is_gone() -> None:
    assert cpu_seconds(2**22 + 1) is None


def rank_that(action: Callable[[], None], patience: Patience, timeout: float, *, before: bool = False) -> str:
    """Runs three ranks that add up for ever. Rank 1 does `action` instead.

    Returns the error.
    """

    def function(rank: int, world_size: int) -> dict[str, Any]:
        progress("the meeting")
        if rank == 0 and before:
            action()
        comm = Gloo.connect(rank, world_size, device=torch.device("cpu"), timeout=timeout)
        for step in range(10_000):
            progress(f"step {step}")
            if rank == 1 and step == 3:
                action()
            comm.all_reduce(torch.ones(2))
        return {}

    with pytest.raises(RankError) as caught:
        launch(function, 3, patience=patience)
    return str(caught.value)


@pytest.mark.slow
@few("action", [stop, loop, lambda: time.sleep(60)], default=[stop])
def test_a_silent_rank_is_blamed_and_not_the_ranks_that_waited_for_it(action: Callable[[], None]) -> None:
    message = rank_that(action, Patience(), timeout=8.0)  # before a stopped rank is named
    first, *others = message.splitlines()
    assert first.startswith("the others have waited until their deadline, comm.timeout, for rank 1 in step 3")
    assert ("(stopped by SIGSTOP)" in first) == (action is stop)
    assert any(re.match("rank [02] failed: (DeadlineExceeded|PeerLost): ", line) for line in others), others
    assert "stacks of rank 1, in step 3" in message
    assert shows(message, action)


@pytest.mark.slow
def test_a_stopped_rank_is_named_before_the_others_give_up() -> None:
    message = rank_that(stop, Patience(3.0, NEVER, NEVER), timeout=GUARD)
    assert re.match(r"rank 1 has been stopped for \d+ s \(SIGSTOP\), in step 3", message)
    assert "rank 0 was running, in step 3" in message
    assert "stacks of rank 0, in step 3" in message
    assert "in all_reduce" in message
    assert re.search(r"(?m)^waiting: rank 0 in all_reduce, (rank 1 in \w+, )?rank 2 in all_reduce$", message)


@pytest.mark.slow
def test_ranks_that_all_wait_for_ever_are_ended() -> None:
    message = rank_that(lambda: time.sleep(60), Patience(NEVER, 3.0, NEVER), timeout=GUARD)
    assert re.match(r"no progress for \d+ s, and nothing computes: rank 0 in step 3, rank 1 in step 3", message)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_leader_that_is_stopped_before_the_ranks_meet_is_named() -> None:
    message = rank_that(stop, Patience(1.0, NEVER, NEVER), timeout=GUARD, before=True)
    assert re.match(r"rank 0 has been stopped for \d+ s \(SIGSTOP\), in the meeting", message)


@pytest.mark.slow
def test_a_fork_that_fails_is_the_error_that_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    fork, calls = os.fork, []

    def failing() -> int:
        calls.append(1)
        if len(calls) == 2:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return fork()

    monkeypatch.setattr(os, "fork", failing)
    with pytest.raises(RankError, match=r"^cannot start rank 1: .*Resource temporarily unavailable; ulimit -u"):
        launch(lambda *_: time.sleep(60), 3)


@pytest.mark.slow
def test_too_many_open_files_are_the_error_that_is_shown() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    launch(lambda *_: {}, 1)  # opens files that stay open
    with socket.socket() as probe:
        lowest = probe.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 6, hard))
    try:
        with pytest.raises(
            RankError, match=r"^cannot start rank \d: .*Too many open files; ulimit -u .* -n open files"
        ):
            launch(lambda *_: time.sleep(60), 3)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def own_gcn(in_features: int, num_classes: int, hang: Callable[[], None], calls: int, ranks: str = "1") -> GCN:
    """Makes a model that hangs on some ranks in the nth call."""

    class Hanging(GCN):
        left = calls

        def forward(self, *arguments: Any) -> torch.Tensor:
            self.left -= 1
            if self.left == 0 and os.environ["RANK"] in ranks:
                hang()
            return super().forward(*arguments)

    return Hanging(in_features, num_classes)


@pytest.mark.slow
@pytest.mark.exhaustive
@few("hang", [stop, loop], default=[stop])
def test_a_rank_that_hangs_in_training_is_blamed_with_its_step(hang: Callable[[], None], tmp_path: Path) -> None:
    with within_process(), pytest.raises(RankError) as caught:
        gnnkit.train(
            strategy="vertex_centric",
            dataset={"name": "synthetic", "num_nodes": 100},
            model=functools.partial(own_gcn, hang=hang, calls=4),
            workers=2,
            comm={"name": "gloo", "timeout": 8.0},
            trainer={"max_epochs": 8, "checkpoint": False, "check_val_every_n_epoch": 8},
            folder=tmp_path / "run",
            **BARE,
        )
    message = str(caught.value)
    assert message.startswith("the others have waited until their deadline, comm.timeout, for rank 1 in step 3")
    if hang is stop:  # goes on while the stacks are written
        assert "rank 1 in step 3 (stopped by SIGSTOP)" in message
    assert "stacks of rank 1" in message
    assert shows(message, hang)
    assert not (tmp_path / "run/prepared").exists()


def turn(seconds: float = 2 * GUARD) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.05)


def trickle(seconds: float = 2.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        loop(0.005)
        time.sleep(0.03)


def turn_in_threads() -> None:
    threads = [threading.Thread(target=turn, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    turn()


def compute(seconds: float = 1.0) -> None:
    """Shares one core with all ranks and with hogs."""
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    hogs = [subprocess.Popen(["timeout", str(seconds), "sh", "-c", "while :; do :; done"]) for _ in range(2)]
    loop(seconds)
    for hog in hogs:
        hog.wait()


def wait_for_program(seconds: float = 1.0) -> None:
    subprocess.run(["timeout", str(seconds), "sh", "-c", "while :; do :; done"], check=False)


def in_training(action: Callable[[], None], patience: Patience, *, trains: bool = True) -> None:
    """Lets three ranks do `action` in the midst of training."""

    def function(rank: int, world_size: int) -> dict[str, Any]:
        board.training(trains)
        progress("step 7")
        action()
        return {}

    launch(function, 3, patience=patience)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.alone
@few("action", [turn, turn_in_threads], default=[turn_in_threads])
def test_ranks_that_all_turn_in_short_sleeps_hang(action: Callable[[], None]) -> None:
    with pytest.raises(RankError, match=r"^no (step|progress) for \d+ s, and no.*: rank 0 in step 7"):
        in_training(action, Patience(NEVER, 1.0, NEVER))


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("action", [compute, wait_for_program])
def test_ranks_that_compute_in_training_are_left_alone(action: Callable[[], None]) -> None:
    in_training(action, Patience(NEVER, 0.5, NEVER))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_outside_of_training_a_little_use_of_the_cpu_is_work() -> None:
    """A download turns in short waits too."""
    in_training(trickle, Patience(NEVER, 1.0, NEVER), trains=False)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.alone
def test_a_model_that_turns_in_short_sleeps_on_all_ranks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "LEAST", 2.0)
    silent = r"^no (step|progress) for \d+ s, and (no process does|nothing computes).* rank 1 in step 3"
    with within_process(), pytest.raises(RankError, match=silent) as caught:
        gnnkit.train(
            strategy="vertex_centric",
            dataset={"name": "synthetic", "num_nodes": 100},
            model=functools.partial(own_gcn, hang=turn, calls=4, ranks="01"),
            workers=2,
            comm={"name": "gloo", "timeout": 5.0},
            trainer={"max_epochs": 8, "check_val_every_n_epoch": 8},
            folder=tmp_path / "run",
            **BARE,
        )
    assert "in turn" in str(caught.value)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_slow_rank_is_named_while_it_works(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "LEAST", 0.5)

    def function(rank: int, world_size: int) -> dict[str, Any]:
        board.training(True)
        for step in range(200):
            progress(f"step {step}")
            time.sleep(0.02)
        (loop if rank == 1 else time.sleep)(5.0)
        return {}

    launch(function, 3, patience=Patience(1.0, NEVER, NEVER))  # looks every 0.2 s
    output = capfd.readouterr().err
    assert re.search(r"(?m)^no step for \d+ s, longer than usual: rank 1 in step 199, 2 others wait$", output)


def test_stacks_name_the_transfer_that_the_main_thread_waits_in() -> None:
    ours, theirs = 'File "/x/gnnkit/comm/', 'File "/x/torch/distributed/distributed_c10d.py", line 1 in'
    second = f'Thread 0x1 (most recent call first):\n  {ours}receiver.py", line 3 in read\n\n'
    begin = "Current thread 0x2 (most recent call first):\n"
    wait, model = 'File "/usr/lib/threading.py", line 320 in wait', 'File "/x/model.py", line 2 in forward'
    assert waits_in(f'{second}{begin}  {theirs} all_reduce\n  {ours}process.py", line 9 in share\n  {model}') == "share"
    assert waits_in(f'{begin}  {wait}\n  {ours}mailbox.py", line 9 in take\n  {model}\n\n{second}') == "take"
    assert waits_in(f'{second}{begin}  {model}\n  {ours}process.py", line 9 in share') is None
    assert waits_in(second) is None
    assert waits_in("") is None


def test_a_process_that_sleeps_could_not_run_and_one_that_computes_could() -> None:
    assert could_run(os.getpid())
    with subprocess.Popen(["sleep", "60"]) as process:
        wait_until(lambda: not could_run(process.pid))
        process.kill()


def test_a_descendant_that_computes_counts() -> None:
    command = ["sh", "-c", "sh -c 'while :; do :; done'; :"]
    with subprocess.Popen(command, start_new_session=True) as process:
        wait_until(lambda: could_run(process.pid) and (cpu_seconds(process.pid) or 0.0) >= 0.05)
        os.killpg(process.pid, signal.SIGKILL)
