"""Rows rounded to 16 and 8 bits: which numbers stay, and what is told and refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gnnkit.engine.remote.features import RowConverter
from gnnkit.errors import UserError
from gnnkit.graph import Graph, PackedFeatures, feature_arrays, read_features
from gnnkit.partition.shard import uncut
from gnnkit.partition.store.join import join_shards
from gnnkit.prepare.inputs import Rounding, round_features, with_kept
from gnnkit.utils.storage import load_arrays, save_arrays

N = 300
KINDS = {"bf16": 2, "int8": 1}  # bytes of a number


def columns() -> np.ndarray:  # [N, 5] float32: normal, one-hot, small whole, ids, constant
    rng = np.random.default_rng(0)
    found = np.zeros((N, 5), np.float32)
    found[:, 0] = rng.normal(size=N)
    found[:, 1] = rng.integers(0, 2, N)
    found[:, 2] = rng.integers(-100, 100, N)
    found[:, 3] = np.arange(N) + 5000
    found[:, 4] = 0.3
    return found


def graph(features: np.ndarray, names: tuple[str, ...] | None = None) -> Graph:
    made = Graph.from_edges([0, 1], [1, 0], len(features), features=features, labels=np.zeros(len(features), int))
    return replace(made, feature_names=names)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_take_fewer_bytes_and_one_hot_and_small_whole_numbers_stay(kind: str) -> None:
    exact = columns()
    found, (line,) = round_features(graph(exact), kind)
    assert isinstance(found.features, PackedFeatures)
    assert found.features.nbytes == N * 5 * KINDS[kind]
    rows = np.asarray(found.features)
    assert rows.dtype == np.float32
    assert np.array_equal(rows[:, 1:3], exact[:, 1:3])
    error = np.abs(rows - exact).max(0)
    assert 0 < error[0] <= (np.abs(exact[:, 0]).max() / 2**8 if kind == "bf16" else np.ptp(exact[:, 0]) / 509)
    worst = (error[:4] / exact[:, :4].std(0)).argmax()
    assert f"{(error / exact.std(0))[worst]:.2g} deviations of its column at most (column {worst};" in line
    assert "whole numbers, such as ids, are not exact in 1 columns, such as 3" in line
    assert f"{kind}, {N * 5 * KINDS[kind] / 1e6:.3g} MB of 0.006 MB" in line


def test_bf16_rounds_as_torch_does_and_opens_to_the_same_bits() -> None:
    exact = columns()
    rows = round_features(graph(exact), "bf16")[0].features
    assert np.array_equal(np.asarray(rows), torch.tensor(exact).to(torch.bfloat16).float().numpy())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rows_open_to_the_numbers_of_numpy(kind: str, dtype: torch.dtype) -> None:
    rows = round_features(graph(columns()), kind)[0].features
    assert isinstance(rows, PackedFeatures)
    opened = RowConverter(rows, dtype, torch.device("cpu"))(rows.kept[7:90])
    assert opened.dtype == dtype
    assert torch.equal(opened, torch.tensor(np.asarray(rows[7:90])).to(dtype))


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_of_any_size_have_one_scale(kind: str) -> None:
    exact = columns()
    whole, (line,) = round_features(graph(exact), kind)
    parts = np.array_split(exact, [1, 1, 100, 299])
    rounding = Rounding(parts, kind)
    kept = np.concatenate([rounding.apply(part) for part in parts])
    assert np.array_equal(rounding.form.with_rows(kept), whole.features)
    assert rounding.describe(None) == line


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_and_parts_give_the_rows_back(kind: str, tmp_path: Path) -> None:
    given = round_features(graph(columns()), kind)[0]
    given.save(tmp_path / "graph")
    for found in (
        Graph.load(tmp_path / "graph"),
        Graph.trusted(tmp_path / "graph"),
        join_shards([uncut(given)], None, None),
    ):
        assert isinstance(found.features, PackedFeatures)
        assert np.array_equal(found.features, given.features)
        assert found.features.name == kind
    save_arrays(tmp_path / "rows", feature_arrays(given.features[3:9, 1:4]), {})
    assert np.array_equal(read_features(load_arrays(tmp_path / "rows")[0]), np.asarray(given.features)[3:9, 1:4])


@pytest.mark.parametrize(
    ("kind", "column", "message"),
    [
        ("bf16", 1e6 + np.arange(N) % 2, "the numbers of column 'b', 1000000 to 1000001, become equal"),
        ("int8", np.where(np.arange(N) % 2, 1e30, 1e30 * (1 + 1e-9)), "of column 'b', 1e+30 to 1e+30, become equal"),
        ("bf16", np.where(np.arange(N) % 2, 3.4e38, 0), "column 'b' is too large for it"),
    ],
)
def test_a_column_that_would_be_lost_is_refused(kind: str, column: Any, message: str) -> None:
    features = np.stack([np.arange(N), column], 1).astype(np.float64 if kind == "int8" else np.float32)
    with pytest.raises(UserError, match=re.escape(message)):
        round_features(graph(features, ("a", "b")), kind)


def test_rows_of_a_store_keep_their_dtype() -> None:
    given = round_features(graph(columns()), "int8")[0]
    assert with_kept(given, "auto", True, "int8") == (given, [])
    with pytest.raises(UserError, match=r"^features.dtype=bf16: the store has features.dtype=int8"):
        with_kept(given, "auto", True, "bf16")
    with pytest.raises(UserError, match=r"^features.dtype=as_is: the store has features.dtype=int8"):
        with_kept(given, "auto", True, "as_is")


def test_sparse_features_become_dense_rounded_rows() -> None:
    exact = np.eye(N, 100, dtype=np.float32)
    sparse, _ = with_kept(graph(exact), "sparse", True, "as_is")
    found, (line,) = with_kept(sparse, "auto", True, "int8")
    assert np.array_equal(found.features, exact)
    assert line.startswith("features: int8, 0.03 MB of 0.12 MB, a number is off by 0 deviations")


@pytest.mark.parametrize(
    ("kept", "scale", "offset", "told"),
    [
        (np.uint8, None, None, "packed rows are uint8, expected uint16"),
        (np.uint16, np.ones(2, np.float32), np.ones(2, np.float32), "packed rows are uint16, expected uint8"),
        (np.uint8, np.ones(2, np.float32), None, "the scale of packed rows must be float32, one number per column"),
        (np.uint8, np.ones(3, np.float32), np.ones(3, np.float32), "the scale of packed rows must be float32, one"),
        (np.uint8, np.ones(2), np.ones(2), "the scale of packed rows must be float32, one number per column"),
        (np.uint16, None, np.ones(2, np.float32), "the scale of packed rows must be float32, one number per column"),
    ],
)
def test_packed_rows_of_another_form_are_refused(kept: Any, scale: Any, offset: Any, told: str) -> None:
    with pytest.raises(UserError, match=f"features: {told}"):
        PackedFeatures(np.zeros((3, 2), kept), scale, offset)
