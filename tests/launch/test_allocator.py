from __future__ import annotations

import functools
import json
import os
import resource
import statistics
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

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


LARGE = """
    import json
    import resource
    import torch
    from gnnkit.launch.processes import launch

    torch.ones(1 << 20)  # torch reads the environment at its first array, and never again

    def large(rank, world_size):
        x = torch.empty({num_bytes}, dtype=torch.uint8).fill_(1)
        lines = open("/proc/self/smaps_rollup").read().splitlines()
        found = next(1024 * int(line.split()[1]) for line in lines if line.startswith("AnonHugePages"))
        return [found, launch(lambda rank, world_size: True, 1)[0]]

    resource.setrlimit(resource.RLIMIT_DATA, ({limit}, resource.RLIM_INFINITY))
    print(json.dumps(launch(large, 1)[0]))
    """


def bytes_in_large_pages(limit: int = resource.RLIM_INFINITY, **environment: str) -> int:
    """Counts what a rank holds in pages of 2 MiB, started where torch has been used.

    The rank must be able to start another process.

    Args:
        limit: Bytes of data that the process may have.
        **environment: Further environment variables.
    """
    command = [sys.executable, "-c", textwrap.dedent(LARGE).format(num_bytes=BYTES, limit=limit)]
    clean = {name: value for name, value in os.environ.items() if name != "THP_MEM_ALLOC_ENABLE"}
    found, starts = json.loads(subprocess.check_output(command, env=clean | environment, timeout=240))
    assert starts
    return int(found)


def kernel_gives() -> str:
    """Says when the kernel gives large pages: always, madvise or never."""
    enabled = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    text = enabled.read_text() if enabled.exists() else "[never]"
    return text[text.index("[") + 1 : text.index("]")]


@pytest.mark.slow
@pytest.mark.skipif(kernel_gives() == "never", reason="this kernel has small pages only")
def test_a_rank_has_large_pages_also_where_torch_has_been_used_before() -> None:
    assert bytes_in_large_pages() > BYTES / 2


@pytest.mark.slow
@pytest.mark.skipif(kernel_gives() != "madvise", reason="this kernel does not ask processes")
def test_pages_are_small_where_the_user_says_so_or_where_addresses_are_counted() -> None:
    assert bytes_in_large_pages(THP_MEM_ALLOC_ENABLE="0") < BYTES / 2
    assert bytes_in_large_pages(limit=8 << 30) < BYTES / 2
