"""Edge fields, read from one table or from one for each relation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gnnkit.graph.types import Fields, Floats
from gnnkit.graph.unfit_columns import UnfitColumns
from gnnkit_formats.feature_columns import find_readings, warn_readings
from gnnkit_formats.label_columns import edge_label_columns, read_edge_labels
from gnnkit_formats.table import Table
from gnnkit_formats.time_columns import time_fields


@dataclass(frozen=True, slots=True)
class EdgeNames:
    """Column names in edge tables."""

    ends: tuple[str, str]  # source and destination ids
    weight: str | None = "weight"  # read if the tables have it
    relation: str = "type"  # read if there is one table, which has it
    label: str | None = None
    time: str | None = None
    node_time: str | None = None  # in the node table

    @property
    def known(self) -> tuple[str, ...]:
        """The columns that are not features."""
        optional = filter(None, [self.weight, self.time])
        return (*self.ends, *optional, self.relation, *edge_label_columns(self.label))


def read_edge_fields(
    tables: Mapping[str, Table], names: EdgeNames, features: Sequence[str], nodes: Table | None = None
) -> Fields:
    """Reads all edge fields except the ends, and the node times.

    Warns how text and dates are read in both tables. Raises `UnfitColumns` for features
    that cannot be read.

    Args:
        tables: By relation, with the same columns. A single table, named "", may have a
            column with relations.
        names: The columns.
        features: Feature columns.
        nodes: The node table after its features were read, if there is one.
    """
    links = list(tables.values())
    first, readings = links[0], find_readings(links[0].name, links, features)
    rows = [table.use_readings(readings).rows(features) for table in links]
    for table in (nodes, first):
        if table is not None:
            warn_readings(table.name, table.readings)
    counts = [table.num_rows for table in links]
    types = (
        (np.repeat(np.arange(len(links)), counts), list(tables)) if "" not in tables else first.types(names.relation)
    )
    weighted = names.weight is not None and names.weight in first.names
    return {
        "edge_types": types[0],
        "edge_type_names": types[1],
        "edge_features": _concat_rows([part for part in rows if part is not None]),
        "edge_feature_names": first.column_names(features),
        "edge_category_of": first.category_of(features),
        "weight": np.concatenate([table.weights(names.weight) for table in links]) if weighted else None,  # type: ignore[arg-type]
        **read_edge_labels(links, names.label),
        **time_fields(links, nodes, names.time, names.node_time),
    }


def _concat_rows(rows: Sequence[Floats]) -> Floats | None:
    if len({part.shape[1] for part in rows}) > 1:
        raise UnfitColumns("lists of edges differ in length")
    return np.concatenate(rows) if rows else None
