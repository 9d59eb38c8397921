"""A rank's workload: the inputs of each step of an epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import numpy as np
from torch import nn

from gnnkit.engine import BlockLayers, Pool, Rows, Tally
from gnnkit.graph import Graph, Ids, Split
from gnnkit.strategy.base import Worker
from gnnkit.strategy.share import HeldShare, StepInputs, WorkerShare


class Workload(ABC):
    """One rank's steps. All ranks have equally many steps per epoch."""

    num_steps: int = 1  # number of steps per epoch
    num_train: int  # number of all ranks' training nodes, which an epoch reads once
    num_own: int  # number of this rank's training nodes

    @abstractmethod
    def inputs(self, epoch: int, step: int, key: int) -> StepInputs:
        """Returns a step's inputs.

        Args:
            epoch: Number of the epoch.
            step: Number of the step within the epoch.
            key: The step's random key.
        """

    def rows_between(self, first: int, last: int) -> int:
        """Counts the rows that all ranks' losses read in steps `first` to `last` - 1.

        Steps are counted from the start of the run.
        """
        return self._rows_before(last) - self._rows_before(first)

    def _rows_before(self, step: int) -> int:
        return step * self.num_train


@dataclass(frozen=True, slots=True, eq=False)
class Reader:
    """Reads the complete graph to build shares."""

    worker: Worker
    model: nn.Module
    graph: Graph
    layers: BlockLayers
    num_layers: int  # of the model
    local_degrees: bool  # whether a share is treated as a separate graph
    tally: Tally  # counts the rows that are read

    @classmethod
    def of(cls, worker: Worker, model: nn.Module, tally: Tally, *, local_degrees: bool) -> Reader:
        """Stores the graph.

        Args:
            worker: This rank.
            model: The model, with `num_layers` and `self_loops`.
            tally: Counts seconds spent waiting for other ranks, and bytes read from
                disk.
            local_degrees: Whether a share is treated as a separate graph.
        """
        assert worker.graph is not None, "needs the whole graph"
        layers = worker.layers(model, Pool(worker.comm, tally))
        num_layers: int = model.num_layers  # type: ignore[assignment]
        return cls(worker, model, worker.graph, layers, num_layers, local_degrees, tally)

    def rows(self, nodes: Ids) -> Rows:  # [num_nodes, width]
        """Reads nodes' features, or returns lazy rows if they are sparse or on disk."""
        return self.worker.lasting_rows(nodes, self.model, self.tally)

    def hold(self, share: WorkerShare, x: Rows | None = None) -> HeldShare:
        """Prepares a share for computation.

        Args:
            share: Nodes and edges.
            x: [num_nodes, width] features of the nodes. If None, reads them.
        """
        x = self.rows(share.block.src_nodes) if x is None else x
        if not self.local_degrees:
            return HeldShare(share, x, self.layers, self.num_layers)
        unit_share = replace(share, block=replace(share.block, weight=np.ones(len(share.block.indices))))
        return HeldShare(unit_share, x, self.layers.of_part(share.block), self.num_layers)


class OneShare(Workload):
    """One step per epoch over the complete share, which is built once."""

    def __init__(self, reader: Reader, nodes: Ids, halo: Ids | None = None) -> None:
        """Builds the share.

        Args:
            reader: This rank.
            nodes: [num_own] this rank's nodes, ascending.
            halo: [num_halo] additional nodes of the share. If None, none.
        """
        graph = reader.graph
        share = WorkerShare.of(graph, nodes, halo)
        self.num_train, self.num_own = int(np.count_nonzero(graph.split == Split.TRAIN)), share.num_seeds
        self._held = reader.hold(share)

    def inputs(self, epoch: int, step: int, key: int) -> StepInputs:
        return self._held.inputs(key)
