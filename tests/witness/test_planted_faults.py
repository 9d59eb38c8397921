"""Faults that are planted on purpose. The witness finds each.

Faults of the engine agree with themselves on one rank, so a comparison of the engine
with itself would miss most.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from gnnkit_testing.graphs import CLASSES, EDGE_WIDTH, check_graph
from gnnkit_witness import Plan, check_plan, ranks
from torch import Tensor, nn

from gnnkit.comm import Pending
from gnnkit.engine import Engine, Pool, ShardAdjacency, adjacency
from gnnkit.engine.layer_routes import LayerRoutes
from gnnkit.exchange import Exact
from gnnkit.exchange.pipelined import PipelinedRows
from gnnkit.exchange.route import Route
from gnnkit.kernels.aggregate import HeldEdges
from gnnkit.kernels.sums import EdgeKernels
from gnnkit.model.gat import GAT
from gnnkit.model.gcn import GCN
from gnnkit.model.sage import GraphSAGE
from gnnkit.partition import Grid, Partition
from gnnkit.partition.shard import Shard
from gnnkit.sampler import FullSampler
from gnnkit.strategy import vertex_centric
from gnnkit.strategy.individual_sample import IndividualSample
from gnnkit.strategy.joint_sample import JointSample
from gnnkit.sync.all_reduce import AllReduce
from gnnkit.sync.base import gradients, trained
from gnnkit.sync.parameter_server import ParameterServer
from gnnkit.sync.versions import VersionedParameters
from gnnkit.task.evaluation import ShardEvaluation
from gnnkit.training import module as training_module
from gnnkit.training import step as training_step
from gnnkit.training.embedding import Embedding
from gnnkit.training.step import Updates
from tests.cases import few
from tests.witness.models import HIDDEN, Recipe, RecipeModel

Patch = pytest.MonkeyPatch
GRAPH = replace(check_graph(14), features=check_graph(14).features[:, :HIDDEN])
OWNERS = np.random.default_rng(3).integers(0, 12, GRAPH.num_nodes)
SAMPLED: dict[str, Any] = {"sampler": FullSampler(num_hops=2, threads=1)}


def plan(model: Callable[..., nn.Module], cols: int = 1, **keys: Any) -> Plan:
    """Two ranks, along the nodes or across."""
    torch.manual_seed(1)
    partition = Partition((OWNERS % 2).astype(np.int32), None, Grid(2 // cols, cols, 1))
    return Plan(GRAPH, partition, model(HIDDEN, CLASSES).double(), **{"epochs": 2, **keys})


def make_awkward_model(*reads: str, before: str = "nothing", **keys: Any) -> Callable[..., nn.Module]:
    return functools.partial(RecipeModel, Recipe(reads, ("none",) * len(reads), (before,) * len(reads), **keys))


PLANS: dict[str, Callable[[], Plan]] = {
    "gcn": lambda: plan(functools.partial(GCN, hidden=4)),
    "plain": lambda: plan(make_awkward_model("normalized", "sum")),
    "means": lambda: plan(make_awkward_model("mean", "mean")),
    "normed": lambda: plan(functools.partial(GraphSAGE, hidden=4, norm="batch")),
    "ties across": lambda: plan(make_awkward_model("max", "max", before="ties"), cols=2),
    "gat": lambda: plan(functools.partial(GAT, hidden=2, heads=2, edge_width=EDGE_WIDTH)),
    "gat across": lambda: plan(functools.partial(GAT, hidden=2, heads=2, edge_width=EDGE_WIDTH), cols=2),
    "learned": lambda: plan(make_awkward_model("mean"), embedding=HIDDEN),
    "learned decayed": lambda: plan(make_awkward_model("mean"), embedding=HIDDEN, learned_decay=0.1),
    "batches": lambda: plan(
        make_awkward_model("mean", "sum"), strategy=functools.partial(IndividualSample, batch_size=1), **SAMPLED
    ),
    "accumulated": lambda: replace(PLANS["batches"](), accumulate=2),
    "joint": lambda: plan(
        make_awkward_model("mean", "sum"), strategy=functools.partial(JointSample, batch_size=1), **SAMPLED
    ),
    "server": lambda: plan(make_awkward_model("mean"), sync=ParameterServer),
    "decayed": lambda: plan(functools.partial(GCN, hidden=4), weight_decay=0.1),
}


@dataclass(frozen=True)
class Fault:
    plan: str  # of PLANS
    plant: Callable[[Patch], None]


def wrap(patch: Patch, owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Replaces a function by `change(original, *arguments)`."""
    original = getattr(owner, name)
    patch.setattr(owner, name, lambda *arguments, **keys: change(original, *arguments, **keys))


def shards(change: Callable[[Shard], Shard]) -> Callable[[Patch], None]:
    """Plants a fault in the shard of rank 0."""

    def change_call(original: Any, *arguments: Any) -> list[Shard]:
        first, *others = original(*arguments)
        return [change(first), *others]

    return lambda patch: wrap(patch, ranks, "cut_all", change_call)


def keep_and_change_a_sum(patch: Patch) -> None:
    kept: dict[Any, Tensor] = {}

    def change_call(original: Any, engine: Engine, x: Tensor, layer: int, *kind: Any, **keys: Any) -> Tensor:
        if layer or not torch.is_grad_enabled():
            return original(engine, x, layer, *kind, **keys)  # type: ignore[no-any-return]
        place = engine, kind
        kept[place] = kept[place].add_(0.1) if place in kept else original(engine, x, layer, *kind, **keys).detach()
        return kept[place]

    wrap(patch, Engine, "sum", change_call)


def wrong_degree(shard: Shard) -> Shard:
    return replace(shard, in_degree=shard.in_degree + (np.arange(len(shard.in_degree)) == 0))


def local_degree(shard: Shard) -> Shard:
    ends = np.repeat(np.arange(len(shard.csc.indptr) - 1), np.diff(shard.csc.indptr))
    own_rows = shard.csc.indices < len(shard.owned)
    return replace(shard, in_degree=np.bincount(ends[own_rows], shard.csc.weight[own_rows], len(shard.in_degree)))


def forgotten_loop(shard: Shard) -> Shard:
    first = int(np.flatnonzero(~shard.looped)[0])
    return replace(shard, looped=shard.looped | (np.arange(len(shard.looped)) == first))


def dropped_edge(shard: Shard) -> Shard:
    csc = shard.csc
    remainder = replace(
        csc, indptr=np.minimum(csc.indptr, csc.num_edges - 1), indices=csc.indices[:-1], weight=csc.weight[:-1]
    )
    return replace(shard, csc=remainder, edge_ids=shard.edge_ids[:-1], edge_features=shard.edge_features[:-1])


def no_weights(shard: Shard) -> Shard:
    return replace(shard, csc=replace(shard.csc, weight=None))


def other_halo(shard: Shard) -> Shard:
    return replace(shard, halo=shard.halo[::-1].copy())


def local_edge_ids(shard: Shard) -> Shard:
    return replace(shard, edge_ids=np.arange(len(shard.edge_ids)))


def twice(name: str, owner: Any) -> Callable[[Patch], None]:
    def change_call(original: Any, *arguments: Any, **keys: Any) -> Any:
        original(*arguments, **keys)
        return original(*arguments, **keys)

    return lambda patch: wrap(patch, owner, name, change_call)


def result(owner: Any, name: str, change: Callable[..., Any]) -> Callable[[Patch], None]:
    """Plants a fault in what a function returns."""
    return lambda patch: wrap(patch, owner, name, lambda original, *a, **k: change(original(*a, **k)))


def gradient_counted_twice(patch: Patch) -> None:
    def change_call(original: Any, sync: AllReduce, module: nn.Module, *rest: Any) -> None:
        if sync.comm.rank == 1:
            for gradient in gradients(trained(module)):
                gradient.mul_(2)
        original(sync, module, *rest)

    wrap(patch, AllReduce, "step", change_call)


def parameter_not_synchronised(patch: Patch) -> None:
    def change_call(original: Any, sync: AllReduce, module: nn.Module, optimizer: Any, share: float) -> None:
        last = [gradient.clone() for gradient in gradients(trained(module))][-1]
        total = sync.comm.all_reduce(last.clone())
        for group in optimizer.param_groups:
            group["params"][-1].grad.sub_((total - last) / sync.comm.world_size)
        original(sync, module, optimizer, share)

    wrap(patch, AllReduce, "step", change_call)


def same_noise_in_all_layers(patch: Patch) -> None:
    def change_call(original: Any, *arguments: Any) -> Any:
        layers = original(*arguments)
        for layer in layers:
            layer.key = layers[0].key
        return layers

    wrap(patch, ShardAdjacency, "layers", change_call)


def local_loss(patch: Patch) -> None:
    def change_call(original: Any, task: Any, out: Tensor, batch: Any) -> Tensor:
        return original(task, out, replace(batch, total=len(batch.rows)))  # type: ignore[no-any-return]

    wrap(patch, training_step, "loss_part", change_call)


def ties_to_the_highest_source(patch: Patch) -> None:
    def change_call(original: Any, engine: Engine, *rest: Any, **keys: Any) -> None:
        original(engine, *rest, **keys)
        vars(engine.topology)["source_ids"] = -engine.topology.source_ids

    wrap(patch, Engine, "__init__", change_call)


def local_softmax(patch: Patch) -> None:
    def softmax(adjacency: ShardAdjacency, scores: Tensor) -> Tensor:
        by = adjacency.edges.by_destination
        powers = (scores - by.spread(by.kernels.max(scores.detach())[0])).exp()
        return powers / by.spread(by.sum(powers))

    patch.setattr(ShardAdjacency, "softmax", softmax)


def backward_along_the_edges(patch: Patch) -> None:
    def turned(edges: HeldEdges) -> EdgeKernels:
        return edges.kernels if edges.num_src == edges.num_dst else edges.kernels.transpose()

    patch.setattr(HeldEdges, "transposed", property(turned))


def lost_gradient_of_the_halo(patch: Patch) -> None:
    def change_call(original: Any, route: Route, z: Tensor, layer: int) -> Pending:
        return original(route, torch.zeros_like(z) if route.kind == "gather" else z, layer)  # type: ignore[no-any-return]

    wrap(patch, Route, "start_to_owners", change_call)


def no_rows_of_others(patch: Patch) -> None:
    def change_call(original: Any, routes: LayerRoutes, x: Tensor) -> Tensor:
        rows = original(routes, x)
        return rows if routes.targets is not None else rows * (torch.arange(len(rows)) < len(x))[:, None]  # type: ignore[no-any-return]

    wrap(patch, LayerRoutes, "with_halo", change_call)


def all_parameters_decay(patch: Patch) -> None:
    def change_call(original: Any, *arguments: Any) -> Any:
        optimizer = original(*arguments)
        for group in optimizer.param_groups:
            group["weight_decay"] = 0.1
        return optimizer

    wrap(patch, training_module, "make_optimizer", change_call)


def noise_that_shrinks_rows(patch: Patch) -> None:
    wrap(patch, adjacency, "relu_dropout", lambda original, x, ids, p, key: (1 - p) * original(x, ids, p, key))


def noise_by_local_numbers(patch: Patch) -> None:
    wrap(patch, adjacency, "relu_dropout", lambda original, x, ids, p, key: original(x, torch.arange(len(ids)), p, key))


def noise_in_evaluation(patch: Patch) -> None:
    wrap(patch, ShardEvaluation, "_logits", lambda original, each, model: original(each, model.train()))


def statistics_that_stay(patch: Patch) -> None:
    def change_call(original: Any, each: ShardAdjacency, num_rows: int) -> Pool:
        return replace(original(each, num_rows), lasts=each.engine.topology.comm.rank == 0)

    wrap(patch, ShardAdjacency, "pool", change_call)


def set_to(owner: Any, name: str, value: Any) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(owner, name, value)


FAULTS: dict[str, Fault] = {
    "a sum is kept and changed": Fault("plain", keep_and_change_a_sum),
    "a degree is wrong": Fault("means", shards(wrong_degree)),
    "a mean divides by the local degree": Fault("means", shards(local_degree)),
    "a loop is forgotten": Fault("gcn", shards(forgotten_loop)),
    "an edge is dropped on one rank": Fault("plain", shards(dropped_edge)),
    "weights are ignored on one rank": Fault("plain", shards(no_weights)),
    "rows of the halo are permuted": Fault("plain", shards(other_halo)),
    "noise of edges follows local numbers": Fault("gat", shards(local_edge_ids)),
    "noise of rows follows local numbers": Fault("gcn", noise_by_local_numbers),
    "noise is the same in all layers": Fault("gcn", same_noise_in_all_layers),
    "noise is the same in all epochs": Fault(
        "gcn", lambda patch: wrap(patch, vertex_centric, "derive", lambda original, seed, _: original(seed, 0))
    ),
    "noise shrinks the mean": Fault("gcn", noise_that_shrinks_rows),
    "an evaluation draws noise": Fault("gcn", noise_in_evaluation),
    "a gradient is counted twice": Fault("plain", gradient_counted_twice),
    "a gradient of the halo is lost": Fault("plain", lost_gradient_of_the_halo),
    "a parameter is not synchronised": Fault("plain", parameter_not_synchronised),
    "the loss is divided by the local count": Fault("plain", local_loss),
    "a backward pass runs along the edges": Fault("plain", backward_along_the_edges),
    "ties go to the highest source": Fault("ties across", ties_to_the_highest_source),
    "a softmax is local to a rank": Fault("gat across", local_softmax),
    "rows are those of the epoch before": Fault("plain", set_to(Exact, "schedule", lambda _: PipelinedRows(1))),
    "batch statistics are local": Fault("normed", set_to(ShardAdjacency, "pool", lambda *_: Pool())),
    "running statistics stay on one rank": Fault("normed", statistics_that_stay),
    "learned rows are updated twice": Fault("learned", twice("step", Embedding)),
    "learned rows decay twice": Fault("learned decayed", twice("_decay", Embedding)),
    "accumulation forgets a batch": Fault("accumulated", set_to(Updates, "keep", lambda *_: None)),
    "rows of others are lost in a joint batch": Fault("joint", no_rows_of_others),
    "a server steps twice": Fault("server", twice("_step", VersionedParameters)),
    "all parameters decay": Fault("decayed", all_parameters_decay),
}
LONG = {
    "a sum is kept and changed",
    "a degree is wrong",
    "a server steps twice",
    "a softmax is local to a rank",
    "accumulation forgets a batch",
    "batch statistics are local",
    "learned rows are updated twice",
    "learned rows decay twice",
    "noise of edges follows local numbers",
    "rows of others are lost in a joint batch",
    "ties go to the highest source",
}


@functools.cache
def agrees(name: str) -> bool:
    """Whether the witness finds nothing where nothing is planted."""
    check_plan(PLANS[name]())
    return True


@pytest.mark.slow
@few("name", FAULTS, default=FAULTS.keys() - LONG)
def test_a_planted_fault_is_found(
    name: str, monkeypatch: Patch, record_property: Callable[[str, object], None]
) -> None:
    fault = FAULTS[name]
    assert agrees(fault.plan)
    fault.plant(monkeypatch)
    start = time.perf_counter()
    with pytest.raises(AssertionError, match=r"difference from plain torch") as actual:
        check_plan(PLANS[fault.plan]())
    seconds = time.perf_counter() - start
    record_property("seconds", seconds)
    print(f"{name}: {seconds:.2f} s, {actual.value}")
