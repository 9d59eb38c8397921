"""Names from users' data stay data in files, lines, pages and commands."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest
from gnnkit_plan.init import KeyChoice, _as_script, _as_yaml
from gnnkit_report.page import printable as on_page
from omegaconf import OmegaConf

import gnnkit
from gnnkit.config import compose
from gnnkit.config.keys import plain
from gnnkit.graph import Graph
from gnnkit.graph.unfit_columns import ignore_key
from gnnkit.utils.documents import parse_yaml
from gnnkit.utils.ranges import file_name, one_line
from tests.runs import BARE

PIECES = [
    "\n", "\r", "\t", "\x1b[2J", "\x00", "\x07", "\x85", "\u2028", "\u2029", "\u202e", "\u2066", "\ufeff", "\u200b", "\xa0", "\ud800",
    "#", " #", ": ", ":", "- ", "? ", "'", '"', "\\", "${oc.env:HOME}", "${", "{", "}", "[", "]", ",", "&a", "*a", "!!python/name:os.system",
    "|", ">", "%", "@", "`", " ", "  ", "---", "...", "null", "true", "~", "1e3", "0x1f", "2001-01-01", "=", "<<", "\U0001f600", "\U000e0001",
    "é", "seed: 77", "upload: memory://evil", "../", "/", "a", "B", "_",
]  # fmt: skip
NUM_NAMES = 10_000


def hostile_names(count: int) -> list[str]:
    draw = random.Random(0)
    return ["".join(draw.choices(PIECES, k=draw.randint(1, 6))) for _ in range(count)]


NAMES = hostile_names(NUM_NAMES)
BASE = [
    KeyChoice("dataset", "edges"),
    KeyChoice("strategy", "vertex_centric"),
    KeyChoice("model", "sage"),
    KeyChoice("task", "node_classification"),
]


@pytest.mark.exhaustive
def test_a_written_configuration_reads_back_to_its_keys() -> None:
    for first in range(0, NUM_NAMES, 50):
        names = NAMES[first : first + 50]
        reason = "; ".join(names)
        choices = [
            KeyChoice("dataset.ignore", names, reason),
            KeyChoice("dataset.label", names[0], reason),
            KeyChoice("seed", 3, reason),
        ]
        text = _as_yaml([*BASE, *choices], None, why_in_command := one_line(f"gnnkit {reason}"))
        assert why_in_command.isprintable()
        assert all(line.isprintable() for line in text.split("\n"))
        text.encode()
        content = parse_yaml(text, "mine.yaml")
        assert sorted(content) == ["dataset", "defaults", "seed"]
        resolved = OmegaConf.to_container(
            OmegaConf.create({"dataset": content["dataset"], "seed": content["seed"]}), resolve=True
        )
        assert resolved == {"dataset": {"ignore": names, "label": names[0]}, "seed": 3}


def test_a_written_script_passes_the_names_unchanged() -> None:
    for first in range(0, NUM_NAMES, 500):
        names = NAMES[first : first + 500]
        text = _as_script([*BASE, KeyChoice("dataset.ignore", names, names[0])])
        text.encode()
        arguments = text[text.index("gnnkit.train(") :].partition("\nprint(")[0].replace("model=Model,", "")
        passed = eval(arguments.replace("gnnkit.train", "dict", 1))
        assert passed["dataset"]["ignore"] == names


def test_a_name_is_one_line_that_shows_every_character() -> None:
    for name in NAMES:
        line = one_line(name)
        assert line.isprintable()
        assert parse_yaml(plain(name), "text") == name
        assert plain(name).isprintable()
        assert not set(str(on_page(name))) & set("\x1b\x00\u202e\u2066\ud800")


def test_file_names_are_distinct_and_stay_in_their_folder(tmp_path: Path) -> None:
    names = {file_name(name) for name in set(NAMES)}
    assert len(names) == len(set(NAMES))
    for name in list(names)[:200]:
        (tmp_path / f"{name}.npy").write_text("")
    assert len([path for path in tmp_path.iterdir() if path.is_file()]) == 200
    assert file_name("paper") == "paper"


@pytest.mark.exhaustive
def test_the_command_that_leaves_columns_out_names_exactly_these(tmp_path: Path) -> None:
    names = [name for name in NAMES if "\x00" not in name and "\ud800" not in name and "${" not in name][:300]
    script = "".join(f"printf '%s\\0' {ignore_key([name])}\n" for name in names)
    (tmp_path / "script").write_text(script)
    shell = subprocess.run(["bash", tmp_path / "script"], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"})
    words = shell.stdout.decode().split("\0")[:-1]
    assert len(words) == len(names)
    for word, name in zip(words[:40], names[:40], strict=True):
        config = compose(["strategy=vertex_centric", "dataset=edges", "dataset.root=x", word])
        assert config["dataset"]["ignore"] == [name], word


@pytest.mark.slow
def test_a_run_prints_a_column_name_in_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    nodes = pa.table({"id": range(6), "label": list("ababab"), "x\nseed: 77": list("abcabc")})
    graph = Graph.from_tables(pa.table({"src": range(5), "dst": range(1, 6)}), nodes).draw_split([0.5, 0.5, 0])
    gnnkit.train(graph, strategy="vertex_centric", workers=1, comm="threads", trainer={"max_epochs": 1}, folder=tmp_path / "run", **BARE)  # fmt: skip
    output = capfd.readouterr()
    assert "value of text (x seed: 77: 3 values" in output.out + output.err
    assert not [line for line in (output.out + output.err).splitlines() if line.startswith("seed: 77")]
