"""Where graphs come from."""

from abc import ABC, abstractmethod

from gnnkit.graph import Graph


class Dataset(ABC):
    """A source of one graph. Constructor arguments are the keys of its YAML; `load` may be slow and runs in one process."""

    @abstractmethod
    def load(self) -> Graph:
        """The whole graph. Raises `ValueError` that names file, field and position for bad data, and the config key for
        bad arguments."""
