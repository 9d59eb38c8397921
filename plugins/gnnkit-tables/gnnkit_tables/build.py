"""From tables and targets to a typed graph with times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gnnkit.graph import Graph, Relation, Split
from gnnkit.graph.graph import EdgeListFields
from gnnkit.graph.labels import unlabelled
from gnnkit.graph.schema import pack_tables
from gnnkit.graph.times import ALWAYS, NEVER, Times, parse_time
from gnnkit.graph.types import Ids
from gnnkit.utils.ranges import shown
from gnnkit_tables.database import Database, RowType
from gnnkit_tables.encode import Embed, Encoded, Mask, encode, find_outsiders, is_embedded
from gnnkit_tables.history import is_event, past_columns
from gnnkit_tables.lists import BETWEEN
from gnnkit_tables.scores import boosted_scores
from gnnkit_tables.targets import Targets

BACK = "rev_"  # prefix of inverse relations, as in PyG
PLACEHOLDER = "row"  # column of ones of a type without columns


@dataclass(frozen=True, slots=True, eq=False)
class RelationEdges:
    """The edges of a relation, numbered within the types at their ends."""

    relation: Relation
    src: Ids  # [num_edges]
    dst: Ids  # [num_edges]
    times: Times  # [num_edges]

    @property
    def inverse(self) -> RelationEdges:
        relation = Relation(self.relation.destination, f"{BACK}{self.relation.name}", self.relation.source)
        return RelationEdges(relation, self.dst, self.src, self.times)


def build_graph(database: Database, targets: Targets, encoded: Mapping[str, Encoded]) -> Graph:
    """Makes a graph whose labelled nodes are the targets.

    Each target is a node of a type of its own, with an in-edge from its entity. A row
    that refers to another has an edge to it, with the row's time, and one back.

    Args:
        database: The tables.
        targets: What to predict.
        encoded: Columns of each type, from `encode_types` or `with_scores`.
    """
    sizes = {name: len(part.rows) for name, part in encoded.items()}
    num_nodes = sum(sizes.values())
    edges = list(_list_edges(database, targets))
    fields: EdgeListFields = {
        **_features(encoded, sizes),
        **_times(database, targets, edges),
        "labels": np.concatenate([unlabelled(targets.labels, num_nodes - len(targets.rows)), targets.labels]),
        "class_names": targets.class_names,
        "split": np.concatenate([np.zeros(num_nodes - len(targets.rows), np.int8), targets.split]),
        "node_ids": _node_ids(database, targets),
        "node_types": tuple(sizes.items()),
        "edge_types": np.repeat(np.arange(len(edges)), [len(part.src) for part in edges]),
        "edge_type_names": [part.relation.edge_type for part in edges],
        "relations": tuple(part.relation for part in edges),
    }
    begin = dict(zip(sizes, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
    src = np.concatenate([part.src + begin[part.relation.source] for part in edges])
    dst = np.concatenate([part.dst + begin[part.relation.destination] for part in edges])
    return Graph.from_edges(src, dst, num_nodes, **fields)


def _features(encoded: Mapping[str, Encoded], sizes: Mapping[str, int]) -> EdgeListFields:
    """Places the columns of all types side by side."""
    parts = [part.rows if part.names else None for part in encoded.values()]
    features, tables = pack_tables(parts, [*sizes.values()])
    names = [f"{name}.{column}" for name, part in encoded.items() for column in part.names or (PLACEHOLDER,)]
    fits = features is not None and len(names) == features.shape[1]
    return {"features": features, "feature_names": names if fits else None, "feature_tables": tables}


def _times(database: Database, targets: Targets, edges: Sequence[RelationEdges]) -> EdgeListFields:
    """Returns the times of edges and nodes, or nothing in a task without times."""
    if (targets.times == ALWAYS).all():
        return {}
    node_time = np.concatenate([*(rows.times for rows in database.types.values()), targets.times])
    edge_time = np.concatenate([part.times for part in edges])
    return {"edge_time": edge_time, "node_time": node_time, "time_unit": database.unit}


def build_columns(database: Database, targets: Targets, encoded: Mapping[str, Encoded]) -> Graph:
    """Makes a graph of the targets alone, without edges, as baselines read them.

    The arguments are those of `build_graph`.
    """
    columns, timed = encoded[targets.name], not (targets.times == ALWAYS).all()
    return Graph.from_edges(
        np.empty(0, np.int64),
        np.empty(0, np.int64),
        len(targets.rows),
        features=columns.rows,
        feature_names=list(columns.names),
        labels=targets.labels,
        class_names=targets.class_names,
        split=targets.split,
        node_ids=_node_ids(database, targets)[-len(targets.rows) :],
        node_time=targets.times if timed else None,
        time_unit=database.unit if timed else None,
    )


def encode_types(database: Database, targets: Targets, embed: Embed) -> dict[str, Encoded]:
    """Encodes the columns of all types, and those of the targets as the last entry.

    Args:
        database: The tables.
        targets: The task's rows.
        embed: The function of `dataset.text`.
    """
    fits = _rows_that_fit(database, targets)
    encoded = {name: encode(rows.table, rows.columns, fits[name], embed) for name, rows in database.types.items()}
    return {**encoded, targets.name: _target_columns(database, encoded, targets)}


def with_scores(encoded: Mapping[str, Encoded], targets: Targets) -> dict[str, Encoded]:
    """Adds the outputs of gradient boosting to the targets' columns."""
    columns = encoded[targets.name]
    return {**encoded, targets.name: Encoded.join([columns, boosted_scores(columns, targets)], len(targets.rows))}


def _rows_that_fit(database: Database, targets: Targets) -> dict[str, Mask]:
    """Marks the rows up to the last training target, for statistics of columns.

    A row without a time counts if a training target or such a row refers to it, so that
    rows that are added later change nothing.
    """
    fits = {name: (rows.times <= targets.cut) & (rows.times != ALWAYS) for name, rows in database.types.items()}
    if targets.cut == NEVER - 1:  # no times
        return {name: np.ones(len(rows), np.bool_) for name, rows in fits.items()}
    if database.types[targets.entity].is_static:
        fits[targets.entity][targets.rows[targets.split == Split.TRAIN]] = True
    if targets.pairs is not None and database.types[targets.pairs.table].is_static:
        listed = (targets.split == Split.TRAIN) & (targets.labels[:, 0] == 1)
        fits[targets.pairs.table][targets.pairs.items[listed]] = True
    for _ in database.types:  # static rows may refer to static rows
        for name, rows in database.types.items():
            for link in rows.links:
                if database.types[link.parent].is_static:
                    fits[link.parent][link.rows[fits[name] & (link.rows >= 0)]] = True
    return fits


def describe_outsiders(database: Database, targets: Targets) -> Iterator[str]:
    """Yields a line for each column with cells that are read as empty.

    The arguments are the first ones of `build_graph`.
    """
    fits = _rows_that_fit(database, targets)
    for name, rows in database.types.items():
        for column in rows.columns:
            if (outsiders := find_outsiders(rows.table, column, fits[name])).any():
                sample = rows.table.plain(column)[int(outsiders.argmax())].as_py()
                yield (
                    f"tables: {name}.{column}: {outsiders.sum():,} of {len(outsiders):,} cells are unlike the others, such as "
                    f"{shown(sample)!r} in row {outsiders.argmax()}, and are read as empty; correct them, or list such words "
                    "in dataset.missing"
                )


def _list_edges(database: Database, targets: Targets) -> Iterator[RelationEdges]:
    """Yields the edges of each link in both directions, and those of the targets."""
    for rows in database.types.values():
        for link in rows.links:
            visible = np.flatnonzero((link.rows >= 0) & (rows.times != NEVER))
            relation = Relation(rows.name, link.name, link.parent)
            edges = RelationEdges(relation, visible, link.rows[visible], rows.times[visible])
            yield edges
            yield edges.inverse
    entities = database.types[targets.entity]
    yield from _target_edges("entity", targets.entity, targets.rows, entities.times[targets.rows], targets)
    if targets.pairs is not None:
        items = targets.pairs.items
        times = database.types[targets.pairs.table].times[items]
        yield from _target_edges("row", targets.pairs.table, items, times, targets)
    if is_event(entities, targets):  # whose own row is as late as the target, and its parents are not
        for link in entities.links:
            yield from _target_edges(
                link.name, link.parent, link.rows[targets.rows], np.full(len(targets.rows), ALWAYS), targets
            )


def _target_edges(name: str, source: str, rows: Ids, times: Times, targets: Targets) -> Iterator[RelationEdges]:
    places = np.flatnonzero((rows >= 0) & (times != NEVER))
    yield RelationEdges(Relation(source, name, targets.name), rows[places], places, times[places])


def _target_columns(database: Database, encoded: Mapping[str, Encoded], targets: Targets) -> Encoded:
    """Joins the entity's columns, where its row is visible, and those of its past.

    Embedded text stays on the entity's node, because it identifies entities. Pairs have
    their own columns only, so that models rank by these instead of single rows.
    """
    if targets.pairs is not None:
        return targets.pairs.columns
    entities, columns = database.types[targets.entity], encoded[targets.entity]
    columns = columns.select([place for place, name in enumerate(columns.names) if not is_embedded(name)])
    visible = entities.times[targets.rows] <= np.where(targets.times == ALWAYS, NEVER - 1, targets.times)
    row = Encoded(columns.rows[targets.rows] * visible[:, None], columns.names, columns.sources)
    return Encoded.join([row, past_columns(database, dict(encoded), targets)], len(targets.rows))


def _node_ids(database: Database, targets: Targets) -> npt.NDArray[np.str_]:
    """Returns ids such as `drivers:1`, and `task:1@2010-01-01` of targets."""
    keys = {name: _row_keys(rows) for name, rows in database.types.items()}
    target = keys[targets.entity].take(pa.array(targets.rows))
    if not (targets.times == ALWAYS).all():
        target = _join(target, _time_texts(targets.times, database.unit), "@")
    if (pairs := targets.pairs) is not None:
        target = _join(target, keys[pairs.table].take(pa.array(pairs.items)), f"{BETWEEN}{pairs.table}:")
    ids = {name: _join(pa.array([name] * len(column), pa.large_string()), column, ":") for name, column in keys.items()}
    ids[targets.name] = _join(pa.array([targets.name] * len(target), pa.large_string()), target, ":")
    return np.concatenate([np.array(column.to_pylist(), np.str_) for column in ids.values()])


def _time_texts(times: Times, unit: str | None) -> pa.Array:  # [k] large_string
    """Returns times as text, dates without the zeros that their unit adds."""
    if unit is None:
        return pa.array(times).cast(pa.large_string())
    texts = pa.array(np.datetime_as_string(times.view(f"M8[{unit}]")), pa.large_string())
    return pc.replace_substring_regex(texts, r"(T00:00:00(\.0+)?|\.0+)$", "")


def are_targets_at(time: Any, ids: npt.NDArray[np.str_]) -> Mask:  # [k]
    """Returns whether ids name targets as of a time.

    Args:
        time: Value of `dataset.until`.
        ids: [k] from `build_graph`.
    """
    unit = None if isinstance(time, int) else "ns"  # the finest
    (end,) = _time_texts(np.array([parse_time("dataset.until", time, unit)]), unit).to_pylist()
    names = pa.array(ids.tolist(), pa.large_string())
    return np.asarray(pc.or_(pc.ends_with(names, f"@{end}"), pc.match_substring(names, f"@{end}{BETWEEN}")))


def _join(left: pa.Array, right: pa.Array, mark: str) -> pa.Array:
    return pc.binary_join_element_wise(left, right, pa.scalar(mark, pa.large_string()))


def _row_keys(rows: RowType) -> pa.Array:  # [num_rows] large_string
    """Returns each row's primary key as text, or its number."""
    if rows.index is None:
        return pa.array(np.arange(rows.num_rows)).cast(pa.large_string())
    columns = [column.cast(pa.large_string()) for column in rows.index.columns]
    if len(columns) > 1:  # keys with commas remain distinct
        columns = [pc.replace_substring_regex(column, r"([\\,])", r"\\\1") for column in columns]
    return pc.binary_join_element_wise(*columns, pa.scalar(",", pa.large_string()))
