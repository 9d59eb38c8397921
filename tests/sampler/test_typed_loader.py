"""Batches of seeds of a type, as `HeteroData`, DGL's blocks and arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, HGTConv, SAGEConv
from torch_geometric.utils import trim_to_layer

from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.pyg import NeighborLoader
from gnnkit.sampler import (
    BalancedSampler,
    ClusterSampler,
    FullSampler,
    LaborSampler,
    LoadedBatch,
    Loader,
    NeighborSampler,
    Sampler,
    WeightedSampler,
)
from gnnkit.sampler.typed_batch import RelationBlock

COUNTS = {"author": 30, "paper": 50, "venue": 4}
WRITES, CITES, BY = ("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "by", "author")
SHOWS, KNOWS = ("venue", "shows", "paper"), ("author", "knows", "author")
NUM_EDGES = {WRITES: 200, CITES: 300, BY: 150, SHOWS: 20, KNOWS: 0}
FANOUTS = {"default": [3, 2], CITES: [2, 0], BY: [1, -1], SHOWS: [-1, -1]}
MAKERS: dict[str, Callable[[], Sampler]] = {
    "neighbor": lambda: NeighborSampler(FANOUTS, importance="mean"),
    "replace": lambda: NeighborSampler(FANOUTS, replace=True),
    "weighted": lambda: WeightedSampler(FANOUTS, importance="sum"),
    "labor": lambda: LaborSampler(FANOUTS),
    "balanced": lambda: BalancedSampler(FANOUTS),
    "full": FullSampler,
}


def drawn_graph() -> HeteroData:
    """Types of different widths, one without features, and a relation without edges."""
    generator, data = torch.Generator().manual_seed(0), HeteroData()
    data["author"].x = torch.rand(COUNTS["author"], 4, generator=generator)
    data["paper"].x = torch.rand(COUNTS["paper"], 7, generator=generator, dtype=torch.float64)
    data["venue"].num_nodes = COUNTS["venue"]
    data["paper"].y = torch.arange(COUNTS["paper"]) % 3
    data["author"].y = torch.arange(COUNTS["author"]) % 2
    for edge_type, num_edges in NUM_EDGES.items():
        ends = [torch.randint(COUNTS[edge_type[end]], (num_edges,), generator=generator) for end in (0, 2)]
        data[edge_type].edge_index = torch.stack(ends)
    data[CITES].edge_attr = torch.arange(NUM_EDGES[CITES] * 2.0).view(-1, 2)
    data[BY].edge_attr = torch.arange(NUM_EDGES[BY])
    data[WRITES].edge_weight = (torch.arange(NUM_EDGES[WRITES]) % 4).float()
    return data


DATA = drawn_graph()


def loader(graph: Any = DATA, sampler: Any = FANOUTS, seeds: Any = ("paper", None), **changes: Any) -> Loader:
    options = {"batch_size": 8, "seed": 3, "transform": LoadedBatch.to_pyg, **changes}
    return Loader(graph, sampler, seeds, **options)


def content(batches: Any) -> list[Any]:
    return [item for batch in batches for store in batch.stores for item in sorted(store.items())]


def assert_same(first: list[Any], second: list[Any]) -> None:
    for (key, value), (other_key, other) in zip(first, second, strict=True):
        assert key == other_key
        assert torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other


def test_a_batch_shows_its_shapes_by_type() -> None:
    batch = next(iter(loader(transform=None)))
    papers, authors, venues = (len(batch.input_nodes[name]) for name in ("paper", "author", "venue"))
    edges = {kind: [len(block.relations[kind].row) for block in batch.blocks] for kind in DATA.edge_types}
    assert repr(batch).splitlines() == [
        "TypedBatch(",
        f"  author={{ input_nodes=[{authors}], x=[{authors}, 4] }},",
        f"  paper={{ seeds=[8], y=[8], input_nodes=[{papers}], x=[{papers}, 7] }},",
        f"  venue={{ input_nodes=[{venues}] }},",
        *(f"  ({', '.join(kind)})={{ edges={edges[kind]} }}," for kind in DATA.edge_types),
        ")",
    ]


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("seed_type", ["paper", "author"])
def test_every_drawn_edge_exists_and_counts_add_up(name: str, seed_type: str) -> None:
    seen = []
    for batch in loader(sampler=MAKERS[name](), seeds=seed_type):
        assert batch.node_types == DATA.node_types
        assert batch.edge_types == DATA.edge_types
        seeds = batch[seed_type]
        assert torch.equal(seeds.n_id[: seeds.batch_size], seeds.input_id)
        seen += seeds.input_id.tolist()
        for node_type, store in batch.node_items():
            assert len(store.n_id.unique()) == store.num_nodes == sum(store.num_sampled_nodes)
            assert store.num_sampled_nodes[0] == (seeds.batch_size if node_type == seed_type else 0)
            for key in ("x", "y"):
                assert (key in store) is (key in DATA[node_type])
                assert key not in store or torch.equal(store[key], DATA[node_type][key][store.n_id])
        for edge_type, store in batch.edge_items():
            (source, _, destination), original = edge_type, DATA[edge_type]
            ends = torch.stack([batch[source].n_id[store.edge_index[0]], batch[destination].n_id[store.edge_index[1]]])
            assert torch.equal(ends, original.edge_index[:, store.e_id])
            assert sum(store.num_sampled_edges) == store.num_edges
            for key in ("edge_attr", "edge_weight"):
                assert (key in store) is (key in original)
                assert key not in store or torch.equal(store[key], original[key][store.e_id])
            assert ("importance" in store) is (name in ("neighbor", "weighted"))
        assert batch.validate()
    assert sorted(seen) == list(range(COUNTS[seed_type]))


@pytest.mark.parametrize("name", ["neighbor", "replace", "weighted"])
def test_fanouts_bound_the_draws_of_a_relation_and_minus_one_takes_all(name: str) -> None:
    sampler = MAKERS[name]()
    for batch in loader(sampler=sampler):
        for edge_type, store in batch.edge_items():
            degree = torch.bincount(DATA[edge_type].edge_index[1], minlength=COUNTS[edge_type[2]])
            known = begin = first = 0
            for hop, fanout in enumerate(sampler.fanouts.of("-".join(edge_type))):  # type: ignore[union-attr]
                known, begin = known + batch[edge_type[2]].num_sampled_nodes[hop], known
                col = store.edge_index[1, first : first + store.num_sampled_edges[hop]]
                first += len(col)
                assert not len(col) or begin <= int(col.min()) <= int(col.max()) < known
                counts = torch.bincount(col, minlength=known)[begin:known]
                every = degree[batch[edge_type[2]].n_id[begin:known]]
                if fanout < 0:
                    assert torch.equal(counts, every)
                elif name == "neighbor":
                    assert torch.equal(counts, every.clamp(max=fanout))
                else:
                    assert (counts <= fanout).all()


@pytest.mark.parametrize("name", MAKERS)
def test_batches_are_the_same_for_any_threads_and_prefetch(name: str) -> None:
    one, two = (
        content(loader(sampler=MAKERS[name](), threads=threads, prefetch=prefetch))
        for threads, prefetch in ((1, 1), (3, 5))
    )
    assert_same(one, two)


def test_ranks_share_an_epoch_and_draw_as_one_rank_does() -> None:
    sampler = NeighborSampler([2, 2])  # a node draws the same at every hop
    (whole, *_) = loader(sampler=sampler, batch_size=16)
    parts = [next(iter(loader(sampler=sampler, batch_size=8, rank=rank, world_size=2))) for rank in range(2)]
    seeds = torch.cat([part["paper"].input_id for part in parts])
    assert torch.equal(seeds, whole["paper"].input_id)
    for edge_type in DATA.edge_types:
        drawn = set(whole[edge_type].e_id.tolist())
        assert drawn == set().union(*(part[edge_type].e_id.tolist() for part in parts))


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_graph_made_from_the_data_gives_the_same_batches(shuffle: bool) -> None:
    data = drawn_graph()
    del data["author"].y, data[CITES].edge_attr, data[BY].edge_attr, data[WRITES].edge_weight
    data["paper"].x = data["paper"].x.float()
    graph = Graph.from_pyg(data)
    for one, two in zip(loader(data, shuffle=shuffle), loader(graph, shuffle=shuffle), strict=True):
        for node_type, store in one.node_items():
            assert torch.equal(store.n_id, two[node_type].n_id)
            for key in ("x", "y"):
                assert (key in store) is (key in two[node_type])
                assert key not in store or torch.equal(store[key], two[node_type][key])
        for edge_type, store in one.edge_items():
            assert torch.equal(store.edge_index, two[edge_type].edge_index)
            assert torch.equal(store.e_id, two[edge_type].e_id)


def test_edge_values_of_a_graph_follow_its_edges() -> None:
    data = drawn_graph()
    for edge_type, store in data.edge_items():
        store.edge_attr = torch.arange(NUM_EDGES[edge_type], dtype=torch.float32)[:, None]
        store.edge_weight = store.edge_attr[:, 0] + 1
    del data["author"].y
    for batch in loader(Graph.from_pyg(data)):
        for _, store in batch.edge_items():
            assert torch.equal(store.edge_attr[:, 0].long(), store.e_id)
            assert torch.equal(store.edge_weight.long(), store.e_id + 1)


def test_data_without_edges_or_without_nodes_of_a_type_is_sampled() -> None:
    data = HeteroData()
    data["author"].x, data["empty"].x = torch.arange(5.0), torch.empty(0, 3)
    (batch,) = loader(data, [2, 2], "author", shuffle=False)
    assert batch.node_types == ["author", "empty"]
    assert torch.equal(batch["author"].x, data["author"].x)
    assert batch["empty"].x.shape == (0, 3)
    assert batch["author"].num_sampled_nodes == [5, 0, 0]


def test_a_rank_without_seeds_has_an_empty_batch() -> None:
    (batch,) = loader(seeds=("paper", [4]), rank=1, world_size=2, repeat=False)
    assert batch["paper"].batch_size == batch.num_nodes == batch.num_edges == 0
    assert batch["paper"].x.shape == (0, 7)


def test_a_saved_graph_gives_the_same_batches(tmp_path: Path) -> None:
    data = drawn_graph()
    del data["author"].y, data[CITES].edge_attr, data[BY].edge_attr
    graph = Graph.from_pyg(data)
    graph.save(tmp_path / "graph")
    assert_same(content(loader(graph)), content(loader(Graph.load(tmp_path / "graph"))))


def test_edges_drawn_without_ids_have_no_values() -> None:
    batch = next(iter(loader(sampler=NeighborSampler([2, 2], edge_ids=False))))
    assert not {"e_id", "edge_attr", "edge_weight"} & set().union(*(store.keys() for store in batch.edge_stores))
    assert batch[CITES].num_edges


@pytest.mark.parametrize(
    ("seeds", "expected"),
    [
        ("venue", [0, 1, 2, 3]),
        (("paper", torch.arange(50) % 9 == 4), [4, 13, 22, 31, 40, 49]),
        (("author", [5, 2, 29]), [5, 2, 29]),
        (("author", []), []),
    ],
)
def test_seeds_are_a_type_a_mask_or_ids(seeds: Any, expected: list[int]) -> None:
    name = seeds if isinstance(seeds, str) else seeds[0]
    batches = list(loader(seeds=seeds, shuffle=False))
    assert [node for batch in batches for node in batch[name].n_id[: batch[name].batch_size].tolist()] == expected


def test_all_neighbours_are_those_of_pygs_loader() -> None:
    theirs = NeighborLoader(DATA, [-1, -1], ("paper", None), batch_size=8)
    for ours, other in zip(loader(sampler=[-1, -1], shuffle=False), theirs, strict=True):
        for node_type, store in ours.node_items():
            assert store.num_sampled_nodes == other[node_type].num_sampled_nodes
            assert set(store.n_id.tolist()) == set(other[node_type].n_id.tolist())
        for edge_type, store in ours.edge_items():
            assert store.num_sampled_edges == other[edge_type].num_sampled_edges
            assert Counter(store.e_id.tolist()) == Counter(other[edge_type].e_id.tolist())


class Model(torch.nn.Module):
    """Two layers of PyG, in double precision."""

    def __init__(self, make: Callable[[], torch.nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lins = torch.nn.ModuleDict({"author": torch.nn.Linear(4, 8), "paper": torch.nn.Linear(7, 8)})
        self.venue = torch.nn.Embedding(COUNTS["venue"], 8)
        self.layers = torch.nn.ModuleList([make(), make()])
        self.double()

    def forward(self, data: HeteroData, trim: bool = False) -> torch.Tensor:
        venues = data["venue"].n_id if "n_id" in data["venue"] else torch.arange(COUNTS["venue"])
        x = {name: lin(data[name].x.double()) for name, lin in self.lins.items()} | {"venue": self.venue(venues)}
        edges = data.edge_index_dict
        for hop, layer in enumerate(self.layers):
            if trim:
                x, edges, _ = trim_to_layer(hop, data.num_sampled_nodes_dict, data.num_sampled_edges_dict, x, edges)
            x = {**x, **{name: rows for name, rows in layer(x, edges).items() if rows is not None}}
        rows: torch.Tensor = x["paper"]
        return rows


LAYERS: dict[str, Callable[[], torch.nn.Module]] = {
    "hgt": lambda: HGTConv(8, 8, DATA.metadata(), heads=2),
    "sage by relation": lambda: HeteroConv({edge_type: SAGEConv(8, 8) for edge_type in DATA.edge_types}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_batches_with_all_neighbours_have_the_logits_of_the_graph(name: str) -> None:
    model = Model(LAYERS[name])
    expected = model(DATA)
    for batch in loader(sampler=FullSampler(2)):
        seeds = batch["paper"]
        torch.testing.assert_close(model(batch)[: seeds.batch_size], expected[seeds.input_id], rtol=1e-10, atol=1e-10)


def test_hops_are_in_order_so_that_pyg_can_trim() -> None:
    model = Model(LAYERS["sage by relation"])
    for batch in loader():
        size = batch["paper"].batch_size
        torch.testing.assert_close(model(batch, trim=True)[:size], model(batch)[:size])


def test_tables_by_type_replace_those_of_the_graph(tmp_path: Path) -> None:
    table = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float16, (COUNTS["venue"], 3))
    table[:] = np.arange(12).reshape(4, 3)
    table.flush()
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for batch in loader(features={"venue": mapped}, labels={"venue": np.arange(4)}, seeds="venue", sampler=[1]):
        assert torch.equal(batch["venue"].x, torch.from_numpy(np.array(mapped))[batch["venue"].n_id])
        assert torch.equal(batch["venue"].y, batch["venue"].n_id)
        assert batch["author"].x.shape[1] == 4


def test_arrays_are_the_edges_of_pyg_data() -> None:
    for batch, data in zip(loader(transform=None), loader(), strict=True):
        arrays = batch.arrays()
        assert arrays["x"].keys() == {"author", "paper"}
        assert torch.equal(batch.to_torch()["x"]["author"], data["author"].x)
        np.testing.assert_array_equal(arrays["y"], DATA["paper"].y[arrays["seeds"]])
        np.testing.assert_array_equal(arrays["seeds"], data["paper"].n_id[: data["paper"].batch_size])
        outer, inner = arrays["blocks"]
        for edge_type, store in data.edge_items():
            edges = outer["edges"]["-".join(edge_type)]
            np.testing.assert_array_equal(edges["edge_ids"], store.e_id)
            np.testing.assert_array_equal(edges["indices"], store.edge_index[0])
            col = np.repeat(np.arange(len(edges["indptr"]) - 1), np.diff(edges["indptr"]))
            np.testing.assert_array_equal(col, store.edge_index[1])
            assert len(inner["edges"]["-".join(edge_type)]["indices"]) == store.num_sampled_edges[0]
            assert len(edges["indptr"]) - 1 == len(inner["src_nodes"][edge_type[2]])
        for node_type, store in data.node_items():
            np.testing.assert_array_equal(outer["src_nodes"][node_type], store.n_id)
        assert batch.to("cpu")["blocks"][0]["edges"].keys() == outer["edges"].keys()


def test_dgl_blocks_have_the_edges_of_ours() -> None:
    dgl = pytest.importorskip("dgl", reason="DGL has no build for this torch")
    for batch in loader(transform=None):
        inputs, outputs, blocks = batch.to_dgl()
        assert outputs["paper"].tolist() == batch.seeds.tolist()
        assert {name: nodes.tolist() for name, nodes in inputs.items()} == {
            name: nodes.tolist() for name, nodes in batch.input_nodes.items()
        }
        for theirs, ours in zip(blocks, batch.blocks, strict=True):
            for relation, edges in ours.relations.items():
                row, col = theirs.edges(etype=tuple(relation))
                assert (row.tolist(), col.tolist()) == (edges.row.tolist(), edges.col.tolist())
                assert theirs.edges[tuple(relation)].data[dgl.EID].tolist() == edges.edge_positions.tolist()


def test_inner_blocks_divide_like_the_outermost() -> None:
    for batch in loader(transform=None):
        for block, inner in zip(batch.minibatch.blocks, batch.blocks, strict=True):
            alone = replace(batch, minibatch=replace(batch.minibatch, blocks=(block,))).blocks[0]
            assert inner.num_dst == alone.num_dst
            assert {name: nodes.tolist() for name, nodes in inner.src_nodes.items()} == {
                name: nodes[: len(inner.src_nodes[name])].tolist() for name, nodes in alone.src_nodes.items()
            }
            for relation, edges in inner.relations.items():
                for name, column in vars_of(alone.relations[relation]).items():
                    np.testing.assert_array_equal(vars_of(edges)[name], column)


def vars_of(edges: RelationBlock) -> dict[str, Any]:
    return {column.name: getattr(edges, column.name) for column in fields(edges)}


def test_redrawn_nodes_have_arrays_but_no_pyg_data() -> None:
    sampler = NeighborSampler([2, 2], redraw=True)
    with pytest.raises(UserError, match="redraw=false"):
        next(iter(loader(sampler=sampler)))
    batch = next(iter(loader(sampler=sampler, transform=None)))
    for block in batch.blocks:
        for relation, edges in block.relations.items():
            ends = DATA[tuple(relation)].edge_index.numpy()[:, edges.edge_positions]
            np.testing.assert_array_equal(block.src_nodes[relation.source][edges.row], ends[0])
            np.testing.assert_array_equal(block.src_nodes[relation.destination][edges.col], ends[1])


def test_loaders_of_a_graph_share_its_edges_and_features() -> None:
    data = drawn_graph()
    del data["author"].y
    graph = Graph.from_pyg(data)
    first, second = loader(graph), loader(graph, seeds=("author", None))
    assert first.tables.arrays is second.tables.arrays
    other = loader(graph, features={"author": np.zeros((COUNTS["author"], 2))})
    assert other.tables.arrays is first.tables.arrays
    assert next(iter(other))["author"].x.shape[1] == 2
    assert next(iter(first))["author"].x.shape[1] == 4
    assert loader(Graph.from_pyg(data)).tables.arrays is not first.tables.arrays


def test_a_graph_whose_nodes_have_no_types_has_one() -> None:
    graph = Graph.from_edges([0, 1, 2, 0], [1, 2, 0, 2], 3, edge_types=[0, 1, 0, 1], edge_type_names=["likes", "knows"])
    (batch,) = loader(graph, [-1], "node")
    assert batch.edge_types == [("node", "likes", "node"), ("node", "knows", "node")]
    assert sorted(batch["node", "knows", "node"].e_id.tolist()) == [0, 1]


def test_a_loader_of_types_resumes_to_the_bit() -> None:
    first = loader()
    batches = iter(first)
    next(batches)
    other = loader()
    other.load_state_dict(first.state_dict())
    assert_same(content(batches), content(other))


def test_batches_of_balanced_cost_have_every_seed() -> None:
    batches = list(loader(batching="balanced"))
    assert sorted(torch.cat([batch["paper"].input_id for batch in batches]).tolist()) == list(range(50))


class Classifier(lightning.LightningModule):
    """Trains on `HeteroData`, and predicts from tensors by type."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(LAYERS["sage by relation"])
        self.seen: list[int] = []

    def training_step(self, batch: HeteroData, index: int) -> torch.Tensor:
        paper = batch["paper"]
        self.seen += paper.input_id.tolist()
        return torch.nn.functional.cross_entropy(self.model(batch)[: paper.batch_size], paper.y[: paper.batch_size])

    def predict_step(self, batch: dict[str, Any], index: int) -> torch.Tensor:
        assert batch["x"]["author"].shape == (len(batch["input_nodes"]["author"]), 4)
        seeds: torch.Tensor = batch["seeds"]
        return seeds

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.slow
def test_lightning_trains_and_predicts_with_loaders_of_types(tmp_path: Path) -> None:
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=2,
        default_root_dir=tmp_path,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    classifier = Classifier()
    trainer.fit(classifier, loader())
    assert sorted(classifier.seen) == sorted([*range(50)] * 2)
    predicted = trainer.predict(classifier, loader(transform=None, shuffle=False))
    assert predicted is not None
    assert torch.cat(predicted).tolist() == list(range(50))  # type: ignore[arg-type]


def without_relations() -> Graph:
    data = drawn_graph()
    del data["author"].y, data[CITES].edge_attr, data[BY].edge_attr
    return replace(Graph.from_pyg(data), relations=None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": None}, r"seeds=\('author', mask\)"),
        ({"seeds": "journal"}, "seeds='journal' is not a node type: expected one of author, paper, venue"),
        ({"seeds": ("paper", [50])}, r"seeds\[0\] = 50 is out of range for 50 nodes of type 'paper'"),
        (
            {"seeds": ("paper", np.ones(3, bool))},
            r"mask has shape \[3\], expected \[50\] for the nodes of type 'paper'",
        ),
        ({"sampler": {"default": [2], "paper-by-venue": [2]}}, "paper-by-venue is not a relation of the graph"),
        ({"sampler": ClusterSampler(np.zeros(84, int))}, "ClusterSampler does not draw by relation"),
        ({"features": np.ones((84, 2))}, "features=ndarray must be a mapping from node types"),
        ({"features": {"journal": np.ones((4, 2))}}, r"features=\['journal'\] must be a mapping"),
        ({"features": {"paper": np.ones((4, 2))}}, r"features\['paper'\] must have a row .* 50 nodes"),
        ({"features": {"paper": np.ones((50, 4))[:, ::2]}}, r"features\['paper'\] must be C-contiguous"),
        ({"labels": {"paper": np.ones(4)}}, r"labels\['paper'\] must have a row .* 50 nodes"),
        ({"graph": without_relations}, "relations is None"),
    ],
)
def test_bad_arguments_name_the_rule_and_the_value(changes: dict[str, Any], message: str) -> None:
    graph = changes.pop("graph", drawn_graph)()
    with pytest.raises(ValueError, match=message):
        next(iter(loader(graph, **changes)))


def acm(folder: Path) -> HeteroData:
    """Papers with features, and authors and subjects without any."""
    with np.load(folder / "acm.npz") as arrays:
        data = HeteroData()
        indptr, width = torch.from_numpy(arrays["feature_indptr"]).long(), int(arrays["num_features"])
        rows = torch.repeat_interleave(torch.arange(len(indptr) - 1), indptr.diff())
        data["paper"].x = torch.zeros(len(indptr) - 1, width)
        data["paper"].x[rows, torch.from_numpy(arrays["feature_indices"]).long()] = 1
        data["paper"].y = torch.from_numpy(arrays["labels"]).long()
        for name in ("author", "subject"):
            ends = torch.from_numpy(arrays[f"paper_{name}"]).long()
            data[name].num_nodes = int(ends[1].max()) + 1
            data["paper", "to", name].edge_index, data[name, "of", "paper"].edge_index = ends, ends.flip(0)
    return data


@pytest.mark.slow
@pytest.mark.long("reads ACM in batches of all frameworks")
@pytest.mark.exhaustive
def test_batches_of_acm_have_its_edges_and_rows(data_folder: Path) -> None:
    data = acm(data_folder)
    (ours, *_), (theirs, *_) = (
        loader(data, [-1, -1], batch_size=64, shuffle=False),
        NeighborLoader(data, [-1, -1], "paper", batch_size=64),
    )
    assert set(ours["author"].n_id.tolist()) == set(theirs["author"].n_id.tolist())
    for edge_type, store in ours.edge_items():
        (source, _, destination) = edge_type
        ends = torch.stack([ours[source].n_id[store.edge_index[0]], ours[destination].n_id[store.edge_index[1]]])
        assert torch.equal(ends, data[edge_type].edge_index[:, store.e_id])
        assert set(store.e_id.tolist()) == set(theirs[edge_type].e_id.tolist())
    assert torch.equal(ours["paper"].x, data["paper"].x[ours["paper"].n_id])


def test_times_are_not_ignored_silently() -> None:
    data = HeteroData()
    data["user"].x, data["item"].num_nodes = torch.ones(6, 1), 4
    data["user", "buys", "item"].edge_index = torch.stack([torch.arange(6), torch.arange(6) % 4])
    data["user", "buys", "item"].time = torch.arange(6)
    with pytest.raises(UserError, match=r"Loader: data\['user-buys-item'\]\.time holds times"):
        Loader(data, [2], "item")
    data["item"].train_mask = torch.ones(4, dtype=torch.bool)
    with pytest.warns(UserWarning, match=r"Loader: ignores unknown attributes: data\['user-buys-item'\]\.time"):
        Loader(data, [2], ("item", data["item"].train_mask))


def test_labels_may_be_a_column() -> None:
    labels = np.arange(2 * DATA["venue"].num_nodes).reshape(-1, 2)
    loader = Loader(DATA, [2], "venue", labels={"venue": labels[:, 0]})
    assert {int(y) for batch in loader for y in batch.to_pyg()["venue"].y} <= {*range(0, 2 * len(labels), 2)}
