"""The files of an Apache GraphAr folder, as described by its YAML files.

The format is https://graphar.apache.org/docs/specification/format: a type's vertices
are stored in chunks, and a type's edges in parts by the chunk of one end, each of which
is stored in chunks. Properties are stored in groups. Each group is a table of such
chunks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from gnnkit_import.readers import Columns, CsvSource, ParquetSource, read_mapping

from gnnkit.errors import UserError
from gnnkit.utils.checks import whole
from gnnkit.utils.ranges import unknown
from gnnkit_graphar.orc import OrcSource

ENDS = ("_graphArSrcIndex", "_graphArDstIndex")  # columns of an adjacency list
_VERSION = "gar/v1"
_FORMATS = ("parquet", "orc", "csv")  # supported values of file_type
_ARROW_TYPES = {  # column types in CSV files, by data_type. Other columns' types are inferred
    "bool": pa.bool_(),
    "int32": pa.int64(),
    "int64": pa.int64(),
    "float": pa.float64(),
    "double": pa.float64(),
    "string": pa.string(),
}


@dataclass(frozen=True, slots=True)
class PropertyGroup:
    """Properties that share a table."""

    source: Columns
    names: list[str]


@dataclass(frozen=True, slots=True)
class VertexType:
    """A type's vertices, which are consecutive nodes of the graph."""

    name: str
    first: int  # its first node
    count: int
    primary: str | None  # property with the ids
    groups: list[PropertyGroup]

    def table_of(self, name: str) -> Columns | None:
        """Returns the table that contains a property."""
        return next((group.source for group in self.groups if name in group.names), None)


@dataclass(frozen=True, slots=True)
class EdgeType:
    """A type's edges, which are a relation of the graph."""

    name: str
    src: VertexType
    dst: VertexType
    count: int
    directed: bool
    ends: Columns | None  # None if there are no edges
    groups: list[PropertyGroup]
    names: list[str]  # properties to read

    @property
    def feature_names(self) -> list[str]:
        """The properties that are edge features."""
        return [name for name in self.names if name != "weight"]


class GraphArLayout:
    """The vertex and edge types of a folder, with their open tables."""

    def __init__(self, root: Path, graph: str | None, ignore: Sequence[str], missing: Sequence[str]) -> None:
        """Stores the arguments of `GraphAr`. Files are opened on demand."""
        self.root, self._graph, self._ignore, self._missing = root, graph, ignore, missing

    @cached_property
    def _listed(self) -> tuple[Path, list[Path], list[Path]]:
        """The chunks' folder, and the YAML files of vertex types and edge types."""
        if not self.root.is_dir():
            raise UserError("is not a folder")
        graphs = {path.name.removesuffix(".graph.yml"): path for path in sorted(self.root.glob("*.graph.yml"))}
        chosen = self._graph
        if chosen is not None and chosen not in graphs:
            raise unknown(f"dataset.graph={chosen}", chosen, list(graphs))
        if chosen is None and len(graphs) > 1:
            raise UserError(f"contains several graphs: set dataset.graph=NAME to one of {', '.join(graphs)}")
        if graphs:
            keys = read_mapping(graphs[chosen or next(iter(graphs))])
            prefix = keys.get("prefix") or "."
            is_relative = not (Path(prefix).is_absolute() or "://" in str(prefix))
            vertices, edges = ([self.root / str(name) for name in keys.get(key) or []] for key in ("vertices", "edges"))
            return self.root / prefix if is_relative else self.root, vertices, edges
        vertices, edges = (sorted(self.root.glob(f"*.{kind}.yml")) for kind in ("vertex", "edge"))
        if not vertices:
            raise UserError("contains no .graph.yml and no .vertex.yml")
        return self.root, vertices, edges

    @property
    def files(self) -> list[Path]:
        """All files to read."""
        _, vertices, edges = self._listed
        tables = [
            *(vertices.groups for vertices in self.vertex_types.values()),
            *(relation.groups for relation in self.edge_types),
        ]
        sources = [group.source for groups in tables for group in groups]
        sources += [relation.ends for relation in self.edge_types if relation.ends is not None]
        descriptions = [*sorted(self.root.glob("*.graph.yml")), *vertices, *edges]
        return [*descriptions, *(path for source in sources for path in source.files)]

    @cached_property
    def vertex_types(self) -> dict[str, VertexType]:
        """The vertex types by name, in the order of their nodes."""
        folder, paths, _ = self._listed
        if not paths:
            raise UserError("names no vertices")
        types: dict[str, VertexType] = {}
        for path in paths:
            keys = _read_description(path, "type", "prefix", "chunk_size")
            name, place = str(keys["type"]), folder / str(keys["prefix"])
            count = _read_number(place / "vertex_count")
            chunk_size = whole(f"{path.name}: chunk_size", keys["chunk_size"], 1)
            groups = self._open_groups(path, keys, place, _chunk_rows("", count, chunk_size))
            primary = [str(entry["name"]) for entry in _properties(keys) if entry.get("is_primary")]
            first = sum(earlier.count for earlier in types.values())
            types[name] = VertexType(name, first, count, primary[0] if primary else None, groups)
        return types

    @cached_property
    def edge_types(self) -> list[EdgeType]:
        """The edge types."""
        folder, _, paths = self._listed
        return [self._edge_type(folder, path) for path in paths]

    def _edge_type(self, folder: Path, path: Path) -> EdgeType:
        required = ("src_type", "edge_type", "dst_type", "prefix", "chunk_size", "src_chunk_size", "dst_chunk_size")
        keys = _read_description(path, *required)
        src, dst = (self._vertex_type(path, str(keys[end])) for end in ("src_type", "dst_type"))
        lists = [entry for entry in keys.get("adj_lists") or [] if entry.get("file_type") in _FORMATS]
        if not lists:
            raise UserError(f"{path.name}: adj_lists must contain a list with file_type {', '.join(_FORMATS)}")
        place = folder / str(keys["prefix"]) / _prefix_of(lists[0])
        aligned = str(lists[0].get("aligned_by"))
        num_nodes = (src if aligned == "src" else dst).count
        num_parts = -(-num_nodes // whole(f"{path.name}: chunk_size", keys[f"{aligned}_chunk_size"], 1))
        counts = [_read_number(place / f"edge_count{part}") for part in range(num_parts)]
        chunk_size = whole(f"{path.name}: chunk_size", keys["chunk_size"], 1)
        rows: dict[str, int] = {}
        for part, count in enumerate(counts):
            rows |= _chunk_rows(f"part{part}/", count, chunk_size)
        return EdgeType(
            "-".join(str(keys[name]) for name in required[:3]),
            src,
            dst,
            sum(counts),
            bool(keys.get("directed", True)),
            self._open(place / "adj_list", rows, str(lists[0]["file_type"]), dict.fromkeys(ENDS, pa.int64())),
            self._open_groups(path, keys, place, rows),
            [name for entry in _properties(keys) if (name := str(entry["name"])) not in self._ignore],
        )

    def _vertex_type(self, path: Path, name: str) -> VertexType:
        if name not in self.vertex_types:
            raise unknown(f"{path.name}: type {name}", name, list(self.vertex_types))
        return self.vertex_types[name]

    def _open_groups(
        self, path: Path, keys: Mapping[str, Any], place: Path, rows: Mapping[str, int]
    ) -> list[PropertyGroup]:
        """Opens a description's property groups. Takes the arguments of `_open`."""
        groups = []
        for entry in keys.get("property_groups") or []:
            names, form = [str(column["name"]) for column in entry["properties"]], entry.get("file_type")
            if form not in _FORMATS:
                raise UserError(
                    f"{path.name}: {', '.join(names)} have file_type {form}, expected {' or '.join(_FORMATS)}"
                )
            types = {
                str(column["name"]): _ARROW_TYPES.get(str(column.get("data_type"))) for column in entry["properties"]
            }
            declared = {name: arrow_type for name, arrow_type in types.items() if arrow_type is not None}
            source = self._open(place / str(entry.get("prefix") or "_".join(names)), rows, form, declared)
            if source is not None:
                groups.append(PropertyGroup(source, names))
        return groups

    def _open(
        self, folder: Path, rows: Mapping[str, int], form: str, types: Mapping[str, pa.DataType]
    ) -> Columns | None:
        """Opens a table of chunks. Returns None if there are none.

        Args:
            folder: The chunks' folder.
            rows: Number of rows in each chunk, by its path in the folder.
            form: One of `_FORMATS`.
            types: Types of the declared columns, for CSV.
        """
        if not rows:
            return None
        paths, count = [folder / name for name in rows], sum(rows.values())
        source: Columns
        if form == "csv":
            source = CsvSource(paths, self.root, types, rows=list(rows.values()))
        else:
            source = OrcSource(paths, self.root) if form == "orc" else ParquetSource(paths, self.root)
            if source.num_rows != count:
                place = folder.relative_to(self.root)
                raise UserError(f"{place} has {source.num_rows} rows in its chunks, expected {count}")
        source.missing = self._missing
        return source


def _read_description(path: Path, *required: str) -> dict[str, Any]:
    """Reads the YAML file of a vertex or edge type, and checks its required keys."""
    keys = read_mapping(path)
    version = str(keys.get("version") or _VERSION)
    if version.partition(" ")[0] != _VERSION:
        raise UserError(f"{path.name} has version {version}, expected {_VERSION}")
    for name in required:
        if keys.get(name) is None:
            raise UserError(f"{path.name} has no key {name}")
    groups = keys.get("property_groups") or []
    if not all(isinstance(group, dict) and isinstance(group.get("properties"), list) for group in groups):
        raise UserError(f"{path.name}: property_groups must list groups of properties")
    if not all(isinstance(entry, dict) and "name" in entry for entry in _properties(keys)):
        raise UserError(f"{path.name}: each property needs a name")
    return keys


def _chunk_rows(prefix: str, count: int, chunk_size: int) -> dict[str, int]:
    """Returns the number of rows in each of a table's chunks, by file name."""
    sizes = (min(chunk_size, count - first) for first in range(0, count, chunk_size))
    return {f"{prefix}chunk{number}": size for number, size in enumerate(sizes)}


def _properties(keys: Mapping[str, Any]) -> list[Any]:
    return [entry for group in keys.get("property_groups") or [] for entry in group["properties"]]


def _prefix_of(adjacency: Mapping[str, Any]) -> str:
    ordered = "ordered" if adjacency.get("ordered") else "unordered"
    end = {"src": "source", "dst": "dest"}.get(str(adjacency.get("aligned_by")))
    if end is None:
        raise UserError(f"adj_lists: aligned_by {adjacency.get('aligned_by')}, expected src or dst")
    return str(adjacency.get("prefix") or f"{ordered}_by_{end}")


def _read_number(path: Path) -> int:
    """Reads a file that contains one number: 8 bytes, little-endian."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path.parent.name}/{path.name}: {error.strerror}") from error
    if len(content) != 8:
        raise UserError(f"{path.parent.name}/{path.name} has {len(content)} bytes, expected 8")
    return int.from_bytes(content, "little")
