"""CSV files that are not UTF-8, named with a way to convert them."""

from __future__ import annotations

import codecs
import gzip
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, cast

from gnnkit.errors import UserError

_BLOCK = 1 << 20  # bytes that are decoded at once
_LOOKED_AT = 1 << 12  # bytes at the begin of a file
_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # the marks of UTF-32 begin or end with them


def open_bytes(path: Path) -> BinaryIO:
    """Opens a file, decompressed where its name ends in `.gz`."""
    return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def check_encoding(path: Path, name: str) -> None:
    """Refuses UTF-16, by the first bytes.

    Args:
        path: a CSV.
        name: of the file, for the message.
    """
    with open_bytes(path) as file:
        first = file.read(_LOOKED_AT)
    if first.startswith(_MARKS) or 4 * first.count(b"\0") > len(first):
        raise _not_utf8(name, "is UTF-16, or no text", "UTF-16")


def check_utf8(path: Path, name: str) -> None:
    """Refuses a file with bytes that are not UTF-8, with the line of the first.

    Reads the whole file, so it is for files that could not be read as text.

    Args:
        path: a CSV.
        name: of the file, for the message.
    """
    decoder, line = codecs.getincrementaldecoder("utf-8")(), 1
    with open_bytes(path) as file, suppress(OSError, EOFError):  # of a damaged file, which its reader names
        while block := file.read(_BLOCK):
            try:
                line += decoder.decode(block).count("\n")
            except UnicodeDecodeError as error:
                line += error.object[: error.start].count(b"\n")
                byte = f"byte 0x{error.object[error.start]:02x} in line {line}"
                raise _not_utf8(name, f"is not UTF-8 text ({byte})", "WINDOWS-1252") from error


def _not_utf8(name: str, what: str, encoding: str) -> UserError:
    """Returns the error for a file of another encoding."""
    return UserError(
        f"{name} {what}, expected UTF-8: convert the file, as with iconv -f {encoding} -t UTF-8 {name} > NEW"
    )
