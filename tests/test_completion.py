"""Tab completion answers right, fast, and without heavy imports."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gnnkit import plugins
from gnnkit.__main__ import main
from gnnkit.config.completion import words

SHELLS = ("bash", "zsh", "fish")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("gnnkit mod", {"model=", "model."}),
        ("gnnkit strategy=vertex_centric exp", {"experiment="}),
        ("gnnkit experiment=co", {"experiment=cora_gcn", "experiment=coauthor_cs_gcn"}),
        ("gnnkit model=gat model.he", {"model.heads="}),
        ("gnnkit model.he", set()),
        ("gnnkit sync=leader sync.on_lost=", {"sync.on_lost=stop", "sync.on_lost=continue"}),
        (
            "gnnkit trainer.schedule=",
            {f"trainer.schedule={name}" for name in ("constant", "cosine", "linear", "plateau")},
        ),
        ("gnnkit logger=[csv,wandb] logger.wandb.pro", {"logger.wandb.project="}),
        ("gnnkit callback=summary callback.", set()),
        ("gnnkit partition.gr", {"partition.grid="}),
        ("gnnkit trainer.optimizer=", {f"trainer.optimizer={name}" for name in ("adam", "adamw", "sgd")}),
        ("gnnkit trainer.on_nan=", {f"trainer.on_nan={name}" for name in ("stop", "skip", "rollback")}),
        ("gnnkit trainer.checkpoint=", {"trainer.checkpoint=true", "trainer.checkpoint=false"}),
        ("gnnkit job=pr", {"job=predict"}),
        ("gnnkit on_exists=re", {"on_exists=refuse", "on_exists=resume", "on_exists=replace"}),
        ("gnnkit plan.", {"plan.bandwidth=", "plan.memory="}),
        ("gnnkit -m hydra/", {"hydra/sweeper=", "hydra/launcher="}),
        ("gnnkit partition.nodes=me", {"partition.nodes=metis"}),
        ("gnnkit -m hydra/sweeper=", {"hydra/sweeper=basic", "hydra/sweeper=optuna"}),
        ("gnnkit -m hydra/sweeper=optuna hydra.sweeper.n_", {"hydra.sweeper.n_trials=", "hydra.sweeper.n_jobs="}),
        ("gnnkit --m", {"--multirun"}),
        ("gnnkit nothing_like_this", set()),
    ],
)
def test_the_words_that_may_come_next_are_listed(line: str, expected: set[str]) -> None:
    assert set(words(line)) == expected


@pytest.mark.parametrize("kind", plugins.KINDS)
def test_every_option_of_every_section_is_completed(kind: str) -> None:
    assert words(f"gnnkit {kind}=") == [f"{kind}={name}" for name in plugins.options(kind)]


def test_options_of_a_users_folder_are_completed(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/wide.yaml").write_text("defaults: [gcn]\n")
    for option in (f"--config-dir {tmp_path}", f"--config-dir={tmp_path}"):
        assert words(f"gnnkit {option} model=wi") == ["model=wide"]


@pytest.mark.slow
def test_an_answer_imports_nothing_heavy() -> None:
    code = (
        "import json, sys\nfrom gnnkit.__main__ import main\n"
        "assert main(['-sc', 'query=bash']) == 0\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    environment = {**os.environ, "COMP_LINE": "gnnkit partition="}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    modules = json.loads(done.stderr)
    assert "partition=2d\n" in done.stdout
    assert not set(modules) & {"torch", "numpy", "lightning", "hydra", "omegaconf", "yaml"}


@pytest.mark.slow
def test_bash_completes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gnnkit").write_text(f'#!/bin/sh\nexec {sys.executable} -m gnnkit "$@"\n')
    (tmp_path / "gnnkit").chmod(0o755)
    assert main(["-sc", "install=bash"]) == 0
    script = capsys.readouterr().out
    for line, reference in (("gnnkit sampler=neigh", "neighbor"), ("gnnkit trainer.max_ti", "trainer.max_time=")):
        ask = f'{script}\nCOMP_LINE="{line}" COMP_POINT={len(line)}; _gnnkit; echo "${{COMPREPLY[@]}}"'
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True, env=environment)
        assert done.stdout.split() == [reference], done.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_can_be_installed_and_removed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("install", "uninstall"):
        assert main(["-sc", f"{verb}={shell}"]) == 0
        script = capsys.readouterr().out
        assert re.search(r"\bgnnkit\b", script)
        if shutil.which(shell):
            subprocess.run([shell, "-n", "/dev/stdin"], input=script, text=True, check=True)
    assert main(["-sc", "install=tcsh"]) == 2
    assert "did you mean install=" in capsys.readouterr().err
