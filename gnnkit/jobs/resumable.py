"""The settings that a run must have in common with a checkpoint to go on from there."""

from __future__ import annotations

import json
from typing import Any

from gnnkit.config.settings import Choice
from gnnkit.jobs.rank_job import RankJob
from gnnkit.training.resume import Identity

_LASTING = (
    "precision",
    "optimizer",
    "lr",
    "weight_decay",
    "schedule",
    "warmup_epochs",
    "plateau_factor",
    "plateau_patience",
    "clip_norm",
    "accumulate",
)  # keys of trainer that a resumed run keeps
_FREE = ("threads", "prefetch", "topology")  # arguments of plugins that change no result


def resumable(job: RankJob) -> Identity:
    """Returns the settings that a later run must have in common with this one.

    Epochs, intervals, threads, deadlines and output may change. The number of workers
    may change between epochs. `Resume` compares the shapes of parameters.
    """
    settings, partition = job.settings, job.settings.partition
    run: dict[str, Any] = _spelt_out("task", settings.task)  # first, as the data follow
    run |= {"inputs": settings.inputs, "embedding": settings.embedding, "features.scale": settings.features.scale}
    run |= {"features.fill": settings.features.fill, "features.text": settings.features.text}
    run |= {"learned.weight_decay": settings.learned.weight_decay}
    run |= {"dataset": job.prepared.fingerprint, "seed": settings.seed}
    run |= {f"trainer.{key}": getattr(settings.trainer, key) for key in _LASTING}
    if settings.trainer.schedule == "plateau":
        run |= {"trainer.monitor": settings.trainer.monitor}
    run |= _spelt_out("strategy", settings.strategy) | _spelt_out("sampler", settings.sampler)
    run |= _spelt_out("exchange", settings.exchange) | _spelt_out("sync", settings.sync)
    run |= {"model": job.source.name} if job.model is not None else _spelt_out("model", settings.model)
    layout: dict[str, Any] = {"workers": settings.workers, **_spelt_out("partition.nodes", partition.nodes)}
    layout |= {f"partition.{key}": getattr(partition, key) for key in ("grid", "replication", "border")}
    layout |= _spelt_out("order", settings.order)
    return Identity(_plain(run), _plain(layout))


def _spelt_out(section: str, choice: Choice | None) -> dict[str, Any]:
    """Returns a plugin's name and arguments by configuration key."""
    if choice is None:
        return {section: None}
    return {section: choice.name} | {f"{section}.{k}": v for k, v in choice.arguments.items() if k not in _FREE}


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the values as read back from JSON."""
    plain: dict[str, Any] = json.loads(json.dumps(values, default=str))
    return plain
