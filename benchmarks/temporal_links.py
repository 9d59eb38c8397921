"""Links in time: rules that learn nothing, and models of gnnkit-temporal.

    uv run python benchmarks/temporal_links.py MESSAGES.npz
    uv run python benchmarks/temporal_links.py EVENTS.csv --seeds 10 --epochs 8
    uv run python benchmarks/temporal_links.py EVENTS.csv --split val --epochs 10

MESSAGES.npz has the arrays `src`, `dst` and `time`, and EVENTS.csv has the source, the
destination and the time in its first, second and last column. Other columns are
features of the events. Events are split by time, 70 / 15 / 15. Of the test events,
1,000 are drawn, and each is ranked among 100 negative pairs: random ones, as
`job=train` draws them, or historical ones, where the source's earlier destinations come
first. Mean reciprocal ranks are printed, ties in the middle. The popularity and window
of the rules are those of a week, or of `--window` in the data's unit. `--split val`
ranks validation events instead, by which to choose options.

"sage" embeds nodes from the training graph, and knows neither order nor time. "tgat"
embeds them as of each event, from the latest earlier ones and random features, which
tell nodes apart.
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
from gnnkit.engine.block import BlockLayers
from gnnkit.engine.visible import TimedEdges, TimedLayers
from gnnkit.graph import CSC, Graph, RelationGroups
from gnnkit.graph.edge_order import in_time_order
from gnnkit.sampler import NeighborSampler
from gnnkit.sampler.links import Links
from gnnkit.task.event_ranking import Recurrence
from gnnkit.task.link_prediction import LinkPrediction
from gnnkit.task.ranking import mid_ranks

EVENTS, NEGATIVES, WEEK = 1000, 100, 7 * 24 * 3600
PIECE, WIDTH = 50, 32  # events that are scored together, and random features of a node
MODELS: dict[str, dict[str, Any]] = {
    "sage": {"name": "sage"},
    "mixer": {"name": "mixer"},
    "mixer-without-pairs": {"name": "mixer", "pairs": False},
    "tgat": {"name": "tgat"},
}
LATEST: dict[str, Any] = {"fanouts": [10, 5], "time": "strict", "pick": "last"}  # of tgat's sampler
Candidates = npt.NDArray[np.int64]  # [EVENTS, 1 + NEGATIVES, 3] source, destination and time


def read_graph(path: Path) -> Graph:
    """Returns the events, split by time."""
    features = None
    if path.suffix == ".npz":
        file = np.load(path)
        src, dst, time = (file[name] for name in ("src", "dst", "time"))
    else:
        table = np.loadtxt(path, delimiter=",", skiprows=1, dtype=np.float64)
        src, dst, time = table[:, 0].astype(int), table[:, 1].astype(int), np.floor(table[:, -1]).astype(int)
        features = table[:, 2:-1] if table.shape[1] > 3 else None
    nodes = np.ones((int(max(src.max(), dst.max())) + 1, 1), np.float32)  # all nodes look alike
    graph = Graph.from_edges(src, dst, features=nodes, edge_features=features, edge_time=time)
    return graph.split_by_time([0.7, 0.15, 0.15])


def draw_candidates(links: Links, seed: int, split: str = "test") -> dict[str, Candidates]:
    """Returns drawn events of a split, each followed by its negative pairs, by kind."""
    all_events = links.timeline.events
    assert all_events is not None
    rng, part = np.random.default_rng(seed), links.val if split == "val" else links.test
    rows = np.sort(rng.choice(len(part), min(EVENTS, len(part)), replace=False))
    events = part.events[rows]
    random = np.repeat(events[:, None], 1 + NEGATIVES, 1)
    random[:, 1:, :2] = links.negative_pairs(events, np.arange(len(events)), NEGATIVES, seed, evaluates=True)
    historical = random.copy()
    for row, (source, destination, time) in enumerate(events):
        earlier = all_events[(all_events[:, 0] == source) & (all_events[:, 2] < time), 1]
        places = rng.permutation(np.unique(earlier[earlier != destination]))[:NEGATIVES]
        historical[row, 1 : 1 + len(places), 1] = places
    return {"random": random, "historical": historical}


def reciprocal_rank(scores: torch.Tensor) -> float:
    return float((1 / mid_ranks(scores)).mean())


def measure_rules(links: Links, candidates: Candidates, window: int) -> dict[str, float]:
    all_events = links.timeline.events
    assert all_events is not None
    rules = Recurrence(all_events, links.num_nodes, window)
    scores = rules.scores(candidates[..., :2], candidates[:, 0, 2])
    return {rule: reciprocal_rank(torch.from_numpy(score)) for rule, score in scores.items()}


def embed_at_times(model: Any, graph: Graph, rows: Candidates) -> torch.Tensor:  # [..., 2, width]
    """Computes both ends of pairs [..., 3] at their times."""
    graph = in_time_order(graph)
    csc, sampler = CSC(graph.csc.indptr, graph.csc.indices, time=graph.edge_time), NeighborSampler(**LATEST)
    ends = np.stack([rows[..., :2].ravel(), rows[..., 2:].repeat(2, -1).ravel()], 1)
    distinct, places = np.unique(ends, axis=0, return_inverse=True)
    nodes, times = distinct.T.copy()
    batch = sampler.sample(csc, nodes, key=0, times=times, disjoint=True)
    timed = TimedEdges(csc, lambda: RelationGroups.of(csc, None, ("",)))
    layers = TimedLayers.of(BlockLayers(graph, model, torch.float32, torch.device("cpu")), timed, batch, sampler)
    x = torch.from_numpy(np.asarray(graph.features)[batch.input_nodes])
    outputs: torch.Tensor = model(x, layers.layers(batch.blocks, key=0))
    return outputs[torch.from_numpy(places)].unflatten(0, (*rows.shape[:-1], 2))


def measure_model(run: Path, graph: Graph, links: Links, candidates: Candidates) -> float:
    """Returns the figure of a trained model."""
    if (run / "logits.npy").exists():
        sources, destinations = np.moveaxis(np.load(run / "logits.npy")[candidates[..., :2]], 2, 0)
        return reciprocal_rank(torch.from_numpy((sources * destinations).sum(-1)).double())
    model: Any = gnnkit.load(run)
    scores = []
    with torch.no_grad():
        for piece in torch.from_numpy(candidates).split(PIECE):
            if hasattr(model, "decoder"):
                outputs = model.embed(torch.ones(*piece.shape[:2], 2, 1))
                scores.append(model.decoder(outputs, piece, links).double())
            else:
                scores.append(embed_at_times(model, graph, piece.numpy()).prod(-2).sum(-1).double())
    return reciprocal_rank(torch.cat(scores))


def train(graph: Graph, folder: Path, epochs: int, schedule: str, seed: int, keys: dict[str, Any]) -> None:
    task = {"negative_sampling": "historical", "negatives": 6, "loss": "softmax", "eval_negatives": 1}
    is_static = keys["name"] == "sage"
    sampler = {"sage": {"fanouts": [10, 10]}, "mixer": {"fanouts": [1]}, "tgat": LATEST}[keys["name"]]
    gnnkit.train(
        graph,
        folder=folder,
        strategy={"name": "individual_sample", "batch_size": 400},
        sampler={"name": "neighbor", **sampler},
        model=keys,
        task={"name": "link_prediction", **task},
        inputs="learned" if is_static else "features",
        write=["logits"] if is_static else [],
        trainer={"max_epochs": epochs, "lr": 2e-3, "schedule": schedule, "check_val_every_n_epoch": epochs},
        seed=seed,
        workers=1,
        report=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("events", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--schedule", default="constant", help="of the learning rate (trainer.schedule)")
    parser.add_argument("--window", type=int, default=WEEK)
    parser.add_argument("--split", choices=["val", "test"], default="test")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    graph = read_graph(options.events)
    _, links = LinkPrediction().prepare(graph)
    candidates = draw_candidates(links, 0, options.split)
    for kind, rows in candidates.items():
        print(kind, {rule: round(value, 3) for rule, value in measure_rules(links, rows, options.window).items()})
    random = np.random.default_rng(0).normal(size=(graph.num_nodes, WIDTH)).astype(np.float32)
    for name in options.models:
        seen = graph.evolve(features=random) if name == "tgat" else graph
        figures: dict[str, list[float]] = {kind: [] for kind in candidates}
        for seed in range(options.first, options.first + options.seeds):
            with TemporaryDirectory() as folder:
                train(seen, Path(folder, "run"), options.epochs, options.schedule, seed, MODELS[name])
                for kind, rows in candidates.items():
                    figures[kind].append(measure_model(Path(folder, "run"), seen, links, rows))
            means = {kind: round(statistics.mean(values), 3) for kind, values in figures.items()}
            print(
                name,
                f"seeds {options.first} to {seed}",
                means,
                {kind: np.round(values, 3) for kind, values in figures.items()},
                flush=True,
            )


if __name__ == "__main__":
    main()
