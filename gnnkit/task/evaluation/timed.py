"""Evaluation of rows at their own times."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor, nn

from gnnkit.engine import Pool, Rows
from gnnkit.engine.default_dtype import default_dtype
from gnnkit.engine.remote.owned_rows import OwnedRows
from gnnkit.engine.remote.owners import MessageCounter, Owners
from gnnkit.errors import UserError
from gnnkit.graph import Floats, Ids, MiniBatch
from gnnkit.graph.times import Times, at_times
from gnnkit.sampler.base import wrap
from gnnkit.sampler.batching import draws_key
from gnnkit.strategy import Worker
from gnnkit.strategy.fetched_batches import Draw
from gnnkit.strategy.seeds import Step
from gnnkit.task.evaluation.logits import COPIES, MIB, Evaluation, T, alike, chunks, evaluating, of_splits


class _NoPool(Pool):
    """Refuses means over rows, which would depend on the other rows of a chunk."""

    def mean(self, x: Tensor) -> tuple[Tensor, Tensor]:
        raise UserError(
            "sampler.time: the model takes means over all rows of a batch, which have different times: use "
            "gnnkit.nn.BatchNorm or LayerNorm"
        )


def step_at(worker: Worker, nodes: Ids, times: Times) -> Step:
    """Returns the step in which an evaluation samples nodes at times, both [k]."""
    return Step(nodes.astype(np.int64), 0, 0, draws_key(wrap(worker.seed), wrap(-1)), times=times)


class TimedEvaluation(Evaluation):
    """Evaluates each node, or each end of a pair, on edges that it sees.

    They are drawn as in training. If edges are predicted or have labels, figures call
    `Worker.embed` for the outputs of their ends, and there are no outputs of nodes.

    Draws follow from the node, its time and the run's seed. Outputs therefore do not
    depend on other nodes in a chunk, nor on future edges.
    """

    def __init__(self, worker: Worker, model: nn.Module, memory: float, splits: Collection[str] | None = None) -> None:
        """Prepares the draws, with arguments as for `Evaluation`.

        Collective if rows have to be fetched from owners.
        """
        self.worker = worker if splits is None else of_splits(worker, splits)
        self._full_worker, self._memory = replace(worker, input_dtype=None), memory * MIB
        owners = Owners.of(worker.shard, worker.comm) if worker.fetches else None
        self._draw, self._rows = Draw(worker, model, owners, _NoPool()), None
        if owners is not None:
            self._rows = OwnedRows(worker.shard, owners, worker.comm, values=False, disk=worker.disk)

    def read(
        self, model: nn.Module, figures: Callable[[Tensor, Worker], T], splits: Collection[str] | None = None
    ) -> T:
        if splits is None:
            return super().read(model, figures)
        whole, self.worker = self.worker, of_splits(self.worker, splits)
        try:
            return super().read(model, figures)
        finally:
            self.worker = whole

    def _logits(self, model: nn.Module) -> Tensor:
        worker = self.worker
        if not worker.rows.at_own_times:
            return self._at_times(model, worker.owned, worker.seed_times(worker.owned))
        self.worker = replace(worker, embed=partial(self._embed, model))
        return torch.empty((len(worker.owned), 0), dtype=worker.dtype, device=worker.device)

    def _embed(self, model: nn.Module, nodes: Ids, times: Ids) -> Tensor:  # [..., width]
        with evaluating(model):
            outputs = self._at_times(model, nodes, times)
        return outputs.reshape(*nodes.shape, outputs.shape[1])

    def _at_times(self, model: nn.Module, nodes: Ids, times: Ids | None) -> Tensor:  # [k, width]
        """Computes nodes' outputs at times, both with k elements in any shape."""
        assert times is not None, "samples by time"
        nodes, bounds, places = at_times(nodes.reshape(-1), times.reshape(-1))
        costs = self._costs[nodes] * (COPIES * self._width(model) * self._full_worker.dtype.itemsize)
        parts = list(chunks(np.arange(len(nodes)), costs, self._memory))
        if self._rows is not None:  # collective
            parts = alike(parts, self._full_worker)
        outputs = torch.cat([self._outputs(model, nodes[part], bounds[part]) for part in parts])
        return outputs[torch.from_numpy(places).to(outputs.device)]

    @cached_property
    def _costs(self) -> Floats:  # [num_nodes]
        """Expected number of edges of each node's tree, computed once."""
        return self._draw.costs(np.arange(self._full_worker.shard.num_nodes))

    def _width(self, model: nn.Module) -> float:
        """Returns the numbers per row of the inputs as stored, or between layers."""
        between = (min(weight.shape[-2:]) for weight in model.parameters() if weight.dim() > 1)
        return max(self._full_worker.features.width_held(model), *between, 1)

    def _outputs(self, model: nn.Module, nodes: Ids, times: Times) -> Tensor:  # [k, width]
        """Computes some nodes' outputs at times."""
        worker, draw, num_layers = self._full_worker, self._draw, int(model.num_layers)  # type: ignore[arg-type]
        step = step_at(worker, nodes, times)
        sample = draw(
            step, worker.comm, MessageCounter.zeros(worker.comm.world_size), disjoint=not draw.sampler.rank_invariant
        )
        blocks = sample.batch.blocks[len(sample.batch.blocks) - num_layers :]  # without its last layer, it reads fewer
        x = self._inputs(sample.batch, model)[: len(blocks[0].src_nodes)]
        with default_dtype(worker.dtype):
            outputs: Tensor = model(x, draw.layers(sample).layers(blocks, key=0))
        return outputs

    def _inputs(self, batch: MiniBatch, model: nn.Module) -> Rows:
        if self._rows is None:
            return self._full_worker.features.input_rows(batch.input_nodes, model)
        nodes, places = batch.rows_by_node()
        rows = self._rows.fetch(nodes, self._full_worker.comm).rows[places]
        return self._full_worker.fetched_rows(self._rows.features(rows), model)
