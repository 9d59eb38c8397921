"""Training labels as input columns, of which each step hides some."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gnnkit.kernels.dropout import derive, uniform
from gnnkit.strategy import Batch, Worker


@dataclass(frozen=True, slots=True)
class LabelInputs:
    """Masked label prediction (UniMP; Shi et al., IJCAI 2021).

    The last columns of the input rows are the training nodes' one-hot labels. A random
    share of these nodes, hashed from seed, epoch and node, keeps them in an epoch. The
    loss reads the other training nodes only, so no output depends on its own label.
    """

    share: float  # of the training nodes that keep their labels, in (0, 1)
    num_columns: int

    def fill(self, batch: Batch, worker: Worker, epoch: int) -> Batch:
        """Hides labels, and removes the rows that keep theirs. Collective."""
        assert isinstance(batch.x, Tensor)
        assert batch.nodes is not None, "a batch must name the nodes of its input rows"
        ids = torch.tensor(batch.nodes, dtype=torch.int64, device=worker.device)
        hidden = uniform(ids, 1, derive(worker.seed, epoch, 0x1ABE1))[:, 0] >= self.share
        x = batch.x.clone()
        x[:, -self.num_columns :] *= ~hidden[:, None]
        rows = torch.nonzero(hidden[batch.rows])[:, 0]
        total = int(worker.comm.all_reduce(torch.tensor([len(rows)], device=worker.device)).item())
        return replace(
            batch,
            x=x,
            rows=batch.rows[rows],
            labels=batch.labels[rows],
            total=max(total, 1),
            row_weights=None if batch.row_weights is None else batch.row_weights[rows],
        )
