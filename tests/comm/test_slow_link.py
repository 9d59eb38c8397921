"""A simulated link: transfers take their time, and values stay the same."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gnnkit_slow_link import Card, Link, SlowLink
from torch import Tensor

from gnnkit.__main__ import main
from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.errors import UserError
from gnnkit.testing import check_communicator
from tests.cases import exhaustive, few
from tests.comm.processes import run_gloo
from tests.jobs.conftest import within  # noqa: F401
from tests.runs import within_process
from tests.waiting import GUARD

RANKS = 3
SLOW = Link(gigabits=8e-5, milliseconds=10.0)  # 10 kB in a second: 1 kB takes 0.1 s
SMALL = ["dataset=synthetic", "dataset.num_nodes=60", "dataset.num_edges=200", "workers=2", "comm=gloo"]
QUICK = [*SMALL, "trainer.max_epochs=2", "trainer.checkpoint=false", "report=false", "logger=none"]


def over_link(work: Callable[[SlowLink], Any], link: Link = SLOW) -> Callable[[Communicator], Any]:
    return lambda comm: work(SlowLink(comm, Card(link)))


class Clock(threading.local):
    """A clock of each rank, which only the rank's own sleep moves."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the link, so that no other work changes what transfers take."""
    clock = Clock()
    monkeypatch.setattr("gnnkit_slow_link.time", clock)
    return clock


Stopwatch = Callable[[Callable[[], Any]], float]


@pytest.fixture
def stopwatch(clock: Clock) -> Stopwatch:
    """Returns the seconds that some work takes a rank."""

    def stopwatch(work: Callable[[], Any]) -> float:
        start = clock.monotonic()
        work()
        return clock.monotonic() - start

    return stopwatch


@pytest.fixture
def seconds(stopwatch: Stopwatch) -> Callable[[Callable[[SlowLink], Any]], list[float]]:
    """Returns the seconds that a collective takes on each rank."""
    return lambda work: Threads.run(over_link(lambda comm: stopwatch(lambda: work(comm))), RANKS)


def test_a_sum_takes_the_rounds_of_a_ring(seconds: Any) -> None:
    expected = 4 / 3 * 0.06 + 4 * 0.01  # 600 bytes, 4 rounds
    assert seconds(lambda comm: comm.all_reduce(torch.ones(150))) == pytest.approx([expected] * RANKS)


def test_a_broadcast_takes_the_rounds_of_a_tree(seconds: Any) -> None:
    expected = 2 * 0.04 + 2 * 0.01
    assert seconds(lambda comm: comm.broadcast(torch.ones(100), src=1)) == pytest.approx([expected] * RANKS)


def test_rows_take_the_time_of_the_larger_way_and_nothing_of_those_that_stay(
    seconds: Any, stopwatch: Stopwatch
) -> None:
    def work(comm: SlowLink) -> float:  # rank 0 sends 400 bytes to each other rank, and 4000 to itself
        send = [100, 10, 10] if comm.rank == 0 else [0, 0, 0]
        recv = [send[0] if comm.rank == 0 else 10, 0, 0]
        return stopwatch(lambda: comm.all_to_all(torch.ones(sum(send), 10), send, recv))

    assert Threads.run(over_link(work), RANKS) == pytest.approx([0.09, 0.05, 0.05])
    nothing = seconds(lambda comm: comm.all_to_all(torch.ones(5, 10), [5 if r == comm.rank else 0 for r in range(3)], [5 if r == comm.rank else 0 for r in range(3)]))  # fmt: skip
    assert nothing == [0.0] * RANKS


def test_exchanges_under_way_share_the_card_and_hide_behind_work(clock: Clock) -> None:
    def work(comm: SlowLink) -> tuple[float, float]:
        counts = [0 if rank == comm.rank else 5 for rank in range(RANKS)]
        pending = [comm.start(torch.ones(10, 10), counts, counts) for _ in range(2)]
        clock.sleep(0.04)
        pending[0].wait()
        first = clock.monotonic()
        with pending[1].borrow() as rows:
            assert rows.shape == (10, 10)
        return first, clock.monotonic()

    for first, second in Threads.run(over_link(work), RANKS):
        assert first == pytest.approx(0.05), "40 ms of the 50 were spent at work"
        assert second == pytest.approx(0.09), "the second begins when the bytes of the first are through"


def test_a_letter_arrives_after_its_time_and_its_sender_does_not_wait(clock: Clock, stopwatch: Stopwatch) -> None:
    def work(comm: SlowLink) -> list[str]:
        with comm.mailbox() as box:
            tags = []
            if comm.rank == 0:
                assert stopwatch(lambda: [box.put(1, tag, {"a": 1}, {"x": torch.ones(100)}) for tag in "ab"]) == 0
            if comm.rank == 1:
                letter = box._mailbox.take("a", src=0, timeout=GUARD)  # it has come, but not over the link
                box._under_way.append(letter)
                while (letter := box.poll("a")) is None:
                    clock.sleep(0.001)
                assert clock.monotonic() == pytest.approx(0.05, abs=0.001)
                assert (letter.src, letter.fields, len(letter.tensors["x"])) == (0, {"a": 1}, 100)
                tags = [letter.tag, box.take("b", src=0, timeout=GUARD).tag]
                assert clock.monotonic() == pytest.approx(0.09)
                box.put(1, "own", {"b": 2})
                assert stopwatch(lambda: box.take("own", timeout=GUARD)) == 0
            comm.all_reduce(torch.ones(1))
            return tags

    assert Threads.run(over_link(work), RANKS)[1] == ["a", "b"]


@pytest.mark.slow
@pytest.mark.parametrize("runner", [Threads.run, exhaustive(run_gloo)])
def test_a_link_keeps_the_promises_of_communicators(runner: Callable[..., list[Any]]) -> None:
    runner(over_link(check_communicator, Link(1.0, 0.1)), 3)


@pytest.mark.slow
def test_values_on_processes_have_the_bits_of_no_link() -> None:
    def work(comm: Communicator) -> list[Tensor]:
        own = torch.randn(1001, generator=torch.Generator().manual_seed(comm.rank))
        part = comm.split([0, 1]) if comm.rank < 2 else comm.split([2])
        counts = [comm.rank + rank for rank in range(3)]
        rows = comm.start(own[:20, None], counts, counts, index=torch.arange(sum(counts))).wait()
        return [comm.all_reduce(own.clone()), part.all_reduce(own.clone()), rows, *comm.gather(own, dst=1)]

    plain, slow = (run_gloo(ranks, 3) for ranks in (work, over_link(work, Link(1.0, 0.2))))
    assert all(torch.equal(*pair) for ranks in zip(plain, slow, strict=True) for pair in zip(*ranks, strict=True))


@pytest.mark.slow
@pytest.mark.exhaustive
@few(
    "chosen",
    ["strategy=vertex_centric", "strategy=preset_workload sync=parameter_server", "strategy=joint_sample"],
    default=["strategy=vertex_centric"],
)
def test_a_run_over_a_link_has_the_bits_of_the_run_without_and_waits(
    chosen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    keys = [*QUICK, *chosen.split()]
    with within_process():
        assert main([*keys, "output=plain"]) == 0
        assert main([*keys, "output=slow", "comm=slow_link", "comm.milliseconds=15"]) == 0
    arrays = [np.load(tmp_path / folder / "predictions.npy") for folder in ("plain", "slow")]
    models = [(tmp_path / folder / "model.safetensors").read_bytes() for folder in ("plain", "slow")]
    assert np.array_equal(*arrays)
    assert models[0] == models[1]
    slow = waited(tmp_path / "slow")
    assert slow["sync"] >= 0.02, "sums and letters wait"
    if chosen == "strategy=vertex_centric":
        assert slow["exchange"] >= 0.045, "rows wait, in two steps forward and back"


def waited(folder: Path) -> dict[str, float]:
    """Returns the seconds of the steps of one worker, by part."""
    states = map(json.loads, (folder / "workers.jsonl").read_text().splitlines())
    own = [state for state in states if state["rank"] == 1]
    return {part: sum(state[f"seconds_{part}"] for state in own) for part in ("exchange", "sync")}


def test_several_hosts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    with pytest.raises(UserError, match="one host"):
        SlowLink.connect(0, 2, device=torch.device("cpu"), timeout=1.0)
