"""Evaluation of rows at their own times."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gnnkit.engine import Pool
from gnnkit.engine.default_dtype import default_dtype
from gnnkit.errors import UserError
from gnnkit.graph import Ids
from gnnkit.graph.times import Times, at_times
from gnnkit.sampler.base import wrap
from gnnkit.sampler.batching import draws_key
from gnnkit.sampler.links import Links
from gnnkit.strategy import Worker
from gnnkit.strategy.seeds import drawing
from gnnkit.task.evaluation.logits import COPIES, MIB, Evaluation, chunks, evaluating, of_splits


class _NoPool(Pool):
    """Refuses means over rows, which would depend on the other rows of a chunk."""

    def mean(self, x: Tensor) -> tuple[Tensor, Tensor]:
        raise UserError(
            "sampler.time: the model takes means over all rows of a batch, which have different times: use "
            "gnnkit.nn.BatchNorm or LayerNorm"
        )


class TimedEvaluation(Evaluation):
    """Evaluates each node, or each end of a pair, on edges that it sees.

    They are drawn as in training. Labelled edges have outputs [num_pairs * 2, width].
    If edges are predicted, `Worker.embed` computes the outputs of their ends.

    Draws follow from the node, its time and the run's seed. Outputs therefore do not
    depend on other nodes in a chunk, nor on future edges.
    """

    def __init__(self, worker: Worker, model: nn.Module, memory: float, splits: Collection[str] | None = None) -> None:
        """Prepares the sampler, with arguments as for `Evaluation`."""
        self.worker = worker if splits is None else of_splits(worker, splits)
        self._whole, self._memory, self._sampler = worker, memory * MIB, drawing(worker)
        self._layers, self._drawn = worker.layers(model, _NoPool()), worker.drawn(model)

    def _logits(self, model: nn.Module) -> Tensor:
        worker, links = self.worker, self._whole.links
        if isinstance(links, Links):  # figures ask for the ends of pairs at their times
            self.worker = replace(worker, embed=partial(self._embed, model))
            return torch.empty((len(worker.owned), 0), dtype=worker.dtype, device=worker.device)
        if links is None:
            return self._at_times(model, worker.owned, worker.seed_times(worker.owned))
        return self._at_times(model, worker.targets.rows, worker.targets.end_times)

    def _embed(self, model: nn.Module, nodes: Ids, times: Times) -> Tensor:  # [..., width]
        with evaluating(model):
            return self._at_times(model, nodes, times).reshape(*nodes.shape, -1)

    def _at_times(self, model: nn.Module, nodes: Ids, times: Times | None) -> Tensor:  # [k, width]
        """Computes the outputs of nodes at times, both of k elements in any shape."""
        assert times is not None, "samples by time"
        nodes, times, places = at_times(nodes.reshape(-1), times.reshape(-1))
        rows = self._sampler.costs(self._drawn, nodes)  # type: ignore[arg-type]
        costs = rows * (COPIES * self._whole.features.width * self._whole.dtype.itemsize)
        parts = chunks(np.arange(len(nodes)), costs, self._memory)
        outputs = torch.cat([self._outputs(model, nodes[part], times[part]) for part in parts])
        return outputs[torch.from_numpy(places).to(outputs.device)]

    def _outputs(self, model: nn.Module, nodes: Ids, times: Times) -> Tensor:  # [k, width]
        """Computes some nodes' outputs at times."""
        worker, num_layers = self._whole, int(model.num_layers)  # type: ignore[arg-type]
        key, apart = draws_key(wrap(worker.seed), wrap(-1)), not self._sampler.rank_invariant
        sample: Any = self._sampler.sample  # with `times`, as `Sampler.time` says
        batch = sample(self._drawn, np.asarray(nodes, np.int64), key=key, times=times, disjoint=apart)
        blocks = batch.blocks[len(batch.blocks) - num_layers :]  # a model without its last layer reads fewer
        x = worker.features.input_rows(batch.input_nodes[: len(blocks[0].src_nodes)], model)
        with default_dtype(worker.dtype):
            outputs: Tensor = model(x, worker.layers_of(batch, self._layers).layers(blocks, key=0))
        return outputs
