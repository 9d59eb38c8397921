"""Evaluation of a split by time, on more edges than training reads."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from gnnkit.graph import Split
from gnnkit.task.evaluation.logits import Evaluation


class LaterEvaluation(Evaluation):
    """Evaluates validation nodes without the edges of the test period.

    Their score then does not depend on later edges, as for a model that was deployed at
    the border. All other nodes are evaluated on all edges.
    """

    def __init__(self, evaluations: Mapping[str, Evaluation]) -> None:
        """Combines the evaluations of `val` and `test`, which have the same nodes."""
        self._evaluations, self.worker = evaluations, evaluations["test"].worker

    def _logits(self, model: nn.Module) -> Tensor:
        val, test = (self._evaluations[split].logits(model) for split in ("val", "test"))
        is_val = torch.from_numpy(np.asarray(self.worker.shard.split) == Split.VAL).to(test.device)
        return torch.where(is_val.reshape(-1, *[1] * (test.ndim - 1)), val, test)
