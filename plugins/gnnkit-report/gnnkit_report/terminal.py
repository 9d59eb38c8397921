"""A live display of training in a terminal."""

from __future__ import annotations

from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from gnnkit.leader.epochs import short
from gnnkit.leader.watch import Watch, WorkerState

REFRESH = 2  # times per second


class Display(Callback):
    """Shows progress, throughput and every worker's last step until training ends.

    Lightning's progress bar is disabled, because both would move the cursor.
    """

    def __init__(self, watch: Watch, console: Console | None = None) -> None:
        self.watch, self.console = watch, console or Console(stderr=True)
        self._live: Live | None = None

    def on_train_start(self, trainer: L.Trainer, module: Any) -> None:
        columns = MofNCompleteColumn(), BarColumn(), TimeRemainingColumn()
        self._progress = Progress("epoch", *columns, "left", "{task.description}")
        self._task = self._progress.add_task("", total=trainer.max_epochs, completed=trainer.current_epoch)
        self._live = Live(get_renderable=self.draw, console=self.console, refresh_per_second=REFRESH, transient=True)
        self._live.start()

    def draw(self) -> Group:
        """Returns the content. Called by the thread that refreshes the terminal."""
        return Group(self._progress, Text(str(self.watch.rates)), worker_table(self.watch.states))

    def on_train_epoch_end(self, trainer: L.Trainer, module: Any) -> None:
        values: dict[str, Any] = {"train_loss": self.watch.train_loss, **trainer.callback_metrics}
        text = "  ".join(
            f"{name} {float(values[name]):.4f}" for name in ("train_loss", module.task.progress) if name in values
        )
        self._progress.update(self._task, completed=trainer.current_epoch + 1, description=text)

    def on_train_end(self, trainer: L.Trainer, module: Any) -> None:
        if self._live is not None:
            self._live.stop()

    def on_exception(self, trainer: L.Trainer, module: Any, exception: BaseException) -> None:
        self.on_train_end(trainer, module)


def worker_table(states: list[WorkerState]) -> Table:
    """Creates a table of all workers' last steps, at most 80 columns wide."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    rows = [_cells(state) for state in states]
    for name in rows[0] if rows else ():
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row.values())
    return table


def _cells(state: WorkerState) -> dict[str, str]:
    """Returns a row's cells by column name."""
    return {
        "rank": f"{state.rank}",
        "step": f"{int(state.step)}",
        "longest\nin": state.phase,
        "loss": f"{state.loss:.4f}",
        "gradient\nnorm": f"{state.gradient_norm:.3g}",
        "edges": short(state.edges),
        "rows\n/s": short(state.rows_per_second),
        **{f"{kind}\nms": f"{1e3 * seconds:.1f}" for kind, seconds in state.seconds.items()},
        "MiB": f"{state.memory / 2**20:.0f}",
    }
