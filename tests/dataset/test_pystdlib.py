"""The default data set."""

from __future__ import annotations

import numpy as np
import pytest

from gnnkit.dataset.pystdlib import PyStdlib
from gnnkit.graph import Graph, Split


@pytest.fixture(scope="module")
def stdlib() -> Graph:
    return PyStdlib().load()


def test_the_standard_library_has_the_sizes_of_a_real_data_set(stdlib: Graph) -> None:
    assert (stdlib.num_nodes, stdlib.num_edges, stdlib.num_classes) == (17_815, 58_498, 68)
    assert stdlib.features.shape == (17_815, 2000)
    names = set(stdlib.class_names or ())
    assert {"asyncio", "email", "unittest"} <= names
    assert not {"test", "idlelib"} & names
    assert np.bincount(stdlib.labels[stdlib.labels >= 0]).min() >= 60
    assert stdlib.symmetrize().num_edges == stdlib.num_edges
    assert 2 * PyStdlib(symmetrize=False).load().num_edges > stdlib.num_edges


def test_labelled_nodes_are_split_10_10_80(stdlib: Graph) -> None:
    labelled = (stdlib.labels >= 0).sum()
    for split, share in {Split.TRAIN: 0.1, Split.VAL: 0.1, Split.TEST: 0.8}.items():
        assert abs((stdlib.split == split).sum() - share * labelled) <= 1
    np.testing.assert_array_equal(stdlib.split == Split.NONE, stdlib.labels < 0)


def test_the_split_follows_from_the_seed(stdlib: Graph) -> None:
    np.testing.assert_array_equal(PyStdlib(seed=0).load().split, stdlib.split)
    assert (PyStdlib(seed=1).load().split != stdlib.split).any()


def test_rows_of_words_have_length_one(stdlib: Graph) -> None:
    sums = np.linalg.norm(np.asarray(stdlib.features), axis=1)
    np.testing.assert_allclose(sums[sums > 0], 1, rtol=1e-5)
    assert (sums > 0).mean() > 0.95
