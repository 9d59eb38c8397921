"""The page about one run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gnnkit.result.result import without_traffic
from gnnkit.utils.documents import number
from gnnkit_report import learning, partition, schema, timeline
from gnnkit_report.charts import MOST_BARS, Part, bars, rank_names
from gnnkit_report.drawing import Figure
from gnnkit_report.page import PageSection, PageTable, Panel, format_value, save
from gnnkit_report.run import RunFiles, at, numbers
from gnnkit_report.suggestions import suggestions

MOST_ROWS = 100  # per table
_KEY = re.compile(r"((?<![\w.])[a-z_]+(?:\.[a-z_]+)*=[\w.\[\],-]*\w\]?|(?<!\w)job=verify)")
SETTINGS = (
    "strategy", "sampler", "exchange", "partition", "nodes", "grid", "world_size", "dataset", "model", "task",
    "num_parameters", "device", "seed",
)  # fmt: skip
_LAYOUT = {  # column titles, and the figure's path within a layout
    "grid": ("grid",),
    "words per column": ("words_per_column",),
    "most words of a rank": ("words", "max"),
    "words, max/mean": ("balance", "words"),
    "edges, max/mean": ("balance", "edges"),
    "training nodes, max/mean": ("balance", "train_nodes"),
    "predicted s an epoch": ("seconds",),
    "predicted MiB a rank": ("memory",),
}
_PREDICTED = {
    "seconds_per_epoch": "seconds an epoch",
    "memory": "bytes of the largest rank",
    "bytes_sent": "bytes that the busiest rank sends in a step",
}
_RESTARTS = {
    "step": "in step", "epoch": "epoch", "cause": "cause", "from_step": "went on after step", "seconds_lost": "seconds lost",
}  # fmt: skip
_CHANGES = ("before epoch", "slow ranks", "nodes moved", "ms a step", "predicted", "seconds of the change")
_HEADLINE = {"seconds_total": "s in all", "seconds_per_epoch": "s an epoch", "epochs": "epochs"}


def write(run: RunFiles, folder: Path) -> Path:
    """Writes a run's page and its figures as SVG. Returns the page's path."""
    values = _content(run)
    figures = [figure for section in values["sections"] for figure in section.figures]
    return save("run.html", figures, folder, **values)


def _content(run: RunFiles) -> dict[str, Any]:
    """Returns the template's variables."""
    result = run.result
    workers = "1 worker" if result.get("world_size") == 1 else f"{format_value(result.get('world_size'))} workers"
    return {
        "run": run,
        "title": f"{result.get('model', 'run')} on {result.get('dataset', '?')}",
        "heading": f"{result.get('model')} on {result.get('dataset')}",
        "summary": f"{result.get('strategy')} on {workers}, partition {result.get('partition')}. {result.get('device') or ''}",
        "cards": list(_cards(run)),
        "suggestions": [_KEY.split(sentence) for sentence in suggestions(run)],
        "sections": _sections(run),
        "facts": PageTable((), _facts(run), numbers=False),
        "figures": PageTable((), _other_figures(run), numbers=False),
    }


def _sections(run: RunFiles) -> list[PageSection]:
    return [
        PageSection("Learning", learning.drawings(run), [*_classes(run), *_thresholds(run)]),
        PageSection(
            "Time", timeline.drawings(run), [*_phases(run), *_predictions(run), *_stragglers(run), *_restarts(run)]
        ),
        PageSection("Partition", partition.drawings(run), [*_balance(run), *_layouts(run), *_changes(run)]),
        PageSection("Graph", schema.drawings(run), list(_types(run))),
        PageSection("Caches", list(_caches(run))),
    ]


def _cards(run: RunFiles) -> Iterator[tuple[str, str]]:
    """Yields the most important figures, and their names."""
    metrics = [name for name in map(str, run.result) if re.fullmatch(r"(test|val)_\w+", name)]
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


def _phases(run: RunFiles) -> Iterator[Panel]:
    seconds = {name: number(value) for name, value in _items(run.result.get("phases"))}
    rows = [(name, f"{value:.2f} s") for name, value in seconds.items() if value is not None]
    if rows:
        yield Panel("Phases of the run", PageTable((), rows))


def _predictions(run: RunFiles) -> Iterator[Panel]:
    """Compares the leader's predictions with the measurements."""
    predictions, measurements = run.result.get("predicted"), run.result.get("measured")
    if isinstance(predictions, Mapping) and isinstance(measurements, Mapping):
        rows = [
            (title, *_difference(number(predictions.get(name)), number(measurements.get(name))))
            for name, title in _PREDICTED.items()
        ]
        yield Panel("Predicted and measured", PageTable(("", "predicted", "measured", "difference"), rows))


def _difference(prediction: float | None, measurement: float | None) -> tuple[str, str, str]:
    """Formats both values, and the difference relative to the measurement."""
    share = "" if prediction is None or not measurement else f"{prediction / measurement - 1:+.0%}"
    return _optional(prediction), _optional(measurement), share


def _optional(value: float | None) -> str:
    return "" if value is None else format_value(value)


def _stragglers(run: RunFiles) -> Iterator[Panel]:
    factors = _items(run.result.get("stragglers"))
    rows = [(name, f"{format_value(factor)} times slower than the others") for name, factor in factors]
    if run.epochs and rows:
        yield Panel("Stragglers", PageTable((), rows, numbers=False))
    elif run.epochs:
        yield Panel("Stragglers", text="No worker was much slower than the others.")


def _balance(run: RunFiles) -> Iterator[Panel]:
    rows = [(name.replace("_", " "), format_value(value)) for name, value in _items(run.result.get("balance"))]
    cut, num_counted = number(run.partition.get("cut")), number(run.partition.get("counted_edges"))
    if cut is not None and num_counted:
        rows.append(("edges cut", f"{cut / num_counted:.1%}"))
    if rows:
        text = "Balance is the largest worker's share divided by the mean. 1 is even."
        yield Panel("Balance and cut", PageTable((), rows), text, muted=True)


def _types(run: RunFiles) -> Iterator[Panel]:
    """Lists a typed graph's node types, and the relations between them."""
    columns = {name: values for name, values in _items(run.partition.get("schema")) if isinstance(values, list)}
    for title, head, names in (
        ("Node types", ("type", "nodes"), ("node_types",)),
        ("Relations", ("from", "relation", "to", "edges"), ("relations", "edges")),
    ):
        rows = [
            [cell for part in parts for cell in (part if isinstance(part, list) else [part])]
            for parts in zip(*(columns.get(name, []) for name in names), strict=False)
        ]
        cells = [[format_value(cell) for cell in row] for row in rows[:MOST_ROWS] if len(row) == len(head)]
        if cells:
            yield Panel(title, PageTable(head, cells, sortable=True), wide=len(head) > 2)


def _layouts(run: RunFiles) -> Iterator[Panel]:
    """Lists the layouts that the leader compared, with their figures."""
    layouts = {name: figures for name, figures in _items(run.decision.get("layouts")) if isinstance(figures, Mapping)}
    layouts = _with_chosen(layouts, str(run.result.get("partition")))
    columns = {title: path for title, path in _LAYOUT.items() if any(at(layout, *path) for layout in layouts.values())}
    rows = [(name, *(_layout_cell(layout, path) for path in columns.values())) for name, layout in layouts.items()]
    reason = str(run.result["why"]) if run.result.get("why") else ""
    if len(rows) > 1 and columns:
        table = PageTable(("layout", *columns), rows, sortable=True)
        yield Panel("Layouts that the leader compared", table, reason, wide=True)
    elif reason:
        yield Panel("Why this layout", text=reason, wide=True)


def _with_chosen(layouts: dict[str, Mapping[str, Any]], name: str) -> dict[str, Mapping[str, Any]]:
    """Marks the chosen layout instead of listing it twice."""
    by_name = {key: figures for key, figures in layouts.items() if key != "chosen"}
    equal_names = [key for key, figures in by_name.items() if figures == layouts.get("chosen")]
    if not equal_names:
        return layouts
    equal_names = [name] if name in equal_names else equal_names
    return {f"{key} (chosen)" if key in equal_names else key: figures for key, figures in by_name.items()}


def _layout_cell(figures: Mapping[str, Any], path: Sequence[str]) -> str:
    """Formats a layout's figure, with memory in MiB."""
    value = at(figures, *path)
    if path[-1] == "grid" and isinstance(value, list):
        return " x ".join(map(str, value[:3]))
    figure = number(value)
    return _optional(figure / 2**20 if figure is not None and path[-1] == "memory" else figure)


def _changes(run: RunFiles) -> Iterator[Panel]:
    """Lists the changes by `leader.rebalance`."""
    if changes := _records(run.result.get("rebalanced")):
        table = PageTable(_CHANGES, [_change(change) for change in changes])
        yield Panel("Changes by leader.rebalance", table, wide=True)


def _change(change: Mapping[str, Any]) -> list[str]:
    epoch, before, after = (number(change.get(name)) or 0 for name in ("epoch", "step_before", "step_predicted"))
    amount = format_value(change.get("moved")) if change.get("unit") == "nodes" else "none, seeds"
    times = [f"{1e3 * step:.1f}" for step in (before, after)]
    slow, seconds = format_value(change.get("slow")), format_value(change.get("seconds"))
    return [format_value(epoch + 1), slow, amount, *times, seconds]


def _restarts(run: RunFiles) -> Iterator[Panel]:
    """Lists the restarts after ranks have died."""
    rows = [[format_value(record.get(name)) for name in _RESTARTS] for record in _records(run.result.get("restarted"))]
    if rows:
        yield Panel("Restarts", PageTable((*_RESTARTS.values(),), rows, numbers=False))


def _records(value: object) -> list[Mapping[str, Any]]:
    records = value if isinstance(value, list) else []
    return [record for record in records if isinstance(record, Mapping)][:MOST_ROWS]


def _items(value: object) -> list[tuple[str, Any]]:
    items = list(value.items())[:MOST_ROWS] if isinstance(value, Mapping) else []
    return [(str(key), item) for key, item in items]


def _classes(run: RunFiles) -> Iterator[Panel]:
    """Lists each class's figures on the test nodes."""
    figures = [(name, dict(_items(values))) for name, values in _items(at(run.result, "per_class", "test"))]
    names = list(dict.fromkeys(key for _, values in figures for key in values))
    if names:
        rows = [(name, *(format_value(values.get(key)) for key in names)) for name, values in figures]
        yield Panel(
            f"Test {learning.rows_of(run)} by class", PageTable(("class", *names), rows, sortable=True), wide=True
        )


def _thresholds(run: RunFiles) -> Iterator[Panel]:
    """Lists a class's precision and recall by threshold, and marks the chosen one."""
    table, thresholds = run.result.get("thresholds"), dict(_items(run.result.get("threshold")))
    if not isinstance(table, Mapping):
        return
    name = str(table.get("class"))
    splits = {split: _records(table.get(split)) for split in ("val", "test") if table.get(split)}
    columns = [(split, figure) for split in splits for figure in ("precision", "recall", "f1", "predicted")]
    rows = []
    for records in zip(*splits.values(), strict=False):
        level = number(records[0].get("threshold"))
        mark = " (chosen)" if level is not None and level == number(thresholds.get(name)) else ""
        cells = (dict(zip(splits, records, strict=True))[split].get(figure) for split, figure in columns)
        rows.append((f"{format_value(level)}{mark}", *map(format_value, cells)))
    if rows:
        head = ("probability from", *(f"{split} {figure}" for split, figure in columns))
        text = "Nodes are predicted as this class from a probability on. Thresholds are those of equal steps of recall."
        yield Panel(f"Precision and recall of {name} by threshold", PageTable(head, rows), text, wide=True)


def _caches(run: RunFiles) -> Iterator[Figure]:
    """Draws each rank's cache hit rate."""
    rates = numbers(at(run.result, "cache_hits", "rate"))
    if rates:
        caption = "Share of other ranks' rows that a rank found in its cache."
        parts = [Part("in the cache", tuple(max(rate, 0) for rate in rates[:MOST_BARS]), "c8")]
        yield bars("caches", "Cache hits", caption, rank_names(len(rates)), parts, "share")


def _facts(run: RunFiles) -> list[tuple[str, str]]:
    values = {**run.result, "folder": str(run.folder)}
    return [(name, format_value(values[name])) for name in (*SETTINGS, "folder", "versions") if name in values]


def _other_figures(run: RunFiles) -> list[tuple[str, str]]:
    names = {*SETTINGS, "versions", "command", "why", "confusion", "per_class", "thresholds", "phases"}
    return [(name, format_value(value)) for name, value in without_traffic(run.result).items() if name not in names]
