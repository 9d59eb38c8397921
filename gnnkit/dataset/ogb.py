"""Node data sets of the Open Graph Benchmark (OGB)."""

from __future__ import annotations

from gnnkit.dataset.base import Dataset, blame, finished
from gnnkit.graph import Graph
from gnnkit.utils.ranges import local_path


class Ogb(Dataset):
    """A folder downloaded by the package `ogb`, such as `dataset/ogbn_arxiv`.

    See `Graph.from_ogb`. The package itself is not required.
    """

    def __init__(
        self,
        root: str,
        split: str | None = None,
        add_inverse_edge: bool | None = None,
        symmetrize: bool = False,
        row_normalize: bool = False,
    ) -> None:
        """Creates the data set.

        Args:
            root: The folder that contains `raw` and `split`.
            split: Folder in `split`. Default: the only one.
            add_inverse_edge: Also add each edge reversed. Default: as `ogb` does for
                this name.
            symmetrize: Add missing reverse edges, as most models for ogbn-arxiv do.
                Default: no.
            row_normalize: Divide each node's features by their sum. Default: no.
        """
        self.root = local_path("dataset.root", root)
        self.split = split
        self.add_inverse_edge = add_inverse_edge
        self.symmetrize = symmetrize
        self.row_normalize = row_normalize

    def load(self) -> Graph:
        with blame(f"dataset.root={self.root}"):
            graph = Graph.from_ogb(self.root, split=self.split, add_inverse_edge=self.add_inverse_edge)
        return finished(graph, self.symmetrize, self.row_normalize)
