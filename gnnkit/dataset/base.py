"""Where graphs come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from gnnkit.graph import Graph


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
