"""The native loader beside other Python threads."""

from __future__ import annotations

import subprocess
import sys

import pytest

CLOSED_WHILE_A_BATCH_FAILS = """
import threading, time
import numpy as np
from gnnkit import _core

class Sampler:
    def sample(self, graph, seeds, key):
        closing.wait()
        time.sleep(0.2 if seeds[0] == 0 else 0.6)
        raise KeyError(f"seed {seeds[0]}")

def take():
    begun.set()
    try:
        loader.take()
    except KeyError as error:
        print(error.args[0], flush=True)

begun, closing = threading.Event(), threading.Event()
steps = np.arange(2), [0, 1, 2], 0, 7
loader = _core.Loader(None, Sampler(), steps, (), lambda size: np.empty(size, np.uint8), 2, 2)
consumer = threading.Thread(target=take)
consumer.start()
begun.wait()
time.sleep(0.3)  # the consumer waits in `take`
closing.set()
loader.close()  # the consumer now holds the last reference to the threads
consumer.join()
"""


@pytest.mark.slow
def test_a_loader_closed_by_another_thread_ends_though_a_batch_fails() -> None:
    command = [sys.executable, "-c", CLOSED_WHILE_A_BATCH_FAILS]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, "seed 0\n"), done.stderr
