"""Trains a plan in plain torch, in one process."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from gnnkit_witness.dense import DenseEdges, layers_of
from gnnkit_witness.noise import derived
from gnnkit_witness.plan import EpochResult, Plan

_DENSE = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
_SPARSE = {"sgd": torch.optim.SGD, "adam": torch.optim.SparseAdam, "adamw": torch.optim.SparseAdam}


@dataclass(slots=True, eq=False)
class _Process:
    """A model with its input rows, and the state of its training."""

    plan: Plan
    edges: DenseEdges
    model: nn.Module
    features: Tensor  # [num_nodes, width]
    embedding: nn.Embedding | None  # learned rows, which replace the features
    labels: Tensor  # [num_nodes]
    steps: int = 0  # number of batches so far

    @property
    def rows(self) -> Tensor:  # [num_nodes, width]
        return self.features if self.embedding is None else self.embedding.weight.detach()

    def loss(self, seeds: Tensor) -> Tensor:
        """Returns the total loss of some nodes."""
        key, num_layers = derived(self.plan.seed, self.steps), int(self.model.num_layers)  # type: ignore[arg-type]
        self.steps += 1
        layers = layers_of(self.edges, num_layers, key, seeds if self.plan.samples else None)
        nodes = layers[0].src_nodes
        out = self.model(self.features[nodes] if self.embedding is None else self.embedding(nodes), layers)
        return F.cross_entropy(out if self.plan.samples else out[seeds], self.labels[seeds], reduction="sum")

    @torch.no_grad()
    def logits(self) -> Tensor:  # [num_nodes, num_classes]
        self.model.eval()
        layers = layers_of(self.edges, int(self.model.num_layers), 0)  # type: ignore[arg-type]
        logits: Tensor = self.model(self.rows.clone(), layers)
        self.model.train()
        return logits


def train(plan: Plan, seeds: Sequence[Sequence[Tensor]], first_rows: Tensor | None) -> list[EpochResult]:
    """Trains a plan in one process.

    Args:
        plan: The plan.
        seeds: By epoch and batch: the nodes in the batch's loss.
        first_rows: [num_nodes, embedding] initial learned rows, if input rows are
            learned.
    """
    process = _process(plan, first_rows)
    optimizers = _optimizers(plan, process)
    epochs = []
    for batches in seeds:
        losses: list[float] = []
        for first in range(0, len(batches), plan.accumulate):
            losses += _step(process, optimizers, batches[first : first + plan.accumulate])
        state = {name: value.clone() for name, value in process.model.state_dict().items()}
        rows = None if process.embedding is None else process.rows.clone()
        epochs.append(EpochResult(losses, state, process.logits(), rows))
    return epochs


def _process(plan: Plan, first_rows: Tensor | None) -> _Process:
    graph, model = plan.graph, copy.deepcopy(plan.model).train()
    edges = DenseEdges.of(graph, self_loops=bool(getattr(model, "self_loops", False)))
    embedding = None
    if first_rows is not None:
        embedding = nn.Embedding(first_rows.shape[0], first_rows.shape[1], sparse=True, _weight=first_rows.clone())
    features = torch.tensor(np.asarray(graph.features), dtype=torch.float64)
    return _Process(plan, edges, model, features, embedding, torch.tensor(np.array(graph.labels)))


def _step(process: _Process, optimizers: Sequence[Optimizer], batches: Sequence[Tensor]) -> list[float]:
    """Takes one step with the mean loss over the batches' rows."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    total, losses = max(sum(map(len, batches)), 1), []
    for seeds in batches:
        loss = process.loss(seeds) / total
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(float(loss.detach()))
    for parameter in process.model.parameters():
        if parameter.grad is None and parameter.requires_grad:  # as described in docs/howto/own-model.md
            parameter.grad = torch.zeros_like(parameter)
    if process.plan.clip_norm is not None:
        nn.utils.clip_grad_norm_(process.model.parameters(), process.plan.clip_norm)
    if process.embedding is not None:
        _decay(process.plan, process.embedding.weight)
    for optimizer in optimizers:
        optimizer.step()
    return losses


@torch.no_grad()
def _decay(plan: Plan, rows: Tensor) -> None:
    """Applies weight decay to the learned rows that were read."""
    assert rows.grad is not None
    rows.grad = rows.grad.coalesce()
    read = rows.grad.indices()[0]
    if plan.optimizer == "adamw":
        rows[read] -= plan.lr * plan.learned_decay * rows[read]
    else:
        rows.grad.values().add_(rows[read], alpha=plan.learned_decay)


def _optimizers(plan: Plan, process: _Process) -> list[Optimizer]:
    with_decay = list(getattr(process.model, "decayed_parameters", process.model.parameters)())
    without_decay = [p for p in process.model.parameters() if all(p is not q for q in with_decay)]
    groups = [{"params": with_decay, "weight_decay": plan.weight_decay}, {"params": without_decay, "weight_decay": 0.0}]
    optimizers: list[Optimizer] = [_DENSE[plan.optimizer]([g for g in groups if g["params"]], lr=plan.lr)]
    if process.embedding is not None:
        optimizers.append(_SPARSE[plan.optimizer](process.embedding.parameters(), lr=plan.lr))
    return optimizers
