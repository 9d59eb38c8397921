"""Metrics per class."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from gnnkit.strategy import Worker
from gnnkit.task.base import NodeTask, f1, rows_of
from gnnkit.task.ranking import mean_areas
from gnnkit.utils.documents import Json

MAX_CLASSES = 100  # maximum for metrics per class and a confusion matrix


class ClassTask(NodeTask):
    """A node task with classes as labels."""

    @abstractmethod
    def counts(self, outputs: Tensor, labels: Tensor) -> Tensor:  # [3 num_classes]
        """Counts each class's true positives, predictions and labels."""

    def confusions(self, outputs: Tensor, labels: Tensor) -> Tensor | None:  # [num_classes, num_classes]
        """Returns the confusion matrix, with a row per true class.

        Returns None if a node may have several classes.
        """
        return None

    def details(self, outputs: Tensor, worker: Worker) -> Json:
        if outputs.shape[1] > MAX_CLASSES:
            return {"per_class": None, "confusion": None}
        tables: Json = {"per_class": {}, "confusion": {}}
        for split in self.splits:
            logits, labels = rows_of(split, outputs, worker)
            counts = worker.comm.all_reduce(self.counts(logits, labels).to(torch.float64)).view(3, -1)
            if counts[2].any():
                tables["per_class"][split] = _of_classes(counts)
            matrix = self.confusions(logits, labels)
            if matrix is not None and worker.comm.all_reduce(matrix).any():
                tables["confusion"][split] = matrix.tolist()
        return tables | ({} if tables["confusion"] else {"confusion": None})


def areas_of_all(scores: Tensor, wanted: Tensor, worker: Worker) -> dict[str, float]:
    """Returns ROC AUC and average precision over all ranks' rows. Collective.

    Both are exact, because the leader computes them from all scores. Classes that all
    rows have, or none, are omitted.

    Args:
        scores: [k, num_classes] this rank's scores.
        wanted: [k, num_classes] 1 for a row's classes, else 0.
    """
    parts = worker.comm.gather(torch.cat([scores.to(torch.float64), wanted.to(torch.float64)], 1))
    areas: dict[str, float] = worker.comm.share(mean_areas(*torch.cat(parts).chunk(2, 1)) if parts else {})
    return areas


def _of_classes(counts: Tensor) -> list[dict[str, float]]:
    """Computes each class's metrics. A quotient with divisor 0 is 0.

    Args:
        counts: [3, num_classes] true positives, predictions and labels per class.
    """
    hits, predicted, actual = counts
    parts = [hits / predicted, hits / actual, f1(counts)]
    rows = torch.stack([*(part.nan_to_num(0.0) for part in parts), actual]).t().tolist()
    return [{"precision": p, "recall": r, "f1": f, "support": int(n)} for p, r, f, n in rows]
