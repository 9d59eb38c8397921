"""Links in time: rules that learn nothing, and model=mixer of gnnkit-temporal.

    uv run python benchmarks/temporal_links.py MESSAGES.npz
    uv run python benchmarks/temporal_links.py EVENTS.csv --seeds 3 --epochs 3

MESSAGES.npz has the arrays `src`, `dst` and `time`, and EVENTS.csv has the source, the
destination and the time in its first, second and last column. Events are split by time,
70 / 15 / 15. Of the test events, 1,000 are drawn, and each is ranked among 100 negative
pairs: random ones, as `job=train` draws them, or historical ones, where the source's
earlier destinations come first. Mean reciprocal ranks are printed, ties in the middle.
The popularity and window of the rules are those of a week, or of `--window` in the
data's unit.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import gnnkit
from gnnkit.graph import Graph
from gnnkit.sampler.links import Links
from gnnkit.task.link_prediction import LinkPrediction
from gnnkit.task.ranking import mid_ranks
from gnnkit.task.recurrence import Recurrence

EVENTS, NEGATIVES, WEEK = 1000, 100, 7 * 24 * 3600
PIECE = 50  # events that are scored together
Candidates = npt.NDArray[np.int64]  # [EVENTS, 1 + NEGATIVES, 3] source, destination and time


def read_graph(path: Path) -> Graph:
    """Returns the events, split by time."""
    if path.suffix == ".npz":
        file = np.load(path)
        src, dst, time = (file[name] for name in ("src", "dst", "time"))
    else:
        table = np.loadtxt(path, delimiter=",", skiprows=1, dtype=np.float64)
        src, dst, time = table[:, 0].astype(int), table[:, 1].astype(int), np.floor(table[:, -1]).astype(int)
    nodes = np.ones((int(max(src.max(), dst.max())) + 1, 1), np.float32)  # all nodes look alike
    return Graph.from_edges(src, dst, features=nodes, edge_time=time).split_by_time([0.7, 0.15, 0.15])


def draw_candidates(links: Links, seed: int) -> dict[str, Candidates]:
    """Returns drawn test events, each followed by its negative pairs, by kind."""
    assert links.events is not None
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.choice(len(links.test), min(EVENTS, len(links.test)), replace=False))
    events = links.at_times(links.test, links.test_time)[rows]
    random = np.repeat(events[:, None], 1 + NEGATIVES, 1)
    random[:, 1:, :2] = links.negative_pairs(events, np.arange(len(events)), NEGATIVES, seed, evaluates=True)
    historical = random.copy()
    for row, (source, destination, time) in enumerate(events):
        earlier = links.events[(links.events[:, 0] == source) & (links.events[:, 2] < time), 1]
        places = rng.permutation(np.unique(earlier[earlier != destination]))[:NEGATIVES]
        historical[row, 1 : 1 + len(places), 1] = places
    return {"random": random, "historical": historical}


def reciprocal_rank(scores: torch.Tensor) -> float:
    return float((1 / mid_ranks(scores)).mean())


def measure_rules(links: Links, candidates: Candidates, window: int) -> dict[str, float]:
    assert links.events is not None
    rules = Recurrence(links.events, links.num_nodes, window)
    scores = rules.scores(candidates[..., :2], candidates[:, 0, 2])
    return {rule: reciprocal_rank(torch.from_numpy(score)) for rule, score in scores.items()}


def measure_model(run: Path, links: Links, candidates: Candidates) -> float:
    """Returns the figure of a trained model."""
    model: Any = gnnkit.load(run)
    scores = []
    with torch.no_grad():
        for piece in torch.from_numpy(candidates).split(PIECE):
            outputs = model.embed(torch.ones(*piece.shape[:2], 2, 1))
            scores.append(model.decoder(outputs, piece, links).double())
    return reciprocal_rank(torch.cat(scores))


def train(graph: Graph, folder: Path, epochs: int, seed: int, keys: dict[str, Any]) -> None:
    task = {"negative_sampling": "historical", "negatives": 6, "loss": "softmax", "eval_negatives": 1}
    gnnkit.train(
        graph,
        folder=folder,
        strategy={"name": "individual_sample", "batch_size": 400},
        sampler={"name": "neighbor", "fanouts": [1]},
        model={"name": "mixer", **keys},
        task={"name": "link_prediction", **task},
        trainer={"max_epochs": epochs, "lr": 2e-3, "check_val_every_n_epoch": epochs},
        seed=seed,
        workers=1,
        report=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("events", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--window", type=int, default=WEEK)
    options = parser.parse_args()
    torch.set_num_threads(1)
    graph = read_graph(options.events)
    _, links = LinkPrediction().prepare(graph)
    candidates = draw_candidates(links, 0)
    for kind, rows in candidates.items():
        print(kind, {rule: round(value, 3) for rule, value in measure_rules(links, rows, options.window).items()})
    for name, keys in {"mixer": {}, "mixer without pairs": {"pairs": False}}.items():
        figures: dict[str, list[float]] = {kind: [] for kind in candidates}
        for seed in range(options.seeds):
            with TemporaryDirectory() as folder:
                train(graph, Path(folder, "run"), options.epochs, seed, keys)
                for kind, rows in candidates.items():
                    figures[kind].append(measure_model(Path(folder, "run"), links, rows))
            means = {kind: round(statistics.mean(values), 3) for kind, values in figures.items()}
            print(name, f"{seed + 1} seeds", means, {kind: np.round(values, 3) for kind, values in figures.items()})


if __name__ == "__main__":
    main()
