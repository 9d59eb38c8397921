"""Trains a plan on ranks that are threads, with the regular trainer."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import lightning as L
import numpy as np
import torch
from gnnkit_testing.ranks import TIMEOUT, by_node, owned
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from gnnkit.comm import Communicator, Mailbox
from gnnkit.comm.threads import Threads
from gnnkit.engine.remote import LearnedRows
from gnnkit.graph import Graph, SparseFeatures, Split
from gnnkit.leader.meter import SyncMeter
from gnnkit.partition import cut_all
from gnnkit.partition.quality import Crossing
from gnnkit.partition.shard import Shard
from gnnkit.strategy import Batch, ExecutionStrategy, Worker
from gnnkit.task.evaluation import Evaluation
from gnnkit.training.embedding import Embedding
from gnnkit.training.module import TrainingModule
from gnnkit.training.trainer import make_trainer
from gnnkit_witness.plan import EpochResult, Plan, Trained

MEMORY = 1.0  # MiB per chunk in evaluation


@dataclass(frozen=True, slots=True, eq=False)
class _RankRecord:
    """The values recorded on one rank."""

    nodes: Tensor  # [num_owned]
    epochs: list[EpochResult]  # with this rank's losses, logits and rows
    seeds: list[list[Tensor]]  # this rank's seeds, by epoch and batch
    first_rows: Tensor | None  # [num_owned, embedding]


def train(plan: Plan) -> Trained:
    """Trains a plan on its partition's ranks, and on its synchronisation's servers."""
    graph = plan.graph.evolve(features=SparseFeatures.of(plan.graph.features)) if plan.sparse else plan.graph
    if plan.embedding is not None:
        graph = graph.evolve(features=np.empty((graph.num_nodes, 0)))
    shards, peers = list(cut_all(graph, plan.partition)), Crossing.of(graph, plan.partition).neighbours

    def on_rank(world: Communicator) -> _RankRecord | None:
        with world.mailbox() as mailbox:
            if world.rank >= len(shards):
                plan.sync().serve(mailbox, len(shards))
                return None
            comm = world.split(range(len(shards)))
            return _train(plan, _worker(plan, graph, shards, tuple(peers[comm.rank]), comm), mailbox)

    parts = Threads.run(on_rank, len(shards) + plan.sync().servers, timeout=TIMEOUT)
    return _combine([part for part in parts if part is not None])


def _worker(plan: Plan, graph: Graph, shards: list[Shard], peers: tuple[int, ...], comm: Communicator) -> Worker:
    strategy = plan.strategy()
    if strategy.reads.from_owners:  # owners send features
        graph = graph.evolve(features=np.empty((graph.num_nodes, 0), np.float32))
    full_graph = graph if strategy.reads.graph else None
    return Worker(
        comm, shards[comm.rank], torch.float64, plan.seed, full_graph, copy.deepcopy(plan.sampler), peers=peers
    )


def _train(plan: Plan, worker: Worker, mailbox: Mailbox) -> _RankRecord:
    strategy, sync, model = plan.strategy(), plan.sync(), copy.deepcopy(plan.model)
    strategy.check(worker.sampler, int(model.num_layers))  # type: ignore[arg-type]
    strategy.setup(worker, model)
    embedding = _embedding(plan, worker, strategy)
    module = TrainingModule(
        model,
        strategy,
        worker,
        Evaluation.of(worker, model, MEMORY, learned_rows=None if embedding is None else embedding.rows),
        embedding=embedding,
        optimizer=plan.optimizer,
        lr=plan.lr,
        weight_decay=plan.weight_decay,
        clip_norm=plan.clip_norm,
        accumulate=plan.accumulate,
    )
    recorder = _EpochRecorder(int(np.count_nonzero(plan.graph.split == Split.TRAIN)), _rows(module))
    options: dict[str, Any] = {"max_epochs": plan.epochs, "limit_val_batches": 0, "logger": False}
    make_trainer(module, sync, SyncMeter(), mailbox=mailbox, callbacks=[recorder], **options).fit(module)
    sync.close()
    strategy.close()
    return _RankRecord(owned(worker), recorder.epochs, recorder.seeds, recorder.first_rows)


def _embedding(plan: Plan, worker: Worker, strategy: ExecutionStrategy) -> Embedding | None:
    if plan.embedding is None:
        return None
    rows = LearnedRows(worker.shard, plan.embedding, worker.comm, worker.dtype, worker.seed)
    return Embedding(rows, strategy.tally, plan.learned_decay)


class _EpochRecorder(Callback):
    def __init__(self, num_train: int, first_rows: Tensor | None) -> None:
        self._num_train, self.first_rows = num_train, first_rows
        self.epochs: list[EpochResult] = []
        self.seeds: list[list[Tensor]] = []

    def on_train_epoch_start(self, trainer: L.Trainer, module: Any) -> None:
        self._losses: list[float] = []
        self.seeds.append([])

    def on_train_batch_end(self, trainer: L.Trainer, module: Any, outputs: Any, batch: Batch, batch_idx: int) -> None:
        last = batch.adjacencies[-1]
        self.seeds[-1].append(last.src_nodes[: last.num_dst][batch.rows])
        share = 1.0 if batch.synchronise or batch.update == "accumulate" else batch.total / self._num_train
        self._losses.append(share * float(module.local_loss))

    def on_train_epoch_end(self, trainer: L.Trainer, module: Any) -> None:
        module.settle()
        state = {name: value.clone() for name, value in module.model.state_dict().items()}
        logits = module.evaluation.logits(module.model)
        self.epochs.append(EpochResult(self._losses, state, logits, _rows(module)))


def _rows(module: TrainingModule) -> Tensor | None:
    return None if module.learned is None else module.learned.owned.detach().clone()


def _combine(parts: list[_RankRecord]) -> Trained:
    """Combines the losses, seeds and rows of all ranks. States are kept per rank."""
    epochs: list[list[EpochResult]] = [[] for _ in parts]
    for number in range(len(parts[0].epochs)):
        results = [part.epochs[number] for part in parts]
        losses = [sum(rank_losses) for rank_losses in zip(*(epoch.losses for epoch in results), strict=True)]
        logits, rows = (
            _combine_rows(parts, [getattr(epoch, name) for epoch in results]) for name in ("logits", "rows")
        )
        assert logits is not None
        for rank, epoch in enumerate(results):
            epochs[rank].append(EpochResult(losses, epoch.state, logits, rows))
    seeds = [
        [torch.cat(batch) for batch in zip(*epoch, strict=True)]
        for epoch in zip(*(part.seeds for part in parts), strict=True)
    ]
    return Trained(epochs, seeds, _combine_rows(parts, [part.first_rows for part in parts]))


def _combine_rows(parts: list[_RankRecord], rows: list[Tensor | None]) -> Tensor | None:  # [num_nodes, ...]
    return (
        by_node([(part.nodes, rank_rows) for part, rank_rows in zip(parts, rows, strict=True) if rank_rows is not None])
        if rows[0] is not None
        else None
    )
