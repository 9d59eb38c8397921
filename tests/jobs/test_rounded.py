"""Rounded rows of features train as the same numbers in memory, wherever they lie."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gnnkit
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.prepare.inputs import round_features
from tests.cases import few, in_turn
from tests.jobs.test_on_disk import FAST, OWNERS, WAYS, bits, graph, train

pytestmark = pytest.mark.slow
WIDTH = 7
KINDS = {"bf16": 2, "int8": 1}  # bytes of a number
ALL_WAYS = {
    **WAYS,
    "full graph": {"strategy": "vertex_centric"},
}


def rounded(kind: str) -> Graph:
    """Returns the graph with the numbers that rounding leaves, in float32."""
    given, (line,) = round_features(graph(), kind)
    assert f"features: {kind}" in line
    return replace(given, features=np.asarray(given.features))


@few(
    "kind,way",
    [*in_turn(KINDS, ALL_WAYS), ("int8", "owners")],
    default=[("bf16", "cooperative")],
)
def test_every_place_gives_the_bits_of_rounded_numbers_in_memory(kind: str, way: str, tmp_path: Path) -> None:
    keys = {**ALL_WAYS[way], "trainer": {"max_epochs": 2}}
    expected = bits(train(tmp_path / "numbers", rounded(kind), features={"scale": "none"}, **keys))
    places: list[dict[str, Any]] = [{}]
    if way in WAYS:
        places = [{"place": "memory"}, {"place": "mapped"}, {"place": "disk", "cache": 60 * WIDTH * KINDS[kind]}]
    for place in places:
        result = train(
            tmp_path / place.get("place", "auto"), features={"scale": "none", "dtype": kind, **place}, **keys
        )
        assert bits(result) == expected, place
        assert "cache" not in place or result["features_read"]["cache_rows"] == 60


@few("kind", KINDS, default=("int8",))
def test_a_row_takes_fewer_bytes_between_workers_and_from_disk(kind: str, tmp_path: Path) -> None:
    keys = {"strategy": OWNERS, "trainer": {"max_epochs": 1}}
    exact = train(tmp_path / "as_is", features={"scale": "none"}, **keys)
    result = train(tmp_path / kind, features={"scale": "none", "dtype": kind}, **keys)
    assert bits(result) != bits(exact)
    assert result["words_fetched"] == exact["words_fetched"] > 0
    saved = (np.array(exact["bytes_sent"]) - result["bytes_sent"]).max()
    print(exact["bytes_sent"], result["bytes_sent"], exact["words_fetched"])
    assert saved > 0


@pytest.mark.exhaustive
@few(
    "kind,way",
    in_turn(KINDS, ("shared", "owners", "cooperative", "full graph")),
    default=[("int8", "full graph")],
)
def test_a_store_brings_rounded_rows(kind: str, way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = ALL_WAYS[way]
    features = {"scale": "none", "dtype": kind}
    expected = bits(train(tmp_path / "memory", features=features, **keys))
    gnnkit.train(graph(), job="partition", folder=tmp_path / "store", features=features, workers=2, **keys)
    own = {key: value for key, value in FAST.items() if key != "workers"} | keys
    places = ["mapped", "disk"] if way in WAYS else ["auto"]
    old = {"name": "store", "root": str(tmp_path / "store")}
    gnnkit.train(job="partition", dataset=old, folder=tmp_path / "partitioned", workers=2, **keys)
    gnnkit.train(job="import", dataset=old, folder=tmp_path / "imported", workers=2, partition="contiguous", **keys)
    for number, root in enumerate(("store", "partitioned", "imported")):
        store = {**old, "root": str(tmp_path / root)}
        capsys.readouterr()
        for place in places:
            result = gnnkit.train(dataset=store, folder=tmp_path / f"{number}{place}", features={"place": place}, **own)
            assert bits(result) == expected, (root, place)
            assert f"features: {kind}, " in capsys.readouterr().out
    predicted = gnnkit.predict(tmp_path / f"0{place}", folder=tmp_path / "p", comm="threads", report=False)
    assert (predicted.folder / "predictions.npy").read_bytes() == (result.folder / "predictions.npy").read_bytes()


def test_a_store_of_rounded_rows_brings_no_others(tmp_path: Path) -> None:
    keys = FAST | ALL_WAYS["full graph"]
    gnnkit.train(graph(), job="partition", folder=tmp_path / "store", features={"dtype": "int8"}, **keys)
    store = {"name": "store", "root": str(tmp_path / "store")}
    with pytest.raises(UserError, match=r"^features.dtype=as_is: the store .*store was cut with features.dtype=int8: "):
        gnnkit.train(dataset=store, folder=tmp_path / "run", features={"dtype": "as_is"}, **keys)
