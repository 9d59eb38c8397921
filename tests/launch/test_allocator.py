from __future__ import annotations

import functools
import json
import os
import resource
import statistics
import subprocess
import sys
import textwrap

import pytest

import gnnkit
from gnnkit.errors import UserError

ROUNDS, BYTES = 10, 40 << 20  # other arenas than the main one map what is above 32 MiB
PAGES = BYTES // resource.getpagesize()
SCRIPT = """
    import json
    import resource
    import threading
    import torch
    from gnnkit.launch.processes import launch

    def use(num_bytes):
        torch.empty(num_bytes, dtype=torch.uint8).fill_(1)

    def faults(num_bytes):
        for _ in range(20):  # small ends of the first seven stay apart, in caches of glibc
            use(num_bytes)
        marks = [resource.getrusage(resource.RUSAGE_SELF).ru_minflt]
        for _ in range({rounds}):
            use(num_bytes)
            marks.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
        return [after - before for before, after in zip(marks, marks[1:])]

    def count(rank, world_size):
        found = {{"main": faults({num_bytes})}}
        thread = threading.Thread(target=lambda: found.update(thread=faults({num_bytes})))
        thread.start()
        thread.join()
        return found

    print(json.dumps(launch(count, 1)[0]))
    """


@functools.cache
def faults_of_a_rank(**environment: str) -> dict[str, float]:
    """Counts page faults while a rank uses and frees the same memory repeatedly.

    In a process of its own, because threads of other tests have left arenas. Returns
    the median of the rounds, in the main thread and in another. A round in which
    something else has taken a part of the memory does not count.
    """
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT).format(rounds=ROUNDS, num_bytes=BYTES)]
    environment = {**os.environ, "THP_MEM_ALLOC_ENABLE": "0", **environment}
    counts = json.loads(subprocess.check_output(command, env=environment, timeout=240))
    return {name: statistics.median(rounds) for name, rounds in counts.items()}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
@pytest.mark.parametrize("name", ["main", "thread"])
def test_a_rank_uses_freed_memory_again_in_each_thread(name: str) -> None:
    # Without the thresholds, every round clears every page.
    assert faults_of_a_rank()[name] < PAGES / 2


@pytest.mark.slow
def test_an_allocator_that_the_user_has_set_up_stays() -> None:
    set_up = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
    assert faults_of_a_rank(**set_up)["main"] > PAGES / 2


@pytest.mark.parametrize(("given", "found"), [(None, "1"), ("0", "0")])
def test_a_job_from_python_asks_for_large_pages_first(
    given: str | None, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", given or "")  # what was there before comes back
    if given is None:
        monkeypatch.delenv("THP_MEM_ALLOC_ENABLE")
    with pytest.raises(UserError):
        gnnkit.train(overrides=["strategy=vertex"])
    assert os.environ["THP_MEM_ALLOC_ENABLE"] == found
