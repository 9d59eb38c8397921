"""One job from config to result: plan in a child, start the ranks, train, collect."""

from __future__ import annotations

import functools
import io
import json
import os
import platform
import shutil
import socket
import statistics
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch import Tensor, nn

from gnnkit import plugins
from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.graph import Graph
from gnnkit.model.program import Program
from gnnkit.partition.shard import Shard
from gnnkit.strategy.base import ExecutionStrategy, Worker
from gnnkit.training.checkpoint import PeriodicCheckpoint, write_atomically
from gnnkit.training.display import Display
from gnnkit.training.launcher import launch, run_in_child
from gnnkit.training.leader import Leader
from gnnkit.training.models import Given, make_model, make_program
from gnnkit.training.module import TrainingModule, accuracies
from gnnkit.training.plan import SHARDS, plan, store_partition
from gnnkit.training.predict import predict
from gnnkit.training.program import Outcome, StepLog, check_strategy, iterate
from gnnkit.training.ranks import SyncMeter
from gnnkit.training.trainer import make_trainer, reconcile
from gnnkit.training.verify import verify_program, verify_rank

PRECISIONS = {32: torch.float32, 64: torch.float64}
CHECKPOINT = "checkpoints/last.json"  # in the run folder
TIMEOUT = 120.0  # seconds, where the backend's configuration names none

_building = threading.Lock()  # torch has one random generator for all threads


@dataclass(frozen=True, slots=True)
class Job:
    """What every rank needs to know; plain values, so that it can be sent to a fresh process."""

    config: dict[str, Any]
    folder: Path
    planned: dict[str, Any]  # what `plan` returned
    model: Given = None  # instead of the one that the config names


def run(config: Mapping[str, Any], folder: Path, graph: Graph | None = None, model: Given = None) -> dict[str, Any]:
    """Runs the job of a settled configuration, on `graph` and `model` where they are given, and writes into `folder`.

    Returns what `result.json` holds, and prints it as a short table.
    """
    config = dict(config)
    if config["job"] == "partition":
        result: dict[str, Any] = run_in_child(store_partition, config, folder, graph)
        print(result.pop("summary"))
    elif config["job"] == "plan":
        result = run_in_child(predict, config, graph, model)
        print(result.pop("summary"))
    else:
        result = _train(config, folder, graph, model)
        print(table(result))
    write_atomically(folder / "result.json", json.dumps(result, indent=2).encode())
    print(f"written to {folder}")
    return result


def _train(config: dict[str, Any], folder: Path, graph: Graph | None, model: Given) -> dict[str, Any]:
    """Plans in a child, then starts the ranks on what it left; the leader's result."""
    try:
        planned = run_in_child(plan, config, folder, graph, model)
        print(planned["summary"], flush=True)
        return _start(Job(config, folder, planned, model))
    finally:
        shutil.rmtree(folder / SHARDS, ignore_errors=True)


def join(
    config: Mapping[str, Any],
    folder: Path | None,
    graph: Graph | None = None,
    model: Given = None,
) -> dict[str, Any]:
    """What one of the ranks does that torchrun or a batch system started; `folder` is the leader's, on a disk that all see.

    The leader plans and then tells the others, which wait no longer than `comm.timeout`.
    """
    config, rank = dict(config), int(os.environ["RANK"])
    if issubclass(plugins.load("comm", config["comm"]["name"]), Threads):
        raise ValueError(
            f"comm={config['comm']['name']} makes its ranks itself, but ranks were started: choose another one"
        )
    message: dict[str, Any] = {}
    if folder is not None:
        try:
            message = {"folder": str(folder), "planned": run_in_child(plan, config, folder, graph, model)}
        except ValueError as error:
            message = {"error": str(error)}
    comm = _connect(config, rank, int(os.environ["WORLD_SIZE"]), None)
    try:
        message = comm.share(message)
        if "error" in message:
            raise ValueError(message["error"])
        result = train_rank(Job(config, Path(message["folder"]), message["planned"], model), comm)
    finally:
        comm.close()
        if folder is not None:
            shutil.rmtree(folder / SHARDS, ignore_errors=True)
    if folder is not None:
        print(table(result))
        write_atomically(folder / "result.json", json.dumps(result, indent=2).encode())
    return result


def _start(job: Job) -> dict[str, Any]:
    """Starts the ranks; the leader's result."""
    workers, name = job.config["workers"], job.config["comm"]["name"]
    comm: type[Communicator] = plugins.load("comm", name)
    if issubclass(comm, Threads):
        return launch(functools.partial(_thread_ranks, job), 1)
    on_gpus = comm.device_type == "cuda"
    if on_gpus and torch.cuda.device_count() < workers:
        raise ValueError(f"comm={name} needs a GPU for each of workers={workers}, found {torch.cuda.device_count()}")
    return launch(functools.partial(_process_rank, job), workers, start_method="spawn" if on_gpus else "fork")


def _thread_ranks(job: Job, rank: int, world_size: int, listener: socket.socket | None) -> dict[str, Any]:
    comm: type[Threads] = plugins.load("comm", job.config["comm"]["name"])
    results = comm.run(
        functools.partial(train_rank, job), job.config["workers"], timeout=job.config["comm"].get("timeout", TIMEOUT)
    )
    return results[0]


def _process_rank(job: Job, rank: int, world_size: int, listener: socket.socket | None) -> dict[str, Any]:
    comm = _connect(job.config, rank, world_size, listener)
    try:
        return train_rank(job, comm)
    finally:
        comm.close()


def _connect(config: dict[str, Any], rank: int, world_size: int, listener: socket.socket | None) -> Communicator:
    comm: type[Communicator] = plugins.load("comm", config["comm"]["name"])
    device = torch.device(comm.device_type)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank)))
        torch.cuda.set_device(device)
    timeout = config["comm"].get("timeout", TIMEOUT)
    return comm.connect(rank, world_size, device=device, timeout=timeout, listener=listener)


def train_rank(job: Job, comm: Communicator) -> dict[str, Any]:
    """What one rank does: trains, evaluates, and, being the leader, writes. Collective; the result is the leader's."""
    program = make_program(job.config, job.model)
    if program is not None:
        return _run_program(job, program, comm)
    if job.config["job"] == "verify":
        return verify_rank(job.config, job.folder / SHARDS, functools.partial(build_model, job), comm)
    config, trainer_config = job.config, job.config["trainer"]
    worker = _worker(job, comm)
    strategy: ExecutionStrategy = plugins.create("strategy", config["strategy"])
    model = build_model(job, worker)
    strategy.setup(worker, model)
    module = TrainingModule(
        model,
        strategy,
        worker,
        optimizer=trainer_config["optimizer"],
        lr=trainer_config["lr"],
        weight_decay=trainer_config["weight_decay"],
    )
    leader = Leader(worker, SyncMeter(), job.folder, quiet=bool(trainer_config["progress_bar"]))
    trainer = _trainer(job, worker, module, leader)
    trainer.fit(module, ckpt_path=trainer_config["resume"])
    drifts = reconcile(module.model, strategy, worker)
    if trainer_config["checkpoint"]:
        trainer.save_checkpoint(job.folder / CHECKPOINT)  # the final parameters
    return _collect(job, worker, module, leader) | drifts


def _run_program(job: Job, program: Program, comm: Communicator) -> dict[str, Any]:
    """What one rank does of a program: steps until it has converged, and, being the leader, writes. Collective."""
    config = job.config
    check_strategy(plugins.create("strategy", config["strategy"]), config["strategy"]["name"], config["model"]["name"])
    if config["trainer"]["resume"]:
        raise ValueError(f"trainer.resume={config['trainer']['resume']}: programs have no checkpoints")
    if config["job"] == "verify":
        return verify_program(config, job.folder / SHARDS, program, comm)
    worker = _worker(job, comm)
    watch = StepLog(job.folder) if comm.rank == 0 else (lambda *_: None)
    return _collect_program(job, worker, program, iterate(program, worker, watch))


def _worker(job: Job, comm: Communicator) -> Worker:
    config = job.config
    torch.set_num_threads(config["threads"])
    shard = Shard.load(job.folder / SHARDS / str(comm.rank))
    return Worker(comm, shard, PRECISIONS[config["trainer"]["precision"]], config["seed"])


def build_model(job: Job, worker: Worker) -> nn.Module:
    """The model with the run's initial parameters: equal on all ranks, whatever the precision."""
    with _building:
        torch.manual_seed(worker.seed)
        return make_model(job.config, job.model, worker.shard).to(worker.device, worker.dtype)


def _trainer(job: Job, worker: Worker, module: TrainingModule, leader: Leader) -> L.Trainer:
    """Of a run that writes into a folder, and shows itself where that is wanted."""
    config, is_leader = job.config["trainer"], worker.comm.rank == 0
    callbacks: list[Callback] = [leader]
    if config["checkpoint"]:
        callbacks.append(PeriodicCheckpoint(job.folder / CHECKPOINT, config["checkpoint_every"]))
    if is_leader and config["progress_bar"]:
        callbacks.append(Display(leader))
    loggers = [TensorBoardLogger(job.folder, "", "tensorboard"), CSVLogger(job.folder, "", "csv")]
    return make_trainer(
        job.config,
        module,
        leader.meter,
        callbacks=callbacks,
        logger=loggers if is_leader else False,
        max_epochs=config["max_epochs"],
        check_val_every_n_epoch=config["check_val_every_n_epoch"],
        log_every_n_steps=config["log_every_n_steps"],
    )


def _collect(job: Job, worker: Worker, module: TrainingModule, leader: Leader) -> dict[str, Any]:
    """Evaluates, writes the predictions, and joins what the ranks counted. Collective; the result is the leader's."""
    logits = module.predict_logits()
    measured = accuracies(logits, worker)
    _write_rows(job.folder / "predictions.npy", logits.argmax(1), worker)
    epochs = max(len(leader.epoch_seconds), 1)
    return {
        **_chosen(job, worker),
        "model": job.config["model"]["name"] if job.model is None else type(module.model).__name__,
        "epochs": len(leader.epoch_seconds),
        "train_loss": leader.train_loss,
        "stragglers": leader.stragglers,
        **_accuracies(measured),
        # The first epoch pays for what is built once.
        "seconds_per_epoch": statistics.median(leader.epoch_seconds[1:] or leader.epoch_seconds or [0.0]),
        **_counted(list(leader.words.values()), epochs, worker),
        "balance": job.planned["balance"] | leader.balance,
        **_circumstances(job),
    }


def _collect_program(job: Job, worker: Worker, program: Program, outcome: Outcome) -> dict[str, Any]:
    """Writes a program's values, and joins what the ranks counted. Collective; the result is the leader's."""
    values, traffic = outcome.values, outcome.traffic
    _write_rows(job.folder / "values.npy", values[:, 0] if values.shape[1] == 1 else values, worker)
    measured: dict[str, float | None] = {}
    if program.classifies:
        measured = _accuracies(accuracies(values, worker))
        _write_rows(job.folder / "predictions.npy", values.argmax(1), worker)
    totals = [traffic.total(step) for step in ("gather", "reduce", "slice")]
    return {
        **_chosen(job, worker),
        "model": job.config["model"]["name"] if job.model is None else type(program).__name__,
        "iterations": outcome.iterations,
        "residual": outcome.residual,
        "converged": outcome.residual <= program.tolerance,
        **measured,
        "seconds": outcome.seconds,
        "seconds_per_iteration": outcome.seconds / outcome.iterations,
        **_counted([*totals, traffic.bytes_sent], outcome.iterations, worker),
        "balance": job.planned["balance"],
        **_circumstances(job),
    }


def _chosen(job: Job, worker: Worker) -> dict[str, Any]:
    config = job.config
    return {
        "strategy": config["strategy"]["name"],
        "partition": str(config["partition"]["grid"]),
        "nodes": config["partition"]["nodes"],
        "grid": job.planned["grid"],
        "world_size": worker.comm.world_size,
        "dataset": config["dataset"]["name"],
    }


def _accuracies(measured: Mapping[str, float]) -> dict[str, float | None]:
    return {f"{split}_accuracy": measured.get(split) for split in ("train", "val", "test")}


def _counted(totals: list[int], rounds: int, worker: Worker) -> dict[str, Any]:
    """Words and bytes of an epoch or iteration, of the busiest rank and of each. Collective."""
    counted = torch.zeros(worker.comm.world_size, 4, dtype=torch.int64, device=worker.device)
    counted[worker.comm.rank] = torch.tensor(totals) // rounds
    words = worker.comm.all_reduce(counted).t().tolist()
    names = ("words_gathered", "words_reduced", "words_sliced", "bytes_sent")
    return {
        **{name: max(values) for name, values in zip(names, words, strict=True)},
        "per_rank": dict(zip(names, words, strict=True)),
    }


def _circumstances(job: Job) -> dict[str, Any]:
    return {
        "why": job.planned["why"],
        "versions": {name: version(name) for name in ("gnnkit", "torch", "lightning", "hydra-core", "numpy")}
        | {"python": platform.python_version()},
        "seed": job.config["seed"],
    }


def table(result: dict[str, Any]) -> str:
    """A run's figures as two columns of text."""
    lines = []
    for name, value in result.items():
        parts = value.items() if isinstance(value, dict) else [("", value)]
        text = "  ".join(
            f"{key} {_short(part)}".strip()
            for key, part in parts
            if name not in ("per_rank", "why") and part is not None
        )
        if text:
            lines.append(f"  {name:<18} {text}")
    return "\n".join(lines)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) and value >= 10_000 else str(value)


def _write_rows(path: Path, rows: Tensor, worker: Worker) -> None:  # rows [num_owned, ...]
    """The rows of all nodes, in the data set's order, written by the leader. Collective."""
    nodes = torch.tensor(np.asarray(worker.shard.owned, np.int64), device=worker.device)
    order, parts = worker.comm.gather(nodes), worker.comm.gather(rows)
    if parts:
        joined = torch.cat(parts)[torch.argsort(torch.cat(order))].cpu().numpy()
        buffer = io.BytesIO()
        np.save(buffer, joined, allow_pickle=False)
        write_atomically(path, buffer.getvalue())
