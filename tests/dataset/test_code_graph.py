"""Names resolve as Python's scopes and imports say."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from gnnkit.config.settings import Choice

_FILE = Path(__file__).parents[2] / "benchmarks/code_graph.py"
_SPEC = importlib.util.spec_from_file_location("code_graph", _FILE)
assert _SPEC is not None
assert _SPEC.loader is not None
sys.modules["code_graph"] = MODULE = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(MODULE)
code_graph, split_words = MODULE.code_graph, MODULE.split_words


def edges(**modules: str) -> set[str]:
    """The edges of modules, `__` standing for a dot, as `caller -> callee` by name."""
    sources = {name.replace("__", "."): dedent(source).encode() for name, source in modules.items()}
    graph = code_graph({name.replace(".init", ".__init__"): source for name, source in sources.items()})
    names = [definition.name for definition in graph.definitions]
    return {f"{names[u]} -> {names[v]}" for u, v in graph.edges}


def test_members_and_base_classes_are_edges() -> None:
    assert edges(m="class A: pass\nclass B(A):\n def f(self): pass\n class C: pass") == {"B -> A", "B -> f", "B -> C"}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("def f(): g()\ndef g(): pass", {"f -> g"}),
        ("def f():\n def g(): pass\n g()\ndef h(): g()", {"f -> g"}),  # h sees no g
        ("def f(g): g()\ndef g(): pass", set()),  # the argument hides the function
        ("def f():\n g = 1\n g()\ndef g(): pass", set()),  # so does a variable
        ("def f(): f()", set()),  # recursion is no edge
        ("class A:\n def f(self): self.g()\n def g(self): pass", {"A -> f", "A -> g", "f -> g"}),
        ("class A:\n def f(self): g()\n def g(self): pass", {"A -> f", "A -> g"}),  # classes are no scope for methods
        ("class A:\n @staticmethod\n def f(x): x.g()\n def g(self): pass", {"A -> f", "A -> g"}),
        ("class A:\n @classmethod\n def f(cls): cls()", {"A -> f", "f -> A"}),
        ("class A:\n def g(self): pass\nclass B(A):\n def f(self): self.g()", {"A -> g", "B -> A", "B -> f", "f -> g"}),
        (
            "class A:\n def f(self): pass\nclass B(A):\n def f(self): super().f()",
            {"A -> f", "B -> A", "B -> f", "f -> f"},
        ),
        ("class A:\n def f(self): pass\ndef g(): A().f()", {"A -> f", "g -> f", "g -> A"}),
        ("class A:\n def __call__(self): pass\ndef g(): A()()", {"A -> __call__", "g -> A", "g -> __call__"}),
        (
            "class A:\n def f(self):\n  def g(): self.h()\n  g()\n def h(self): pass",
            {"A -> f", "A -> h", "f -> g", "g -> h"},
        ),
        ("try:\n def f(): pass\nexcept E:\n f = None\ndef g(): f()", {"g -> f"}),
        ("f = None\ndef f(): pass\ndef g(): f()", {"g -> f"}),
        ("async def f(): await g()\nasync def g(): pass", {"f -> g"}),
        ("class A(B): pass\nclass B(A):\n def f(self): self.nothing()", {"A -> B", "B -> A", "B -> f"}),
        ("def f(): [g(x) for x in h()]\ndef g(x): pass\ndef h(): pass", {"f -> g", "f -> h"}),
        ("def f(): (lambda: g())()\ndef g(): pass", {"f -> g"}),
        ("import os\ndef f(): os.path.join()", set()),  # not among the sources
    ],
)
def test_names_in_one_module(body: str, expected: set[str]) -> None:
    assert edges(m=body) == expected


@pytest.mark.parametrize(
    "source",
    [
        "import pkg.sub\ndef f(): pkg.sub.g()",
        "import pkg.sub as s\ndef f(): s.g()",
        "from pkg import sub\ndef f(): sub.g()",
        "from pkg.sub import g\ndef f(): g()",
        "from pkg.sub import g as other\ndef f(): other()",
        "from pkg.sub import *\ndef f(): g()",
        "from pkg import again\ndef f(): again()",  # re-exported by the package
        "def f():\n from pkg.sub import g\n g()",
        "try:\n from _fast import g\nexcept ImportError:\n from pkg.sub import g\ndef f(): g()",
    ],
)
def test_names_through_imports(source: str) -> None:
    package = {"pkg__init": "from .sub import g as again", "pkg__sub": "def g(): pass"}
    assert edges(m=source, **package) == {"f -> g"}


def test_relative_imports_count_from_the_package() -> None:
    tree = {"p__init": "def top(): pass", "p__q__init": "", "p__q__a": "def g(): pass"}
    assert edges(p__q__b="from .a import g\nfrom .. import top\ndef f(): g(); top()", **tree) == {"f -> g", "f -> top"}
    assert edges(p__r="from .q.a import g\nfrom . import q\ndef f(): g()", **tree) == {"f -> g"}


def test_circles_of_imports_end() -> None:
    assert edges(a="from b import f\nfrom b import *\ndef g(): f()", b="from a import f\nfrom a import *") == set()


def test_modules_that_do_not_parse_are_left_out() -> None:
    assert edges(bad="def f(:", null="\0", good="def f(): g()\ndef g(): pass") == {"f -> g"}


def test_words_are_split_at_underscores_and_capitals() -> None:
    assert split_words("HTTPServer_do_GETRequest2x a") == ["http", "server", "do", "get", "request"]


def test_words_come_from_name_arguments_and_docstring() -> None:
    source = 'def read_all(path, *args, mode=None, **rest):\n "Reads THE file."\n unseen = 1'
    (definition,) = code_graph({"m": source.encode()}).definitions
    assert definition.words == ["read", "all", "path", "mode", "args", "rest", "reads", "the", "file"]


def test_a_tree_of_sources_becomes_a_file_for_dataset_npz(tmp_path: Path) -> None:
    for name, source in {
        "alpha": "def one(): two()\ndef two(): pass\ndef three(): pass",
        "beta/__init__": "class Big:\n def one(self): pass",
        "beta/part": "from beta import Big\ndef make(): Big()",
        "gamma": "def alone(): pass",
        "test/test_alpha": "def skipped(): pass",
        "beta/tests/test_part": "def skipped(): pass",
        "site-packages/other": "def skipped(): pass",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.py").write_text(source)
    MODULE.write_npz(tmp_path / "graph.npz", MODULE.read_sources(tmp_path), num_words=5, min_class_size=3)
    # one two three | Big one | make | alone
    graph = Choice("dataset", "npz", {"root": str(tmp_path / "graph.npz")}).create().load()
    np.testing.assert_array_equal(graph.labels, [0, 0, 0, 1, 1, 1, -1])
    np.testing.assert_array_equal(graph.csc.indptr, [0, 0, 1, 1, 2, 3, 3, 3])
    np.testing.assert_array_equal(graph.csc.indices, [0, 5, 3])
    assert graph.features.shape == (7, 5)
