"""What keeps a process small and quick: imports that it leaves out, and its memory.

torch's compiler (with SymPy), SciPy's signals and Triton take most of the time to
import Lightning. A placeholder provides the few names that Lightning, torch's
optimisers and DDP request. Any other name, and any submodule, imports the module
itself, so a compiled model works, but starts later. A command or a call of
`gnnkit.train` installs the placeholders, an import of gnnkit does not.

The other functions set glibc's allocator in ranks, and Python's garbage collector.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

COMPILER, FLOPS, SIGNALS = "torch._dynamo", "torch.utils.flop_counter", "scipy.signal"
_loading = threading.RLock()
_modules: dict[str, ModuleType] = {}  # imported modules that have replaced placeholders


class Placeholder(ModuleType):
    """A module that is imported when a name outside `_KNOWN` is requested."""

    def __getattr__(self, name: str) -> Any:
        if find_imported(self.__name__) is None:
            if name in _KNOWN[self.__name__]:
                return _KNOWN[self.__name__][name]
            # inspect and warnings request such names of every module in `sys.modules`.
            # Only a caller that wants the module itself requests its version.
            if name.startswith("__") and name != "__version__":
                raise AttributeError(name)
        return getattr(load(self.__name__), name)


class _Finder(MetaPathFinder, Loader):
    """Finds the placeholders, and imports a module before its submodules."""

    def __init__(self) -> None:
        self._missing = set(_KNOWN)  # modules that nothing has imported yet

    def find_spec(self, name: str, path: Any = None, target: object = None) -> ModuleSpec | None:
        if name in self._missing and PathFinder.find_spec(name, path) is not None:  # it is installed
            return ModuleSpec(name, self, is_package=True)
        parent = name.rpartition(".")[0]
        if isinstance(sys.modules.get(parent), Placeholder):
            load(parent)
            return ModuleSpec(name, _SubmoduleLoader(importlib.import_module(name)))
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Placeholder(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        self._missing.remove(module.__name__)  # the next import brings the module itself


class _SubmoduleLoader(Loader):
    """Loads a submodule that was imported with its module."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


class _Compiled(type):
    """The type of `OptimizedModule`, whose instances only the compiler creates."""

    def __instancecheck__(cls, instance: object) -> bool:
        compiler = find_imported(COMPILER)
        return compiler is not None and isinstance(instance, compiler.OptimizedModule)


class OptimizedModule(metaclass=_Compiled):
    """Placeholder for the class of compiled modules, for `isinstance`."""


def disable(function: Callable[..., Any] | None = None, recursive: bool = True, **options: Any) -> Callable[..., Any]:
    """Prevents the compiler, once it is imported, from compiling a function.

    Args:
        function: The function. None makes a decorator.
        recursive: Whether functions that the function calls are not compiled either.
        **options: Further options of `torch._dynamo.disable`.
    """
    if function is None:
        return lambda function: disable(function, recursive, **options)
    wrapper = None

    def call(*arguments: object, **keywords: object) -> Any:
        nonlocal wrapper
        if wrapper is None and (compiler := find_imported(COMPILER)) is not None:
            wrapper = compiler.disable(function, recursive, **options)
        return (wrapper or function)(*arguments, **keywords)

    return call


def _flop_counter(*arguments: object, **keywords: object) -> object:
    return load(FLOPS).FlopCounterMode(*arguments, **keywords)


def _hamming(*arguments: object) -> object:
    return load(SIGNALS).windows.hamming(*arguments)


class _Part:
    """A placeholder's submodule, with one function."""

    def __init__(self, module: str, name: str, **functions: Callable[..., object]) -> None:
        self.__dict__.update(functions)
        self._module, self._name = module, name

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(load(self._module), self._name), name)


_KNOWN: Mapping[str, Mapping[str, object]] = {
    COMPILER: {
        "OptimizedModule": OptimizedModule,
        "disable": disable,
        "graph_break": lambda: None,
        "utils": _Part(COMPILER, "utils", get_optimize_ddp_mode=lambda: "ddp_optimizer"),
        "trace_rules": _Part(COMPILER, "trace_rules", clear_lru_cache=lambda: None),
    },
    FLOPS: {"FlopCounterMode": _flop_counter},  # imports Triton
    SIGNALS: {"hamming": _hamming},
    "boto3": {},  # imported by TensorBoard, for files in S3
    "pyarrow.compute": {},  # for columns of tables
}


def find_imported(name: str) -> Any:
    """Returns the module itself, or None if it has not replaced the placeholder."""
    return _modules.get(name)


def load(name: str) -> ModuleType:
    """Imports the module itself, which replaces the placeholder."""
    with _loading:
        if isinstance(sys.modules.get(name), Placeholder):
            del sys.modules[name]
        _modules[name] = importlib.import_module(name)
        return _modules[name]


def leave_out_unused() -> None:
    """Installs the placeholders of modules that this process has not imported yet."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


# Options of glibc's `mallopt`, by the equivalent environment variable.
_ARENAS = {"MALLOC_ARENA_MAX": (-8, 1)}
_THRESHOLDS = {
    "MALLOC_MMAP_THRESHOLD_": (-3, 1 << 30),
    "MALLOC_TRIM_THRESHOLD_": (-1, (1 << 31) - 1),
    "MALLOC_TOP_PAD_": (-2, 64 << 20),
}

FIRST_STEPS = 3  # training steps after which freed memory is returned to the system


def share_one_arena() -> None:
    """Makes threads started from now on allocate in the main arena.

    This includes processes forked from such threads. Other arenas map large arrays
    again each time, regardless of the thresholds.
    """
    _set(_ARENAS)


def keep_freed_memory() -> None:
    """Keeps freed memory in this process instead of returning it to the system.

    Each step frees and allocates the same large arrays. Without this setting, the
    system clears each page in each step, which takes up to 40 % of the time. The
    process's size then stays at its peak.
    """
    _set(_ARENAS | _THRESHOLDS)
    ask_for_large_pages()


def give_back_freed_memory() -> None:
    """Returns freed memory to the system, except gaps between arrays in use."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


def ask_for_large_pages() -> None:
    """Makes torch request 2 MiB pages, unless it has allocated an array before.

    This reduces TLB misses in random access to rows. A choice in the environment takes
    precedence.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def _set(options: dict[str, tuple[int, int]]) -> None:
    """Sets the options that are not set in the environment."""
    library = _glibc()
    if library is None:
        return
    for name, option in options.items():
        if name not in os.environ:
            library.mallopt(*option)


def _glibc() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "gnu_get_libc_version") else None


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Disables the garbage collector while a process only imports, starts and waits.

    Imported modules are never freed, and each collection has to visit them. Worker
    processes enable the collector.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
