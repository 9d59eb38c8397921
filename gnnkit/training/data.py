"""A Lightning data module for the loader, for a user's own trainer."""

from __future__ import annotations

from typing import Any

import lightning as L
import numpy as np

from gnnkit.errors import UserError
from gnnkit.graph import SPLITS, Graph, Ids
from gnnkit.sampler import Loader, Sampler
from gnnkit.sampler.loader import as_untyped


class GraphDataModule(L.LightningDataModule):
    """Mini-batches of a graph for `L.Trainer`, in fit, validate, test and predict.

    Training reads the training nodes in a new order in each epoch. Validation and test
    read their nodes in ascending order, and prediction reads all nodes. With several
    devices, each rank gets its part of every epoch, so Lightning's sharding is not
    needed. All ranks take equally many steps. In training, validation and test, a rank
    without seeds for the last step repeats another rank's seed, as Lightning's sharding
    does, so that no mean loss is empty. Prediction repeats no seed, and its last batch
    may be empty.

    Batches are `LoadedBatch`, which Lightning moves to the device as the dictionary
    `LoadedBatch.to`, or the result of `transform`.

    Args:
        graph: A `Graph`, or PyG's `Data` for `Graph.from_pyg`.
        sampler: Samples the seeds' neighbourhoods.
        batch_size: Number of seeds per rank and batch.
        eval_sampler: The sampler for evaluation and prediction. Default: `sampler`.
        eval_batch_size: The batch size for evaluation and prediction. Default:
            `batch_size`.
        **options: Further arguments of `Loader`, such as `seed` and `transform`.
    """

    def __init__(
        self,
        graph: Graph | Any,
        sampler: Sampler,
        batch_size: int = 1024,
        *,
        eval_sampler: Sampler | None = None,
        eval_batch_size: int | None = None,
        **options: Any,
    ) -> None:
        """Checks the arguments by creating a loader of each kind."""
        super().__init__()
        if fixed_options := {"seeds", "rank", "world_size", "shuffle", "repeat"} & options.keys():
            raise UserError(
                f"GraphDataModule: {min(fixed_options)} follows from the split and the trainer, leave it out"
            )
        self.graph, self.options = as_untyped(graph), options
        self._training = (sampler, batch_size)
        self._evaluating = (eval_sampler or sampler, batch_size if eval_batch_size is None else eval_batch_size)
        for pair in (self._training, self._evaluating):
            self._loader(np.arange(0), *pair, shuffle=False)

    def train_dataloader(self) -> Loader:
        return self._loader(self._seeds("train"), *self._training, shuffle=True)

    def val_dataloader(self) -> Loader:
        return self._loader(self._seeds("val"), *self._evaluating, shuffle=False)

    def test_dataloader(self) -> Loader:
        return self._loader(self._seeds("test"), *self._evaluating, shuffle=False)

    def predict_dataloader(self) -> Loader:
        return self._loader(np.arange(self.graph.num_nodes), *self._evaluating, shuffle=False, repeat=False)

    def _seeds(self, split: str) -> Ids:
        """Returns the node ids of a split."""
        return np.flatnonzero(self.graph.split == SPLITS[split])

    def _loader(self, seeds: Ids, sampler: Sampler, batch_size: int, *, shuffle: bool, repeat: bool = True) -> Loader:
        rank, world_size = (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (None, None)
        return Loader(
            self.graph,
            sampler,
            seeds,
            batch_size,
            rank=rank,
            world_size=world_size,
            shuffle=shuffle,
            repeat=repeat,
            **self.options,
        )
