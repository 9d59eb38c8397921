"""The held edges, split by whether their end rows are local or exchanged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gnnkit.graph import CSC, Floats
from gnnkit.graph.types import offsets_of
from gnnkit.kernels.aggregate import HeldEdges
from gnnkit.kernels.sums import Factors, wide
from gnnkit.partition.shard import Shard

Kind = Literal["sum", "mean", "normal"]  # kind of a sum over in-edges
Degrees = tuple[Tensor, Tensor]  # [num_sources] out-degrees, [num_targets] in-degrees, float64


@dataclass(frozen=True, slots=True, eq=False)
class Quarter:
    """The edges from a range of a shard's sources into a range of its targets."""

    edges: HeldEdges
    rows: slice  # range of the targets
    columns: slice  # range of the sources
    weight: Floats | None  # [edges of the quarter] the graph's weights. None: 1 each

    @classmethod
    def of(cls, csc: CSC, rows: slice, columns: slice, device: torch.device) -> Quarter:
        """Selects the quarter's edges from a shard's.

        Args:
            csc: The shard's edges.
            rows: Range of the targets.
            columns: Range of the sources.
            device: Device of the kernels.
        """
        indptr = csc.indptr[rows.start : rows.stop + 1]
        sources = np.asarray(csc.indices[indptr[0] : indptr[-1]])
        inside = (sources >= columns.start) & (sources < columns.stop)
        before = offsets_of(inside)
        part = CSC(
            before[indptr - indptr[0]], sources[inside] - columns.start, None, num_sources=columns.stop - columns.start
        )
        weight = None if csc.weight is None else csc.weight[indptr[0] : indptr[-1]][inside]
        return cls(HeldEdges(part, device), rows, columns, weight)

    def factors(self, kind: Kind, degrees: Degrees, dtype: torch.dtype) -> Factors:
        """Returns the factors of a sum over these edges.

        Args:
            kind: The kind of sum.
            degrees: Degrees in the complete graph.
            dtype: Type of the factors.
        """
        source = inverse_sqrt(degrees[0][self.columns]) if kind == "normal" else None
        destination = None
        if kind != "sum":
            degree = degrees[1][self.rows]
            destination = inverse_sqrt(degree) if kind == "normal" else 1 / torch.where(degree == 0, 1, degree)
        if self.weight is None:
            return Factors(None, _to(source, dtype), _to(destination, dtype))
        factor = torch.from_numpy(np.asarray(self.weight, np.float64)).to(self.edges.device)
        if source is not None:
            factor = factor * source[self.edges.source_of_edge]
        if destination is not None:
            counts = torch.from_numpy(np.diff(self.edges.csc.indptr)).to(factor.device)
            factor = factor * destination.repeat_interleave(counts)
        return Factors(_to(factor[:, None], dtype))


@dataclass(frozen=True, slots=True, eq=False)
class Quarters:
    """The edges of a shard in four parts.

    Local rows are read in place, and their sums overlap with the exchange of other
    rows.
    """

    near: Quarter  # between nodes of this cell
    far: Quarter  # from the halo to nodes of this cell
    near_partial: Quarter  # from nodes of this cell into partial sums
    far_partial: Quarter  # from the halo into partial sums
    _factors: dict[tuple[Kind, torch.dtype], tuple[Factors, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, shard: Shard, held_edges: HeldEdges) -> Quarters:
        """Splits a shard's edges.

        Args:
            shard: This rank's shard.
            held_edges: All its edges.
        """
        num_local, csc = len(shard.cell_nodes), shard.csc
        rows, columns = ((slice(0, num_local), slice(num_local, total)) for total in (csc.num_nodes, csc.num_sources))
        near, far, near_partial, far_partial = (Quarter.of(csc, r, c, held_edges.device) for r in rows for c in columns)
        if held_edges.num_edges == near.edges.num_edges and held_edges.num_dst == held_edges.num_src == num_local:
            near = Quarter(held_edges, rows[0], columns[0], csc.weight)  # one copy of the edges
        return cls(near, far, near_partial, far_partial)

    def factors(self, kind: Kind, degrees: Degrees, dtype: torch.dtype) -> tuple[Factors, ...]:
        """Returns the factors of each quarter's sums, in order, cached.

        Args:
            kind: The kind of sum.
            degrees: Degrees in the complete graph.
            dtype: Type of the rows.
        """
        dtype = wide(dtype)
        if (kind, dtype) not in self._factors:
            quarters = (self.near, self.far, self.near_partial, self.far_partial)
            self._factors[kind, dtype] = tuple(quarter.factors(kind, degrees, dtype) for quarter in quarters)
        return self._factors[kind, dtype]


def inverse_sqrt(degree: Tensor) -> Tensor:
    """Returns 1 / sqrt(d) for each degree d, and 0 for degree 0."""
    return torch.where(degree > 0, degree, torch.inf).rsqrt()


def _to(factor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if factor is None else factor.to(dtype)
