"""Input columns that each step fills: learned rows, and training labels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer, SparseAdam

from gnnkit.engine import Tally
from gnnkit.engine.remote import LearnedRows
from gnnkit.errors import UserError
from gnnkit.kernels.dropout import derive, uniform
from gnnkit.strategy import Batch, Worker


class Embedding:
    """The learned rows of this rank's nodes, with their optimiser.

    A step updates each row read by any rank's batch once, at its owner, with the sum of
    the ranks' gradients. The optimiser's rule and learning rate are the model
    optimiser's. With adam and adamw, moments change with their rows only, as in
    `torch.optim.SparseAdam`. Weight decay applies only to rows that were read: adamw
    shrinks them, and other optimisers add the penalty to the gradient.
    """

    def __init__(self, rows: LearnedRows, tally: Tally, weight_decay: float = 0.0) -> None:
        """Stores the arguments.

        Args:
            rows: The learned rows.
            tally: Counts the exchanged rows.
            weight_decay: L2 penalty on rows.
        """
        self.rows, self._tally, self._weight_decay = rows, tally, weight_decay
        self._optimizer: Optimizer | None = None  # created in the first step

    def fill(self, batch: Batch) -> Batch:
        """Returns the batch with its input nodes' current rows. Collective."""
        assert batch.nodes is not None, "a batch must name the nodes of its input rows"
        with self._tally.timed():
            self._request = self.rows.ask(batch.nodes)
            return replace(batch, x=self.rows.send(self._request).requires_grad_())

    def step(self, batch: Batch, like: Optimizer) -> None:
        """Updates the rows that batches read, after the backward pass. Collective.

        Args:
            batch: The batch from the last `fill`.
            like: The model's optimiser.
        """
        assert isinstance(batch.x, Tensor)
        gradient = torch.zeros_like(batch.x) if batch.x.grad is None else batch.x.grad
        with self._tally.timed():
            self.rows.owned.grad = self.rows.collect(self._request, gradient)
        self.rows.record(self._request, self._tally)
        optimizer = self._following(like)
        for group in optimizer.param_groups:
            group["lr"] = like.param_groups[0]["lr"]
        if self._weight_decay:
            self._decay(like)
        optimizer.step()

    def state_dict(self) -> dict[str, object]:
        """Returns this rank's rows, and their optimiser's state."""
        return {
            "rows": self.rows.owned.detach(),
            "optimizer": None if self._optimizer is None else self._optimizer.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any], like: Optimizer) -> None:
        """Restores a state of the same rank.

        Args:
            state: The state from `state_dict`.
            like: The model's optimiser.
        """
        rows: Tensor = state["rows"]
        self.rows.owned.data.copy_(rows)
        self._optimizer = None
        if state["optimizer"] is not None:
            self._following(like).load_state_dict(state["optimizer"])

    @torch.no_grad()
    def _decay(self, like: Optimizer) -> None:
        """Applies weight decay to rows with a gradient."""
        rows, grad = self.rows.owned, self.rows.owned.grad
        assert grad is not None
        read: Tensor | slice = grad.indices()[0] if grad.is_sparse else slice(None)
        values = grad.values() if grad.is_sparse else grad
        if isinstance(like, AdamW):
            rows[read] *= 1 - like.param_groups[0]["lr"] * self._weight_decay
        else:
            values += self._weight_decay * rows[read]

    def _following(self, like: Optimizer) -> Optimizer:
        """Returns the rows' optimiser, created at the first call."""
        if self._optimizer is None:
            self._optimizer = _sparse(like, self.rows.owned)
        return self._optimizer


class RowAdam(SparseAdam):
    """`SparseAdam`, which also accepts a dense gradient of one parameter."""

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        group = self.param_groups[0]
        (rows,) = group["params"]
        if rows.grad.is_sparse:
            super().step(closure)  # type: ignore[no-untyped-call]
            return
        state, (beta1, beta2) = self.state[rows], group["betas"]
        if not state:
            state |= {"step": 0, "exp_avg": torch.zeros_like(rows), "exp_avg_sq": torch.zeros_like(rows)}
        state["step"] += 1
        state["exp_avg"].lerp_(rows.grad, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(rows.grad, rows.grad, value=1 - beta2)
        size = group["lr"] * math.sqrt(1 - beta2 ** state["step"]) / (1 - beta1 ** state["step"])
        rows.addcdiv_(state["exp_avg"], state["exp_avg_sq"].sqrt().add_(group["eps"]), value=-size)


def _sparse(like: Optimizer, parameter: Tensor) -> Optimizer:
    """Creates an optimiser of single rows by another optimiser's rule.

    Raises `UserError` for rules that need all rows in each step.
    """
    group = like.param_groups[0]
    if isinstance(like, Adam | AdamW) and not group["amsgrad"]:
        return RowAdam([parameter], lr=group["lr"], betas=group["betas"], eps=group["eps"])
    if isinstance(like, SGD) and not group["momentum"]:
        return SGD([parameter], lr=group["lr"])
    raise UserError(
        f"inputs=learned: rows that no batch reads stay, and {type(like).__name__} with these options would move them: "
        "choose trainer.optimizer=adam, adamw or sgd, without momentum and amsgrad"
    )


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
