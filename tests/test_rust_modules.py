"""Files of the Rust core build on each other in one direction."""

from __future__ import annotations

import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import gnnkit

RUST = Path(gnnkit.__file__).parent.parent / "rust"
CORE = RUST / "core" / "src"
SAMPLE = CORE / "sample"


def uses(path: Path) -> Iterator[str]:
    """Yields the paths in the `use` lines of a file, without braces and tests."""
    text = re.sub(r"//.*", "", path.read_text(encoding="utf-8")).split("#[cfg(test)]\nmod tests {")[0]
    for tree in re.findall(r"^\s*(?:pub(?:\([^)]*\))? )?use ([^;]+);", text, re.MULTILINE):
        yield from leaves(re.sub(r"\s+", "", tree))


def leaves(tree: str) -> Iterator[str]:
    """`a::{b, c::{d, e}}` as `a::b`, `a::c::d` and `a::c::e`."""
    front, brace, remainder = tree.partition("{")
    if not brace:
        yield tree
        return
    for inner in split(remainder[:-1]):
        yield from (front + leaf for leaf in leaves(inner))


def split(trees: str) -> Iterator[str]:
    """The trees between the commas that no brace encloses."""
    depth, begin = 0, 0
    for at, sign in enumerate(trees):
        depth += (sign == "{") - (sign == "}")
        if sign == "," and depth == 0:
            yield trees[begin:at]
            begin = at + 1
    if trees[begin:]:
        yield trees[begin:]


def modules_of_core() -> dict[str, set[str]]:
    """Returns the imports of each module of the core. A folder is one module."""
    names = {path.stem for path in CORE.iterdir() if path.name != "lib.rs"}
    results: dict[str, set[str]] = {name: set() for name in names}
    for path in CORE.rglob("*.rs"):
        module = path.relative_to(CORE).parts[0].removesuffix(".rs")
        if module == "lib" or path.name == "tests.rs":
            continue
        for use in uses(path):
            front, *inner = use.split("::")
            if front == "crate" and inner[0] in names - {module}:
                results[module].add(inner[0])
    return results


def files_of_sample() -> dict[str, set[str]]:
    """Returns the imports of each file of `sample`. `mod` is the folder itself."""
    names = {path.stem for path in SAMPLE.glob("*.rs")} - {"tests"}
    results: dict[str, set[str]] = {name: set() for name in names}
    for name in names:
        for use in uses(SAMPLE / f"{name}.rs"):
            front, *inner = use.split("::")
            if front == "super" and name != "mod":
                results[name].add(inner[0] if inner[0] in names else "mod")
            elif front == "crate" and inner[0] == "sample":
                results[name].add(inner[1] if inner[1] in names else "mod")
            elif name == "mod" and front in names:
                results[name].add(front)
    return results


@pytest.mark.parametrize("imports", [modules_of_core(), files_of_sample()], ids=["core", "sample"])
def test_no_rust_file_imports_one_that_imports_it(imports: dict[str, set[str]]) -> None:
    assert sum(map(len, imports.values())) > 20
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(f"imports form a circle: {' -> '.join(reversed(error.args[1]))}")


def test_use_lines_are_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "some.rs"
    file.write_text(
        "use super::a; // use super::b;\npub(crate) use c::{d, e::{\n    f,\n    g,\n}};\nuse crate::{h};\n"
    )
    assert list(uses(file)) == ["super::a", "c::d", "c::e::f", "c::e::g", "crate::h"]
