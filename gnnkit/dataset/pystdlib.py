"""The default data set: the code graph of the running Python's standard library."""

from __future__ import annotations

import hashlib
import math
import os
import platform
import sys
import sysconfig
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

from gnnkit.dataset import code_graph
from gnnkit.dataset.base import Dataset
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Graph, Ids, SparseFeatures, random_split
from gnnkit.utils.checks import whole
from gnnkit.utils.ranges import local_path
from gnnkit.utils.storage import cache_folder

_SKIPPED = {"test", "tests", "idle_test", "idlelib", "site-packages", "dist-packages", "__pycache__"}


class PyStdlib(Dataset):
    """The code graph of Python's standard library, a real graph on every machine.

    Nodes are functions and classes. Edges point to callees, bases and members. The task
    is to predict a node's top-level module.

    Features are counts of frequent words in names, arguments and docstrings. Each row
    is scaled to length 1. Nodes of small modules are unlabelled. Of the others, 10 %
    are used for training, 10 % for validation and 80 % for test.

    Parsing takes seconds, so the graph is cached in the user's cache folder. The cache
    key contains Python's version and a hash of the sources and of the parser's code.
    """

    def __init__(
        self,
        root: str | None = None,
        symmetrize: bool = True,
        num_words: int = 2000,
        min_class_size: int = 60,
        seed: int = 0,
    ) -> None:
        """Creates the data set.

        Args:
            root: Folder of Python sources. Default: the standard library.
            symmetrize: Add missing reverse edges. Default: yes.
            num_words: Number of features, one per most frequent word.
            min_class_size: Minimum number of nodes of a class.
            seed: Seed of the split, any integer.
        """
        self.root = local_path("dataset.root", root or sysconfig.get_path("stdlib"))
        self.symmetrize = symmetrize
        self.num_words = whole("dataset.num_words", num_words, 1, 1_000_000)
        self.min_class_size = whole("dataset.min_class_size", min_class_size, 1)
        self.seed = whole("dataset.seed", seed)

    def load(self) -> Graph:
        sources = _read_sources(self.root)
        if not sources:
            raise UserError(
                f"dataset=pystdlib: found no sources of Python's standard library under {self.root}; use another data "
                "set, such as dataset=synthetic"
            )
        graph = self._cached(sources)
        graph = replace(graph, split=random_split(graph.labelled, (0.1, 0.1, 0.8), self.seed))
        return graph.symmetrize() if self.symmetrize else graph

    def _cached(self, sources: dict[str, bytes]) -> Graph:
        """Loads the graph from the cache, or parses the sources and fills the cache.

        Warns if the cache is unusable.
        """
        cache = cache_folder()
        folder = cache and cache / f"pystdlib-{platform.python_version()}-{self._hash(sources)}"
        try:
            if folder and folder.is_dir():
                return Graph.load(folder)
        except (OSError, ValueError) as error:
            warnings.warn(f"cannot use the cached graph: {error}", stacklevel=3)
        print(f"dataset=pystdlib: parsing {len(sources)} modules under {self.root}", file=sys.stderr)
        graph = self._build(sources)
        try:
            if folder:
                graph.save(folder)
        except (OSError, ValueError) as error:
            warnings.warn(f"cannot cache the parsed graph: {error}", stacklevel=3)
        return graph

    def _hash(self, sources: dict[str, bytes]) -> str:
        """Hashes the options, the sources and the parser's code."""
        readers = {path: Path(path).read_bytes() for path in (__file__, code_graph.__file__)}
        digest = hashlib.blake2b(f"{self.num_words} {self.min_class_size}".encode(), digest_size=12)
        for source in (*readers.values(), *sources.values()):
            digest.update(hashlib.blake2b(source).digest())
        digest.update("\n".join(sources).encode())
        return digest.hexdigest()

    def _build(self, sources: dict[str, bytes]) -> Graph:
        code = code_graph.code_graph(sources)
        modules = [definition.module.partition(".")[0] for definition in code.definitions]
        labels, names = _classes(modules, self.min_class_size)
        if not names:
            raise UserError(
                f"dataset.min_class_size={self.min_class_size}: no module under {self.root} has that many nodes; use "
                "a smaller value"
            )
        edges = np.array(code.edges, np.int64).reshape(-1, 2)
        features = _bag_of_words([definition.words for definition in code.definitions], self.num_words)
        return Graph.from_edges(*edges.T, features=features, labels=labels, class_names=names)


def _read_sources(root: Path) -> dict[str, bytes]:
    """Returns sources by module name, without tests and installed packages."""

    def is_read(name: str) -> bool:
        return name.isidentifier() and name not in _SKIPPED

    paths = []
    for folder, inner, files in os.walk(root):
        inner[:] = filter(is_read, inner)  # skips other folders, such as site-packages
        paths += [Path(folder, name) for name in files if name.endswith(".py") and is_read(name[:-3])]
    return {".".join(path.relative_to(root).with_suffix("").parts): path.read_bytes() for path in sorted(paths)}


def _classes(modules: list[str], min_size: int) -> tuple[Ids, list[str]]:
    """Returns labels [num_nodes], -1 for small modules, and sorted class names."""
    names = sorted(name for name, count in Counter(modules).items() if count >= min_size)
    number = {name: label for label, name in enumerate(names)}
    return np.array([number.get(module, -1) for module in modules], np.int64), names


def _bag_of_words(texts: list[list[str]], num_words: int) -> SparseFeatures:  # [num_nodes, num_words] float32
    """Counts the most frequent words per text, and scales each row to length 1.

    Ties are broken alphabetically.
    """
    totals = Counter(word for text in texts for word in text)
    chosen = sorted(totals, key=lambda word: (-totals[word], word))[:num_words]
    column = {word: number for number, word in enumerate(chosen)}
    indptr, columns, values = [0], list[int](), list[float]()
    for text in texts:
        counts = Counter(column[word] for word in text if word in column)
        length = max(math.sqrt(sum(count * count for count in counts.values())), 1)
        columns.extend(counts)
        values.extend(count / length for count in counts.values())
        indptr.append(len(columns))
    csr = CSC(np.array(indptr), np.array(columns, np.int32), np.array(values, np.float32), num_words)
    return SparseFeatures(csr)
