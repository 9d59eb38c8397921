"""Random splits."""

from __future__ import annotations

import numpy as np
import pytest

from gnnkit.graph import Graph, Split, random_split
from tests.cases import few


def graph_of(labels: np.ndarray) -> Graph:
    return Graph.from_edges([0], [1], len(labels), labels=labels)


@few("seed", range(20), default=[0, 1])
def test_each_class_is_split_by_the_shares(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = np.r_[np.full(15, -1), np.repeat([0, 1, 2, 3], [900, 16, 5, 1])]
    labels = rng.permutation(labels)
    shares = (0.6, 0.2, 0.1)
    split = graph_of(labels).draw_split(shares, seed).split
    assert not split[labels < 0].any()
    for label, count in enumerate((900, 16, 5, 1)):
        for part, share in zip((Split.TRAIN, Split.VAL, Split.TEST), shares, strict=True):
            assert abs((split[labels == label] == part).sum() - share * count) <= 1
    assert [(split == part).sum() for part in (Split.TRAIN, Split.VAL)] == [553, 185]  # 0.6 and 0.2 of 922
    assert split[labels == 3] == Split.TRAIN  # the only node of its class


def test_the_nodes_of_a_class_are_drawn_at_random() -> None:
    labels = np.repeat([0, 1], [60, 40])
    graph = graph_of(labels)
    splits = np.array([graph.draw_split((0.5, 0.25, 0.25), seed).split for seed in range(400)])
    share = (splits == Split.TRAIN).mean(0)
    assert np.abs(share - 0.5).max() < 0.13  # five standard deviations
    assert (splits[0] != splits[1]).any()
    assert (splits[0] == graph.draw_split((0.5, 0.25, 0.25), 0).split).all()


@pytest.mark.parametrize("labels", [np.arange(12) / 7, np.eye(3, dtype=np.bool_)[np.arange(12) % 3]])
def test_numbers_and_sets_are_split_without_regard_to_values(labels: np.ndarray) -> None:
    split = graph_of(labels).draw_split((0.5, 0.25, 0.25), 3).split
    assert (split == random_split(np.ones(12, np.bool_), (0.5, 0.25, 0.25), 3)).all()
