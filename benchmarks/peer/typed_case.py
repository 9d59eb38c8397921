"""The heterogeneous graph that `typed_sampling.py` writes, as its peers read it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from serve import Case


@dataclass(frozen=True)
class TypedArrays:
    """In-edges by relation, with ids within the node types."""

    counts: dict[str, int]  # nodes by type, in order
    relations: list[tuple[str, str, str]]
    seed_type: str
    case: Case

    @classmethod
    def of(cls, case: Case) -> TypedArrays:
        schema = json.loads((case.folder / "schema.json").read_text())
        return cls(schema["counts"], [tuple(relation) for relation in schema["relations"]], schema["seed_type"], case)

    @property
    def firsts(self) -> dict[str, int]:
        """First id of each type if the types' ids are consecutive."""
        ends = np.cumsum(list(self.counts.values()))
        return {name: int(end) - count for (name, count), end in zip(self.counts.items(), ends, strict=True)}

    def csc(self, number: int) -> tuple[Any, Any]:  # [num_dst + 1] int64, [num_edges] int64
        """Reads the in-edges of one relation."""
        folder = self.case.folder
        indptr, indices = (np.load(folder / f"{name}_{number}.npy") for name in ("indptr", "indices"))
        return indptr, indices.astype(np.int64)

    def edges(self) -> Iterator[tuple[Any, Any]]:
        """Yields sources and destinations by relation, with consecutive ids."""
        for number, (source, _, destination) in enumerate(self.relations):
            indptr, indices = self.csc(number)
            rows = np.arange(self.counts[destination]) + self.firsts[destination]
            yield indices + self.firsts[source], np.repeat(rows, np.diff(indptr))
