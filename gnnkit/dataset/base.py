"""The source of a graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from gnnkit.checks import one_line
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Ids, Split


class Dataset(ABC):
    """A source of one graph. Constructor arguments are the keys of the YAML file.

    `load` may be slow, and runs in one process only. The same process cuts the graph.
    """

    @abstractmethod
    def load(self) -> Graph:
        """Returns the whole graph.

        Raises `UserError` that names file, field and position for bad data, and the
        configuration key for bad arguments.
        """


@contextmanager
def blame(what: str) -> Iterator[None]:
    """Puts a configuration key or file before the message of an error, in one line."""
    try:
        yield
    except ValueError as error:
        raise UserError(one_line(f"{what}: {error}")) from error


def random_split(labels: Ids, train: float, val: float, seed: int) -> npt.NDArray[np.int8]:
    """Draws the values of `Graph.split`. Nodes without label get NONE.

    Args:
        labels: [num_nodes] class of each node, -1 for none.
        train: share of the labelled nodes that train.
        val: share that validates. The others test.
        seed: of the draw.
    """
    labelled = np.flatnonzero(labels >= 0)
    order = np.random.default_rng(seed % 2**64).permutation(labelled)
    ends = [round(len(order) * train), round(len(order) * (train + val))]
    split = np.zeros(len(labels), np.int8)
    for value, nodes in zip((Split.TRAIN, Split.VAL, Split.TEST), np.split(order, ends), strict=True):
        split[nodes] = value
    return split
