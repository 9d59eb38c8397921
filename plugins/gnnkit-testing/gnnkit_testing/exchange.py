"""The contract of exchanges."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from gnnkit.engine import Engine, ForwardPass, ShardAdjacency
from gnnkit.exchange import ForwardPasses, RowExchange
from gnnkit.model.gcn import GCN
from gnnkit.partition import Grid
from gnnkit.strategy import Worker
from gnnkit.training import checkpoint
from gnnkit_testing.arguments import check_maker
from gnnkit_testing.graphs import CLASSES, WIDTH, check_graph
from gnnkit_testing.ranks import ONE, assert_close, on_ranks

EPOCHS = 6
RESUMED = 3  # number of epochs before the resume
ROWS = Grid(3, 1, 1)
GRIDS = [ROWS, Grid(2, 2, 1), Grid(2, 1, 2)]
PAUSES = (True, False, False, True, False, True)  # whether ranks exchange, by epoch


def check_exchange(make: Callable[[], RowExchange]) -> None:
    """Trains a GCN for some epochs on each grid that the exchange supports.

    A run resumed from the schedule's state must be bitwise equal to the uninterrupted
    run, also with epochs that skip the exchange unless `every_epoch`. Without
    `keeps_state`, no state may be needed. An exchange that is `exact` must give one
    rank's gradients. On one rank, every exchange must be exact. A rank's own rows must
    be current, a step evaluated again must be exact, and rows must be finite.
    """
    check_maker(make, RowExchange)
    torch.manual_seed(0)
    model = GCN(WIDTH, CLASSES, hidden=4).double()
    grids = [ROWS] if make().needs_in_edges else GRIDS
    exact = _Runs(RowExchange, model)
    alone = exact.on(ONE)
    _check_same(_Runs(make, model).on(ONE), alone, "on one rank, where nothing travels")
    for grid in grids:
        runs, keeps = _Runs(make, model), make().keeps_state
        first = runs.on(grid)
        assert all(bool(gradient.isfinite().all()) for gradient in first), f"on {grid} a gradient is not finite"
        case = "after the run was resumed from its state" if keeps else "without state, though keeps_state is false"
        _check_same(runs.on(grid, resume=True, state=keeps), first, f"on {grid} {case}")
        if make().exact:
            for actual, reference in zip(first, alone, strict=True):
                assert_close(actual, reference, f"gradient on {grid} of an exact exchange")
        if not make().every_epoch:
            with_pauses = runs.on(grid, exchanges=PAUSES)
            _check_same(runs.on(grid, exchanges=PAUSES, resume=True), with_pauses, f"on {grid} with pauses, resumed")
        _check_second_look(make, grid)
    _check_own_rows(make)


class _Runs:
    """Runs of one exchange."""

    def __init__(self, make: Callable[[], RowExchange], model: nn.Module) -> None:
        self._make, self._model = make, model

    def on(
        self, grid: Grid, *, exchanges: Sequence[bool] = (True,) * EPOCHS, resume: bool = False, state: bool = True
    ) -> list[Tensor]:  # by epoch, [num_parameters]
        """Returns the sum of all ranks' gradients.

        Args:
            exchanges: Whether ranks exchange rows, by epoch.
            resume: Whether to continue with a new schedule after some epochs.
            state: Whether to restore the old schedule's state in it.
        """

        def work(worker: Worker) -> list[Tensor]:
            replica = copy.deepcopy(self._model)
            engine = worker.engine(replica)
            passes = self._passes(engine, exchanges)
            x, gradients = worker.features.rows(worker.shard.owned), []
            for epoch, now in enumerate(exchanges):
                if resume and epoch == RESUMED:
                    saved_state = checkpoint.unpack(checkpoint.pack(passes.state_dict()))
                    passes = self._passes(engine, exchanges)
                    if state:
                        passes.load_state_dict(saved_state, worker.device)
                gradients.append(_gradient(replica, engine, x, passes.step(epoch, exchanges=now)))
                with torch.no_grad():
                    for parameter in replica.parameters():
                        parameter.mul_(0.9)
            engine.close()
            return gradients

        return [
            torch.stack(rank_gradients).sum(0)
            for rank_gradients in zip(*on_ranks(check_graph(), grid, work), strict=True)
        ]

    def _passes(self, engine: Engine, exchanges: Sequence[bool]) -> ForwardPasses:
        return ForwardPasses(self._make(), engine.topology, pauses=not all(exchanges))


def _gradient(model: nn.Module, engine: Engine, x: Tensor, forward: ForwardPass) -> Tensor:  # [num_parameters]
    """Computes this rank's part of a gradient with a different weight per node."""
    model.zero_grad()
    out = model(x, ShardAdjacency.layers(engine, 2, 7, forward))
    (out * (engine.topology.nodes[:, None] + 1).sin()).sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def _sum(engine: Engine, x: Tensor, forward: ForwardPass) -> Tensor:  # [num_owned, f]
    (adjacency,) = ShardAdjacency.layers(engine, 1, 7, forward)
    return adjacency.aggregate(x).detach()


def _check_second_look(make: Callable[[], RowExchange], grid: Grid) -> None:
    """Checks that evaluating a step again is exact and does not affect later steps."""

    def work(worker: Worker) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        engine, x = worker.engine(object()), worker.features.rows(worker.shard.owned)
        sums = []
        for looks in (False, True):
            passes = ForwardPasses(make(), engine.topology, pauses=False)
            step = passes.step(0, exchanges=True)
            _sum(engine, x, step)
            if looks:
                sums.append(_sum(engine, 2 * x, step.again))
            sums.append(_sum(engine, x, passes.step(1, exchanges=True)))
        exact = _sum(engine, 2 * x, ForwardPass())
        engine.close()
        return sums[0], sums[2], sums[1], exact

    for without, after, second, exact in on_ranks(check_graph(), grid, work):
        assert torch.equal(second, exact), f"on {grid} a second look at a step is not exact"
        assert torch.equal(without, after), f"on {grid} a second look at a step changes a later one"


def _check_own_rows(make: Callable[[], RowExchange]) -> None:
    """Checks each rank's sums in turn, with zeros as other ranks' rows."""

    def work(worker: Worker) -> list[tuple[Tensor, Tensor]]:
        engine, rank = worker.engine(object()), worker.comm.rank
        pairs = []
        for turn in range(worker.comm.world_size):
            passes = ForwardPasses(make(), engine.topology, pauses=False)
            for epoch in range(2):
                x = worker.features.rows(worker.shard.owned) * (epoch + 1) * (rank == turn)
                sums = [_sum(engine, x, forward) for forward in (passes.step(epoch, exchanges=True), ForwardPass())]
                if rank == turn:
                    pairs.append((sums[0], sums[1]))
        engine.close()
        return pairs

    for pairs in on_ranks(check_graph(), ROWS, work):
        for actual, reference in pairs:
            assert_close(actual, reference, "sums over a rank's own rows, while rows of other ranks are zeros")


def _check_same(gradients: list[Tensor], references: list[Tensor], context: str) -> None:
    for epoch, (gradient, reference) in enumerate(zip(gradients, references, strict=True)):
        assert torch.equal(gradient, reference), f"gradients of epoch {epoch} differ {context}"
