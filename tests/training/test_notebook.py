"""Training from interactive sessions: a kernel of Jupyter, IPython, `python -i`."""

from __future__ import annotations

import importlib.util
import queue
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHELLS = ["code"] + (["IPython"] if importlib.util.find_spec("IPython") else [])
CODE = """
import sys, gnnkit
result = gnnkit.train(strategy="vertex_centric", workers=2, threads=1, folder=sys.argv[1] + "/run",
                      dataset={"name": "synthetic", "num_nodes": 60}, trainer={"max_epochs": 2})

print("interactive", hasattr(sys, "ps1"), "epochs", result["epochs"])
"""


@pytest.mark.slow
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
        timeout=60,
        check=False,
    )
    assert "interactive True epochs 2" in done.stdout, done.stderr


class Notebook:
    """A kernel of Jupyter, which runs cells."""

    def __init__(self) -> None:
        manager = pytest.importorskip("jupyter_client.manager")
        pytest.importorskip("ipykernel")
        self.manager, self.client = manager.start_new_kernel(kernel_name="python3", startup_timeout=60)

    def run(self, code: str, interrupt_at: str | None = None, seconds: float = 60.0) -> tuple[str, str | None]:
        """Runs a cell. Returns what the cell printed, and the name of its error.

        Args:
            code: The cell.
            interrupt_at: Text that stops the cell when printed, like the stop button.
            seconds: The deadline.
        """
        message, deadline = self.client.execute(code), time.monotonic() + seconds
        printed, error = "", None
        while time.monotonic() < deadline:
            try:
                found: dict[str, Any] = self.client.get_iopub_msg(timeout=0.2)
            except queue.Empty:
                continue
            if found["parent_header"].get("msg_id") != message:
                continue
            content = found["content"]
            printed += content.get("text", "")
            error = content.get("ename", error)
            if interrupt_at is not None and interrupt_at in printed:
                self.manager.interrupt_kernel()
                interrupt_at = None
            if content.get("execution_state") == "idle":
                return printed, error
        raise AssertionError(f"the cell does not end: {printed}")


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("notebook"))
        notebook = Notebook()
    try:
        _, error = notebook.run(
            f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
            "import gnnkit\nfrom tests.jobs.test_train import small_graph\n"
            "graph, count = small_graph(), 0\n"
            "def train(max_epochs=2, **keys):\n"
            "    return gnnkit.train(graph, strategy='vertex_centric', workers=2, threads=1,\n"
            "                        trainer={'max_epochs': max_epochs}, **keys)\n"
        )
        assert error is None
        yield notebook
    finally:
        notebook.client.stop_channels()
        notebook.manager.shutdown_kernel(now=True)


@pytest.mark.slow
@pytest.mark.parametrize("comm", ["gloo", "threads"])
@pytest.mark.parametrize("sync", ["all_reduce", "leader", "neighbour", "parameter_server"])
def test_cells_train_with_every_sync_and_communicator(notebook: Notebook, sync: str, comm: str) -> None:
    printed, error = notebook.run(f"print('epochs:', train(sync={sync!r}, comm={comm!r})['epochs'])")
    assert error is None, printed
    assert "epochs: 2" in printed
    assert "train_loss " in printed


@pytest.mark.slow
@pytest.mark.parametrize("comm", ["gloo", "threads"])
def test_the_stop_button_ends_the_ranks_and_leaves_the_kernel(notebook: Notebook, comm: str) -> None:
    """The cell shows progress until then."""
    printed, error = notebook.run(f"train(10**6, comm={comm!r})", interrupt_at="/1000000  train_loss")
    assert error == "KeyboardInterrupt"
    assert printed.count("epoch ") >= 1
    children = "import os, subprocess\nprint(subprocess.run(['ps', '--no-headers', '-o', 'args', '--ppid', str(os.getpid())], capture_output=True, text=True).stdout)"
    left, _ = notebook.run(children)
    assert [line for line in left.splitlines() if line and not line.startswith("ps ")] == []
    printed, error = notebook.run("print('epochs:', train()['epochs'])")
    assert (error, "epochs: 2" in printed) == (None, True)


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
print(type(model).__name__, result["epochs"])
"""
    printed, error = notebook.run(cell)
    assert error is None, printed
    assert {"told by rank 0", "told by rank 1", "Linear 2"} <= set(printed.splitlines())
    assert notebook.run("train(modle='gcn')")[1] == "UserError"


@pytest.mark.slow
def test_a_script_needs_no_main_guard(tmp_path: Path) -> None:
    script = CODE.replace('"interactive", hasattr(sys, "ps1"), ', '"script", __name__, ')
    (tmp_path / "script.py").write_text(script)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.count("script __main__ epochs 2") == 1, done.stderr
