"""Checkpoints without pickle: tensors in safetensors, the rest in JSON.

The JSON names the file of the tensors and holds the sha256 of both.
"""

from __future__ import annotations

import glob
import hashlib
import json
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


def save(state: Any, path: Path) -> None:
    """Writes the JSON `path`, and the tensors beside to `<stem>-<digest>.safetensors`.

    Writes the JSON last. Until then, the checkpoint before counts.
    """
    tensors: dict[str, Tensor] = {}
    tree = _encode(state, tensors, "")
    content = _dump(tensors)
    digest = hashlib.sha256(content).hexdigest()
    data = path.with_name(f"{path.stem}-{digest[:16]}.safetensors")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(data, content)
    body = json.dumps({"tensors": data.name, "tensors_sha256": digest, "state": tree})
    write_atomically(path, json.dumps({"sha256": _digest(body), "body": body}).encode())
    for old in path.parent.glob(f"{glob.escape(path.stem)}-*.safetensors"):
        if old != data:
            old.unlink(missing_ok=True)


def load(path: Path) -> Any:
    """Reads a checkpoint. Raises `UserError` with the path for other files."""
    try:
        outer = json.loads(path.read_text(encoding="utf-8"))
        if outer["sha256"] != _digest(outer["body"]):
            raise UserError("sha256 does not match")
        body = json.loads(outer["body"])
        data = path.parent / Path(body["tensors"]).name
        content = data.read_bytes()
        if hashlib.sha256(content).hexdigest() != body["tensors_sha256"]:
            raise UserError(f"sha256 of {data.name} does not match")
        return _decode(body["state"], load_tensors(content))
    except OSError as error:
        raise UserError(f"checkpoint {path}: {error.strerror}: {error.filename}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"checkpoint {path} is not whole: {error}") from error


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
