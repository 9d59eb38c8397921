"""Supervisor, agents and checkpoints in virtual time: the rules hold in each schedule.

The rules stand in docs/design/processes.md. `GNNKIT_SCHEDULES=100000` plays as many,
from `GNNKIT_SCHEDULES_FIRST` on. A seed that breaks a rule is told, and plays the same
schedule again.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gnnkit_ray")

from gnnkit.comm import rendezvous
from gnnkit.jobs import folder, restarts
from gnnkit.jobs.rank_job import RankJob
from gnnkit.training import checkpoint
from gnnkit.training.saving import Checkpoints
from gnnkit.utils import storage
from tests.cases import few
from tests.simulation.story import Broken, Story

COUNT = int(os.environ.get("GNNKIT_SCHEDULES", "300"))
FIRST = int(os.environ.get("GNNKIT_SCHEDULES_FIRST", "0"))


@pytest.mark.slow
@pytest.mark.timeout(36000)
@few("count", [pytest.param(min(100, COUNT), id="few"), pytest.param(COUNT, id="all")], default=["few"])
def test_no_schedule_breaks_a_rule(count: int) -> None:
    ends: Counter[str] = Counter()
    for seed in range(FIRST, FIRST + count):
        story = Story(seed)
        try:
            story.play()
        except Broken as error:
            pytest.fail(f"schedule {seed}: {error}")
        ends[f"{type(story.outcome).__name__} after {min(len(story.starts), 5)} starts"] += 1
    print(ends)
    assert {"dict after 1 starts", "dict after 2 starts", "dict after 3 starts", "RankError after 2 starts"} <= {*ends}


@pytest.mark.slow
def test_a_schedule_is_the_same_each_time() -> None:
    def told(seed: int) -> Any:
        story = Story(seed)
        story.play()
        return story.world.now, len(story.starts), story.named, len(story.world.tasks)

    assert [told(seed) for seed in range(5)] == [told(seed) for seed in range(5)]


class Patched:
    """Takes parts of the real code out."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.set = patch.setattr

    def files_are_not_synced(self) -> None:
        self.set(storage, "_sync", lambda path: None)

    def the_folder_is_not_synced(self) -> None:
        sync = storage._sync
        self.set(storage, "_sync", lambda path: None if path.is_dir() else sync(path))

    def names_come_before_tensors(self) -> None:
        put, write, late = checkpoint.put_in_place, checkpoint.write_atomically, list[Any]()

        def written(path: Any, *content: Any, within: Any = None) -> None:
            write(path, *content, within=within)
            while late:
                put(*late.pop())

        self.set(checkpoint, "put_in_place", lambda *files: late.append(files))
        self.set(checkpoint, "write_atomically", written)

    def files_are_written_in_place(self) -> None:
        def write(path: Any, *content: Any, within: Any = None) -> None:
            with path.open("wb") as file:
                for piece in content:
                    file.write(piece)
            storage._wait_for(path)
            path.disk.world.moved(path)

        self.set(checkpoint, "write_atomically", write)

    def the_token_is_not_asked(self) -> None:
        self.set(rendezvous, "_answer", lambda token, challenge, src, dst: b"")

    def restarts_are_not_counted(self) -> None:
        after = restarts._record_restart
        self.set(restarts, "_record_restart", lambda error, job, done: after(error, job, done[:0]))

    def no_failure_counts_as_the_same(self) -> None:
        self.set(restarts.Restart, "repeats", lambda self, before: False)

    def the_newest_is_chosen_by_its_time(self) -> None:
        kept = checkpoint.list_checkpoints

        def by_time(path: Any) -> list[Path]:
            return sorted(kept(path), key=lambda file: -file.stat().st_mtime)

        self.set(checkpoint, "list_checkpoints", by_time)

    def earlier_starts_may_write(self) -> None:
        @contextlib.contextmanager
        def writing(job: RankJob) -> Iterator[RankJob]:
            yield job

        self.set(RankJob, "writing", writing)

    def the_next_save_does_not_wait(self) -> None:
        self.set(Checkpoints, "wait", lambda self: None)

    def the_run_does_not_wait_for_the_last_save(self) -> None:
        self.set(Checkpoints, "__exit__", lambda self, *_: None)

    def nobody_holds_the_folder(self) -> None:
        @contextlib.contextmanager
        def locked(folder: Any) -> Iterator[None]:
            yield

        self.set(folder, "locked", locked)

    def old_files_go_first(self) -> None:
        forget, aside = checkpoint._forget_others, checkpoint._step_aside

        def forgotten(path: Any, keep: int, writer: Any) -> None:
            for file in checkpoint.list_checkpoints(path):
                file.unlink()
            aside(path, keep, writer)

        self.set(checkpoint, "_step_aside", forgotten)
        self.set(checkpoint, "_forget_others", forget)


PLANTED = [name for name in vars(Patched) if not name.startswith("_")]
FOUND_BY = {  # where few schedules do, or the first that does is long
    "files_are_not_synced": 23,
    "the_folder_is_not_synced": 23,
    "files_are_written_in_place": 23,
    "the_token_is_not_asked": 3027,
    "restarts_are_not_counted": 12,
    "the_newest_is_chosen_by_its_time": 2296,
    "earlier_starts_may_write": 56,
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_breaks_a_rule_soon(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant: Callable[[], None] = getattr(Patched(monkeypatch), fault)
    plant()
    first = FOUND_BY.get(fault, 0)
    for seed in chain(range(first, 5000), range(first)):
        try:
            Story(seed).play()
        except Broken as error:
            print(f"{fault}: schedule {seed}: {error}")
            return
    pytest.fail("no schedule has found it")
