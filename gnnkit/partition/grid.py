"""The rank grid.

In pure Python, so that the launching process can check the grid cheaply.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gnnkit.errors import UserError

NAMES = ("1d", "1.5d", "2d", "3d")


@dataclass(frozen=True, slots=True)
class Grid:
    """A grid of ranks, with `rank = cell * slices + slice`.

    Cell i of the plane is at row `i % rows` and column `i // rows`. `rows` divides
    destinations, `cols` divides sources, `slices` divides feature columns.

    Examples:
        >>> from gnnkit.partition import Grid
        >>> grid = Grid(rows=2, cols=3, slices=1)
        >>> grid.world_size, grid.position(5)  # row, column and slice
        (6, (1, 2, 0))
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

    def position(self, rank: int) -> tuple[int, int, int]:
        """Returns a rank's row, column and slice."""
        cell, slice_ = divmod(rank, self.slices)
        return cell % self.rows, cell // self.rows, slice_

    def __str__(self) -> str:
        return f"{self.rows} x {self.cols} x {self.slices}"


def make_grid(
    spec: str | Sequence[int], world_size: int, replication: int | None = None, *, key: str = "workers"
) -> Grid:
    """Creates the grid given by `partition.grid`.

    `1d` is P x 1 x 1 and `1.5d` is P/c x c x 1, or P x 1 x 1 if c does not divide P.
    `2d` and `3d` factor P closest to a square or cube, with larger factors first.
    `unequal_columns` returns alternatives with columns of unequal height. Raises
    `UserError`, with the configuration key, for an impossible grid.

    Args:
        spec: `1d`, `1.5d`, `2d`, `3d` or [rows, cols, slices].
        world_size: The number P of ranks.
        replication: The number c of `1.5d`, from 1 to P. If None, the least divisor of
            P from 2 to sqrt(P), the grid closest to `1d`. With c = sqrt(P) the grid is
            `2d` and has the fewest words.
        key: Configuration key of P, for the message. Default: workers.

    Examples:
        >>> from gnnkit.partition import make_grid
        >>> [str(make_grid(spec, 8)) for spec in ("1d", "1.5d", "2d", "3d", [2, 2, 2])]
        ['8 x 1 x 1', '4 x 2 x 1', '4 x 2 x 1', '2 x 2 x 2', '2 x 2 x 2']
    """
    if world_size < 1:
        raise UserError(f"{key}={world_size} must be at least 1")
    if spec not in NAMES and not isinstance(spec, list | tuple):
        raise UserError(f"partition.grid={spec} must be one of {', '.join(NAMES)} or [rows,cols,slices]")
    if replication is not None and spec != "1.5d":
        raise UserError(f"partition.replication={replication} needs partition.grid=1.5d, got {_format_spec(spec)}")
    if not isinstance(spec, str):
        return _explicit_grid(spec, world_size, key)
    if spec == "1d":
        return Grid(world_size, 1, 1)
    if spec == "1.5d":
        copies = _default_replication(world_size) if replication is None else replication
        _check_replication(copies, world_size, key)
        return Grid(world_size // copies, copies, 1) if world_size % copies == 0 else Grid(world_size, 1, 1)
    rows, cols, slices = [*_factor(world_size, 2), 1] if spec == "2d" else _factor(world_size, 3)
    return Grid(rows, cols, slices)


def unequal_columns(spec: str | Sequence[int], world_size: int, replication: int | None = None) -> tuple[int, ...]:
    """Returns the numbers of unequal columns that may replace a named grid.

    Such columns have P/c ranks, rounded up or down. They are considered if P is prime,
    if `1.5d` has a c that does not divide P, and if a number next to sqrt(P) moves
    fewer rows than P's factors. The result is empty if the grid is used.

    Args:
        spec: As for `make_grid`, checked.
        world_size: The number P of ranks.
        replication: As for `make_grid`.
    """
    if not isinstance(spec, str) or spec == "1d":
        return ()
    if replication is not None:
        return (replication,) if world_size % replication else ()
    grid = make_grid(spec, world_size)
    if grid.slices > 1 or (spec == "1.5d" and grid.cols > 1):
        return ()
    root = math.isqrt(world_size)
    numbers = (2,) if spec == "1.5d" else (root, root + 1)
    max_rows = grid.rows + grid.cols - (2 if grid.cols == 1 else 3)
    return tuple(c for c in numbers if world_size % c and math.ceil(world_size / c) + c - 2 <= max_rows)


def remark(spec: str | Sequence[int], grid: Grid, columns: Sequence[int] = ()) -> str | None:
    """Returns a message if a named grid differs from what its name suggests, or None.

    Args:
        spec: The named grid.
        grid: The resulting grid.
        columns: Heights of the columns, if they are unequal.
    """
    if not isinstance(spec, str) or spec == "1d" or grid.world_size == 1:
        return None
    if columns:
        heights = ", ".join(map(str, columns))
        return f"partition.grid={spec} of {grid.world_size} workers is {len(columns)} columns of {heights} workers"
    if grid.cols == 1:
        return f"partition.grid={spec} of {grid.world_size} workers is {grid}: a single column, the same as 1d"
    if spec == "3d" and grid.slices == 1:
        return f"partition.grid=3d of {grid.world_size} workers is {grid}: a single slice, the same as 2d"
    return None


def _explicit_grid(spec: Sequence[int], world_size: int, key: str) -> Grid:
    setting = f"partition.grid={_format_spec(spec)}"
    if len(spec) != 3 or not all(type(size) is int and size >= 1 for size in spec):
        raise UserError(f"{setting} must be [rows,cols,slices], three whole numbers of at least 1")
    grid = Grid(*spec)
    size = grid.world_size
    if size != world_size:
        parts = f", or parts={size} to let {world_size} processes hold {size} ranks"
        remedy = f"{key}={size}{parts if key == 'workers' and world_size < size else ''}"
        raise UserError(f"{setting} needs {size} workers, got {key}={world_size}: use {remedy}")
    return grid


def _check_replication(copies: int, world_size: int, key: str) -> None:
    if type(copies) is not int or copies < 1 or copies > world_size:
        raise UserError(f"partition.replication={copies} must be from 1 to {key}={world_size}")


def _default_replication(world_size: int) -> int:
    return next((c for c in range(2, world_size + 1) if c * c <= world_size and world_size % c == 0), 1)


def _factor(number: int, count: int) -> list[int]:
    """Factors `number` into `count` nearly equal factors, largest first."""
    if count == 1:
        return [number]
    divisors = (d for d in range(1, number + 1) if number % d == 0)
    choices = (sorted([d, *_factor(number // d, count - 1)], reverse=True) for d in divisors)
    return min(choices, key=lambda factors: (sum(factors), factors))


def _format_spec(spec: str | Sequence[int]) -> str:
    return spec if isinstance(spec, str) else "[" + ",".join(map(str, spec)) + "]"
