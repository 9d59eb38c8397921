from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gnnkit.sampler.gather import gather_rows

rows = hnp.arrays(
    st.sampled_from(["f4", "f8", "f2", "i8", "i4", "u1", ">f4", "i4,f8"]).map(np.dtype),
    st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple),
)


@pytest.mark.slow
@given(rows, st.data(), st.sampled_from(["i4", "i8", "u2"]), st.integers(1, 3))
def test_rows_equal_fancy_indexing(source: np.ndarray, data: st.DataObject, id_type: str, threads: int) -> None:
    ids = data.draw(hnp.arrays(id_type, st.integers(0, 30), elements=st.integers(0, len(source) - 1)))
    assert gather_rows(source, ids, threads=threads).tobytes() == source[ids].tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2, 7])
def test_large_gathers_are_split_over_threads(threads: int) -> None:
    rng = np.random.default_rng(0)
    source = rng.random((5_000, 101), np.float32)
    ids = rng.integers(0, len(source), 40_000)
    out = np.empty((len(ids), 101), np.float32)
    assert gather_rows(source, ids, out, threads=threads) is out
    np.testing.assert_array_equal(out, source[ids])


def test_bfloat16_rows_travel_as_their_bits() -> None:
    source = torch.randn(50, 7).to(torch.bfloat16)
    ids = np.array([3, 49, 0, 3])
    bits = gather_rows(source.view(torch.uint16).numpy(), ids)
    assert torch.equal(torch.from_numpy(bits).view(torch.bfloat16), source[ids])


def test_rows_come_from_mapped_files(tmp_path: Path) -> None:
    source = np.random.default_rng(0).random((1_000, 33))
    np.save(tmp_path / "rows.npy", source)
    ids = np.arange(999, -1, -7)
    np.testing.assert_array_equal(gather_rows(np.load(tmp_path / "rows.npy", mmap_mode="r"), ids), source[ids])


@pytest.mark.parametrize(
    ("source", "ids"),
    [
        (np.ones((3, 2)), np.array([], np.int64)),
        (np.ones((0, 2)), np.array([], np.int64)),
        (np.ones((3, 0)), np.array([2, 0])),
        (np.ones(3), np.array([2, 0])),
        (np.ones((3, 2)), np.array([2, 9, 0, 9, 1])[::2]),
        (np.ones((3, 2)), np.frombuffer(b"\0" * 17, np.int8)[1:].view(np.int64)),
    ],
    ids=["no ids", "no rows", "no columns", "labels", "strided ids", "unaligned ids"],
)
def test_unusual_shapes_are_defined(source: np.ndarray, ids: np.ndarray) -> None:
    np.testing.assert_array_equal(gather_rows(source, ids), source[ids])


table = np.arange(8.0).reshape(4, 2)
read_only = np.empty((1, 2))
read_only.flags.writeable = False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((table, np.array([0, 1, 4])), r"ids\[2\] = 4 is out of range for 4 rows"),
        ((table, np.array([0, -1], np.int32)), r"ids\[1\] = -1 is out of range for 4 rows"),
        ((table[:0], np.array([0])), r"ids\[0\] = 0 is out of range for 0 rows"),
        ((table[:, :0], np.array([7])), r"ids\[0\] = 7 is out of range"),
        ((table, np.array([0.0])), "ids must be one axis of integers, got 1 axes of float64"),
        ((table, np.array([[0]])), "ids must be one axis of integers, got 2 axes"),
        ((table[:, :1], np.array([0])), "source must be C-contiguous"),
        ((np.array(1.0), np.array([0])), "source must be an array of rows"),
        ((np.array([None]), np.array([0])), "rows of fixed size"),
        (
            (table, np.array([0]), np.empty((2, 2))),
            r"out must be float64 of shape \(1, 2\), got float64 of shape \(2, 2\)",
        ),
        ((table, np.array([0]), np.empty((1, 2), np.float32)), "got float32"),
        ((table, np.array([0]), np.empty((1, 4))[:, ::2]), "out must be C-contiguous"),
        ((table, np.array([0]), table[3:]), "not overlap source"),
        ((table, np.array([0]), read_only), "writeable"),
    ],
)
def test_bad_input_names_the_rule_and_the_value(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gather_rows(*arguments)


def test_threads_must_be_positive() -> None:
    with pytest.raises(ValueError, match="threads=0"):
        gather_rows(table, np.array([0]), threads=0)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_python_runs_while_rows_are_copied() -> None:
    source = np.zeros((200_000, 64), np.float32)
    ids = np.random.default_rng(0).integers(0, len(source), 400_000)
    gathering = threading.Thread(target=lambda: gather_rows(source, ids))
    gathering.start()
    turns = 0
    while gathering.is_alive():
        turns += 1
    assert turns > 100
