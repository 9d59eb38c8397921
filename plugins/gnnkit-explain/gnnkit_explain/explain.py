"""job=explain: what a trained model's predictions for some nodes are based on."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import torch

from gnnkit.comm import LEADER, Communicator
from gnnkit.jobs import figures
from gnnkit.jobs.pages import as_a_warning
from gnnkit.jobs.predict import TrainedRun, read_learned
from gnnkit.jobs.rank_job import RankJob
from gnnkit.launch.progress import progress
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
    trained = TrainedRun.of(job, comm, torch.float64)
    names = ExplainedNames.of(job, trained)
    numbers = names.numbers(job.settings.job_keys.nodes)
    if comm.rank != LEADER:
        return {}
    assert isinstance(trained.task, NodeTask), "checked before the ranks start"
    learned = read_learned(job, trained.worker, trained.folder)
    explainer = Explainer(trained.worker, trained.model, trained.task, learned)
    explanations, begun = [], time.perf_counter()
    for count, number in enumerate(numbers, 1):
        progress(f"explaining node {count} of {len(numbers)}")
        explanations.append(explainer.explain(number, job.settings.seed))
    seconds = (time.perf_counter() - begun) / len(numbers)
    write_tables(job, explanations, names)
    measured = summarise(explanations, has_classes=explainer.has_classes)
    _warn(measured["completeness_gap"])
    _draw(job, explanations, names, measured)
    return merge(
        figures.plugins(job, trained.worker),
        {"checkpoint": str(trained.folder), "explained_nodes": len(numbers), "seconds_per_node": seconds},
        measured,
        figures.circumstances(job),
    )


def summarise(explanations: Sequence[Explanation], *, has_classes: bool) -> Json:
    """Returns the largest gap, and the mean fidelities for features and neighbours.

    Args:
        explanations: One per node.
        has_classes: Whether scores are probabilities, which `characterisation` needs.
    """
    by_kind = {
        "fidelity_features": [one.of_features for one in explanations],
        "fidelity_neighbours": [one.of_neighbours for one in explanations],
    }
    means = {kind: _mean([value for value in values if value is not None]) for kind, values in by_kind.items()}
    for values in means.values() if has_classes else ():
        for prefix in ("", "random_") if values else ():
            values[f"{prefix}characterisation"] = characterisation(values[f"{prefix}plus"], values[f"{prefix}minus"])
    return {"completeness_gap": max(one.gap for one in explanations), **means}


def _mean(values: Sequence[Fidelity]) -> dict[str, float]:
    names = [field.name for field in fields(Fidelity)] if values else []
    return {name: float(np.mean([getattr(value, name) for value in values])) for name in names}


def _warn(gap: float) -> None:
    if gap > TOLERANCE:
        print(
            f"gnnkit: warning: completeness_gap={gap:.2g}: importances of a node do not add up to the change that they explain, "
            "because its prediction changes too abruptly on the path from zeros to its inputs",
            file=sys.stderr,
        )


def _draw(job: RankJob, explanations: Sequence[Explanation], names: ExplainedNames, measured: Json) -> None:
    """Writes the page. A failure is printed, and loses no result."""
    if not job.settings.report:
        return
    from gnnkit_explain.page import write

    with as_a_warning():
        write([names.drawn(one) for one in explanations], measured, job.folder, f"{job.source.name} explained")
