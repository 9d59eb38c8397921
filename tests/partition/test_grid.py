"""Grids come out as named, and what cannot be names its key."""

import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnkit.partition.grid import NAMES, Grid, make_grid, remark, unequal_columns


@pytest.mark.slow
@given(st.sampled_from(NAMES), st.integers(1, 200))
def test_a_named_grid_uses_every_worker(name: str, world_size: int) -> None:
    grid = make_grid(name, world_size)
    assert grid.world_size == world_size
    assert grid.rows >= grid.cols >= grid.slices or name == "1.5d"
    says_so = remark(name, grid)
    assert (says_so is not None) == (
        world_size > 1 and name != "1d" and (grid.cols == 1 or (name == "3d" and grid.slices == 1))
    )


@pytest.mark.parametrize(
    ("name", "world_size", "expected"),
    [
        ("1d", 6, (6, 1, 1)),
        ("1.5d", 8, (4, 2, 1)),
        ("1.5d", 15, (5, 3, 1)),
        ("1.5d", 16, (8, 2, 1)),
        ("1.5d", 7, (7, 1, 1)),
        ("2d", 4, (2, 2, 1)),
        ("2d", 6, (3, 2, 1)),
        ("2d", 12, (4, 3, 1)),
        ("2d", 5, (5, 1, 1)),
        ("3d", 8, (2, 2, 2)),
        ("3d", 12, (3, 2, 2)),
        ("3d", 27, (3, 3, 3)),
        ("3d", 4, (2, 2, 1)),
    ],
)
def test_named_grids_are_factored_nearest_to_equal(name: str, world_size: int, expected: tuple[int, int, int]) -> None:
    assert make_grid(name, world_size) == Grid(*expected)


def test_replication_sets_the_columns_of_1_5d() -> None:
    assert make_grid("1.5d", 8, 4) == Grid(2, 4, 1)
    assert make_grid("1.5d", 8, 1) == Grid(8, 1, 1)
    assert make_grid("1.5d", 8, 3) == Grid(8, 1, 1)
    assert [unequal_columns("1.5d", 8, copies) for copies in range(1, 5)] == [(), (), (3,), ()]


@pytest.mark.slow
@given(st.sampled_from(NAMES), st.integers(1, 500))
def test_unequal_columns_never_divide_the_workers_and_need_no_more_rows(name: str, world_size: int) -> None:
    numbers, grid = unequal_columns(name, world_size), make_grid(name, world_size)
    prime = world_size > 2 and all(world_size % d for d in range(2, world_size))
    assert not prime or name == "1d" or numbers
    for number in numbers:
        assert world_size % number
        assert -(-world_size // number) + number <= grid.rows + grid.cols
    assert not numbers or (name != "1d" and grid.slices == 1)


@pytest.mark.parametrize(
    ("name", "world_size", "expected"),
    [
        ("2d", 2, ()),
        ("2d", 3, (2,)),
        ("2d", 5, (2, 3)),
        ("2d", 7, (2, 3)),
        ("2d", 10, ()),
        ("2d", 13, (3, 4)),
        ("2d", 14, (3, 4)),
        ("3d", 7, (2, 3)),
        ("3d", 30, ()),
        ("1.5d", 7, (2,)),
        ("1.5d", 9, ()),
    ],
)
def test_unequal_columns_are_next_to_the_root(name: str, world_size: int, expected: tuple[int, ...]) -> None:
    assert unequal_columns(name, world_size) == expected


def test_a_user_is_told_of_unequal_columns() -> None:
    text = remark("2d", Grid(5, 1, 1), (3, 2))
    assert text == "partition.grid=2d of 5 workers is 2 columns of 3, 2 workers"


@pytest.mark.slow
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5))
def test_ranks_stand_where_the_numbering_says(rows: int, cols: int, slices: int) -> None:
    grid = make_grid([rows, cols, slices], rows * cols * slices)
    for rank in range(grid.world_size):
        row, col, slice_ = grid.position(rank)
        assert (col * rows + row) * slices + slice_ == rank
        assert row < rows
        assert col < cols


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([4, 1, 1], 6), "partition.grid=[4,1,1] needs 4 workers, got workers=6: use workers=4"),
        (
            ([3, 3, 1], 7),
            "partition.grid=[3,3,1] needs 9 workers, got workers=7: use workers=9, or parts=9 to let 7 processes hold 9 ranks",
        ),
        (([2, 2], 4), "partition.grid=[2,2] must be [rows,cols,slices], three whole numbers of at least 1"),
        (([2, 0, 2], 4), "partition.grid=[2,0,2] must be [rows,cols,slices], three whole numbers of at least 1"),
        (([2, True, 2], 4), "partition.grid=[2,True,2] must be [rows,cols,slices], three whole numbers of at least 1"),
        (("2.5d", 4), "partition.grid=2.5d must be one of 1d, 1.5d, 2d, 3d or [rows,cols,slices]"),
        (("1.5d", 8, 9), "partition.replication=9 must be from 1 to workers=8"),
        (("1.5d", 8, 0), "partition.replication=0 must be from 1 to workers=8"),
        (("2d", 8, 2), "partition.replication=2 needs partition.grid=1.5d, got 2d"),
        (([4, 2, 1], 8, 2), "partition.replication=2 needs partition.grid=1.5d, got [4,2,1]"),
        (("1d", 0), "workers=0 must be at least 1"),
    ],
)
def test_a_grid_that_cannot_be_names_rule_value_and_key(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make_grid(*arguments)


def test_a_grid_of_parts_names_parts() -> None:
    message = re.escape("partition.grid=[3,3,1] needs 9 workers, got parts=7: use parts=9")
    with pytest.raises(ValueError, match=f"^{message}$"):
        make_grid([3, 3, 1], 7, key="parts")


@pytest.mark.exhaustive
def test_the_grid_is_checked_without_torch() -> None:
    code = "import sys, gnnkit.partition.grid; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
