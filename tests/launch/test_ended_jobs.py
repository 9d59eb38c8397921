"""Every job answers SIGTERM and SIGHUP like Ctrl-C, and leaves nothing behind."""

from __future__ import annotations

import os
import pty
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from gnnkit.__main__ import program
from gnnkit.jobs.job import import_for_training
from tests.cases import few, in_turn
from tests.forked import forked
from tests.processes import in_folder
from tests.waiting import GUARD, wait_until

pytestmark = pytest.mark.slow
DATA = (
    "dataset=synthetic",
    "dataset.num_nodes=600",
    "dataset.num_edges=2400",
    "threads=1",
    "logger=none",
    "report=false",
)
TRAIN = (*DATA, "strategy=vertex_centric", "workers=2", "trainer.max_epochs=1000000", "output=run")
# The arguments of each job, and the text after which the signal is sent.
JOBS = {
    "train": (TRAIN, "epoch 1/"),
    "train on threads": ((*TRAIN, "comm=threads"), "epoch 1/"),
    "compare": (("job=compare", *DATA, *TRAIN[-3:], "compare.ways=[vertex_centric,individual_sample]"), "epoch 1/"),
    "sweep": (("-m", *TRAIN[:-1], "seed=1,2", "hydra.sweep.dir=run"), "epoch 1/"),
    "init": (("job=init", "dataset=edges", "dataset.root=data", "init.minutes=1", "output=new"), "[1 of"),
    "import": (("job=import", "dataset=edges", "dataset.root=data", "workers=1", "output=run"), "job=import"),
}
# The checkpoint to wait for. A busy machine may save none at the signal.
SAVED = dict.fromkeys(("train", "train on threads"), "run/checkpoints/last.json")
SAVED["compare"] = "run/vertex_centric-seed0/checkpoints/last.json"
NUMBERS = [signal.SIGTERM, signal.SIGHUP]


def write_tables(folder: Path, num_nodes: int, num_edges: int) -> None:
    folder.mkdir()
    nodes = [f"{node},{'ab'[node % 2]},{node * 7 % 11}" for node in range(num_nodes)]
    edges = [f"{edge * 17 % num_nodes},{edge * 31 % num_nodes}" for edge in range(num_edges)]
    (folder / "nodes.csv").write_text("\n".join(["id,label,x", *nodes]))
    (folder / "edges.csv").write_text("\n".join(["src,dst", *edges]))


def start(words: Sequence[str], folder: Path) -> None:
    """Runs the program with temporary files in a folder of its own."""
    import tempfile

    os.setsid()
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder / "tmp")
    for number in NUMBERS:
        signal.signal(number, signal.SIG_DFL)
    sys.argv = ["gnnkit", *words]
    program()


def check_left(folder: Path, job: str, text: str) -> None:
    """Checks the messages, and what remains in the folder."""
    assert "Traceback" not in text, text
    assert "gnnkit: error" not in text, text
    assert list((folder / "tmp").iterdir()) == []
    wait_until(lambda: not in_folder(folder))
    if job.startswith("train"):
        assert (folder / "run" / "checkpoints" / "last.json").is_file()


@few(
    "job,number",
    [*in_turn(JOBS, NUMBERS), ("train", signal.SIGHUP)],
    default=[("train", signal.SIGTERM), ("import", signal.SIGHUP)],
)
def test_a_signal_ends_a_job_in_order(job: str, number: signal.Signals, tmp_path: Path) -> None:
    import_for_training()
    words, marker = JOBS[job]
    (tmp_path / "tmp").mkdir()
    write_tables(tmp_path / "data", 400, 600_000 if job == "import" else 2_000)
    with forked(lambda: start(words, tmp_path), tmp_path) as running:
        wait_until(lambda: marker in running.text(), alive=lambda: running.poll() is None)
        if job in SAVED:
            wait_until((tmp_path / SAVED[job]).exists, alive=lambda: running.poll() is None)
        os.kill(running.pid, number)
        code, text = running.ended()
    assert code == 128 + number, text
    check_left(tmp_path, job, text)
    if job.startswith("train"):
        assert "gnnkit: interrupted: " in text
        assert "keeps the last checkpoint" in text
    if job == "compare":
        assert "keeps the runs" in text
        assert (tmp_path / "run" / "vertex_centric-seed0" / "checkpoints" / "last.json").is_file()
    if job == "init":
        assert "interrupted, the best trial so far counts" in text
        assert "model: " in (tmp_path / "new" / "experiment" / "mine.yaml").read_text()


def test_a_closed_terminal_ends_training_with_a_checkpoint(tmp_path: Path) -> None:
    """The kernel sends SIGHUP to all ranks, and writing to the terminal fails."""
    import_for_training()
    (tmp_path / "tmp").mkdir()
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", 1) for number in (1, 2))  # in place of pytest's
        os.setsid = lambda: None  # pty.fork has begun a session
        start((*TRAIN, "trainer.progress_bar=false"), tmp_path)
    output = b""
    while b"training 1000000 epochs" not in output:
        output += os.read(terminal, 1000)
    wait_until((tmp_path / "run" / "checkpoints" / "last.json").exists)
    os.close(terminal)
    deadline = time.monotonic() + GUARD
    while (exits := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.02)
    if exits[0] == 0:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(exits[1]) == 128 + signal.SIGHUP
    check_left(tmp_path, "train", output.decode())
