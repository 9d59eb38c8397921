"""Sums run on the threads of torch's operators."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, signal
import numpy as np
import torch
from gnnkit import _core

def threads():
    return len(os.listdir("/proc/self/task"))

rng = np.random.default_rng(0)
indptr = np.arange(0, 400_001, 20)
edges = _core.Aggregator(indptr, rng.integers(0, 20_000, 400_000), 20_000)
x = rng.standard_normal((20_000, 64), dtype=np.float32)

def sums():
    out = np.empty_like(x)
    edges.sum(x, out, 3)
    return out

torch.set_num_threads(3)
before = threads()
first = sums()
assert threads() == before + 2, "one of the three is the calling thread"
torch.ones(1 << 22).add_(1)
assert threads() == before + 2, "torch's operators use the same"
if os.fork() == 0:
    signal.alarm(120)
    assert np.array_equal(sums(), first), "a fork has threads of its own"
    os._exit(0)
assert os.wait()[1] == 0
"""


@pytest.mark.exhaustive  # an interpreter that imports torch anew: all processes of a session have threads already
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere sums have threads of their own")
def test_sums_run_on_the_threads_of_torch_and_outlive_a_fork() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=120)
