"""Evaluation of rows at their own times."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gnnkit.engine import Pool
from gnnkit.engine.default_dtype import default_dtype
from gnnkit.errors import UserError
from gnnkit.graph import Ids, MiniBatch
from gnnkit.graph.times import Times, at_times
from gnnkit.sampler.base import wrap
from gnnkit.sampler.batching import draws_key
from gnnkit.strategy import Worker
from gnnkit.strategy.seeds import drawing
from gnnkit.task.evaluation.logits import COPIES, MIB, Evaluation, chunks, of_splits


class _NoPool(Pool):
    """Refuses means over rows, which would depend on the other rows of a chunk."""

    def mean(self, x: Tensor) -> tuple[Tensor, Tensor]:
        raise UserError(
            "sampler.time: the model takes means over all rows of a batch, which have different times: use "
            "gnnkit.nn.BatchNorm or LayerNorm"
        )


def sample_at(worker: Worker, drawn: Any, sampler: Any, nodes: Ids, times: Times) -> MiniBatch:
    """Samples nodes at their times for an evaluation.

    Args:
        worker: The rank.
        drawn: `Worker.drawn` of the model.
        sampler: The sampler from `drawing`.
        nodes: [k] nodes.
        times: [k] their times.
    """
    key, apart = draws_key(wrap(worker.seed), wrap(-1)), not sampler.rank_invariant
    batch: MiniBatch = sampler.sample(drawn, np.asarray(nodes, np.int64), key=key, times=times, disjoint=apart)
    return batch


class TimedEvaluation(Evaluation):
    """Evaluates each node, or each end of a pair, on edges that it sees.

    They are drawn as in training. Pairs have outputs [num_pairs * 2, width].

    Draws follow from the node, its time and the run's seed. Outputs therefore do not
    depend on other nodes in a chunk, nor on future edges.
    """

    def __init__(self, worker: Worker, model: nn.Module, memory: float, splits: Collection[str] | None = None) -> None:
        """Prepares the sampler, with arguments as for `Evaluation`."""
        self.worker = worker if splits is None else of_splits(worker, splits)
        self._whole, self._memory, self._sampler = worker, memory * MIB, drawing(worker)
        self._layers, self._drawn = worker.layers(model, _NoPool()), worker.drawn(model)

    def _logits(self, model: nn.Module) -> Tensor:
        worker = self.worker
        if worker.links is None:
            nodes, places = worker.owned, None
            times = worker.seed_times(nodes)
        else:
            ends = worker.targets.rows.reshape(-1), worker.targets.end_times.reshape(-1)
            nodes, times, places = at_times(*ends)
        assert times is not None, "samples by time"
        rows = self._sampler.costs(self._drawn, nodes)  # type: ignore[arg-type]
        costs = rows * (COPIES * self._whole.features.width * worker.dtype.itemsize)
        parts = chunks(np.arange(len(nodes)), costs, self._memory)
        outputs = torch.cat([self._outputs(model, nodes[part], times[part]) for part in parts])
        return outputs if places is None else outputs[torch.from_numpy(places).to(outputs.device)]

    def _outputs(self, model: nn.Module, nodes: Ids, times: Times) -> Tensor:  # [k, width]
        """Computes some nodes' outputs at times."""
        worker, num_layers = self._whole, int(model.num_layers)  # type: ignore[arg-type]
        batch = sample_at(worker, self._drawn, self._sampler, nodes, times)
        blocks = batch.blocks[len(batch.blocks) - num_layers :]  # a model without its last layer reads fewer
        x = worker.features.input_rows(batch.input_nodes[: len(blocks[0].src_nodes)], model)
        with default_dtype(worker.dtype):
            outputs: Tensor = model(x, worker.layers_of(batch, self._layers).layers(blocks, key=0))
        return outputs
