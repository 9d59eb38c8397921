"""The wire format of messages: prefix, JSON header, tensors. Nothing is unpickled."""

from __future__ import annotations

import contextlib
import hmac
import json
import math
import mmap
import struct
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gnnkit.comm.mailbox import Message

PREFIX = struct.Struct("!IQ")  # bytes of the header, bytes of all tensors
MAX_HEADER = 2**20  # bytes
HELLO = struct.Struct("!32sI")  # token, rank
LARGE = 2**22  # minimum size of a tensor received into huge pages, in bytes
GOODBYE = PREFIX.pack(0, 0)
_TYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in _TYPES}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def encode(
    tag: str, fields: Mapping[str, object] | None, tensors: Mapping[str, Tensor] | None, limit: int
) -> tuple[bytes, list[memoryview]]:
    """Returns a message's header and each tensor's bytes.

    Args:
        limit: Maximum size of all tensors, in bytes.
    """
    tensors = tensors or {}
    descriptions = [[name, _dtype_name(tag, name, tensor), list(tensor.shape)] for name, tensor in tensors.items()]
    parts = [bytes_of(tensor.detach().cpu().contiguous()) for tensor in tensors.values()]
    try:
        header = json.dumps({"tag": tag, "fields": dict(fields or {}), "tensors": descriptions}).encode()
    except (TypeError, ValueError) as error:
        raise TypeError(f"message {tag!r}: fields must be plain JSON values: {error}") from None
    _check_sizes(f"message {tag!r}", len(header), sum(map(len, parts)), limit)
    return header, parts


def open_message(src: int, header: bytes | bytearray, body: int) -> Message:
    """Creates the message described by a header, with uninitialised tensors.

    Raises `ValueError` for a malformed header, before allocating tensors.

    Args:
        src: Rank that sent the header.
        header: From `encode`.
        body: Announced size of all tensors, in bytes.
    """
    match _parse(header):
        case {"tag": str(tag), "fields": dict(fields), "tensors": list(descriptions)}:
            shapes = dict(_check_tensor(description) for description in descriptions)
        case _:
            raise ValueError("a header needs tag, fields and tensors")
    num_bytes = sum(math.prod(shape) * dtype.itemsize for dtype, shape in shapes.values())
    if num_bytes != body:
        raise ValueError(f"tensors of {num_bytes} bytes were announced as {body} bytes")
    return Message(src, tag, fields, {name: _allocate(*layout) for name, layout in shapes.items()})


def copy(src: int, header: bytes, parts: Sequence[memoryview]) -> tuple[Message, int]:
    """Returns the encoded message with copied tensors, and its size in bytes.

    Args:
        src: The sending rank.
        header: From `encode`.
        parts: Bytes of each tensor.
    """
    body = sum(map(len, parts))
    message = open_message(src, header, body)
    for tensor, part in zip(message.tensors.values(), parts, strict=True):
        bytes_of(tensor)[:] = part
    return message, len(header) + body


def bytes_of(tensor: Tensor) -> memoryview:
    """Returns a view of a contiguous CPU tensor's memory."""
    numbers = tensor.reshape(-1)
    if len(numbers) == 1:  # a contiguous tensor of any stride
        numbers = numbers.as_strided((1,), (1,))
    return numbers.view(torch.uint8).numpy().data


def prefix(header: bytes, parts: Sequence[memoryview]) -> bytes:
    """Returns the bytes that precede a header."""
    return PREFIX.pack(len(header), sum(map(len, parts)))


def hello(token: str, rank: int) -> bytes:
    """Returns the first bytes of a connection.

    Args:
        token: The run's secret, 32 ASCII characters.
        rank: The connecting rank.
    """
    return HELLO.pack(token.encode(), rank)


def read_hello(first: bytes | bytearray, token: str) -> int:
    """Returns the rank in a connection's first bytes.

    Raises `ValueError` unless they contain the run's token.
    """
    if len(first) != HELLO.size or not hmac.compare_digest(bytes(first[:32]), token.encode()):
        raise ValueError("the first bytes are not the run's token")
    return int(HELLO.unpack(first)[1])


def read_prefix(prefix: bytes | bytearray, max_header: int, limit: int) -> tuple[int, int]:
    """Returns the size of header and tensors in bytes.

    Raises `ValueError` if one exceeds its maximum.

    Args:
        prefix: From `prefix`.
        max_header: Maximum size of the header, in bytes.
        limit: Maximum size of all tensors, in bytes.
    """
    header, body = PREFIX.unpack(prefix)
    if header > max_header or body > limit:
        raise ValueError(f"a frame of {header} and {body} bytes exceeds {max_header} and {limit}")
    return header, body


def _check_sizes(name: str, header: int, body: int, limit: int) -> None:
    if header > MAX_HEADER:
        raise ValueError(f"{name}: tag, fields and shapes take {header} bytes as JSON, the maximum is {MAX_HEADER}")
    if body > limit:
        raise ValueError(f"{name}: tensors take {body} bytes, the maximum is {limit} per message")


def _dtype_name(tag: str, name: str, tensor: Tensor) -> str:
    if tensor.dtype not in _NAMES or tensor.layout is not torch.strided:
        raise TypeError(
            f"message {tag!r}: tensor {name!r} is {tensor.dtype}, {tensor.layout}; "
            f"expected a dense tensor of {', '.join(DTYPES)}"
        )
    return _NAMES[tensor.dtype]


def _check_tensor(description: object) -> tuple[str, tuple[torch.dtype, list[int]]]:
    match description:
        case [str(name), str(dtype), list(shape)] if dtype in DTYPES and len(shape) <= 64:
            if all(type(size) is int and 0 <= size < 2**63 for size in shape):
                return name, (DTYPES[dtype], shape)
    raise ValueError(f"{description!r:.200} is not the name, dtype and shape of a tensor")


def _allocate(dtype: torch.dtype, shape: list[int]) -> Tensor:
    """Returns an uninitialised tensor.

    Huge pages make the first write to a large tensor several times faster.
    """
    size = math.prod(shape) * dtype.itemsize
    if size < LARGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(shape, dtype=dtype)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # huge pages may be unavailable
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def _parse(header: bytes | bytearray) -> object:
    try:
        return json.loads(header)
    except RecursionError:
        raise ValueError("the header is nested too deeply") from None
