"""Checks that CSV files are UTF-8. Errors name a command that converts them."""

from __future__ import annotations

import codecs
import gzip
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, cast

from gnnkit.errors import UserError

_BLOCK = 1 << 20  # bytes decoded at once
_LOOKED_AT = 1 << 12  # bytes checked at the start of a file
_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # the byte order marks of UTF-32 start or end with these


def open_bytes(path: Path) -> BinaryIO:
    """Opens a file, and decompresses it if its name ends in `.gz`."""
    return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def check_encoding(path: Path, name: str) -> None:
    """Raises `UserError` if the first bytes look like UTF-16.

    Args:
        path: The CSV file.
        name: Name of the file in the message.
    """
    with open_bytes(path) as file:
        first = file.read(_LOOKED_AT)
    if first.startswith(_MARKS) or 4 * first.count(b"\0") > len(first):
        raise _not_utf8(name, "is UTF-16, or not text", "UTF-16")


def check_utf8(path: Path, name: str) -> None:
    """Raises `UserError` with the line of the first byte that is not UTF-8.

    Reads the entire file, so call it only after parsing has failed.

    Args:
        path: The CSV file.
        name: Name of the file in the message.
    """
    decoder, line = codecs.getincrementaldecoder("utf-8")(), 1
    with open_bytes(path) as file, suppress(OSError, EOFError):  # the caller reports damaged files
        while block := file.read(_BLOCK):
            try:
                line += decoder.decode(block).count("\n")
            except UnicodeDecodeError as error:
                line += error.object[: error.start].count(b"\n")
                byte = f"byte 0x{error.object[error.start]:02x} in line {line}"
                raise _not_utf8(name, f"is not UTF-8 text ({byte})", "WINDOWS-1252") from error


def _not_utf8(name: str, what: str, encoding: str) -> UserError:
    """Returns the error for a file in another encoding."""
    return UserError(
        f"{name} {what}, expected UTF-8; convert the file, for example with iconv -f {encoding} -t UTF-8 {name} > NEW"
    )
