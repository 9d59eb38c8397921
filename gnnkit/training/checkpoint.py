"""Checkpoints without pickle: tensors in safetensors, everything else in JSON.

The JSON contains the name of the tensor file and the SHA-256 of both. Tensors may be
streamed while the file is written, and some may be left in the file when it is read, so
that no process holds the state of all ranks.

A writer creates all files in its own folder and moves them into place. Files are
deleted by moving them there first. A writer whose folder has been removed therefore
cannot change a checkpoint, on any host and at any time (`writing`).
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_tensors
from torch import Tensor

from gnnkit.errors import UserError
from gnnkit.utils.documents import check_regular, parse_json, read_bytes
from gnnkit.utils.storage import open_synced, put_in_place, write_atomically

_WRITER = ".writer-"  # prefix of a writer's folder


@dataclass(frozen=True, slots=True, eq=False)
class Streamed:
    """A tensor [size] uint8 that is produced while the file is written."""

    size: int
    pieces: Iterable[Tensor]  # [n] uint8 each, read once, after all earlier streams of the state


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Creates the folder of the only writer of the checkpoints at `path`.

    Removes the folders of all earlier writers, and this one at the end. The caller must
    hold the run folder's lock, and read checkpoints only when no writer is left.
    """
    end_writers(path)
    writer = path.with_name(f"{_WRITER}{secrets.token_hex(8)}")
    writer.mkdir(parents=True)
    try:
        yield writer
    finally:
        _take_away(writer)
        with contextlib.suppress(OSError):  # the folder may contain checkpoints
            path.parent.rmdir()


def end_writers(path: Path) -> None:
    """Removes the folders of all writers of the checkpoints at `path`."""
    for folder in path.parent.glob(f"{_WRITER}*"):
        _take_away(folder)


def _take_away(folder: Path) -> None:
    """Removes a writer's folder, in which files may still be created."""
    while True:
        try:
            for file in folder.iterdir():
                file.unlink(missing_ok=True)
            return folder.rmdir()
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # a file was created in between
                raise


def save(state: object, path: Path, keep: int = 1, writer: Path | None = None) -> None:
    """Writes the JSON `path`, and tensors to `<stem>-<digest>.safetensors`.

    The JSON is written last. Until then, the previous checkpoint is current; it is then
    renamed to `<stem>-1.json`.

    Args:
        state: Plain data with tensors, some of which may be `Streamed`.
        path: The JSON file.
        keep: Number of checkpoints to keep, including this one.
        writer: Folder from `writing`. Raises `RuntimeError` if it has been removed.
            Default: the folder of `path`, for a single writer.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _save(state, path, keep, writer or path.parent)
    except FileNotFoundError as error:
        if writer is None or writer.exists():
            raise
        raise RuntimeError(f"{path} has another writer: this start of the run was given up") from error
    except OSError as error:  # replaces the temporary name by the final one
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def _save(state: object, path: Path, keep: int, writer: Path) -> None:
    tensors: Tensors = {}
    tree = _encode(state, tensors, "")
    name, digest = _write_tensors(tensors, path, writer)
    body = json.dumps({"tensors": name, "tensors_sha256": digest, "state": tree})
    text = json.dumps({"sha256": _digest(body), "body": body}).encode()
    if path.exists() and path.read_bytes() != text:
        _step_aside(path, keep, writer)
    write_atomically(path, text, within=writer)
    _forget_others(path, keep, writer)


def _write_tensors(tensors: Tensors, path: Path, writer: Path) -> tuple[str, str]:
    """Writes the tensor file. Returns its name and SHA-256."""
    temporary, digest = _temporary_path(path.with_name(f"{path.stem}.safetensors"), writer), hashlib.sha256()
    try:
        with open_synced(temporary) as file:
            for piece in _file(tensors):
                digest.update(piece)
                file.write(piece)
        name = f"{path.stem}-{digest.hexdigest()[:16]}.safetensors"
        put_in_place(temporary, path.with_name(name))
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return name, digest.hexdigest()


def _earlier(path: Path, number: int) -> Path:
    """Returns the path of the checkpoint `number` saves before the one at `path`."""
    return path.with_name(f"{path.stem}-{number}.json") if number else path


def _step_aside(path: Path, keep: int, writer: Path) -> None:
    """Links each checkpoint to the next older name."""
    for number in range(keep - 1, 0, -1):
        newer, older = _earlier(path, number - 1), _earlier(path, number)
        if not newer.exists():
            continue
        link = _temporary_path(newer, writer)
        try:
            link.hardlink_to(newer)
            link.replace(older)
        except OSError:  # the file system does not support links
            write_atomically(older, newer.read_bytes(), within=writer)
        finally:
            link.unlink(missing_ok=True)


def _forget_others(path: Path, keep: int, writer: Path) -> None:
    """Deletes all but the newest `keep` checkpoints, and unused tensor files."""
    files = list_checkpoints(path)
    used_names = {_named_tensors(file) for file in files[:keep]}
    tensors = path.parent.glob(f"{glob.escape(path.stem)}-*.safetensors")
    for old in (*files[keep:], *(file for file in tensors if file.name not in used_names)):
        old.replace(_temporary_path(old, writer))
    for temporary in writer.glob(f".{glob.escape(path.stem)}*"):  # includes files of killed writers
        temporary.unlink(missing_ok=True)


def _temporary_path(path: Path, writer: Path) -> Path:
    """Returns a temporary name in a writer's folder."""
    return writer / f".{path.name}.{secrets.token_hex(8)}"


def _named_tensors(path: Path) -> str | None:
    """Returns the name of the tensor file, or None if the JSON is damaged."""
    with contextlib.suppress(OSError, *_DAMAGE):
        name: str = _body(_text(path))["tensors"]
        return name
    return None


def list_checkpoints(path: Path) -> list[Path]:
    """Returns the checkpoints saved at `path`, newest first."""
    numbers = (file.stem.removeprefix(f"{path.stem}-") for file in path.parent.glob(f"{glob.escape(path.stem)}-*.json"))
    earlier = [_earlier(path, number) for number in sorted(int(number) for number in numbers if number.isdecimal())]
    return [file for file in (path, *earlier) if file.is_file()]


def use_newest_whole(path: Path) -> tuple[bool, list[str]]:
    """Makes the newest complete checkpoint the one at `path`.

    Deletes newer, damaged ones. Returns whether there is a complete one, and a message
    for each damaged one.
    """
    problems: list[str] = []
    for file in list_checkpoints(path):
        problem = damage(file)
        if problem is None:
            newer = list_checkpoints(path)[: len(problems)]
            if file != path:
                file.replace(path)  # first, so that the name always refers to a complete one
            for newer_file in newer:
                if newer_file != path:
                    newer_file.unlink()
            return True, problems
        problems.append(problem)
    return False, problems


def whole_numbers(path: Path) -> dict[str, int]:
    """Returns the integers of a saved dictionary by key, without reading tensors.

    Returns an empty dictionary if the JSON is damaged or missing.
    """
    with contextlib.suppress(OSError, *_DAMAGE):
        return _whole_numbers(_text(path))
    return {}


def step_of(text: bytes) -> int:
    """Returns a run's number of steps, from its checkpoint's JSON.

    0 if the JSON is damaged.
    """
    with contextlib.suppress(*_DAMAGE):
        return _whole_numbers(text.decode()).get("global_step", 0)
    return 0


def _whole_numbers(text: str) -> dict[str, int]:
    return {key: value for key, value in _body(text)["state"]["dict"] if type(value) is int}


def damage(path: Path) -> str | None:
    """Returns why a checkpoint is incomplete, or None, by checking its hashes."""
    try:
        _verify(path)
    except UserError as error:
        return str(error)
    return None


def _none(name: str) -> bool:
    return False


def load(path: Path, leave: Callable[[str], bool] = _none) -> Any:
    """Reads a checkpoint. Raises `UserError`, which names the path, for other files.

    Args:
        path: The JSON file.
        leave: Returns whether a tensor is not read, by its name such as `/workers/3`.
            It is None in the state. Default: all are read.
    """
    body, data = _verify(path)
    with _as_user_errors(path), safe_open(data, framework="pt") as file:
        # Copies, because a later save deletes the mapped file.
        tensors = {name: None if leave(name) else file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        return _decode(body["state"], tensors)


def load_whole(path: Path, leave: Callable[[str], bool] = _none) -> tuple[object, Path, list[str]]:
    """Reads the newest complete checkpoint saved at `path`.

    Returns the state, the file, and a message for each newer, damaged one. Raises the
    newest one's `UserError` if none is complete.

    Args:
        path: The newest checkpoint's JSON file.
        leave: As for `load`.
    """
    problems: list[str] = []
    for file in list_checkpoints(path) or [path]:
        try:
            return load(file, leave), file, problems
        except UserError as error:
            problems.append(str(error))
    raise UserError(problems[0])


def _text(path: Path) -> str:
    return read_bytes(path).decode()


def _body(text: str) -> dict[str, Any]:
    """Returns the JSON's content. Raises `UserError` if its hash is wrong."""
    outer = parse_json(text, "the JSON")
    if outer["sha256"] != _digest(outer["body"]):
        raise UserError("sha256 does not match")
    body: dict[str, Any] = parse_json(outer["body"], "the JSON")
    return body


def _verify(path: Path) -> tuple[dict[str, object], Path]:
    """Returns the JSON's content, and the tensor file.

    Raises `UserError`, which names the path, if a file is damaged or missing.
    """
    with _as_user_errors(path):
        body = _body(_text(path))
        data = path.parent / Path(body["tensors"]).name
        check_regular(data)
        with data.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != body["tensors_sha256"]:
                raise UserError(f"sha256 of {data.name} does not match")
        return body, data


@contextlib.contextmanager
def _as_user_errors(path: Path) -> Iterator[None]:
    """Converts errors in a checkpoint to `UserError` with its path."""
    try:
        yield
    except OSError as error:
        raise UserError(f"checkpoint {path}: {error.strerror}: {error.filename}") from error
    except _DAMAGE as error:
        raise UserError(f"checkpoint {path} is not whole: {error}") from error


# raised for incomplete files
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError)


def pack(state: object) -> Tensor:  # [num_bytes] uint8
    """Packs a state into one tensor for a communicator."""
    tensors: Tensors = {}
    tensors[_TREE] = torch.frombuffer(bytearray(json.dumps(_encode(state, tensors, "")).encode()), dtype=torch.uint8)
    pieces = [torch.frombuffer(piece, dtype=torch.uint8) for piece in _file(tensors) if len(piece)]
    return torch.cat(pieces)


def unpack(tensor: Tensor) -> Any:
    """Unpacks a state from `pack`."""
    tensors = load_tensors(tensor.cpu().numpy().tobytes())
    return _decode(json.loads(tensors.pop(_TREE).numpy().tobytes()), tensors)


_TREE = "tree"  # names of other tensors start with /


def copy_to_host(value: object) -> Any:
    """Copies plain data, with tensors in host memory."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: copy_to_host(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [copy_to_host(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def _file(tensors: Tensors) -> Iterator[memoryview]:
    """Yields the bytes of a safetensors file, in pieces.

    The pieces of tensors are not copied, unlike in `safetensors.torch.save`, which also
    blocks other threads.
    """
    items = sorted(tensors.items(), key=_place)
    header, end = {}, 0
    for name, tensor in items:
        dtype, shape, size = _describe(name, tensor)
        begin, end = end, end + size
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield memoryview(bytearray(len(text).to_bytes(8, "little") + text))
    for _, tensor in items:
        for piece in tensor.pieces if isinstance(tensor, Streamed) else [tensor.reshape(-1).view(torch.uint8)]:
            yield piece.numpy().data


def _place(item: tuple[str, Tensor | Streamed]) -> tuple[bool, int, str]:
    """Sort key of a file's tensors: aligned, with streams last and in order."""
    name, tensor = item
    return (True, 0, "") if isinstance(tensor, Streamed) else (False, -tensor.element_size(), name)


def _describe(name: str, tensor: Tensor | Streamed) -> tuple[str, list[int], int]:
    """Returns a tensor's safetensors dtype, shape, and number of bytes."""
    if isinstance(tensor, Streamed):
        return _TYPES[torch.uint8], [tensor.size], tensor.size
    if tensor.dtype not in _TYPES:
        raise TypeError(f"checkpoints hold no tensors of {tensor.dtype}: {name}")
    return _TYPES[tensor.dtype], list(tensor.shape), tensor.nbytes


_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}  # names used by safetensors


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


Tensors = dict[str, Tensor | Streamed]  # by name


def _encode(value: Any, tensors: Tensors, name: str) -> Any:
    """Converts `value` to JSON, and collects its tensors.

    Dictionaries become lists of pairs, because their keys need not be strings.

    Args:
        value: Plain data with tensors.
        tensors: Receives the tensors by name.
        name: The name of `value`.
    """
    if isinstance(value, Tensor | Streamed):
        tensors[name] = value if isinstance(value, Streamed) else value.detach().cpu().contiguous()
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": [[key, _encode(item, tensors, f"{name}/{key}")] for key, item in value.items()]}
    if type(value) in (list, tuple, torch.Size):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_encode(item, tensors, f"{name}/{i}") for i, item in enumerate(value)]}
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise TypeError(
        f"checkpoints hold tensors, numbers, strings, lists, tuples and dictionaries; {name} is a {type(value).__name__}"
    )


_CONTAINERS: dict[str, Callable[[Any, Mapping[str, Tensor | None]], Any]] = {
    "tensor": lambda name, tensors: tensors[name],
    "dict": lambda pairs, tensors: {key: _decode(item, tensors) for key, item in pairs},
    "list": lambda items, tensors: [_decode(item, tensors) for item in items],
    "tuple": lambda items, tensors: tuple(_decode(item, tensors) for item in items),
}


def _decode(value: object, tensors: Mapping[str, Tensor | None]) -> object:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    return _CONTAINERS[kind](content, tensors)
