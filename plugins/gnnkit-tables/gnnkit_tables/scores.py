"""Outputs of gradient boosting for held-out targets, which `model=blend` averages."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from gnnkit.errors import UserError
from gnnkit.graph import Floats, Split
from gnnkit_tables.encode import Encoded
from gnnkit_tables.targets import Targets

_OPTIONS = {
    "learning_rate": 0.05,
    "max_leaf_nodes": 4,  # with few columns for each split, better on validation than 8 of all columns
    "max_features": 0.3,
    "max_iter": 300,
    "early_stopping": False,
    "random_state": 0,
}
_STRIDE = 10  # trees between two measures of the validation loss
_RARE = 1e-6  # lowest probability
# Two columns that follow scores. Their ratio, which other columns do not have, remains
# on the path from zeros of job=explain, and the first one is the place on the path
MARK = (4096.0, -8192.0)
IS_SCORE = re.compile(r"\.boosting \d+$")  # names of these columns in a graph


def boosted_scores(columns: Encoded, targets: Targets) -> Encoded:
    """Fits trees to the training rows, as many as validate best.

    Training rows get zeros, so that a model that is trained beside the scores does not
    learn from outputs that have seen its labels.

    Args:
        columns: What the trees read, [num_targets, width].
        targets: The labels and the split.

    Returns:
        Scores [num_targets, k + 2]: log-probabilities of the classes, or a number in
            deviations of the training labels, followed by `MARK`.
    """
    if targets.pairs is None and targets.labels.ndim > 1:
        raise UserError("dataset.boosting=true needs one label for each target; remove the key")
    train, val = (targets.split == part for part in (Split.TRAIN, Split.VAL))
    is_pair = targets.pairs is not None
    is_number = targets.labels.dtype.kind == "f" and not is_pair
    labels = (targets.labels[:, 0] == 1).astype(np.int64) if is_pair else targets.labels
    if is_number:  # as task=regression scales them
        labels = (labels - labels[train].mean()) / (labels[train].std() or 1)
    with threadpool_limits(1):  # sums in the order of one thread
        estimator = _estimator(is_number).fit(columns.rows[train], labels[train])
    stages = estimator.staged_predict if is_number else estimator.staged_predict_proba
    best, scores = np.inf, np.zeros((len(labels), 1))
    for number, stage in enumerate(stages(columns.rows), 1):
        if number % _STRIDE == 0 and (loss := _loss(stage[val], labels[val], estimator)) < best:
            best, scores = loss, stage
    if not is_number:
        whole = np.full((len(labels), 2 if is_pair else int(labels.max()) + 1), _RARE)
        whole[:, estimator.classes_] = np.maximum(scores, _RARE)
        scores = np.log(whole)
    if is_pair:  # log-odds
        scores = scores[:, 1:] - scores[:, :1]
    marked = np.column_stack([scores, np.tile(MARK, (len(labels), 1))])
    rows: Floats = np.where(train[:, None], 0, marked).astype(np.float32)
    names = tuple(f"boosting {place}" for place in range(rows.shape[1]))
    return Encoded(rows, names, names)


def _loss(stage: Any, labels: Any, estimator: Any) -> float:
    """Returns the mean absolute error, or the mean negative log-probability."""
    if stage.ndim == 1:
        return float(np.abs(stage - labels).mean()) if len(labels) else 0.0
    share = (stage * (labels[:, None] == estimator.classes_)).sum(1)
    return float(-np.log(np.maximum(share, _RARE)).mean()) if len(labels) else 0.0


def _estimator(is_number: bool) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor  # slow to import

    if is_number:
        return HistGradientBoostingRegressor(loss="absolute_error", **_OPTIONS)
    return HistGradientBoostingClassifier(**_OPTIONS)
