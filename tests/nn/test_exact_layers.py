"""The layers of gnnkit.nn compute on any number of ranks what they compute on one."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence

import pytest
import torch
from gnnkit_testing.graphs import CLASSES, WIDTH, check_graph
from gnnkit_testing.ranks import ONE, assert_close, by_node, on_ranks, owned
from torch import Tensor, nn

from gnnkit.engine import Adjacency, ShardAdjacency
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.model.gcn import GCN
from gnnkit.model.sage import GraphSAGE
from gnnkit.nn import BatchNorm, Dropout, JumpingKnowledge, LayerNorm
from gnnkit.partition import Grid
from gnnkit.sampler import FullSampler, LaborSampler, NeighborSampler, Sampler
from gnnkit.strategy import ExecutionStrategy, Worker
from gnnkit.strategy.individual_sample import IndividualSample
from gnnkit.strategy.joint_sample import JointSample
from gnnkit.strategy.preset_workload import PresetWorkload
from gnnkit.strategy.vertex_centric import VertexCentric
from gnnkit.task.evaluation import Evaluation
from gnnkit.task.node_classification import NodeClassification
from gnnkit.training.step import loss_part
from tests.cases import few
from tests.strategy.test_corners import GRAPHS

GRAPH = check_graph(30)
GRIDS = [Grid(r, c, s) for r in range(1, 5) for c in range(1, 5) for s in range(1, 5) if 1 < r * c * s <= 4]
GRIDS += [Grid(2, 3, 1), Grid(3, 1, 2), Grid(1, 2, 3), Grid(5, 1, 1)]
HIDDEN = 4


class Deep(nn.Module):
    """Two convolutions with every layer of gnnkit.nn, on inputs and on outputs."""

    num_layers = 2

    def __init__(self, mode: str = "lstm") -> None:
        super().__init__()
        torch.manual_seed(1)
        widths = [WIDTH, HIDDEN]
        self.first = BatchNorm(WIDTH)
        self.convs = nn.ModuleList(nn.Linear(width, HIDDEN) for width in widths)
        self.norms = nn.ModuleList([BatchNorm(HIDDEN), BatchNorm(HIDDEN, momentum=None, affine=False)])
        self.rows, self.drops = LayerNorm(HIDDEN), nn.ModuleList([Dropout(0.3), Dropout(0.4, draw=1)])
        self.jk = JumpingKnowledge(mode, HIDDEN, 2)
        self.out = nn.Linear(2 * HIDDEN if mode == "cat" else HIDDEN, CLASSES)
        self.double()

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        x, rows = self.first(x, adjacencies[0]), []
        for conv, norm, adjacency in zip(self.convs, self.norms, adjacencies, strict=True):
            x = self.drops[0](x, adjacency)
            x = conv(adjacency.aggregate(x, reduce="mean") + x[: adjacency.num_dst])
            x = self.drops[1](self.rows(norm(x, adjacency)).tanh(), adjacency)
            rows.append(x)
        logits: Tensor = self.out(self.jk(rows))
        return logits


Answer = tuple[Tensor, Tensor, Tensor, Tensor]  # losses and gradients, buffers, nodes, logits


def answer(worker: Worker, make: Callable[[], ExecutionStrategy], model: nn.Module) -> Answer:
    """Takes the gradients of two epochs, then evaluates with running statistics."""
    replica, strategy, parts = copy.deepcopy(model), make(), []
    strategy.check(worker.sampler, 2)
    strategy.setup(worker, replica)
    for epoch in range(2):
        for batch in strategy.batches(epoch):
            replica.zero_grad()
            loss = loss_part(NodeClassification(), replica(batch.x, batch.adjacencies), batch)
            loss.backward()
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in replica.parameters()]
            parts.append(torch.cat([loss.detach()[None], *(gradient.flatten() for gradient in gradients)]))
    strategy.close()
    buffers = torch.cat([buffer.flatten().double() for buffer in replica.buffers()] or [torch.zeros(0)])
    return torch.stack(parts), buffers, owned(worker), Evaluation.of(worker, replica, 1.0).logits(replica)


def run(
    grid: Grid, make: Callable[[], ExecutionStrategy], model: nn.Module, sampler: Sampler | None, graph: Graph
) -> list[Answer]:
    reads_graph = make().reads.graph
    return on_ranks(graph, grid, lambda each: answer(each, make, model), whole=reads_graph, sampler=sampler)


def check(
    grid: Grid,
    make: Callable[[], ExecutionStrategy],
    model: nn.Module,
    sampler: Sampler | None = None,
    graph: Graph = GRAPH,
) -> None:
    """Checks ranks of a grid against the one rank that computes the same."""
    alone = make().on_one_rank(grid.world_size, sampler)
    assert alone is not None
    (reference,) = run(ONE, lambda: copy.deepcopy(alone), model, sampler, graph)
    result = run(grid, make, model, sampler, graph)
    assert_close(torch.stack([part[0] for part in result]).sum(0), reference[0], f"loss and gradient on {grid}")
    for part in result:
        assert torch.equal(part[1], result[0][1]), "running statistics differ between ranks"
    assert_close(result[0][1], reference[1], f"running statistics on {grid}")
    assert_close(by_node([part[2:] for part in result]), by_node([reference[2:]]), f"evaluation on {grid}")


@pytest.mark.slow
@few("grid", GRIDS, default=[GRIDS[number] for number in (0, 3, 6, 9)])
def test_full_graph_training_on_a_grid_is_that_of_one_rank(grid: Grid) -> None:
    check(grid, VertexCentric, Deep(("cat", "max", "lstm")[grid.world_size % 3]))


@pytest.mark.slow
@few("make,norm", [*itertools.product([GCN, GraphSAGE], ["batch", "layer"])], default=1)
def test_models_with_a_norm_are_exact(make: Callable[..., nn.Module], norm: str) -> None:
    torch.manual_seed(2)
    model = make(WIDTH, CLASSES, hidden=HIDDEN, norm=norm).double()
    assert sum("norms" in name for name, _ in model.named_parameters()) == 2
    check(Grid(2, 1, 2), VertexCentric, model)
    check(Grid(3, 1, 1), lambda: JointSample(batch_size=2), model, NeighborSampler([3, 3]))


SAMPLED: dict[str, Callable[[], ExecutionStrategy]] = {
    "shared": lambda: IndividualSample(batch_size=2),
    "features": lambda: IndividualSample(batch_size=2, features="partitioned"),
    "partitioned": lambda: IndividualSample(batch_size=2, topology="partitioned"),
    "cooperative": lambda: JointSample(batch_size=2),
}
SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "neighbor": lambda: NeighborSampler([3, 3], threads=1),
    "labor": lambda: LaborSampler([3, 3], redraw=True, threads=1),
    "full": lambda: FullSampler(num_hops=2, threads=1),
}


@pytest.mark.slow
@few(
    "name,sampler",
    itertools.product(SAMPLED, SAMPLERS),
    default=[("features", "labor"), ("partitioned", "full"), ("cooperative", "neighbor")],
)
def test_a_sampled_step_is_that_of_one_rank_with_all_seeds(name: str, sampler: str) -> None:
    check(Grid(3, 1, 1), SAMPLED[name], Deep("cat"), SAMPLERS[sampler]())


@pytest.mark.slow
@few(
    "name,graph",
    itertools.product(SAMPLED, ["two seeds", "no edges", "all seeds isolated"]),
    default=[("shared", "two seeds"), ("features", "no edges")],
)
def test_ranks_without_rows_take_part(name: str, graph: str) -> None:
    check(Grid(3, 1, 1), SAMPLED[name], Deep("lstm"), SAMPLERS["neighbor"](), GRAPHS[graph])


@pytest.mark.slow
@pytest.mark.parametrize("keys", [{}, {"halo": "none"}, {"average": "parameters"}, {"sync_every": 1}], ids=str)
def test_the_workers_of_a_preset_workload_have_the_same_statistics(keys: dict[str, str]) -> None:
    parts = run(Grid(3, 1, 1), lambda: PresetWorkload(**keys), Deep("cat"), None, GRAPH)
    for part in parts:
        assert torch.equal(part[1], parts[0][1])
        assert part[0].isfinite().all()
    assert parts[0][1].abs().sum() > 0


def test_an_epoch_without_exchange_takes_own_rows_and_leaves_running_statistics() -> None:
    def work(worker: Worker) -> tuple[list[Tensor], Tensor]:
        strategy, norm = VertexCentric(local_iterations=2), BatchNorm(WIDTH).double()
        strategy.setup(worker, GCN(WIDTH, CLASSES))
        means, rows = [], []
        for epoch in range(2):
            (batch,) = strategy.batches(epoch)
            out = norm(batch.x, batch.adjacencies[0])
            rows.append(out.detach().mean(0) if len(out) else torch.zeros(WIDTH).double())
            means.append(norm.running_mean.clone())
        return means, rows[0]

    parts = on_ranks(GRAPH, Grid(2, 1, 1), work)
    for means, own in parts:
        assert_close(own, torch.zeros_like(own), "mean of a rank's own rows")
        assert means[0].abs().sum() == 0
        assert_close(means[1], 0.1 * torch.tensor(GRAPH.features).double().mean(0), "mean of all rows")


def test_one_rank_normalises_as_torch_does() -> None:
    norm, torchs, x = BatchNorm(WIDTH).double(), nn.BatchNorm1d(WIDTH).double(), torch.randn(9, WIDTH).double()
    torchs.load_state_dict(norm.state_dict())

    def work(worker: Worker) -> None:
        (adjacency,) = ShardAdjacency.layers(worker.engine(norm), 1, 0)
        for _ in range(3):
            assert_close(norm(x, adjacency).detach(), torchs(x).detach(), "rows in training")
        norm.eval()
        assert_close(norm(x, adjacency).detach(), torchs.eval()(x).detach(), "rows in evaluation")

    on_ranks(GRAPH, ONE, work)
    for name, value in norm.state_dict().items():
        assert_close(value, torchs.state_dict()[name], name)


def test_dropouts_of_one_layer_differ_by_their_draw() -> None:
    def work(worker: Worker) -> list[Tensor]:
        (adjacency,) = ShardAdjacency.layers(worker.engine(nn.Identity()), 1, 7)
        return [Dropout(0.5, draw)(torch.ones(len(worker.owned), 8), adjacency) for draw in (0, 0, 1, 2)]

    ((first, again, second, third),) = on_ranks(GRAPH, ONE, work)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)


def test_layers_tell_what_they_need() -> None:
    with pytest.raises(UserError, match="JumpingKnowledge: mode=lstm needs channels and num_layers"):
        JumpingKnowledge("lstm", channels=4)
    with pytest.raises(UserError, match=r"BatchNorm\(4\) needs rows of 4 columns, got \[3\]: create it with the width"):
        BatchNorm(4)(torch.zeros(2, 3), None)  # type: ignore[arg-type]
