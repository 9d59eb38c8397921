"""The page without a browser: what is read, what is refused, what is drawn."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from gnnkit_report import timeline
from gnnkit_report.charts import MOST_CELLS, MOST_POINTS, matrix, thinned
from gnnkit_report.learning import drawings as learning_drawings
from gnnkit_report.page import asset
from gnnkit_report.partition import drawings as partition_drawings
from gnnkit_report.run import RunFiles, read_run
from gnnkit_report.run_page import write
from gnnkit_report.suggestions import suggestions

from gnnkit import config, plugins
from gnnkit.config import keys
from gnnkit.errors import UserError
from gnnkit.result.result import Result
from tests.report.folders import HOSTILE, run_folder


class Elements(HTMLParser):
    """The elements and addresses of a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.addresses: list[str | None] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "xlink:href", "action")]
        assert not any(name.startswith("on") for name, _ in attrs)


@pytest.mark.slow
def test_a_page_is_one_file_with_no_script_but_ours_and_no_addresses(tmp_path: Path) -> None:
    page = write(read_run(run_folder(tmp_path / "run", text=HOSTILE)), tmp_path)
    found, text = Elements(page), page.read_text(encoding="utf-8")
    assert not found.names & {"link", "img", "iframe", "object", "embed", "base", "form"}
    script = asset("uPlot.min.js") + asset("script.js")
    assert re.findall("<script.*?</script>", text, re.S) == [f"<script>{script}</script>"]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert "default-src 'none'" in text
    assert f"script-src 'sha256-{digest}'" in text
    assert "connect-src" not in text
    assert found.addresses == []
    assert set(re.findall(r"url\(.*?\)", text)) <= {"url(#arrow)"}
    assert "@import" not in text
    assert len(text) < 200_000


@pytest.mark.slow
def test_the_page_lists_classes_and_changes_of_the_shares(tmp_path: Path) -> None:
    text = write(read_run(run_folder(tmp_path / "run")), tmp_path).read_text(encoding="utf-8")
    assert "Test rows by class" in text
    assert "Changes by leader.rebalance" in text
    plain = run_folder(tmp_path / "plain", per_class=None, rebalanced=[])
    text = write(read_run(plain), tmp_path).read_text(encoding="utf-8")
    assert "Test rows by class" not in text
    assert "Changes by leader.rebalance" not in text


DAMAGE: dict[str, Callable[[Path], object]] = {
    "no result": lambda run: (run / "result.json").unlink(),
    "no JSON": lambda run: (run / "result.json").write_bytes(b"\x80\x04pickle"),
    "a list": lambda run: (run / "result.json").write_text("[]"),
    "deep": lambda run: (run / "result.json").write_text("[" * 100_000),
    "a pipe": lambda run: ((run / "result.json").unlink(), os.mkfifo(run / "result.json")),
    "a folder": lambda run: ((run / "result.json").unlink(), (run / "result.json").mkdir()),
    "large": lambda run: os.truncate(run / "result.json", 1 << 30),
    "no run": shutil.rmtree,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_folder_without_a_result_is_refused_in_one_line(tmp_path: Path, damage: str) -> None:
    folder = run_folder(tmp_path / "run")
    DAMAGE[damage](folder)
    with pytest.raises(UserError) as error:
        read_run(folder)
    assert "result.json" in str(error.value)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.slow
def test_other_damaged_files_leave_a_note_and_the_rest_is_shown(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    with (folder / "epochs.jsonl").open("ab") as file:
        file.write(b'{"epoch": "x"}\n[]\n\xff\xfe\n{"epoch": 1e999, "train_loss": 1}\n{"epoch": 2')
    (folder / "partition.json").write_text("{")
    (folder / "config.yaml").unlink()
    (folder / "config.yaml").mkdir()
    run = read_run(folder)
    assert len(run.epochs) == 12
    assert [note.split()[0].rstrip(":") for note in run.notes] == [
        "epochs.jsonl",
        f"{folder}/partition.json",
        f"{folder}/config.yaml",
    ]
    text = write(run, folder).read_text(encoding="utf-8")
    assert "epochs.jsonl: 5 lines cannot be read" in text
    assert 'id="loss"' in text


WRONG: list[Any] = [None, "x", [], {}, [[1]], [[1, 2], [3]], [["x"]], {"rank": ["a"]}, -1, 1e999, True, [None], 10**400]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: repr(wrong)[:20])
def test_no_figure_of_any_wrong_type_breaks_a_page(tmp_path: Path, wrong: Any) -> None:
    folder = run_folder(tmp_path / "run")
    for name in ("result.json", "partition.json", "coordination.json"):
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(dict.fromkeys(content, wrong)))
    lines = [json.loads(line) for line in (folder / "epochs.jsonl").read_text().splitlines()]
    lines = [{**dict.fromkeys(line, wrong), "epoch": line["epoch"]} for line in lines]
    (folder / "epochs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert write(read_run(folder), folder).stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_long_run_of_many_ranks_makes_a_small_page_that_says_so(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", num_ranks=40, num_epochs=1500)
    run = read_run(folder)
    text = write(run, tmp_path).read_text(encoding="utf-8")
    assert len(text) < 1_000_000
    assert "The 10 busiest of 40 ranks." in text
    assert len(thinned([(float(x), 1.0) for x in range(1500)])) <= MOST_POINTS


def test_bars_are_as_long_as_the_seconds(tmp_path: Path) -> None:
    by_kind, by_rank, total = timeline.drawings(read_run(run_folder(tmp_path / "run")))
    widths = {note: share for _, _, parts in total.data["rows"] for share, _, note in parts}
    seconds = {note: float(note.split()[-2]) for note in widths}
    assert len(widths) == 12
    assert widths == {note: pytest.approx(100 * value / (12 * 0.11 * 3), abs=0.1) for note, value in seconds.items()}
    numbers = [json.loads(chart.data["numbers"])["series"] for chart in (by_kind, by_rank)]
    assert {name: values[0] for name, _, values in numbers[0]} == {
        "compute": 0.06, "exchange": 0.12, "sync": 0.02, "wait": 0.02
    }  # fmt: skip
    assert {name: values[11] for name, _, values in numbers[1]} == {"rank 0": 0.03, "rank 1": 0.06, "rank 2": 0.09}


def test_a_sample_says_that_it_is_one(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    partition = json.loads((folder / "partition.json").read_text())
    partition["sample"]["whole"] = False
    (folder / "partition.json").write_text(json.dumps({**partition, "num_nodes": 9000, "num_edges": 99_000}))
    captions = [figure.caption for figure in partition_drawings(read_run(folder))]
    assert any("A sample: 40 of 9,000 nodes" in caption for caption in captions)
    assert any("Counted on a sample of 40 of 99,000 edges" in caption for caption in captions)


def curves_of(run: RunFiles) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for figure in learning_drawings(run):
        if figure.kind == "curves":
            found[figure.name] = json.loads(figure.data["numbers"])
    return found


def test_each_split_has_one_colour_in_all_charts(tmp_path: Path) -> None:
    found = curves_of(read_run(run_folder(tmp_path / "run")))
    assert list(found) == ["loss", "figures_accuracy"]
    tints = {(name.partition("_")[0], tint) for chart in found.values() for name, tint, *_ in chart["series"]}
    assert len(tints) == 3  # train, val, test
    assert len({tint for _, tint in tints}) == 3
    assert not {tint for _, tint in tints} & set(timeline.COLOURS.values())


@pytest.mark.parametrize(
    ("more", "epoch", "word"),
    [
        ({}, 6, "last model was saved"),  # 0.3 of the evaluations 0.12, 0.3, 0.24, 0.06
        ({"best_epoch": 9, "best_value": 0.24}, 9, "its model was saved"),
        ({"main_figure": {"name": "val_accuracy", "lower_is_better": True}}, 12, "last model was saved"),
    ],
)
def test_charts_mark_the_best_epoch(tmp_path: Path, more: dict[str, Any], epoch: int, word: str) -> None:
    run = read_run(run_folder(tmp_path / "run", **more))
    assert all(chart["mark"] == [epoch, f"best epoch {epoch}"] for chart in curves_of(run).values())
    assert all(word in figure.caption for figure in learning_drawings(run) if figure.kind == "curves")
    assert curves_of(read_run(run_folder(tmp_path / "old", main_figure=None)))["loss"]["mark"] is None


def test_the_picture_is_coloured_by_rank_class_and_prediction(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    (figure, *_) = partition_drawings(read_run(folder))
    assert [colouring.name for colouring in figure.data["colourings"]] == ["rank", "class", "prediction"]
    notes = [node.note for node in figure.data["nodes"]]
    assert notes[:2] == ["rank 0, no class, a", "rank 1, a, pystdlib"]
    assert figure.data["colourings"][0].colours[:4] == ["c0", "c1", "c2", "c0"]
    (folder / "predictions.npy").write_bytes(b"\x93NUMPY")
    run = read_run(folder)
    assert any("predictions.npy" in note for note in run.notes)
    assert [colouring.name for colouring in partition_drawings(run)[0].data["colourings"]] == ["rank", "class"]


@pytest.mark.slow
def test_the_layouts_of_the_leader_are_a_table(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", text="other")
    text = write(read_run(folder), folder).read_text(encoding="utf-8")
    listed = text.split("Layouts that the leader compared")[1].split("</table>")[0]
    assert re.findall(r"<tr><th>(.*?)</th>", listed.split("<tbody>")[1]) == ["chosen", "1d", "other"]
    cells = re.findall(r'class="number">([^<]*)</td>', listed)
    assert cells == [*["[3, 1, 1]", "7", "1.5", "1.25"] * 2, "[1, 1, 3]", "9", "1", ""]


@pytest.mark.slow
def test_what_was_predicted_stands_beside_what_came(tmp_path: Path) -> None:
    figures = ("seconds_per_epoch", "memory", "bytes_sent")
    told, came = (dict(zip(figures, values, strict=True)) for values in ((0.2, 900, 50), (0.25, 1000, None)))
    folder = run_folder(tmp_path / "auto", predicted=told, measured=came)
    text = write(read_run(folder), folder).read_text(encoding="utf-8")
    listed = text.split("Predicted and measured")[1].split("</table>")[0]
    assert re.findall(r'class="number">([^<]*)</td>', listed) == ["0.2", "900", "50", "0.25", "1,000", "none"]
    named = run_folder(tmp_path / "named")
    assert "Predicted and measured" not in write(read_run(named), named).read_text(encoding="utf-8")


def test_suggestions_follow_from_the_figures(tmp_path: Path) -> None:
    def said(name: str, **result: Any) -> str:
        phases = {"training": 99.0, **result.pop("phases", {})}
        return "\n".join(suggestions(read_run(run_folder(tmp_path / name, num_ranks=1, phases=phases, **result))))

    assert "Exchange takes 55%" in (exact := said("exchange"))
    assert "use exchange=quantized" in exact
    assert "use exchange=quantized" not in (quantized := said("quantized", exchange="quantized", nodes="metis"))
    assert "Exchange takes 55% of the time: use fewer workers." in quantized
    assert "2.30 times the mean work" in said("uneven")
    assert "times the mean work" not in said("even", balance={"work_mean": 1.01})
    assert "overfits" in said("over")
    assert "underfits" in said("under", train_accuracy=0.5, val_accuracy=0.49)
    assert "fits" not in said("right", train_accuracy=0.8, val_accuracy=0.79)
    assert "3 steps were skipped" in said("nan", skipped_steps=3)
    assert "computed slower" not in said("no stragglers", stragglers={})
    short = said("short", phases={"training": 0.6})
    assert "overfits" in short
    assert not any(text in short for text in ("Exchange", "mean work", "computed slower")), "speed pays on long runs"


def test_a_best_epoch_at_the_end_suggests_more_epochs(tmp_path: Path) -> None:
    def advice(name: str, **result: Any) -> str:
        folder = run_folder(tmp_path / name, best_figure="val_mrr", best_value=0.5, **result)
        (folder / "config.yaml").write_text("trainer: {max_epochs: 150}")
        return "\n".join(suggestions(read_run(folder)))

    assert "val_mrr was best in epoch 140 of 150: more epochs may help, trainer.max_epochs=300." in advice(
        "late", best_epoch=140
    )
    assert "max_epochs" not in advice("early", best_epoch=130)
    assert "max_epochs" not in advice("ended", best_epoch=140, stopped="trainer.monitor=val_mrr: ended")


def test_one_worker_has_no_traffic_and_no_other_layouts(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "one", world_size=1, words_gathered=0, bytes_sent=0, task="link_prediction")
    text = write(read_run(folder), folder).read_text(encoding="utf-8")
    assert "words_gathered" not in text
    assert "on all edges of a split" in text
    assert "words_gathered" not in Result("train", {"world_size": 1, "words_gathered": 0}).table()
    assert "words_gathered" in Result("train", {"world_size": 2, "words_gathered": 0}).table()


def test_what_was_tried_already_is_not_suggested(tmp_path: Path) -> None:
    def said(name: str, config: str) -> str:
        folder = run_folder(tmp_path / name)
        (folder / "config.yaml").write_text(config)
        return next(line for line in suggestions(read_run(folder)) if "overfits" in line)

    plain = said("plain", "model: {dropout: 0.5}\ntrainer: {weight_decay: 0, patience: null}")
    assert "try model.dropout=0.7 or trainer.weight_decay=0.0005 or trainer.patience=5." in plain
    tried = said("tried", "model: {dropout: 0.8}\ntrainer: {weight_decay: 0.1, patience: 3}")
    assert "try a smaller model.hidden" in tried
    assert "weight_decay" not in tried
    assert "weight_decay" in said("hostile", "- [x")


def test_suggestions_name_keys_that_exist(tmp_path: Path) -> None:
    known = {key.name for key in keys.read("", "config").keys} | set(config.SECTIONS) | {"partition.nodes"}
    for section in config.SECTIONS:
        for option in plugins.options(section):
            known |= {f"{section}.{key.name}" for key in [*keys.read(section, option).keys, *keys.shared_keys(section)]}
    more = {
        "skipped_steps": 1,
        "lost_workers": [1],
        "exact": False,
        "seconds_setup": 99.0,
        "phases": {"training": 10.0},
    }
    runs = [
        read_run(run_folder(tmp_path / f"{strategy}{accuracy}", **more, strategy=strategy, train_accuracy=accuracy))
        for strategy in ("vertex_centric", "individual_sample")
        for accuracy in (0.5, 0.99)
    ]
    text = "\n".join(line for run in runs for line in suggestions(run))
    named = set(re.findall(r"\b([a-z_]+(?:\.[a-z_]+)?)=", text)) | set(
        re.findall(r"\b((?:strategy|sampler|trainer|model)\.[a-z_]+)", text)
    )
    assert len(named) > 8
    assert named <= known


def test_a_very_long_run_is_read_up_to_a_bound_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run_folder(tmp_path / "run")
    whole = read_run(folder)
    monkeypatch.setattr("gnnkit_report.run.MAX_BYTES", (folder / "epochs.jsonl").stat().st_size // 2)
    run = read_run(folder)
    assert 0 < len(run.epochs) < len(whole.epochs)
    assert any(re.fullmatch(r"epochs\.jsonl: only the first [\d,]+ bytes are shown", note) for note in run.notes)


def test_seconds_of_other_numbers_of_ranks_are_left_out() -> None:
    epoch = {"seconds_compute": [1, 2], "seconds_exchange": [0, 0], "seconds_sync": [0, 0], "seconds_wait": [3, 4]}
    assert [rank["wait"] for rank in timeline.seconds(epoch)] == [3, 4]
    assert timeline.seconds({**epoch, "seconds_wait": [3]}) == []


def test_a_picture_without_classes_is_coloured_by_rank_alone(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    found = json.loads((folder / "partition.json").read_text())
    del found["sample"]["class"]
    (folder / "partition.json").write_text(json.dumps(found))
    (drawn,) = [figure for figure in partition_drawings(read_run(folder)) if figure.kind == "network"]
    assert [colouring.name for colouring in drawn.data["colourings"]] == ["rank"]


def test_the_first_cards_are_the_main_metric_of_both_splits(tmp_path: Path) -> None:
    figures = {
        f"{split}_{name}": 0.5 for split in ("val", "test") for name in ("accuracy", "macro_f1", "average_precision")
    }
    main = {"name": "val_average_precision", "lower_is_better": False}
    run = run_folder(tmp_path / "run", num_ranks=1, main_figure=main, **figures)
    page = write(read_run(run), tmp_path).read_text(encoding="utf-8")
    cards = re.sub("<wbr>", "", page.split('class="cards"')[1].split("</div></div>")[0])
    assert re.findall(r"<span>(\w+)</span>", cards)[:4] == [
        "val_average_precision", "test_average_precision", "val_accuracy", "test_accuracy"
    ]  # fmt: skip
    assert "vertex_centric on 1 worker, partition 2d" in page


def test_a_large_matrix_has_shades_and_tooltips_only() -> None:
    def texts(count: int) -> set[str]:
        cells = [[1.0] * count for _ in range(count)]
        chart = matrix("words", "", "", cells, [str(rank) for rank in range(count)], ("from", "to"))
        return {text for _, row in chart.data["rows"] for _, note, text in row if note.startswith("from ")}

    assert texts(MOST_CELLS) == {"1"}
    assert texts(MOST_CELLS + 1) == {""}


SHOP = {
    "node_types": [["users", 300], ["orders", 14465], ["products", 60]],
    "relations": [["orders", "sku", "products"], ["orders", "buyer", "users"], ["users", "friend", "users"]],
    "edges": [28001, 14465, 7],
}


def test_node_types_and_relations_are_drawn_and_listed(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    (folder / "partition.json").write_text(json.dumps({"schema": SHOP}))
    drawn = partition_drawings(read_run(folder))[0]
    assert [node.label for node in drawn.data["nodes"]] == ["users", "orders", "products"]
    assert [*drawn.data["paths"]] == [
        "orders sku products: 28,001 edges", "orders buyer users: 14,465 edges", "users friend users: 7 edges"
    ]  # fmt: skip
    text = write(read_run(folder), folder).read_text(encoding="utf-8")
    assert all(f"<th>{title}</th>" in text for title in ("type", "from"))
    assert ">14,465<" in text


WRONG_SCHEMAS: list[Any] = [
    None,
    {"node_types": 3, "relations": "x", "edges": None},
    {"node_types": [["a", 1]], "relations": [["a", "r", "a"]], "edges": [1]},
    {"node_types": [["a", 1], ["b", None]], "relations": [["a", "r", "c"], ["a", "r"], 7], "edges": [1, "x", 3]},
    {"node_types": [["a", 1], []], "relations": [[["a"], "r", {}]], "edges": [None]},
]


@pytest.mark.parametrize("schema", WRONG_SCHEMAS)
def test_wrong_schemas_break_no_page(tmp_path: Path, schema: Any) -> None:
    folder = run_folder(tmp_path / "run")
    (folder / "partition.json").write_text(json.dumps({"schema": schema}))
    assert not any(drawn.data.get("paths") for drawn in partition_drawings(read_run(folder)))
    write(read_run(folder), folder)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_names_of_a_million_characters_make_no_large_page(tmp_path: Path) -> None:
    name = "x" * 1_000_000
    folder = run_folder(tmp_path / "run", text=name)
    (folder / "classes.json").write_text(json.dumps([name, "b", "c"]))
    assert len(read_run(folder).class_names[0]) < 200
    assert write(read_run(folder), folder).stat().st_size < 4_000_000
