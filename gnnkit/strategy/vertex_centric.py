"""Vertex-centric workload partition: every rank computes its nodes in every layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from gnnkit.engine import (
    Adaptive,
    Bfloat16,
    Codec,
    ForwardPass,
    LastReceived,
    Packed,
    Pipelined,
    Sampled,
    Schedule,
    ShardAdjacency,
)
from gnnkit.engine.dropout import derive
from gnnkit.errors import UserError
from gnnkit.graph import Split
from gnnkit.ranges import MAX_COUNT, one_of, real, share, whole
from gnnkit.sampler import Sampler
from gnnkit.strategy.base import Batch, ExecutionStrategy, Worker

_LATER = ("pipelined", "sampled", "adaptive")  # schedules: rows come later, in part, or not at all
EXCHANGES = ("exact", "quantized", *_LATER, *(f"quantized+{name}" for name in _LATER))
_READ_BY = {
    "bits": "quantized",
    "staleness": "pipelined",
    "smoothing": "pipelined",
    "keep": "sampled",
    "variation": "adaptive",
    "max_age": "adaptive",
}
_DRAWS = 2**32  # tells the key of the exchange from the keys of layers


class VertexCentric(ExecutionStrategy):
    """Full-graph training, one step an epoch, equal to one process.

    Choose this strategy where the graph and its activations fit the workers together
    (dispatch-workload in Lin et al., Proc. IEEE 2023).

    With `local_iterations` = K, K epochs are a superstep. In its first K - 1 epochs a
    rank exchanges nothing. The rank steps its own parameters with its own mean
    gradient, and rows last received are constants. The last epoch exchanges rows and
    synchronises gradients. The first forward pass of a run always exchanges rows.

    `exchange` says how rows travel in training. Evaluation is exact in any case.
    """

    full_graph = True

    def __init__(
        self,
        local_iterations: int = 1,
        exchange: str = "exact",
        bits: int | None = None,
        staleness: int | None = None,
        smoothing: float | None = None,
        keep: float | None = None,
        variation: float | None = None,
        max_age: int | None = None,
    ) -> None:
        """Keeps the choices. Refuses an option that the exchange does not read.

        Args:
            local_iterations: Epochs of a superstep.
            exchange: One of `EXCHANGES`.
            bits: Bits of a number under quantized: 32, 16, 8, 4 or 2. None: 8.
            staleness: Epochs from sending to reading under pipelined. None: 1.
            smoothing: Share of the earlier average under pipelined, in [0, 1). None: 0.
            keep: Share of the boundary rows under sampled, in [0, 1]. None: 0.1.
            variation: Relative change of a block that adaptive does not send. None:
                0.05.
            max_age: Epochs after which adaptive sends a block anyway. None: 10.
        """
        self.local_iterations = whole("strategy.local_iterations", local_iterations, 1, MAX_COUNT)
        self.exchange: str = one_of("strategy.exchange", exchange, EXCHANGES)
        self.bits: int = one_of("strategy.bits", 8 if bits is None else bits, (32, 16, 8, 4, 2))
        self.staleness = whole("strategy.staleness", 1 if staleness is None else staleness, 0, MAX_COUNT)
        self.smoothing = share("strategy.smoothing", 0.0 if smoothing is None else smoothing)
        self.keep = real("strategy.keep", 0.1 if keep is None else keep, 0, 1)
        self.variation = real("strategy.variation", 0.05 if variation is None else variation, 0)
        self.max_age = whole("strategy.max_age", 10 if max_age is None else max_age, 1, MAX_COUNT)
        given = {
            "bits": bits,
            "staleness": staleness,
            "smoothing": smoothing,
            "keep": keep,
            "variation": variation,
            "max_age": max_age,
        }
        self._parts = self.exchange.split("+")
        self._check_options(given)
        self.drifts = local_iterations > 1
        self.keeps_state = self.drifts or "pipelined" in self._parts or "adaptive" in self._parts
        self.only_synchronises = not self.drifts

    def _check_options(self, given: dict[str, Any]) -> None:
        for name, value in given.items():
            if value is not None and _READ_BY[name] not in self._parts:
                raise UserError(
                    f"strategy.{name}={value} must be null: only strategy.exchange={_READ_BY[name]} reads the key, and "
                    f"strategy.exchange={self.exchange} is chosen"
                )
        if self.local_iterations > 1 and self._schedule_name is not None:
            raise UserError(
                f"strategy.local_iterations={self.local_iterations} goes with strategy.exchange=exact and quantized, "
                f"not with {self.exchange}: a local iteration exchanges nothing, and {self._schedule_name} rows follow "
                "from the exchange of every epoch"
            )

    @property
    def _schedule_name(self) -> str | None:
        return next((part for part in self._parts if part in _LATER), None)

    def on_one_rank(self, world_size: int, sampler: Sampler | None) -> ExecutionStrategy | None:
        return None if self.drifts or self.exchange != "exact" else self

    def setup(self, worker: Worker, model: nn.Module) -> None:
        shard = worker.shard
        self.engine = worker.engine(model)
        if self._schedule_name is not None and not self.engine.holds_in_edges:
            raise UserError(
                f"partition.grid={self.engine.grid} spreads the in-edges of a node over ranks, and "
                f"strategy.exchange={self.exchange} needs every in-edge with the owner of its node: "
                "use partition.grid=1d, one column and one slice"
            )
        self.schedule, self.codec = self._make_schedule(), self._make_codec()
        self.tally = self.engine.tally
        self.num_layers: int = model.num_layers  # type: ignore[assignment]
        self.seed = worker.seed
        self.x = worker.features.rows(shard.owned)
        self.labels = torch.tensor(np.asarray(shard.labels, np.int64), device=worker.device)
        self.train_rows = torch.from_numpy(np.flatnonzero(shard.split == Split.TRAIN)).to(worker.device)
        count = worker.comm.all_reduce(torch.tensor([len(self.train_rows)], device=worker.device))
        self.num_train = int(count.item())

    def num_batches(self, epoch: int) -> int:
        return 1

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        if first == 0:
            yield self._batch(epoch)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.schedule is None else self.schedule.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.schedule is not None:
            self.schedule.load_state_dict(state, self.x.device)

    def close(self) -> None:
        self.engine.close()

    def _make_schedule(self) -> Schedule | None:
        if self.drifts:
            return LastReceived()
        if self._schedule_name == "pipelined":
            return Pipelined(self.staleness, self.smoothing)
        if self._schedule_name == "sampled":
            return Sampled(self.keep)
        return Adaptive(self.variation, self.max_age) if self._schedule_name == "adaptive" else None

    def _make_codec(self) -> Codec | None:
        if "quantized" not in self._parts or self.bits == 32:
            return None
        return Bfloat16() if self.bits == 16 else Packed(self.bits)

    def _batch(self, epoch: int) -> Batch:
        exchanges = (epoch + 1) % self.local_iterations == 0
        rows, total = self.train_rows, self.num_train if exchanges else len(self.train_rows)
        key = derive(self.seed, epoch)
        forward = ForwardPass(self.schedule, self.codec, derive(key, _DRAWS), exchanges)
        adjacencies = ShardAdjacency.layers(self.engine, self.num_layers, key, forward)
        return Batch(self.x, adjacencies, rows, self.labels[rows], total, "synchronise" if exchanges else "own")
