"""Feature rows, in memory, in a file, or received from their owners."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnkit.comm import Communicator
from gnnkit.engine.remote.tier import RowTier
from gnnkit.errors import UserError
from gnnkit.exchange.base import Passes
from gnnkit.exchange.route import Demand, Peers, Route
from gnnkit.exchange.tally import Tally
from gnnkit.exchange.wire import Wire
from gnnkit.graph import Features, Ids, PackedFeatures, SparseFeatures, kept_rows
from gnnkit.kernels.product_rows import Rows, SparseRows
from gnnkit.kernels.sums import as_array
from gnnkit.sampler import gather_rows
from gnnkit.utils.checks import Array

if TYPE_CHECKING:
    from gnnkit.engine.remote.disk import DiskFeatures


Reach = Callable[[Tensor], Tensor]  # [num_owned, ...] -> [num_found, ...]


class Lookup:
    """Provides rows of arbitrary nodes, for any layout.

    Between layers, every rank holds the complete rows of its owned nodes.
    """

    def __init__(self, comm: Communicator, owned_nodes: Ids, owner: Ids, tally: Tally) -> None:
        """Stores the ownership.

        Args:
            comm: The ranks of the run.
            owned_nodes: [num_owned] this rank's nodes, in the order of rows.
            owner: [num_nodes] rank of each node.
            tally: Counter of exchanged rows.
        """
        self._owned, self._owner = owned_nodes, owner
        self._peers = Peers(Wire(comm, range(comm.world_size), tally), Passes())

    def find(self, nodes: Ids, layer: int = 0) -> tuple[Reach, Tensor]:
        """Sets up an exchange of rows. Collective.

        The first result maps the owned nodes' rows to the rows found. It is collective
        and differentiable. The second gives the position of each node's row among them.

        Args:
            nodes: Global ids in any order and shape.
            layer: Layer of the model, for the tally.
        """
        comm = self._peers.comm
        if comm.world_size == 1:  # all rows are here
            place = np.empty(len(self._owner), np.int64)
            place[self._owned] = np.arange(len(self._owned))
            return lambda rows: rows, torch.from_numpy(place[nodes]).to(comm.device)
        request = self.ask(nodes, comm)
        return self.reach(request, self._owned, comm, layer), torch.from_numpy(request.place).to(comm.device)

    def ask(self, nodes: Ids, comm: Communicator, copies: int = 1) -> LookupRequest:
        """Sends the owners the nodes that this rank looks up. Collective.

        Args:
            nodes: Ids like those of `Route`, in any order and shape.
            comm: The ranks.
            copies: As for `Route`.
        """
        distinct, inverse = np.unique(nodes, return_inverse=True)
        distinct = distinct.astype(np.int64)
        owner = self._owner[distinct // copies]
        order = np.argsort(owner, kind="stable")
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        nodes_by_owner = distinct[order]
        demand = Demand.of(nodes_by_owner, owner[order], comm)
        return LookupRequest(demand, place[inverse.reshape(nodes.shape)])

    def reach(self, request: LookupRequest, rows: Ids, comm: Communicator, layer: int = 0) -> Reach:
        """Returns a function that exchanges the requested rows. Collective.

        Args:
            request: The nodes that all ranks look up.
            rows: [num_rows] nodes of this rank's rows, including all requested ones.
            comm: The ranks.
            layer: Layer of the model, for the tally.
        """
        route = Route("gather", request.demand, rows, self._peers, comm)

        def reach(rows: Tensor) -> Tensor:
            return route.spread(rows, layer)

        return reach


@dataclass(frozen=True, slots=True, eq=False)
class LookupRequest:
    """The nodes that a rank looks up, and its peers' requests."""

    demand: Demand
    place: Ids  # position of each node's row among the received ones, in the shape of the nodes

    @property
    def local_nodes(self) -> Ids:  # [num_asked] int64, ascending
        """Distinct nodes that ranks request from this rank."""
        return np.unique(self.demand.requested_ids.cpu().numpy())


_ROWS_AT_A_TIME = 1 << 16  # rows converted at a time


Bits = npt.NDArray[np.uint16]  # bfloat16 bits, for which NumPy has no type


def round_rows(table: Features) -> Bits:  # [n, width] -> [n, width]
    """Rounds numbers to bfloat16, with ties to even."""
    bits = np.empty(table.shape, np.uint16)
    for start in range(0, len(table), _ROWS_AT_A_TIME):
        rows = torch.tensor(np.asarray(table[start : start + _ROWS_AT_A_TIME]))
        bits[start : start + _ROWS_AT_A_TIME] = as_array(rows.to(torch.bfloat16))
    return bits


def of_bits(bits: Bits) -> Tensor:
    """Views bits as bfloat16."""
    return torch.from_numpy(bits).view(torch.bfloat16)


class RowConverter:
    """Converts stored rows to a type and device."""

    def __init__(self, features: Features, dtype: torch.dtype, device: torch.device) -> None:
        """Moves the scale of packed rows to the device.

        Args:
            features: The table, or some of its rows.
            dtype: Type of the returned rows.
            device: Device of the returned rows.
        """
        self.dtype, self.device = dtype, device
        self._packed = isinstance(features, PackedFeatures)
        self._scale = self._offset = None
        if isinstance(features, PackedFeatures) and features.scale is not None:
            self._scale, self._offset = (
                torch.tensor(column_values, device=device) for column_values in (features.scale, features.offset)
            )

    def __call__(self, rows: Array, dtype: torch.dtype | None = None) -> Tensor:  # [k, width] -> [k, width]
        """Returns rows, in `dtype` if given. Packed rows are scaled in float32."""
        kind = dtype or self.dtype
        if not self._packed:
            return torch.from_numpy(rows).to(self.device, kind)
        values = (of_bits(rows) if self._scale is None else torch.from_numpy(rows)).to(self.device)
        if self._scale is not None:
            assert self._offset is not None
            values = values.to(torch.float32).mul_(self._scale).add_(self._offset)
        return values.to(kind)


class FeatureStore(ABC):
    """Node features by global id."""

    width: int  # number of columns
    table: Array | None = None  # [num_nodes, width] stored rows, if all are local, for native prefetching
    convert: RowConverter  # conversion of stored rows, for a store with a table or a file
    disk: DiskFeatures | None = None  # this store, if rows are read from disk

    def width_held(self, model: object) -> float:
        """Returns the mean count of numbers in memory per row of `input_rows`."""
        return self.width

    @abstractmethod
    def rows(self, ids: Ids) -> Tensor:  # [num_ids] -> [num_ids, width]
        """Returns the nodes' features, in the worker's type and on its device."""

    def input_rows(self, ids: Ids, model: object) -> Rows:  # [num_ids] -> [num_ids, width]
        """Returns the rows that a model's first layer reads.

        They are sparse if features are stored so and the model `reads_sparse`.

        Args:
            ids: [num_ids] nodes.
            model: The model.
        """
        return self.rows(ids)

    def lasting_rows(self, ids: Ids, model: object, tally: Tally | None = None) -> Rows:  # [num_ids, width]
        """Returns `input_rows` that a rank uses throughout the run.

        Rows on disk are not loaded. Raises `UserError` if the model reads them before
        it multiplies them.

        Args:
            ids: [num_ids] nodes.
            model: The model.
            tally: Counter of the bytes read from disk, or None.
        """
        return self.input_rows(ids, model)


class TableRows(RowTier):
    """Rows of an array in memory or a mapped file, in their stored type."""

    def __init__(self, table: Features, nodes: Ids | None) -> None:
        """Stores the table.

        Args:
            table: [num_rows, width] features, dense or sparse.
            nodes: [num_rows] ascending global ids of the rows. If None, row i is node
                i.
        """
        self._table, self._nodes = table, nodes
        self._stored_rows = None if isinstance(table, SparseFeatures) else kept_rows(table)

    def has(self, ids: Ids) -> npt.NDArray[np.bool_]:
        if self._nodes is None:
            return (ids >= 0) & (ids < len(self._table))
        return np.isin(ids, self._nodes)

    def read(self, ids: Ids, out: npt.NDArray[np.generic]) -> None:
        places = self._places(ids)
        if self._stored_rows is None:
            out[:] = np.asarray(self._table[places])
        else:
            gather_rows(np.ascontiguousarray(self._stored_rows), places, out)

    def _places(self, ids: Ids) -> Ids:
        return ids if self._nodes is None else positions(self._nodes, ids)


class TableFeatures(TableRows, FeatureStore):
    """Features of an array."""

    def __init__(self, table: Features, nodes: Ids | None, dtype: torch.dtype, device: torch.device) -> None:
        """Stores the table.

        Args:
            table: [num_rows, width] features, dense or sparse.
            nodes: [num_rows] ascending global ids of the rows. If None, row i is node
                i.
            dtype: Type of the returned rows.
            device: Device of the returned rows.
        """
        super().__init__(table, nodes)
        self.width = table.shape[1]
        self.convert = RowConverter(table, dtype, device)
        if nodes is None:
            self.table = self._stored_rows
        self._last: tuple[Ids, SparseRows] | None = None  # last result: training and evaluation read the same
        self._dtype, self._device = dtype, device

    def width_held(self, model: object) -> float:
        if not self._gives_sparse(model):
            return self.width
        assert isinstance(self._table, SparseFeatures)
        return 2 * self._table.csr.num_edges / max(len(self._table), 1)  # one value and one column index per entry

    def rows(self, ids: Ids) -> Tensor:
        places = self._places(ids)
        if self._stored_rows is None:
            return torch.tensor(np.asarray(self._table[places]), dtype=self._dtype, device=self._device)
        return self.convert(np.asarray(self._stored_rows[places]))

    def input_rows(self, ids: Ids, model: object) -> Rows:
        if not self._gives_sparse(model):
            return self.rows(ids)
        assert isinstance(self._table, SparseFeatures)
        if self._last is None or not np.array_equal(self._last[0], ids):
            self._last = ids, SparseRows.of(self._table[self._places(ids)], self._dtype)
        return self._last[1]

    def _gives_sparse(self, model: object) -> bool:
        native = self._device.type == "cpu"  # like products of sparse rows
        return native and isinstance(self._table, SparseFeatures) and getattr(model, "reads_sparse", False)


def positions(nodes: Ids, ids: Ids) -> Ids:  # [num_ids]
    """Returns positions in ascending `nodes`. Raises `UserError` if one is missing."""
    places = np.minimum(np.searchsorted(nodes, ids), max(len(nodes) - 1, 0))
    if len(ids) and (len(nodes) == 0 or (nodes[places] != ids).any()):
        raise UserError("features of nodes owned by other ranks are not available on this rank")
    return places
