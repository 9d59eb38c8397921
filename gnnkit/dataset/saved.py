"""A graph written by `Graph.save`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gnnkit.dataset.base import Dataset, blame, finished, with_split
from gnnkit.graph import Graph, read_split
from gnnkit.utils.checks import whole
from gnnkit.utils.ranges import local_path


class Saved(Dataset):
    """A folder written by `Graph.save`, which is memory-mapped.

    Choose it to reuse a graph that was built in Python: it opens without parsing, and
    workers share the pages.
    """

    def __init__(
        self,
        root: str,
        symmetrize: bool = False,
        row_normalize: bool = False,
        split: Sequence[float] | Mapping[str, object] | None = None,
        seed: int = 0,
    ) -> None:
        """Creates the data set.

        Args:
            root: The folder.
            symmetrize: Add missing reverse edges. Default: no.
            row_normalize: Divide each node's features by their sum. Default: no.
            split: Shares of the labelled nodes for training, validation and test, if
                the graph has no split, or by time as for `dataset=edges`. Default: no
                split is drawn.
            seed: Seed of this split.
        """
        self.root = local_path("dataset.root", root)
        self.symmetrize = symmetrize
        self.row_normalize = row_normalize
        self.split = read_split("dataset.split", split)
        self.seed = whole("dataset.seed", seed, 0)

    def load(self) -> Graph:
        with blame(f"dataset.root={self.root}"):
            graph = with_split(Graph.load(self.root), self.split, self.seed)
        return finished(graph, self.symmetrize, self.row_normalize)
