"""Signals wait for a place where the work can end. Nothing swallows one."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gnnkit import plugins
from gnnkit.errors import UserError
from gnnkit.launch.processes import run_in_child
from gnnkit.launch.progress import exit_code, progress
from gnnkit.launch.signals import HANDLED, check, defer_signals
from tests.cases import exhaustive
from tests.waiting import GUARD, NEVER

RAISED = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: SystemExit, signal.SIGHUP: SystemExit}


class Finalized:
    """Sends a signal where Python drops exceptions."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        signal.raise_signal(self.number)


def in_finalizer(number: int, folder: Path) -> None:
    Finalized(number)


def in_ctypes_callback(number: int, folder: Path) -> None:
    import ctypes

    ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(number))()


def in_import_of_a_plugin(number: int, folder: Path) -> None:
    (folder / "a_plugin.py").write_text(f"import signal\nsignal.raise_signal({int(number)})\nPlugin = int\n")
    point = importlib.metadata.EntryPoint("mine", "a_plugin:Plugin", "gnnkit.dataset")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setattr(plugins, "find", lambda kind, name: point)
        assert plugins.load("dataset", "mine") is int
    del sys.modules["a_plugin"]


def in_code_that_catches_everything(number: int, folder: Path) -> None:
    try:
        signal.raise_signal(number)
    except BaseException:
        raise AssertionError("the handler has raised") from None


PLACES = [in_finalizer, in_ctypes_callback, in_import_of_a_plugin, in_code_that_catches_everything]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("number", HANDLED)
def test_a_signal_at_any_place_ends_the_work_at_the_next_check(
    number: signal.Signals, place: Callable[[int, Path], None], tmp_path: Path
) -> None:
    before = signal.getsignal(number)
    with defer_signals():
        place(number, tmp_path)
        with pytest.raises(RAISED[number]):
            progress("the next step")
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("number", HANDLED)
@pytest.mark.parametrize("ends", ["well", "by a consequence"])
def test_the_exit_code_is_the_signals_whatever_follows(
    number: signal.Signals, place: Callable[[int, Path], None], ends: str, tmp_path: Path, capsys: Any
) -> None:
    def work() -> int:
        place(number, tmp_path)
        if ends == "well":
            return 0
        raise UserError("model=mine fails on import")

    with defer_signals():
        code = exit_code(work)
    assert code == 128 + number
    assert capsys.readouterr().err == ""


def test_the_work_is_ended_once() -> None:
    """Code that ends the work goes on after the exception."""
    with defer_signals():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            check()
        signal.raise_signal(signal.SIGINT)
        check()


@pytest.mark.parametrize("number", HANDLED)
def test_a_handler_of_the_caller_is_called_at_a_check_and_stays(number: signal.Signals) -> None:
    calls: list[int] = []
    before = signal.signal(number, lambda number, frame: calls.append(number))
    handler = signal.getsignal(number)
    try:
        with defer_signals():
            signal.raise_signal(number)
            assert calls == []
            check()
            assert calls == [number]
            signal.raise_signal(number)
        assert calls == [number, number], "a signal that no check has answered is sent again"
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)


def test_ignored_signals_stay_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with defer_signals():
            signal.raise_signal(signal.SIGINT)
            check()
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_forked_processes_have_the_usual_handlers() -> None:
    """A pool ends its workers by SIGTERM."""
    with defer_signals():
        signal.raise_signal(signal.SIGTERM)  # of this process alone
        context = multiprocessing.get_context("fork")
        runs = context.Event()
        process = context.Process(target=lambda: (runs.set(), time.sleep(NEVER)))
        process.start()
        assert runs.wait(GUARD)
        process.terminate()
        process.join(GUARD)
        assert process.exitcode == -signal.SIGTERM
        with pytest.raises(SystemExit):
            check()


@pytest.mark.slow
def test_an_interrupt_of_a_running_child_reaches_the_caller(tmp_path: Path) -> None:
    def interrupt() -> None:
        Finalized(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_in_child(time.sleep, NEVER, beside=interrupt)


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts a program that answers signals, and waits until it says so."""
    started: list[subprocess.Popen[str]] = []

    def start(body: str) -> subprocess.Popen[str]:
        text = "from gnnkit.launch.signals import ending_process\n" + textwrap.dedent(body)
        process = subprocess.Popen(
            [sys.executable, "-c", text],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


STUCK = """
    import ctypes, time
    from gnnkit.launch import signals
    mutex = ctypes.create_string_buffer(64)
    with ending_process(grace=0.3), signals.if_forced(lambda: print("cleaned up", flush=True)):
        print("ready", flush=True)
        {wait}
    """


@pytest.mark.slow
@pytest.mark.parametrize("number", HANDLED)
@pytest.mark.parametrize(
    "wait",
    [
        "[ctypes.CDLL(None).pthread_mutex_lock(mutex) for _ in range(2)]",
        exhaustive("while True: pass"),
        f"time.sleep({NEVER})",
    ],
)
def test_a_process_whose_work_does_not_look_ends_in_time(number: signal.Signals, wait: str, program: Any) -> None:
    process = program(STUCK.format(wait=wait))
    process.send_signal(number)
    time.sleep(0.1)
    process.send_signal(number)  # as people press Ctrl-C again
    out, errors = process.communicate(timeout=GUARD)
    assert (process.returncode, out, errors) == (128 + number, "cleaned up\n", "")


@pytest.mark.slow
def test_a_rank_that_does_not_look_ends_by_sigterm_alone(tmp_path: Path) -> None:
    """The others of a job step get SIGTERM as well, from a scheduler."""

    def work() -> None:
        (tmp_path / "pid").write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(NEVER)

    with pytest.raises(RuntimeError, match="was ended by SIGTERM"):
        run_in_child(work)
