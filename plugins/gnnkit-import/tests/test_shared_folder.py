"""Ranks from outside meet in a folder, and nobody waits for the dead."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from gnnkit_import import shared_folder
from gnnkit_import.shared_folder import LostMember, SharedFolderGroup

from gnnkit.errors import UserError
from tests.forked import forked
from tests.waiting import GUARD


def member(rank: int, size: int, folder: Path, work: Callable[[SharedFolderGroup], Any], timeout: float = GUARD) -> Any:
    group = SharedFolderGroup(rank, size, folder / "meeting", timeout)
    with group.joined():
        return work(group)


def together(size: int, folder: Path, work: Callable[[SharedFolderGroup], Any]) -> list[Any]:
    """Lets members work in threads. Returns results and errors."""

    def one(rank: int) -> Any:
        try:
            return member(rank, size, folder, work)
        except Exception as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_members_get_the_results_of_all_and_the_folder_is_gone(size: int, tmp_path: Path) -> None:
    led = []

    def work(group: SharedFolderGroup) -> Any:
        first = group.run(lambda rank: rank + 1)
        lead = group.run_on_leader(lambda: led.append(group.is_leader) or "once")
        return first, lead, group.run(lambda rank: None), group.is_leader

    found = together(size, tmp_path, work)
    assert found == [([*range(1, size + 1)], "once", [None] * size, rank == 0) for rank in range(size)]
    assert (led, list(tmp_path.iterdir())) == ([True], [])


def test_wait_returns_when_all_members_have_called_it(tmp_path: Path) -> None:
    def work(group: SharedFolderGroup) -> list[str]:
        if not group.is_leader:
            time.sleep(0.3)
        (tmp_path / f"arrived {threading.get_ident()}").touch()
        group.wait()
        return sorted(path.name for path in tmp_path.glob("arrived *"))

    assert [len(arrived) for arrived in together(3, tmp_path, work)] == [3, 3, 3]


@pytest.mark.slow
def test_files_of_an_earlier_start_are_nobody(tmp_path: Path) -> None:
    folder = tmp_path / "meeting"
    folder.mkdir()
    (folder / "alive 1.json").write_text('["earlier", 3]')
    (folder / "members.json").write_text('["earlier", "earlier too"]')
    (folder / "step 1 1 earlier.json").write_text("7")
    assert together(2, tmp_path, lambda group: group.run(lambda rank: rank)) == [[0, 1], [0, 1]]
    folder.mkdir()
    (folder / "alive 1.json").write_text('["earlier", 3]')
    with pytest.raises(UserError, match=r"rank 1 of 2 did not join the import within comm\.timeout=1 s"):
        member(0, 2, tmp_path, lambda group: None, timeout=1)
    with pytest.raises(UserError, match="rank 0 of 2 did not join"):
        member(1, 2, tmp_path, lambda group: None, timeout=1)


@pytest.mark.slow
def test_an_error_of_a_member_ends_the_others(tmp_path: Path) -> None:
    def work(group: SharedFolderGroup) -> Any:
        def fails(rank: int) -> None:
            if rank == 1:
                raise UserError("edges.csv, line 3: no number")
            time.sleep(0.1)
            while True:  # long work, which looks now and then
                group.check()

        return group.run(fails)

    zero, one, two = together(3, tmp_path, work)
    assert str(one) == "edges.csv, line 3: no number"
    for other in (zero, two):
        assert isinstance(other, LostMember)
        assert str(other) in (
            "rank 1 has failed: UserError: edges.csv, line 3: no number",
            *(
                f"rank {rank} has failed: LostMember: rank 1 has failed: UserError: edges.csv, line 3: no number"
                for rank in (0, 2)
            ),
        )


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_member_that_dies_or_stops_ends_the_others(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_folder, "LOST", 4.0)

    def ends(group: SharedFolderGroup) -> None:
        group.run(lambda rank: None)
        os.kill(os.getpid(), number)

    with forked(lambda: member(1, 2, tmp_path, ends), tmp_path) as child:

        def waits(group: SharedFolderGroup) -> Any:
            group.run(lambda rank: None)
            return group.run(lambda rank: None)

        with pytest.raises(LostMember, match="rank 1 has sent no heartbeat for 4 seconds"):
            member(0, 2, tmp_path, waits)
        child.process.kill()
