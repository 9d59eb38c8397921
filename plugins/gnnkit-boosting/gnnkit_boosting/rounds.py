"""Growth of the trees: a few more in each epoch, fitted by scikit-learn."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from gnnkit.errors import UserError
from gnnkit.strategy import Batch, Worker
from gnnkit.task import LabelFacts
from gnnkit.utils.checks import Array
from gnnkit_boosting.trees import TREES_AT_ONCE, GrowingSums, pack, sum_trees

if TYPE_CHECKING:
    from gnnkit_boosting.model import Boosting

_ABSENT = math.log(1e-12)  # log-odds of a class that no training node has
_LEADER = 0
COLUMNS_AT_ONCE = 256  # columns that an epoch's trees choose from, drawn for each epoch
_LEAF_ROWS = 20  # scikit-learn's default `min_samples_leaf`


class Rounds(Callback):
    """Adds trees before each epoch's step, which then measures their loss.

    All workers' training rows are gathered, in the order of their ids. The leader fits
    the trees in one thread, and sends them to all workers. The fit depends on the seed
    and the rows only. A resumed run fits its earlier trees again.
    """

    def __init__(self) -> None:
        self._boosters: list[_Booster] | None = None  # None before the first step
        self.stopped: str | None = None  # read by gnnkit, for `stopped` in `result.json`

    def on_fit_start(self, trainer: L.Trainer, module: Any) -> None:
        labels, model = module.label_inputs, module.model
        if labels is not None:
            model.num_labels.fill_(labels.num_columns)
        obstacles = {
            "this strategy samples edges, and trees read all of a node's edges: use strategy=vertex_centric": (
                not module.strategy.reads.all_edges
            ),
            "inputs=learned trains rows by gradients, which trees do not have: use other inputs": (
                module.learned is not None
            ),
            "label_inputs needs model.neighbours=true, since a node reads its neighbours' labels only": (
                labels is not None and not model.neighbours
            ),
        }
        for obstacle in (reason for reason, applies in obstacles.items() if applies):
            raise UserError(f"model=boosting: {obstacle}")
        model.sum_trees = GrowingSums()
        module.label_inputs = None  # no node reads its own label. Equal rows in each epoch need new trees' values only

    def on_fit_end(self, trainer: L.Trainer, module: Any) -> None:
        module.model.sum_trees = sum_trees

    def on_train_batch_start(self, trainer: L.Trainer, module: Any, batch: Batch, batch_idx: int) -> None:
        model, worker = module.model, module.worker
        if self._boosters is None:
            rows, labels = gather(model, batch, worker)
            self._boosters = list(make_boosters(model, rows, labels, module.task, worker.seed))
        first, size = int(model.size), min((trainer.current_epoch + 1) * TREES_AT_ONCE, model.trees)
        if worker.comm.rank == _LEADER:
            for booster in self._boosters:
                booster.grow(model, first, size)
        model.size.fill_(size)
        for tensor in (model.base, model.forest[first:size]):
            worker.comm.broadcast(tensor, src=_LEADER)

    def on_validation_end(self, trainer: L.Trainer, module: Any) -> None:
        if int(module.model.size) == module.model.trees:
            self.stopped = (
                f"ended after epoch {trainer.current_epoch + 1}: all trees have grown, model.trees={module.model.trees}"
            )
            trainer.should_stop = True


def gather(model: Boosting, batch: Batch, worker: Worker) -> tuple[Array, Array]:  # [k, width], [k, ...]
    """Returns all ranks' training rows and labels by node id. Collective."""
    layers = batch.again().adjacencies
    assert isinstance(batch.x, Tensor)
    rows, nodes = model.columns(batch.x, layers[0])[batch.rows], layers[-1].src_nodes[batch.rows]
    count = torch.zeros(worker.shard.num_nodes, dtype=torch.int64, device=worker.device)
    count[nodes] = 1
    places = worker.comm.all_reduce(count).cumsum(0)

    def join(values: Tensor) -> Array:
        table = values.new_zeros(int(places[-1]), *values.shape[1:])
        table[places[nodes] - 1] = values
        full: Array = worker.comm.all_reduce(table).cpu().numpy()
        return full

    labels = batch.labels if batch.labels.is_floating_point() else batch.labels.to(torch.int64)
    return join(rows), join(labels)


class _Growing:
    """Keeps an estimator's outputs on the training rows between calls of `fit`.

    scikit-learn adds new trees' values to them in place. So earlier trees are not
    evaluated again, and may have read other columns.
    """

    outputs: Array | None = None  # [k, number of trees per iteration]

    def _raw_predict(self, X: Array, n_threads: int | None = None) -> Array:
        if self.outputs is None:
            self.outputs = super()._raw_predict(X, n_threads)  # type: ignore[misc]
        return self.outputs


@dataclass(slots=True, eq=False)
class _Booster:
    """An estimator of one label column, which gains trees."""

    estimator: Any  # of scikit-learn. None: the outputs are constant
    outputs: Array  # columns of the model's outputs, of which each has trees
    rows: Array  # [k, width]
    labels: Array  # [k]
    weights: Array | None  # [k]
    size: int = 0  # number of trees per output
    candidates: Array | None = None  # columns that a tree can split by. None: not yet determined

    def grow(self, model: Boosting, first: int, size: int) -> None:
        """Fits up to `size` trees, and stores those from `first` on in the model."""
        if self.estimator is None:
            return
        from threadpoolctl import threadpool_limits

        with threadpool_limits(1):
            while self.size < size:
                self._add_trees(model, first, min(self.size + TREES_AT_ONCE, size))

    def _add_trees(self, model: Boosting, first: int, size: int) -> None:
        earlier, columns = self.size, self._draw_columns()
        rows, self.size = self.rows[:, columns], size
        self.estimator.set_params(max_iter=size).fit(rows, self.labels, sample_weight=self.weights)
        self.estimator._raw_predict(rows)
        model.base[self.outputs] = torch.from_numpy(self.estimator._baseline_prediction.ravel()).to(model.base)
        for number, trees in enumerate(self.estimator._predictors[max(first, earlier) :], max(first, earlier)):
            for output, tree in zip(self.outputs, trees, strict=True):
                model.forest[number, output, : len(tree.nodes)] = pack(tree.nodes, model.forest.dtype, columns)

    def _draw_columns(self) -> Array:  # [at most COLUMNS_AT_ONCE]
        """Returns the columns for the next trees, in order."""
        if self.candidates is None:
            self.candidates = splittable(self.rows)
            if not len(self.candidates):  # scikit-learn needs a column that is not empty
                self.candidates, self.rows = np.zeros(1, np.int64), np.zeros_like(self.rows[:, :1])
        if len(self.candidates) <= COLUMNS_AT_ONCE:
            return self.candidates
        rng = np.random.default_rng([self.estimator.random_state, self.size])
        return np.sort(rng.choice(self.candidates, COLUMNS_AT_ONCE, replace=False))


def splittable(rows: Array) -> Array:
    """Returns the columns that a split can divide into two sufficiently large parts.

    Trees cannot read the others, so leaving them out changes nothing.
    """
    min_rows = min(_LEAF_ROWS, len(rows))
    extremes = np.partition(rows, (min_rows - 1, len(rows) - min_rows), axis=0)  # NaN last
    low, high = extremes[min_rows - 1], extremes[-min_rows]
    return np.flatnonzero((low != high) & ~np.isnan(low))


def make_boosters(model: Boosting, rows: Array, labels: Array, task: Any, seed: int) -> Iterator[_Booster]:
    """Makes the estimators of a task, and sets the outputs without trees.

    Args:
        model: The model.
        rows: [k, width] columns of the training nodes.
        labels: [k], or [k, num_labels], in the form of `Graph.labels`.
        task: Has label statistics, and the `loss` of numbers.
        seed: Seed of the estimators.
    """
    classifier, regressor = _estimators()
    options = {
        "learning_rate": model.learning_rate,
        "max_leaf_nodes": model.leaves,
        "warm_start": True,
        "early_stopping": False,
        "random_state": seed,
    }
    num_outputs, facts = len(model.base), task.facts()
    if labels.dtype.kind == "f":
        numbers = _scale_targets(labels, facts).reshape(len(labels), -1)
        loss = f"{getattr(task, 'loss', 'squared')}_error"
        for output, column in enumerate(numbers.T[:num_outputs]):
            has_label = ~np.isnan(column)
            estimator = regressor(loss=loss, **options) if has_label.any() else None
            yield _Booster(estimator, np.array([output]), rows[has_label], column[has_label], None)
    elif labels.ndim == 2:
        for output, column in enumerate(labels.T):
            is_constant = len(np.unique(column)) < 2
            model.base[output] = math.copysign(math.log(len(column) + 1), column.sum() - 0.5)
            yield _Booster(None if is_constant else classifier(**options), np.array([output]), rows, column, None)
    elif num_outputs < 2:
        raise UserError("model=boosting: this task has one output for classes: use another model")
    else:
        present = np.unique(labels)
        model.base.fill_(_ABSENT)
        model.base[present] = 0.0
        weights = None if facts.class_weights is None else np.array(facts.class_weights)[labels]
        outputs = present[1:] if len(present) == 2 else present
        yield _Booster(classifier(**options) if len(present) > 1 else None, outputs, rows, labels, weights)


def _scale_targets(labels: Array, facts: LabelFacts) -> Array:  # [k, ...] float64
    """Reverses `LabelFacts.in_unit`, so that outputs are what the task's loss reads."""
    numbers = labels.astype(np.float64)
    if facts.logarithm is not None:
        numbers = np.sign(numbers) * np.log1p(np.abs(numbers))
    if facts.mean is None or facts.deviation is None:
        return numbers
    targets: Array = (numbers - facts.mean) / facts.deviation
    return targets


def _estimators() -> tuple[Any, Any]:
    """Imports scikit-learn's estimators. Raises `UserError` if it is not installed."""
    try:
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    except ImportError as error:
        raise UserError("model=boosting needs scikit-learn to train: pip install 'gnnkit[init]'") from error

    class Classifier(_Growing, HistGradientBoostingClassifier):  # type: ignore[misc]
        pass

    class Regressor(_Growing, HistGradientBoostingRegressor):  # type: ignore[misc]
        pass

    return Classifier, Regressor
