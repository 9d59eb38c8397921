"""The default data set and the cache."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from gnnkit.dataset.pystdlib import PyStdlib
from gnnkit.graph import Graph, Split
from tests.cases import exhaustive


@pytest.fixture(scope="module", params=["some", exhaustive("all")])
def stdlib(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Graph:
    """Some packages of the standard library, or the default data set.

    Another test may have parsed the latter into the cache.
    """
    if request.param == "all":
        return PyStdlib().load()
    root = tmp_path_factory.mktemp("lib")
    for name in ("asyncio", "email", "json"):
        shutil.copytree(Path(sysconfig.get_path("stdlib")) / name, root / name)
    return PyStdlib(str(root), num_words=500).load()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small tree of sources: two modules of three nodes, and one of one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "lib"
    for name, source in {
        "alpha": "def one(): two()\ndef two(): pass\ndef three(): pass",
        "beta/__init__": "class Big:\n def one(self): pass",
        "beta/part": "from beta import Big\ndef make(): Big()",
        "gamma": "def alone(): pass",
        "test/test_alpha": "def skipped(): pass",
        "beta/tests/test_part": "def skipped(): pass",
        "site-packages/other": "def skipped(): pass",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / f"{name}.py").write_text(source)
    return root


def small(root: Path, **options: int) -> PyStdlib:
    return PyStdlib(str(root), min_class_size=3, num_words=5, **options)


def same(left: Graph, right: Graph) -> bool:
    names = ("features", "labels", "split")
    equal = all(np.array_equal(getattr(left, name), getattr(right, name)) for name in names)
    return equal and np.array_equal(left.csc.indices, right.csc.indices) and left.class_names == right.class_names


@pytest.mark.slow
def test_the_standard_library_has_the_sizes_of_a_real_data_set(stdlib: Graph) -> None:
    names = set(stdlib.class_names or ())
    if names == {"asyncio", "email"}:  # json is too small
        assert stdlib.num_nodes > 1000
        assert stdlib.features.shape == (stdlib.num_nodes, 500)
    else:
        assert stdlib.num_nodes > 5000
        assert stdlib.features.shape == (stdlib.num_nodes, 2000)
        assert {"asyncio", "email", "unittest"} <= names
    assert stdlib.num_edges > 2 * stdlib.num_nodes
    assert not {"test", "idlelib"} & names
    assert np.bincount(stdlib.labels[stdlib.labels >= 0]).min() >= 60
    assert stdlib.symmetrize().num_edges == stdlib.num_edges


@pytest.mark.slow
def test_labelled_nodes_are_split_10_10_80(stdlib: Graph) -> None:
    labelled = (stdlib.labels >= 0).sum()
    for split, share in {Split.TRAIN: 0.1, Split.VAL: 0.1, Split.TEST: 0.8}.items():
        assert abs((stdlib.split == split).sum() - share * labelled) <= 1
    np.testing.assert_array_equal(stdlib.split == Split.NONE, stdlib.labels < 0)


@pytest.mark.slow
def test_rows_of_words_have_length_one(stdlib: Graph) -> None:
    sums = np.linalg.norm(stdlib.features, axis=1)
    np.testing.assert_allclose(sums[sums > 0], 1, rtol=1e-5)
    assert (sums > 0).mean() > 0.95


def test_a_tree_of_sources_gives_the_expected_graph(root: Path) -> None:
    graph = small(root).load()  # one two three | Big one | make | alone
    assert graph.class_names == ("alpha", "beta")
    np.testing.assert_array_equal(graph.labels, [0, 0, 0, 1, 1, 1, -1])
    np.testing.assert_array_equal(graph.csc.indptr, [0, 1, 2, 2, 4, 5, 6, 6])
    np.testing.assert_array_equal(graph.csc.indices, [1, 0, 4, 5, 3, 3])
    directed = PyStdlib(str(root), symmetrize=False, min_class_size=3).load()
    np.testing.assert_array_equal(directed.csc.indices, [0, 5, 3])


def test_the_second_load_comes_from_the_cache_and_is_equal(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first = small(root).load()
    assert "parsing 4 modules" in capfd.readouterr().err
    second = small(root).load()
    assert capfd.readouterr().err == ""
    assert same(first, second)
    (folder,) = (root.parent / "cache" / "gnnkit").iterdir()
    assert isinstance(Graph.load(folder).features.values.base.base, np.memmap)


def test_changed_sources_and_options_are_parsed_anew(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    small(root).load()
    (root / "gamma.py").write_text("def alone(): pass\ndef alone_too(): pass")
    assert small(root).load().num_nodes == 8
    assert PyStdlib(str(root), min_class_size=3, num_words=4).load().features.shape == (8, 4)
    assert capfd.readouterr().err.count("parsing") == 3


def test_the_split_follows_from_the_seed(root: Path) -> None:
    source = "\n".join(f"def f{number}(): pass" for number in range(100))
    (root / "alpha.py").write_text(source)
    splits = [small(root, seed=seed).load().split for seed in (0, 0, 1)]
    np.testing.assert_array_equal(splits[0], splits[1])
    assert (splits[0] != splits[2]).any()


def test_a_corrupt_cache_is_replaced(root: Path) -> None:
    first = small(root).load()
    (folder,) = (root.parent / "cache" / "gnnkit").iterdir()
    (folder / "indices.npy").write_bytes(b"")
    with pytest.warns(UserWarning, match=r"cannot use the cached graph: .*indices.npy"):
        assert same(small(root).load(), first)
    assert same(small(root).load(), first)


def test_a_cache_that_cannot_be_written_only_warns(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = root.parent / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    with pytest.warns(UserWarning, match="cannot cache the parsed graph"):
        assert small(root).load().num_nodes == 7


@pytest.mark.skipif(os.name != "posix", reason="HOME is POSIX")
def test_without_xdg_the_cache_is_under_home(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(root.parent / "home"))
    small(root).load()
    assert list((root.parent / "home").rglob("gnnkit/pystdlib-*/feature_values.npy"))


def test_a_python_without_sources_is_told_of_another_data_set(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"found no sources .* under .*nothing; use another .* dataset=synthetic"):
        PyStdlib(str(tmp_path / "nothing")).load()


def test_sources_without_a_large_enough_module_are_refused(root: Path) -> None:
    with pytest.raises(ValueError, match=r"dataset.min_class_size=60: no module under"):
        PyStdlib(str(root)).load()


def test_a_user_without_a_home_parses_each_time(
    root: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnnkit.dataset.pystdlib.cache_folder", lambda: None)
    assert same(small(root).load(), small(root).load())
    assert capfd.readouterr().err.count("parsing 4 modules") == 2
