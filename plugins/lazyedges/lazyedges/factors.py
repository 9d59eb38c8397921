"""Factors of edges that are products of values at both ends.

`norm[source] * norm[destination]` stays deferred. A sum of rows with such factors reads
one number per node instead of one per edge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lazyedges.deferred import MULTIPLY, Call, Deferred, Lazy, Meaning, meaning_of
from lazyedges.edges import EdgeSet


@dataclass(frozen=True, slots=True, eq=False)
class EndFactors(Meaning):
    """Products of values at both ends, [num_edges] or [num_edges, 1], no gradient."""

    is_narrow = True  # computed where a function of edges needs it
    edges: EdgeSet
    source: tuple[Lazy, ...] = ()  # [num_src] each
    destination: tuple[Lazy, ...] = ()  # [num_dst] each

    @classmethod
    def of(cls, edges: EdgeSet, values: Lazy, *, at_source: bool) -> EndFactors:
        """Reads values at one end."""
        return cls(edges, (values,)) if at_source else cls(edges, (), (values,))

    def step(self, call: Call, tensor: Deferred) -> Any:
        if call.name in ("view", "reshape", "unsqueeze") and math.prod(tensor.shape[1:]) == 1:
            shape = tuple(call.on(lambda _: torch.empty(tuple(tensor.shape), device="meta")).shape)
            is_column = len(shape) in (1, 2) and shape[0] == tensor.shape[0]
            return tensor.result(self, call, shape, tensor.dtype) if is_column else NotImplemented
        if call.name not in MULTIPLY or len(call.args) != 2:
            return NotImplemented
        operand = call.args[1] if call.args[0] is tensor else call.args[0]
        if not isinstance(operand, Tensor) or operand.shape != tensor.shape or operand.dtype != tensor.dtype:
            return NotImplemented
        meaning = meaning_of(operand)
        if isinstance(meaning, EndFactors) and meaning.edges is self.edges:
            return tensor.result(self.times(meaning), call, tuple(tensor.shape), tensor.dtype)
        return tensor.result(self, call, tuple(tensor.shape), tensor.dtype) if are_ones(operand) else NotImplemented

    def times(self, other: EndFactors) -> EndFactors:
        """Multiplies by factors of the same edges."""
        return replace(self, source=self.source + other.source, destination=self.destination + other.destination)

    def by_edge(self) -> Tensor:  # [num_edges, 1]
        """Returns the factor of each edge."""
        values = [lazy.value().index_select(0, self.edges.row_of_source) for lazy in self.source]
        values += [lazy.value().index_select(0, self.edges.destination) for lazy in self.destination]
        return math.prod(values[1:], start=values[0])[:, None]

    def sum_rows(self, rows: Tensor) -> Tensor:  # [num_src, ...] -> [num_dst, ...]
        """Sums the sources' rows, times the factors."""
        source, destination = self._product(self.source), self._product(self.destination)
        return self.edges.kernels.sum(rows, source=source, destination=destination)

    @staticmethod
    def _product(values: tuple[Lazy, ...]) -> Tensor | None:
        return torch.stack([lazy.value() for lazy in values]).prod(0) if values else None


def are_ones(values: Tensor) -> bool:
    """Whether plain values without gradient are all 1."""
    return type(values) is Tensor and not values.requires_grad and bool((values == 1).all())
