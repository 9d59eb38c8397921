"""A picture of a typed graph: node types, and an arrow for each relation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gnnkit.leader.epochs import short
from gnnkit.utils.documents import number
from gnnkit_report.charts import clipped
from gnnkit_report.drawing import CHAR, WIDTH, Figure, Point, Shape, box, line, text
from gnnkit_report.run import RunFiles

_MOST_TYPES = 40  # in a picture
_IN_ROW = 5  # boxes side by side
_WIDTH, _HEIGHT, _GAP = 82.0, 34.0, 46.0  # of a box, and between rows
_BACK = "rev_"  # prefix of inverse relations, as in PyG


@dataclass(frozen=True, slots=True)
class Arrow:
    """A relation from one node type to another."""

    source: str
    name: str
    target: str
    count: float  # edges


def drawings(run: RunFiles) -> list[Figure]:
    """Draws the node types of a run's graph, unless there is one or too many."""
    schema = run.partition.get("schema")
    values = schema if isinstance(schema, Mapping) else {}
    counts = dict(_read_types(values.get("node_types")))
    arrows = [arrow for arrow in _read_arrows(values) if {arrow.source, arrow.target} <= counts.keys()]
    if not 1 < len(counts) <= _MOST_TYPES or not arrows:
        return []
    arrows = [arrow for arrow in arrows if not _is_inverse(arrow, arrows)]
    places = _place([*counts], arrows)
    height = max(y for _, y in places.values()) + _HEIGHT + 28
    shapes = [shape for index, arrow in enumerate(arrows) for shape in _draw_arrow(arrow, places, index)]
    for name, (x, y) in places.items():
        note = f"{name}: {counts[name]:,.0f} nodes"
        shapes += [
            box(x - _WIDTH / 2, y, _WIDTH, _HEIGHT, "grid", note=note),
            text(x, y + 14, clipped(name, int(_WIDTH / CHAR)), "middle", "ink"),
            text(x, y + 28, short(counts[name]), "middle"),
        ]
    caption = "Node types with their nodes, and relations with their edges. Inverse relations are left out."
    return [Figure("schema", "Types and relations", caption, height, tuple(shapes))]


def _read_types(values: object) -> Iterator[tuple[str, float]]:
    for entry in values if isinstance(values, list) else ():
        if isinstance(entry, list) and len(entry) == 2 and (count := number(entry[1])) is not None:
            yield str(entry[0]), count


def _read_arrows(values: Mapping[str, object]) -> Iterator[Arrow]:
    relations, counts = (part if isinstance(part := values.get(key), list) else [] for key in ("relations", "edges"))
    for relation, edges in zip(relations, counts, strict=False):
        if isinstance(relation, list) and len(relation) == 3 and (count := number(edges)) is not None:
            source, name, target = map(str, relation)
            yield Arrow(source, name, target, count)


def _is_inverse(arrow: Arrow, arrows: Sequence[Arrow]) -> bool:
    name = arrow.name.removeprefix(_BACK)
    return name != arrow.name and any(
        (peer.source, peer.name, peer.target) == (arrow.target, name, arrow.source) for peer in arrows
    )


def _place(names: Sequence[str], arrows: Sequence[Arrow]) -> dict[str, Point]:
    """Returns the middle of each box's upper edge. Arrows point down if they can."""
    levels = dict.fromkeys(names, 0)
    for _ in names:  # the longest path
        for arrow in arrows:
            if arrow.source != arrow.target and levels[arrow.source] + 1 < len(names):
                levels[arrow.target] = max(levels[arrow.target], levels[arrow.source] + 1)
    rows: list[list[str]] = []
    for level in sorted(set(levels.values())):
        members = [name for name in names if levels[name] == level]
        num_rows = -(-len(members) // _IN_ROW)
        rows += [members[row::num_rows] for row in range(num_rows)]
    return {
        name: (WIDTH * (column + 0.5) / len(row), 8 + depth * (_HEIGHT + _GAP))
        for depth, row in enumerate(rows)
        for column, name in enumerate(row)
    }


def _draw_arrow(arrow: Arrow, places: Mapping[str, Point], index: int) -> Iterator[Shape]:
    """Yields a line with a head and the number of edges, apart from its neighbours."""
    (x, y), (to_x, to_y) = places[arrow.source], places[arrow.target]
    shift = (index % 5 - 2) * 9.0
    note = f"{arrow.source} → {arrow.target} by {arrow.name}: {arrow.count:,.0f} edges"
    if to_y > y:
        begin, end, side = (x + shift, y + _HEIGHT), (to_x + shift, to_y), -6.0
    elif to_y < y:
        begin, end, side = (x + shift, y), (to_x + shift, to_y + _HEIGHT), 6.0
    else:  # side by side, or the same type
        begin, end, side = (x - shift - 12, y + _HEIGHT), (to_x + 30, y + _HEIGHT), 6.0
    low = max(begin[1], end[1]) + 14
    path = [begin, end] if to_y != y else [begin, (begin[0], low), (end[0], low), end]
    yield line(path, "muted", 1.0, note)
    yield line([(end[0] - 4, end[1] + side), end, (end[0] + 4, end[1] + side)], "muted", 1.0)
    share = 0.3 + 0.1 * (index % 4)
    label_x, label_y = (a + (b - a) * share for a, b in zip(begin, end, strict=True))
    yield text(label_x + 3, label_y + 3 if to_y != y else low + 10, short(arrow.count), size=9.0)
