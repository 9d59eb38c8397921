"""Recommendations by gnnkit's defaults and by PyG's LightGCN with BPR, by turns.

    uv run python benchmarks/recommend.py
    uv run python benchmarks/recommend.py EDGES.csv --seeds 5
    uv run python benchmarks/recommend.py ACM.npz

EDGES.csv has the columns `user` and `item`, and ACM.npz the array `paper_author`, whose
authors are recommended to papers. Without them, users and items are drawn:
items have a popularity, and users and items have latent factors. Of the interactions,
10 % are test edges and 5 % validation edges, drawn by seed. gnnkit trains with the keys
that `job=init` writes. PyG trains all edges in each step, as in its documentation, for
`--epochs` epochs. Both run in this process on one thread, and are ranked by the same
function: all items, without the user's training and validation items. Seconds include
the preparation and gnnkit's evaluations and files, but no imports.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
import torch
from gnnkit_formats.edges import EdgeFolder
from gnnkit_plan import init
from torch_geometric.nn import LightGCN

import gnnkit
from gnnkit.config.compose import compose
from gnnkit.config.settings import settle
from gnnkit.graph import Graph
from gnnkit.sampler.links import pairs_of

K = 20
Rows = npt.NDArray[np.float32]
Pairs = npt.NDArray[np.int64]  # [k, 2] user and item
SECTIONS = ("task", "model", "trainer", "learned")


def draw(num_users: int = 2000, num_items: int = 1000, num_edges: int = 60_000, width: int = 16) -> Pairs:
    """Draws interactions by latent factors and the items' popularity."""
    rng = np.random.default_rng(0)
    users, items = rng.normal(size=(num_users, width)), rng.normal(size=(num_items, width))
    scores = 3 * users @ items.T / width**0.5 + rng.normal(size=num_items)
    scores += rng.gumbel(size=scores.shape)
    activity = rng.lognormal(0, 0.7, num_users)
    counts = np.clip(activity / activity.sum() * num_edges, 4, num_items // 2).astype(int)
    return np.concatenate([
        np.stack([np.full(count, user), np.argpartition(-row, count)[:count]], 1)
        for user, (row, count) in enumerate(zip(scores, counts, strict=True))
    ])  # fmt: skip


def write(pairs: Pairs, folder: Path) -> None:
    lines = [f"{user},{item}" for user, item in pairs.tolist()]
    (folder / "edges.csv").write_text("\n".join(["user,item", *lines]) + "\n")


def split(graph: Graph, seed: int) -> Graph:
    """Returns the graph without validation and test edges, which it lists."""
    pairs, part = pairs_of(graph.csc), np.random.default_rng(seed).random(graph.num_edges)
    edges = np.flatnonzero(part >= 0.15)
    csc = type(graph.csc)(np.searchsorted(edges, graph.csc.indptr), graph.csc.indices[edges])
    training = graph.with_edges(csc, graph.edge_columns.select(edges))
    return replace(training, val_edges=pairs[(part >= 0.1) & (part < 0.15)], test_edges=pairs[part < 0.1])


def by_gnnkit(graph: Graph, keys: dict[str, object], seed: int, folder: Path) -> tuple[Rows, Rows]:
    result = gnnkit.train(
        graph, **keys, seed=seed, threads=1, launcher="inline", report=False, logger="none", output=str(folder)
    )
    vectors = Path(result.folder) / "vectors"
    return np.load(vectors / "user.npy"), np.load(vectors / "item.npy")


def by_pyg(graph: Graph, num_users: int, seed: int, epochs: int, lr: float) -> tuple[Rows, Rows]:
    """Trains PyG's LightGCN on the full graph, with one negative item per edge."""
    torch.manual_seed(seed)
    edges = torch.from_numpy(pairs_of(graph.csc).T.copy())
    all_edges = torch.cat([edges, edges.flip(0)], 1)
    model = LightGCN(graph.num_nodes, 64, num_layers=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(epochs):
        items = torch.randint(num_users, graph.num_nodes, (edges.shape[1],))
        negative = torch.stack([edges[0], items])
        optimizer.zero_grad()
        positive_rank, negative_rank = model(all_edges, torch.cat([edges, negative], 1)).chunk(2)
        model.recommendation_loss(positive_rank, negative_rank, lambda_reg=0).backward()
        optimizer.step()
    rows = model.get_embedding(all_edges).detach().numpy()
    return rows[:num_users], rows[num_users:]


def rank(users: Rows, items: Rows, graph: Graph) -> tuple[float, float]:
    """Returns recall and NDCG of the test edges."""
    assert graph.val_edges is not None
    assert graph.test_edges is not None
    scores, first = users @ items.T, len(users)
    known_pairs = np.concatenate([pairs_of(graph.csc), graph.val_edges])
    scores[known_pairs[:, 0], known_pairs[:, 1] - first] = -np.inf
    is_target = np.zeros(scores.shape, bool)
    is_target[graph.test_edges[:, 0], graph.test_edges[:, 1] - first] = True
    has_target = is_target.any(1)
    hits = np.take_along_axis(is_target[has_target], np.argsort(-scores[has_target], 1)[:, :K], 1)
    counts, gains = is_target[has_target].sum(1), 1 / np.log2(np.arange(2, K + 2))
    ideal = np.cumsum(gains)[np.minimum(counts, K) - 1]
    return float((hits.sum(1) / counts).mean()), float((hits @ gains / ideal).mean())


def chosen_keys(folder: Path) -> dict[str, object]:
    """Returns the keys that job=init writes for the table, as arguments of `train`."""
    settings = settle(compose(["job=init", "strategy=vertex_centric", "dataset=edges", f"dataset.root={folder}"]))
    keys: dict[str, object] = {}
    for choice in init.choose(settings, settings.dataset.create().load()):
        section, _, name = choice.key.rpartition(".")
        if section in SECTIONS:
            keys.setdefault(section, {})[name] = choice.value  # type: ignore[index]
        elif choice.key in SECTIONS:
            keys[choice.key] = {"name": choice.value}
        elif choice.key in ("strategy", "inputs", "workers", "write"):
            keys[choice.key] = choice.value
    return keys


def timed(train: Callable[[], tuple[Rows, Rows]]) -> tuple[tuple[Rows, Rows], float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        rows = train()
    return rows, time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("edges", nargs="?", type=Path, help="table with the columns user and item, or ACM.npz")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=200, help="of PyG")
    parser.add_argument("--lr", type=float, default=0.01, help="of PyG")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with TemporaryDirectory() as folder:
        path = Path(folder)
        if options.edges is None:
            write(draw(), path)
        elif options.edges.suffix == ".npz":
            write(np.load(options.edges)["paper_author"].T.astype(np.int64), path)
        else:
            (path / "edges.csv").write_bytes(options.edges.read_bytes())
        full_graph, keys = EdgeFolder(str(path)).load(), chosen_keys(path)
        num_users = full_graph.schema.type_sizes[0]
        print(
            f"{num_users:,} users, {full_graph.num_nodes - num_users:,} items, {full_graph.num_edges:,} interactions; gnnkit: {keys}"
        )
        figures: dict[str, list[tuple[float, ...]]] = {"popularity": [], "gnnkit": [], "pyg": []}
        for seed in range(options.seeds):
            graph = split(full_graph, seed)
            counts = np.diff(graph.csc.indptr)[num_users:].astype(np.float32)[:, None]
            figures["popularity"].append((*rank(np.ones((num_users, 1), np.float32), counts, graph), 0, 0))
            ways = {
                "gnnkit": lambda: by_gnnkit(graph, keys, seed, path / f"run-{seed}"),  # noqa: B023
                "pyg": lambda: by_pyg(graph, num_users, seed, options.epochs, options.lr),  # noqa: B023
            }
            for name in sorted(ways, reverse=bool(seed % 2)):
                rows, *seconds = timed(ways[name])
                figures[name].append((*rank(*rows, graph), *seconds))
            print(seed, *(f"{name} {values[-1]}" for name, values in figures.items()), flush=True)
    print(f"{'':12}recall@{K}          NDCG@{K}     seconds   CPU seconds")
    for name, rows_of_name in figures.items():
        columns = list(zip(*rows_of_name, strict=True))
        spread = [statistics.stdev(column) if len(column) > 1 else 0.0 for column in columns]
        means = [statistics.mean(column) for column in columns]
        quality = "   ".join(f"{mean:.4f} +- {dev:.4f}" for mean, dev in zip(means[:2], spread[:2], strict=True))
        print(f"{name:12}{quality}   {means[2]:7.1f}   {means[3]:7.1f}")


if __name__ == "__main__":
    main()
