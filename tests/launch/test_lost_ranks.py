"""The launcher goes on without a rank that is dispensable, and says so."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gnnkit.comm import PeerLost
from gnnkit.errors import UserError
from gnnkit.launch.processes import RankError, launch
from gnnkit.launch.progress import dispensable
from tests.waiting import NEVER, wait_until

LAST = 2


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def break_down() -> None:
    raise ZeroDivisionError("mine")


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that exists once the launcher has named a lost rank.

    A process that is killed may take a second to end, where memory is short.
    """
    file = tmp_path / "named"

    monkeypatch.setattr("gnnkit.launch.processes.print", lambda *_, **__: file.touch(), raising=False)
    return file


def ranks(
    fate: Callable[[], Any],
    others: Callable[[int], Any] = lambda rank: time.sleep(0.5),
    *,
    of_rank_0: Callable[[], Any] = lambda: None,
) -> Any:
    """Makes the work of ranks of which all but rank 0 are dispensable.

    Args:
        fate: Done by the last rank.
        others: Done by each of the others. Default: sleeps for half a second.
        of_rank_0: Done by rank 0 in the end. Default: nothing.
    """

    def function(rank: int, world_size: int) -> dict[str, Any]:
        if rank:
            dispensable()
        if rank == LAST:
            fate()
        others(rank)
        if rank == 0:
            of_rank_0()
        return {"rank": rank}

    return function


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fate", "told"),
    [(kill, "rank 2 was ended by SIGKILL"), (break_down, "rank 2 failed: ZeroDivisionError: mine")],
)
def test_the_others_go_on_without_a_dispensable_rank(
    fate: Callable[[], Any], told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert launch(ranks(fate), 3) == {0: {"rank": 0}, 1: {"rank": 1}}
    output = capfd.readouterr().err
    assert told in output
    assert "; the run continues without rank 2\n" in output
    assert ("in break_down" in output) == (fate is break_down)


@pytest.mark.slow
def test_a_dispensable_rank_that_ends_well_is_not_lost(capfd: pytest.CaptureFixture[str]) -> None:
    assert launch(ranks(lambda: None, lambda rank: None), 3).keys() == {0, 1, 2}
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_what_the_user_can_mend_ends_the_run_on_any_rank() -> None:
    def fate() -> None:
        raise UserError("lr=-1")

    with pytest.raises(UserError, match="lr=-1"):
        launch(ranks(fate, lambda rank: time.sleep(NEVER)), 3)


@pytest.mark.slow
def test_a_rank_that_is_not_dispensable_is_the_cause_even_if_another_was_lost_before(named: Path) -> None:
    with pytest.raises(RankError, match=r"^rank 0 failed: ZeroDivisionError: mine\nrank 1 .*\nrank 2 was ended by"):
        launch(ranks(kill, lambda rank: wait_until(named.exists), of_rank_0=break_down), 3)


@pytest.mark.slow
def test_a_lost_rank_is_the_cause_where_the_others_fail_for_lack_of_it(named: Path) -> None:
    def lost() -> None:
        raise PeerLost("lost its peer rank 2, which closed its connection", 2)

    with pytest.raises(RankError, match=r"^rank 2 was ended by SIGKILL"):
        launch(ranks(kill, lambda rank: wait_until(named.exists), of_rank_0=lost), 3)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_lost_rank_is_named_while_the_others_work(named: Path) -> None:
    assert launch(ranks(kill, lambda rank: wait_until(named.exists)), 3).keys() == {0, 1}
