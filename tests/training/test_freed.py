"""Freed memory goes back to the system after the first steps and evaluations alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnkit.launch.allocator import FIRST_STEPS, give_back_freed_memory, keep_freed_memory
from gnnkit.training import freed
from tests.forked import forked
from tests.training.test_callbacks import run


def resident() -> int:
    """Returns the bytes of this process in memory."""
    with open("/proc/self/status") as file:
        lines = dict(line.split(":", 1) for line in file)
    return int(lines["VmRSS"].split()[0]) << 10


def fill_and_free() -> None:
    """Prints the bytes that go with freed arrays, and those that go when given back."""
    keep_freed_memory()
    large, small = [], []
    for _ in range(50):  # small arrays that last keep the heap from joining the gaps
        large.append(torch.ones(1 << 20, dtype=torch.uint8))
        small.append(torch.ones(1 << 10, dtype=torch.uint8))
    before = resident()
    large.clear()
    freed = resident()
    give_back_freed_memory()
    print("bytes", before - freed, freed - resident(), flush=True)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="malloc_trim is glibc's")
def test_what_lies_between_arrays_in_use_is_kept_until_it_is_given_back(tmp_path: Path) -> None:
    """In a fork, because the process keeps freed memory from then on."""
    with forked(fill_and_free, tmp_path) as program:
        code, text = program.ended()
    assert code == 0, text
    kept, given = map(int, text.split("bytes")[1].split())
    assert kept < 10 << 20 < 40 << 20 < given


@pytest.mark.parametrize("epochs", [1, FIRST_STEPS, 2 * FIRST_STEPS])
def test_the_first_steps_and_evaluations_give_back(
    epochs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(freed, "give_back_freed_memory", lambda: calls.append(None))
    run(tmp_path / "run", workers=1, trainer={"max_epochs": epochs})
    assert len(calls) == 3 * min(epochs, FIRST_STEPS)  # before and after the backward pass, and of an evaluation
