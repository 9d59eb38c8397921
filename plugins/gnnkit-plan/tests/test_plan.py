"""job=plan predicts the counts of the engine, for every layout and model."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import gnnkit_plan.plan
import numpy as np
import pytest
import torch
from gnnkit_formats.synthetic import Synthetic
from gnnkit_plan import layouts
from gnnkit_plan import step as plan_step
from gnnkit_plan.layout import PROCESS_BYTES
from gnnkit_plan.step import Volume, step_activations, step_volume
from gnnkit_plan.trial import num_bytes, saved_tensors
from torch import nn
from torch_geometric.nn import SAGEConv

import gnnkit
from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.engine import Engine, ShardAdjacency, Tally
from gnnkit.graph import Graph
from gnnkit.model.gat import GAT
from gnnkit.model.gcn import GCN
from gnnkit.model.gin import GIN, GINE
from gnnkit.model.hgt import HGT
from gnnkit.model.rgat import RGAT
from gnnkit.model.rgcn import RGCN
from gnnkit.model.sage import GraphSAGE
from gnnkit.model.simple_hgn import SimpleHGN
from gnnkit.partition.base import Grid, Partition
from gnnkit.partition.quality import Quality, measure
from gnnkit.partition.shard import Shard, cut_all
from gnnkit.strategy.base import Worker
from gnnkit.strategy.vertex_centric import VertexCentric
from gnnkit.utils.ranges import num_cores
from tests.cases import exhaustive, few
from tests.graphs import featured_graph
from tests.models import PyG
from tests.runs import BARE

WIDTH, EDGE_WIDTH, CLASSES = 7, 2, 3
MODELS = {
    "gcn": GCN,
    "sage": GraphSAGE,
    "sage-max": functools.partial(GraphSAGE, aggregator="max"),
    "gat": functools.partial(GAT, heads=3, edge_width=EDGE_WIDTH),
    "gin": GIN,
    "gine": functools.partial(GINE, edge_width=EDGE_WIDTH),
    "rgcn": functools.partial(RGCN, num_relations=3),
    "rgcn-bases": functools.partial(RGCN, num_relations=3, bases=2, inverse=False),
    "rgat": functools.partial(RGAT, num_relations=3, heads=2),
    "hgt": functools.partial(HGT, num_relations=3, heads=2),
    "simple_hgn": functools.partial(SimpleHGN, num_relations=3, heads=2, relation_width=4),
}


DROPOUT = {f"{name} with dropout": name for name in ("gcn", "gat", "rgcn")}
Counted = tuple[dict[Any, int], int, int]  # words of each layer and step, messages, bytes


def counted(shards: list[Shard], model: nn.Module, comm: Communicator) -> Counted:
    """In one training step."""
    model, shard = copy.deepcopy(model), shards[comm.rank]
    engine = Engine(shard.with_self_loops() if model.self_loops else shard, comm, torch.float64)
    layers = ShardAdjacency.layers(engine, model.num_layers, 1)  # type: ignore[arg-type]
    model(torch.tensor(shard.features), layers).sum().backward()
    return totals(engine.tally)


def totals(traffic: Tally) -> Counted:
    words: dict[Any, int] = {}
    for (layer, step, _), number in traffic.words.items():
        words[layer, step] = words.get((layer, step), 0) + number
    return words, sum(traffic.messages.values()), traffic.bytes_sent


def counted_later(shards: list[Shard], model: nn.Module, comm: Communicator) -> Counted:
    """In the second epoch of the strategy."""
    model, strategy = copy.deepcopy(model), VertexCentric()
    strategy.setup(Worker(comm, shards[comm.rank], torch.float64, 0), model)
    for epoch in range(2):
        strategy.tally.reset()
        (batch,) = strategy.batches(epoch)
        model(batch.x, batch.adjacencies).sum().backward()
    strategy.close()
    return totals(strategy.tally)


def partition_on(grid: Grid, graph: Graph) -> Partition:
    owner = np.random.default_rng(0).integers(0, grid.world_size, graph.num_nodes).astype(np.int32)
    return Partition(owner, None, grid)


Layout = tuple[Grid, Quality, list[Shard]]
Shapes = Sequence[tuple[int, int, int]]


@functools.cache
def layout(shape: tuple[int, int, int]) -> Layout:
    """Cuts `featured_graph()` for a grid."""
    partition = partition_on(Grid(*shape), featured_graph())
    return Grid(*shape), measure(featured_graph(), partition), list(cut_all(featured_graph(), partition))


GRIDS = [(1, 1, 1), (4, 2, 1), (2, 2, 2), (2, 1, 3)]
OTHER_GRIDS = [(4, 1, 1), (2, 2, 1), (1, 1, 4), (3, 2, 1)]


def on_grids(names: Collection[str], default: Collection[str]) -> pytest.MarkDecorator:
    """Parametrises a test over models on some grids, and some models on others."""
    on_more = [name for name in names if name in ("gcn", "gat", "rgcn")] or names
    cases = [pytest.param(name, GRIDS, id=name) for name in names]
    cases += [exhaustive(pytest.param(name, OTHER_GRIDS, id=f"{name}-other grids")) for name in on_more]
    return few("name,shapes", cases, default=default)


def check_volume(planned: Volume, results: Sequence[Counted], grid: Grid) -> None:
    for rank, (words, messages, sent) in enumerate(results):
        expected = {key: int(per_rank[rank]) for key, per_rank in planned.words.items() if per_rank[rank]}
        assert words == expected, (grid, rank)
        assert messages == planned.messages[rank], (grid, rank)
        assert sent == planned.bytes_sent[rank], (grid, rank)


@pytest.mark.slow
@on_grids(MODELS, default=("gcn", "sage", "gat", "gin", "rgcn-bases"))
def test_words_and_messages_planned_are_those_counted(name: str, shapes: Shapes) -> None:
    torch.manual_seed(0)
    model = MODELS[name](WIDTH, CLASSES, hidden=5, num_layers=3).double()  # type: ignore[operator]
    graph = featured_graph()
    for grid, quality, shards in map(layout, shapes):
        planned, _ = step_volume(graph, model, quality)
        results = Threads.run(functools.partial(counted, shards, model), grid.world_size)
        check_volume(planned, results, grid)


@pytest.mark.slow
@pytest.mark.exhaustive
@few(
    "name,grid,workers,rows",
    [("gcn", "2d", 4, "sparse"), ("sage", "1d", 4, "sparse"), ("gin", "3d", 8, "dense"), ("gat", "2d", 4, "dense")],
    default=[("gcn", "2d", 4, "sparse")],
)
def test_bytes_planned_in_bfloat16_are_those_sent(name: str, grid: str, workers: int, rows: str, tmp_path: Any) -> None:
    keys: dict[str, Any] = {
        "strategy": "vertex_centric",
        "partition": grid,
        "workers": workers,
        "model": {"name": name, "hidden": 8},
        "comm": "threads",
        "input_rows": rows,
    }
    graph = featured_graph(typed=False)
    trainer = {"precision": "bf16-mixed", "max_epochs": 4, "check_val_every_n_epoch": 9}
    overrides = ["job=plan", "plan.bandwidth=1"]  # without trials
    planned = gnnkit.train(graph, folder=tmp_path / "plan", overrides=overrides, trainer=trainer, **keys)
    found = gnnkit.train(graph, folder=tmp_path / "run", trainer=trainer, **BARE, **keys)
    assert found["bytes_sent"] == planned["layouts"]["chosen"]["bytes_sent"]["max"]


@pytest.mark.slow
@on_grids([*MODELS, *DROPOUT], default=("gcn", "gcn with dropout"))
def test_words_planned_with_kept_sums_are_those_of_later_epochs(name: str, shapes: Shapes) -> None:
    torch.manual_seed(0)
    name, dropout = (DROPOUT[name], 0.5) if name in DROPOUT else (name, 0.0)
    model = MODELS[name](WIDTH, CLASSES, hidden=8, num_layers=2, dropout=dropout).double()  # type: ignore[operator]
    graph = featured_graph()
    for grid, quality, shards in map(layout, shapes):
        planned, _ = step_volume(graph, model, quality, keeps_sums=True)
        results = Threads.run(functools.partial(counted_later, shards, model), grid.world_size)
        check_volume(planned, results, grid)
        first, _ = step_volume(graph, model, quality)
        kept = dropout == 0 and name in ("gcn", "sage", "gin", "rgcn", "rgcn-bases")
        assert (planned.received.sum() < first.received.sum()) == (kept and grid.world_size > 1)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_the_job_counts_an_epoch_after_the_first(dropout: float, tmp_path: Any) -> None:
    model = {"name": "gcn", "dropout": dropout}
    keys = {"strategy": "vertex_centric", "partition": "2d", "workers": 4, "model": model, "comm": "threads"}

    def words(epochs: int) -> Any:  # [world_size]
        trainer = {"max_epochs": epochs, "check_val_every_n_epoch": 5}
        found = gnnkit.train(
            featured_graph(typed=False), folder=tmp_path / str(epochs), trainer=trainer, **BARE, **keys
        )
        return epochs * sum(np.array(found["per_rank"][f"words_{step}"]) for step in ("gathered", "reduced", "sliced"))

    overrides = ["job=plan", "plan.bandwidth=1"]  # without trials
    planned = gnnkit.train(featured_graph(typed=False), folder=tmp_path / "plan", overrides=overrides, **keys)
    later = np.array(planned["layouts"]["chosen"]["words"]["per_rank"])
    first, five = words(1), words(5)
    lost = 3 * 4  # the mean of each step's words is cut to a whole number
    assert (five <= first + 4 * later).all()
    assert (five > first + 4 * later - lost).all()
    assert (later + lost < first).all() if dropout == 0 else (later == first).all()


def kept(shards: list[Shard], model: nn.Module, comm: Communicator) -> int:
    """Bytes that autograd saves in the forward pass of a training step."""
    model, shard = copy.deepcopy(model), shards[comm.rank]
    engine = Engine(shard.with_self_loops() if model.self_loops else shard, comm, torch.float64)
    layers = ShardAdjacency.layers(engine, model.num_layers, 1)  # type: ignore[arg-type]
    x = torch.tensor(shard.features)
    with saved_tensors([x, *engine.lasting_tensors(), *model.parameters()]) as saved:
        model(x, layers)
    return num_bytes(saved)


@pytest.mark.slow
@on_grids(MODELS, default=("gcn", "sage-max"))
def test_activations_planned_are_those_that_autograd_saves(name: str, shapes: Shapes) -> None:
    torch.manual_seed(0)
    model = MODELS[name](WIDTH, CLASSES, hidden=5, num_layers=3).double()  # type: ignore[operator]
    graph = featured_graph()
    for grid, quality, shards in map(layout, shapes):
        _, sizes = step_volume(graph, model, quality)
        found = Threads.run(functools.partial(kept, shards, model), grid.world_size)
        assert min(found) > 0
        assert step_activations(graph, model, quality.traffic, sizes).tolist() == found, grid


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_few_of_many_slices_are_tried(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, graph = MODELS[name](WIDTH, CLASSES, hidden=5).double(), featured_graph(60)  # type: ignore[operator]
    grid = Grid(1, 1, 24)
    quality = measure(graph, Partition(np.zeros(60, np.int32), None, grid))
    tried: list[int] = []

    def planned() -> tuple[list[int], list[int]]:
        volume, sizes = step_volume(graph, model, quality)
        return volume.received.tolist(), step_activations(graph, model, quality.traffic, sizes).tolist()

    few = planned()
    original = plan_step.exchanges
    monkeypatch.setattr(plan_step, "exchanges", lambda *args: tried.append(args[3]) or original(*args))
    assert planned() == few
    assert len(tried) < grid.slices
    monkeypatch.setattr(plan_step, "_map_slices", lambda slices, evaluate: [evaluate(s) for s in range(slices)])
    assert planned() == few


@pytest.mark.slow
@pytest.mark.usefixtures("short_trials")
@pytest.mark.long("tries all layouts")
def test_the_job_compares_all_layouts_and_says_why(tmp_path: Any) -> None:
    result = gnnkit.train(
        featured_graph(typed=False),
        strategy="vertex_centric",
        partition="2d",
        workers=4,
        comm="threads",
        overrides=["job=plan"],
        folder=tmp_path / "run",
    )
    names = ["chosen", "1d", "[1,1,4]", "balanced", "ldg", "buffered"]  # 1.5d and 3d are the chosen 2d
    assert list(result["layouts"])[:6] == names
    assert result["layouts"]["ldg"]["grid"] == [4, 1, 1]
    assert result["layouts"]["chosen"]["overrides"] == "partition=contiguous partition.grid=2d"
    overrides = [layout["overrides"] for layout in result["layouts"].values()]
    assert result["why"].startswith(tuple(f"recommended: {keys}: " for keys in overrides))
    printed = [line[:26].strip() for line in result.summary.splitlines()]
    assert [printed.count(name) for name in names] == [1] * 6
    assert sum("seconds" in each for each in result["layouts"].values()) > 1
    assert all(len(each["memory_per_rank"]) == 4 for each in result["layouts"].values())


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.usefixtures("short_trials")
def test_layers_of_pyg_are_planned_on_layouts_that_serve_them(tmp_path: Any) -> None:
    def make(in_features: int, num_classes: int) -> nn.Module:
        return PyG([SAGEConv(in_features, 5), nn.ReLU(), SAGEConv(5, num_classes)])

    keys = {"strategy": "vertex_centric", "workers": 2, "comm": "threads", "model": make, "overrides": ["job=plan"]}
    result = gnnkit.train(featured_graph(typed=False), partition="1d", folder=tmp_path / "run", **keys)
    assert "[1,1,2]" not in result["layouts"]
    assert result["layouts"]["chosen"]["words"]["max"] > 0
    with pytest.raises(ValueError, match=r"use partition\.grid=1d and a partition of nodes"):
        gnnkit.train(
            featured_graph(typed=False),
            folder=tmp_path / "refused",
            **{**keys, "partition": {"name": "1d", "grid": [1, 1, 2]}},
        )


@pytest.mark.slow
@pytest.mark.exhaustive
def test_memory_predicted_is_that_of_the_run_within_15_percent(tmp_path: Any) -> None:
    graph = Synthetic(kind="sbm", num_nodes=10_000, num_edges=50_000, width=64).load()
    usual: dict[str, Any] = {"strategy": "vertex_centric", "workers": 2, "threads": 1, "comm": "gloo", **BARE}
    plan = gnnkit.train(graph, folder=tmp_path / "plan", job="plan", **usual)
    predicted = plan["layouts"]["chosen"]["memory_per_rank"]
    gnnkit.train(graph, folder=tmp_path / "run", trainer={"max_epochs": 3, "check_val_every_n_epoch": 1}, **usual)
    states = [json.loads(line) for line in (tmp_path / "run" / "workers.jsonl").read_text().splitlines()]
    measured = [max(state["memory"] for state in states if state["rank"] == rank) for rank in range(2)]
    assert predicted == pytest.approx(measured, rel=0.15)


@pytest.mark.slow
@pytest.mark.usefixtures("short_trials")
@pytest.mark.exhaustive
def test_layouts_beyond_the_bound_of_trials_have_no_seconds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    graph = featured_graph(typed=False)
    keys: dict[str, Any] = {"strategy": "vertex_centric", "workers": 4, "comm": "threads", "partition": "hash"}
    monkeypatch.setattr(layouts, "TRIED_EDGES", graph.num_edges)
    plan = gnnkit.train(graph, folder=tmp_path / "plan", job="plan", **keys)
    assert [name for name, layout in plan["layouts"].items() if "seconds" in layout] == ["chosen"]
    assert all(layout["memory"] > 0 and layout["words"]["max"] > 0 for layout in plan["layouts"].values())
    assert "1.5d, [1,1,4], " in plan.summary


@pytest.mark.slow
@pytest.mark.parametrize("key", ["plan.bandwidth=0.001", "threads=1"])
def test_ranks_elsewhere_are_planned_by_words_over_bandwidth(key: str, tmp_path: Path) -> None:
    keys: dict[str, Any] = {"strategy": "vertex_centric", "comm": "threads", "partition": "1d", "job": "plan"}
    workers = 4 if key.startswith("plan") else layouts.CROWDED * num_cores() + 1
    graph = featured_graph(60, typed=False)
    plan = gnnkit.train(graph, folder=tmp_path / "plan", workers=workers, overrides=[key], **keys)
    assert all(len(layout["memory_per_rank"]) == workers for layout in plan["layouts"].values())
    assert not any("seconds" in layout for layout in plan["layouts"].values())
    name = next(name for name in plan["layouts"] if name in ("1.5d", "2d"))
    seconds = plan["layouts"][name]["bytes_sent"]["max"] / 1e6
    assert (f"{name} {seconds:.3g} s" in plan.summary) == key.startswith("plan")
    assert ("plan.bandwidth=GB/s predicts" in plan.summary) == (not key.startswith("plan"))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_data_of_ranks_elsewhere_is_predicted_within_40_percent(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"strategy": "vertex_centric", "workers": 2, "threads": 1, "comm": "gloo", **BARE}

    def measured(num_nodes: int) -> int:
        graph, folder = Synthetic("sbm", num_nodes, 5 * num_nodes, width=128).load(), tmp_path / str(num_nodes)
        gnnkit.train(graph, folder=folder, trainer={"max_epochs": 3}, **keys)
        lines = (folder / "workers.jsonl").read_text().splitlines()
        return max(json.loads(line)["memory"] for line in lines)

    graph = Synthetic("sbm", 40_000, 200_000, width=128).load()
    plan = gnnkit.train(graph, folder=tmp_path / "plan", job="plan", overrides=["plan.bandwidth=1"], **keys)
    planned = max(plan["layouts"]["chosen"]["memory_per_rank"]) - PROCESS_BYTES
    assert planned == pytest.approx(measured(40_000) - measured(100), rel=0.4)


@pytest.mark.slow
@pytest.mark.usefixtures("short_trials")
@pytest.mark.parametrize(
    ("overrides", "scheme", "saves"),
    [
        ([], None, True),
        (["exchange=pipelined"], "words and seconds are those of exact exchange, and exchange=pipelined sends fewer", True),
        (["exchange=quantized"], "words are those of exact exchange, and exchange=quantized sends fewer", False),
        (["strategy.local_iterations=4"], "strategy.local_iterations=4 sends fewer bytes", True),
        (["sync=leader", "sync.mode=ssp"], "sync.mode=ssp sends fewer bytes", True),
    ],
)  # fmt: skip
def test_counts_of_exact_exchange_say_so_beside_an_approximate_scheme(
    overrides: list[str], scheme: str | None, saves: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys: dict[str, Any] = {"strategy": "vertex_centric", "workers": 2, "comm": "threads", "partition": "hash"}
    graph = featured_graph(typed=False)
    plan = gnnkit.train(graph, folder=tmp_path / "run", job="plan", overrides=overrides, **keys)
    assert ("exact exchange" in plan.summary) == (scheme is not None)
    assert scheme is None or scheme in plan.summary
    assert ("use exchange=quantized" in plan.summary) == saves
    assert "schedule of" not in capsys.readouterr().out, "trials print no schedule"


@pytest.mark.slow
def test_what_is_on_is_not_advised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gnnkit_plan.plan, "PAYS", -1.0)
    keys: dict[str, Any] = {"strategy": "vertex_centric", "workers": 2, "comm": "threads", "overrides": ["job=plan"]}
    section, graph = {"name": "hash", "border": "min_words"}, featured_graph(typed=False)
    plan = gnnkit.train(graph, folder=tmp_path / "run", partition=section, exchange="pipelined", **keys)
    assert "reduce words: try partition=auto\n" in plan.summary


@pytest.mark.slow
def test_sampled_steps_are_trained_instead(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"strategy": "individual_sample", "workers": 2, "comm": "threads", "job": "plan"}
    with pytest.raises(
        gnnkit.UserError, match=r"strategy=individual_sample has others: train with trainer.max_epochs=2"
    ):
        gnnkit.train(featured_graph(typed=False), folder=tmp_path / "run", **keys)
    assert not (tmp_path / "run").exists()
