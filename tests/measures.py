"""Size, shape and prose of a Python package, as numbers."""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

# Words that well-kept packages use less than once in 1,000 words, all together.
ODD_WORDS = frozenset(
    [
        "told",
        "tell",
        "tells",
        "anew",
        "meanwhile",
        "beside",
        "behind",
        "spelt",
        "spells",
        "foresee",
        "foreseen",
        "nobody",
        "vain",
        "heed",
        "heeds",
        "dealt",
        "deals",
        "lacks",
        "lacking",
        "cure",
        "whoever",
        "mend",
        "mended",
        "afterwards",
        "thereby",
        "crew",
        "teller",
        "whole",
        "whose",
    ]
)
PRONOUNS = frozenset(
    [
        "found",
        "given",
        "kept",
        "told",
        "said",
        "made",
        "known",
        "drawn",
        "held",
        "sent",
        "met",
        "begun",
        "chosen",
        "taken",
        "left",
        "lost",
        "gone",
        "come",
        "came",
        "built",
        "bound",
        "shown",
        "seen",
        "lent",
        "spent",
        "swept",
        "written",
        "own",
        "each",
        "whole",
        "one",
        "both",
        "others",
        "other",
        "rest",
        "some",
        "most",
        "few",
        "many",
        "same",
        "such",
        "these",
        "those",
        "more",
        "former",
        "latter",
        "here",
        "there",
        "what",
        "where",
        "who",
        "how",
        "why",
    ]
)  # and irregular participles, which do not name a value
NOUNS_IN_ED = frozenset(["seed", "need", "feed", "speed", "embed", "red", "embedded"])
DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BRANCHES = (ast.If, ast.For, ast.While, ast.IfExp, ast.ExceptHandler, ast.AsyncFor, ast.Assert, ast.match_case)


def measure_package(root: Path) -> dict[str, float]:
    """Returns the modules' size and shape, and the docstrings' prose."""
    sources = {path: path.read_text() for path in sorted(root.rglob("*.py"))}
    trees = {path: ast.parse(source) for path, source in sources.items()}
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    functions = [node for node in nodes if isinstance(node, FUNCTIONS)]
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    names = [node.id for node in nodes if isinstance(node, ast.Name)]
    names += [node.arg for node in nodes if isinstance(node, ast.arg)]
    return {
        "code lines": sum(map(_count_code_lines, sources.values())),
        "functions over 40 lines": sum(_num_lines(node) > 40 for node in functions),
        "functions over 15 branches": sum(_count_branches(node) > 15 for node in functions),
        "classes over 15 methods": sum(sum(isinstance(x, FUNCTIONS) for x in node.body) > 15 for node in classes),
        "repeated class names": sum(count > 1 for count in Counter(node.name for node in classes).values()),
        "dict[str, Any]": sum(source.count("dict[str, Any]") for source in sources.values()),
        "participles and pronouns per 1,000 names": 1000 * sum(map(_is_bare, names)) / max(len(names), 1),
        **measure_prose(_docstrings(nodes)),
    }


def _is_bare(name: str) -> bool:
    """Returns whether a name is a participle or pronoun without a noun."""
    word = name.strip("_")
    return word in PRONOUNS or (re.fullmatch(r"[a-z]+ed", word) is not None and word not in NOUNS_IN_ED)


def code_lines(root: Path) -> int:
    """Counts the lines of code of all modules below a folder."""
    sources = [path.read_text() for path in root.rglob("*.py")]
    return sum(map(_count_code_lines, sources))


def measure_pages(folder: Path) -> dict[str, float]:
    """Returns the prose of the Markdown pages, without their code blocks."""
    return measure_prose(
        re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL) for path in sorted(folder.rglob("*.md"))
    )


def measure_prose(texts: Iterable[str]) -> dict[str, float]:
    """Returns rates per 1,000 words, and the mean length of a sentence."""
    text = "\n".join(texts)
    words = Counter(word.lower() for word in re.findall(r"[A-Za-z']+", text))
    total = max(words.total(), 1)
    sentences = [len(part.split()) for part in re.split(r"(?<=[.!?])\s+", re.sub(r"\s+", " ", text))]
    lengths = [length for length in sentences if length > 1] or [0]
    return {
        "words per sentence": sum(lengths) / len(lengths),
        "'of' per 1,000 words": 1000 * words["of"] / total,
        "odd words per 1,000 words": 1000 * sum(words[word] for word in ODD_WORDS) / total,
    }


def _docstrings(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yields docstrings without their examples."""
    for node in nodes:
        if isinstance(node, DEFINITIONS) and (text := ast.get_docstring(node)):
            yield re.split(r"\n\s*(?:Example|>>>|\.\. )", text)[0]


@functools.cache
def _count_code_lines(source: str) -> int:
    """Counts lines that are not blank, comments, imports or docstrings."""
    code, second = set(), set()
    layout = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.COMMENT)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in layout:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            second.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        if isinstance(node, DEFINITIONS) and ast.get_docstring(node, clean=False) is not None:
            second.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(code - second)


def _num_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _count_branches(function: ast.AST) -> int:
    count = 1
    for node in ast.walk(function):
        if isinstance(node, BRANCHES):
            count += 1
        elif isinstance(node, ast.comprehension):
            count += 1 + len(node.ifs)
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
    return count
