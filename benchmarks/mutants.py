"""Counts how many small faults in the package the tests notice.

    uv run python benchmarks/mutants.py --mutants 80

A mutant is the package with one change, drawn at random: another comparison, constant
or sign, or a statement left out. First, all tests run once on a package in which each
place that is to change notes which tests reach it, in child processes too. Then each
mutant meets the tests that reach its place, quickest first, until one fails: those of
the default selection, and if none of these fails, the exhaustive ones.

A mutant that no test reaches, or that all tests pass, survives. Mutants that are equal
to the package for every input survive too: read the table. The file of `--out` holds
what is known, and a command that was stopped goes on from there.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("engine", "exchange", "sampler", "sync", "strategy", "partition", "training", "graph", "task")
COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "in": "not in", "not in": "in"}
COMPARISONS |= {"is": "is not", "is not": "is"}
SIGNS = {ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*")}
UNKNOWN = 4  # exit code of pytest
MOST_WAIT = 600.0  # seconds for the tests of a mutant
NOTE = "MUTANTS_NOTES"  # variable with the file that gets a line for each place and test
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["torch.utils.tensorboard", "lightning", "torch_geometric", "pandas", "polars", "networkx", "pytest"]
)


@dataclass
class Mutant:
    """One change of the package, and what the tests said."""

    file: str
    line: int  # of the statement
    start: int  # offset of the change, in bytes
    end: int
    text: str  # instead of these bytes
    change: str  # for people
    tests: dict[str, int] = field(default_factory=dict)  # by selection: number that reach the place
    noticed: str | None = None  # the selection
    by: str | None = None  # the test that failed
    seconds: float = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=80, help="number of mutants (default: 80)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default: 0)")
    parser.add_argument("--folders", nargs="+", default=FOLDERS, help=f"of gnnkit (default: {' '.join(FOLDERS)})")
    parser.add_argument("--tests", nargs="*", default=[], help="files or folders of tests (default: all)")
    parser.add_argument("--at-once", type=int, default=2, help="mutants tried at a time (default: 2)")
    parser.add_argument("--most", type=float, default=60, help="seconds of tests for each selection (default: 60)")
    parser.add_argument(
        "--out", type=Path, default=Path("mutants.json"), help="file of results (default: mutants.json)"
    )
    parser.add_argument("--reach", action="store_true", help="only note which tests reach each place")
    options = parser.parse_args()
    if options.out.exists():
        record = json.loads(options.out.read_text())
    else:
        places = [place for folder in options.folders for file in sources(folder) for place in changes(file)]
        sample = random.Random(options.seed).sample(places, options.mutants)
        record = {"mutants": [asdict(mutant) for mutant in sample]}
    mutants = [Mutant(**values) for values in record["mutants"]]
    if "reach" not in record:
        record["reach"] = reach(mutants, options.tests)
        options.out.write_text(json.dumps(record))
    if options.reach:
        return
    with tempfile.TemporaryDirectory(prefix="gnnkit-mutants-") as name:
        folders = [Path(name) / str(number) for number in range(options.at_once)]
        for folder in folders:
            copy_project(folder)
        default, everything = ids(folders[0], options.tests), ids(folders[0], options.tests, "--exhaustive")
        record["reach"] = [{test: tests[test] for test in tests if test in everything} for tests in record["reach"]]
        with ThreadPoolExecutor(options.at_once) as pool:

            def judge(number: int) -> None:
                folder = folders.pop()
                try:
                    tell(try_mutant(mutants[number], record["reach"][number], default, folder, options.most))
                finally:
                    folders.append(folder)
                record["mutants"][number] = asdict(mutants[number])
                options.out.write_text(json.dumps(record))

            list(pool.map(judge, [number for number, mutant in enumerate(mutants) if not mutant.tests]))
    summary(mutants)


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / "gnnkit" / folder).rglob("*.py"))


def changes(file: Path) -> Iterator[Mutant]:
    """Yields the changes that a file allows."""
    source = file.read_bytes()
    offsets = [0]
    for line in source.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))

    def begin(node: ast.AST) -> int:
        return offsets[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]

    def finish(node: ast.AST) -> int:
        return offsets[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def change(start: int, end: int, text: str, statement: ast.stmt) -> Mutant:
        old = " ".join(source[start:end].decode().split())
        name = str(file.relative_to(ROOT))
        return Mutant(name, statement.lineno, start, end, text, f"{old} -> {text}"[:100])

    def between(first: ast.AST, right: ast.AST, old: str, new: str, statement: ast.stmt) -> Iterator[Mutant]:
        start, end = finish(first), begin(right)
        if (gap := source[start:end].decode()).split("#")[0].count(old) == 1:
            yield change(start, end, gap.replace(old, new), statement)

    def of_expression(node: ast.AST, statement: ast.stmt) -> Iterator[Mutant]:
        if isinstance(node, ast.JoinedStr | ast.Lambda):
            return
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            old = next(text for text, kind in _OPERATORS.items() if isinstance(node.ops[0], kind))
            yield from between(node.left, node.comparators[0], old, COMPARISONS[old], statement)
        elif isinstance(node, ast.BinOp) and type(node.op) in SIGNS:
            yield from between(node.left, node.right, *SIGNS[type(node.op)], statement)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
            yield change(begin(node), begin(node) + (1 if isinstance(node.op, ast.USub) else 3), "", statement)
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
            value = node.value
            text = str(not value) if isinstance(value, bool) else str(value + 1)
            yield change(begin(node), finish(node), text, statement)
        for child in ast.iter_child_nodes(node):
            yield from of_expression(child, statement)

    def of_block(block: list[ast.stmt], inside: bool) -> Iterator[Mutant]:
        for node in block:
            if isinstance(node, ast.FunctionDef):
                yield from of_block(node.body, True)
            elif isinstance(node, ast.ClassDef):
                yield from of_block(node.body, False)
            elif inside and not isinstance(node, ast.Import | ast.ImportFrom | ast.AsyncFunctionDef):
                yield from of_statement(node)

    def of_statement(node: ast.stmt) -> Iterator[Mutant]:
        for name, value in ast.iter_fields(node):
            if name in ("body", "orelse", "finalbody"):
                yield from of_block(value, True)
            elif name == "handlers":
                for handler in value:
                    yield from of_block(handler.body, True)
            elif name != "annotation" and not isinstance(node, ast.Raise | ast.Assert):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        yield from of_expression(child, node)
        is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        if is_call or isinstance(node, ast.AugAssign | ast.Raise | ast.Continue):
            yield change(begin(node), finish(node), "pass", node)

    yield from of_block(ast.parse(source).body, False)


_OPERATORS: dict[str, type[ast.cmpop]] = {
    "<": ast.Lt, "<=": ast.LtE, ">": ast.Gt, ">=": ast.GtE, "==": ast.Eq, "!=": ast.NotEq,
    "in": ast.In, "not in": ast.NotIn, "is": ast.Is, "is not": ast.IsNot,
}  # fmt: skip


def copy_project(folder: Path) -> None:
    """Copies what git holds, and the built core, into a folder."""
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    libraries = (str(path.relative_to(ROOT)) for path in (ROOT / "gnnkit").glob("_core*.so"))
    for name in [*files.split("\0")[:-1], *libraries]:
        if (source := ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, folder / name, follow_symlinks=False)
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    subprocess.run(["git", "add", "--all"], cwd=folder, check=True)


def environment(folder: Path) -> dict[str, str]:
    paths = [str(folder), *(str(path) for path in sorted((folder / "plugins").iterdir()))]
    data = os.environ.get("GNNKIT_TEST_DATA", str(ROOT.parent / "shared/data"))
    variables = {"PYTHONPATH": os.pathsep.join(paths), "GNNKIT_TEST_DATA": data}
    return {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | variables


def reach(mutants: list[Mutant], tests: list[str]) -> list[dict[str, float]]:
    """Runs all tests once. Returns those that reach each mutant, with their seconds."""
    with tempfile.TemporaryDirectory(prefix="gnnkit-mutants-") as name:
        folder, notes, seconds = Path(name) / "project", Path(name) / "notes", Path(name) / "seconds"
        copy_project(folder)
        by_file: dict[str, list[int]] = {}
        for number, mutant in enumerate(mutants):
            by_file.setdefault(mutant.file, []).append(number)
        for file, numbers in by_file.items():
            lines = (folder / file).read_text(encoding="utf-8").splitlines(keepends=True)
            for number in numbers:
                place = where(lines, mutants[number].line - 1)
                lines[place] = probed(lines[place], number)
            (folder / file).write_text("".join(lines), encoding="utf-8")
        (folder / "gnnkit" / "_reached.py").write_text(_REACHED, encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        variables = environment(folder) | {NOTE: str(notes)}
        subprocess.run(
            [*command, "--exhaustive", f"--store-durations={seconds}", *tests], check=False, cwd=folder, env=variables
        )
        test_seconds = {line.split(maxsplit=2)[2]: float(line.split()[0]) for line in seconds.read_text().splitlines()}
        tests_by_mutant: list[dict[str, float]] = [{} for _ in mutants]
        for line in set(notes.read_text().splitlines()):
            number, test = line.split("\t", 1)
            if test in test_seconds:
                tests_by_mutant[int(number)][test] = test_seconds[test]
    return tests_by_mutant


def ids(folder: Path, tests: list[str], *options: str) -> set[str]:
    """Returns the ids of the tests of a selection."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--collect-only",
        "-n0",
        *options,
        *tests,
    ]
    output = subprocess.run(command, check=True, cwd=folder, env=environment(folder), capture_output=True, text=True)
    return {*output.stdout.splitlines()}


_REACHED = f'''
import os

_seen = set()


def reached(number):
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rsplit(" (", 1)[0]
    if (number, test) not in _seen and (path := os.environ.get("{NOTE}")):
        _seen.add((number, test))
        with open(path, "ab", buffering=0) as file:
            file.write(f"{{number}}\\t{{test}}\\n".encode())
    return True
'''


def where(lines: list[str], place: int) -> int:
    """Returns the line of a statement. Of `elif`, the one of its `if`."""
    line = lines[place].lstrip()
    if not line.startswith(("elif ", "elif(")):
        return place
    indent = lines[place][: -len(line)]
    return next(n for n in reversed(range(place)) if lines[n].startswith((f"{indent}if ", f"{indent}__import__(")))


def probed(line: str, number: int) -> str:
    """Puts a call before the statement of a line."""
    indent = line[: len(line) - len(line.lstrip())]
    return f"{indent}__import__('gnnkit._reached')._reached.reached({number})\n{line}"


def try_mutant(
    mutant: Mutant, test_seconds: dict[str, float], default: set[str], folder: Path, max_seconds: float
) -> Mutant:
    """Runs the tests that reach a mutant, until one fails."""
    start, file = time.monotonic(), folder / mutant.file
    source = file.read_bytes()
    selections = {
        "default": {test: seconds for test, seconds in test_seconds.items() if test in default},
        "exhaustive": {test: seconds for test, seconds in test_seconds.items() if test not in default},
    }
    mutant.tests = {name: len(tests) for name, tests in selections.items()}
    file.write_bytes(source[: mutant.start] + mutant.text.encode() + source[mutant.end :])
    forget(folder)
    try:
        for name, tests in selections.items():
            if tests and (by := first_failure(quickest(tests, mutant, max_seconds), folder)) is not None:
                mutant.noticed, mutant.by = name, by
                break
    finally:
        file.write_bytes(source)
        forget(folder)
    mutant.seconds = time.monotonic() - start
    return mutant


def forget(folder: Path) -> None:
    """Removes compiled modules, which are dated by the second."""
    for cache in (folder / "gnnkit").rglob("__pycache__"):
        shutil.rmtree(cache, ignore_errors=True)


def quickest(tests: dict[str, float], mutant: Mutant, max_seconds: float) -> list[str]:
    """Returns tests of so many seconds, quick ones of the mutant's folder first."""
    folder = f"tests/{mutant.file.split('/')[1]}/"
    order = sorted(tests, key=lambda test: (not test.startswith(folder) or tests[test] > 1, tests[test], test))
    selection, total = [], 0.0
    for test in order:
        if selection and total + tests[test] > max_seconds:
            break
        selection.append(test)
        total += tests[test]
    return selection


def first_failure(tests: list[str], folder: Path) -> str | None:
    """Runs tests in a process forked from one that has imported the libraries."""
    with tempfile.TemporaryDirectory(prefix="gnnkit-mutants-") as name:
        child = FORKS.Process(target=run_tests, args=(tests, folder, name, environment(folder)))
        child.start()
        child.join(MOST_WAIT)
        code = child.exitcode
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid or 0, signal.SIGKILL)  # the child, if it hangs, and its children
        child.join()
        if code == 0:
            return None
        assert code != UNKNOWN, "a test has another name since it was noted: remove the file of --out"
        text = (Path(name) / "log").read_text(encoding="utf-8", errors="replace").splitlines()
        failures = (
            line.split(" - ")[0].split(maxsplit=1)[1] for line in text if line.startswith(("FAILED ", "ERROR "))
        )
        return next(failures, f"exit code {code}: {text[-1] if text else ''}")


def run_tests(tests: list[str], folder: Path, temporary: str, variables: dict[str, str]) -> None:
    """Is a process of `first_failure`."""
    os.setsid()
    os.chdir(folder)
    log = os.open(f"{temporary}/log", os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.environ.clear()
    os.environ.update(variables)
    sys.path[:0] = variables["PYTHONPATH"].split(os.pathsep)
    import pytest

    options = ["-x", "-q", "-n0", "--timeout=60", "-p", "no:cacheprovider", "--tb=no", "-rfE"]
    code = pytest.main([*options, f"--basetemp={temporary}/tests", *tests])
    sys.stdout.flush()
    os._exit(code)


def tell(mutant: Mutant) -> None:
    verdict = f"{mutant.noticed}: {mutant.by}" if mutant.noticed else "SURVIVES"
    num_tests = "+".join(str(number) for number in mutant.tests.values())
    print(
        f"{mutant.file}:{mutant.line}  {mutant.change!r}  {num_tests} tests, {mutant.seconds:.0f} s  {verdict}",
        flush=True,
    )


def summary(mutants: list[Mutant]) -> None:
    killed_mutants = [mutant for mutant in mutants if mutant.noticed]
    default = [mutant for mutant in killed_mutants if mutant.noticed == "default"]
    untested_mutants = [mutant for mutant in mutants if not sum(mutant.tests.values())]
    share = len(default) / max(len(killed_mutants), 1)
    print(
        f"{len(mutants)} mutants: {len(killed_mutants)} noticed, {len(default)} of these by the default selection ({share:.0%})"
    )
    print(f"{len(mutants) - len(killed_mutants)} survive, {len(untested_mutants)} of these are reached by no test")


if __name__ == "__main__":
    main()
