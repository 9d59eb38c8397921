"""The task of ranking rows of another table: task=ranking."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from gnnkit.errors import UserError
from gnnkit.graph import Graph, Split
from gnnkit.strategy import Worker
from gnnkit.task import NodeTask
from gnnkit.task.base import PredictionColumns, rows_of
from gnnkit.utils.checks import Array
from gnnkit.utils.ranges import MAX_COUNT, whole
from gnnkit_tables.lists import BETWEEN, METRICS, rank_figures, rank_within

WIDTH = 3  # columns of labels: whether the row belongs to the list, the list's number, and its size


class Ranking(NodeTask):
    """Choose this task to list rows of another table for an entity as of a time.

    The nodes of `dataset=tables` with `type: ranking` are pairs of a target and a row
    that may be listed. The loss is the binary cross-entropy of whether the row belongs
    to the list. Metrics are means over lists of at least one row, at the length `k`,
    computed from all ranks' scores: MAP, precision and recall. Rows that are no
    candidates count as missed.

    Args:
        k: Length of lists.
    """

    metrics = METRICS
    splits = ("val", "test")
    key = "ranking"

    def __init__(self, k: int = 10) -> None:
        self.k = whole("task.k", k, 1, MAX_COUNT)

    def read(self, graph: Graph) -> Graph:
        labels = graph.labels
        if labels.ndim != 2 or labels.dtype.kind != "f" or labels.shape[1] != WIDTH:
            raise UserError("task=ranking needs dataset=tables with a task of type ranking")
        return graph

    def num_outputs(self, num_classes: int) -> int:
        return 1

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs[:, 0], labels[:, 0].to(outputs.dtype), reduction="none")

    def predict(self, outputs: Tensor) -> Tensor:  # [k]
        return outputs[:, 0]

    def counts(self, outputs: Tensor, labels: Tensor) -> Tensor:  # [1], unused, because ranks are no sums over rows
        return outputs.new_zeros(1)

    def figures(self, counts: Tensor) -> dict[str, float]:
        return {}

    def measure(self, outputs: Tensor, worker: Worker) -> dict[str, float]:
        metrics = super().measure(outputs, worker)
        for split in self.splits:
            scores, labels = rows_of(split, outputs, worker)
            parts = worker.comm.gather(torch.cat([scores[:, :1].to(torch.float64), labels.to(torch.float64)], 1))
            figures = self._rank(torch.cat(parts).cpu().numpy()) if parts else {}
            metrics |= {f"{split}_{name}": value for name, value in worker.comm.share(figures).items()}
        return metrics

    def _rank(self, rows: Array) -> dict[str, float]:
        """Computes the figures of scores and labels [n, 1 + WIDTH].

        Equal scores are in the middle of all orders: wanted rows are behind the others.
        """
        score, wanted, lists, sizes = rows.T
        return rank_figures(lists, rank_within(lists, score, -wanted), wanted, sizes, self.k)

    def predictions(self, outputs: Tensor, worker: Worker) -> Tensor | None:  # [k, 3] float64
        """Returns node, rank from 1 and score of the best rows of each list.

        The lists are those without a label, as of `dataset.until`, or else those of
        validation and test.
        """
        targets = worker.targets
        is_pair = ~np.isnan(targets.label[:, 1])
        kinds = np.where(np.isnan(targets.label[:, 0]), 2, (targets.split != Split.TRAIN) * 1)
        rows = torch.from_numpy(np.flatnonzero(is_pair))
        facts = torch.from_numpy(np.stack([targets.ids, targets.label[:, 1], kinds], 1).astype(np.float64))
        columns = torch.cat([facts[rows].to(outputs.device), outputs[rows.to(outputs.device), :1].to(torch.float64)], 1)
        parts = worker.comm.gather(columns)
        if not parts:
            return None
        joined = torch.cat(parts)
        table = joined.cpu().numpy()
        table = table[np.argsort(table[:, 0])]
        table = table[table[:, 2] == table[:, 2].max(initial=0)]
        ranks = rank_within(table[:, 1], table[:, 3])
        best = np.flatnonzero(ranks < self.k)
        best = best[np.lexsort([ranks[best], table[best, 1]])]
        return torch.from_numpy(np.stack([table[best, 0], ranks[best] + 1.0, table[best, 3]], 1)).to(joined.device)

    def columns(self, rows: Array, ids: Array, classes: Sequence[str] | None) -> PredictionColumns:
        parts = [str(name).partition(BETWEEN) for name in ids[rows[:, 0].astype(np.int64)]]
        return {
            "id": [target for target, _, _ in parts],
            "rank": rows[:, 1].astype(np.int64),
            "row": [row for _, _, row in parts],
            "score": rows[:, 2],
        }
