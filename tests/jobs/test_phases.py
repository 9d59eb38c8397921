"""What a run says meanwhile: on a terminal, in a pipe, to a reader who leaves."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from gnnkit.__main__ import program
from gnnkit.leader.epochs import Rates, duration, short

COMMAND = [sys.executable, "-m", "gnnkit", "strategy=vertex_centric", "workers=2", "threads=1", "dataset=synthetic"]
KEYS = ["dataset.num_nodes=300", "dataset.num_edges=900", "cache=false", "trainer.checkpoint=false"]
PHASES = ["checking the configuration", "reading dataset=synthetic", "partitioning 300 nodes", "cutting", "starting 2 ranks",
          "training 3 epochs", "evaluating", "drawing report.html"]  # fmt: skip
DEADLINE = 120.0


@pytest.fixture(scope="module", autouse=True)
def within() -> None:
    """Takes the place of the fixture that keeps runs in the process of the test."""


def command(folder: Path, *keys: str) -> list[str]:
    return [*COMMAND, *KEYS, "trainer.max_epochs=3", f"output={folder}", *keys]


def forked(arguments: Sequence[str], streams: Sequence[int], close: int) -> int:
    """Runs the program in a fork, whose standard streams are given. Returns its id.

    An interpreter would first import for two seconds. `close` is the end that the
    reader holds.
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        os.close(close)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        for number, kept in ((1, sys.stdout), (2, sys.stderr)):  # handlers of logs keep the streams of pytest
            os.dup2(number, kept.fileno())
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode) for number, mode in enumerate("rww"))
        sys.argv = ["gnnkit", *arguments]
        os.environ["TERM"] = "xterm-256color"
        program()
    finally:
        os._exit(70)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_pipe_gets_a_plain_line_for_each_phase_from_the_first_second(tmp_path: Path) -> None:
    with subprocess.Popen(
        command(tmp_path / "run", "comm=threads", "logger=none"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as run:
        assert run.stdout is not None
        first = run.stdout.readline()
        assert not (tmp_path / "run/result.json").exists(), "the first line comes long before the end"
        text = first + run.stdout.read()
    assert run.returncode == 0
    assert "checking the configuration" in first
    assert "\x1b" not in text
    phases = re.findall(r"^ *(\d+\.\d) s  (.*)$", text, re.MULTILINE)
    assert len(phases) == len(PHASES)
    assert all(
        line.startswith(("job=train: ", "")) and phase in line for phase, (_, line) in zip(PHASES, phases, strict=True)
    )
    seconds = [float(at) for at, _ in phases]
    assert seconds == sorted(seconds)
    assert seconds[0] < 6  # the clock begins with the job
    status = re.findall(
        r"^epoch (\d+)/3  train_loss [\d.]+  (\S+) seeds/s  (\S+) edges/s  (\S+) bytes/s(.*)$", text, re.MULTILINE
    )
    assert (status[0][0], status[-1][0]) == ("1", "3")
    assert status[-1][-1].endswith("0 s left")


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_terminal_also_shows_progress_and_speed(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    keys = ("trainer.max_epochs=30",)
    run = forked(command(tmp_path / "run", *keys)[3:], [slave] * 3, close=master)
    os.close(slave)
    text = b""
    end = time.monotonic() + DEADLINE
    try:
        while time.monotonic() < end and (part := os.read(master, 1 << 16)):
            text += part
    except OSError:  # the terminal has no more writers
        pass
    os.close(master)
    assert os.waitstatus_to_exitcode(os.waitpid(run, 0)[1]) == 0
    shown = text.decode()
    for phase in (
        "checking the configuration",
        "partitioning 300 nodes",
        "evaluating",
        "epoch",
        "left",
        "seeds/s",
        "gradient",
        "exchange",
    ):
        assert phase in shown
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown
    assert shown.rstrip().splitlines()[-1].startswith("written to")
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l"), "the cursor is back"


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_reader_who_leaves_after_a_line_loses_nothing_of_the_run(tmp_path: Path) -> None:
    keys = ("comm=threads", "logger=none", "trainer.max_epochs=1")
    with subprocess.Popen(command(tmp_path / "run", *keys), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as run:
        assert run.stdout is not None
        assert b"checking" in run.stdout.readline()
        run.stdout.close()
    assert run.returncode == 0
    assert {"result.json", "report.html", "predictions.npy"} <= {path.name for path in (tmp_path / "run").iterdir()}


def test_rates_are_of_the_last_seconds() -> None:
    now = 0.0
    rates = Rates(lambda: now)
    for step in range(1000):
        now += 0.5
        rates.add(10 if step < 500 else 20, 1000, 0)
    assert str(rates) == "40 seeds/s  2k edges/s  0 bytes/s"


@pytest.mark.parametrize(
    ("number", "expected"), [(0, "0"), (12.34, "12.3"), (1234, "1.23k"), (5e6, "5M"), (2.5e9, "2.5G")]
)
def test_numbers_are_short(number: float, expected: str) -> None:
    assert short(number) == expected


@pytest.mark.parametrize(("seconds", "expected"), [(0.2, "0 s"), (59, "59 s"), (125, "2 min 5 s"), (7300, "2 h 1 min")])
def test_durations_are_as_people_say_these(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected
