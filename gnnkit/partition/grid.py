"""The process grid: which rank stands where. Pure Python, so that the launcher checks it before anything starts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Grid:
    """Process grid: `rank = cell * slices + slice`; cell i of the plane stands at row `i % rows`, column `i // rows`.

    rows divides destinations, cols divides sources, slices divides feature columns.
    """

    rows: int
    cols: int
    slices: int

    @property
    def world_size(self) -> int:
        return self.rows * self.cols * self.slices

    @property
    def num_cells(self) -> int:
        return self.rows * self.cols
