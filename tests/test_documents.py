"""JSON and YAML of strangers are read within bounds, and by one module."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gnnkit_report.run import read_run

import gnnkit
from gnnkit.config import compose, of_run
from gnnkit.errors import UserError
from gnnkit.jobs import weights
from gnnkit.partition.store.manifest import Manifest
from gnnkit.prepare.trained import Inputs
from gnnkit.training import checkpoint
from gnnkit.utils import documents, storage
from gnnkit.utils.documents import MAX_YAML, parse_json, parse_yaml, read_json, read_yaml
from tests.cases import few

PACKAGE = Path(gnnkit.__file__).parent
LAUGHS = "\n".join(
    ["a0: &a0 [x,x,x,x,x,x,x,x,x]", *(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30))]
)
MERGES = "\n".join(["m0: &m0 {k: 1}", *(f"m{i}: &m{i}\n  <<: [{', '.join([f'*m{i - 1}'] * 9)}]" for i in range(1, 30))])
HOSTILE = {
    "nested aliases": (LAUGHS, "its aliases stand for more than 100,000 values"),
    "nested merges": (MERGES, "its aliases stand for more than 100,000 values"),
    "a value in itself": ("a: &a [*a]", "a value of it holds itself"),
    "a merge of itself": ("a: &a\n  <<: *a", "a value of it holds itself"),
    "depth": ("[" * 2000, "it is nested too deeply"),
    "depth of mappings": ("a: " + "{a: " * 2000, "it is nested too deeply"),
    "a number in base 60": ("a: 1" + ":1" * 100_000, "is too long for a number"),
    "a long number": ("a: " + "9" * 100_000, "is too long for a number"),
    "too many bytes": ("a: " + "b" * MAX_YAML, "bytes"),
    "an object of Python": ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
    "no text": ("\0", "special characters are not allowed"),
    "a repeated key": ("a: 1\nb: {c: 1, d: 2, c: 3}", "'c' stands twice in a mapping; remove one"),
    "two documents": ("a: 1\n---\nb: 1", "it holds 2 YAML documents"),
}


@few("name", HOSTILE, default=[name for name in HOSTILE if name != "depth"])
def test_hostile_yaml_is_refused_in_one_line(name: str) -> None:
    text, message = HOSTILE[name]
    with pytest.raises(UserError, match=message) as caught:
        parse_yaml(text, "config.yaml")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: &a {b: 1}\nc: *a",
        "a: {b: 1}\nc: {b: 2}\n1: a\n'1': b",
        "base: &b {x: 1}\na:\n  <<: *b\n  y: 2",
        "t: 12:30:45\nd: 2020-01-01",
    ],
)
def test_ordinary_yaml_is_read_as_ever(text: str) -> None:
    import yaml

    assert parse_yaml(text, "config.yaml") == yaml.safe_load(text)


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 100_000, "{", "9" * 10_000, "\xff", b"\xff"])
def test_hostile_json_is_refused_in_one_line(text: str | bytes) -> None:
    with pytest.raises(UserError, match=r"^x\.json ") as caught:
        parse_json(text, "x.json")
    assert len(str(caught.value)) < 400


def pipe(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as own:
        before = os.open(".", os.O_RDONLY)
        os.chdir(path.parent)
        own.bind(path.name)
        os.fchdir(before)
        os.close(before)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.mkdir()


def _linked(root: Path) -> Path:
    """Makes a folder whose options are a link to another folder."""
    (root / "linked").mkdir()
    (root / "linked/model").symlink_to(root / "deep/model")
    return root / "linked"


READERS: dict[str, Callable[[Path], Any]] = {
    "config.yaml": of_run,
    "inputs.json": Inputs.load,
    "labels.json": weights.read_facts,
    "classes.json": weights.class_names,
    "model.safetensors": weights.read,
    "result.json": read_run,
    "store.json": Manifest.load,
    "meta.json": storage.load_arrays,
    "x.npy": lambda root: (storage.read_npy(root / "x.npy"), storage.npy_header(root / "x.npy")),
    "header.npy": lambda root: storage.npy_header(root / "header.npy"),
    "any.json": lambda root: read_json(root / "any.json"),
    "any.yaml": lambda root: read_yaml(root / "any.yaml"),
    "last.json": lambda root: checkpoint.load(root / "last.json"),
    "model/mine.yaml": lambda root: compose(["strategy=vertex_centric", "model=mine"], config_dirs=[root]),
    "deep/model/mine.yaml": lambda root: compose(["strategy=vertex_centric"], config_dirs=[_linked(root)]),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("make", [pipe, unix_socket, device, folder])
@pytest.mark.parametrize("name", READERS)
def test_no_reader_waits_for_a_file_that_is_not_regular(
    name: str, make: Callable[[Path], None], tmp_path: Path
) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    make(tmp_path / name)
    with pytest.raises(UserError, match=rf"{Path(name).name}|checkpoint="):
        READERS[name](tmp_path)


@pytest.mark.parametrize("text", [LAUGHS, MERGES, "a: &a [*a]"])
def test_no_folder_of_a_stranger_computes_for_ever(text: str, tmp_path: Path) -> None:
    for name in ("config.yaml", "model/mine.yaml"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    with pytest.raises(UserError, match="cannot be read"):
        of_run(tmp_path)
    with pytest.raises(UserError, match="cannot be read"):
        compose(["strategy=vertex_centric", "model=mine"], config_dirs=[tmp_path])


def test_files_that_include_each_other_many_times_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    for number in range(30):
        (tmp_path / f"model/b{number}.yaml").write_text(f"defaults: [b{number + 1}@x, /model/b{number + 1}@y]\n")
    (tmp_path / "model/b30.yaml").write_text("hidden: 3\n")
    with pytest.raises(UserError, match=r"includes more than 200 files through its defaults"):
        compose(["strategy=vertex_centric", "model=b0"], config_dirs=[tmp_path])


@pytest.mark.parametrize("entry", ["../../evil", "/.hydra/evil", "/../evil"])
def test_only_options_of_a_folder_are_included(entry: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/mine.yaml").write_text(f"defaults: [{entry}]\n")
    with pytest.raises(UserError, match="only options in the folder are read"):
        compose(["strategy=vertex_centric", "model=mine"], config_dirs=[tmp_path])


def test_a_file_that_includes_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / f"model/{name}.yaml").write_text(f"defaults: [{other}]\n")
    with pytest.raises(UserError, match="includes itself"):
        compose(["strategy=vertex_centric", "model=a"], config_dirs=[tmp_path])


@pytest.mark.slow
@few("reference", ["${model.options.a%d}", "${.a%d}", "${..options.a%d}"], default=["${.a%d}"])
def test_values_that_refer_to_each_other_many_times_are_refused(reference: str) -> None:
    keys = [f"model.options.a{number}='{2 * (reference % (number + 1))}'" for number in range(30)]
    with pytest.raises(UserError, match="refers to more than 1,000 values"):
        compose(["strategy=vertex_centric", "model=gcn", *keys, "model.options.a30=x"])


@pytest.mark.slow
def test_a_value_may_refer_to_others() -> None:
    keys = ["seed=3", "model.options.a='${seed}${.b}'", "model.options.b='${seed}-${model.name}'"]
    assert compose(["strategy=vertex_centric", "model=gcn", *keys])["model"]["options"] == {"a": "33-gcn", "b": "3-gcn"}


# What parses text that is no stranger's file: messages between processes of one run,
# copies of plain data, and tables of the package.
PARSES = {
    "utils/documents.py": "the one place",
    "plugins.py": "a table of this package",
    "utils/ranges.py": "a table of this package, on which documents.py depends",
    "utils/storage.py": "maps an .npy that was checked",
    "jobs/weights.py": "opens model.safetensors",
    "dataset/pystdlib.py": "a file of this package",
    "training/checkpoint.py": "opens tensors whose hash was checked",
    "comm/base.py": "values of ranks",
    "comm/frames.py": "messages between ranks",
    "comm/shared_memory.py": "ranks of one host",
    "comm/rendezvous.py": "where ranks of one run meet",
    "launch/child.py": "reports of processes",
    "launch/processes.py": "the answer of work in this process",
    "launch/launcher/builtin.py": "results of ranks in this process",
    "jobs/restarts.py": "facts of ranks",
    "prepare/run_partition.py": "a copy of plain data",
    "launch/program.py": "a program's request and answer",
}
PARSER = re.compile(
    r"\bjson\.loads?\(|\byaml\.(?:safe_|full_|unsafe_)?load(?:_all)?\(|OmegaConf\.load\(|\bnp\.(?:load|fromfile)\("
    r"|\bsafe_open\(|\btomllib\b|\bpickle\.loads?\(|\btorch\.load\(|json\.loads\b|SafeLoader"
)


@pytest.mark.slow
def test_no_other_module_parses_files() -> None:
    files = {path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    assert sorted(name for name, text in files.items() if PARSER.search(text)) == sorted(PARSES)


def test_a_file_of_a_size_over_the_limit_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.json").write_text('"12345678"')
    assert read_json(tmp_path / "x.json") == "12345678"
    with pytest.raises(UserError, match=r"x.json has 10 bytes, at most 9 are read"):
        documents.read_json(tmp_path / "x.json", limit=9)


@pytest.mark.slow
def test_the_recursion_limit_is_left_as_it_was() -> None:
    before = sys.getrecursionlimit()
    with pytest.raises(UserError):
        parse_yaml("[" * 2000, "x.yaml")
    assert sys.getrecursionlimit() == before
