"""Data sets of DGL's GraphBolt."""

from __future__ import annotations

from collections.abc import Sequence

from gnnkit.dataset.base import Dataset, name_list, read_whole
from gnnkit.dataset.importing.graphbolt import GraphBoltPieces
from gnnkit.dataset.pieces import GraphPieces
from gnnkit.graph import Graph
from gnnkit.ranges import local_path


class GraphBolt(Dataset):
    """A folder of GraphBolt's `OnDiskDataset`, before it is preprocessed.

    `metadata.yaml` names files of edges, features and sets of nodes. Nodes and edges
    are of one type. Edges are an .npy [2, num_edges], or a CSV of sources and
    destinations without a line of names. Features of `feature_data` are .npy, and stand
    side by side in their order, those of nodes and those of edges. The sets of a task
    hold `seeds` and `labels` as .npy, and are the split. Other nodes have no label.

    Files of torch (.pt) hold pickled objects, and are refused.
    """

    def __init__(
        self,
        root: str,
        task: str | None = None,
        ignore: Sequence[str] = (),
        symmetrize: bool = False,
        row_normalize: bool = False,
    ) -> None:
        """Keeps the options.

        Args:
            root: the folder, which holds `metadata.yaml`.
            task: name of the task whose sets are read. Default: the only one.
            ignore: names of `feature_data` that are left out.
            symmetrize: add the reverse edges that are missing. Default: no.
            row_normalize: divide each node's features by the sum. Default: no.
        """
        self.root = local_path("dataset.root", root)
        self.task = task
        self.ignore = name_list("dataset.ignore", ignore)
        self.symmetrize = symmetrize
        self.row_normalize = row_normalize

    def in_pieces(self) -> GraphPieces:
        return GraphBoltPieces(self)

    def load(self) -> Graph:
        return read_whole(self.in_pieces())
