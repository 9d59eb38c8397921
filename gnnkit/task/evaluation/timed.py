"""Evaluation of nodes as of their own times."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gnnkit.engine.default_dtype import default_dtype
from gnnkit.graph import Ids
from gnnkit.sampler.base import wrap
from gnnkit.sampler.batching import draws_key
from gnnkit.strategy import Worker
from gnnkit.strategy.seeds import drawing
from gnnkit.task.evaluation.logits import COPIES, MIB, Evaluation, chunks, of_splits


class TimedEvaluation(Evaluation):
    """Evaluates each node on edges that it sees, drawn as in training.

    Draws follow from the node, its time and the seed of the run. Outputs therefore do
    not depend on the other nodes of a chunk, nor on edges of the future.
    """

    def __init__(self, worker: Worker, model: nn.Module, memory: float, splits: Collection[str] | None = None) -> None:
        """Prepares the sampler. Arguments as for `Evaluation.of`."""
        self.worker = worker if splits is None else of_splits(worker, splits)
        self._whole, self._memory, self._sampler = worker, memory * MIB, drawing(worker)
        self._layers, self._drawn = worker.layers(model), worker.drawn(model)

    def _logits(self, model: nn.Module) -> Tensor:
        nodes, features = self.worker.owned, self._whole.features
        rows = self._sampler.costs(self._drawn, nodes)  # type: ignore[arg-type]
        bytes_of_row = COPIES * features.width * self.worker.dtype.itemsize
        return torch.cat([self._outputs(model, part) for part in chunks(nodes, rows * bytes_of_row, self._memory)])

    def _outputs(self, model: nn.Module, nodes: Ids) -> Tensor:  # [k, width]
        """Computes the outputs of some nodes."""
        worker, num_layers = self._whole, int(model.num_layers)  # type: ignore[arg-type]
        key, apart = draws_key(wrap(worker.seed), wrap(-1)), not self._sampler.rank_invariant
        sample: Any = self._sampler.sample  # with `times`, as `Sampler.time` says
        batch = sample(
            self._drawn, np.asarray(nodes, np.int64), key=key, times=worker.seed_times(nodes), disjoint=apart
        )
        blocks = batch.blocks[len(batch.blocks) - num_layers :]  # a model without its last layer reads fewer
        x = worker.features.input_rows(batch.input_nodes[: len(blocks[0].src_nodes)], model)
        with default_dtype(worker.dtype):
            outputs: Tensor = model(x, worker.layers_of(batch, self._layers).layers(blocks, key=0))
        return outputs
