"""Folders of Apache GraphAr, read in pieces.

The format is that of https://graphar.apache.org/docs/specification/format: vertices of
a type lie in chunks, edges of a relation in parts by the chunk of one end, and parts in
chunks. Columns lie in groups, each of which is a table of such chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnnkit.checks import whole
from gnnkit.dataset.importing.sources import CsvSource, OrcSource, ParquetSource, Source, read_keys
from gnnkit.dataset.importing.tables import Cells, labels_of, split_of, survey, texts_of
from gnnkit.dataset.pieces import EdgePiece, GraphPieces, NodeFields, Room, list_positions
from gnnkit.errors import UserError
from gnnkit.graph import Floats
from gnnkit.graph.labels import unlabelled
from gnnkit.graph.table import Table, warn_of_readings
from gnnkit.graph.values import Reading, is_text
from gnnkit.ranges import shown, unknown

if TYPE_CHECKING:
    from gnnkit.dataset.graphar import GraphAr

T = TypeVar("T")
_ENDS = ("_graphArSrcIndex", "_graphArDstIndex")
_VERSION = "gar/v1"
_FORMATS = ("parquet", "orc", "csv")  # file_type of chunks
_TYPES = {  # of CSV, by data_type. Columns of other types are read as they look
    "bool": pa.bool_(),
    "int32": pa.int64(),
    "int64": pa.int64(),
    "float": pa.float64(),
    "double": pa.float64(),
    "string": pa.string(),
}
_PIECE = 1 << 16  # ids that are read at once


@dataclass(frozen=True, slots=True)
class _Columns:
    """A group of columns in chunks."""

    source: Source
    names: list[str]


@dataclass(frozen=True, slots=True)
class _Kind:
    """The nodes of a type."""

    name: str
    first: int  # number of its first node
    count: int
    chunk: int  # nodes of a chunk
    key: str | None  # property that is the id
    groups: list[_Columns]

    def group(self, name: str) -> Source | None:
        """Returns the table of a property."""
        return next((group.source for group in self.groups if name in group.names), None)


@dataclass(frozen=True, slots=True)
class _Relation:
    """The edges of a type."""

    name: str
    src: _Kind
    dst: _Kind
    count: int
    directed: bool
    ends: Source | None  # None: no edges
    groups: list[_Columns]
    names: list[str]  # of all properties that are read


class GraphArPieces(GraphPieces):
    """The chunks that the files of a graph name."""

    has_gaps = True

    def __init__(self, given: GraphAr) -> None:
        super().__init__(given.root)
        self._given = given
        self.row_normalize, self.shares, self.seed = given.row_normalize, given.split, given.seed
        self.symmetrize = given.symmetrize
        self._edge_names: list[str] = []

    @cached_property
    def _listed(self) -> tuple[Path, list[Path], list[Path]]:
        """Finds the folder of the chunks, and the files of vertices and of edges."""
        if not self.root.is_dir():
            raise UserError("is not a folder")
        graphs = {path.name.removesuffix(".graph.yml"): path for path in sorted(self.root.glob("*.graph.yml"))}
        chosen = self._given.graph
        if chosen is not None and chosen not in graphs:
            raise unknown(f"dataset.graph={chosen}", chosen, list(graphs))
        if chosen is None and len(graphs) > 1:
            raise UserError(f"holds several graphs: dataset.graph=NAME chooses one of {', '.join(graphs)}")
        if graphs:
            path = graphs[chosen or next(iter(graphs))]
            facts = read_keys(path)
            prefix = facts.get("prefix") or "."
            below = not (Path(prefix).is_absolute() or "://" in str(prefix))
            files = [[self.root / str(name) for name in facts.get(each) or []] for each in ("vertices", "edges")]
            return self.root / prefix if below else self.root, files[0], files[1]
        files = [sorted(self.root.glob(f"*.{each}.yml")) for each in ("vertex", "edge")]
        if not files[0]:
            raise UserError("holds no .graph.yml and no .vertex.yml of GraphAr")
        return self.root, files[0], files[1]

    @cached_property
    def _kinds(self) -> dict[str, _Kind]:
        folder, paths, _ = self._listed
        if not paths:
            raise UserError("names no vertices")
        found: dict[str, _Kind] = {}
        for path in paths:
            facts = _facts(path, "type", "prefix", "chunk_size")
            name, place = str(facts["type"]), folder / str(facts["prefix"])
            count = _number(place / "vertex_count")
            chunk = whole(f"{path.name}: chunk_size", facts["chunk_size"], 1)
            groups = self._groups(path, facts, place, _chunks("", count, chunk))
            keys = [str(each["name"]) for each in _properties(facts) if each.get("is_primary")]
            first = sum(kind.count for kind in found.values())
            found[name] = _Kind(name, first, count, chunk, keys[0] if keys else None, groups)
        return found

    @cached_property
    def _relations(self) -> list[_Relation]:
        folder, _, paths = self._listed
        found = []
        for path in paths:
            asked = ("src_type", "edge_type", "dst_type", "prefix", "chunk_size", "src_chunk_size", "dst_chunk_size")
            facts = _facts(path, *asked)
            src, dst = (self._kind(path, str(facts[end])) for end in ("src_type", "dst_type"))
            lists = [each for each in facts.get("adj_lists") or [] if each.get("file_type") in _FORMATS]
            if not lists:
                raise UserError(f"{path.name}: adj_lists names no list of file_type {', '.join(_FORMATS)}")
            place = folder / str(facts["prefix"]) / _prefix_of(lists[0])
            aligned = str(lists[0].get("aligned_by"))
            nodes = (src if aligned == "src" else dst).count
            parts = -(-nodes // whole(f"{path.name}: chunk_size", facts[f"{aligned}_chunk_size"], 1))
            counts = [_number(place / f"edge_count{part}") for part in range(parts)]
            chunk = whole(f"{path.name}: chunk_size", facts["chunk_size"], 1)
            files: dict[str, int] = {}
            for part, count in enumerate(counts):
                files |= _chunks(f"part{part}/", count, chunk)
            ends = dict.fromkeys(_ENDS, pa.int64())
            names = [name for each in _properties(facts) if (name := str(each["name"])) not in self._given.ignore]
            found.append(
                _Relation(
                    "-".join(str(facts[name]) for name in asked[:3]),
                    src,
                    dst,
                    sum(counts),
                    bool(facts.get("directed", True)),
                    self._opened(place / "adj_list", files, str(lists[0]["file_type"]), ends),
                    self._groups(path, facts, place, files),
                    names,
                )
            )
        return found

    def _kind(self, path: Path, name: str) -> _Kind:
        if name not in self._kinds:
            raise unknown(f"{path.name}: type {name}", name, list(self._kinds))
        return self._kinds[name]

    def _groups(self, path: Path, facts: Mapping[str, Any], place: Path, files: Mapping[str, int]) -> list[_Columns]:
        """Opens the groups of columns that a file describes."""
        found = []
        for group in facts.get("property_groups") or []:
            names, kind = [str(each["name"]) for each in group["properties"]], group.get("file_type")
            if kind not in _FORMATS:
                expected = " or ".join(_FORMATS)
                raise UserError(f"{path.name}: {', '.join(names)} have file_type {kind}, expected {expected}")
            types = {str(each["name"]): _TYPES.get(str(each.get("data_type"))) for each in group["properties"]}
            known = {name: each for name, each in types.items() if each is not None}
            source = self._opened(place / str(group.get("prefix") or "_".join(names)), files, kind, known)
            if source is not None:
                found.append(_Columns(source, names))
        return found

    def _opened(
        self, folder: Path, files: Mapping[str, int], kind: str, types: Mapping[str, pa.DataType]
    ) -> Source | None:
        """Opens the chunks of a table. None: there are none.

        Args:
            folder: of the chunks.
            files: rows of each chunk, by the path in the folder.
            kind: the format, one of `_FORMATS`.
            types: of the columns that are known, for CSV.
        """
        if not files:
            return None
        paths, count = [folder / name for name in files], sum(files.values())
        source: Source
        if kind == "csv":
            source = CsvSource(paths, self.root, types, rows=list(files.values()))
        else:
            source = OrcSource(paths, self.root) if kind == "orc" else ParquetSource(paths, self.root)
            if source.num_rows != count:
                raise UserError(
                    f"{folder.relative_to(self.root)} has {source.num_rows} rows in its chunks, expected {count}"
                )
        source.missing = self._given.missing
        return source

    @property
    def files(self) -> Sequence[Path]:
        _, kinds, relations = self._listed
        tables = [*(kind.groups for kind in self._kinds.values()), *(each.groups for each in self._relations)]
        sources = [group.source for groups in tables for group in groups]
        sources += [each.ends for each in self._relations if each.ends is not None]
        listed = [*sorted(self.root.glob("*.graph.yml")), *kinds, *relations]
        return [*listed, *(path for source in sources for path in source.files)]

    def open(self, room: Room) -> int:
        self._check_names()
        if self.symmetrize is None and self._relations and not any(each.directed for each in self._relations):
            self.symmetrize = True
        return sum(kind.count for kind in self._kinds.values())

    def _check_names(self) -> None:
        """Raises `UserError` for names that no type has, and unlike edges."""
        known = {name for each in self._relations for group in each.groups for name in group.names}
        for kind in self._kinds.values():
            names = [name for group in kind.groups for name in group.names]
            known |= {*names, *(f"{kind.name}.{name}" for name in names)}
        for name in self._given.ignore:
            if name not in known:
                raise unknown(f"dataset.ignore={shown(name)}", name, sorted(known))
        for each in self._relations[1:]:
            first = self._relations[0]
            if _further(each) != _further(first):
                own, others = (", ".join(_further(one)) or "none" for one in (each, first))
                raise UserError(
                    f"edges {each.name} have the properties {own}, and {first.name} have {others}: all relations need "
                    "the same: dataset.ignore=[NAME] leaves some out"
                )

    @property
    def num_edges(self) -> int:
        return sum(each.count for each in self._relations)

    @property
    def edge_row(self) -> int:
        return 8 * max((len(each.names) for each in self._relations), default=0)

    def edges(self, rows: int) -> Iterator[EdgePiece]:
        first, weighted = 0, any("weight" in each.names for each in self._relations)
        for number, relation in enumerate(self._relations):
            if relation.ends is None:
                continue
            groups = [group for group in relation.groups if {*group.names} & {*relation.names}]
            streams = [relation.ends.pieces(rows, _ENDS), *(_pieces(group, relation.names, rows) for group in groups)]
            for tables in _together(streams):
                yield self._edge_piece(relation, number, first, tables, weighted)
                first += tables[0].num_rows
        if not first:
            none = np.empty(0, np.int64)
            weight = np.empty(0, np.float32) if weighted else None
            types = none if self._relations else None
            yield EdgePiece(str(self.root), none, none, weight, None, list_positions(0, 0), types)

    def _edge_piece(
        self, relation: _Relation, number: int, first: int, tables: Sequence[Table], weighted: bool
    ) -> EdgePiece:
        head, *others = tables
        ends = []
        for name, kind in zip(_ENDS, (relation.src, relation.dst), strict=True):
            ids = head.positions(name, None)
            head.check_range(name, ids, kind.count)
            ends.append(ids + kind.first)
        weight = next((table.weights("weight") for table in others if "weight" in table.names), None)
        if weight is None and weighted:
            weight = np.ones(head.num_rows, np.float32)
        columns = [(name, table) for name in _further(relation) for table in others if name in table.names]
        read = [
            rows for name, table in columns if (rows := table.knowing(self._edge_readings).rows([name])) is not None
        ]
        self._edge_names = [each for name, table in columns for each in table.column_names([name]) or []]
        features = np.concatenate(read, 1) if read else None
        types = np.full(head.num_rows, number)
        positions = list_positions(first, head.num_rows)
        return EdgePiece(head.name, ends[0], ends[1], weight, features, positions, types)

    @cached_property
    def _edge_readings(self) -> dict[str, Reading]:
        """How the properties of edges are read, over all relations."""
        found: dict[str, Reading] = {}
        for name in dict.fromkeys(name for each in self._relations for name in _further(each)):
            groups = [group for each in self._relations for group in each.groups if name in group.names]
            found |= survey([group.source for group in groups], [name]) if groups else {}
        return found

    def edge_type_names(self) -> Sequence[str] | None:
        return [each.name for each in self._relations] or None

    def edge_feature_names(self) -> Sequence[str] | None:
        return self._edge_names or None

    def edge_texts(self) -> Mapping[str, str]:
        return texts_of(self._edge_readings)

    @cached_property
    def _predicted(self) -> tuple[_Kind, str | None]:
        """Finds the type of nodes with labels, and their property.

        Without labels it is the first type with a split, or the first of all.
        """
        given, kinds = self._given.label, list(self._kinds.values())
        found = [
            (kind, name)
            for kind in kinds
            for name in {given, given.removeprefix(f"{kind.name}.")}
            if self._kept(kind, name)
        ]
        if len(found) > 1:
            types = ", ".join(f"{kind.name}.{name}" for kind, name in found)
            raise UserError(f"nodes of several types have labels: dataset.label=TYPE.NAME chooses one of {types}")
        if found:
            return found[0]
        if given != "label":
            names = [f"{kind.name}.{name}" for kind in kinds for group in kind.groups for name in group.names]
            raise unknown(f"dataset.label={given}", given, names)
        return next((kind for kind in kinds if self._kept(kind, "split")), kinds[0]), None

    def _kept(self, kind: _Kind, name: str) -> Source | None:
        """Returns the table of a property that is not to be ignored."""
        return None if {name, f"{kind.name}.{name}"} & {*self._given.ignore} else kind.group(name)

    def nodes(self, num_nodes: int, room: Room) -> NodeFields:
        kind, name = self._predicted
        own = slice(kind.first, kind.first + kind.count)
        labels, names, split = None, None, np.zeros(num_nodes, np.int8)
        if name is not None and (source := kind.group(name)) is not None:
            read, names = labels_of(source, name)
            labels = unlabelled(read, num_nodes)
            labels[own] = read
        if (source := self._kept(kind, "split")) is not None and (found := split_of(source)) is not None:
            split[own] = found
        kinds = self._kinds.values()
        types = tuple((each.name, each.count) for each in kinds) if len(kinds) > 1 else None
        texts = [text for _, text in self._names]
        for each, groups in self._columns:
            for cells in groups:
                warn_of_readings(each.name, cells.readings)
        warn_of_readings("edges", self._edge_readings)
        return NodeFields(
            labels,
            split,
            names,
            self._ids(room),
            node_types=types,
            category_of=texts if any(texts) and self.feature_names() else None,
            one_class=True,
        )

    def _ids(self, room: Room) -> pa.Array | None:
        """Reads the ids of nodes. None where the numbers of nodes are these."""
        kinds = list(self._kinds.values())
        if not any(kind.key and kind.count for kind in kinds):
            return None
        found = []
        for kind in kinds:
            source = None if kind.key is None else kind.group(kind.key)
            column = pa.array(np.arange(kind.count))
            if source is not None and kind.key is not None:
                parts = [piece.plain(kind.key) for piece in source.pieces(_PIECE, [kind.key])]
                column = Table(source.title, pa.table({kind.key: pa.chunked_array(parts)})).ids(kind.key)
            if len(kinds) > 1:
                long = pa.large_string()
                column = pc.binary_join_element_wise(
                    pa.scalar(f"{kind.name}:", long), column.cast(long), pa.scalar("", long)
                )
            found.append(column)
            if (size := 4 * sum(each.nbytes for each in found)) > room.memory:
                raise room.too_little(f"the ids of {kind.name} are more than that", size)
        ids = pa.concat_arrays(found)
        if not is_text(ids.type) and np.array_equal(ids.to_numpy(), np.arange(len(ids))):
            return None
        return ids

    @cached_property
    def _columns(self) -> list[tuple[_Kind, list[Cells]]]:
        """The features of each type of nodes."""
        predicted, label = self._predicted
        found = []
        for kind in self._kinds.values():
            left_out = {kind.key, "split", *self._given.ignore}
            left_out |= {name.removeprefix(f"{kind.name}.") for name in self._given.ignore}
            left_out |= {label} if kind is predicted else set()
            groups = [(each.source, [name for name in each.names if name not in left_out]) for each in kind.groups]
            found.append((kind, [Cells(source, names) for source, names in groups if names]))
        return found

    @cached_property
    def _names(self) -> list[tuple[str, str]]:
        """The columns of features, and the property of text that each is a value of."""
        several, found = len(self._columns) > 1, []
        for kind, groups in self._columns:
            start = f"{kind.name}." if several else ""
            own = [named for each in groups for named in zip(each.names, each.category_of, strict=True)]
            found += [(start + name, start + text if text else "") for name, text in own or ([("is", "")] * several)]
        return found

    def features(self, room: Room) -> Iterator[Floats] | None:
        if not any(groups for _, groups in self._columns):
            return None
        return self._rows(room.rows(len(self._names)))

    def _rows(self, step: int) -> Iterator[Floats]:
        before = 0
        dtype = np.result_type(np.float32, *(cells.dtype for _, groups in self._columns for cells in groups))
        for kind, groups in self._columns:
            ones = (np.ones((min(step, kind.count - at), 1), np.float32) for at in range(0, kind.count, step))
            for own in _beside([each.rows(step) for each in groups]) if groups else ones:
                rows = np.zeros((len(own), len(self._names)), dtype)
                rows[:, before : before + own.shape[1]] = own
                yield rows
            before += sum(len(each.names) for each in groups) if groups else 1

    def feature_names(self) -> Sequence[str] | None:
        return [name for name, _ in self._names] if any(groups for _, groups in self._columns) else None


def _facts(path: Path, *names: str) -> dict[str, Any]:
    """Reads a file that describes vertices or edges, with all of some keys."""
    found = read_keys(path)
    version = str(found.get("version") or _VERSION)
    if version.partition(" ")[0] != _VERSION:
        raise UserError(f"{path.name} is of version {version}, and {_VERSION} is read")
    for name in names:
        if found.get(name) is None:
            raise UserError(f"{path.name} says no {name}")
    groups = found.get("property_groups") or []
    if not all(isinstance(each, dict) and isinstance(each.get("properties"), list) for each in groups):
        raise UserError(f"{path.name}: property_groups must list groups of properties")
    if not all(isinstance(each, dict) and "name" in each for each in _properties(found)):
        raise UserError(f"{path.name}: each property needs a name")
    return found


def _chunks(start: str, count: int, chunk: int) -> dict[str, int]:
    """Returns the rows of each chunk of a table, by the name of the file."""
    return {f"{start}chunk{number}": min(chunk, count - number * chunk) for number in range(-(-count // chunk))}


def _properties(facts: Mapping[str, Any]) -> list[Any]:
    return [each for group in facts.get("property_groups") or [] for each in group["properties"]]


def _prefix_of(adjacency: Mapping[str, Any]) -> str:
    ordered = "ordered" if adjacency.get("ordered") else "unordered"
    end = {"src": "source", "dst": "dest"}.get(str(adjacency.get("aligned_by")))
    if end is None:
        raise UserError(f"adj_lists: aligned_by {adjacency.get('aligned_by')}, expected src or dst")
    return str(adjacency.get("prefix") or f"{ordered}_by_{end}")


def _number(path: Path) -> int:
    """Reads the file of a number: 8 bytes, the lowest first."""
    try:
        found = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path.parent.name}/{path.name}: {error.strerror}") from error
    if len(found) != 8:
        raise UserError(f"{path.parent.name}/{path.name} has {len(found)} bytes, expected 8")
    return int.from_bytes(found, "little")


def _further(relation: _Relation) -> list[str]:
    """Lists the properties of edges that are features."""
    return [name for name in relation.names if name != "weight"]


def _pieces(group: _Columns, names: Sequence[str], rows: int) -> Iterator[Table]:
    return group.source.pieces(rows, [name for name in group.names if name in names])


def _together(streams: Sequence[Iterator[Table]]) -> Iterator[list[Table]]:
    """Yields equally many rows of all tables, whose pieces may differ."""
    return _in_step(streams, lambda table: table.num_rows, Table.part)


def _beside(streams: Sequence[Iterator[Floats]]) -> Iterator[Floats]:
    """Yields rows of all streams side by side, whose pieces may differ."""
    return (np.concatenate(parts, 1) for parts in _in_step(streams, len, lambda rows, first, last: rows[first:last]))


def _in_step(
    streams: Sequence[Iterator[T]], size: Callable[[T], int], part: Callable[[T, int, int], T]
) -> Iterator[list[T]]:
    """Yields equally many rows of all streams."""
    held = [next(stream, None) for stream in streams]
    while pieces := [each for each in held if each is not None]:
        if len(pieces) < len(held):
            raise UserError("a group of properties has more rows than another: a file changes while it is read")
        count = min(map(size, pieces))
        yield [part(each, 0, count) for each in pieces]
        held = [
            part(each, count, size(each)) if size(each) > count else next(stream, None)
            for each, stream in zip(pieces, streams, strict=True)
        ]
