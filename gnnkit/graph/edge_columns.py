"""Per-edge columns, and the rules for merging, cutting and extending them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from gnnkit.errors import UserError
from gnnkit.graph.csc import read_weights
from gnnkit.graph.features import optional_rows
from gnnkit.graph.labels import read_labels, unlabelled
from gnnkit.graph.split import Split
from gnnkit.graph.times import ALWAYS
from gnnkit.graph.types import Ids, Labels, edge_positions_of
from gnnkit.utils import checks
from gnnkit.utils.checks import Array

REVERSE = -1  # value of `edge_split` for an added reverse edge, which no task predicts
CONTEXT = -2  # value of `edge_split` for an edge that job=predict reads, but does not predict


def read_edge_labels(values: object, num_edges: int) -> Labels:
    """Reads labels of edges [num_edges, ...], in the forms of `Graph.labels`."""
    try:
        return read_labels(values, num_edges)
    except UserError as error:
        raise UserError(f"edges: {error}") from error


def read_edge_split(values: object, num_edges: int) -> Array:
    """Reads the split of edges [num_edges]: `Split`, `REVERSE` or `CONTEXT`."""
    split = checks.array("edge_split", values)
    is_marked = np.isin(split, (REVERSE, CONTEXT)) if split.dtype == np.int8 else np.zeros(split.shape, np.bool_)
    try:
        if not is_marked.any():
            return Split.of(split, num_edges)
        return np.where(is_marked, split, Split.of(split * ~is_marked, num_edges))
    except UserError as error:
        raise UserError(f"edges: {error}") from error


@dataclass(frozen=True, slots=True)
class EdgeColumnRule:
    """How one column is stored, checked, and extended to new edges.

    A reverse edge copies the value of the edge that it reverses, except for its label.
    """

    field: str  # file name, `Graph.from_edges` argument, and attribute of graphs and shards
    read: Callable[[object, int], Array | None]  # checks user values [num_edges, ...]
    merge: Literal["number", "identity", "first", "latest"]  # duplicates: sum or average, keep apart, take one value
    loop: Literal["one", "mean", "always", "none"]  # value of an added self-loop; none drops the column
    in_csc: bool = False  # whether the column is an attribute of the CSC
    cut: bool = True  # whether shards have the column


RULES: Mapping[str, EdgeColumnRule] = {
    "weight": EdgeColumnRule("weight", read_weights, "number", "one", in_csc=True),
    "features": EdgeColumnRule("edge_features", lambda x, n: optional_rows("edge_features", x, n), "number", "mean"),
    "relation": EdgeColumnRule("edge_types", lambda x, n: checks.integers("edge_types", x, n), "identity", "none"),
    "label": EdgeColumnRule("edge_labels", read_edge_labels, "first", "none", cut=False),
    "split": EdgeColumnRule("edge_split", read_edge_split, "first", "none", cut=False),
    "time": EdgeColumnRule("edge_time", lambda x, n: checks.int64s("edge_time", x, n), "latest", "always"),
    "position": EdgeColumnRule("edge_positions", edge_positions_of, "first", "none", cut=False),
}


class EdgeColumns(dict[str, Array]):
    """The edge columns that are present, [num_edges, ...] each, keyed as in `RULES`.

    Code that selects, sorts, merges or stores edges treats all columns alike through
    this class, so a new column needs one line in `RULES` and no change there. Missing
    columns have no entry.

    Examples:
        >>> from gnnkit.graph import Graph
        >>> columns = Graph.from_edges([0, 1], [1, 2], weight=[1.0, 2.0]).edge_columns
        >>> list(columns), columns.take([1])["weight"].tolist()
        (['weight', 'position'], [2.0])
    """

    def __init__(self, columns: Mapping[str, Array | None] | None = None) -> None:
        """Stores the columns that are not None, in the order of `RULES`."""
        present = columns or {}
        super().__init__({name: values for name in RULES if (values := present.get(name)) is not None})

    @classmethod
    def of(cls, owner: Any) -> EdgeColumns:
        """Returns the columns of a graph or a shard."""
        return cls(
            {name: getattr(owner.csc if rule.in_csc else owner, rule.field, None) for name, rule in RULES.items()}
        )

    @classmethod
    def read(cls, values: Mapping[str, object | None], num_edges: int) -> EdgeColumns:
        """Checks user columns, keyed by the fields of `RULES`.

        Raises `UserError` with the position of the first invalid value.
        """
        present = {name: rule for name, rule in RULES.items() if values.get(rule.field) is not None}
        return cls({name: rule.read(values[rule.field], num_edges) for name, rule in present.items()})

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Array]) -> EdgeColumns:
        """Restores the columns from the output of `arrays`."""
        return cls({name: arrays.get(rule.field) for name, rule in RULES.items()})

    @classmethod
    def concat(cls, parts: Sequence[EdgeColumns]) -> EdgeColumns:
        """Concatenates the edges of several parts, which must have the same columns."""
        return cls({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})

    def arrays(self) -> dict[str, Array]:
        """Returns the columns by file name."""
        return {RULES[name].field: values for name, values in self.items()}

    def fields_of(self, owner: type) -> Mapping[str, Any]:
        """Returns the edge attributes of a graph or shard, None for missing columns."""
        names = {field.name for field in fields(owner)}
        return {rule.field: self.get(name) for name, rule in RULES.items() if rule.field in names}

    def merged_by(self, merge: str) -> EdgeColumns:
        """Returns the columns that merge parallel edges in the given way.

        Args:
            merge: A value of `EdgeColumnRule.merge`, such as `number`.
        """
        return EdgeColumns({name: values for name, values in self.items() if RULES[name].merge == merge})

    def without(self, *names: str) -> EdgeColumns:
        """Returns the columns except the named ones, which may be missing."""
        return EdgeColumns({name: values for name, values in self.items() if name not in names})

    def cut_columns(self) -> EdgeColumns:
        """Returns the columns that shards have."""
        return self.without(*(name for name, rule in RULES.items() if not rule.cut))

    def take(self, edges: Ids | slice) -> EdgeColumns:
        """Selects edges by position, in the given order. A slice does not copy."""
        return EdgeColumns({name: values[edges] for name, values in self.items()})

    def without_labels(self, is_added: Array) -> EdgeColumns:
        """Returns the columns without the labels of added edges.

        Args:
            is_added: [num_edges] bool.
        """
        if "label" not in self:
            return self
        label, split = self["label"], self["split"]
        mask = is_added.reshape(-1, *[1] * (label.ndim - 1))
        new = {
            "label": np.where(mask, unlabelled(label, 1), label),
            "split": np.where(is_added, np.int8(REVERSE), split),
        }
        return EdgeColumns({**self, **new})

    def select(self, edges: Ids) -> EdgeColumns:
        """Selects edges, with their positions in this table as the position column."""
        return EdgeColumns({"position": edges, **self.take(edges)})

    def with_loops(self, insert: Callable[[Array, Array | float], Array], means: Array | None) -> EdgeColumns:
        """Adds the values of self-loops.

        Args:
            insert: Inserts one value, or one value per loop, into a column.
            means: [num_loops, edge_width] mean features of each node's in-edges.
        """
        new = {"one": 1.0, "mean": means, "always": ALWAYS}
        pairs = ((name, values, new.get(RULES[name].loop)) for name, values in self.items())
        return EdgeColumns({name: insert(values, value) for name, values, value in pairs if value is not None})
