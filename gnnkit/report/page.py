"""The page of one run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gnnkit.report import learning, partition, timeline
from gnnkit.report.charts import Part, bars, rank_names
from gnnkit.report.drawing import Figure
from gnnkit.report.markup import Markup, element, joined, table
from gnnkit.report.png import png
from gnnkit.report.run import Run, number, numbers
from gnnkit.report.script import HASH, SCRIPT
from gnnkit.report.style import STYLE
from gnnkit.report.suggestions import suggestions
from gnnkit.report.svg import svg
from gnnkit.storage import write_atomically

PAGE, FIGURES = "report.html", "figures"
# No network, and no script but ours. A page that is served asks its own address again.
_POLICY = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src '{HASH}'"
_SERVED = f"{_POLICY}; connect-src 'self'"
_REFRESH = 3  # seconds between two looks of a served page
_KEY = re.compile(r"(?<![\w.])[a-z_]+(?:\.[a-z_]+)*=[\w.\[\],-]*\w\]?|(?<!\w)job=verify")
_RUN = (
    "strategy",
    "sampler",
    "exchange",
    "partition",
    "nodes",
    "grid",
    "world_size",
    "dataset",
    "model",
    "task",
    "num_parameters",
    "device",
    "seed",
)
_LAYOUT = {  # columns of the table, and where a layout has the figure
    "grid": ("grid",),
    "words per column": ("words_per_column",),
    "most words of a rank": ("words", "max"),
    "words, max/mean": ("balance", "words"),
    "edges, max/mean": ("balance", "edges"),
    "training nodes, max/mean": ("balance", "train_nodes"),
    "predicted s an epoch": ("seconds",),
    "predicted MiB a rank": ("memory",),
}
_FORESEEN = {  # figures of `predicted` and `measured`, for people
    "seconds_per_epoch": "seconds an epoch",
    "memory": "bytes of the largest rank",
    "bytes_sent": "bytes that the busiest rank sends in a step",
}
_HEADLINE = (("seconds_total", "s in all"), ("seconds_per_epoch", "s an epoch"), ("epochs", "epochs"))


def write(run: Run, folder: Path) -> Path:
    """Writes the page of a run and PNGs of its figures. Returns the page's path.

    Args:
        run: The run.
        folder: Where the page goes.
    """
    body, figures = _content(run)
    return save(_title(run), body, figures, folder)


def served_page(run: Run, status: str) -> str:
    """Returns the page of a run that goes on. The page looks for news by itself.

    Args:
        run: What the run folder holds so far.
        status: How far the run is, in a line.
    """
    body, _ = _content(run)
    told = element("p", status, id="live", data_seconds=_REFRESH)
    return _document(_title(run), [told, *body], _SERVED)


def _title(run: Run) -> str:
    return f"{run.result.get('model', 'run')} on {run.result.get('dataset', '?')}"


def _content(run: Run) -> tuple[list[Markup], list[Figure]]:
    """Returns the content of the page of a run, and its figures."""
    sections = [
        ("learning", "Learning", learning.drawings(run)),
        ("time", "Time", timeline.drawings(run)),
        ("partition", "Partition", partition.drawings(run)),
        ("caches", "Caches", _caches(run)),
    ]
    figures = [figure for _, _, drawn in sections for figure in drawn]
    more = {
        "learning": [],
        "time": [_phases(run), _foreseen(run), _stragglers(run), _restarted(run)],
        "partition": [_balance(run)],
    }
    tables = {"learning": [_classes(run)], "partition": [_layouts(run), _rebalanced(run)]}
    body = [
        _head(run),
        _next(run),
        *(section(title, drawn, more.get(name, ()), tables.get(name, ())) for name, title, drawn in sections),
        _what_was_run(run),
    ]
    return body, figures


def save(title: str, body: Iterable[object], figures: Sequence[Figure], folder: Path, *, paints: bool = True) -> Path:
    """Writes a page, and a PNG of each figure.

    Args:
        title: Title of the page.
        body: Content of the page.
        figures: The figures of the content.
        folder: Where the files go.
        paints: Whether to paint PNGs, which takes longer. Default: yes.
    """
    write_atomically(folder / PAGE, _document(title, body, _POLICY).encode())
    if not paints:
        return folder / PAGE
    (folder / FIGURES).mkdir(exist_ok=True)
    for figure in figures:
        (folder / FIGURES / f"{figure.name}.png").write_bytes(png(figure))
    return folder / PAGE


def _document(title: str, body: Iterable[object], policy: str) -> str:
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"gnnkit: {title}"),
        element("style", Markup(STYLE)),
    )
    script = element("script", Markup(SCRIPT))  # the parser knows no escapes in there
    return Markup("<!doctype html>") + element("html", head, element("body", *body, script), lang="en")


def section(title: str, drawn: Sequence[Figure], more: Iterable[Markup] = (), tables: Iterable[Markup] = ()) -> Markup:
    """Returns a titled part of the page, empty where there is nothing in it.

    Args:
        title: Title of the part.
        drawn: Figures.
        more: Panels after the figures. Default: none.
        tables: Panels as wide as the page, below. Default: none.
    """
    panels = [element("div", each, class_="panel") for each in more if each]
    wide = [element("div", each, class_="panel wide") for each in tables if each]
    narrow = [*map(_figure, drawn), *panels]
    if not narrow and not wide:
        return Markup()
    columns = [element("div", *narrow, class_="figures")] if narrow else []
    return element("section", element("h2", title), *columns, *wide)


def _figure(figure: Figure) -> Markup:
    """Returns a figure, with a choice where there are several layers."""
    names = [layer.name for layer in figure.layers] if len(figure.layers) > 1 else []
    choices = [
        element("label", element("input", type="radio", name=figure.name, **({} if index else {"checked": ""})), name)
        for index, name in enumerate(names)
    ]
    choice = [element("p", "Colour: ", *choices, class_="choice")] if choices else []
    caption = element("figcaption", figure.caption)
    return element("figure", element("h3", figure.title), *choice, svg(figure), caption, id=figure.name)


def spelt(value: Any) -> str:
    """Spells a figure of a result in a line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {spelt(item)}" for key, item in value.items())
    if isinstance(value, list):
        return "[" + ", ".join(map(spelt, value[:40])) + (", …]" if len(value) > 40 else "]")
    if value is None or isinstance(value, bool | str):
        return "none" if value is None else str(value)
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.4g}"
    return f"{value:,.0f}" if number(value) is not None else str(value)


def _head(run: Run) -> Markup:
    result = run.result
    cards = [(spelt(run.number(name)), words) for name, words in _HEADLINE if run.number(name) is not None]
    measured = [name for name in result if re.fullmatch(r"(test|val)_\w+", str(name)) and run.number(name) is not None]
    cards = [(f"{run.number(name):.4g}", str(name)) for name in measured if not name.endswith("_loss")][:4] + cards
    if (best := learning.best_of(run)) is not None:
        cards.append((f"{best.epoch:.0f}", f"best epoch, by {best.name}"))
    chosen = (
        f"{result.get('strategy')} on {spelt(result.get('world_size'))} workers, partition {result.get('partition')}"
    )
    return joined(
        [
            element("h1", f"{result.get('model')} on {result.get('dataset')}"),
            element("p", f"{chosen}. {result.get('device') or ''}", class_="muted"),
            _notes(run),
            element("div", *(_card(value, words) for value, words in cards), class_="cards"),
        ]
    )


def _card(value: str, words: str) -> Markup:
    return element("div", element("b", value), element("span", words), class_="card")


def _notes(run: Run) -> Markup:
    return joined(element("p", f"Note: {note}.", class_="muted") for note in run.notes)


def _next(run: Run) -> Markup:
    found = suggestions(run)
    if not found:
        return joined(
            [element("h2", "What to try next"), element("p", "Nothing stands out in the figures of this run.")]
        )
    return joined([element("h2", "What to try next"), element("ul", *(element("li", _marked(text)) for text in found))])


def _marked(text: str) -> Markup:
    """Sets the keys of a sentence in the type of commands."""
    parts, last = [], 0
    for found in _KEY.finditer(text):
        parts += [text[last : found.start()], element("code", found[0])]
        last = found.end()
    return joined([*parts, text[last:]])


def _phases(run: Run) -> Markup:
    phases = run.result.get("phases")
    rows = [(name, f"{number(value):.2f} s") for name, value in _items(phases) if number(value) is not None]
    return joined([element("h3", "Phases of the run"), table([], rows)]) if rows else Markup()


def _foreseen(run: Run) -> Markup:
    """Shows what the leader predicted beside what came."""
    told, came = run.result.get("predicted"), run.result.get("measured")
    if not isinstance(told, Mapping) or not isinstance(came, Mapping):
        return Markup()
    rows = [(title, *_both(number(told.get(name)), number(came.get(name)))) for name, title in _FORESEEN.items()]
    return joined([element("h3", "Predicted and measured"), table(["", "predicted", "measured", "difference"], rows)])


def _both(told: float | None, came: float | None) -> tuple[str, str, str]:
    """Spells a prediction, what came, and the difference as a share of what came."""
    share = "" if told is None or not came else f"{told / came - 1:+.0%}"
    return "" if told is None else spelt(told), "" if came is None else spelt(came), share


def _stragglers(run: Run) -> Markup:
    rows = [
        (name, f"{spelt(value)} times slower than the others") for name, value in _items(run.result.get("stragglers"))
    ]
    found = table([], rows, numbers=False) if rows else element("p", "No worker was much slower than the others.")
    return joined([element("h3", "Stragglers"), found]) if run.epochs else Markup()


def _balance(run: Run) -> Markup:
    rows = [(str(name).replace("_", " "), spelt(value)) for name, value in _items(run.result.get("balance"))]
    cut, counted = number(run.partition.get("cut")), number(run.partition.get("counted_edges"))
    if cut is not None and counted:
        rows.append(("edges cut", f"{cut / counted:.1%}"))
    words = element("p", "Balance is the largest share of a worker over the mean. 1 is even.", class_="muted")
    return joined([element("h3", "Balance and cut"), words, table([], rows)]) if rows else Markup()


def _layouts(run: Run) -> Markup:
    """Lists the layouts that the leader compared, each with its figures."""
    layouts = _items(run.decision.get("layouts"))
    given = {str(name): figures for name, figures in layouts if isinstance(figures, Mapping)}
    found = _one_chosen(given, str(run.result.get("partition")))
    columns = {title: path for title, path in _LAYOUT.items() if any(_in(each, path) for each in found.values())}
    rows = [(name, *(_cell(each, path) for path in columns.values())) for name, each in found.items()]
    why = element("p", run.result["why"]) if run.result.get("why") else ""
    if not rows or not columns:
        return joined([element("h3", "Why this layout"), why]) if why else Markup()
    listed = table(["layout", *columns], rows, sortable=True)
    return joined([element("h3", "Layouts that the leader compared"), why, listed])


def _one_chosen(layouts: dict[str, Mapping[str, Any]], named: str) -> dict[str, Mapping[str, Any]]:
    """Marks the layout that was chosen, where one of a name has its figures too.

    Args:
        layouts: Figures by name, among these `chosen`.
        named: The name that the run gave.
    """
    chosen = layouts.get("chosen")
    same = [name for name, figures in layouts.items() if name != "chosen" and figures == chosen]
    if not same:
        return layouts
    same = [named] if named in same else same
    names = {name: f"{name} (chosen)" if name in same else name for name in layouts if name != "chosen"}
    return {shown: layouts[name] for name, shown in names.items()}


def _in(figures: Mapping[str, Any], path: Sequence[str]) -> Any:
    found: Any = figures
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _cell(figures: Mapping[str, Any], path: Sequence[str]) -> Any:
    """Spells a figure of a layout, memory in MiB."""
    value = _in(figures, path)
    if path[-1] == "grid" and isinstance(value, list):
        return " x ".join(map(str, value[:3]))
    if (found := number(value)) is None:
        return ""
    return spelt(found / 2**20 if path[-1] == "memory" else found)


def _rebalanced(run: Run) -> Markup:
    """Lists how `leader.rebalance` dealt out the work anew."""
    found = run.result.get("rebalanced")
    changes = [each for each in found if isinstance(each, Mapping)][:100] if isinstance(found, list) else []
    if not changes:
        return Markup()
    head = ["before epoch", "slow ranks", "nodes moved", "ms a step", "predicted", "seconds of the change"]
    return joined([element("h3", "Changes by leader.rebalance"), table(head, map(_change, changes))])


def _change(change: Mapping[str, Any]) -> list[str]:
    epoch, before, after = (number(change.get(name)) for name in ("epoch", "step_before", "step_predicted"))
    moved = spelt(change.get("moved")) if change.get("unit") == "nodes" else "none, seeds"
    times = [f"{1e3 * (each or 0):.1f}" for each in (before, after)]
    return [spelt((epoch or 0) + 1), spelt(change.get("slow")), moved, *times, spelt(change.get("seconds"))]


def _restarted(run: Run) -> Markup:
    """Lists the restarts after ranks have died."""
    found = run.result.get("restarted")
    rows = [
        [spelt(each.get(name)) for name in ("step", "epoch", "cause", "from_step", "seconds_lost")]
        for each in (found if isinstance(found, list) else [])[:100]
        if isinstance(each, Mapping)
    ]
    head = ["in step", "epoch", "cause", "went on after step", "seconds lost"]
    return joined([element("h3", "Restarts"), table(head, rows, numbers=False)]) if rows else Markup()


def _items(value: object) -> list[tuple[Any, Any]]:
    return list(value.items())[:100] if isinstance(value, Mapping) else []


def _classes(run: Run) -> Markup:
    """Lists the figures of each class, on the test nodes."""
    splits = run.result.get("per_class")
    classes = _items(splits.get("test")) if isinstance(splits, Mapping) else []
    found = [(name, dict(_items(figures))) for name, figures in classes]
    names = list(dict.fromkeys(key for _, figures in found for key in figures))
    if not names:
        return Markup()
    rows = [(name, *(spelt(figures.get(key)) for key in names)) for name, figures in found]
    return joined([element("h3", "Test nodes by class"), table(["class", *names], rows, sortable=True)])


def _caches(run: Run) -> list[Figure]:
    """Draws the share of rows that caches held, by rank."""
    hits = run.result.get("cache_hits")
    rates = numbers(hits.get("rate")) if isinstance(hits, Mapping) else []
    if not rates:
        return []
    caption = "Share of the rows of other ranks that a rank's cache held."
    parts = [Part("in the cache", tuple(max(rate, 0) for rate in rates[:64]), "c8")]
    return [bars("caches", "Cache hits", caption, rank_names(len(rates))[:64], parts, "share")]


def _what_was_run(run: Run) -> Markup:
    result = run.result
    rows = [(name, spelt(result[name])) for name in _RUN if name in result]
    rows += [("folder", str(run.folder)), *([("versions", spelt(result["versions"]))] if "versions" in result else [])]
    shown = {*_RUN, "versions", "command", "why", "confusion", "per_class", "phases"}
    rest = [(name, spelt(value)) for name, value in result.items() if name not in shown]
    parts = [element("h2", "What was run")]
    if result.get("command"):
        parts.append(element("pre", result["command"]))
    parts += [table([], rows, numbers=False), _folded("All figures", table([], rest, numbers=False))]
    if run.config:
        parts.append(_folded("Configuration", element("pre", run.config)))
    return joined(parts)


def _folded(title: str, content: Markup) -> Markup:
    return element("details", element("summary", title), content)
