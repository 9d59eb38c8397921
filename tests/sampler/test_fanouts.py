"""Fanouts by hop and relation: what is read, refused and spelled."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest

from gnnkit.config.compose import as_overrides, compose
from gnnkit.errors import UserError
from gnnkit.graph import CSC
from gnnkit.sampler import Fanouts, LaborSampler, Loader, NativeSampler, NeighborSampler
from tests.sampler.test_batching import random_graph

TYPED = {"default": [10, 5], "author-writes-paper": [15, 5]}


def test_a_list_holds_for_all_relations() -> None:
    fanouts = Fanouts.parse(np.array([10, -1]))
    assert (fanouts, list(fanouts), fanouts[0], fanouts.num_hops) == ([10, -1], [10, -1], 10, 2)
    assert fanouts.of("author-writes-paper") == (10, -1)
    assert fanouts.as_plain() == [10, -1]
    assert str(fanouts) == "[10,-1]"


def test_relations_without_an_entry_get_the_default() -> None:
    fanouts = Fanouts.parse(TYPED)
    assert fanouts.of("author-writes-paper") == (15, 5)
    assert fanouts.of("paper-cites-paper") == (10, 5)
    assert json.loads(json.dumps(fanouts.as_plain())) == TYPED
    assert Fanouts.parse(fanouts.as_plain()) == fanouts  # type: ignore[arg-type]
    assert str(fanouts) == "{default:[10,5],author-writes-paper:[15,5]}"
    assert pickle.loads(pickle.dumps(fanouts)) == fanouts
    assert fanouts != [10, 5]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1]}, r"^sampler\.fanouts=\{'a': \[1\]\} must have an entry default"),
        ({}, r"must have an entry default"),
        ({"default": 5}, r"^sampler\.fanouts\.default=5 must be a list of whole numbers, one per hop$"),
        ({"default": [5, 5], "a": [5]}, r"^sampler\.fanouts\.a has 1 hops, but sampler\.fanouts\.default has 2"),
        ({"default": [5], "a": [-2]}, r"^sampler\.fanouts\.a\[0\]=-2 must be a whole number from -1"),
        ({"default": []}, r"^sampler\.fanouts\.default has 0 hops, expected 1 to 1000"),
    ],
)
def test_bad_mappings_are_named(value: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Fanouts.parse(value)


@pytest.mark.parametrize("kind", [NeighborSampler, LaborSampler])
def test_graphs_without_relations_refuse_fanouts_by_relation(kind: type[NativeSampler]) -> None:
    graph, sampler = random_graph(20, 40, key=0), kind(TYPED)  # type: ignore[call-arg]
    with pytest.raises(UserError, match=r"^sampler\.fanouts\.author-writes-paper=\[15,5\]: .* use one list, sampler"):
        sampler.sample(graph, np.arange(3), key=0)
    assert kind({"default": [10, 5]}).fanouts == [10, 5]  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("value", "same"), [([-1, -1], True), ([5, 5], True), ([5, -1], False), (TYPED, False)], ids=str
)
def test_fanouts_are_classified(value: Any, same: bool) -> None:
    assert Fanouts.parse(value).same_at_every_hop == same


def test_the_last_hop_repeats() -> None:
    fanouts = Fanouts.parse(TYPED)
    assert fanouts.resized(3).of("author-writes-paper") == (15, 5, 5)
    assert fanouts.resized(1) == Fanouts.parse({"default": [10], "author-writes-paper": [15]})


def test_configured_mappings_reach_the_sampler() -> None:
    overrides = ["strategy=individual_sample", "sampler=neighbor"]
    written = f"sampler.fanouts={Fanouts.parse(TYPED)}"
    section = compose([*overrides, written])["sampler"]
    assert section["fanouts"] == TYPED
    assert NeighborSampler(section["fanouts"]).fanouts.as_plain() == TYPED
    odd = {"default": [10, 5], "a b:c,[d]\\": [1, 2]}
    assert compose([*overrides, *as_overrides({"sampler": {"fanouts": odd}})])["sampler"]["fanouts"] == odd
    assert compose([*overrides, written, "sampler.fanouts=[2,3]"])["sampler"]["fanouts"] == [2, 3]
    assert "fanouts" not in compose([*overrides, "~sampler.fanouts"])["sampler"]


def test_mappings_need_a_sampler_with_fanouts() -> None:
    with pytest.raises(UserError, match=r"^sampler\.fanouts needs a sampler"):
        compose(["strategy=vertex_centric", "sampler.fanouts={default:[1]}"])
    with pytest.raises(UserError, match=r"^sampler\.fanouts is not known: sampler\.fanouts needs sampler="):
        compose(["strategy=individual_sample", "sampler=full", "sampler.fanouts={default:[1]}"])


def test_draws_that_do_not_fit_in_memory_are_refused() -> None:
    ring = CSC(np.arange(10**6 + 1), np.roll(np.arange(10**6), 1))
    with pytest.raises(UserError, match=r"sampler.fanouts=\[1048576,1048576\] with replacement, for 8 seeds needs"):
        Loader(ring, NeighborSampler([2**20, 2**20], replace=True), batch_size=8)
    with pytest.raises(UserError, match=r"sampler.fanouts=\[-1,1048576,1048576\] with replacement, for 8 seeds needs"):
        Loader(ring, NeighborSampler([-1, 2**20, 2**20], replace=True), batch_size=8)
    assert len(Loader(ring, NeighborSampler([2**20], replace=True), batch_size=1, threads=1)) == 10**6
    assert Loader(ring, NeighborSampler([2**20, 2**20]), batch_size=8)  # degrees bound these draws
