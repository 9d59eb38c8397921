"""The arrays of an .npz file."""

from __future__ import annotations

import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np

from gnnkit.errors import UserError
from gnnkit.storage import Array, check_npy, check_regular

# Errors of zipfile for files that are not, or no longer, zip archives.
_BAD_ZIP = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError, OverflowError)
_MAX_RATIO = 1032  # deflate makes nothing smaller than this


class Arrays:
    """The arrays of an .npz file. Each is checked against the file's size at first."""

    def __init__(self, path: Path) -> None:
        check_regular(path)
        try:
            self._zip = zipfile.ZipFile(path)
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}") from error
        except _BAD_ZIP as error:
            raise UserError(f"not an .npz file: {error}") from error

    def __enter__(self) -> Arrays:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    @property
    def names(self) -> list[str]:
        """Names of the arrays."""
        return [name.removesuffix(".npy") for name in self._zip.namelist()]

    def __contains__(self, name: str) -> bool:
        return f"{name}.npy" in self._zip.namelist()

    def __getitem__(self, name: str) -> Array:
        if name not in self:
            raise UserError(f"no array {name!r}, only {sorted(self._zip.namelist())}")
        info = self._zip.getinfo(f"{name}.npy")
        try:
            with self._zip.open(info) as file:
                check_npy(file, min(info.file_size, info.compress_size * _MAX_RATIO), name)
                file.seek(0)
                return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
        except (*_BAD_ZIP, OSError) as error:
            raise UserError(f"{name} cannot be read: {error}") from error

    def optional(self, name: str) -> Array | None:
        """Reads an array, or returns None if there is none."""
        if name not in self:
            return None
        return self[name]
