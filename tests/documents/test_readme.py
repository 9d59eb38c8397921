"""The documents are right.

Their code runs, their commands are accepted, their tables are complete.
"""

from __future__ import annotations

import ast
import functools
import importlib
import json
import re
import shlex
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from gnnkit_sweep.spaces import spaces
from torch_geometric.data import Data

import gnnkit
import gnnkit.testing
from gnnkit import config, plugins
from gnnkit.__main__ import main
from gnnkit.config import keys, settings
from gnnkit.graph import Graph
from gnnkit.jobs import Order, check
from tests.cases import few
from tests.documents import packages
from tests.runs import compose_once, within_process

pytestmark = pytest.mark.reads(
    *("README.md", "DESIGN.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs", "mkdocs.yml", "pyproject.toml"),
    *("Cargo.toml", "gnnkit", "rust", "plugins", "packaging", "tests/runs.py", "tests/cases.py", "tests/apart"),
)
ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ("README.md", "DESIGN.md", "CONTRIBUTING.md", "CHANGELOG.md")
SITE = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
FOR_USERS = ("README.md", *SITE)
TEXTS = {name: (ROOT / name).read_text(encoding="utf-8") for name in (*DOCUMENTS, *SITE)}
EXAMPLES = {"hubs", "stripes"}  # plugins that only show how a plugin is made
EVERYTHING = "write=[predictions,logits,probabilities,embeddings]"
QUICK = ["trainer.max_epochs=1", "comm=threads", "trainer.checkpoint=false"]
SMALL = ["dataset=synthetic", "dataset.num_nodes=120", "dataset.num_edges=400", "trainer.max_epochs=2"]


def sections(name: str) -> dict[str, str]:
    """Returns the text of a document by the headings of its sections."""
    parts = re.split(r"^## (.*)$", TEXTS[name], flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def blocks(text: str, language: str = "python") -> list[str]:
    actual = re.finditer(rf"^( *)```{language}\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(block[2]) for block in actual]


def prose(name: str) -> str:
    """Returns a document without its blocks of code between fences."""
    return re.sub(r"^( *)```.*?^\1```$", "", TEXTS[name], flags=re.MULTILINE | re.DOTALL)


def commands(name: str) -> list[list[str]]:
    """Lists the arguments of every `gnnkit` in a document, in code and in prose."""
    text = prose(name)
    spans = re.findall(r"`(gnnkit [^`]*)`", text.replace("\n", " "))
    lines = [line for line in text.splitlines() if line.startswith("    ") and re.search(r"\bgnnkit [+\w]", line)]
    return [shlex.split(re.split(r"\bgnnkit ", each, maxsplit=1)[1].partition("#")[0]) for each in [*lines, *spans]]


def table(heading: str) -> list[list[str]]:
    """Returns the cells of the only table whose first column has this heading."""
    pattern = re.compile(rf"^\| {re.escape(heading)} \|.*\n\|[-|]*\n((?:\|.*\n)+)", re.MULTILINE)
    results = [rows for name in FOR_USERS for rows in pattern.findall(TEXTS[name])]
    assert len(results) == 1, f"{len(results)} tables of {heading}"
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in results[0].splitlines()]


def code(text: str) -> set[str]:
    """Returns the names in backticks."""
    return set(re.findall(r"`([\w./]+)`", text))


def named(heading: str) -> set[str]:
    """Returns the names in the first column of a table."""
    return set().union(*(code(row[0]) for row in table(heading)))


@pytest.fixture
def namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What the code of a document may find: a small graph, and runs of one epoch."""
    rng = np.random.default_rng(0)
    masks = {f"{split}_mask": torch.arange(60) % 3 == i for i, split in enumerate(("train", "val", "test"))}
    edges, classes = torch.tensor(rng.integers(0, 60, (2, 200))), torch.tensor(rng.integers(0, 3, 60))
    data = Data(torch.tensor(rng.normal(size=(60, 5)), dtype=torch.float32), edges, y=classes, **masks)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gnnkit, "train", functools.partial(gnnkit.train, overrides=QUICK))
    with within_process():
        yield {"__name__": "document", "data": data, "graph": Graph.from_pyg(data)}


def programs() -> Iterator[tuple[str, str]]:
    """Names what runs as one program: a section of a document, or a whole page."""
    for name in ("README.md", "CONTRIBUTING.md"):
        yield from ((name, title) for title, text in sections(name).items() if blocks(text))
    yield from ((name, "") for name in SITE if blocks(TEXTS[name]))


def given(page: str) -> set[str]:
    """Returns what the code of a page may find there, as the page itself says."""
    said = [paragraph for paragraph in page.split("\n\n") if paragraph.startswith("The code ")]
    return {name for name in ("graph", "data") if any(f"`{name}`" in paragraph for paragraph in said)}


# Programs without a second of training by default, and one of README that trains.
@pytest.mark.slow
@few(
    "name,title",
    list(programs()),
    default=[
        ("README.md", "Your own graph"),
        *(("CONTRIBUTING.md", title) for title in ("A program", "A task", "An exchange of rows")),
        *((f"docs/howto/{page}.md", "") for page in ("experiments", "keys", "lightning", "loader", "plugin")),
    ],
)
def test_code_in_documents_runs(
    name: str, title: str, namespace: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = sections(name)[title] if title else TEXTS[name]
    packages.install(packages.files_of(text), tmp_path, monkeypatch)
    for unsaid in {"graph", "data"} - given(text) if not title else ():
        del namespace[unsaid]
    for block in blocks(text):
        exec(compile(block, f"{name}: {title}", "exec"), namespace)
    named = {key: value for key, value in namespace.items() if key.startswith("result")}
    for value in [value for value in named.values() if isinstance(value, gnnkit.Result)]:
        assert 0 <= value["test_accuracy"] <= 1


@pytest.mark.exhaustive  # layers of PyG train by default in tests/training
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["vertex_centric", "individual_sample"])
def test_the_model_that_calls_layers_of_pyg_trains(strategy: str, namespace: dict[str, Any]) -> None:
    exec(blocks(TEXTS["docs/howto/own-model.md"])[-1], namespace)
    sampler = {"sampler": {"name": "neighbor", "fanouts": [3, 3]}} if strategy == "individual_sample" else {}
    result = gnnkit.train(namespace["graph"], strategy=strategy, model=namespace["Sage"], workers=2, **sampler)
    assert np.isfinite(result["train_loss"])


def all_commands() -> list[list[str]]:
    """Lists the commands of all documents, each once."""
    results = [command for name in (*FOR_USERS, "CONTRIBUTING.md") for command in commands(name)]
    return [command for place, command in enumerate(results) if command not in results[:place]]


@functools.cache
def smallest() -> str:
    """Returns the configuration of a run that a command may continue."""
    return json.dumps(config.compose(["strategy=vertex_centric"]))


@pytest.mark.slow
@few("arguments", [pytest.param(all_command, id=" ".join(all_command)) for all_command in all_commands()], default=7)
def test_commands_are_accepted(arguments: list[str], tmp_path: Path) -> None:
    if arguments[0].startswith("--"):
        assert main(arguments) == 0
    else:
        overrides = [argument for argument in arguments if argument != "trainer.resume=RUN"]  # there is no such run
        if "RUN" in " ".join(overrides):
            (tmp_path / "config.yaml").write_text(smallest())
            (tmp_path / "model.safetensors").touch()
        overrides = [argument.replace("checkpoint=RUN", f"checkpoint='{tmp_path}'") for argument in overrides]
        checked = check(Order(settings.settle(compose_once(config.with_run(overrides))))).settings
        assert checked.workers >= 1


def sweeps() -> list[list[str]]:
    """Lists the arguments of every `gnnkit -m`, each once."""
    lines = [line for name in FOR_USERS for line in TEXTS[name].splitlines()]
    return [fromkey.split()[2:] for fromkey in dict.fromkeys(lines) if fromkey.startswith("    gnnkit -m ")]


@pytest.mark.slow
@few("arguments", [pytest.param(sweep, id=" ".join(sweep)) for sweep in sweeps()], default=3)
def test_sweeps_are_accepted(arguments: list[str]) -> None:
    overrides, _ = config.split(arguments)
    fixed_keys, swept = spaces(overrides)
    assert swept
    fixed_keys = [text for text in fixed_keys if config.key_of(text).partition(".")[0] != "launcher"]  # of the jobs
    for end in (0, 1):
        job = [*fixed_keys, *(f"{space.key}={space.ends[end]}" for space in swept)]
        check(Order(settings.settle(compose_once(job))))


def test_every_experiment_sweeper_and_launcher_is_in_a_table() -> None:
    assert named("`experiment=`") == set(plugins.options("experiment"))
    cells = " ".join(row[1] for row in table("key"))
    for part in config.HYDRA_PARTS:
        for name in config.hydra_options(part):
            assert f"`{name}`" in cells
            assert {key.name for key in keys.read(config.hydra_section(part), name).keys} - {"cluster"} <= {
                name.removeprefix(f"hydra.{part}.") for name in code(cells)
            }


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Run folders of the first command of README on a small graph, and a program."""
    folder = tmp_path_factory.mktemp("runs")
    first = commands("README.md")[0]
    assert first == ["+strategy=vertex_centric", "partition=2d"]
    with pytest.MonkeyPatch.context() as patch, within_process():
        patch.chdir(folder)
        assert main([*first, *SMALL, "comm=threads", "output=first", EVERYTHING]) == 0
        assert main([*first, *SMALL, "comm=threads", "model=pagerank", "output=program"]) == 0
    return {name: folder / name for name in ("first", "program")}


@pytest.mark.slow
def test_the_files_of_a_run_are_those_of_the_table(runs: dict[str, Path]) -> None:
    results = {path.name for path in runs["first"].iterdir()} | {path.name for path in runs["program"].iterdir()}
    files = named("file") - {"labels.json"}  # of weighted classes and scaled numbers
    assert {name.split("/")[0] for name in files} == results
    for name in files - {"values.npy"}:
        assert (runs["first"] / name).exists(), name
    assert (runs["program"] / "values.npy").exists()


@pytest.mark.slow
def test_the_fields_of_a_result_are_those_of_the_table(runs: dict[str, Path]) -> None:
    result = json.loads((runs["first"] / "result.json").read_text())
    described = set().union(*(code(cell) for row in table("field") for cell in row))
    (balance,) = (row for row in table("field") if row[0] == "`balance`")
    assert named("field") <= set(result) <= described
    assert set(result["balance"]) == code(balance[1])
    (output,) = blocks(TEXTS["README.md"], "text")
    assert set(re.findall(r"^  (\w+)  ", output, re.MULTILINE)) <= set(result)


KINDS = {
    "strategy": lambda: plugins.options("strategy"),
    "sampler": lambda: set(plugins.names("sampler")) - plugins.PACKAGES["sampler"].keys(),
    "partition": lambda: plugins.options("partition"),
    "sync": lambda: plugins.names("sync"),
    "task": lambda: plugins.names("task"),
    "logger": lambda: plugins.options("logger"),
    "callback": lambda: plugins.names("callback"),
    "job": lambda: plugins.names("job"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_tables_name_what_is_installed(kind: str) -> None:
    assert named(f"`{kind}=`") == set(KINDS[kind]()) - EXAMPLES


@pytest.mark.parametrize("kind", plugins.KINDS)
def test_every_option_is_named(kind: str) -> None:
    text = "".join(TEXTS[name] for name in FOR_USERS)
    said = {name for name in plugins.options(kind) if f"`{name}`" in text or f"{kind}={name}" in text}
    assert said == set(plugins.options(kind)) - EXAMPLES


@pytest.mark.slow
def test_every_choice_and_key_in_the_text_exists() -> None:
    text = re.sub(r"\]\([^)]*\)", "]", "\n".join(prose(name) for name in FOR_USERS))
    for kind, name in re.findall(rf"(?<![./\w])({'|'.join(plugins.KINDS)})=(\w[\w.]*)", text):
        assert name in plugins.options(kind), f"{kind}={name}"
    existing_keys = {
        f"{section}.{key.name}"
        for section in config.SECTIONS
        for option in plugins.options(section)
        for key in [*keys.read(section, option).keys, *keys.shared_keys(section)]
    }
    existing_keys |= {f"task.{name}" for name in plugins.TASK_KEYS}
    mentioned = set(re.findall(rf"(?<![\w./])((?:{'|'.join(config.SECTIONS)})\.[a-z_]+)\b(?![.(])", text))
    assert mentioned <= existing_keys | {"partition.nodes", "partition.grid", "model.safetensors", "partition.json"}


def test_readme_is_short_and_leads_to_every_page() -> None:
    assert TEXTS["README.md"].count("\n") <= 200
    reached = {f"docs/{page.partition('#')[0]}" for page in pages("docs/index.md")}
    assert set(SITE) - reached == {"docs/index.md"}


def test_the_first_page_of_the_site_says_what_readme_says() -> None:
    readme, index = TEXTS["README.md"], TEXTS["docs/index.md"]
    assert readme.partition("\n## ")[0].replace("docs/picture.svg", "picture.svg") == index.partition("\n## ")[0]
    assert commands("docs/index.md") == commands("README.md")[:1]
    assert [page.removeprefix("docs/") for page in pages("README.md")] == [
        page.removeprefix("../") for page in pages("docs/index.md")
    ]


def pages(name: str) -> list[str]:
    """Lists the links of the table of pages."""
    return re.findall(r"\]\(([^)]+)\)", sections(name)["Documentation"].partition("\n\n`uv")[0])


def messages() -> list[str]:
    """Lists what the package may say, with `...` for each value in it."""
    results = []
    modules = [*(ROOT / "gnnkit").rglob("*.py"), *ROOT.glob("plugins/*/gnnkit_*/**/*.py")]
    for path in [*modules, ROOT / "packaging/gnnkit_build.py"]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                results.append(
                    "".join(str(value.value) if isinstance(value, ast.Constant) else "..." for value in node.values)
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                results.append(node.value)
    return results


@pytest.mark.exhaustive
@pytest.mark.slow  # reads all sources
def test_every_message_of_the_page_of_errors_can_be_said() -> None:
    quotes = re.findall(r"^### `(.*)`$", TEXTS["docs/howto/troubleshooting.md"], re.MULTILINE)
    assert len(quotes) >= 30
    said = "\n".join(messages())
    patterns = {text: ".*".join(map(re.escape, text.split("..."))) for text in quotes}
    assert [text for text in quotes if not re.search(patterns[text], said)] == []


def test_the_page_of_installing_says_what_the_project_needs() -> None:
    page, project = TEXTS["docs/howto/install.md"], (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    requirements = tomllib.loads(project)["project"]
    assert requirements["requires-python"] == ">=3.11,<3.14"
    assert "Python 3.11 to 3.13" in page
    extras = set(requirements["optional-dependencies"])
    assert set(re.findall(r"`gnnkit\[(\w+)\]`", page)) == extras
    rust = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))["workspace"]["package"]["rust-version"]
    assert f"Rust {rust} or later" in page
    (most,) = re.findall(r"MAX_MIB = (\d+)", (ROOT / "tests/apart/test_wheel.py").read_text(encoding="utf-8"))
    assert f"below {most} MB" in page


def test_every_page_is_in_the_list_of_the_site() -> None:
    listing = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert {page.removeprefix("docs/") for page in SITE} <= listing


def test_the_picture_of_readme_is_that_of_the_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    pictures = importlib.import_module("pictures")
    assert (ROOT / "docs/picture.svg").read_text(encoding="utf-8") == f"{pictures.readme()}\n"
    assert (ROOT / "docs/types.svg").read_text(encoding="utf-8") == f"{pictures.types()}\n"


def test_the_first_page_shows_a_small_picture_of_a_result() -> None:
    for name, path in (("README.md", "docs/result.svg"), ("docs/index.md", "result.svg")):
        assert re.search(rf"^!\[\w[^]]+\]\({path}\)$", TEXTS[name], re.MULTILINE)
    picture = (ROOT / "docs/result.svg").read_text(encoding="utf-8")
    assert len(picture) < 60_000
    assert "prefers-color-scheme:dark" in picture
    assert ElementTree.fromstring(picture).get("aria-label")


def test_every_kind_of_plugin_and_every_check_is_described() -> None:
    text = TEXTS["CONTRIBUTING.md"]
    assert {name for name in dir(gnnkit.testing) if name.startswith("check_") and f"`{name}`" not in text} == set()
    assert {kind for kind in plugins.KINDS if f"`gnnkit.{kind}`" not in text} == set()


@pytest.mark.parametrize("name", ["gnnkit-owned-seeds", "template"])
def test_the_example_plugins_are_as_long_as_their_tables_say(name: str) -> None:
    text = TEXTS["CONTRIBUTING.md"]
    package = "gnnkit_template" if name == "template" else name.replace("-", "_")
    rows = re.findall(rf"^\| `({package}/[^`]*)` \| (\d+) \|", text, re.MULTILINE)
    assert len(rows) >= 2
    for path, lines in rows:
        assert len((ROOT / "plugins" / name / path).read_text().splitlines()) == int(lines), path


def test_the_strategy_in_contributing_is_the_plugin() -> None:
    block = next(
        block for text in sections("CONTRIBUTING.md").values() for block in blocks(text) if "OwnedSeeds" in block
    )
    plugin = (ROOT / "plugins/gnnkit-owned-seeds/gnnkit_owned_seeds/__init__.py").read_text(encoding="utf-8")
    assert plugin.partition('"""\n\n')[2] == block


@pytest.mark.parametrize("name", [*DOCUMENTS, *SITE])
def test_lines_of_prose_end_at_88_columns(name: str) -> None:
    long = [line for line in prose(name).splitlines() if len(line) > 88 and not line.startswith(("|", "    "))]
    assert long == []


@pytest.mark.parametrize("name", [*DOCUMENTS, *SITE])
def test_links_lead_somewhere(name: str) -> None:
    links = [link.strip().partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", prose(name))]
    folder = (ROOT / name).parent
    assert [link for link in links if "://" not in link and not (folder / link).exists()] == []


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.long("trains for 100 epochs")
def test_the_first_run_is_as_accurate_as_the_readme_says(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    match = re.search(r"^ +test_accuracy +([\d.]+)$", text, re.MULTILINE)
    assert match is not None
    output = f"output={tmp_path / 'run'}"
    assert main(["+strategy=vertex_centric", "partition=2d", "comm=threads", "report=false", output]) == 0
    result = json.loads((tmp_path / "run/result.json").read_text(encoding="utf-8"))
    assert result["test_accuracy"] == pytest.approx(float(match[1]), abs=0.03)  # Python's library differs by version
