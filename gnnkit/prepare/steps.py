"""The steps from a graph as read to the graph that is partitioned.

Runs, stores and imports share them. A step returns a new draft, and adds the lines that
describe what it did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gnnkit.config.settings import Settings
from gnnkit.errors import UserError
from gnnkit.graph import SPLITS, Graph, labelled
from gnnkit.graph.edge_order import in_listed_order, with_inverse_edges
from gnnkit.launch.phases import warnings_in_lines
from gnnkit.prepare.facts import Needs
from gnnkit.prepare.inputs import (
    check_implied_task,
    check_relation,
    describe_repeated,
    load,
    save_ids,
    with_inputs,
    with_kept,
)
from gnnkit.prepare.times import create_task, describe_sampled, describe_times, sampling_rule
from gnnkit.prepare.trained import as_read
from gnnkit.sampler.targets import NODES, TaskRows

_SPLIT_NAMES = {"train": "training", "val": "validation"}  # names of splits in messages


@dataclass(frozen=True, slots=True)
class Draft:
    """A graph between two steps of its preparation."""

    graph: Graph
    rows: TaskRows = NODES  # the rows to predict
    notes: tuple[str, ...] = ()  # lines on the steps so far
    rounding: str = ""  # the line on rounded features, if they are rounded

    def then(self, graph: Graph, notes: Sequence[str] = (), rows: TaskRows | None = None) -> Draft:
        """Returns the draft after a step."""
        return replace(self, graph=graph, rows=self.rows if rows is None else rows, notes=(*self.notes, *notes))


def prepare_graph(settings: Settings, needs: Needs, graph: Graph, folder: Path) -> Draft:
    """Returns the graph to partition, the rows to predict, and lines of description.

    Saves the users' ids and the facts about columns in `folder`.

    Args:
        settings: The settings.
        needs: The data that ranks read.
        graph: The data set, with the names of its columns.
        folder: The folder of the run or the store.
    """
    graph, notes = as_read(settings, graph, folder)
    draft = Draft(save_ids(load(settings, graph), folder), notes=tuple(notes))
    draft = _hold_out_rows(draft, settings, needs)
    draft = _choose_form(draft, settings, needs)
    draft = _add_inverse_edges(draft, settings, needs)
    return _order_edges(draft, settings, needs)


def _hold_out_rows(draft: Draft, settings: Settings, needs: Needs) -> Draft:
    """Leaves out the edges that pass no messages, and selects the models' inputs."""
    task, rule, graph, rows = create_task(settings), sampling_rule(settings), draft.graph, draft.rows
    if needs.for_store:
        graph, rows = divide(settings, graph, rule)
        graph = graph if settings.inputs == "features" else with_inputs(graph, settings.inputs)
    elif needs.trains:
        graph, rows = read(settings, graph, relational=needs.relational, rule=rule)
    elif needs.inputs:
        if "predictions" in settings.write or not task.hides_edges:
            graph, rows = task.prepare_known(graph)
        graph = with_inputs(graph, settings.inputs)
    times = describe_times(draft.graph, graph, rows, settings) if needs.trains else []
    labels = [f"labels: {task.reads_labels}"] if task.reads_labels else []
    return draft.then(graph, [*times, *rows.describe(), *labels], rows)


def _choose_form(draft: Draft, settings: Settings, needs: Needs) -> Draft:
    """Stores features as dense, sparse or rounded rows."""
    dtype = settings.features.dtype
    graph, notes = with_kept(draft.graph, settings.input_rows, needs.sparse, dtype)
    return replace(draft.then(graph, notes), rounding="" if dtype == "as_is" else "".join(notes))


def _add_inverse_edges(draft: Draft, settings: Settings, needs: Needs) -> Draft:
    """Adds the reverse of each edge if batches contain it."""
    graph = draft.graph
    if needs.relational and settings.model.arguments.get("inverse"):
        draft = draft.then(graph, describe_repeated(graph))
    if not needs.inverse_edges:
        return draft
    note = f"edges: {graph.num_edges:,} inverse edges were added (model.inverse=true)"
    return draft.then(with_inverse_edges(graph), [note], draft.rows.with_inverse_edges(graph.num_relations))


def _order_edges(draft: Draft, settings: Settings, needs: Needs) -> Draft:
    """Sorts in-edges as the sampler or the model reads them."""
    graph, rows, rule = draft.graph, draft.rows, sampling_rule(settings)
    notes = [] if rule == "none" else describe_sampled(graph, rows, rule, trains=needs.trains)
    graph = in_listed_order(graph) if needs.edge_order or rule != "none" else graph
    graph, rows = rows.arrange(graph, rule)
    return draft.then(graph, notes, rows)


def divide(settings: Settings, graph: Graph, rule: str) -> tuple[Graph, TaskRows]:
    """Returns the training graph and the rows to predict, of any split.

    Args:
        settings: The run's settings.
        graph: The graph with all edges.
        rule: `Sampler.time`. With times, all edges pass messages after their times.
    """
    task = create_task(settings)
    check_implied_task(settings, graph)
    return task.prepare(graph) if rule == "none" else task.prepare_by_time(graph)


def read(settings: Settings, graph: Graph, *, relational: bool, rule: str = "none") -> tuple[Graph, TaskRows]:
    """Returns the training graph and the rows to predict, as the task defines them.

    Raises `UserError` if no row is in the splits that the job reads.

    Args:
        settings: The run's settings.
        graph: The graph with all edges.
        relational: Whether the model reads edge types.
        rule: As for `divide`.
    """
    task = create_task(settings)
    try:
        with warnings_in_lines(settings.dataset.name):
            training_graph, rows = divide(settings, graph, rule)
    except UserError:
        if settings.job.needs_labels and task.labels_nodes and not graph.labelled.any():
            raise UserError(no_split(settings, has_labels=False, edges=graph.edge_labels is not None)) from None
        raise
    if relational:
        check_relation(graph.schema, rows)
    label, split, _ = rows.values(training_graph)
    if not (rows.drawn or np.isin(split, [SPLITS[name] for name in settings.job.splits]).any()):
        has_labels, edges = bool(labelled(label).any()), graph.edge_labels is not None
        raise UserError(no_split(settings, has_labels=has_labels, noun=task.noun, edges=edges))
    return with_inputs(training_graph, settings.inputs), rows


def no_split(settings: Settings, *, has_labels: bool, noun: str = "node", edges: bool = False) -> str:
    """Returns a message that names the missing split and a remedy.

    Args:
        settings: The run's settings.
        has_labels: Whether what the task predicts has labels.
        noun: What the task predicts.
        edges: Whether edges have labels.
    """
    splits = " or ".join(_SPLIT_NAMES.get(name, name) for name in settings.job.splits)
    if has_labels:
        draws = "draw_edge_split" if noun == "edge" else "draw_split"
        way = f"dataset.split=[0.6,0.2,0.2] or Graph.{draws} draws one"
    elif edges:
        way = "only edges have labels, which task=edge_classification or edge_regression predicts"
    else:
        way = "no node has a label (a column label, data.y or labels=), and task=link_prediction needs none"
    return f"dataset: no {noun} is in the {splits} split: {way}"
