"""Data sets of DGL's GraphBolt as a data set of gnnkit."""

from __future__ import annotations

from collections.abc import Sequence

from gnnkit.dataset.base import Dataset, read_whole
from gnnkit.dataset.pieces import GraphPieces
from gnnkit.dataset.readers import name_list
from gnnkit.graph import Graph
from gnnkit.ranges import local_path
from gnnkit_graphbolt.pieces import GraphBoltPieces


class GraphBolt(Dataset):
    """A folder of GraphBolt's `OnDiskDataset`, before it is preprocessed.

    `metadata.yaml` names files of edges, features and sets of nodes. Nodes and edges
    have one type. Edges are an .npy [2, num_edges], or a CSV of sources and
    destinations without a header. Features of `feature_data` are .npy, and are
    concatenated in their order, node features and edge features. The sets of a task
    hold `seeds` and `labels` as .npy, and are the split. Other nodes have no label.

    Torch files (.pt) hold pickled objects, and are refused.
    """

    def __init__(
        self,
        root: str,
        task: str | None = None,
        ignore: Sequence[str] = (),
        symmetrize: bool = False,
        row_normalize: bool = False,
    ) -> None:
        """Checks the options.

        Args:
            root: the folder, which holds `metadata.yaml`.
            task: name of the task whose sets are read. Default: the only one.
            ignore: names of `feature_data` that are left out.
            symmetrize: add missing reverse edges. Default: no.
            row_normalize: divide each node's features by their sum. Default: no.
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
