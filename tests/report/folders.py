"""Run folders as runs leave these, made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from gnnkit_report.runs_page import SweptRun

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;\u202e\x00{{7*7}}"


def run_folder(folder: Path, *, text: str = "pystdlib", num_ranks: int = 3, num_epochs: int = 12, **more: Any) -> Path:
    """Writes the folder of a run.

    Args:
        folder: The folder, which is made.
        text: The data set's name, and every other text of the run.
        num_ranks: Number of workers.
        num_epochs: Number of epochs. Every third one is evaluated.
        **more: Further figures of the result.
    """
    folder.mkdir(parents=True)
    result = {
        "strategy": "vertex_centric", "partition": "2d", "nodes": text, "grid": [num_ranks, 1, 1],
        "world_size": num_ranks, "dataset": text, "model": "gcn", "task": "node_classification",
        "epochs": num_epochs, "train_accuracy": 0.99, "val_accuracy": 0.75, "test_accuracy": 0.74, "train_loss": 0.1,
        "stragglers": {"rank 1": 2.5, text: 3.0}, "seconds_per_epoch": 0.1, "seconds_total": 3.25,
        "cache_hits": {"rate": [0.5 + 0.01 * rank for rank in range(num_ranks)]}, "wait_share": 0.25,
        "balance": {"nodes": 1.0, "work_mean": 2.3, text: 1}, "phases": {"reading": 1.0, text: 2.0}, "why": text,
        "versions": {"gnnkit": "0.1.0", text: text}, "command": f"gnnkit {text}", "device": text, "exact": True,
        "main_figure": {"name": "val_accuracy", "lower_is_better": False},
        "confusion": {"classes": ["a", text, "c"], "test": [[5, 1, 0], [2, 7, 1], [0, 3, 9]]},
        "per_class": {"test": {text: {"f1": 0.5, text: text}}},
        "rebalanced": [{"epoch": 3, "slow": [text], "unit": "nodes", "moved": 7, "step_before": 0.02, text: 1}],
        **more,
    }  # fmt: skip
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "config.yaml").write_text(json.dumps({"seed": 0, "dataset": {"name": text}}))
    (folder / "epochs.jsonl").write_text("".join(map(_line, _epochs(num_ranks, num_epochs))))
    ranks = [node % num_ranks for node in range(40)]
    of_nodes = {"nodes": list(range(40)), "rank": ranks, "class": [node % 4 - 1 for node in range(40)]}
    sample = {**of_nodes, "edges": [[a, (a * 7 + 1) % 40] for a in range(40)], "whole": True}
    counts = {"nodes": [14] * num_ranks, "train_nodes": [4] * num_ranks, "num_nodes": 40, "num_edges": 40}
    edges = [[3] * num_ranks for _ in range(num_ranks)]
    partition = {**counts, "counted_edges": 40, "cut": 20, "edges": edges, "sample": sample}
    (folder / "partition.json").write_text(json.dumps(partition))
    (folder / "classes.json").write_text(json.dumps(["a", text, "c"]))
    np.save(folder / "predictions.npy", np.arange(40) % 3)
    words = [[0 if a == b else 1000 * (a + 1) + b for b in range(num_ranks)] for a in range(num_ranks)]
    np.save(folder / "words_between.npy", words)
    layouts = {
        "chosen": {"grid": [num_ranks, 1, 1], "words_per_column": 7.0, "balance": {"words": 1.5, "edges": 1.25}},
        "1d": {"grid": [num_ranks, 1, 1], "words_per_column": 7.0, "balance": {"words": 1.5, "edges": 1.25}},
        text: {"grid": [1, 1, num_ranks], "words_per_column": 9.0, "balance": {"words": 1.0, "edges": text}},
    }
    (folder / "coordination.json").write_text(json.dumps({"decision": {"layouts": layouts, "why": text}}))
    return folder


def _epochs(num_ranks: int, num_epochs: int) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for epoch in range(num_epochs):
        seconds = {"wait": 0.01, "compute": 0.03, "exchange": 0.06, "sync": 0.01}
        parts = {
            f"seconds_{kind}": [value * (1 + rank) for rank in range(num_ranks)] for kind, value in seconds.items()
        }
        lines.append({"epoch": epoch, "clock": 0.1 * epoch, "train_loss": 2 / (1 + epoch), **parts})
        if epoch % 3 == 2:
            good = 0.06 * min(epoch, 12 - epoch)
            figures = {"val_accuracy": good, "test_accuracy": 0.8 * good, "val_loss": 2 / epoch}
            lines.append({"epoch": epoch, "clock": 0.1 * epoch, "figures": figures})
    return lines


def _line(line: dict[str, Any]) -> str:
    return json.dumps(line) + "\n"


def swept(folder: Path, count: int, *, key: str = "trainer.lr", **more: str) -> list[SweptRun]:
    """Returns runs of three seeds each. The figure follows from the key alone."""
    runs = []
    for number in range(count):
        values = {key: str(0.001 * 10 ** (number // 3)), "seed": str(number % 3), **more}
        figures = {"val_accuracy": 0.5 + 0.1 * (number // 3) + 0.001 * (number % 3), "train_loss": 1.0}
        runs.append(SweptRun(number, "done", values, figures, folder / str(number), folder / f"{number}.log"))
    return runs
