"""Names for explained nodes and columns, and the tables that `job=explain` writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gnnkit.errors import UserError
from gnnkit.graph import Graph, Ids, Schema
from gnnkit.graph.schema import types_of_nodes
from gnnkit.graph.times import ALWAYS, NEVER, Times, before_window, latest_visible, show_time
from gnnkit.jobs.outputs import node_ids, write_table
from gnnkit.jobs.predict import TrainedRun
from gnnkit.jobs.rank_job import RankJob
from gnnkit.prepare.trained import Inputs
from gnnkit.utils.checks import Array
from gnnkit_explain.explanation import Explanation

TableColumns = Mapping[str, Array | Sequence[object]]
_OF_DEGREE = ("log(1 + in-degree)", "constant")  # columns of inputs=degree


@dataclass(frozen=True, slots=True, eq=False)
class ExplainedNames:
    """Node, column and output names to which explanations refer."""

    graph: Graph
    schema: Schema
    ids: Array  # [num_nodes] the user's ids
    columns: Sequence[str]  # [width] names of input columns
    outputs: Sequence[str] | None  # class names. None: numbers
    rule: str = "none"  # the sampler's `time`
    window: int | None = None  # the sampler's

    @classmethod
    def of(cls, job: RankJob, run: TrainedRun) -> ExplainedNames:
        """Collects the names. The worker has the complete graph."""
        graph = run.worker.graph
        assert graph is not None
        schema = job.schema or graph.schema
        outputs = run.class_names or job.prepared.class_names
        time_rule = getattr(run.worker.sampler, "time", "none"), getattr(run.worker.sampler, "window", None)
        return cls(
            graph, schema, node_ids(job.folder, graph.num_nodes), _columns(job, run, schema), outputs, *time_rule
        )

    def numbers(self, nodes: Sequence[int | str]) -> list[int]:
        """Converts ids to numbers. Raises `UserError` for an unknown id."""
        is_text = self.ids.dtype.kind in "UO"
        numbers = []
        for node in nodes:
            node_id = str(node) if is_text else node
            matches = np.flatnonzero((self.ids == node_id) & (isinstance(node_id, str) == is_text))
            if len(matches) != 1:
                raise UserError(
                    f"nodes=[{node}]: no node has this id: expected an id of the data set, such as {self.ids[0]}; the column "
                    "id of job=predict write_format=csv lists them"
                )
            numbers.append(int(matches[0]))
        return numbers

    def output(self, explanation: Explanation) -> str:
        """Returns the name of the explained class."""
        return str(explanation.output) if self.outputs is None else self.outputs[explanation.output]

    def types(self, nodes: Ids) -> list[str]:  # [k] -> [k]
        """Returns the nodes' types."""
        return [self.schema.node_types[place][0] for place in types_of_nodes(nodes, self.schema.type_sizes)]

    def relations(self, node: int, nodes: Ids) -> list[str]:  # [k]
        """Returns the relations of the edges from `nodes` to `node`, joined by `;`."""
        edges, types = self._in_edges(node, node), self.graph.edge_types
        sources = self.graph.csc.indices[edges]
        kinds = np.zeros(len(sources), np.int64) if types is None else types[edges]
        by_source: dict[int, set[str]] = {}
        for source, kind in zip(sources.tolist(), kinds.tolist(), strict=True):
            by_source.setdefault(source, set()).add(self.schema.edge_types[kind])
        return [";".join(sorted(by_source.get(source, ()))) for source in nodes.tolist()]

    def _in_edges(self, node: int, seed: int) -> Ids:
        """Returns the positions of a node's in-edges that an explained node sees."""
        graph, edges = self.graph, np.arange(*self.graph.csc.indptr[node : node + 2])
        if self.rule == "none" or graph.node_time is None or graph.edge_time is None:
            return edges
        times, latest = graph.edge_time[edges], latest_visible(graph.node_time[[seed]], self.rule)
        since = ALWAYS if self.window is None else before_window(latest, self.window)
        visible: Ids = edges[(times <= latest) & ((times == ALWAYS) | (times > since))]
        return visible

    def prediction(self, explanation: Explanation) -> str:
        """Returns the predicted class or number, with its scores."""
        kind = f"class {self.output(explanation)}" if explanation.is_class else "number"
        return f"{kind}: {explanation.score:.4g}, and {explanation.baseline:.4g} if all inputs were 0"

    def edges(self, nodes: Ids) -> list[tuple[int, int]]:
        """Returns the edges that the first node sees between nodes, by position."""
        place = {node: index for index, node in enumerate(nodes.tolist())}
        return [
            (place[source], place[node])
            for node in place
            for source in self.graph.csc.indices[self._in_edges(node, int(nodes[0]))].tolist()
            if source in place and source != node
        ]


def _columns(job: RankJob, run: TrainedRun, schema: Schema) -> list[str]:
    """Returns names or numbers of node and edge columns, by type if types differ."""
    facts, tables = Inputs.load(run.folder) or Inputs.unknown(), schema.feature_tables or ()
    names = list(map(str, range(job.settings.embedding or run.worker.features.width)))
    if len({table.first for table in tables}) > 1:
        for (node_type, _), table in zip(schema.node_types, tables, strict=True):
            names[table.columns] = [f"{node_type} {column}" for column in range(table.width)]
    if facts.features is not None:
        names = [*facts.features, *(f"label {name}" for name in facts.label_classes or ())]
    edge_names = facts.edge_features or range(job.widths(run.worker).edge_width)
    return [*(_OF_DEGREE if job.settings.inputs == "degree" else names), *(f"edge {name}" for name in edge_names)]


def write_tables(job: RankJob, explanations: Sequence[Explanation], names: ExplainedNames) -> None:
    """Writes tables with nodes, features and neighbours, as CSV or Parquet."""
    suffix = "parquet" if job.settings.write_format == "parquet" else "csv"
    tables = {"nodes": _nodes(explanations, names), "neighbours": _neighbours(explanations, names)}
    if job.settings.inputs != "learned":  # whose columns have no meaning
        tables["features"] = _features(explanations, names)
    for name, columns in tables.items():
        write_table(job.folder / f"explained_{name}.{suffix}", columns)


def _nodes(explanations: Sequence[Explanation], names: ExplainedNames) -> TableColumns:
    classes = {"class": [names.output(item) for item in explanations]} if explanations[0].is_class else {}
    return {
        "id": names.ids[[item.node for item in explanations]],
        **classes,
        "score": [item.score for item in explanations],
        "baseline": [item.baseline for item in explanations],
    }


def _features(explanations: Sequence[Explanation], names: ExplainedNames) -> TableColumns:
    rankings = [np.argsort(-item.features, kind="stable") for item in explanations]
    rankings = [order[item.features[order] != 0] for item, order in zip(explanations, rankings, strict=True)]
    pairs = list(zip(explanations, rankings, strict=True))
    return {
        "id": np.repeat(names.ids[[item.node for item in explanations]], [len(order) for order in rankings]),
        "feature": [names.columns[column] for order in rankings for column in order],
        "importance": np.concatenate([item.features[order] for item, order in pairs]),
    }


def _neighbours(explanations: Sequence[Explanation], names: ExplainedNames) -> TableColumns:
    nodes = np.concatenate([item.nodes for item in explanations])
    columns = {
        "id": np.repeat(names.ids[[item.node for item in explanations]], [len(item.nodes) for item in explanations]),
        "neighbour": names.ids[nodes],
        "hops": np.concatenate([item.hops for item in explanations]),
    }
    if names.schema.several:
        columns["type"] = names.types(nodes)
        columns["relation"] = [name for item in explanations for name in names.relations(item.node, item.nodes)]
    if names.graph.node_time is not None:
        columns["time"] = _dates(names.graph.node_time[nodes], names.graph.time_unit)
    return {**columns, "importance": np.concatenate([item.importance for item in explanations])}


def _dates(times: Times, unit: str | None) -> list[str | None]:
    """Formats times, with None for nodes that are static or have none."""
    return [None if time in (ALWAYS, NEVER) else show_time(time, unit) for time in times.tolist()]
