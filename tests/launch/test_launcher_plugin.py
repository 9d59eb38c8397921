"""A launcher from a package of its own, which starts each rank by a command."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from gnnkit import plugins, testing
from gnnkit.__main__ import main
from tests.conftest import Install

LAUNCHER = '''
import json, os, pickle, signal, socket, subprocess, sys, tempfile, time
from pathlib import Path

from gnnkit.errors import UserError
from gnnkit.launcher import Launcher, RankError, StartedRank


class Commands(Launcher):
    """Each rank is a new interpreter, as it would be behind ssh."""

    def __init__(self, python: str = sys.executable) -> None:
        if not Path(python).exists():
            raise ValueError(f"python={python} does not exist")
        self.python = python

    def ranks(self, ranks, meanwhile=lambda: None):
        with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "ranks").write_bytes(pickle.dumps(ranks))
            running = [self.start(folder, rank, ranks.world_size, port) for rank in range(ranks.world_size)]
            try:
                while any(process.poll() is None for process in running):
                    meanwhile()
                    for rank, process in enumerate(running):
                        if process.poll():
                            raise failure(rank, process.returncode, Path(folder, str(rank)))
                    time.sleep(0.02)
            finally:
                for process in running:
                    process.kill()
                    process.wait()
            for rank, process in enumerate(running):
                if process.returncode:
                    raise failure(rank, process.returncode, Path(folder, str(rank)))
            return {rank: json.loads(Path(folder, str(rank)).read_text()) for rank in range(ranks.world_size)}

    def start(self, folder, rank, world_size, port):
        place = StartedRank(rank, world_size, rank, world_size, "127.0.0.1", port).variables()
        return subprocess.Popen([self.python, "-m", "commands", folder, str(rank)], env=os.environ | place)


def failure(rank, code, report):
    if code < 0:
        return RankError(f"rank {rank} was ended by {signal.Signals(-code).name}")
    told = json.loads(report.read_text())
    return UserError(told["message"]) if told["mendable"] else RankError(f"rank {rank} failed: {told['message']}")


def main(folder, rank):
    ranks = pickle.loads(Path(folder, "ranks").read_bytes())
    code = 0
    try:
        report = ranks.run(int(rank))
    except Exception as error:
        code, report = 1, {"message": str(error), "mendable": isinstance(error, UserError)}
    Path(folder, rank).write_text(json.dumps(report))
    os._exit(code)
'''
FILES = {
    "commands/__init__.py": LAUNCHER,
    "commands/__main__.py": "import sys\nfrom commands import main\nmain(*sys.argv[1:])\n",
    "commands/conf/launcher/commands.yaml": f"# Each rank is a command.\nname: commands\npython: {sys.executable}\n",
}
RUN = ["strategy=vertex_centric", "dataset=synthetic", "dataset.num_nodes=60", "dataset.num_edges=200", "workers=2",
       "threads=1", "trainer.max_epochs=2", "trainer.checkpoint=false", "report=false", "logger=none", "cache=false"]  # fmt: skip


@pytest.fixture
def installed(install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    points = {"gnnkit.launcher": {"commands": "commands:Commands"}, "gnnkit.conf": {"commands": "commands"}}
    site = install("commands", points, FILES)
    monkeypatch.setenv("PYTHONPATH", f"{site}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.chdir(tmp_path)
    return site


@pytest.mark.slow
def test_a_launcher_of_another_package_keeps_the_promises(installed: Path) -> None:
    testing.check_launcher(plugins.load("launcher", "commands"))


@pytest.mark.slow
def test_a_launcher_of_another_package_runs_the_ranks_of_a_job(installed: Path) -> None:
    assert main([*RUN, "output=usual"]) == 0
    assert main([*RUN, "output=run", "launcher=commands"]) == 0
    usual, found = (json.loads(Path(name, "result.json").read_text()) for name in ("usual", "run"))
    assert found["train_loss"] == usual["train_loss"]
    assert found["world_size"] == 2


def test_keys_of_such_a_launcher_are_checked_and_listed(installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, "launcher=commands", "launcher.python=nowhere"]) == 2
    assert capsys.readouterr().err == "gnnkit: error: launcher.python=nowhere does not exist\n"
    assert main(["--help", "launcher=commands"]) == 0
    assert "launcher.python=" in capsys.readouterr().out
