"""Values that a model logs are figures over the rows of all ranks, equal on all."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch import callbacks as theirs
from torch import Tensor
from torch.nn import functional as F

import gnnkit
from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.graph import Graph
from gnnkit.training.hooks import REDUCTIONS, LoggedValue, over_ranks
from gnnkit.training.module import Evaluated
from tests.cases import exhaustive, in_turn
from tests.runs import BARE
from tests.training.test_own_models import CLASSES, WIDTH, Own, make_seeded, read_logged
from tests.waiting import GUARD


def value(number: float, weight: float, reduce: str = "mean") -> LoggedValue:
    return LoggedValue(number, weight, reduce, False, {})


def test_values_join_by_their_weights_and_empty_ones_do_not_count() -> None:
    ones = [(1.0, 2.0), (4.0, 1.0), (math.nan, 0.0)]
    for reduce, reference in {"mean": 2.0, "sum": 5.0, "min": 1.0, "max": 4.0}.items():
        for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
            first, *others = (value(*ones[place], reduce) for place in order)
            assert first.merge(others).value == reference
            assert first.merge(others[:1]).merge(others[1:]).value == reference, "in any groups"
    for reduce in REDUCTIONS:
        assert math.isnan(value(1.0, 1, reduce).merge([value(math.nan, 1, reduce)]).value), "of a rank with rows"
        assert value(3.0, 0, reduce).merge([value(3.0, 0, reduce)]).value in (3.0, 6.0), "no rank has rows"


def test_ranks_that_log_other_names_have_all_in_the_end() -> None:
    def work(comm: Communicator) -> dict[str, float]:
        own = {"all": value(comm.rank, 1 + comm.rank), **({"two": value(5.0, 1)} if comm.rank == 2 else {})}
        return {name: each.value for name, each in over_ranks(own, comm).items()}

    assert Threads.run(work, 3) == [{"all": pytest.approx(8 / 6), "two": 5.0}] * 3


def one_sided_graph(split: int = 2) -> Graph:
    """Draws a graph whose nodes of one split are all of the first worker."""
    rng = np.random.default_rng(0)
    splits = 1 + np.arange(30) % 3
    splits[15:][splits[15:] == split] = 1
    edges, features = rng.integers(0, 30, (2, 90)), rng.normal(size=(30, WIDTH))
    return Graph.from_edges(*edges, 30, features=features, labels=np.arange(30) % CLASSES, split=splits)


def train(folder: Path, model: Any, *callbacks: Any, **keys: Any) -> Any:
    run_keys: dict[str, Any] = {"strategy": "vertex_centric", "partition": "contiguous", "threads": 1, "workers": 2}
    run_keys |= {"comm": {"name": "threads", "timeout": GUARD}, **BARE} | keys
    trainer = {"max_epochs": 8, "precision": 64, "checkpoint": False, **run_keys.pop("trainer", {})}
    return gnnkit.train(one_sided_graph(), model=model, folder=folder, callbacks=callbacks, trainer=trainer, **run_keys)


class Watched(Own):
    """Logs the mean loss of its own rows, as models do that know nothing of ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.plain.linear = torch.nn.Linear(WIDTH, CLASSES)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.5)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        logits = self(batch.x, batch.adjacencies)[batch.rows]
        losses = F.cross_entropy(logits, batch.labels, reduction="none")
        self.log("own_train_loss", losses.mean(), on_epoch=True)
        return losses.sum() / batch.total

    def validation_step(self, batch: Evaluated, batch_idx: int) -> None:
        self.log("own_val_loss", F.cross_entropy(batch.logits, batch.labels))


class Silent(Watched):
    """Logs nothing where there is nothing to log."""

    def validation_step(self, batch: Evaluated, batch_idx: int) -> None:
        if len(batch.labels):
            super().validation_step(batch, batch_idx)


class Late(Watched):
    """Logs in a hook after the step, and asks for all ranks itself."""

    def validation_step(self, batch: Evaluated, batch_idx: int) -> None:
        self.found = F.cross_entropy(batch.logits, batch.labels), len(batch.labels)

    def on_validation_epoch_end(self) -> None:
        self.log("own_val_loss", self.found[0], batch_size=self.found[1], sync_dist=True)


class Notes(L.Callback):
    """Writes down what callbacks see, by rank."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_epoch_end(self, trainer: L.Trainer, module: Any) -> None:
        with (self.folder / f"seen{trainer.global_rank}").open("a") as file:
            seen = trainer.callback_metrics
            print(*(float(seen[name]) for name in ("own_val_loss", "own_train_loss")), file=file)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "keys"),
    [
        exhaustive((Watched, {})),
        (Silent, {}),
        exhaustive((Late, {})),
        exhaustive((Watched, {"workers": 3})),
        exhaustive((Silent, {"comm": "gloo"})),
        exhaustive((Watched, {"sync": "leader"})),
    ],
    ids=str,
)
def test_early_stopping_sees_one_figure_on_all_ranks_and_that_of_one_worker(
    tmp_path: Path, model: type[Watched], keys: dict[str, Any]
) -> None:
    """A rank without validation nodes has no loss, which was NaN before."""
    for name, more in {"one": {"workers": 1}, "many": keys}.items():
        (tmp_path / f"{name}-notes").mkdir()
        stop = theirs.EarlyStopping("own_val_loss", patience=2)
        result = train(tmp_path / name, make_seeded(model), stop, Notes(tmp_path / f"{name}-notes"), **more)
        assert result["epochs"] == 8, "the loss falls in all epochs"
        assert result["stopped"] is None
    values = [np.loadtxt(path) for path in sorted(tmp_path.glob("*-notes/seen*"))]
    assert len(values) == 1 + int(keys.get("workers", 2))
    for each in values:
        np.testing.assert_allclose(each, values[-1], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, exhaustive(2)])
def test_a_callback_that_ends_training_is_named(
    tmp_path: Path, workers: int, capfd: pytest.CaptureFixture[str]
) -> None:
    stop = theirs.EarlyStopping("own_val_loss", patience=1, mode="max")
    result = train(tmp_path / "run", make_seeded(Watched), stop, workers=workers)
    assert result["epochs"] == 2
    assert result["stopped"].startswith("callback=EarlyStopping: ended after epoch 2: Monitored metric own_val_loss")
    assert result["stopped"] in capfd.readouterr().err


class Sampled(Own):
    """Reads blocks, whose first rows are those that a layer computes."""

    def forward(self, x: Tensor, adjacencies: Any) -> Tensor:
        mean = adjacencies[0].aggregate(x, reduce="mean")
        return self.plain.linear(x[: len(mean)] + mean)


HOOKS = [
    "on_fit_start", "on_train_start", "on_train_epoch_start", "on_train_batch_start", "on_train_batch_end",
    "on_validation_start", "on_validation_epoch_end", "on_validation_end", "on_train_epoch_end",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of_model", "hook"),
    [
        (of_model, hook) if number % 3 == 2 else exhaustive((of_model, hook))
        for number, (hook, of_model) in enumerate(in_turn(HOOKS, (False, True)))
    ],
)
def test_one_rank_that_wants_to_stop_ends_training_of_all_after_the_epoch(
    tmp_path: Path, hook: str, of_model: bool
) -> None:
    def stops(self: Any, *arguments: Any) -> None:
        trainer = self.trainer if of_model else arguments[0]
        late = trainer.current_epoch == 1 or hook in ("on_fit_start", "on_train_start")
        if trainer.global_rank == 1 and late:
            trainer.should_stop = True

    base: Any = Sampled if of_model else L.Callback
    made = type("Stops", (base,), {hook: stops})
    keys: dict[str, Any] = {"strategy": {"name": "joint_sample", "batch_size": 4}}
    keys |= {"sampler": {"name": "neighbor", "fanouts": [3]}}
    if of_model:
        result = train(tmp_path / "run", make_seeded(made), **keys)
    else:
        result = train(tmp_path / "run", make_seeded(Sampled), made(), **keys)
    assert result["epochs"] == (1 if hook in ("on_fit_start", "on_train_start") else 2)
    assert "a callback has set trainer.should_stop" in result["stopped"]


class Telling(Own):
    """Logs all kinds of values in steps of several rows."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        rows = float(len(batch.rows))
        self.log("rows", rows, on_step=False, on_epoch=True, reduce_fx="sum", batch_size=len(batch.rows))
        self.log("both", rows, on_epoch=True, reduce_fx="max")
        self.log("synced", rows, on_step=False, on_epoch=True, reduce_fx="sum", sync_dist=True)
        return super().training_step(batch, batch_idx)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_loggers_get_the_figure_of_an_epoch_over_all_ranks(tmp_path: Path) -> None:
    train(tmp_path / "run", make_seeded(Telling), logger="csv", trainer={"log_every_n_steps": 1, "max_epochs": 2})
    rows = int(np.count_nonzero(np.asarray(one_sided_graph().split) == 1))
    assert read_logged(tmp_path / "run", "rows") == read_logged(tmp_path / "run", "synced") == [rows, rows]
    assert read_logged(tmp_path / "run", "both_epoch")[0] > read_logged(tmp_path / "run", "both_step")[0], (
        "rank 1 has more rows"
    )
