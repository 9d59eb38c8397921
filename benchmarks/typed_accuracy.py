"""Test accuracy of the typed models on three public graphs, beside published figures.

    uv run python benchmarks/typed_accuracy.py DATA
    uv run python benchmarks/typed_accuracy.py DATA --graphs acm --models hgt --seeds 3
    uv run python benchmarks/typed_accuracy.py DATA --models rgat --keys model.heads=4
    uv run python benchmarks/typed_accuracy.py DATA --graphs acm --models pyg_hgt
    uv run python benchmarks/typed_accuracy.py DATA --strategy individual_sample

DATA is a folder with `aifb.npz`, `mutag.npz` and `acm.npz`. The first two have `src`,
`dst`, `relation` [num_edges], `num_nodes`, `labels` [num_nodes], -1 for none, and
`train` and `test`, ids. The last has `paper_author` and `paper_subject` [2, num_edges],
features of papers as CSR (`feature_*`) and `labels` of papers.

Every node of AIFB and MUTAG has a learned row, and the last epoch counts, because there
are no validation nodes. On ACM, 24 % of the papers train, 6 % validate and 70 % test,
which are HGB's shares, drawn by seed. The epoch of the best validation loss counts. The
papers are those of HeCo, so the published figures of HGB are of a similar graph, not of
the same one. Runs have one rank. Names that begin with `pyg_` are unchanged PyG
classes, whose graphs contain inverse edges.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import yaml
from scipy.sparse import csr_matrix
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import HeteroConv, HGTConv, RGATConv, RGCNConv, SAGEConv

import gnnkit
from gnnkit.config import as_overrides
from gnnkit.graph import Graph, Relation, Split
from gnnkit.graph.edge_order import with_inverse_edges
from gnnkit.graph.schema import pack_tables
from gnnkit.launch.processes import inline

WIDTH = 64  # hidden features of PyG's classes
SHARES = 0.24, 0.06, 0.7  # of HGB
RDF = {"inputs": "learned", "trainer.max_epochs": 50}
FEATURES = {"trainer.max_epochs": 60, "trainer.monitor": "val_loss", "trainer.check_val_every_n_epoch": 2}
KEYS: dict[str, dict[str, Any]] = {"aifb": RDF, "mutag": RDF, "acm": FEATURES}
ONE_HOT = {  # options of the paper. The embedding is model.hidden for each relation and for W_0
    "aifb": {"model.one_hot": True, "embedding": 1456},
    "mutag": {"model.one_hot": True, "embedding": 752, "trainer.weight_decay": 5e-4},
    "acm": {"model.project": True, "model.hidden": 64, "model.dropout": 0.5, "trainer.weight_decay": 5e-4},
}
MODELS: dict[str, dict[str, dict[str, Any]]] = {"rgcn": ONE_HOT, "rgat": {}, "simple_hgn": {}, "hgt": {}}
PUBLISHED = {
    ("rgcn", "aifb"): "95.83",
    ("rgcn", "mutag"): "73.23",
    ("rgat", "aifb"): "96.9",
    ("rgat", "mutag"): "74.4",
    ("simple_hgn", "acm"): "93.35",
    ("hgt", "acm"): "91.00",
}  # R-GCN and R-GAT papers, and HGB (micro F1)


class Relational(nn.Module):
    """Two relational layers of PyG."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        x = F.dropout(self.first(x, edge_index, edge_type).relu(), 0.5, self.training)
        out: Tensor = self.second(x, edge_index, edge_type)
        return out


class Hetero(nn.Module):
    """Two heterogeneous layers of PyG between projections by node type."""

    def __init__(self, convs: list[nn.Module], node_types: list[str], num_classes: int) -> None:
        super().__init__()
        self.inputs = nn.ModuleDict({name: nn.LazyLinear(WIDTH) for name in node_types})
        self.convs, self.out = nn.ModuleList(convs), nn.Linear(WIDTH, num_classes)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[tuple[str, str, str], Tensor]) -> Tensor:
        x_dict = {name: F.dropout(self.inputs[name](x).relu(), 0.5, self.training) for name, x in x_dict.items()}
        for conv in self.convs:
            x_dict = {
                name: F.dropout(x.relu(), 0.5, self.training) for name, x in conv(x_dict, edge_index_dict).items()
            }
        out: Tensor = self.out(x_dict["paper"])
        return out


def pyg_class(name: str, graph: Graph, in_features: int) -> nn.Module:
    """Builds an unchanged PyG model for a graph with inverse edges."""
    classes, relations = graph.num_classes, graph.num_relations
    if name == "pyg_rgcn":
        layers = [RGCNConv(i, o, relations, num_bases=30) for i, o in ((in_features, WIDTH), (WIDTH, classes))]
        return Relational(*layers)
    if name == "pyg_rgat":
        first = RGATConv(in_features, WIDTH // 4, relations, num_bases=30, heads=4)
        return Relational(first, RGATConv(WIDTH, classes, relations, num_bases=30))
    schema = graph.schema
    assert schema.relations is not None, f"{name}: the graph has no node types"
    edges = [tuple(relation) for relation in schema.relations]
    nodes = [node_type for node_type, _ in schema.node_types]
    if name == "pyg_hgt":
        convs: list[nn.Module] = [HGTConv(WIDTH, WIDTH, (nodes, edges), heads=4) for _ in range(2)]
    else:
        convs = [HeteroConv({edge: SAGEConv(WIDTH, WIDTH) for edge in edges}) for _ in range(2)]
    return Hetero(convs, nodes, classes)


def read_rdf(path: Path, seed: int) -> Graph:
    """Reads a graph of relations without features."""
    with np.load(path, allow_pickle=False) as file:
        split = np.zeros(int(file["num_nodes"]), np.int8)
        split[file["train"]], split[file["test"]] = Split.TRAIN, Split.TEST
        labels, types = file["labels"].astype(np.int64), file["relation"]
        return Graph.from_edges(file["src"], file["dst"], len(split), labels=labels, split=split, edge_types=types)


def read_acm(path: Path, seed: int) -> Graph:
    """Reads papers with their authors and subjects, and draws a split."""
    with np.load(path, allow_pickle=False) as file:
        shape = len(file["labels"]), int(file["num_features"])
        arrays = file["feature_values"], file["feature_indices"], file["feature_indptr"]
        x = csr_matrix(arrays, shape=shape).toarray().astype(np.float32)
        ends = file["paper_author"].astype(np.int64), file["paper_subject"].astype(np.int64)
        papers = file["labels"].astype(np.int64)
    counts = [len(papers), *(int(to.max()) + 1 for _, to in ends)]
    (paper, author), (also, subject) = ends
    features, tables = pack_tables([x, None, None], counts)
    num_others = sum(counts[1:])
    graph = Graph.from_edges(
        np.r_[paper, also],
        np.r_[author + counts[0], subject + counts[0] + counts[1]],
        sum(counts),
        features=features,
        labels=np.r_[papers, np.full(num_others, -1)],
        split=np.r_[np.full(counts[0], Split.TRAIN), np.zeros(num_others)].astype(np.int8),
        edge_types=np.repeat([0, 1], [len(paper), len(also)]),
        edge_type_names=["paper-by-author", "paper-about-subject"],
        node_types=tuple(zip(("paper", "author", "subject"), counts, strict=True)),
        feature_tables=tables,
        relations=(Relation("paper", "by", "author"), Relation("paper", "about", "subject")),
    )
    return graph.draw_split(SHARES, seed)


READERS = {"aifb": read_rdf, "mutag": read_rdf, "acm": read_acm}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with inline(), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def run(graph: Graph, name: str, keys: Mapping[str, Any], seed: int) -> Any:
    """Trains once. Returns the result."""
    model, pyg_model = {"model": name}, None
    if name.startswith("pyg_"):
        graph, model = with_inverse_edges(graph), {}
        torch.manual_seed(seed)
        is_learned = keys.get("inputs") == "learned"
        pyg_model = pyg_class(name, graph, WIDTH if is_learned else graph.features.shape[1])
        model = {"embedding": WIDTH} if is_learned else {}
    run_keys = {
        "workers": 1,
        "threads": 1,
        "comm": "threads",
        "logger": "none",
        "report": False,
    }
    run_keys |= {"trainer.checkpoint": False, "trainer.progress_bar": False, "write": [], "seed": seed}
    with TemporaryDirectory() as folder, quiet():
        overrides = as_overrides({**run_keys, **model, **keys})
        return gnnkit.train(graph, model=pyg_model, folder=Path(folder) / "run", overrides=overrides)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the graphs")
    parser.add_argument("--graphs", nargs="+", choices=READERS, default=list(READERS))
    parser.add_argument("--models", nargs="+", default=list(MODELS), help="gat: on edges without types")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--keys", nargs="*", default=[], help="further keys, such as model.heads=4")
    parser.add_argument("--strategy", default="vertex_centric", help="such as individual_sample, for mini-batches")
    arguments = parser.parse_args()
    further = {key: yaml.safe_load(value) for key, value in (text.split("=", 1) for text in arguments.keys)}
    print("graph   model        accuracy  deviation  macro F1  published  CPU s")
    for name in arguments.graphs:
        for model in arguments.models:
            keys = {"strategy": arguments.strategy, **KEYS[name], **MODELS.get(model, {}).get(name, {}), **further}
            keys |= {} if model in MODELS or model.startswith("pyg_") else {"types": "ignore"}
            begin, results = time.process_time(), []
            for seed in range(arguments.seeds):
                results.append(run(READERS[name](arguments.data / f"{name}.npz", seed), model, keys, seed))
            cpu = (time.process_time() - begin) / arguments.seeds
            accuracy, macro = (
                [100 * result[f"test_{figure}"] for result in results] for figure in ("accuracy", "macro_f1")
            )
            spread = statistics.stdev(accuracy) if len(accuracy) > 1 else 0.0
            figures = f"{statistics.mean(accuracy):8.2f}  {spread:9.2f}  {statistics.mean(macro):8.2f}"
            print(f"{name:7} {model:12} {figures}  {PUBLISHED.get((model, name), ''):>9}  {cpu:5.1f}", flush=True)


if __name__ == "__main__":
    main()
