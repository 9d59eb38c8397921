"""Checkpoints without pickle: tensors in safetensors, the rest in JSON.

The JSON names the file of the tensors and holds the sha256 of both.

A writer makes all files in a folder of its own, and moves them from there. What it
deletes it moves there first. So a writer whose folder is gone changes no checkpoint,
wherever it runs and however late (`writing`).
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from torch import Tensor

from gnnkit.errors import UserError
from gnnkit.storage import write_atomically

_WRITER = ".writer-"  # begin of the name of a writer's folder


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Makes the folder of the only writer of the checkpoints at `path`.

    Takes the folders of all earlier writers away, and this one at the end. Whoever
    calls this holds the run folder, and reads checkpoints only when no writer is left.
    """
    end_writers(path)
    own = path.with_name(f"{_WRITER}{secrets.token_hex(8)}")
    own.mkdir(parents=True)
    try:
        yield own
    finally:
        _take_away(own)
        with contextlib.suppress(OSError):  # it holds checkpoints
            path.parent.rmdir()


def end_writers(path: Path) -> None:
    """Takes the folders of all writers of the checkpoints at `path` away."""
    for folder in path.parent.glob(f"{_WRITER}*"):
        _take_away(folder)


def _take_away(folder: Path) -> None:
    """Removes the folder of a writer, which may be making files there."""
    while True:
        try:
            for file in folder.iterdir():
                file.unlink(missing_ok=True)
            return folder.rmdir()
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # a new file
                raise


def save(state: Any, path: Path, keep: int = 1, writer: Path | None = None) -> None:
    """Writes the JSON `path`, and the tensors beside to `<stem>-<digest>.safetensors`.

    Writes the JSON last. Until then, the checkpoint before counts, which then becomes
    `<stem>-1.json`.

    Args:
        state: Plain data with tensors.
        path: The JSON file.
        keep: Number of checkpoints that stay, with this one. Default: 1.
        writer: Folder of `writing`. Raises `RuntimeError` where it is gone. Default:
            the folder of `path`, for a writer that has no other beside it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        _save(state, path, keep, writer or path.parent)
    except FileNotFoundError as error:
        if writer is None or writer.exists():
            raise
        raise RuntimeError(f"{path} has another writer: this start of the run was given up") from error


def _save(state: Any, path: Path, keep: int, writer: Path) -> None:
    tensors: dict[str, Tensor] = {}
    tree = _encode(state, tensors, "")
    content = _file(tensors)
    digest = _sha256(content)
    data = path.with_name(f"{path.stem}-{digest[:16]}.safetensors")
    write_atomically(data, *content, within=writer)
    body = json.dumps({"tensors": data.name, "tensors_sha256": digest, "state": tree})
    text = json.dumps({"sha256": _digest(body), "body": body}).encode()
    if path.exists() and path.read_bytes() != text:
        _step_aside(path, keep, writer)
    write_atomically(path, text, within=writer)
    _forget_others(path, keep, writer)


def _earlier(path: Path, number: int) -> Path:
    """Names the checkpoint of `number` saves before the one at `path`."""
    return path.with_name(f"{path.stem}-{number}.json") if number else path


def _step_aside(path: Path, keep: int, writer: Path) -> None:
    """Gives each checkpoint the name of the one before too."""
    for number in range(keep - 1, 0, -1):
        newer, older = _earlier(path, number - 1), _earlier(path, number)
        if not newer.exists():
            continue
        link = _unfinished(newer, writer)
        try:
            link.hardlink_to(newer)
            link.replace(older)
        except OSError:  # a file system without links
            write_atomically(older, newer.read_bytes(), within=writer)
        finally:
            link.unlink(missing_ok=True)


def _forget_others(path: Path, keep: int, writer: Path) -> None:
    """Deletes all but the newest `keep` checkpoints, and tensors of none of these."""
    files = kept(path)
    named = {_named_tensors(file) for file in files[:keep]}
    tensors = path.parent.glob(f"{glob.escape(path.stem)}-*.safetensors")
    for old in (*files[keep:], *(file for file in tensors if file.name not in named)):
        old.replace(_unfinished(old, writer))
    for unfinished in writer.glob(f".{glob.escape(path.stem)}*"):  # of a writer that was killed too
        unfinished.unlink(missing_ok=True)


def _unfinished(path: Path, writer: Path) -> Path:
    """Makes up a name in the folder of a writer."""
    return writer / f".{path.name}.{secrets.token_hex(8)}"


def _named_tensors(path: Path) -> str | None:
    """Returns the name of the file of the tensors. None for a damaged JSON."""
    with contextlib.suppress(OSError, *_DAMAGE):
        name: str = _body(path)["tensors"]
        return name
    return None


def kept(path: Path) -> list[Path]:
    """Lists the checkpoints that `save` has left for `path`, the newest first."""
    numbers = (file.stem.removeprefix(f"{path.stem}-") for file in path.parent.glob(f"{glob.escape(path.stem)}-*.json"))
    earlier = [_earlier(path, number) for number in sorted(int(each) for each in numbers if each.isdecimal())]
    return [file for file in (path, *earlier) if file.is_file()]


def use_newest_whole(path: Path) -> tuple[bool, list[str]]:
    """Makes the newest whole checkpoint the one at `path`, if one is whole.

    Deletes newer ones, which are damaged. Returns whether one is whole, and a message
    for each damaged one before.
    """
    problems: list[str] = []
    for file in kept(path):
        problem = damage(file)
        if problem is None:
            newer = kept(path)[: len(problems)]
            if file != path:
                file.replace(path)  # first, so that a whole one has the name always
            for damaged in newer:
                if damaged != path:
                    damaged.unlink()
            return True, problems
        problems.append(problem)
    return False, problems


def whole_numbers(path: Path) -> dict[str, int]:
    """Returns the whole numbers of a saved dictionary by key, without any tensor.

    Returns nothing where the JSON is damaged, or there is none.
    """
    with contextlib.suppress(OSError, *_DAMAGE):
        return {key: value for key, value in _body(path)["state"]["dict"] if type(value) is int}
    return {}


def damage(path: Path) -> str | None:
    """Says why a checkpoint is not whole, by its hashes. None where it is whole."""
    try:
        _read(path)
    except UserError as error:
        return str(error)
    return None


def load(path: Path) -> Any:
    """Reads a checkpoint. Raises `UserError` with the path for other files."""
    body, content = _read(path)
    try:
        return _decode(body["state"], load_tensors(content))
    except _DAMAGE as error:
        raise UserError(f"checkpoint {path} is not whole: {error}") from error


def load_whole(path: Path) -> tuple[Any, Path, list[str]]:
    """Reads the newest whole checkpoint of those that `save` has left for `path`.

    Returns the state, the file, and a message for each newer one that is damaged.
    Raises the `UserError` of the newest if none is whole.
    """
    problems: list[str] = []
    for file in kept(path) or [path]:
        try:
            return load(file), file, problems
        except UserError as error:
            problems.append(str(error))
    raise UserError(problems[0])


def _body(path: Path) -> dict[str, Any]:
    """Returns the content of the JSON. Raises `UserError` for another hash."""
    outer = json.loads(path.read_text(encoding="utf-8"))
    if outer["sha256"] != _digest(outer["body"]):
        raise UserError("sha256 does not match")
    body: dict[str, Any] = json.loads(outer["body"])
    return body


def _read(path: Path) -> tuple[dict[str, Any], bytes]:
    """Returns the content of the JSON, and of the file of the tensors.

    Raises `UserError` with the path where a file is damaged or missing.
    """
    try:
        body = _body(path)
        data = path.parent / Path(body["tensors"]).name
        content = data.read_bytes()
        if hashlib.sha256(content).hexdigest() != body["tensors_sha256"]:
            raise UserError(f"sha256 of {data.name} does not match")
    except OSError as error:
        raise UserError(f"checkpoint {path}: {error.strerror}: {error.filename}") from error
    except _DAMAGE as error:
        raise UserError(f"checkpoint {path} is not whole: {error}") from error
    return body, content


_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)  # of a file that is not whole


def pack(state: Any) -> Tensor:  # [num_bytes] uint8
    """Packs a state into one tensor that a communicator can move."""
    tensors: dict[str, Tensor] = {}
    tensors[_TREE] = torch.frombuffer(bytearray(json.dumps(_encode(state, tensors, "")).encode()), dtype=torch.uint8)
    pieces = [torch.frombuffer(piece, dtype=torch.uint8) for piece in _file(tensors) if len(piece)]
    return torch.cat(pieces)


def unpack(packed: Tensor) -> Any:
    """Unpacks a state from `pack`."""
    tensors = load_tensors(packed.cpu().numpy().tobytes())
    return _decode(json.loads(tensors.pop(_TREE).numpy().tobytes()), tensors)


_TREE = "tree"  # names of other tensors begin with /


def copied(value: Any) -> Any:
    """Returns plain data whose tensors are copies in memory of the host."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [copied(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def _file(tensors: Mapping[str, Tensor]) -> list[memoryview]:
    """Returns the bytes of a file of safetensors, in pieces.

    The pieces of the tensors are no copies. `safetensors.torch.save` makes one, and no
    other thread goes on meanwhile.
    """
    named = sorted(tensors.items(), key=lambda each: (-each[1].element_size(), each[0]))  # so all stand aligned
    header, end = {}, 0
    for name, tensor in named:
        if tensor.dtype not in _TYPES:
            raise TypeError(f"checkpoints hold no tensors of {tensor.dtype}: {name}")
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pieces = [memoryview(bytearray(len(text).to_bytes(8, "little") + text))]
    return pieces + [tensor.reshape(-1).view(torch.uint8).numpy().data for _, tensor in named]


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
}  # names in safetensors


def _sha256(pieces: Sequence[memoryview]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _encode(value: Any, tensors: dict[str, Tensor], name: str) -> Any:
    """Returns JSON for `value`, and collects the tensors.

    Dictionaries become lists of pairs, because their keys need not be strings.

    Args:
        value: Plain data with tensors.
        tensors: Receives the tensors by name.
        name: The name of `value`.
    """
    if isinstance(value, Tensor):
        tensors[name] = value.detach().cpu().contiguous()
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": [[key, _encode(item, tensors, f"{name}/{key}")] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [_encode(item, tensors, f"{name}/{i}") for i, item in enumerate(value)]}
    if isinstance(value, torch.Size):
        return {"tuple": list(value)}
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise TypeError(
        f"checkpoints hold tensors, numbers, strings, lists, tuples and dictionaries; {name} is a {type(value).__name__}"
    )


_CONTAINERS: dict[str, Callable[[Any, dict[str, Tensor]], Any]] = {
    "tensor": lambda name, tensors: tensors[name],
    "dict": lambda pairs, tensors: {key: _decode(item, tensors) for key, item in pairs},
    "list": lambda items, tensors: [_decode(item, tensors) for item in items],
    "tuple": lambda items, tensors: tuple(_decode(item, tensors) for item in items),
}


def _decode(value: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    return _CONTAINERS[kind](content, tensors)
