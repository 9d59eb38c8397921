"""A loss or gradient that is not finite leads to one decision on all ranks."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

import gnnkit
from gnnkit.engine import Adjacency
from gnnkit.errors import UserError
from gnnkit.graph import Split
from gnnkit.kernels.dropout import derive
from gnnkit.leader.meter import SyncMeter
from gnnkit.partition.store.parts import RankParts
from gnnkit.training import checkpoint, finite
from gnnkit.training.step import Updates
from tests.cases import exhaustive, few, in_turn, product
from tests.graphs import random_graph
from tests.runs import BARE
from tests.waiting import GUARD

FILE = "checkpoints/last.json"


GRAPH = random_graph()
NODE = int(np.flatnonzero(GRAPH.split == Split.TRAIN)[-1])  # of the last rank


class Breaking(nn.Module):
    """Multiplies some rows."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        if self.how == "layer":
            return x * torch.where(rows[:, None], math.inf, 1.0)
        if self.how == "loss":  # the difference of two logits overflows
            far = torch.full((3,), -3e38)
            far[(GRAPH.labels[NODE] + 1) % 3] = 3e38
            return torch.where(rows[:, None], far + 0 * x, x)
        # The root of 0 is 0, with an infinite slope.
        return x + torch.sqrt((x * torch.where(rows[:, None], 0.0, 1.0)) ** 2 + torch.where(rows[:, None], 0.0, 1.0))


class Net(nn.Module):
    """A layer that breaks in some steps, for one node or for all."""

    num_layers = 1

    def __init__(self, steps: Sequence[int], how: str = "layer", node: int | None = NODE, norm: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.bad = nn.Linear(8, 3), Breaking(how)
        self.norm = nn.BatchNorm1d(3) if norm else nn.Identity()
        self.keys, self.node = {derive(0, step, 0) for step in steps}, node

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        adjacency = adjacencies[0]
        x = self.first(adjacency.aggregate(x, reduce="mean"))
        if self.training and adjacency.key in self.keys:
            nodes = adjacency.src_nodes[: adjacency.num_dst]
            x = self.bad(x, torch.ones_like(nodes, dtype=torch.bool) if self.node is None else nodes == self.node)
        return self.norm(x)  # type: ignore[no-any-return]


class Scheduled(L.LightningModule):
    """The same network, whose learning rate decays in a closed form."""

    num_layers = 1

    def __init__(self, steps: Sequence[int]) -> None:
        super().__init__()
        self.net = Net(steps)

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        logits: Tensor = self.net(x, adjacencies)
        return logits

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5)
        return {"optimizer": optimizer, "lr_scheduler": LambdaLR(optimizer, lambda epoch: 0.9**epoch)}


def run(folder: Path, model: nn.Module | None, trainer: dict[str, Any] | None = None, **keys: Any) -> Any:
    run_keys = {
        "strategy": "vertex_centric",
        "workers": 2,
        "comm": "threads",
        "threads": 1,
        "partition": "1d",
        "inexact": "allow",  # for its BatchNorm1d
        **BARE,
        **keys,
    }
    settings = {"max_epochs": 6, "checkpoint_every": 1, **(trainer or {})}
    return gnnkit.train(GRAPH, folder=folder, model=model, trainer=settings, **run_keys)


def stop_message(folder: Path, model: nn.Module | None, trainer: dict[str, Any] | None = None, **keys: Any) -> str:
    """Returns the message with which a run ends."""
    with pytest.raises(UserError) as error:
        run(folder, model, trainer, **keys)
    assert "\n" not in str(error.value)
    return str(error.value)


def parameters(folder: Path) -> Tensor:
    state = checkpoint.load(folder / FILE)["state_dict"]
    return torch.cat([value.flatten().double() for value in state.values()])


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [
        exhaustive({"comm": "gloo"}),
        exhaustive({"comm": "gloo", "sync": "leader"}),
        {"comm": "threads"},
        exhaustive({"comm": "threads", "sync": "leader", "workers": 3}),
    ],
    ids=str,
)
def test_a_run_stops_on_all_ranks_and_keeps_the_last_finite_checkpoint(tmp_path: Path, keys: dict[str, Any]) -> None:
    message = stop_message(tmp_path / "run", Net([3]), **keys)
    last = keys.get("workers", 2) - 1
    reference = f"loss or gradient of step 4 (epoch 3) is not finite on rank {last}: first in the output of bad. "
    assert message.startswith(f"trainer.on_nan=stop: {reference}")
    assert f"the last finite checkpoint is {tmp_path / 'run' / FILE}" in message
    state = checkpoint.load(tmp_path / "run" / FILE)
    assert (state["epoch"], state["global_step"]) == (3, 3)
    assert torch.isfinite(parameters(tmp_path / "run")).all()
    assert not (tmp_path / "run/result.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("layer", "on rank 1: first in the output of bad. "),
        ("loss", "on rank 1: first in the loss, the output of every layer is finite. "),
        ("backward", "on rank 1: first in the backward pass, the loss is finite. "),
    ],
)
def test_the_place_is_named(tmp_path: Path, how: str, expected: str) -> None:
    message = stop_message(tmp_path / "run", Net([0], how), {"checkpoint": False})
    assert f"step 1 (epoch 0) is not finite {expected}" in message
    assert "no checkpoint was saved before" in message


@pytest.mark.slow
@pytest.mark.exhaustive
@few("comm", ["threads", "gloo"], default=["threads"])
def test_sampled_steps_stop_too(tmp_path: Path, comm: str) -> None:
    model = Net([4], node=None)
    strategy = {"name": "individual_sample", "batch_size": 4}
    message = stop_message(
        tmp_path / "run", model, strategy=strategy, sampler={"name": "neighbor", "fanouts": [3]}, comm=comm
    )
    assert "is not finite on ranks 0, 1: first in the output of bad" in message
    assert "of step 5 " in message


@pytest.mark.slow
@pytest.mark.parametrize("on_nan", [exhaustive("stop"), "skip"])
def test_ranks_that_exchange_rows_decide_on_each_accumulated_batch(tmp_path: Path, on_nan: str) -> None:
    """The gradients of the other rank are finite, yet all ranks must look again."""
    sampling_keys = {"strategy": {"name": "joint_sample", "batch_size": 4}, "sampler": "full"}
    keys = {**sampling_keys, "comm": {"name": "threads", "timeout": GUARD}}
    trainer, steps = {"accumulate": 2, "on_nan": on_nan}, range(0, 18, 3)  # the first of three batches of each epoch
    if on_nan == "stop":
        assert "on rank 1: first in the output of bad" in stop_message(tmp_path / "run", Net(steps), trainer, **keys)
    else:
        assert run(tmp_path / "run", Net(steps), trainer, **keys)["skipped_steps"] > 0


FETCHED = {"name": "individual_sample", "batch_size": 8, "topology": "partitioned"}
JOINT = {"name": "joint_sample", "batch_size": 8}
DRAWS = {"sampler": {"name": "neighbor", "fanouts": [3, 3]}}


def spoil_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets rank 1 alone read features that are not finite."""
    whole = RankParts.shard

    def damaged(parts: RankParts, name: int | str) -> Any:
        shard = whole(parts, name)
        if str(name) != "1":
            return shard
        features = np.array(shard.features)
        features[-1] = math.nan
        return replace(shard, features=features)

    monkeypatch.setattr(RankParts, "shard", damaged)


@pytest.mark.slow
@product(rank=[0, exhaustive(1)], sync=[exhaustive("leader"), "parameter_server"], mode=["async", "ssp"])
def test_a_worker_that_leaves_out_its_steps_keeps_no_other_one_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str, mode: str, rank: int
) -> None:
    """The servers wait for its clock, and rank 0 brings them the first parameters."""
    if rank:
        spoil_rows(monkeypatch)
        model = None
    else:
        model = Net(range(9), node=int(np.flatnonzero(GRAPH.split == Split.TRAIN)[0]))
    keys: dict[str, Any] = {"partition": "contiguous", "sync": {"name": sync, "mode": mode}}
    keys["comm"] = {"name": "threads", "timeout": GUARD}
    strategy = {"strategy": FETCHED, **DRAWS} if rank else {"strategy": "preset_workload"}
    trainer = {"max_epochs": 3, "on_nan": "skip", "checkpoint": False, "check_val_every_n_epoch": 1}
    result = run(tmp_path / "run", model, trainer, overrides=["features.scale=none"], **keys, **strategy)
    assert result["skipped_steps"] > 0
    assert result["epochs"] == 3


SPOILT: list[dict[str, Any]] = [
    {},
    {"workers": 3},
    {"partition": {"name": "2d", "grid": [2, 2, 1]}, "workers": 4},
    {"exchange": "pipelined"},
    {"exchange": "adaptive"},
    {"sync": "leader"},
    {"strategy": {"name": "vertex_centric", "local_iterations": 2}},
    {"strategy": JOINT, **DRAWS},
    {"strategy": FETCHED, **DRAWS},
    {"comm": {"name": "gloo", "timeout": GUARD}},
]


def stops_and_skips() -> Iterator[Any]:
    """Yields each run with one of both, of which a few run by default."""
    for number, case in enumerate(in_turn(SPOILT, ("skip", "stop"))):
        yield case if number in (0, 1, 6, 7) else exhaustive(case)


@pytest.mark.slow
@pytest.mark.parametrize(("keys", "on_nan"), [*stops_and_skips()], ids=str)
def test_input_rows_of_one_rank_that_are_not_finite_end_or_skip_the_step_of_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any], on_nan: str
) -> None:
    """The ranks exchange rows in the second look too, whatever a rank has read."""
    spoil_rows(monkeypatch)
    run_keys: dict[str, Any] = {"comm": {"name": "threads", "timeout": GUARD}, "partition": "contiguous"} | keys
    trainer = {"max_epochs": 2, "on_nan": on_nan, "checkpoint": False}
    if on_nan == "skip":
        assert run(tmp_path / "run", None, trainer, overrides=["features.scale=none"], **run_keys)["skipped_steps"] > 0
    else:
        message = stop_message(tmp_path / "run", None, trainer, overrides=["features.scale=none"], **run_keys)
        assert "the input rows are not finite" in message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epochs", "step"), [(6, 3), exhaustive((5, 4))], ids=["found at the next exchange", "found at the end"]
)
@pytest.mark.parametrize("keys", [{}, exhaustive({"sync": "leader"}), exhaustive({"comm": "gloo"})], ids=str)
def test_a_local_iteration_is_found_by_all_ranks_later(
    tmp_path: Path, epochs: int, step: int, keys: dict[str, Any]
) -> None:
    strategy = {"name": "vertex_centric", "local_iterations": 3}
    message = stop_message(tmp_path / "run", Net([step]), {"max_epochs": epochs}, strategy=strategy, **keys)
    assert f"of step {step + 1} (epoch {step}) is not finite on rank 1: first in the output of bad. " in message
    assert torch.isfinite(parameters(tmp_path / "run")).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys", [exhaustive({"comm": "gloo"}), {"comm": "threads"}, exhaustive({"sync": "leader"})], ids=str
)
def test_skipped_steps_are_taken_by_no_rank(tmp_path: Path, keys: dict[str, Any]) -> None:
    result = run(tmp_path / "skips", Net([2, 3, 4, 5], norm=True), {"on_nan": "skip"}, **keys)
    run(tmp_path / "short", Net([], norm=True), {"max_epochs": 2}, **keys)
    assert (result["skipped_steps"], result["rollbacks"]) == (4, 0)
    assert math.isfinite(result["train_loss"])
    assert torch.equal(parameters(tmp_path / "skips"), parameters(tmp_path / "short"))
    lines = (tmp_path / "skips/workers.jsonl").read_text().splitlines()
    assert [json.loads(line, parse_constant=pytest.fail)["loss"] for line in lines][-1] is None


class SpoiltRows(Net):
    """Has finite gradients of all parameters, and none of the rows in some steps."""

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        if self.training and adjacencies[0].key in self.keys:
            x.register_hook(lambda grad: torch.full_like(grad, math.nan))
        return self.first(adjacencies[0].aggregate(x, reduce="mean"))


@pytest.mark.slow
def test_gradients_of_learned_rows_are_looked_at_too(tmp_path: Path) -> None:
    overrides = ["inputs=learned", "embedding=8"]
    result = run(tmp_path / "run", SpoiltRows([2, 3]), {"on_nan": "skip"}, overrides=overrides, comm="threads")
    assert result["skipped_steps"] == 2
    assert math.isfinite(result["train_loss"])


@pytest.mark.slow
def test_a_local_iteration_is_skipped_by_its_rank_alone(tmp_path: Path) -> None:
    strategy = {"name": "vertex_centric", "local_iterations": 3}
    result = run(tmp_path / "run", Net([3]), {"on_nan": "skip"}, strategy=strategy)
    assert (result["skipped_steps"], result["final_drift"]) == (1, 0)
    assert math.isfinite(result["train_loss"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys", [exhaustive({"comm": "gloo"}), {"comm": "threads"}, exhaustive({"sync": "leader"})], ids=str
)
def test_a_rollback_goes_on_from_the_last_checkpoint_at_half_the_learning_rate(
    tmp_path: Path, keys: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    result = run(tmp_path / "run", Net([4]), {"on_nan": "rollback", "checkpoint_every": 3, "lr": 0.25}, **keys)
    assert (result["rollbacks"], result["skipped_steps"]) == (1, 0)
    assert "not finite on rank 1, back to" in capfd.readouterr().err
    saved = checkpoint.load(tmp_path / "run" / FILE)
    optimizer = saved["optimizer_states"][0]
    assert [group["lr"] for group in optimizer["param_groups"]] == [0.125]
    # Steps 1 to 3 lead to the checkpoint. Step 4 is lost, 5 not taken, 6 taken.
    assert {float(state["step"]) for state in optimizer["state"].values()} == {4.0}


@pytest.mark.slow
def test_a_rollback_of_the_first_step_goes_back_to_the_start(tmp_path: Path) -> None:
    result = run(tmp_path / "run", Net([0]), {"on_nan": "rollback", "checkpoint_every": 100})
    assert result["rollbacks"] == 1


@pytest.mark.slow
def test_the_fourth_rollback_ends_the_run(tmp_path: Path) -> None:
    message = stop_message(tmp_path / "run", Net([1, 2, 3, 4]), {"on_nan": "rollback"})
    assert message.startswith("trainer.on_nan=rollback after 3 rollbacks: loss or gradient of step 5 (epoch 4)")


@pytest.mark.slow
def test_rollbacks_need_checkpoints(tmp_path: Path) -> None:
    message = stop_message(tmp_path / "run", Net([]), {"on_nan": "rollback", "checkpoint": False})
    assert message == "trainer.on_nan=rollback needs checkpoints: remove trainer.checkpoint=false"


@pytest.mark.slow
def test_parameters_that_overflow_are_not_saved(tmp_path: Path) -> None:
    """The gradient is finite, the step is not."""
    steep = replace(GRAPH, features=GRAPH.features * 1e35)
    keys = {"max_epochs": 1, "optimizer": "sgd", "lr": 1e6}
    with pytest.raises(UserError, match=r"^trainer.checkpoint: parameters or .* are not finite, nothing was saved"):
        gnnkit.train(
            steep, strategy="vertex_centric", workers=2, comm="threads", threads=1, model=Net([]), trainer=keys,
            folder=tmp_path / "run", overrides=["features.scale=none"], **BARE,
        )  # fmt: skip
    assert not (tmp_path / "run" / FILE).exists()


@pytest.mark.slow
def test_a_skipped_step_is_printed_a_few_times_only(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    result = run(tmp_path / "run", Net(range(8)), {"on_nan": "skip", "max_epochs": 8})
    assert result["skipped_steps"] == 8
    assert capfd.readouterr().err.count("trainer.on_nan=skip: step ") == 5


@pytest.mark.slow
def test_a_schedule_goes_on_from_half_the_learning_rate(tmp_path: Path) -> None:
    run(tmp_path / "run", Scheduled([2]), {"on_nan": "rollback"})
    group = checkpoint.load(tmp_path / "run" / FILE)["optimizer_states"][0]["param_groups"][0]
    assert group["lr"] == pytest.approx(0.5 * 0.9**6 / 2)


def test_a_large_finite_gradient_is_finite() -> None:
    meter = SyncMeter()
    meter.look(torch.tensor([1e30]))
    assert meter.finite
    assert meter.square_norm == math.inf
    meter.look(torch.tensor([math.inf]))
    assert not meter.finite


def test_numbers_are_finite_where_there_are_none_and_where_a_sum_overflows() -> None:
    assert finite.are_finite([])
    assert finite.are_finite([torch.tensor([1.7e308] * 2, dtype=torch.float64)])
    assert not finite.are_finite([torch.ones(2), torch.tensor([math.nan])])


def test_what_a_module_gives_is_finite_in_tuples_too() -> None:
    good, bad = torch.ones(2), torch.tensor([1.0, math.inf])
    for output, reference in (((good, None), True), ([good, (bad,)], False), ("text", True), (torch.arange(2), True)):
        assert finite._is_finite(output) is reference


def test_ranks_are_spelt() -> None:
    assert [finite._names(ranks) for ranks in ([], [3], [0, 2])] == ["no rank alone", "rank 3", "ranks 0, 2"]


@pytest.mark.parametrize("servers", [False, True])
def test_a_rollback_takes_the_state_back_and_halves_every_rate(servers: bool) -> None:
    module, loaded = nn.Linear(1, 1), []
    optimizer = torch.optim.Adam(module.parameters(), lr=0.8)
    before: Any = {"state_dict": copy.deepcopy(module.state_dict()), "workers": None, "sync": {"turn": 3}}
    before |= {"optimizer_states": [copy.deepcopy(optimizer.state_dict())], "updates": Updates().state_dict(optimizer)}
    before |= {"strategy": {"keys": 5} if servers else {}, "embedding": None}
    module(torch.ones(1)).backward()
    optimizer.step()
    closed = LambdaLR(optimizer, lambda epoch: 0.5)
    follows = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    configs = [SimpleNamespace(scheduler=each) for each in (closed, follows)]
    trainer: Any = SimpleNamespace(optimizers=[optimizer], lr_scheduler_configs=configs, strategy=None)
    holder = SimpleNamespace(load_state_dict=loaded.append)
    given: Any = SimpleNamespace(
        load_state_dict=module.load_state_dict, strategy=holder, sync=holder if servers else None, embedding=None
    )
    finite._roll_back(before, trainer, given)
    assert module.state_dict() == before["state_dict"]
    assert not optimizer.state_dict()["state"]
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.2)
    assert closed.base_lrs == [pytest.approx(0.4)]
    assert loaded == ([{"keys": 5}, {"turn": 3}] if servers else [])
