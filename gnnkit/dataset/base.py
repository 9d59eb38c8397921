"""Where graphs come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from gnnkit.graph import Graph, Ids, Split


class Dataset(ABC):
    """A source of one graph. Constructor arguments are the keys of its YAML.

    `load` may be slow: it runs in one process, and what it returns is cut into shards there.
    """

    @abstractmethod
    def load(self) -> Graph:
        """The whole graph. Raises `ValueError` that names file, field and position for bad data, and the config key for
        bad arguments."""


@contextmanager
def blame(what: str) -> Iterator[None]:
    """Puts the config key or file at fault before the message of a `ValueError`."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None


def random_split(labels: Ids, train: float, val: float, seed: int) -> npt.NDArray[np.int8]:
    """The shares `train` and `val` of the labelled nodes, drawn by `seed`, and TEST for the others; NONE without label."""
    labelled = np.flatnonzero(labels >= 0)
    order = np.random.default_rng(seed % 2**64).permutation(labelled)
    ends = [round(len(order) * train), round(len(order) * (train + val))]
    split = np.zeros(len(labels), np.int8)
    for value, nodes in zip((Split.TRAIN, Split.VAL, Split.TEST), np.split(order, ends), strict=True):
        split[nodes] = value
    return split
