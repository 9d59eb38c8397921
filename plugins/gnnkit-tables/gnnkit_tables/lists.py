"""Ranking: the rows of another table that belong to each target's list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from gnnkit_formats.table import Table

from gnnkit.errors import UserError
from gnnkit.graph.types import Floats, Ids
from gnnkit.launch.progress import say
from gnnkit.utils.checks import Array
from gnnkit.utils.ranges import shown
from gnnkit_tables.keys import DANGLING, NULL, KeyIndex, find_parents
from gnnkit_tables.manifest import TaskSpec

METRICS = ("map", "precision", "recall")
BETWEEN = " > "  # in ids of pairs, between the target and the row


@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """The listed rows of each target."""

    table: str  # type of the listed rows
    length: int  # of ranked lists
    indptr: Ids  # [num_targets + 1]
    items: Ids  # [k] rows of `table`, ascending within a target

    @classmethod
    def of(cls, table: str, length: int, targets: Ids, items: Ids, num_targets: int) -> Self:
        """Groups pairs of targets [k] and items [k], without duplicates."""
        pairs = np.unique(np.stack([targets, items], 1), axis=0).reshape(-1, 2)
        return cls(table, length, np.searchsorted(pairs[:, 0], np.arange(num_targets + 1)), pairs[:, 1])

    @property
    def sizes(self) -> Ids:  # [num_targets]
        return np.diff(self.indptr)

    @property
    def targets(self) -> Ids:  # [k]
        """The target of each item."""
        return np.repeat(np.arange(len(self.indptr) - 1), self.sizes)

    def with_empty(self, count: int) -> Lists:
        """Adds empty lists of further targets."""
        end = np.full(count, self.indptr[-1])
        return Lists(self.table, self.length, np.concatenate([self.indptr, end]), self.items)


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """Scores of candidates without a model. A score of 0 lists nothing."""

    name: str
    events: str  # the rows that it counts
    scores: Floats  # [num_pairs]

    @property
    def column(self) -> str:
        """The targets' column with the place in the list that the rule gives."""
        return f"{self.events}: {self.name}: place"


def one_row_per_item(table: Table, label: str) -> Table:
    """Returns a row for each item of a list in the column `label`.

    Empty lists have no row, which a line counts. A table without lists is returned as
    it is.
    """
    if label not in table.names or not pa.types.is_nested(kind := table.plain(label).type):
        return table
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        raise UserError(f"{table.name}, column {label!r} holds {kind}, expected keys or lists of keys")
    lists = table.plain(label)
    rows = pc.list_parent_indices(lists)
    columns = {name: table.plain(name).take(rows) for name in table.names if name != label}
    if num_empty := table.num_rows - len(pc.unique(rows)):
        say(f"tables: {num_empty:,} of {table.num_rows:,} rows of {table.name} have an empty list: dropped")
    return Table(table.name, pa.table({**columns, label: pc.list_flatten(lists)}), missing=table.missing)


def read_items(table: Table, spec: TaskSpec, index: KeyIndex) -> Ids:  # [num_rows], negative if there is none
    """Returns the listed row of each task row. Unknown keys are counted in a line.

    Args:
        table: The task's rows, one for each item.
        spec: Its entry in the manifest.
        index: The rows that are listed, by primary key.
    """
    items = find_parents(table, (spec.label,), index)
    num_empty, unknown = np.count_nonzero(items == NULL), np.flatnonzero(items == DANGLING)
    if len(unknown) or num_empty:
        sample = f" (such as {shown(str(table.plain(spec.label)[int(unknown[0])]))})" if len(unknown) else ""
        say(
            f"tables: {table.name}, column {spec.label!r}: {num_empty:,} empty and {len(unknown):,} unknown keys{sample} of "
            f"{len(items):,} refer to no row of {spec.target}: dropped"
        )
    if not (items >= 0).any():
        raise UserError(
            f"{table.name}, column {spec.label!r}: no key is one of {spec.target}, such as {shown(index.show(0))}; name "
            "another target or label in the manifest"
            if len(index.columns[0])
            else f"{spec.target} has no rows to list"
        )
    return items


def rank_figures(lists: Array, ranks: Array, wanted: Array, sizes: Array, length: int) -> dict[str, float]:
    """Averages MAP, precision and recall at `length` over lists, as RelBench does.

    Args:
        lists: [k] number of the list of each ranked row.
        ranks: [k] from 0, distinct within a list.
        wanted: [k] whether the row belongs to the list.
        sizes: [k] number of rows that belong to the list, also unranked ones.
        length: Number of best rows to measure.
    """
    _, first, groups = np.unique(lists, return_index=True, return_inverse=True)
    if not len(first):
        return {}
    top = ranks < length
    hits = np.zeros((len(first), length))
    hits[groups[top], ranks[top].astype(np.int64)] = wanted[top]
    size = np.asarray(sizes[first], np.float64)
    precision = hits.cumsum(1) / np.arange(1, length + 1)
    parts: list[Floats] = [
        (precision * hits).sum(1) / np.minimum(size, length),
        hits.sum(1) / length,
        hits.sum(1) / size,
    ]
    return {name: float(part.mean()) for name, part in zip(METRICS, parts, strict=True)}


def rank_within(lists: Array, *scores: Array) -> Ids:  # [k]
    """Returns each row's place in its list by descending scores, then in row order.

    Args:
        lists: [k] number of each row's list.
        scores: [k] each, of which the first one is compared first.
    """
    order = np.lexsort([*(-np.asarray(score, np.float64) for score in scores[::-1]), lists])
    ordered = lists[order]
    first = np.searchsorted(ordered, ordered)
    ranks = np.empty(len(lists), np.int64)
    ranks[order] = np.arange(len(lists)) - first
    return ranks
