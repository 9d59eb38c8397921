"""The bar that a notebook shows during training."""

from __future__ import annotations

import contextlib
import html
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gnnkit.config.settings import Settings
from gnnkit.leader.epochs import duration
from gnnkit.result.result import EPOCHS
from gnnkit.utils.documents import parse_json

_INTERVAL = 0.5  # seconds between updates


class Bar:
    """A progress bar with losses and the best epoch, from the run folder's files."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        """Shows an empty bar.

        Args:
            settings: The run's settings.
            folder: The run folder.
        """
        from IPython import display as notebook

        task = settings.task.create()
        self.main, self._sign = task.progress, -1 if task.is_lower_better(task.progress) else 1
        self._path, self._max, self._place = folder / EPOCHS, settings.trainer.max_epochs, 0
        self._names = tuple(dict.fromkeys(("train_loss", "val_loss", self.main)))
        self._figures: dict[str, float] = {}
        self._first, self._epoch, self._begun = 0, 0, 0.0  # epochs from 1, seconds of `time.monotonic`
        self._best: tuple[float, int] | None = None  # value and epoch of the best evaluation
        self._next = 0.0
        show: Any = notebook.display
        self._handle = show(self._shown(), raw=True, display_id=True)

    def look(self) -> None:
        """Updates the bar, if the last update is long enough ago."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _INTERVAL
            self.show()

    def show(self) -> None:
        """Updates the bar."""
        begins = not self._epoch
        if self._read():
            if begins:  # a resumed run has earlier epochs
                self._first, self._begun = self._epoch, time.monotonic()
            self._handle.update(self._shown(), raw=True)

    @property
    def text(self) -> str:
        """The progress of the run, in words."""
        if not self._epoch:
            return f"epoch 0/{self._max}  preparing the graph and the workers"
        parts = [
            f"epoch {self._epoch}/{self._max}",
            *(f"{name} {self._figures[name]:.4f}" for name in self._names if name in self._figures),
        ]
        if self._best is not None:
            parts.append(f"best {self._best[0]:.4f} in epoch {self._best[1]}")
        if self._first < self._epoch < self._max:
            seconds = (time.monotonic() - self._begun) / (self._epoch - self._first)
            parts.append(f"{duration(seconds * (self._max - self._epoch))} left")
        return "  ".join(parts)

    def _shown(self) -> dict[str, str]:
        bar = f'<progress value="{self._epoch}" max="{self._max}" style="width:16em;vertical-align:middle"></progress>'
        return {"text/plain": self.text, "text/html": f"<div>{bar} <code>{html.escape(self.text)}</code></div>"}

    def _read(self) -> bool:
        """Reads new complete lines. Returns whether there are any."""
        try:
            if self._path.stat().st_size < self._place:  # the ranks restarted from a checkpoint
                self._place = 0
            with self._path.open("rb") as file:
                file.seek(self._place)
                lines, _, _ = file.read().rpartition(b"\n")
        except OSError:
            return False
        self._place += len(lines) + 1 if lines else 0
        for line in lines.splitlines():
            with contextlib.suppress(ValueError, KeyError):  # truncated by a restart
                self._take(parse_json(line, str(self._path)))
        return bool(lines)

    def _take(self, line: Mapping[str, Any]) -> None:
        epoch = line["epoch"] + 1
        figures = {"train_loss": line.get("train_loss")} | line.get("figures", {})
        values = {name: figures.get(name) for name in self._names}
        self._figures |= {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
        value = values[self.main]
        if value is not None and (self._best is None or self._sign * (value - self._best[0]) > 0):
            self._best = (value, epoch)
        if "train_loss" in line:
            self._epoch = epoch
