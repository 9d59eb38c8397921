"""The rules of a parameter server, on made-up clocks and made-up gradients."""

from __future__ import annotations

import heapq
import json
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor

from gnnkit.errors import UserError
from gnnkit.sync.aggregation import Aggregation, Mean, Median, Weighted
from gnnkit.sync.optimised import Groups, Optimised, pack_state, unpack_state
from gnnkit.sync.versions import Mode, Rules, VersionedParameters

MODES = [Rules("sync"), Rules("async"), Rules("ssp", 0), Rules("ssp", 1), Rules("ssp", 3)]
IDS = ["sync", "async", "ssp-0", "ssp-1", "ssp-3"]


class Noted:
    """Parameters that note the gradients of each step."""

    def __init__(self, size: int) -> None:
        self.total = torch.zeros(size, dtype=torch.float64)
        self.steps: list[tuple[Tensor, float]] = []

    def step(self, gradient: Tensor, rate: float) -> None:
        self.steps.append((gradient, rate))
        self.total -= rate * gradient

    def values(self) -> Tensor:
        return self.total.clone()


@dataclass
class Trace:
    """A run on a made-up clock."""

    parameters: VersionedParameters
    model: Noted
    rate: float = 0.0  # gradients a second, until the first worker has ended
    gaps: list[int] = field(default_factory=list)  # largest less smallest clock, after each push
    reads: list[tuple[int, Tensor]] = field(default_factory=list)  # clock of the reader, values read


def simulate(rules: Rules, seconds: np.ndarray, *, gradient: bool = True, ends: dict[int, int] | None = None) -> Trace:
    """Runs all workers, where step c of worker p takes `seconds[p, c]`.

    The gradient of step c of worker p is one-hot, so the values read tell what has been
    applied. `ends` gives the number of steps of workers that are lost early.
    """
    workers, steps = seconds.shape
    ends = ends or {}
    model = Noted(workers * steps if gradient else 1)
    trace = Trace(VersionedParameters(model, workers, rules), model)
    server, waiting = trace.parameters, set()
    events = [(float(seconds[p, 0]), p) for p in range(workers)]
    heapq.heapify(events)
    while events:
        now, rank = heapq.heappop(events)
        clock = server.clocks[rank]
        one_hot = torch.zeros(workers * steps if gradient else 1, dtype=torch.float64)
        one_hot[rank * steps + clock if gradient else 0] = 1.0
        server.push(rank, one_hot, 1 / workers)
        live = [server.clocks[each] for each in server.live]
        trace.gaps.append(max(live) - min(live))
        waiting.add(rank)
        if server.clocks[rank] == ends.get(rank, steps):
            waiting.discard(rank)
            trace.rate = trace.rate or sum(server.clocks) / now
            server.leave(rank)
        for each in sorted(waiting):
            if server.may_start(each):
                waiting.discard(each)
                trace.reads.append((server.clocks[each], server.read(each)[1]))
                heapq.heappush(events, (now + float(seconds[each, server.clocks[each]]), each))
    assert not waiting, f"workers {waiting} wait for ever"
    return trace


def delays(seed: int, workers: int, steps: int, slow: float = 7.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    factors: np.ndarray = rng.choice([1.0] * 9 + [slow], (workers, steps))
    return factors * rng.uniform(0.5, 1.5, (workers, steps))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rules", MODES, ids=IDS)
def test_every_gradient_is_applied_exactly_once(rules: Rules, seed: int) -> None:
    workers, steps = 2 + seed, 12
    trace = simulate(rules, delays(seed, workers, steps))
    assert trace.parameters.clocks == [steps] * workers
    torch.testing.assert_close(trace.model.total, torch.full((workers * steps,), -1.0, dtype=torch.float64))
    num_steps = len(trace.model.steps)
    assert num_steps == trace.parameters.version, "a late gradient is part of a step"
    if rules.together:
        assert num_steps == steps
    else:
        assert steps <= num_steps <= workers * steps


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("bound", [1, 2, 4])
def test_no_clock_is_further_ahead_than_the_bound_and_one(bound: int, seed: int) -> None:
    trace = simulate(Rules("ssp", bound), delays(seed, 4, 60, slow=30))
    assert max(trace.gaps) == bound + 1, "the bound is reached, and never passed"


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("bound", [1, 2, 4])
def test_no_gradient_is_staler_than_the_bound(bound: int, seed: int) -> None:
    delays_seen = simulate(Rules("ssp", bound), delays(seed, 4, 60, slow=30)).parameters.delays
    assert max(delays_seen) == bound, "the bound is reached, and never passed"
    assert delays_seen.total() == 4 * 60


def test_workers_that_keep_up_compute_with_the_newest_parameters() -> None:
    staleness = simulate(Rules("async"), delays(0, 4, 40), gradient=False).parameters.delays
    assert staleness[0] / staleness.total() > 0.7, "with one gradient a step, three of four would be late"


def test_a_step_waits_for_all_workers_but_a_quarter() -> None:
    model = Noted(8)
    server, one_hot = VersionedParameters(model, 8, Rules("async")), torch.eye(8, dtype=torch.float64)
    for rank in range(5):
        server.push(rank, one_hot[rank], 1 / 8)
    assert not model.steps
    assert not any(map(server.may_start, range(5)))
    server.push(5, one_hot[5], 1 / 8)
    assert all(map(server.may_start, range(6)))
    assert [round(8 * rate) for _, rate in model.steps] == [6]
    server.push(6, one_hot[6], 1 / 8)
    assert server.may_start(6), "a worker does not wait with a late gradient"
    for rank in range(6):
        server.read(rank)
        server.push(rank, one_hot[rank], 1 / 8)
    assert [round(8 * rate) for _, rate in model.steps] == [6, 7], "it is part of the next step"
    assert server.delays == {0: 12, 1: 1}


def test_a_worker_at_the_end_of_its_epoch_holds_nobody_back() -> None:
    server, one = VersionedParameters(Noted(1), 4, Rules("ssp", 1)), torch.ones(1, dtype=torch.float64)
    for _ in range(3):
        server.push(3, one, 0.25)
        assert not server.may_start(3)
        server.absent = {0, 1, 2}
        server.step_if_complete()
        assert server.may_start(3)
        server.read(3)
        server.absent = set()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("bound", [1, 2, 4])
def test_a_read_holds_every_gradient_older_than_the_bound(bound: int, seed: int) -> None:
    workers, steps = 4, 20
    for clock, values in simulate(Rules("ssp", bound), delays(seed, workers, steps)).reads:
        applied = values.view(workers, steps) < -0.99
        assert bool(applied[:, : max(clock - bound, 0)].all())


def test_a_bound_of_zero_is_the_bulk_synchronous_run_to_the_bit() -> None:
    torch.manual_seed(0)
    gradients = torch.randn(5, 3, 8, dtype=torch.float64)  # step, worker
    values = torch.zeros(8, dtype=torch.float64)
    for together in gradients:
        values -= together.sum(0)
    for mode, order in (("sync", [2, 0, 1]), ("ssp", [1, 2, 0])):
        model = Noted(8)
        server = VersionedParameters(model, 3, Rules(mode))  # type: ignore[arg-type]
        for together in gradients:
            for rank in order:
                server.push(rank, together[rank], 1 / 3)
                assert server.may_start(rank) == (rank == order[-1])
        assert torch.equal(model.total, values)


def test_a_part_of_the_rows_makes_a_part_of_a_step() -> None:
    """The optimiser gets the mean gradient. A worker without rows moves nothing."""
    model = Noted(1)
    server = VersionedParameters(model, 3, Rules("async"))
    for rank in (1, 2):
        server.leave(rank)
    for part, share in [(2.0, 0.25), (6.0, 0.75), (0.0, 0.0)]:
        server.read(0)
        server.push(0, torch.tensor([part], dtype=torch.float64), share)
    assert [(gradient.item(), rate) for gradient, rate in model.steps] == [(8.0, 0.25), (8.0, 0.75)]
    assert server.version == 3


@pytest.mark.parametrize("rules", [Rules("async"), Rules("ssp", 2)], ids=["async", "ssp"])
def test_workers_that_do_not_wait_make_the_step_of_all_with_adam_too(rules: Rules) -> None:
    together, alone = (
        Optimised(torch.zeros(2), [[2]], Groups(((0,),), ({"lr": 0.1},)), torch.optim.Adam) for _ in range(2)
    )
    gradient = torch.tensor([3.0, -4.0])
    together.step(gradient, 1.0)
    server = VersionedParameters(alone, 4, rules)
    for rank in range(3):
        server.push(rank, gradient / 4, 1 / 4)
    torch.testing.assert_close(alone.values(), together.values() * 3 / 4)
    server.push(3, gradient / 4, 1 / 4)
    server.meet()
    torch.testing.assert_close(alone.values(), together.values())


@pytest.mark.parametrize("rules", MODES, ids=IDS)
def test_a_lost_worker_holds_nobody_back(rules: Rules) -> None:
    trace = simulate(rules, delays(1, 3, 10), ends={1: 4})
    assert trace.parameters.clocks == [10, 4, 10]
    applied = trace.model.total.view(3, 10) < -0.99  # more, where the rows that are left count as all rows
    assert applied.sum(1).tolist() == [10, 4, 10]


def test_workers_that_met_have_equal_clocks() -> None:
    """A worker that leaves out steps would hold the others back for ever."""
    server = VersionedParameters(Noted(1), 2, Rules("ssp", 1))
    gradient = torch.ones(1, dtype=torch.float64)
    server.push(0, gradient, 0.5)
    server.read(0)
    server.push(0, gradient, 0.5)
    assert not server.may_start(0)
    server.meet()
    for rank in (0, 1):
        server.read(rank)
    server.push(0, gradient, 0.5)
    assert server.may_start(0)


def throughput(mode: Mode, seconds: np.ndarray, bound: int = 0) -> float:
    return simulate(Rules(mode, bound), seconds, gradient=False).rate


@pytest.mark.slow
@pytest.mark.exhaustive
def test_with_stragglers_that_change_async_is_faster_than_ssp_and_ssp_than_sync() -> None:
    rng = np.random.default_rng(0)
    seconds = np.where(rng.random((4, 2000)) < 0.1, 5.0, 1.0)
    free, stale, together = throughput("async", seconds), throughput("ssp", seconds, 3), throughput("sync", seconds)
    print(f"gradients a second: async {free:.2f}, ssp {stale:.2f}, sync {together:.2f}")
    assert free > 1.05 * stale
    assert stale > 1.05 * together


@pytest.mark.slow
def test_with_one_slow_worker_ssp_is_as_slow_as_sync_and_async_faster_than_both() -> None:
    seconds = np.ones((4, 400))
    seconds[3] = 5.0
    together, bounded, free = throughput("sync", seconds), throughput("ssp", seconds, 3), throughput("async", seconds)
    assert together == pytest.approx(4 / 5, rel=0.01)
    assert bounded == pytest.approx(together, rel=0.01)
    assert free == pytest.approx(3 + 1 / 5, rel=0.01)


@pytest.mark.parametrize("average", [Weighted(), Mean(), Median()], ids=["weighted", "mean", "median"])
def test_the_rows_that_are_left_count_as_all_rows(average: Aggregation) -> None:
    """Own mean gradients are 4 and 4. The worker with half of the rows is lost."""
    model = Noted(1)
    server = VersionedParameters(model, 3, Rules("sync", aggregation=average))
    shares, means = [0.25, 0.25, 0.5], [4.0, 4.0, 100.0]

    def push(rank: int) -> None:
        server.push(rank, torch.tensor([means[rank] * shares[rank]], dtype=torch.float64), shares[rank])

    push(0)
    push(1)
    assert not server.may_start(0)
    server.leave(2)
    assert [gradient.item() for gradient, _ in model.steps] == [4.0]
    push(0)
    push(1)
    assert [gradient.item() for gradient, _ in model.steps] == [4.0, 4.0]


def test_a_step_without_rows_that_are_left_changes_nothing() -> None:
    model = Noted(1)
    server = VersionedParameters(model, 2, Rules("sync"))
    server.leave(0)
    server.push(1, torch.zeros(1, dtype=torch.float64), 0.0)
    assert [gradient.item() for gradient, _ in model.steps] == [0.0]


def test_a_state_of_numbers_and_tensors_travels_and_comes_back() -> None:
    state = {0: {"step": 3, "exp": torch.ones(2)}, 7: {"found": True, "step": torch.tensor(2.0)}}
    plain, tensors = pack_state(state)
    json.dumps(plain)
    actual = unpack_state(plain, {**tensors, "values": torch.zeros(3)})
    assert actual.keys() == state.keys()
    assert (actual[0]["step"], actual[7]["found"], float(actual[7]["step"])) == (3, True, 2.0)
    assert actual[0]["exp"].tolist() == [1, 1]


def test_settings_of_an_optimiser_travel_as_numbers_and_others_are_refused() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    group = {"params": [weight], "lr": torch.tensor(0.5), "betas": (0.9, torch.tensor(0.99)), "name": None}
    optimizer = torch.optim.Adam([group], foreach=True)
    (settings,) = Groups.of(optimizer, [weight]).settings
    assert (settings["lr"], settings["betas"]) == (0.5, [0.9, pytest.approx(0.99)])
    json.dumps(settings)
    optimizer.param_groups[0]["mask"] = {1, 2}
    with pytest.raises(
        UserError, match="sync: the optimiser's setting mask is a set, but servers support numbers only"
    ):
        Groups.of(optimizer, [weight])
