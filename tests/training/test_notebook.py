"""Training from an interactive session, where Lightning refuses launchers."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

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
