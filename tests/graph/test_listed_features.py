"""Event files of JODIE and the Temporal Graph Benchmark, made here in their form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gnnkit_formats.edges import EdgeFolder

from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.task.link_prediction import LinkPrediction

HEADER = "user_id,item_id,timestamp,state_label,comma_separated_list_of_features"
NAME = "tgbl-wiki_edgelist_v2.csv"
RNG = np.random.default_rng(0)
USER, ITEM, TIME = (*RNG.integers(0, [[6], [4]], (2, 60)), np.sort(RNG.integers(0, 90, 60)))
ROWS = RNG.integers(-9, 9, (60, 3)) / 8


def write(folder: Path, header: str = HEADER, extra: str = "", end: str = "\n") -> EdgeFolder:
    cells = zip(USER, ITEM, TIME, ROWS.tolist(), strict=True)
    lines = [f"{user},{item},{time}.0,{int(user == 3)}," + ",".join(map(str, row)) for user, item, time, row in cells]
    (folder / NAME).write_text(end.join([header, *lines[:-1], lines[-1] + extra]) + end, newline="")
    return EdgeFolder(str(folder), edges=NAME, time="timestamp", edge_label="state_label")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_last_name_stands_for_all_further_cells(end: str, tmp_path: Path) -> None:
    graph = write(tmp_path, end=end).load()
    assert graph.edge_positions is not None
    order = np.argsort(graph.edge_positions)
    np.testing.assert_array_equal(graph.edge_features[order], ROWS)  # type: ignore[index]
    np.testing.assert_array_equal(graph.edge_time[order], TIME)  # type: ignore[index]
    np.testing.assert_array_equal(graph.edge_labels[order], USER == 3)  # type: ignore[index]
    assert graph.edge_feature_names == ("feature_0", "feature_1", "feature_2")
    assert graph.schema.node_types == (("user", len(np.unique(USER))), ("item", len(np.unique(ITEM))))


SPACED = HEADER.replace(",", ", ")
QUOTED = ",".join(f'"{name}"' for name in HEADER.split(","))


@pytest.mark.parametrize(
    ("text", "features"),
    [
        (f'{HEADER}\n"u,0",0,1,0,.5,2\n1,1,2,0,.5,2\n', 2),
        (f'{HEADER}\n"u\n0",0,1,0,.5,2\n1,1,2,0,.5,2\n', 2),
        (f"{QUOTED}\n0,0,1,0,.5,2\n1,1,2,0,.5,2\n", 2),
        (f"{SPACED}\n0,0,1,0,.5,2\n1,1,2,0,.5,2\n", 2),
        (f"\ufeff{HEADER}\n\n0,0,1,0,.5,2\n1,1,2,0,.5,2\n", 2),
        (f"{HEADER}\n0,0,1,0,.5\n1,1,2,0,.5\n", 1),
        (f"{HEADER}\n0,0,1,0\n1,1,2,0\n", 0),
    ],
    ids=["comma", "line break", "quoted header", "blanks", "empty line", "one", "none"],
)
def test_features_are_counted_in_cells_of_the_first_row(text: str, features: int, tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text(text)
    graph = EdgeFolder(str(tmp_path), time="timestamp").load()
    assert graph.edge_feature_names == ("state_label", *(f"feature_{number}" for number in range(features)))
    np.testing.assert_array_equal(graph.edge_features, [[0, 0.5, 2][: features + 1]] * 2)
    assert graph.schema.node_types == (("user", 2), ("item", 2))


def test_a_name_too_long_for_the_counting_of_cells_is_read(tmp_path: Path) -> None:
    name = "x" * 200_000
    (tmp_path / "edges.csv").write_text(f"src,dst,{name}\n0,1,.5\n")
    assert EdgeFolder(str(tmp_path)).load().edge_feature_names == (name,)


def test_rows_of_other_lengths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Expected 7 columns, got 8"):
        write(tmp_path, extra=",1").load()
    with pytest.raises(UserError, match="Expected 5 columns, got 7"):
        write(tmp_path, header=HEADER.replace("comma_separated_list_of_", "")).load()


def test_given_negative_destinations_rank_the_held_out_events(tmp_path: Path) -> None:
    graph: Graph = write(tmp_path).load().split_by_time([0.7, 0.15, 0.15])
    _, links = LinkPrediction().prepare(graph)
    first, count = graph.schema.type_sizes

    def others(events: np.ndarray) -> np.ndarray:
        return first + (events[:, 1:] - first + np.arange(1, count)) % count

    graph = graph.evolve(val_negatives=others(links.val.pairs), test_negatives=others(links.test.pairs))
    _, links = LinkPrediction(top_k=None).prepare(graph)
    assert links.evaluation.count == count - 1
    np.testing.assert_array_equal(links.test.negatives, others(links.test.pairs))
