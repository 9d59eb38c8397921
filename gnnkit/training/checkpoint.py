"""Checkpoints without pickle: tensors in safetensors, the rest in JSON.

The JSON names the file of the tensors and holds the sha256 of both.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors
from torch import Tensor

from gnnkit.errors import UserError
from gnnkit.storage import write_atomically


def save(state: Any, path: Path, keep: int = 1) -> None:
    """Writes the JSON `path`, and the tensors beside to `<stem>-<digest>.safetensors`.

    Writes the JSON last. Until then, the checkpoint before counts, which then becomes
    `<stem>-1.json`.

    Args:
        state: Plain data with tensors.
        path: The JSON file.
        keep: Number of checkpoints that stay, with this one. Default: 1.
    """
    tensors: dict[str, Tensor] = {}
    tree = _encode(state, tensors, "")
    content = _dump(tensors)
    digest = hashlib.sha256(content).hexdigest()
    data = path.with_name(f"{path.stem}-{digest[:16]}.safetensors")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(data, content)
    body = json.dumps({"tensors": data.name, "tensors_sha256": digest, "state": tree})
    text = json.dumps({"sha256": _digest(body), "body": body}).encode()
    if path.exists() and path.read_bytes() != text:
        _step_aside(path, keep)
    write_atomically(path, text)
    _forget_others(path, keep)


def _earlier(path: Path, number: int) -> Path:
    """Names the checkpoint of `number` saves before the one at `path`."""
    return path.with_name(f"{path.stem}-{number}.json") if number else path


def _step_aside(path: Path, keep: int) -> None:
    """Gives each checkpoint the name of the one before. `path` stays as it is too."""
    for number in range(keep - 1, 1, -1):
        with contextlib.suppress(FileNotFoundError):
            _earlier(path, number - 1).replace(_earlier(path, number))
    if keep > 1:
        link = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            link.hardlink_to(path)
            link.replace(_earlier(path, 1))
        except OSError:  # a file system without links
            write_atomically(_earlier(path, 1), path.read_bytes())
        finally:
            link.unlink(missing_ok=True)


def _forget_others(path: Path, keep: int) -> None:
    """Deletes all but the newest `keep` checkpoints, and tensors of none of these."""
    files = kept(path)
    for old in files[keep:]:
        old.unlink(missing_ok=True)
    named = {_named_tensors(file) for file in files[:keep]}
    for old in path.parent.glob(f"{glob.escape(path.stem)}-*.safetensors"):
        if old.name not in named:
            old.unlink(missing_ok=True)


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
            for damaged in kept(path)[: len(problems)]:
                damaged.unlink()
            if file != path:
                file.replace(path)
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
    tensors[_TREE] = _bytes(json.dumps(_encode(state, tensors, "")).encode())
    return _bytes(_dump(tensors))


def unpack(packed: Tensor) -> Any:
    """Unpacks a state from `pack`."""
    tensors = load_tensors(packed.cpu().numpy().tobytes())
    return _decode(json.loads(tensors.pop(_TREE).numpy().tobytes()), tensors)


_TREE = "tree"  # names of other tensors begin with /


def _dump(tensors: dict[str, Tensor]) -> bytes:
    """Returns the file of the tensors. Tensors that share memory are copies there."""
    shares = Counter(tensor.untyped_storage().data_ptr() for tensor in tensors.values())
    return dump_tensors(
        {
            name: tensor if shares[tensor.untyped_storage().data_ptr()] == 1 else tensor.clone()
            for name, tensor in tensors.items()
        }
    )


def _bytes(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


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
