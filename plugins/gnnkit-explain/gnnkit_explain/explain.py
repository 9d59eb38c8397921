"""job=explain: what a trained model's predictions for some nodes are based on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import torch

from gnnkit.comm import LEADER, Communicator
from gnnkit.jobs import figures
from gnnkit.jobs.job import as_a_warning
from gnnkit.jobs.predict import TrainedRun, read_learned
from gnnkit.jobs.rank_job import RankJob
from gnnkit.launch.progress import progress, warn
from gnnkit.result.figures import merge
from gnnkit.task import NodeTask
from gnnkit.utils.documents import Json
from gnnkit_explain.attribution import TOLERANCE, Fidelity, characterisation
from gnnkit_explain.explained import ExplainedNames, write_tables
from gnnkit_explain.explanation import Explainer, Explanation


def explain(job: RankJob, comm: Communicator) -> Json:
    """Explains the predictions for `nodes`, and writes tables and a page.

    Collective until all ranks have the model. The leader then computes alone, and
    returns the figures.
    """
    run = TrainedRun.of(job, comm, torch.float64)
    names = ExplainedNames.of(job, run)
    numbers = names.numbers(job.settings.job_keys.nodes)
    if comm.rank != LEADER:
        return {}
    assert isinstance(run.task, NodeTask), "checked before the ranks start"
    embeddings = read_learned(job, run.worker, run.folder)
    explainer = Explainer(run.worker, run.model, run.task, embeddings)
    explanations, start = [], time.perf_counter()
    for count, number in enumerate(numbers, 1):
        progress(f"explaining node {count} of {len(numbers)}")
        explanations.append(explainer.explain(number, job.settings.seed))
    seconds = (time.perf_counter() - start) / len(numbers)
    write_tables(job, explanations, names)
    quality = summarise(explanations, has_classes=explainer.has_classes)
    _warn(quality["completeness_gap"])
    if job.settings.report:
        from gnnkit_explain.page import write

        with as_a_warning():
            write(explanations, names, quality, job.folder, f"{job.source.name} explained")
    return merge(
        figures.plugins(job, run.worker),
        {"checkpoint": str(run.folder), "explained_nodes": len(numbers), "seconds_per_node": seconds},
        quality,
        figures.circumstances(job),
    )


def summarise(explanations: Sequence[Explanation], *, has_classes: bool) -> Json:
    """Returns the largest gap, and the mean fidelities for features and neighbours.

    Args:
        explanations: One per node.
        has_classes: Whether scores are probabilities, which `characterisation` needs.
    """
    by_kind = {
        "fidelity_features": [item.of_features for item in explanations],
        "fidelity_neighbours": [item.of_neighbours for item in explanations],
    }
    means = {kind: _mean([value for value in values if value is not None]) for kind, values in by_kind.items()}
    for values in means.values() if has_classes else ():
        for prefix in ("", "random_") if values else ():
            values[f"{prefix}characterisation"] = characterisation(values[f"{prefix}plus"], values[f"{prefix}minus"])
    return {"completeness_gap": max(item.gap for item in explanations), **means}


def _mean(values: Sequence[Fidelity]) -> dict[str, float]:
    names = [field.name for field in fields(Fidelity)] if values else []
    return {name: float(np.mean([getattr(value, name) for value in values])) for name in names}


def _warn(gap: float) -> None:
    if gap > TOLERANCE:
        warn(
            f"completeness_gap={gap:.2g}: importances of a node do not add up to the change that they explain, "
            "because its prediction changes too abruptly on the path from zeros to its inputs"
        )
