"""A disk that all hosts see: what is written, and what a power cut leaves of it.

`Place` has the methods of `pathlib.Path` that checkpoints, folders and locks use.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import io
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from stat import S_IFREG
from types import SimpleNamespace
from typing import Any

from safetensors.torch import load

from tests.simulation.world import World


@dataclass(eq=False)
class File:
    """The content of a file."""

    data: bytes = b""
    synced: bytes = b""  # what a power cut leaves for sure
    number: int = field(default_factory=itertools.count(1).__next__)
    locked: Any = None  # descriptor that holds the lock
    written: float = 0.0


class Disk:
    """Files by name. Each call takes a moment, in which others go on."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.names: dict[str, File] = {}
        self.folders: set[str] = {"/"}
        self.seconds = 0.004  # of a call, at most
        self.full = False
        self.clock = 0.0  # of the wall, beside that of the world
        self.has_locks = True
        self.quiet = False  # while the rules look
        self._kept: tuple[dict[str, File], set[str]] = ({}, {"/"})  # what a power cut leaves for sure
        self._done: list[tuple[set[str], list[tuple[str, File | None]]]] = []  # changes of names since
        self.descriptors: dict[int, Descriptor] = {}
        self._next = itertools.count(3).__next__
        self.os = _System(self)
        self.fcntl = SimpleNamespace(flock=self._flock, LOCK_EX=2, LOCK_NB=4, LOCK_UN=8)

    def path(self, name: Any) -> Place:
        return Place(self, str(name))

    def call(self) -> None:
        """Gives way, as a call of the system does."""
        if self.world.task.process is not None and not self.quiet:  # a look of the rules takes no time
            self.world.sleep(self.world.random.random() ** 4 * self.seconds)

    def change(self, folders: set[str], *changes: tuple[str, File | None]) -> None:
        """Changes names at once, in these folders."""
        for name, file in changes:
            if file is None:
                self.names.pop(name, None)
            else:
                self.names[name] = file
        self._done.append((folders, list(changes)))

    def sync(self, folder: str) -> None:
        """Keeps all changes of names in a folder."""
        remaining = []
        for folders, changes in self._done:
            if folder in folders:
                _apply(self._kept[0], changes)
            else:
                remaining.append((folders, changes))
        self._done = remaining

    def cut_power(self) -> None:
        """Loses what was not synced: the last changes, and parts of files."""
        random = self.world.random
        for _, changes in self._done[: random.randint(0, len(self._done))]:
            _apply(self._kept[0], changes)
        for file in set(self._kept[0].values()):
            if file.data != file.synced:
                cut = random.randint(0, len(file.data))
                file.data = random.choice([file.synced, file.data[:cut], file.data[:cut] + bytes(len(file.data) - cut)])
                file.synced = file.data
            file.locked = None
        self.names, self._done = dict(self._kept[0]), []
        self.descriptors.clear()

    def close_all(self, process: Any) -> None:
        """Lets go of what a process had open."""
        for number, each in list(self.descriptors.items()):
            if each.process is process:
                self.os.close(number)

    def _flock(self, number: int, how: int) -> None:
        if not self.has_locks:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        descriptor = self.descriptors[number]
        if how == 8:
            descriptor.file.locked = None
        elif descriptor.file.locked not in (None, descriptor):
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        else:
            descriptor.file.locked = descriptor


def _apply(names: dict[str, File], changes: list[tuple[str, File | None]]) -> None:
    for name, file in changes:
        if file is None:
            names.pop(name, None)
        else:
            names[name] = file


@dataclass(eq=False)
class Descriptor:
    """An open file of a process."""

    file: File
    process: Any


class _System:
    """What `jobs/folder.py` calls of `os`."""

    O_RDWR, O_CREAT, O_CLOEXEC = os.O_RDWR, os.O_CREAT, os.O_CLOEXEC

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.path = SimpleNamespace(samestat=lambda one, other: one.st_ino == other.st_ino)

    def open(self, path: Place, flags: int, mode: int = 0) -> int:
        self.disk.call()
        if str(path.parent) not in self.disk.folders:
            raise _missing(path.name_)
        if path.name_ not in self.disk.names:
            self.disk.change({str(path.parent)}, (path.name_, File()))
        number = self.disk._next()
        self.disk.descriptors[number] = Descriptor(self.disk.names[path.name_], self.disk.world.task.process)
        return number

    def fstat(self, number: int) -> Any:
        return SimpleNamespace(st_ino=self.disk.descriptors[number].file.number)

    def ftruncate(self, number: int, size: int) -> None:
        self.disk.descriptors[number].file.data = b""

    def write(self, number: int, data: bytes) -> None:
        self.disk.descriptors[number].file.data += data

    def read(self, number: int, size: int) -> bytes:
        return self.disk.descriptors[number].file.data

    def close(self, number: int) -> None:
        descriptor = self.disk.descriptors.pop(number, None)
        if descriptor is not None and descriptor.file.locked is descriptor:
            descriptor.file.locked = None

    def getpid(self) -> int:
        return int(self.disk.world.task.process.pid)


class _Writing(io.RawIOBase):
    """A file that is open for writing."""

    def __init__(self, disk: Disk, file: File) -> None:
        self.disk, self.file = disk, file

    def write(self, data: Any) -> int:  # type: ignore[override]
        self.disk.call()
        if self.disk.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.file.data += bytes(data)
        self.file.written = self.disk.world.now + self.disk.clock
        return len(data)


class Place:
    """A path on the disk."""

    def __init__(self, disk: Disk, name: str) -> None:
        self.disk, self.name_ = disk, name

    def __truediv__(self, other: str) -> Place:
        return Place(self.disk, f"{self.name_.rstrip('/')}/{other}")

    def __str__(self) -> str:
        return self.name_

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and self.name_ == other.name_

    def __hash__(self) -> int:
        return hash(self.name_)

    @property
    def name(self) -> str:
        return self.name_.rpartition("/")[2]

    @property
    def stem(self) -> str:
        return self.name.rpartition(".")[0] or self.name

    @property
    def parent(self) -> Place:
        return Place(self.disk, self.name_.rpartition("/")[0] or "/")

    def with_name(self, name: str) -> Place:
        return self.parent / name

    def absolute(self) -> Place:
        return self

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
        self.disk.call()
        if self.name_ in self.disk.folders and not exist_ok:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self.name_)
        if not parents and self.parent.name_ not in self.disk.folders:
            raise _missing(self.name_)
        name = self.name_
        while name and name not in self.disk.folders:  # folders are kept at once, which costs nothing here
            self.disk.folders.add(name)
            name = name.rpartition("/")[0]

    def rmdir(self) -> None:
        self.disk.call()
        if self.name_ not in self.disk.folders:
            raise _missing(self.name_)
        if any(self._children()):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), self.name_)
        self.disk.folders.discard(self.name_)

    def exists(self) -> bool:
        self.disk.call()
        return self.name_ in self.disk.names or self.name_ in self.disk.folders

    def is_file(self) -> bool:
        self.disk.call()
        return self.name_ in self.disk.names

    def is_dir(self) -> bool:
        return self.name_ in self.disk.folders

    def stat(self) -> Any:
        file = self._file()
        return SimpleNamespace(st_ino=file.number, st_mtime=file.written, st_mode=S_IFREG, st_size=len(file.data))

    def iterdir(self) -> Iterator[Place]:
        self.disk.call()
        if self.name_ not in self.disk.folders:
            raise _missing(self.name_)
        return iter([Place(self.disk, name) for name in sorted(self._children())])

    def glob(self, pattern: str) -> Iterator[Place]:
        self.disk.call()
        first, slash, remainder = pattern.partition("/")
        if slash:
            return (self / first).glob(remainder)
        actual = (Place(self.disk, name) for name in sorted(self._children()))
        return iter([result for result in actual if fnmatch.fnmatchcase(result.name, pattern)])

    def open(self, mode: str) -> io.IOBase:
        self.disk.call()
        if mode == "rb":
            return io.BytesIO(self._file().data)
        if self.parent.name_ not in self.disk.folders:
            raise _missing(self.name_)
        file = File()
        self.disk.change({self.parent.name_}, (self.name_, file))
        return _Writing(self.disk, file)

    def read_bytes(self) -> bytes:
        self.disk.call()
        return self._file().data

    def read_text(self, encoding: str = "") -> str:
        return self.read_bytes().decode()

    def write_text(self, text: str, encoding: str = "") -> None:
        with self.open("wb") as file:
            file.write(text.encode())

    def unlink(self, missing_ok: bool = False) -> None:
        self.disk.call()
        if self.name_ not in self.disk.names:
            if missing_ok:
                return
            raise _missing(self.name_)
        self.disk.change({self.parent.name_}, (self.name_, None))

    def replace(self, target: Place) -> None:
        self.disk.call()
        file = self._file()
        if target.parent.name_ not in self.disk.folders:
            raise _missing(target.name_)
        self.disk.change({self.parent.name_, target.parent.name_}, (self.name_, None), (target.name_, file))
        self.disk.world.moved(target)  # type: ignore[attr-defined]

    def hardlink_to(self, target: Place) -> None:
        self.disk.call()
        if self.parent.name_ not in self.disk.folders:
            raise _missing(self.name_)
        self.disk.change({self.parent.name_}, (self.name_, target._file()))

    def sync(self) -> None:
        """Waits until the file or the folder is on the disk."""
        self.disk.call()
        if self.name_ in self.disk.folders:
            self.disk.sync(self.name_)
        else:
            file = self._file()
            file.synced = file.data

    def _file(self) -> File:
        if self.name_ not in self.disk.names:
            raise _missing(self.name_)
        return self.disk.names[self.name_]

    def _children(self) -> list[str]:
        begin = self.name_.rstrip("/") + "/"
        names = (*self.disk.names, *self.disk.folders)
        return [
            name
            for name in names
            if name.startswith(begin) and len(name) > len(begin) and "/" not in name[len(begin) :]
        ]


@contextlib.contextmanager
def safe_open(path: Place, framework: str) -> Iterator[Any]:
    """Reads a file as the function of safetensors does."""
    tensors = load(path.read_bytes())
    yield SimpleNamespace(keys=tensors.keys, get_tensor=tensors.__getitem__)


def _missing(name: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
