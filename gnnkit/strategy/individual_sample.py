"""Individual-sample mini-batches: every rank draws seeds and neighbourhoods."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from gnnkit import plugins
from gnnkit.comm import Communicator
from gnnkit.engine.remote.frontier import PARTITIONED
from gnnkit.engine.remote.owned_rows import CACHES, OwnedRows, RowCache
from gnnkit.engine.remote.owners import Owners
from gnnkit.errors import UserError
from gnnkit.graph import Ids
from gnnkit.sampler import Sampler
from gnnkit.strategy.abilities import (
    ByTime,
    EdgeTask,
    GatheredRows,
    JoinedLayers,
    LearnedInputs,
    MovableSeeds,
    Reads,
    Relations,
    RowsOnDisk,
    SparseRows,
    Steps,
)
from gnnkit.strategy.base import ExecutionStrategy, Measured, Worker
from gnnkit.strategy.fetched_batches import FetchedBatches
from gnnkit.strategy.sampled_batches import SampledBatches
from gnnkit.strategy.sampled_strategy import SampledStrategy, check_cache, check_owners_draw, check_places, place
from gnnkit.strategy.seeds import ChosenSeeds, NodeSeeds, make_seeds
from gnnkit.utils.ranges import MAX_COUNT, one_of, whole

_LRU = (
    "strategy.cache=lru depends on the previous batch, but reads are announced further ahead: "
    "use strategy.cache=degree, vip or exact"
)
_CACHED = (  # for learned rows
    "caches rows of other workers, but learned rows change in each step: use strategy.cache=none"
)
_COST_OF_NODES = "strategy.options.batching=balanced evens out the cost of nodes, not of edges: remove the option"
_EQUAL_SIZES = "samples by time in batches of equal size: use strategy.options.batching=plain"
_CHOSEN = "this strategy chooses the nodes of each step: use strategy=individual_sample"
_DIVIDED = (
    "cannot move seeds with strategy.options.batching=balanced, which balances costs, or with "
    "strategy.features=partitioned, in which workers serve each other: leave batching out and use shared features"
)


class IndividualSample(SampledStrategy):
    """Sampled mini-batch training with separate samples per rank.

    This is individual-sample-based execution in Lin et al., Proc. IEEE 2023. Choose
    this strategy if the activations of all nodes do not fit into memory, or if many
    steps per epoch reach an accuracy sooner. The batches of an epoch cover the training
    nodes once. Batches are prefetched while the previous one is computed, by native
    threads if features are shared. A rank without seeds takes part in a step with an
    empty batch.

    With `topology=partitioned`, each rank holds only its owned nodes and their
    in-edges. Owners draw and send rows. The batches are bit-identical for any
    partition.
    """

    def __init__(
        self,
        batch_size: int = 1024,
        batching: str = "plain",
        prefetch: int = 2,
        topology: str = "shared",
        features: str | None = None,
        cache: str = "none",
        cache_rows: int | None = None,
    ) -> None:
        """Checks the options.

        Args:
            batch_size: Seeds per worker and step. Groups of seeds if the sampler has
                groups, and edges for link prediction.
            batching: "plain", or "balanced" to balance the workers' expected work.
            prefetch: Batches made in advance.
            topology: "shared": one mapped copy of the graph for all workers of a host.
                "partitioned": a node's in-edges are stored at its owner.
            features: "shared" or "partitioned". If None, same as `topology`.
            cache: Cache of other workers' rows: one of `row_cache.CACHES`. Only with
                partitioned features.
            cache_rows: Maximum number of cached rows. If None, a tenth of the nodes.
        """
        for name, value in (("batch_size", batch_size), ("prefetch", prefetch)):
            whole(f"strategy.{name}", value, 1, MAX_COUNT)
        one_of("strategy.options.batching", batching, ("plain", "balanced"))
        place("topology", topology)
        features = topology if features is None else place("features", features)
        one_of("strategy.cache", cache, CACHES)
        check_places(topology, features, batching)
        check_cache(features, cache, cache_rows)
        fetches, plain = features == "partitioned", batching == "plain"
        if self._chooses and not plain:
            raise UserError(f"strategy.options.batching={batching}: this strategy chooses the seeds: remove the option")
        self.reads = Reads(sampler=True, graph=topology == "shared", from_owners=fetches)
        self.steps = Steps(exchange=fetches)
        self.batch_size, self.batching, self.prefetch = batch_size, batching, prefetch
        self.cache, self.cache_rows = cache, cache_rows
        self.supports = (
            JoinedLayers(),
            SparseRows(),
            Relations(),
            GatheredRows(),
            RowsOnDisk(but=_LRU if cache == "lru" else None),
            LearnedInputs(but=None if cache == "none" else f"with strategy.cache={cache} {_CACHED}"),
            EdgeTask("all", but=_CHOSEN if self._chooses else None if plain else _COST_OF_NODES),
            ByTime(but=None if plain else _EQUAL_SIZES),
            MovableSeeds(but=_CHOSEN if self._chooses else None if plain and not fetches else _DIVIDED),
        )

    @property
    def _chooses(self) -> bool:
        """Whether a custom strategy chooses the seeds."""
        return type(self).seeds is not IndividualSample.seeds

    def costs(self) -> str:
        return self.describe_batches("strategy" if self._chooses else "strategy=individual_sample")

    def on_one_rank(self, world_size: int, sampler: Sampler | None) -> ExecutionStrategy | None:
        if sampler is None or not sampler.rank_invariant or self.batching != "plain" or self._chooses:
            return None
        alone = copy.copy(self)
        alone.batch_size = self.batch_size * world_size
        return alone

    def check(self, sampler: Sampler | None, num_layers: int) -> None:
        super().check(sampler, num_layers)
        if sampler is not None and not self.reads.graph:
            check_owners_draw(sampler, PARTITIONED, "strategy.topology=shared")
        if sampler is not None and self.reads.from_owners and sampler.reads_features:
            raise UserError(
                f"strategy.features=partitioned: sampler={plugins.name_of('sampler', sampler)} reads all nodes' features, as does "
                "sampler.target=similarity without embeddings: use strategy.features=shared"
            )

    def seeds(self, worker: Worker, epoch: int) -> Ids:  # [num_seeds] int64
        """Returns this rank's seeds of an epoch, in the order of the steps.

        Override this method for a strategy that chooses the seeds of tasks on nodes,
        without calling the base method. An epoch has as many steps as the rank with
        most seeds in epoch 0 needs, and each rank's seeds are divided evenly among
        them. Without an override, all ranks' batches cover the training nodes once, in
        random order.

        Args:
            worker: This rank.
            epoch: Number of the epoch.

        Returns:
            Global ids of training nodes, each at most once in a step. They must be a
                function of the worker's seed and the epoch, because a resumed run asks
                again.
        """
        raise NotImplementedError

    def make_batches(
        self, worker: Worker, model: nn.Module, batch_size: int, *, exact: bool
    ) -> SampledBatches | FetchedBatches:
        custom_seeds = ChosenSeeds(worker, batch_size, self.seeds) if self._chooses and not exact else None
        sizes: dict[str, Any] = {"batch_size": batch_size, "batching": self.batching}
        if not self.reads.from_owners:
            return SampledBatches(worker, model, self.tally, **sizes, prefetch=self.prefetch, seeds=custom_seeds)
        seeds = custom_seeds or make_seeds(worker, batch_size, lambda: NodeSeeds(worker, **sizes, model=model))
        owners = Owners.of(worker.shard, worker.comm)
        rows = OwnedRows(worker.shard, owners, worker.comm, values=not self.reads.graph, disk=worker.disk)
        cache = RowCache(self.cache, self.cache_rows, rows, worker.comm)
        return FetchedBatches(worker, model, self.tally, seeds, cache, self.prefetch)

    def setup(self, worker: Worker, model: nn.Module) -> None:
        super().setup(worker, model)
        self._hits = CacheHits(worker.comm)

    def end_epoch(self, epoch: int, measured: Measured, model: nn.Module) -> None:
        if isinstance(self.sampled, FetchedBatches):
            self._hits.update(self.sampled)
        super().end_epoch(epoch, measured, model)

    def deal(self, shares: Sequence[float]) -> None:
        assert isinstance(self.sampled, SampledBatches)
        self.shares = list(shares)
        self.sampled.deal(shares)

    def state_dict(self) -> dict[str, object]:
        return {} if self.shares is None else {"shares": list(self.shares)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if (
            len(state["shares"]) == self._worker.comm.world_size
        ):  # otherwise the shares are for a different number of workers
            self.deal(state["shares"])

    def figures(self) -> dict[str, object]:
        figures = {"cache_hits": self._hits.figures()} if self.reads.from_owners else {}
        return figures | super().figures()


class CacheHits:
    """How many of the other workers' rows that each worker read were cached."""

    def __init__(self, comm: Communicator) -> None:
        self._comm, self._epochs = comm, 0
        self._counts = torch.zeros(2, comm.world_size, dtype=torch.int64, device=comm.device)

    def update(self, batches: FetchedBatches) -> None:
        """Gathers all ranks' hits and misses since the start of training. Collective.

        Called once per epoch.
        """
        self._counts, self._width = self._comm.all_gather([batches.hits, batches.fetched_rows]).T, batches.rows.width
        self._epochs += 1

    def figures(self) -> dict[str, list[float]]:
        """Returns each rank's cache hit rate, and its saved words per epoch."""
        hits, misses = self._counts.tolist()
        rates = [hit / max(hit + miss, 1) for hit, miss in zip(hits, misses, strict=True)]
        words = [hit * self._width // max(self._epochs, 1) for hit in hits] if self._epochs else [0] * len(hits)
        return {"rate": rates, "words_saved": words}
