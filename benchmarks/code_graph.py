"""Makes dataset=pystdlib: functions and classes in Python sources, as a graph.

    python benchmarks/code_graph.py OUT.npz [--root FOLDER]

Nodes are functions and classes, labelled with their top-level module. Features count
frequent words in names, arguments and docstrings. `dataset=npz` reads the file.

Each definition has edges to its callees, bases and members. Names are resolved
statically from scopes and imports, without running code. Values of a type known only at
run time are skipped. If a name is defined twice, the first definition counts.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np

from gnnkit.graph import CSC, Ids

_SKIPPED = {"test", "tests", "idle_test", "idlelib", "site-packages", "dist-packages", "__pycache__"}

_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_Import: TypeAlias = tuple[str, str | None]  # module, and a name in the module
_Path: TypeAlias = tuple[str, ...]  # a.b().c is a, b, (), c, which takes 1 % of a syntax tree's memory
_CALL = "()"


@dataclass(frozen=True, slots=True)
class _Instance:
    """A class's instance, or its bases' instance if created by `super()`."""

    cls: int
    bases_only: bool = False


# Number of a definition, name of a module, instance of a class, or unknown.
_Entity: TypeAlias = int | str | _Instance | None


@dataclass(slots=True)
class Definition:
    """A function or class."""

    name: str
    module: str
    words: list[str]  # lower-case words of name, arguments and docstring
    bases: list[_Path] = field(default_factory=list)
    members: _Scope | None = None  # classes only


@dataclass(slots=True)
class _Scope:
    """The names bound in a module, class or function."""

    module: str
    parent: _Scope | None = None
    owner: int | None = None  # definition whose body this is
    is_class: bool = False
    names: dict[str, _Import | _Entity] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)  # modules imported with *

    def bind(self, name: str, target: _Import | _Entity) -> None:
        """Binds a name.

        A definition takes precedence over an import, an import over a variable, and the
        first binding over later ones.
        """
        if name not in self.names or _rank(target) > _rank(self.names[name]):
            self.names[name] = target


@dataclass(slots=True)
class CodeGraph:
    """Definitions and the edges between them.

    Definitions are ordered by module, then by position in the module.
    """

    definitions: list[Definition]
    edges: list[tuple[int, int]]  # sorted, distinct: the first calls, derives from or contains the second


def code_graph(sources: Mapping[str, bytes]) -> CodeGraph:
    """Builds the graph from modules, given as `name -> source`.

    A package's own module is named `package.__init__`. Modules with syntax errors are
    skipped.
    """
    program = _ProgramIndex({name.removesuffix(".__init__") for name in sources})
    for name in sorted(sources):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about third-party code
            try:
                tree = ast.parse(sources[name])
            except (SyntaxError, ValueError):
                continue
        _ModuleReader(program, name).read(tree)
    edges = {edge for edge in program.edges() if edge[0] != edge[1]}
    return CodeGraph(program.definitions, sorted(edges))


def split_words(text: str) -> list[str]:
    """Splits text into lower-case words, also at underscores and camelCase."""
    return [word.lower() for word in _WORD.findall(text) if len(word) > 1]


def _rank(target: _Import | _Entity) -> int:
    if isinstance(target, int | _Instance):
        return 2
    return 0 if target is None else 1


class _ProgramIndex:
    """All modules, which resolves names and expressions."""

    def __init__(self, modules: set[str]) -> None:
        self.known = modules
        self.modules: dict[str, _Scope] = {}
        self.definitions: list[Definition] = []
        self.contained: list[tuple[int, int]] = []  # (class or function, definition in its body)
        self.calls: list[tuple[_Scope, _Path]] = []  # scope and callee of each call
        self._exports: dict[tuple[str, str], _Entity] = {}
        self._bases: dict[int, list[int]] = {}

    def edges(self) -> Iterator[tuple[int, int]]:
        yield from self.contained
        for number in range(len(self.definitions)):
            yield from ((number, base) for base in self.bases(number))
        for scope, path in self.calls:
            callee = self.evaluate(path, scope)
            if isinstance(callee, _Instance):
                callee = self.attribute(callee, "__call__")
            if isinstance(callee, int) and scope.owner is not None:
                yield scope.owner, callee

    def bases(self, number: int) -> list[int]:
        """Returns a class's resolved base classes."""
        if number not in self._bases:
            self._bases[number] = []  # breaks inheritance cycles
            members = self.definitions[number].members
            if members is not None and members.parent is not None:
                bases = [self.evaluate(base, members.parent) for base in self.definitions[number].bases]
                self._bases[number] = [base for base in bases if isinstance(base, int)]
        return self._bases[number]

    def evaluate(self, path: _Path, scope: _Scope) -> _Entity:
        """Resolves an expression, as far as names suffice."""
        is_inherited = path[:2] == ("super", _CALL)
        entity = _enclosing_instance(scope) if is_inherited else self.lookup(path[0], scope)
        for step in path[2 if is_inherited else 1 :]:
            entity = self.result(entity) if step == _CALL else self.attribute(entity, step)
        return entity

    def result(self, callee: _Entity) -> _Entity:
        """Resolves a call's result, which is known for classes only."""
        return _Instance(callee) if isinstance(callee, int) and self.definitions[callee].members else None

    def lookup(self, name: str, scope: _Scope) -> _Entity:
        """Looks up a name in the enclosing scopes.

        A class's names are visible only directly in its body.
        """
        place = scope
        while place.parent is not None:
            if name in place.names and (place is scope or not place.is_class):
                return self.target(place.names[name])
            place = place.parent
        return self.export(place.module, name)

    def attribute(self, entity: _Entity, name: str) -> _Entity:
        match entity:
            case str():
                return self.export(entity, name)
            case int():
                return self.member([entity, *self.ancestors(entity)], name)
            case _Instance(cls=cls, bases_only=bases_only):
                return self.member([*([] if bases_only else [cls]), *self.ancestors(cls)], name)
        return None

    def member(self, classes: list[int], name: str) -> _Entity:
        """Looks up a name in the first class that has it."""
        for cls in classes:
            members = self.definitions[cls].members
            if members is not None and name in members.names:
                return self.target(members.names[name])
        return None

    def ancestors(self, cls: int) -> list[int]:
        """Lists all resolved base classes once, nearest first."""
        lineage = [cls]
        for number in lineage:
            lineage += [base for base in self.bases(number) if base not in lineage]
        return lineage[1:]

    def export(self, module: str, name: str) -> _Entity:
        """Looks up a module's name: bound, a submodule, or imported with *."""
        key = (module, name)
        if key not in self._exports:
            self._exports[key] = None  # breaks import cycles
            self._exports[key] = self._export(module, name)
        return self._exports[key]

    def _export(self, module: str, name: str) -> _Entity:
        scope = self.modules.get(module)
        if scope is not None and name in scope.names:
            return self.target(scope.names[name])
        if f"{module}.{name}" in self.known:
            return f"{module}.{name}"
        entities = (self.export(star, name) for star in (scope.stars if scope is not None else ()))
        return next((entity for entity in entities if entity is not None), None)

    def target(self, target: _Import | _Entity) -> _Entity:
        if not isinstance(target, tuple):
            return target
        module, name = target
        return module if name is None else self.export(module, name)


class _ModuleReader(ast.NodeVisitor):
    """A visitor that adds one module's scopes and calls to the index."""

    def __init__(self, program: _ProgramIndex, name: str) -> None:
        self.program = program
        self.module = name.removesuffix(".__init__")
        self.package = self.module if name.endswith(".__init__") else self.module.rpartition(".")[0]
        self.scope = program.modules[self.module] = _Scope(self.module)

    def read(self, tree: ast.Module) -> None:
        for statement in tree.body:
            self.visit(statement)

    def visit_FunctionDef(self, node: _Function) -> None:
        for outside in (*node.decorator_list, node.args, *([node.returns] if node.returns else [])):
            self.visit(outside)
        arguments = [a.arg for a in _arguments(node.args)]
        scope = self.define(node, split_words(" ".join(arguments)))
        for name in arguments:
            scope.bind(name, _first_argument(node, self.scope) if name == arguments[0] else None)
        self.read_body(node, scope)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for outside in (*node.decorator_list, *node.bases, *node.keywords):
            self.visit(outside)
        scope = self.define(node, [])
        definition = self.program.definitions[-1]
        definition.bases, definition.members = [path for base in node.bases if (path := _path(base))], scope
        scope.is_class = True
        self.read_body(node, scope)

    def define(self, node: _Function | ast.ClassDef, words: list[str]) -> _Scope:
        """Adds a definition, binds its name, and returns its scope."""
        number = len(self.program.definitions)
        words = split_words(node.name) + words + split_words(ast.get_docstring(node, clean=False) or "")
        self.program.definitions.append(Definition(node.name, self.module, words))
        self.scope.bind(node.name, number)
        if self.scope.owner is not None:
            self.program.contained.append((self.scope.owner, number))
        return _Scope(self.module, self.scope, number)

    def read_body(self, node: _Function | ast.ClassDef, scope: _Scope) -> None:
        outer, self.scope = self.scope, scope
        for statement in node.body:
            self.visit(statement)
        self.scope = outer

    def visit_Call(self, node: ast.Call) -> None:
        if self.scope.owner is not None and (path := _path(node.func)):
            self.program.calls.append((self.scope, path))
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self.scope.bind(node.id, None)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            module = alias.name if alias.asname else alias.name.partition(".")[0]
            self.scope.bind(alias.asname or module, (module, None) if module in self.program.known else None)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        package = self.package.split(".")[: len(self.package.split(".")) + 1 - node.level] if node.level else []
        module = ".".join([*package, *([node.module] if node.module else [])])
        for alias in node.names:
            if alias.name == "*":
                self.scope.stars.append(module)
            else:
                target = (module, alias.name) if module in self.program.known else None
                self.scope.bind(alias.asname or alias.name, target)


def _path(expression: ast.expr) -> _Path | None:
    """Returns an expression's names, attributes and calls, None for other syntax."""
    steps = []
    while not isinstance(expression, ast.Name):
        if isinstance(expression, ast.Attribute):
            steps.append(expression.attr)
            expression = expression.value
        elif isinstance(expression, ast.Call):
            steps.append(_CALL)
            expression = expression.func
        else:
            return None
    return (expression.id, *reversed(steps))


def _arguments(arguments: ast.arguments) -> list[ast.arg]:
    variadic = [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *variadic]


def _first_argument(node: _Function, scope: _Scope) -> _Entity:
    """Resolves a method's first argument to an instance or the class."""
    decorators = {name.id for name in node.decorator_list if isinstance(name, ast.Name)}
    if not scope.is_class or scope.owner is None or "staticmethod" in decorators:
        return None
    of_class = "classmethod" in decorators or node.name in ("__new__", "__init_subclass__", "__class_getitem__")
    return scope.owner if of_class else _Instance(scope.owner)


def _enclosing_instance(scope: _Scope) -> _Entity:
    """Resolves `super()` in a class's methods."""
    place: _Scope | None = scope
    while place is not None and not place.is_class:
        place = place.parent
    return None if place is None or place.owner is None else _Instance(place.owner, bases_only=True)


def read_sources(root: Path) -> dict[str, bytes]:
    """Returns sources by module name, without tests and installed packages."""

    def is_read(name: str) -> bool:
        return name.isidentifier() and name not in _SKIPPED

    paths = []
    for folder, inner, files in os.walk(root):
        inner[:] = filter(is_read, inner)  # skips other folders, such as site-packages
        paths += [Path(folder, name) for name in files if name.endswith(".py") and is_read(name[:-3])]
    return {".".join(path.relative_to(root).with_suffix("").parts): path.read_bytes() for path in sorted(paths)}


def find_classes(modules: list[str], min_size: int) -> tuple[Ids, list[str]]:
    """Returns labels [num_nodes], -1 for small modules, and sorted class names."""
    names = sorted(name for name, count in Counter(modules).items() if count >= min_size)
    number = {name: label for label, name in enumerate(names)}
    return np.array([number.get(module, -1) for module in modules], np.int64), names


def count_words(texts: list[list[str]], num_words: int) -> CSC:  # [num_nodes, num_words]
    """Counts the most frequent words per text.

    Ties are broken alphabetically.
    """
    totals = Counter(word for text in texts for word in text)
    frequent = sorted(totals, key=lambda word: (-totals[word], word))[:num_words]
    column = {word: number for number, word in enumerate(frequent)}
    indptr, columns, values = [0], list[int](), list[int]()
    for text in texts:
        counts = sorted(Counter(column[word] for word in text if word in column).items())
        columns.extend(number for number, _ in counts)
        values.extend(count for _, count in counts)
        indptr.append(len(columns))
    return CSC(np.array(indptr), np.array(columns, np.int32), np.array(values, np.float32), num_words)


def write_npz(path: Path, sources: Mapping[str, bytes], num_words: int, min_class_size: int) -> CodeGraph:
    """Writes the graph in the format of `dataset=npz`, with the names of classes."""
    code = code_graph(sources)
    modules = [definition.module.partition(".")[0] for definition in code.definitions]
    labels, names = find_classes(modules, min_class_size)
    counts = count_words([definition.words for definition in code.definitions], num_words)
    csc = CSC.from_edges(*np.array(code.edges, np.int64).reshape(-1, 2).T, len(modules))
    assert counts.weight is not None
    np.savez_compressed(
        path,
        indptr=csc.indptr.astype(np.int32),
        indices=csc.indices.astype(np.int32),
        x_indptr=counts.indptr.astype(np.int32),
        x_indices=counts.indices.astype(np.int16),
        x_data=counts.weight.astype(np.uint8 if counts.weight.max() < 256 else np.float32),
        x_shape=np.array([len(modules), num_words]),
        y=labels.astype(np.int16),
        class_names=np.frombuffer("\n".join(names).encode(), np.uint8),
    )
    return code


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--root", type=Path, default=sysconfig.get_path("stdlib"), help="Python's standard library")
    parser.add_argument("--words", type=int, default=2000, help="features, one per most frequent word")
    parser.add_argument("--min-class-size", type=int, default=60, help="nodes. Smaller modules have no class")
    options = parser.parse_args()
    code = write_npz(options.out, read_sources(options.root), options.words, options.min_class_size)
    print(f"{len(code.definitions):,} nodes, {len(code.edges):,} edges")


if __name__ == "__main__":
    main()
