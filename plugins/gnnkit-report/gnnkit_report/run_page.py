"""The page about one run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gnnkit.config import leaves
from gnnkit.result.result import without_traffic
from gnnkit.utils.documents import number
from gnnkit_report import learning, partition, timeline
from gnnkit_report.charts import MOST_BARS, Chart, Part, bars, rank_names
from gnnkit_report.page import Page, PageSection, PageTable, Panel, format_value
from gnnkit_report.run import RunFiles, at, numbers
from gnnkit_report.suggestions import suggestions

MOST_ROWS = 100  # per table
SETTINGS = (
    "strategy", "sampler", "exchange", "partition", "nodes", "grid", "world_size", "dataset", "model", "task",
    "num_parameters", "device", "seed",
)  # fmt: skip
_ELSEWHERE = {*SETTINGS, "versions", "command", "why", "confusion", "per_class", "thresholds", "phases"}
_THRESHOLDS = "Precision and recall of a class if it is predicted from a probability on"
_TABLES = {  # by section: a path in `result.json`, a title and a text
    "Learning": (
        (("per_class", "test"), "Test rows by class", ""),
        (("thresholds", "val"), "Validation rows by threshold", _THRESHOLDS),
        (("thresholds", "test"), "Test rows by threshold", _THRESHOLDS),
        (("threshold",), "Chosen thresholds", ""),
    ),
    "Time": (
        (("phases",), "Phases of the run, in seconds", ""),
        (("stragglers",), "Stragglers", "How many times slower than the others a worker was"),
        (("restarted",), "Restarts", ""),
        (("rebalanced",), "Changes by leader.rebalance", ""),
    ),
    "Partition": ((("balance",), "Balance", "The largest worker's share divided by the mean. 1 is even"),),
}
_HEADLINE = {"seconds_total": "s in all", "seconds_per_epoch": "s an epoch", "epochs": "epochs"}


def write(run: RunFiles, folder: Path) -> Path:
    """Writes a run's page. Returns its path."""
    result = run.result
    workers = "1 worker" if result.get("world_size") == 1 else f"{format_value(result.get('world_size'))} workers"
    summary = (
        f"{result.get('strategy')} on {workers}, partition {result.get('partition')}. {result.get('device') or ''}"
    )
    title = f"{result.get('model')} on {result.get('dataset')}"
    return Page(title, summary, _sections(run), run.notes, list(_cards(run))).save(folder)


def _sections(run: RunFiles) -> list[PageSection]:
    items = suggestions(run) or ["Nothing stands out in the figures of this run."]
    return [
        PageSection("What to try next", items=items),
        PageSection("Learning", learning.drawings(run), list(_panels(run, "Learning"))),
        PageSection("Time", timeline.drawings(run), [*_panels(run, "Time"), *_predictions(run)]),
        PageSection("Partition", partition.drawings(run), [*_panels(run, "Partition"), *_layouts(run), *_types(run)]),
        PageSection("Caches", list(_caches(run))),
        PageSection("What was run", panels=list(_settings(run))),
    ]


def _cards(run: RunFiles) -> Iterator[tuple[str, str]]:
    """Yields the most important figures, as text, with their names."""
    metrics = [str(name) for name in run.result if str(name).startswith(("test_", "val_"))]
    main = (learning.main_figure(run) or "").partition("_")[2]
    kinds = [main, *(name.partition("_")[2] for name in metrics)]
    metrics.sort(key=lambda name: kinds.index(name.partition("_")[2]))  # both splits of the main metric first
    values = [(name, run.number(name)) for name in metrics if not name.endswith("_loss")]
    yield from [(f"{value:.4g}", name) for name, value in values if value is not None][:4]
    for name, unit in _HEADLINE.items():
        if (value := run.number(name)) is not None:
            yield format_value(value), unit
    if (best := learning.best_of(run)) is not None:
        yield f"{best.epoch:.0f}", f"best epoch, by {best.name}"


def _items(value: object) -> dict[str, Any]:
    """Returns a mapping's items, or a list's by number, up to `MOST_ROWS`."""
    if isinstance(value, list):
        value = {str(index): item for index, item in enumerate(value, 1)}
    items = list(value.items())[:MOST_ROWS] if isinstance(value, Mapping) else []
    return {str(key): item for key, item in items}


def _pairs(values: Mapping[str, Any], *, numbers: bool = True) -> PageTable:
    """Returns a table of names and values."""
    return PageTable((), [(name, format_value(value)) for name, value in values.items()], numbers=numbers)


def _panel(title: str, value: object, text: str = "") -> Iterator[Panel]:
    """Yields a table of values by name, or of records with a column for each key."""
    items = _items(value)
    records = {name: record for name, record in items.items() if isinstance(record, Mapping)}
    keys = list(dict.fromkeys(key for record in records.values() for key in record))
    if keys:
        cells = [[name, *(format_value(row.get(key, "")) for key in keys)] for name, row in records.items()]
        yield Panel(title, PageTable(["", *map(str, keys)], cells, sortable=True), text, wide=True)
    elif items and not records:
        yield Panel(title, _pairs(items), text)


def _panels(run: RunFiles, section: str) -> Iterator[Panel]:
    """Yields the tables of `_TABLES` that the result has values for."""
    for path, title, text in _TABLES[section]:
        yield from _panel(title, at(run.result, *path), text)


def _predictions(run: RunFiles) -> Iterator[Panel]:
    """Compares the leader's predictions with the measurements."""
    values = {name: run.result.get(name) for name in ("predicted", "measured")}
    if all(values.values()):
        yield from _panel("Predicted and measured", values)


def _layouts(run: RunFiles) -> Iterator[Panel]:
    """Lists the layouts that the leader compared, with their figures."""
    layouts = {
        name: {key: value for key, value in leaves(figures) if key == "grid" or number(value) is not None}
        for name, figures in _items(run.decision.get("layouts")).items()
        if isinstance(figures, Mapping)
    }
    if run.result.get("why"):
        yield Panel("Why this layout", text=str(run.result["why"]), wide=True)
    if len(layouts) > 1:
        yield from _panel("Layouts that the leader compared", layouts)


def _types(run: RunFiles) -> Iterator[Panel]:
    """Lists a typed graph's node types, and the relations between them."""
    types, relations, edges = (at(run.partition, "schema", key) for key in ("node_types", "relations", "edges"))
    counts = edges if isinstance(edges, list) else []
    triples = relations if isinstance(relations, list) else []
    rows = [[*triple, count] for triple, count in zip(triples, counts, strict=False) if isinstance(triple, list)]
    yield from _schema_table("Node types", ("type", "nodes"), types)
    yield from _schema_table("Relations", ("from", "relation", "to", "edges"), rows)


def _schema_table(title: str, head: Sequence[str], rows: object) -> Iterator[Panel]:
    values = rows[:MOST_ROWS] if isinstance(rows, list) else []
    cells = [list(map(format_value, row)) for row in values if isinstance(row, list) and len(row) == len(head)]
    if cells:
        yield Panel(title, PageTable(head, cells, sortable=True), wide=len(head) > 2)


def _caches(run: RunFiles) -> Iterator[Chart]:
    """Draws each rank's cache hit rate."""
    rates = numbers(at(run.result, "cache_hits", "rate"))
    if rates:
        caption = "Share of other ranks' rows that a rank found in its cache."
        parts = [Part("in the cache", [max(rate, 0) for rate in rates[:MOST_BARS]], "c8")]
        yield bars("caches", "Cache hits", caption, rank_names(len(rates)), parts, "")


def _settings(run: RunFiles) -> Iterator[Panel]:
    """Lists what was run, and everything that was recorded."""
    values = {**run.result, "folder": str(run.folder)}
    facts = {name: values[name] for name in (*SETTINGS, "folder", "versions") if name in values}
    others = {name: value for name, value in without_traffic(run.result).items() if name not in _ELSEWHERE}
    yield Panel(code=str(run.result.get("command") or ""), table=_pairs(facts, numbers=False), wide=True)
    yield Panel("All figures", _pairs(others, numbers=False), folded=True)
    if run.config:
        yield Panel("Configuration", code=run.config, folded=True)
