"""Draws the layouts and the strategies as SVG, from grids and lists of boxes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import product

from gnnkit.partition import Grid

_STYLE = (
    "<style>svg{font:13px sans-serif;color:#333}text{fill:#333}line{stroke:#333}rect{fill:#fff;stroke:#888}"
    "rect.own{fill:#c8e6c9}.name{font-weight:bold}@media(prefers-color-scheme:dark){svg{color:#ddd}text{fill:#ddd}"
    "line{stroke:#ddd}rect{fill:#222}rect.own{fill:#1b5e20}}</style>"
)  # of a file, which has no page around it
Lanes = dict[str, Sequence[str]]  # boxes of each worker, from left to right
SIDE, GAP, MARGIN = 40, 4, 90
WIDTH, HEIGHT = 128, 40  # of a box

# For each strategy: what the workers do, and the places between two boxes where
# something travels between workers, with what travels.
STRATEGIES: dict[str, tuple[Lanes, dict[int, str]]] = {
    "vertex_centric": (
        {
            "worker 0": ["x of nodes 0-4", "layer 1", "layer 2", "loss", "step"],
            "worker 1": ["x of nodes 5-9", "layer 1", "layer 2", "loss", "step"],
        },
        {0: "rows", 1: "rows", 3: "gradients"},
    ),
    "individual_sample": (
        {
            "worker 0": ["seeds 3 7", "draw, read x", "layers", "loss", "step"],
            "worker 1": ["seeds 1 9", "draw, read x", "layers", "loss", "step"],
        },
        {3: "gradients"},
    ),
    "preset_workload": (
        {
            "worker 0": ["share of 0-4", "layers", "loss", "repeat N times", "step"],
            "worker 1": ["share of 5-9", "layers", "loss", "repeat N times", "step"],
        },
        {3: "gradients"},
    ),
    "joint_sample": (
        {
            "worker 0": ["seeds 3", "draw own part", "layer 1", "layer 2", "loss", "step"],
            "worker 1": ["seeds 7 9", "draw own part", "layer 1", "layer 2", "loss", "step"],
        },
        {0: "ids", 1: "rows", 2: "rows", 4: "gradients"},
    ),
}


def layout(grid: Grid) -> str:
    """Draws which rank holds which edges, and what reaches the ranks of the first cell.

    Rows of the matrix are destinations, columns are sources. A label is the rank that
    owns the nodes, a cell names the ranks that hold the edges.
    """
    side = MARGIN + grid.num_cells * SIDE + 10
    parts = [*_owners(grid), *_cells(grid)]
    said = f"Edges of a graph on a grid of {grid}: {grid.world_size} ranks"
    return _svg(max(side, 320), side, said, parts)


def _owners(grid: Grid) -> Iterator[str]:
    """Draws the owners of sources above, and of destinations at the left."""
    for place, (column, row) in enumerate(product(range(grid.cols), range(grid.rows))):
        gathered = "gather" if column == 0 and row != 0 else "own" if column == row == 0 else "other"
        x = MARGIN + place * SIDE
        yield _box(x, MARGIN - 44, SIDE - GAP, 30, _ranks(grid, column * grid.rows + row), gathered)
    for place, (row, column) in enumerate(product(range(grid.rows), range(grid.cols))):
        reduced = "reduce" if row == 0 and column != 0 else "own" if column == row == 0 else "other"
        y = MARGIN + place * SIDE
        yield _box(MARGIN - 50, y, 36, SIDE - GAP, _ranks(grid, column * grid.rows + row), reduced)
    yield _text(MARGIN, 24, "owner of the source: rows of x", "start")
    yield f'<g transform="rotate(-90 18 {MARGIN})">{_text(18, MARGIN, "owner of the destination", "end")}</g>'


def _cells(grid: Grid) -> Iterator[str]:
    for row, column in product(range(grid.rows), range(grid.cols)):
        x, y = MARGIN + column * grid.rows * SIDE, MARGIN + row * grid.cols * SIDE
        kind = "own" if row == column == 0 else "other"
        size = (grid.rows * SIDE - GAP, grid.cols * SIDE - GAP)
        yield _box(x, y, *size, _ranks(grid, column * grid.rows + row), kind)


def _ranks(grid: Grid, cell: int) -> str:
    """Names the ranks of a cell, one for each slice."""
    return ",".join(str(cell * grid.slices + part) for part in range(grid.slices))


def strategy(name: str) -> str:
    """Draws what two workers do in a step, and what travels between the workers."""
    lanes, travels = STRATEGIES[name]
    parts: list[str] = []
    step = WIDTH + 50
    for lane, (worker, boxes) in enumerate(lanes.items()):
        y = 20 + lane * 110
        parts.append(_text(4, y + HEIGHT / 2 + 5, worker, "start"))
        for place, label in enumerate(boxes):
            parts.append(_box(80 + place * step, y, WIDTH, HEIGHT, label, "own" if label == "step" else "other"))
            if place:
                parts.append(_arrow(80 + place * step - 46, y + HEIGHT / 2, 80 + place * step - 4, y + HEIGHT / 2))
    for place, what in travels.items():
        x = 80 + place * step + WIDTH + 23
        parts.append(_arrow(x, 20 + HEIGHT + 4, x, 126) + _arrow(x - 8, 126, x - 8, 20 + HEIGHT + 4))
        parts.append(_text(x + 8, 98, what, "start"))
    number = max(map(len, lanes.values()))
    return _svg(80 + number * step - 40, 190, f"A step of {name} on two workers", parts)


def readme() -> str:
    """Draws a step of two strategies, as a file with colours of its own."""
    width, parts = 80 + 5 * (WIDTH + 50) - 40, []
    for place, name in enumerate(("vertex_centric", "individual_sample")):
        inner = strategy(name).partition("</defs>")[2].removesuffix("</svg>")
        parts.append(f'<g transform="translate(0 {place * 200})"><g transform="translate(0 24)">{inner}</g>')
        parts.append(f'<text class="name" x="4" y="20">{name}</text></g>')
    return _with_colours(_svg(width, 405, "A step of two workers", parts))


def types() -> str:
    """Draws the node types and relations of a small graph, and its ranges of ids."""
    parts: list[str] = []
    for label, y in (("HeteroData", 30), ("gnnkit's ids", 120), ("two workers", 180), ("predictions", 240)):
        parts.append(_text(4, y + HEIGHT / 2 + 5, label, "start"))
    for place, name in enumerate(("10 authors", "60 papers", "6 subjects")):
        parts.append(_box(110 + place * 240, 30, WIDTH, HEIGHT, name, "own" if "papers" in name else "other"))
    for place, name in enumerate(("writes", "about")):
        left, right = 110 + place * 240 + WIDTH + 6, 110 + (place + 1) * 240 - 6
        parts.append(_arrow(left, 42, right, 42) + _text((left + right) / 2, 36, name, "middle"))
        parts.append(_arrow(right, 58, left, 58) + _text((left + right) / 2, 76, f"rev_{name}", "middle"))
    ranges = (("papers 0-59", 360), ("authors 60-69", 128), ("subjects 70-75", 120))
    x = 110.0
    for name, width in ranges:
        parts.append(_box(x, 120, width - GAP, HEIGHT, name, "own" if "papers" in name else "other"))
        x += width
    parts.append(_box(110, 180, 228, HEIGHT, "worker 0: nodes 0-37", "other"))
    parts.append(_box(342, 180, 372, HEIGHT, "worker 1: nodes 38-75", "other"))
    parts.append(_box(110, 240, 604, HEIGHT, "a row for each node: rows 0-59 are those of the papers", "other"))
    return _with_colours(_svg(730, 290, "A graph of three node types as one range of ids", parts))


def _with_colours(drawn: str) -> str:
    """Adds the colours of light and dark pages to a picture, for a file."""
    drawn = drawn.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return drawn.replace("<defs>", f"{_STYLE}<defs>", 1)


def _svg(width: float, height: float, said: str, parts: Sequence[str]) -> str:
    head = '<marker id="tip" markerWidth="8" markerHeight="8" refX="6" refY="3" orient="auto">'
    tip = f'<defs>{head}<path d="M0,0 L6,3 L0,6 z" fill="currentColor"/></marker></defs>'
    box = f'viewBox="0 0 {width:g} {height:g}" style="max-width:{width:g}px"'
    return f'<svg class="picture" role="img" aria-label="{escape(said)}" {box}>{tip}{"".join(parts)}</svg>'


def _box(x: float, y: float, width: float, height: float, label: str, kind: str) -> str:
    shape = f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3"/>'
    return shape + _text(x + width / 2, y + height / 2 + 5, label, "middle")


def _text(x: float, y: float, label: str, anchor: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(label)}</text>'


def _arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<line x1="{x:g}" y1="{y:g}" x2="{to_x:g}" y2="{to_y:g}" marker-end="url(#tip)"/>'
