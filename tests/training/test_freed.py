"""Freed memory goes back to the system after the first steps and evaluations alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gnnkit.launch.lean import FIRST_STEPS
from gnnkit.training import trainer
from tests.training.test_callbacks import run

SCRIPT = """
import numpy as np
from gnnkit.launch.lean import give_back_freed_memory, keep_freed_memory

def resident():
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(lines["VmRSS"].split()[0]) << 10

keep_freed_memory()
large, small = [], []
for _ in range(50):  # small arrays that last keep the heap from joining the gaps
    large.append(np.ones(1 << 20, np.uint8))
    small.append(np.ones(1 << 11, np.uint8))
before = resident()
del large
freed = resident()
give_back_freed_memory()
print(before - freed, freed - resident())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="malloc_trim is glibc's")
def test_what_lies_between_arrays_in_use_is_kept_until_it_is_given_back() -> None:
    kept, given = map(int, subprocess.check_output([sys.executable, "-c", SCRIPT], timeout=240).split())
    assert kept < 10 << 20 < 40 << 20 < given


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [1, FIRST_STEPS, 2 * FIRST_STEPS])
def test_the_first_steps_and_evaluations_give_back(
    epochs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(trainer, "give_back_freed_memory", lambda: calls.append(None))
    run(tmp_path / "run", workers=1, trainer={"max_epochs": epochs})
    assert len(calls) == 3 * min(epochs, FIRST_STEPS)  # before and after the backward pass, and of an evaluation
