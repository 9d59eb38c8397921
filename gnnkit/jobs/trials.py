"""Short training runs of a few configurations, of which the best one is chosen."""

from __future__ import annotations

import csv
import io
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnkit import config
from gnnkit.config import keys
from gnnkit.config.settings import Choice, Settings, settle, with_choice
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.jobs import dispatch
from gnnkit.jobs.order import Order
from gnnkit.launch.phases import say
from gnnkit.launch.processes import run_in_child
from gnnkit.launch.watchdog import Patience
from gnnkit.prepare.inputs import filled
from gnnkit.prepare.transform import is_table
from gnnkit.storage import write_atomically
from gnnkit.task import Task

FILE = "trials.csv"
MAX_EPOCHS, PATIENCE = 300, 50  # of a trial, and of the configuration that is written
MONITOR = "val_loss"
MACRO = "val_macro_f1"  # judges uneven classes, as the mean of all classes
_MOST, _LEAST = 1 / 3, 0.5  # of the time, that a trial takes; of the last trial's seconds, to begin another
Keys = Mapping[str, Any]  # values by key, as on the command line

# What won somewhere among 20 configurations, on public graphs and on made-up tables.
# Where neighbours tell little, dropout 0.2 wins. Bags of words want more than 0.5.
_GCN: Keys = {"model": "gcn", "model.hidden": 64, "model.dropout": 0.5, "trainer.weight_decay": 5e-4}
_SAGE: Keys = {**_GCN, "model": "sage"}
_GAT: Keys = {"model": "gat", "model.hidden": 8, "model.dropout": 0.6, "trainer.weight_decay": 5e-4}
_SHY: Keys = {"model.dropout": 0.8, "trainer.weight_decay": 1e-3}
_ROW: Keys = {"features.scale": "row"}
_LEARNED: Keys = {**_SAGE, "inputs": "learned"}  # where neighbours tell more than columns
_RELATIONS: tuple[Keys, ...] = tuple(
    {"model": "rgcn", "types": "read", "trainer.weight_decay": decay} for decay in (0, 5e-4)
)
_TABLE: tuple[Keys, ...] = (
    _SAGE,
    _GCN,
    _LEARNED,
    {**_SAGE, "model.dropout": 0.2},
    {**_SAGE, "model.num_layers": 3},
    {**_SAGE, "model.norm": "batch"},
    _GAT,
    {**_GCN, "model.norm": "batch"},
    {**_SAGE, "model.hidden": 256, "trainer.weight_decay": 0},
)
_WORDS: tuple[Keys, ...] = (
    {**_GCN, **_ROW},
    _GCN,
    {**_GCN, **_SHY, **_ROW},
    {**_SAGE, **_ROW},
    {**_GCN, "trainer.weight_decay": 0},
    {**_GAT, **_ROW},
    _SAGE,
    _GAT,
)


_FEW = 0.2  # share of numbers that are not 0, of rows that a unit sum suits
_COUNTS: tuple[Keys, ...] = (  # of words that most nodes have
    _GCN,
    {**_GCN, "trainer.weight_decay": 0},
    {**_SAGE, **_ROW},
    _GAT,
    {**_GCN, "model.dropout": 0.8},
    _SAGE,
    {**_GCN, **_ROW},
)


@dataclass(frozen=True, slots=True)
class Trial:
    """A configuration that was tried, and how well it did."""

    keys: Keys
    score: float | None  # the figure that judges, on the nodes that validate. None: refused
    loss: float | None  # on the same nodes
    test: float | None  # the same figure on the nodes that test, which chooses nothing
    epochs: int
    seconds: float
    remark: str = ""

    @property
    def title(self) -> str:
        """Spells the configuration for people."""
        name, *rest = (str(value) if key == "model" else f"{key.rpartition('.')[2]}={keys.plain(value)}" for key, value in self.keys.items())  # fmt: skip
        return " ".join([name, *rest])


@dataclass(frozen=True, slots=True)
class Trials:
    """What was tried within the time, in order, and which one is best."""

    task: Task
    figure: str  # that judges, such as val_accuracy
    tried: tuple[Trial, ...]
    num_planned: int
    why_ended: str = ""

    @property
    def best(self) -> Trial | None:
        """The best score, if any trial has one."""
        return next((each for each in self._ordered if each.score is not None), None)

    @property
    def _ordered(self) -> list[Trial]:
        """Best first. Equal scores are judged by the loss, then by the order."""
        sign = 1 if self.task.is_lower_better(self.figure) else -1
        return sorted(self.tried, key=lambda each: (each.score is None, sign * (each.score or 0), each.loss or 0.0))

    @property
    def held_back(self) -> str:
        """The name of the figure on the nodes that test."""
        return _test_of(self.figure)

    def lines(self) -> list[str]:
        """Says for people what was tried, best first."""
        judged = f"{self.figure.removeprefix('val_')} of each trial"
        judged += ", as classes are uneven" if self.figure != self.task.progress else ""
        told = [f"{'val':>7} {'test':>7} {'epochs':>6} {'s':>6}  {judged}"]
        for each in self._ordered:
            numbers = " ".join("-".rjust(7) if value is None else f"{value:7.4f}" for value in (each.score, each.test))
            told.append(
                f"{numbers} {each.epochs:6d} {each.seconds:6.1f}  {' '.join([each.title, each.remark]).strip()}"
            )
        end = f": {self.why_ended}" if self.why_ended else ""
        return [*told, f"{len(self.tried)} of {self.num_planned} trials{end}"]

    def save(self, folder: Path) -> None:
        """Writes `trials.csv`, a line for each trial in the order of the trials."""
        names = list(dict.fromkeys(key for each in self.tried for key in each.keys))
        buffer = io.StringIO()
        writer = csv.writer(buffer)
        writer.writerow([*names, self.figure, MONITOR, self.held_back, "epochs", "seconds", "remark"])
        for each in self.tried:
            values = [each.keys.get(name, "") for name in names]
            row = [each.score, each.loss, each.test, each.epochs, round(each.seconds, 2), each.remark]
            writer.writerow([*values, *row])
        write_atomically(folder / FILE, buffer.getvalue().encode())


def candidates(graph: Graph, inputs: str) -> tuple[Keys, ...]:
    """Returns the configurations to try, those first that win most often.

    Args:
        graph: The graph.
        inputs: The configuration key.
    """
    if inputs != "features":
        found = tuple(each for each in _TABLE if not learns(each))
    elif is_table(graph):
        found = _TABLE
    else:
        found = _WORDS if filled(graph.features) < _FEW else _COUNTS
    if graph.schema.several:
        relations = _RELATIONS if graph.num_relations > 1 else ()
        found = (*relations, *({**each, "types": "ignore"} for each in found))
    return found


def run(
    settings: Settings,
    graphs: Mapping[bool, Callable[[], Graph]],
    fixed: Keys,
    planned: tuple[Keys, ...],
    usual: bool,
    *,
    uneven: bool = False,
) -> Trials:
    """Trains each configuration in a process of its own, while the time allows it.

    A trial takes a third of the time at most, and begins where half the seconds of the
    last one are left. Whatever the clock ends has the best model until then. An
    interrupt ends the trials, and what was tried until then counts.

    Args:
        settings: The configuration of job=init, with the minutes.
        graphs: Makes the graph that trains, with reverse edges (True) and without.
        fixed: Keys of all trials.
        planned: The configurations, in order.
        usual: Whether trials read reverse edges. Where both kinds are there, the best
            configuration is tried with the other one too.
        uneven: Whether some classes are much larger than others, so that the mean over
            classes judges. Default: no.
    """
    begun, allowed = time.monotonic(), 60 * settings.init.minutes
    tried: list[Trial] = []
    task: Task = _settings(settings, fixed, {}, allowed).task.create()
    figure = MACRO if uneven and MACRO in task.names else task.progress
    count, ended = len(planned) + (len(graphs) > 1), ""
    made = {usual: graphs[usual]()}

    def found() -> Trials:
        return Trials(task, figure, tuple(tried), count, ended)

    def others() -> Iterator[tuple[Keys, bool]]:
        yield from ((each, usual) for each in planned)
        best = found().best
        if len(graphs) > 1 and best is not None:
            yield {**best.keys, "dataset.symmetrize": not usual}, not usual

    try:
        for each, both in others():
            left = allowed - (time.monotonic() - begun)
            if tried and tried[-1].seconds * _LEAST > left:
                ended = f"init.minutes={settings.init.minutes:g} allows no more"
                break
            if both not in made:
                made[both] = graphs[both]()
            tried.append(_try(settings, made[both], figure, fixed, each, max(min(left, allowed * _MOST), 1.0)))
            last = tried[-1]
            score = last.remark if last.score is None else f"{figure} {last.score:.4f}"
            say(f"[{len(tried)} of {count}] {last.title}: {score} in {last.seconds:.1f} s")
    except KeyboardInterrupt:
        ended = "interrupted, and the best until then counts"
        say(ended)
    return found()


def _test_of(figure: str) -> str:
    return figure.replace("val_", "test_", 1)


def _try(settings: Settings, graph: Graph, figure: str, fixed: Keys, tried: Keys, seconds: float) -> Trial:
    """Trains one configuration, at most so many seconds."""
    begun = time.monotonic()
    own = {key: value for key, value in tried.items() if not key.startswith("dataset.")}
    with tempfile.TemporaryDirectory(prefix="gnnkit-trial-") as folder:
        try:
            order = Order(_settings(settings, fixed, own, seconds), graph, folder=Path(folder) / "run")
            dispatch.preload(order)
            log, patience = Path(folder) / "log", Patience.of(settings.timeout)
            figures = run_in_child(_figures, order, figure, log, always=True, patience=patience)
        except UserError as error:
            return Trial(tried, None, None, None, 0, time.monotonic() - begun, f"refused: {error}")
    remark = "" if figures["stopped"] is None or "trainer.max_time" not in figures["stopped"] else "ended by the clock"
    taken = time.monotonic() - begun
    test = figures[_test_of(figure)]
    return Trial(tried, figures[figure], figures.get(MONITOR), test, figures["epochs"], taken, remark)


def _settings(settings: Settings, fixed: Keys, tried: Keys, seconds: float) -> Settings:
    """Makes the settings of one trial."""
    given: dict[str, Any] = {
        "job": "train",
        "strategy": "vertex_centric",
        "workers": 1,
        "comm": "threads",
        "logger": "none",
        "report": False,
        "seed": settings.seed,
        "cache": False,
        "write": [],
        "trainer.max_time": seconds,
        "trainer.checkpoint": False,
        "trainer.progress_bar": False,
        **training(),
        **{key: value for key, value in fixed.items() if not (learns(tried) and key.startswith("features."))},
        **tried,
    }
    made = settle(config.compose([f"{key}={keys.plain(value)}" for key, value in given.items()]))
    return with_choice(made, Choice("dataset", "graph", {}))


def training() -> dict[str, Any]:
    """Returns how long a trial trains, and the configuration that is written."""
    return {
        "trainer.max_epochs": MAX_EPOCHS,
        "trainer.monitor": MONITOR,
        "trainer.patience": PATIENCE,
        "trainer.check_val_every_n_epoch": 1,
    }


def learns(tried: Keys) -> bool:
    """Says whether a configuration leaves the columns of features unread."""
    return tried.get("inputs") == "learned"


def _figures(order: Order, figure: str, log: Path) -> dict[str, Any]:
    """Trains in a process of its own, which says nothing to the terminal."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with log.open("wb") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    result = dispatch.start(order)
    wanted = (figure, MONITOR, _test_of(figure), "epochs", "stopped")
    return {name: result.get(name) for name in wanted}
