"""Predicted words equal definition and formulas, and stay below CAGNET's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partition_cases import GRIDS, cases, complete_graph, destinations, graphs, make_graph, random_graph

from gnnkit.graph import Graph
from gnnkit.partition import Grid, Partition, StepCounts, Traffic, column_shares, cut_all, make_grid, measure
from gnnkit.partition.by_id import Contiguous


def traffic_of(graph: Graph, partition: Partition) -> Traffic:
    return measure(graph, partition).traffic


def received(graph: Graph, partition: Partition, width: int) -> list[dict[str, list[int]]]:
    """By the definition: numbers from each other rank, for each rank and step."""
    grid, shares = partition.grid, column_shares(width, partition.grid.slices)
    owner_cell = partition.node_rank // grid.slices
    gather_rows, reduce_rows = set(), set()
    for source, target, cell in zip(
        graph.csc.indices, destinations(graph), partition.cells_of_edges(graph), strict=True
    ):
        gather_rows.add((cell, owner_cell[source], source))
        reduce_rows.add((owner_cell[target], cell, target))

    def rows(needed: set[tuple[int, int, int]], cell: int) -> list[int]:
        return [sum(n[:2] == (cell, other) for n in needed) for other in range(grid.num_cells) if other != cell]

    steps = []
    num_owned = np.bincount(partition.node_rank, minlength=grid.world_size)
    for rank in range(grid.world_size):
        cell, slice_ = divmod(rank, grid.slices)
        other_slices = [other for other in range(grid.slices) if other != slice_]
        steps.append(
            {
                "slice": [num_owned[cell * grid.slices + other] * shares[slice_] for other in other_slices],
                "gather": [count * shares[slice_] for count in rows(gather_rows, cell)],
                "reduce": [count * shares[slice_] for count in rows(reduce_rows, cell)],
                "unslice": [num_owned[rank] * shares[other] for other in other_slices],
            }
        )
    return steps


def assert_steps(actual: StepCounts, expected: list[dict[str, int]]) -> None:
    for name in ("slice", "gather", "reduce", "unslice"):
        assert getattr(actual, name).tolist() == [steps[name] for steps in expected], name
    assert actual.total.tolist() == [sum(steps.values()) for steps in expected]


@pytest.mark.slow
@given(cases(), st.integers(0, 9))
def test_words_and_messages_are_those_of_the_definition(case: tuple[Graph, Partition], width: int) -> None:
    reference, traffic = received(*case, width), traffic_of(*case)
    assert_steps(traffic.words(width), [{k: sum(v) for k, v in steps.items()} for steps in reference])
    assert_steps(traffic.messages(width), [{k: int(np.count_nonzero(v)) for k, v in s.items()} for s in reference])


@pytest.mark.slow
@given(cases())
def test_the_backward_pass_is_the_reversed_graph_on_the_same_ranks(case: tuple[Graph, Partition]) -> None:
    graph, partition = case
    reversed_csc, position = graph.csc.transpose()
    reversed_graph = Graph(reversed_csc, graph.features, graph.labels, graph.split)
    cells = partition.cells_of_edges(graph)[position]
    backward = traffic_of(reversed_graph, Partition(partition.node_rank, cells, partition.grid))
    forward = traffic_of(graph, partition).transposed()
    np.testing.assert_array_equal(forward.gather_rows, backward.gather_rows)
    np.testing.assert_array_equal(forward.reduce_rows, backward.reduce_rows)


@pytest.mark.slow
@given(cases())
def test_self_loops_add_no_rows(case: tuple[Graph, Partition]) -> None:
    for shard in cut_all(*case):
        loop_shard = shard.with_self_loops()
        np.testing.assert_array_equal(loop_shard.halo, shard.halo)
        np.testing.assert_array_equal(loop_shard.partial, shard.partial)


@pytest.mark.exhaustive
@given(cases())
def test_rows_come_only_from_ranks_that_share_an_edge(case: tuple[Graph, Partition]) -> None:
    graph, partition = case
    cell = partition.node_rank // partition.grid.slices
    edge_ids = partition.cells_of_edges(graph)
    touching = {
        *zip(edge_ids, cell[graph.csc.indices], strict=True),
        *zip(cell[destinations(graph)], edge_ids, strict=True),
    }
    for pair in traffic_of(graph, partition).peers():
        cells = pair.rank // partition.grid.slices, pair.peer // partition.grid.slices
        assert pair.messages > 0
        if cells[0] == cells[1]:  # they hold the same edges
            assert pair.rank != pair.peer
            continue
        assert pair.rank % partition.grid.slices == pair.peer % partition.grid.slices
        assert cells in touching
        assert pair.gather_rows + pair.reduce_rows > 0


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_words_equal_the_formula_where_every_row_is_needed(grid: Grid) -> None:
    rows, cols, slices, workers = grid.rows, grid.cols, grid.slices, grid.world_size
    n, f = 2 * workers, 3 * slices
    words = traffic_of(complete_graph(n), Contiguous().assign(complete_graph(n), grid)).words(f)
    assert (words.gather * workers == n * f * (rows - 1)).all()
    assert (words.reduce * workers == n * f * (cols - 1)).all()
    assert (words.slice * workers * slices == n * f * (slices - 1)).all()
    assert (words.unslice == words.slice).all()


def cagnet_words(name: str, workers: int, copies: int, n: int, m: int, f: int) -> float:
    """Words per rank of CAGNET's algorithms (SC'20), w = 1 word per nonzero."""
    if name == "1d":
        return (workers - 1) / workers * n * f
    if name == "1.5d":
        return (1 - copies / workers) * n * f / copies + 2 * (copies - 1) / workers * n * f
    q = round(workers ** (1 / (2 if name == "2d" else 3)))
    row_gather = (q - 1) / workers * n * f
    return (q - 1) / workers * ((1 if name == "2d" else 2) * n * f + m) + row_gather


@pytest.mark.exhaustive
@given(
    st.sampled_from(
        [("1d", 3, 1), ("1d", 8, 1), ("1.5d", 8, 2), ("1.5d", 6, 3), ("2d", 4, 1), ("2d", 9, 1), ("3d", 8, 1)]
    ),
    st.data(),
)
def test_words_are_never_above_cagnets(layout: tuple[str, int, int], data: st.DataObject) -> None:
    name, workers, copies = layout
    example = data.draw(graphs())
    n = -(-max(example.num_nodes, 1) // workers) * workers
    graph = make_graph(example.csc.indices, destinations(example), n)
    grid = make_grid(name, workers, copies if name == "1.5d" else None)
    words = traffic_of(graph, Contiguous().assign(graph, grid)).words(12).total
    assert words.max() <= cagnet_words(name, workers, copies, n, graph.num_edges, 12) + 1e-9


@pytest.mark.parametrize(
    ("name", "workers", "copies", "ratio"), [("1.5d", 8, 2, 0.801), ("2d", 4, 1, 0.73), ("3d", 8, 1, 0.80)]
)
def test_words_on_a_random_graph_of_mean_degree_50_beat_cagnets(
    name: str, workers: int, copies: int, ratio: float
) -> None:
    n, f = 4000, 64
    graph = random_graph(n, 50 * n)
    words = traffic_of(graph, Contiguous().assign(graph, make_grid(name, workers))).words(f).total.max()
    share = words / cagnet_words(name, workers, copies, n, 50 * n, f)
    print(f"{name}, {workers} workers: {share:.4f} of CAGNET's words")
    assert share <= ratio


def test_columns_are_shared_as_by_array_split() -> None:
    for width in range(20):
        for slices in range(1, 9):
            reference = [len(part) for part in np.array_split(np.arange(width), slices)]
            assert column_shares(width, slices).tolist() == reference
