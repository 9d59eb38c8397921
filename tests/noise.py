"""Labels that only the future explains, through every strategy, reader and door.

A later row has the label of each target as a feature, and links to the target. A model
that reads it is nearly perfect, and one that samples by time has an AUC of 0.5:

    uv run python -m tests.temporal noise 10
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import torch
from torch.nn import functional as F
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import SAGEConv, to_hetero

import gnnkit
from gnnkit.graph import Graph, Relation
from gnnkit.pyg import NeighborLoader
from gnnkit.utils.checks import Array
from tests.runs import BARE, within_process

SPAN = 10_000  # targets have times from 0 on, up to this one
BORDERS = [SPAN // 3, 2 * SPAN // 3]
Options = dict[str, Any]


def columns(seed: int, count: int) -> dict[str, Array]:
    """Draws targets, the later row of each that has its label, and links of noise.

    Sources below `count` are targets, others are reporters.
    """
    rng = np.random.default_rng(seed)
    time = np.sort(rng.integers(0, SPAN, count))
    later = time + rng.integers(1, 400, count)
    labels, values = rng.integers(0, 2, count), rng.normal(size=(2 * count, 3))
    values[:count, 0], values[count:, 0] = 0, 2 * labels - 1
    src = np.append(count + np.arange(count), rng.integers(0, count, 2 * count))
    dst = np.append(np.arange(count), rng.integers(0, 2 * count, 2 * count))
    edge_time = np.append(later, rng.integers(0, SPAN, 2 * count))
    node_time, features = np.append(time, later), values.astype(np.float32)
    return {"src": src, "dst": dst, "edge_time": edge_time, "node_time": node_time, "x": features, "labels": labels}


def make_plain_graph(seed: int, count: int, *, typed: bool = False) -> Graph:
    data = columns(seed, count)
    src, dst, labels = data["src"], data["dst"], data["labels"]
    fields: Options = {"features": data["x"], "edge_time": data["edge_time"], "node_time": data["node_time"]}
    if typed:
        ends = [("reporter", "target"), ("target", "target"), ("target", "reporter")]
        fields["relations"] = [Relation(a, f"r{i}", b) for i, (a, b) in enumerate(ends)]
        fields["edge_types"] = np.where(src >= count, 0, np.where(dst < count, 1, 2))
        fields["node_types"] = [("target", count), ("reporter", count)]
    graph = Graph.from_edges(src, dst, 2 * count, labels=np.append(labels, np.full(count, -1)), **fields)
    return graph.split_by_time(borders=BORDERS)


def typed(seed: int, count: int) -> Graph:
    return make_plain_graph(seed, count, typed=True)


def labelled_edges(seed: int, count: int) -> Graph:
    """Draws edges between new nodes, which a later edge into the same node explains."""
    rng = np.random.default_rng(seed)
    data = columns(seed, count)
    events, reporters, n = 2 * count + np.arange(count), count + np.arange(count), 3 * count
    time, later = np.split(data["node_time"], 2)
    src, dst = np.append(rng.integers(0, count, count), reporters), np.append(events, events)
    features = np.concatenate([data["x"], np.zeros((count, 3), np.float32)])
    labels = np.append(data["labels"], np.full(count, -1))
    times = np.append(time, later)
    graph = Graph.from_edges(src, dst, n, features=features, edge_time=times, edge_labels=labels)
    return graph.split_by_time(borders=BORDERS)


def links(seed: int, count: int) -> Graph:
    """Draws events whose ends a place with features of its own joins later."""
    rng = np.random.default_rng(seed)
    num_persons = max(count // 10, 2)
    ends = rng.integers(0, num_persons, count)
    ends = np.stack([ends, (ends + rng.integers(1, num_persons, count)) % num_persons])
    time, places = np.sort(rng.integers(0, SPAN, count)), num_persons + np.arange(count)
    features = np.append(rng.normal(size=(num_persons, 8)), rng.normal(size=(count, 8)), 0).astype(np.float32)
    relations = [Relation("person", "meets", "person"), Relation("place", "joins", "person")]
    fields: Options = {"node_types": [("person", num_persons), ("place", count)], "relations": relations}
    graph = Graph.from_edges(
        np.concatenate([ends[0], places, places]),
        np.concatenate([ends[1], *ends]),
        num_persons + count,
        features=features,
        edge_types=np.repeat([0, 1, 1], count),
        edge_time=np.concatenate([time, time + 1, time + 1]),
        node_time=np.append(np.zeros(num_persons, int), time + 1),
        edge_type_names=[relation.edge_type for relation in relations],
        **fields,
    )
    return graph.split_by_time(borders=BORDERS)


def as_data(seed: int, count: int) -> Data:
    """Returns PyG's container, whose masks are those of a split by time."""
    data, graph = columns(seed, count), make_plain_graph(seed, count)
    masks = {f"{part}_mask": torch.from_numpy(graph.split == number) for number, part in enumerate(PARTS, 1)}
    return Data(
        x=torch.from_numpy(data["x"]),
        edge_index=torch.from_numpy(np.stack([data["src"], data["dst"]])),
        y=torch.from_numpy(np.append(data["labels"], np.full(count, -1))),
        time=torch.from_numpy(data["node_time"]),
        edge_time=torch.from_numpy(data["edge_time"]),
        **masks,
    )


PARTS = ("train", "val", "test")


def as_hetero(seed: int, count: int) -> HeteroData:
    """Returns the typed container that `gnnkit.pyg` samples."""
    data, pyg = columns(seed, count), HeteroData()
    for name, rows in (("target", slice(0, count)), ("reporter", slice(count, 2 * count))):
        pyg[name].x, pyg[name].time = (torch.from_numpy(data[key][rows]) for key in ("x", "node_time"))
    pyg["target"].y = torch.from_numpy(data["labels"])
    is_target = data["src"] < count, data["dst"] < count
    for source, destination in ((False, True), (True, True), (True, False)):
        mask = (is_target[0] == source) & (is_target[1] == destination)
        ends = np.stack([data[end][mask] % count for end in ("src", "dst")])
        names = ("reporter", "target")
        pyg[names[source], "to", names[destination]].edge_index = torch.from_numpy(ends)
    return pyg


def npz(seed: int, count: int, folder: Path) -> Options:
    graph = make_plain_graph(seed, count)
    arrays = {"indptr": graph.csc.indptr, "indices": graph.csc.indices, "x": graph.features, "y": graph.labels}
    times = {"edge_time": graph.edge_time, "node_time": graph.node_time}
    np.savez(folder / "noise.npz", **arrays, **times)  # type: ignore[arg-type]
    return {"dataset": {"name": "npz", "root": str(folder / "noise.npz"), "split": {"by": "time", "borders": BORDERS}}}


def tables(seed: int, count: int, folder: Path) -> Options:
    data = columns(seed, count)
    labels = pa.array(np.append(data["labels"], np.zeros(count, int)), mask=np.arange(2 * count) >= count)
    nodes = {"id": np.arange(2 * count), "time": data["node_time"], "label": labels}
    nodes |= {f"x{i}": data["x"][:, i] for i in range(3)}
    pyarrow.csv.write_csv(pa.table(nodes), folder / "nodes.csv")
    ends = {"src": data["src"], "dst": data["dst"], "time": data["edge_time"]}
    pyarrow.csv.write_csv(pa.table(ends), folder / "edges.csv")
    return {"dataset": {"name": "edges", "root": str(folder), "split": {"by": "time", "borders": BORDERS}}}


def database(seed: int, count: int, folder: Path) -> Options:
    """Writes tables with keys, and a task table of targets at their times."""
    data = columns(seed, count)
    time, later = np.split(data["node_time"], 2)
    (folder / "tables").mkdir(exist_ok=True)
    (folder / "tasks").mkdir(exist_ok=True)
    dates = [moment.astype("M8[s]") for moment in (10**9 + 86_400 * time, 10**9 + 86_400 * later)]
    entities = {"target_id": np.arange(count), "x": data["x"][:count, 1]}
    reports = {"report_id": np.arange(count), "target_id": np.arange(count), "at": dates[1], "v": data["x"][count:, 0]}
    for name, table in (("targets", entities), ("reports", reports)):
        pa.parquet.write_table(pa.table(table), folder / "tables" / f"{name}.parquet")
    split = np.array(PARTS)[np.searchsorted(BORDERS, time, side="right")]
    rows = {"target_id": np.arange(count), "timestamp": dates[0], "label": data["labels"], "split": split}
    pa.parquet.write_table(pa.table(rows), folder / "tasks" / "noise.parquet")
    task = {"name": "node_classification", "table": "noise"}
    return {"dataset": {"name": "tables", "root": str(folder)}, "task": task, "model": {"name": "rgcn", "hidden": 8}}


def store(seed: int, count: int, folder: Path) -> Options:
    options: Options = {"strategy": "individual_sample", "sampler": SAMPLER, "workers": 1, "report": False}
    gnnkit.train(make_plain_graph(seed, count), job="partition", output=str(folder / "store"), **options)
    return {"dataset": {"name": "store", "root": str(folder / "store")}}


# With equal fanouts, batches draw the same on any number of workers.
SAMPLER: Options = {"name": "neighbor", "fanouts": [3, 3], "time": "strict"}
STRATEGIES: dict[str, Options] = {
    "shared": {"name": "individual_sample"},
    "features": {"name": "individual_sample", "features": "partitioned"},
    "topology": {"name": "individual_sample", "topology": "partitioned"},
    "joint": {"name": "joint_sample"},
}
PAIRS = {"name": "link_prediction", "relation": "person-meets-person", "width": 8, "eval_negatives": 2}
GRAPHS: dict[str, tuple[Callable[[int, int], Any], Options]] = {
    "nodes": (make_plain_graph, {}),
    "typed": (typed, {"model": {"name": "rgcn", "hidden": 8}}),
    "edges": (labelled_edges, {"task": "edge_classification"}),
    "links": (links, {"task": PAIRS, "model": {"name": "rgcn", "hidden": 8}}),
}
DOORS: dict[str, Callable[[int, int, Path], Options]] = {
    "npz": npz,
    "tables": tables,
    "database": database,
    "store": store,
}
BASES = [*GRAPHS, "database", "loader"]
SAME = {f"{kind} {place}": kind for kind in GRAPHS for place in STRATEGIES if place != "shared"}
SAME |= dict.fromkeys(("npz", "tables", "store", "data"), "nodes")  # these read the graph of `nodes`
NUM_COMPARED = 2  # seeds with which cases are compared with their base


def area(case: str, seed: int, count: int, folder: Path, **keys: Any) -> float:
    """Returns the mean area under the ROC curve of validation and test rows.

    Args:
        case: One of `BASES`, or a strategy or reader of `SAME`, which has the area of
            its base.
        seed: Seed of the data and of the run.
        count: Number of targets.
        folder: An empty folder.
        **keys: Other keys of the run.
    """
    if case == "loader":
        return loaded(seed, count, **keys)
    kind, _, place = case.partition(" ")
    graph: Any = None
    options: Options = {}
    if kind in GRAPHS:
        make, options = GRAPHS[kind]
        graph = make(seed, count)
    elif kind == "data":
        graph = as_data(seed, count)
    else:
        options = DOORS[kind](seed, count, folder)
    workers = 2 if place else 1
    result = gnnkit.train(
        graph,
        **{
            "strategy": {"batch_size": count // 30 // workers} | STRATEGIES[place or "shared"],
            "sampler": SAMPLER,
            "model": {"name": "sage", "hidden": 8},
            "trainer": {"max_epochs": 3, "lr": 0.05, "check_val_every_n_epoch": 3, "precision": 64},
            "workers": workers,
            "comm": "threads",
            "launcher": "threads",
            "output": str(folder / "run"),
            "seed": seed,
            **BARE,
            **options,
            **keys,
        },
    )
    return float(result["val_roc_auc"] + result["test_roc_auc"]) / 2


def loaded(seed: int, count: int, *, sampler: Options = SAMPLER) -> float:
    """Trains a model of PyG on batches of `gnnkit.pyg`, and returns its area."""
    torch.manual_seed(seed)
    data = as_hetero(seed, count)

    def batches(split: int, size: int) -> Any:
        time = data["target"].time
        rows = torch.from_numpy(np.flatnonzero(np.searchsorted(BORDERS, time.numpy(), side="right") == split))
        by_time: Options = {"time_attr": "time"} if sampler["time"] != "none" else {}
        return NeighborLoader(data, sampler["fanouts"], ("target", rows), batch_size=size, threads=0, **by_time)

    class Sage(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = SAGEConv((-1, -1), 8), SAGEConv((-1, -1), 2)

        def forward(self, x: Any, edge_index: Any) -> Any:
            return self.second(F.relu(self.first(x, edge_index)), edge_index)

    def outputs(model: Any, batch: Any) -> Any:
        return model(batch.x_dict, batch.edge_index_dict)["target"][: batch["target"].batch_size]

    model = to_hetero(Sage(), data.metadata())
    outputs(model, next(iter(batches(0, 8))))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(3):
        for batch in batches(0, count // 30):
            optimizer.zero_grad()
            labels = batch["target"].y[: batch["target"].batch_size]
            F.cross_entropy(outputs(model, batch), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    areas = []
    with torch.no_grad():
        for split in (1, 2):
            draws = [(outputs(model, batch), batch["target"]) for batch in batches(split, 1024)]
            scores = torch.cat([rows[:, 1] - rows[:, 0] for rows, _ in draws]).numpy()
            labels = torch.cat([target.y[: target.batch_size] for _, target in draws]).numpy()
            areas.append(_area(scores, labels))
    return float(np.mean(areas))


def _area(scores: Array, labels: Array) -> float:
    ranks = np.argsort(np.argsort(scores, kind="stable"), kind="stable") + 1
    positive = int(labels.sum())
    return float((ranks[labels == 1].sum() - positive * (positive + 1) / 2) / (positive * (len(labels) - positive)))


def deviation(count: int) -> float:
    """Returns the standard deviation of `area` of a model that knows nothing."""
    return float((3 * (2 * count / 3)) ** -0.5)


def report(seeds: Iterable[int], folder: Path, count: int = 6_000) -> None:
    """Prints the area of each case and seed, and means over seeds.

    The first seeds compare strategies and readers with their base.
    """
    areas: dict[str, list[float]] = {case: [] for case in (*BASES, *SAME)}
    for number, seed in enumerate(seeds):
        for case in (*BASES, *(SAME if number < NUM_COMPARED else ())):
            areas[case].append(_in_folder(case, seed, count, folder))
            print(f"noise {case}, seed {seed}: {areas[case][-1]:.4f}", flush=True)
    for case, values in areas.items():
        line = f"{np.mean(values):.4f} over {len(values)} seeds, {min(values):.4f} to {max(values):.4f}"
        if case in SAME:
            line += f"; from {SAME[case]}: {np.abs(np.subtract(values, areas[SAME[case]][: len(values)])).max():.1e}"
        print(f"noise {case}: {line}", flush=True)


def _in_folder(case: str, seed: int, count: int, folder: Path) -> float:
    place = folder / f"{case}_{seed}".replace(" ", "_")
    place.mkdir()
    with within_process():
        return area(case, seed, count, place)
