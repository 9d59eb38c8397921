from __future__ import annotations

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

ROUNDS, BYTES = 5, 33 << 20  # other arenas than the main one map what is above 32 MiB
PAGES = BYTES // resource.getpagesize()
SET_UP = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
SCRIPT = f"""
    import json
    import os
    import resource
    import threading
    import torch
    from gnnkit.launch.processes import launch

    def use():
        torch.empty({BYTES}, dtype=torch.uint8).fill_(1)

    def faults(warm_up):
        for _ in range(warm_up):
            use()
        marks = [resource.getrusage(resource.RUSAGE_SELF).ru_minflt]
        for _ in range({ROUNDS}):
            use()
            marks.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
        return [after - before for before, after in zip(marks, marks[1:])]

    def count(rank, world_size):
        found = {{}}
        thread = threading.Thread(target=lambda: found.update(thread=faults(40)))
        thread.start()
        thread.join()
        return {{"main": faults(40)}} | found  # small ends of the first ones stay apart, in caches of glibc

    def count_as_set_up(rank, world_size):
        return {{"set up": faults(0)}}

    found = launch(count, 1)[0]
    os.environ.update({SET_UP})
    print(json.dumps(found | launch(count_as_set_up, 1)[0]))
    """


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_a_rank_uses_freed_memory_again_in_each_thread_unless_the_user_has_set_up_the_allocator() -> None:
    """Counts page faults while a rank uses and frees the same memory repeatedly.

    In a process of its own, because threads of other tests have left arenas. A round in
    which something else has taken a part of the memory does not count.
    """
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT)]
    environment = {"PATH": os.environ["PATH"], "THP_MEM_ALLOC_ENABLE": "0"}  # nothing of other tests
    counts = json.loads(subprocess.check_output(command, env=environment, timeout=240))
    results = {name: statistics.median(rounds) for name, rounds in counts.items()}
    # Without the thresholds, every round clears every page.
    assert results["main"] < PAGES / 2, counts
    assert results["thread"] < PAGES / 2, counts
    assert results["set up"] > PAGES / 2, counts


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
