"""The contract of data sets that are read in pieces."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from gnnkit_formats.pieces import GraphPieces, Room
from gnnkit_testing.dataset import check_same

from gnnkit.dataset.base import Dataset
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit_import.datasets import in_pieces
from gnnkit_import.graph import import_graph
from gnnkit_import.passes import ALONE, WorkGroup
from gnnkit_import.progress import Journal, ProgressReporter


def check_pieces(dataset: Dataset, graph: Graph) -> None:
    """Checks that a data set's pieces and stretches are bitwise equal to its graph.

    Pieces that raise `UserError` are not compared. Raises `AssertionError` for the
    first violation.

    Args:
        graph: What `load` has returned.
    """
    if (pieces := in_pieces(dataset)) is not None:
        with suppress(UserError):
            _compare(graph, pieces, ALONE, "the pieces give")
            if pieces.is_divided:
                _compare(graph, pieces, WorkGroup(3), "the stretches give")


def _compare(graph: Graph, pieces: GraphPieces, group: WorkGroup, who: str) -> None:
    with TemporaryDirectory() as folder:
        room, journal = Room(1 << 28, 1, bucket=16), Journal(Path(folder), "")
        reporter = ProgressReporter(quiet=True)
        imported = import_graph(pieces, Path(folder), room, journal, reporter, group=group)
        check_same(graph, Graph.load(imported), who)
