"""The manifest of a store: metadata of a graph and its parts, as plain data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from gnnkit.errors import UserError
from gnnkit.graph import Schema
from gnnkit.graph.schema import read_types
from gnnkit.utils.documents import Json, check_regular, json_digest, parse_json, read_bytes
from gnnkit.utils.storage import write_atomically

FILE = "store.json"  # in the store's folder, written last
NODE_IDS = "node_ids.npy"  # in the same folder, unless ids are 0, 1, ...
PARTS = "parts"  # a subfolder with one folder per rank
KEYS = (
    "workers",
    "partition",
    "inputs",
    "input_rows",
    "features",
    "task",
)  # configuration sections that determine the parts
_SAMPLER, _OF_SAMPLER = "sampler", ("window",)  # for counts of labelled edges' ends
_OF_FEATURES = (
    "scale",
    "fill",
    "text",
    "dtype",
)  # keys of the section `features` that do. The others say where a run stores rows
_FORMAT, _VERSION = "gnnkit store", 4
_SMALL = 64 << 20  # bytes. Smaller files are hashed when they are opened, which takes at most 0.1 s


@dataclass(frozen=True, slots=True)
class Manifest:
    """Describes a partitioned graph to the launching process.

    Metadata of pairs of parts is in separate files (`gnnkit.partition.store.pairs`).
    """

    asked: str  # hash of the job that wrote the store, and of its data
    source: str  # name of the dataset, for messages
    keys: Mapping[str, Any]  # the configuration sections that determined the parts
    counts: Mapping[str, int]  # nodes, edges, features, classes, train, val, test, labelled
    schema: Mapping[str, Any]  # node_types and edge_types, and for several types also feature_tables and relations
    prepared: Mapping[str, Any]  # `Prepared`, as plain data
    quality: Mapping[str, Any]  # the partition's `Quality.to_dict`
    coordination: Mapping[str, Any]  # a run's coordination.json
    picture: Mapping[str, Any]  # a run's partition.json
    inputs: Mapping[str, Any]  # a run's inputs.json: names and scale of the columns
    holds: Mapping[str, bool]  # contents of the store, such as the complete graph, feature rows or links
    files: Mapping[str, tuple[int, str]]  # size and SHA-256 of each file
    packed: str  # a message about rounded features, empty if they are not rounded

    @property
    def types(self) -> Schema:
        """Node and edge types, as `Graph.schema`."""
        edge_types = tuple(self.schema["edge_types"] or ("",))
        node_types = tuple((name, count) for name, count in self.schema["node_types"] or (("", self.counts["nodes"]),))
        further = read_types(self.schema, node_types, edge_types, self.counts["features"])
        return Schema(node_types, edge_types, **further)

    def save(self, root: Path) -> None:
        """Writes the manifest atomically."""
        body = asdict(self)
        head = {"format": _FORMAT, "version": _VERSION, "sha256": json_digest(body)}
        write_atomically(root / FILE, json.dumps({**head, **body}).encode())

    @classmethod
    def load(cls, root: Path) -> Manifest:
        """Reads the manifest and checks the size of each file.

        Raises `UserError` for a folder without a complete store of this version.
        """
        content = _read(root)
        if not isinstance(content, dict) or content.pop("format", None) != _FORMAT:
            raise UserError(f"dataset.root={root}: {FILE} is not a store's manifest")
        version, digest = content.pop("version", None), content.pop("sha256", None)
        if version != _VERSION:
            raise UserError(
                f"dataset.root={root}: the store has format {version}, but this gnnkit reads {_VERSION}: write it again "
                "with job=partition"
            )
        if digest != json_digest(content) or set(content) != {field.name for field in fields(cls)}:
            raise _damage_error(root, FILE, "its numbers have changed")
        manifest = cls(**content)
        for name, (size, _) in manifest.files.items():
            manifest._check_size(root, name, size)
        return manifest

    def check_part(self, root: Path, part: str) -> None:
        """Checks one part's files, hashing the small ones.

        Raises `UserError`, which names a damaged file.
        """
        for name, (size, digest) in self.files.items():
            if name.startswith(f"{PARTS}/{part}/"):
                self._check_size(root, name, size)
                if size <= _SMALL and digest_of(root / name) != digest:
                    raise _damage_error(root, name, "its bytes have changed")

    def check_bytes(self, root: Path) -> None:
        """Hashes every file.

        Raises `UserError`, which names the first damaged one.
        """
        with Digests() as digests:
            for name in self.files:
                digests.begin(root / name)
            for name, (size, digest) in self.files.items():
                self._check_size(root, name, size)
                if digests.begin(root / name).result() != digest:
                    raise _damage_error(root, name, "its bytes have changed")

    def _check_size(self, root: Path, name: str, size: int) -> None:
        try:
            actual_size = (root / name).stat().st_size
        except OSError as error:
            raise _damage_error(root, name, error.strerror or "it cannot be read") from error
        if actual_size != size:
            raise _damage_error(root, name, f"it has {actual_size:,} bytes of {size:,}")


def shaping(configuration: Mapping[str, Any]) -> Json:
    """Returns the keys of a composed configuration that determine the parts."""
    keys = {key: configuration[key] for key in KEYS}
    part_keys = {**keys, "features": {key: keys["features"][key] for key in _OF_FEATURES}}
    sampler = configuration.get(_SAMPLER) or {}
    sampler_keys = {key: sampler[key] for key in _OF_SAMPLER if sampler.get(key) is not None}
    return {**part_keys, _SAMPLER: sampler_keys} if sampler_keys else part_keys


def differing(
    configuration: Mapping[str, object], sections: Mapping[str, object], *, whole_task: bool
) -> list[tuple[str, object, object]]:
    """Returns the differing keys that determine the parts, each with both values.

    Args:
        configuration: A composed configuration.
        sections: The other configuration's sections.
        whole_task: Whether all keys of the task and the window matter, not only the
            task's name.
    """
    first, second = (_flat(shaping(values)) for values in (configuration, sections))
    keys = [
        key
        for key in sorted({*first, *second})
        if whole_task or not key.startswith(("task.", "sampler.")) or key == "task.name"
    ]
    short_keys = {key: key.removesuffix(".name").removesuffix(".nodes") for key in keys}
    return [(short_keys[key], first.get(key), second.get(key)) for key in keys if first.get(key) != second.get(key)]


def _flat(values: Mapping[str, object], prefix: str = "") -> Json:
    """Returns non-empty values by dotted key."""
    flat: Json = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        elif value is not None:
            flat[f"{prefix}{key}"] = value
    return flat


class Digests:
    """Hashes the files of a store while later files are written."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(2, "digests")  # one core hashes as fast as most disks read
        self._digests: dict[Path, Future[str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def begin(self, path: Path) -> Future[str]:
        """Starts to hash a file, at the first call. Returns the future hash."""
        if path not in self._digests:
            self._digests[path] = self._pool.submit(digest_of, path)
        return self._digests[path]

    def add(self, folder: Path) -> None:
        """Starts to hash the files of a complete folder."""
        for path in _files(folder):
            self.begin(path)

    def files_of(self, root: Path, *further: str) -> dict[str, tuple[int, str]]:
        """Returns each file's size and SHA-256, by its path in the store.

        Includes `further` files, if they exist.
        """
        paths = _files(root / PARTS) + [root / name for name in further if (root / name).is_file()]
        stamps = [(path, self.begin(path)) for path in paths]
        return {path.relative_to(root).as_posix(): (path.stat().st_size, digest.result()) for path, digest in stamps}


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def digest_of(path: Path) -> str:
    """Returns a file's SHA-256."""
    check_regular(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(root: Path) -> Any:
    if not (root / FILE).exists():
        raise UserError(
            f"dataset.root={root} does not contain a complete store, because {FILE} is missing: write one with job=partition or job=import and "
            f"output={root}"
        )
    content = read_bytes(root / FILE, name=f"dataset.root={root}: {FILE}")
    try:
        return parse_json(content, FILE)
    except UserError as error:
        raise _damage_error(root, FILE, "it is not JSON") from error


def _damage_error(root: Path, name: str, reason: str) -> UserError:
    return UserError(f"dataset.root={root}: the store is damaged, {name}: {reason}: write it again with job=partition")
