"""Training from interactive sessions: a kernel of Jupyter, IPython, `python -i`."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cases import exhaustive
from tests.forked import Forked
from tests.waiting import GUARD

SHELLS = ["code"] + (["IPython"] if importlib.util.find_spec("IPython") else [])
CODE = """
import sys, gnnkit
result = gnnkit.train(strategy="vertex_centric", workers=2, threads=1, folder=sys.argv[1] + "/run",
                      dataset={"name": "synthetic", "num_nodes": 60}, trainer={"max_epochs": 2}, report=False, logger="none")

print("interactive", hasattr(sys, "ps1"), "epochs", result["epochs"])
"""


@pytest.fixture(scope="module", autouse=True)
def within() -> None:
    """Takes the place of the fixture that keeps runs in the process of the test."""


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("shell", SHELLS)
def test_ranks_train_from_an_interactive_session(tmp_path: Path, shell: str) -> None:
    (tmp_path / "code.py").write_text(CODE)
    command = (
        ["-i", "-q", "-", str(tmp_path)]
        if shell == "code"
        else ["-m", "IPython", "-i", str(tmp_path / "code.py"), str(tmp_path)]
    )
    done = subprocess.run(
        [sys.executable, *command],
        input=CODE if shell == "code" else "exit\n",
        capture_output=True,
        text=True,
        timeout=3 * GUARD,
        check=False,
    )
    assert "interactive True epochs 2" in done.stdout, done.stderr


CHILDREN = """
import os, subprocess
command = ["ps", "--no-headers", "-o", "args", "--ppid", str(os.getpid())]
lines = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
left = [line for line in lines if not line.startswith("ps ")]
print(f"left: {left}")
"""


def be_kernel(connection_file: str) -> None:
    """Makes this process a kernel, with a process group of its own as Jupyter does."""
    from ipykernel.kernelapp import IPKernelApp

    os.setsid()
    os.environ["JPY_PARENT_PID"] = str(os.getppid())  # without which the kernel outlives the tests
    os.environ.pop("PYTEST_CURRENT_TEST", None)  # where it is set, a kernel reads no output of other processes
    torch.set_num_threads(1)  # the threads of OpenMP do not survive a fork
    IPKernelApp.launch_instance(["-f", connection_file])


class Notebook:
    """A kernel of Jupyter, which runs cells, in a fork.

    A thread of the kernel reads what other processes print, maybe after the cell has
    ended, and in the middle of a line. That text counts as printed by the last cell.
    """

    def __init__(self, folder: Path) -> None:
        jupyter = pytest.importorskip("jupyter_client")
        pytest.importorskip("ipykernel")
        file, _ = jupyter.write_connection_file(str(folder / "connection.json"))
        self.kernel = Forked(lambda: be_kernel(file), folder)
        self.client = jupyter.BlockingKernelClient(connection_file=file)
        self.client.load_connection_file()
        self.client.hb_channel.time_to_dead = GUARD  # a kernel on a busy machine answers late
        self.client.start_channels()
        self.client.wait_for_ready(timeout=3 * GUARD)
        self.printed = ""  # since the last cell began
        self.red, self.bars = "", set[str]()  # on standard error, and displays, since then
        self.traceback: list[str] = []

    def run(self, code: str, interrupt_at: str | None = None, seconds: float = GUARD) -> str | None:
        """Runs a cell. Returns the name of its error.

        Args:
            code: The cell.
            interrupt_at: Text that stops the cell when printed, like the stop button.
            seconds: The deadline.
        """
        self.printed, self.red, self.bars = "", "", set()
        cell, error = self.client.execute(code), None
        for message in self._messages(seconds):
            if interrupt_at is not None and interrupt_at in self.printed:
                os.killpg(self.kernel.pid, signal.SIGINT)
                interrupt_at = None
            if message["parent_header"].get("msg_id") == cell:
                error = message["content"].get("ename", error)
                self.traceback = message["content"].get("traceback", self.traceback)
                if message["content"].get("execution_state") == "idle":
                    return error
        raise AssertionError(f"the cell does not end: {self.printed}")

    def prints(self, *texts: str, seconds: float = GUARD) -> bool:
        """Waits until all texts are printed, and says whether they are."""
        waits = self._messages(seconds)
        while not all(text in self.printed for text in texts):
            if next(waits, None) is None:
                return False
        return True

    def _messages(self, seconds: float) -> Iterator[dict[str, Any]]:
        """Gives messages until the deadline, and keeps what these print."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                message: dict[str, Any] = self.client.get_iopub_msg(timeout=0.2)
                content = message["content"]
                text: str = content.get("text", "")
                self.red += text if content.get("name") == "stderr" else ""
                if message["msg_type"] in ("display_data", "update_display_data"):
                    text = content["data"].get("text/plain", "")
                    self.bars.add(str(content["transient"].get("display_id")))
                self.printed += text
                yield message


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    notebook = Notebook(tmp_path_factory.mktemp("notebook"))
    try:
        error = notebook.run(
            "import gnnkit\nfrom tests.jobs.test_train import small_graph\n"
            "graph, count = small_graph(), 0\n"
            "def train(max_epochs=2, **keys):\n"
            "    return gnnkit.train(graph, strategy='vertex_centric', workers=2, threads=1,\n"
            "                        trainer={'max_epochs': max_epochs}, report=False, logger='none', **keys)\n"
        )
        assert error is None, notebook.printed
        yield notebook
    finally:
        notebook.client.stop_channels()
        notebook.kernel.process.kill()
        notebook.kernel.process.join()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sync", "comm"),
    [
        exhaustive(("all_reduce", "gloo")),
        ("parameter_server", "threads"),
        *map(exhaustive, [("leader", "gloo"), ("neighbour", "gloo"), ("parameter_server", "gloo")]),
        exhaustive(("all_reduce", "threads")),
    ],
)
def test_cells_train_with_every_sync_and_communicator(notebook: Notebook, sync: str, comm: str) -> None:
    error = notebook.run(f"epochs = train(sync={sync!r}, comm={comm!r})['epochs']\nprint(f'epochs: {{epochs}}')")
    assert error is None, notebook.printed
    assert notebook.prints("epochs: 2", "epoch 2/2  train_loss ", "best "), notebook.printed
    assert len(notebook.bars) == 1
    assert notebook.red == ""
    assert len(notebook.printed.splitlines()) < 25


@pytest.mark.slow
@pytest.mark.parametrize("comm", ["gloo", exhaustive("threads")])
def test_the_stop_button_ends_the_ranks_and_leaves_the_kernel(notebook: Notebook, comm: str) -> None:
    """The cell shows progress until then, and ends with one line."""
    error = notebook.run(f"train(10**6, comm={comm!r})", interrupt_at="/1000000  train_loss")
    assert error == "Interrupted", notebook.printed
    assert notebook.red == ""
    assert len(notebook.traceback) == 1
    assert "keeps the last checkpoint" in notebook.traceback[0]
    assert notebook.run(CHILDREN) is None
    assert notebook.prints("left: []"), notebook.printed
    assert notebook.run("epochs = train()['epochs']\nprint(f'epochs: {epochs}')") is None, notebook.printed
    assert notebook.prints("epochs: 2"), notebook.printed


@pytest.mark.slow
def test_classes_of_cells_train_and_a_mistake_is_one_error(notebook: Notebook) -> None:
    """Models and callbacks that no module holds."""
    cell = """
import lightning as L
from torch import nn
class Linear(nn.Module):
    num_layers = 1
    def __init__(self, width, classes):
        super().__init__()
        self.linear = nn.Linear(width, classes)
    def forward(self, x, adjacencies):
        return self.linear(adjacencies[0].aggregate(x))
class Tell(L.Callback):
    def on_train_end(self, trainer, module):
        print(f"told by rank {trainer.global_rank}\\n", end="")
result = train(model=Linear, callbacks=[Tell()])
model = gnnkit.load(result.folder, Linear(8, 3))
print(f"{type(model).__name__} {result['epochs']}")
"""
    assert notebook.run(cell) is None, notebook.printed
    assert notebook.prints("told by rank 0", "told by rank 1", "Linear 2"), notebook.printed
    assert notebook.run("train(modle='gcn')") == "UserError"
    assert (
        notebook.run(
            "try:\n    train(10**6)\nexcept KeyboardInterrupt:\n    print('caught')", interrupt_at="train_loss"
        )
        is None
    )
    assert notebook.prints("caught")
