"""The result of a job, displayed as `result.json` and as a table, and file names."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gnnkit.errors import UserError
from gnnkit.launch.progress import USER_ERROR
from gnnkit.utils.documents import Json, parse_json, read_bytes
from gnnkit.utils.storage import write_atomically

WORK = "import"  # folder for resuming an interrupted job=import
PREPARED = "prepared"  # folder of the ranks' data, removed after the run
SOURCE = "source"  # its subfolder with the graph, which may be partitioned again
INPUTS = "inputs.json"  # preprocessing of the model's input data
COORDINATION = "coordination.json"  # the leader's decisions
EPOCHS = "epochs.jsonl"  # totals of each epoch, and each evaluation
FAILURE = "failure-{number}.txt"  # why the ranks ended before a restart, with stacks
LABELS = "labels.json"  # label statistics of the task
CLASSES = "classes.json"  # class names by number, if there are any
PICTURE = "partition.json"  # the partition in numbers, and a sample of the graph
WORDS = "words_between.npy"  # words per epoch between each pair of ranks
PARTITION = "partition"  # folder of the partition written by job=partition
REPORT = "report.html"  # the page of a run or a sweep
TOP = "topk.parquet"  # recommended items of each source
VECTORS = "vectors"  # folder with the vectors whose dot product is a pair's score


_NOT_SHOWN = (
    "per_rank", "why", "stopped", "approximate", "saved_epoch", "best_evaluation", "schedule", "learned_nothing", "one_class", "layouts", "regions", "peers", "summary", "inexact", "not_checked", "supersteps", "rebalanced", "restarted",
    "per_class", "confusion", "thresholds", "command",
    "main_figure",
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Result(Mapping[str, Any]):
    """A job's figures by name, in display order.

    A read-only mapping with the contents of `result.json`: metrics, times, sizes, and
    what the run decided. A figure may be a mapping of figures. Non-finite numbers are
    None, because JSON does not support them. Printing a result shows its table, and a
    notebook shows one line that expands. Ranks other than the leader return a result
    without a folder and without most figures.

    Examples:
        >>> from gnnkit import Result
        >>> result = Result("train", {"test_accuracy": 0.875, "epochs": 100})
        >>> result["test_accuracy"]
        0.875
        >>> print(result.table())
          test_accuracy      0.875
          epochs             100
    """

    job: str
    figures: Mapping[str, Any]
    summary: str | None = None  # displayed instead of the table of all figures
    run_folder: Path | None = None  # on the leader

    @property
    def folder(self) -> Path:
        """The run folder, which contains the model, metrics, report and configuration.

        Raises `UserError` on ranks other than the leader.
        """
        if self.run_folder is None:
            raise UserError("the run folder is the leader's: read the result of rank 0")
        return self.run_folder

    @property
    def curves(self) -> Any:
        """Loss and metrics of each epoch, counted from 1, as a pandas data frame.

        `result.curves.plot()` draws them. Raises `UserError` if the job did not train,
        and if pandas is not installed.
        """
        try:
            from gnnkit.result.curves import Curves
        except ImportError as error:
            raise UserError("result.curves is a data frame: pip install pandas") from error
        path = self.folder / EPOCHS
        if not path.is_file():
            raise UserError(f"job={self.job} trained nothing in epochs: {path} is not there")
        rows: dict[int, Json] = {}
        for line in (parse_json(text, str(path)) for text in read_bytes(path).splitlines()):
            figures = {"train_loss": line["train_loss"]} if "train_loss" in line else line.get("figures", {})
            rows.setdefault(line["epoch"] + 1, {}).update(figures)
        return Curves.from_dict(rows, orient="index").sort_index().rename_axis("epoch")

    def __getitem__(self, name: str) -> Any:
        try:
            return self.figures[name]
        except KeyError:
            hint = f"there are {', '.join(self.figures)}" if self.run_folder else "read the result of rank 0"
            raise KeyError(f"{name} is no figure of job={self.job} here: {hint}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.figures)

    def __len__(self) -> int:
        return len(self.figures)

    @property
    def exit_code(self) -> int:
        """0 for success, 1 if a check or a run failed, 2 if there is no verdict.

        Training that diverges cannot be verified, which other keys can fix.
        """
        if self.get("diverges"):
            return USER_ERROR
        return 0 if self.get("verified", True) and not self.get("failed") else 1

    def with_figure(self, name: str, value: object) -> Result:
        """Returns the result with one more figure at the end."""
        return replace(self, figures={**self.figures, name: value})

    def to_dict(self) -> Json:
        """Returns the contents of `result.json`: plain values only, arrays as lists."""
        plain: Json = finite(dict(self.figures))
        return plain

    def save(self, folder: Path) -> None:
        """Writes `result.json` atomically."""
        write_atomically(folder / "result.json", json.dumps(self.to_dict(), indent=2, allow_nan=False).encode())

    def table(self, headline: tuple[str, ...] = ()) -> str:
        """Returns the summary, or figures as a two-column table.

        Args:
            headline: Beginnings of the names of the figures to display. (): all.
        """
        if self.summary is not None:
            return self.summary
        return "\n".join(f"  {name:<18} {text}" for name, text in self._rows() if name.startswith(headline or ""))

    def line(self) -> str:
        """Returns the most important figures in one line, as notebooks and sweeps show
        them.
        """
        if self.summary is not None:
            return self.summary
        main = self.get("main_figure")
        figure = main["name"] if isinstance(main, Mapping) else "val_accuracy"
        test = figure.replace("val_", "test_", 1)
        names = dict.fromkeys((figure, test, "best_epoch", "train_loss", "epochs", "seconds_total"))
        return "  ".join(f"{name} {format_figure(self[name])}" for name in names if self.get(name) is not None)

    def __repr__(self) -> str:
        return f"Result(job={self.job!r}, folder={str(self.run_folder)!r})\n{self.table()}"

    def _repr_html_(self) -> str:
        """Returns the display for notebooks: one line, and an expandable table."""
        rows = "".join(
            f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(text)}</td></tr>'
            for name, text in self._rows()
        )
        title = escape(f"job={self.job}: {self.line()}")
        place = "" if self.run_folder is None else f"<div>{escape(str(self.run_folder))}</div>"
        return f"<details><summary>{title}</summary>{place}<table>{rows}</table></details>"

    def _rows(self) -> Iterator[tuple[str, str]]:
        """Yields the name and text of each displayed figure."""
        for name, value in without_traffic(self.figures).items():
            parts = value.items() if isinstance(value, Mapping) else [("", value)]
            plain = ((key, _without_numpy(part)) for key, part in parts)
            texts = [f"{key} {format_figure(part)}".strip() for key, part in plain if part not in (None, [])]
            if texts and name not in _NOT_SHOWN:
                yield name, "  ".join(texts)


def without_traffic(figures: Mapping[str, object]) -> Mapping[str, object]:
    """Leaves out the traffic between ranks if there is one rank."""
    if figures.get("world_size") != 1:
        return figures
    return {name: value for name, value in figures.items() if not name.startswith(("words_", "bytes_sent"))}


def versions() -> dict[str, str]:
    """Returns the versions of the packages that a result depends on."""
    names = ("gnnkit", "torch", "lightning", "hydra-core", "numpy")
    return {name: version(name) for name in names} | {"python": platform.python_version()}


def format_figure(value: object) -> str:
    """Formats a figure for a table, with four digits after the point."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) and value >= 10_000 else str(value)


def _without_numpy(value: object) -> object:
    """Converts an array, a scalar of NumPy or a tensor to numbers."""
    return value.tolist() if hasattr(value, "tolist") else value


def finite(value: object) -> Any:
    """Returns plain data for JSON, with None for non-finite numbers."""
    value = value if isinstance(value, int | float | str) else _without_numpy(value)
    if isinstance(value, int | float | str):
        return None if isinstance(value, float) and not math.isfinite(value) else value
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value
