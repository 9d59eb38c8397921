from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnnkit import plugins
from gnnkit.config import keys
from gnnkit.errors import UserError
from gnnkit.model.gat import GAT
from gnnkit.model.gcn import GCN
from gnnkit.model.gin import GIN, GINE
from gnnkit.model.label_propagation import LabelPropagation
from gnnkit.model.pagerank import PageRank
from gnnkit.model.sage import GraphSAGE
from gnnkit.strategy.individual_sample import IndividualSample
from gnnkit.strategy.vertex_centric import VertexCentric
from gnnkit.sync.leader import LeaderSync
from gnnkit.utils import ranges
from gnnkit.utils.ranges import (
    local_path,
    one_of,
    parse_scalar,
    real,
    share,
    shown_names,
    switch,
    unknown,
    unknown_key,
    whole,
)


def error_of(call: Callable[[], Any]) -> str:
    with pytest.raises(UserError) as caught:
        call()
    return str(caught.value)


def test_whole_numbers_of_numpy_are_taken_and_become_ints() -> None:
    assert type(whole("k", np.int32(3), 0, 3)) is int
    assert whole("k", 2**70) == 2**70


TEXT = ", got text, as ${oc.env:NAME} returns: write the number, or let the shell insert it with $NAME"


@pytest.mark.parametrize("value", [True, 1.0, np.float64(1), "1", None, math.nan, [1]])
def test_what_is_no_whole_number_is_refused(value: object) -> None:
    assert error_of(lambda: whole("k", value)).removesuffix(TEXT).endswith(" must be a whole number")


def test_text_that_spells_a_number_is_told_apart() -> None:
    with pytest.raises(UserError, match=r"^lr=0.01 must be a number above 0, got text, as \$\{oc.env:NAME\} returns: "):
        real("lr", "0.01", above=0)
    with pytest.raises(UserError, match=r"^n=3 must be a whole number of at least 1, got text"):
        whole("n", "3", 1)
    with pytest.raises(UserError, match=r"^n=x must be a whole number of at least 1$"):
        whole("n", "x", 1)


def test_text_that_spells_a_number_or_a_switch_is_read_and_no_other() -> None:
    words = ["3", "-3", "0.5", "1e-4", "2E3", "true", "false"]
    assert [parse_scalar(text) for text in words] == [3, -3, 0.5, 1e-4, 2000.0, True, False]
    assert type(parse_scalar("3")) is int
    for other in (
        "",
        "nan",
        "inf",
        "0x10",
        "1_000",
        "1,2",
        " 1",
        "1\n",
        "٣",
        "True",
        "null",
        "9" * 99,
        3,
        None,
        [1],
        ["true"],
    ):
        assert parse_scalar(other) is None, other


def test_limits_are_said_in_full() -> None:
    assert error_of(lambda: whole("k", 0, 1)) == "k=0 must be a whole number of at least 1"
    assert error_of(lambda: whole("k", 4, 1, 3)) == "k=4 must be a whole number from 1 to 3"
    assert error_of(lambda: real("k", 0, above=0, high=2)) == "k=0 must be a number above 0 and at most 2"
    assert error_of(lambda: share("k", 1)) == "k=1 must be a number of at least 0 and below 1"
    assert error_of(lambda: switch("k", 1)) == "k=1 must be true or false"
    assert error_of(lambda: one_of("k", 16, (32, 64))) == "k=16 must be 32 or 64"


def test_limits_themselves_are_taken_as_they_are_said() -> None:
    assert [whole("k", 1, 1, 3), whole("k", 3, 1, 3)] == [1, 3]
    assert [real("k", 0, 0), real("k", 2, above=0, high=2), share("k", 0)] == [0.0, 2.0, 0.0]
    assert [one_of("k", 32, (32, 64)), switch("k", False)] == [32, False]


@pytest.mark.parametrize("value", [True, "1", b"1", None, math.nan, math.inf, -math.inf, [1.0], 10**400, 1j])
def test_what_is_no_finite_number_is_refused(value: object) -> None:
    assert error_of(lambda: real("k", value)).removesuffix(TEXT).endswith(" must be finite")


def test_messages_are_one_short_line() -> None:
    line = error_of(lambda: whole("k", "a\nb" * 1000))
    assert "\n" not in line
    assert len(line) < 100


def test_names_that_do_not_exist_get_the_nearest_one() -> None:
    assert (
        str(unknown("k=maen", "maen", ["mean", "max"]))
        == "k=maen is not known: did you mean mean? there are: max, mean"
    )
    assert str(unknown("k=x", "x", [])) == "k=x is not known: there are: none"
    assert "did you mean gcn?" in str(unknown("model=gnc", "gnc", ["gat", "gcn", "gin"])), "transposed letters"


def test_keys_of_a_section_are_listed_and_others_are_not() -> None:
    keys = ["seed", "trainer", "trainer.lr", "trainer.max_epochs"]
    reason = "epochs is not known: did you mean trainer.max_epochs? python -m gnnkit --help lists all keys"
    assert str(unknown_key("epochs", keys)) == reason
    reason = "trainer.l is not known: did you mean trainer.lr? there are: trainer.lr, trainer.max_epochs"
    assert str(unknown_key("trainer.l", keys)) == reason


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("lr", "trainer.lr"),
        ("sed", "seed"),
        ("seed", "seed"),
        ("model.lr", "trainer.lr"),
        ("model.hiddn", "model.hidden"),
        ("trainr.hidden", "model.hidden"),
        ("hiden", "model.hidden"),
    ],
)
def test_keys_that_do_not_exist_get_the_nearest_one_of_any_section(key: str, nearest: str) -> None:
    known = ["seed", "model", "model.hidden", "model.seed", "trainer", "trainer.lr"]
    assert f"did you mean {nearest}?" in str(unknown_key(key, known))


def test_words_of_other_tools_stand_for_keys_and_names_that_exist() -> None:
    own_names = {"parts", *plugins.options("model")}
    for section in ("", "trainer", *plugins.KINDS):
        names = ["config"] if not section else ["default"] if section == "trainer" else plugins.options(section)
        own_names |= {key.name.rpartition(".")[2] for name in names for key in keys.read(section, name).keys}
    own_names |= {*plugins.KINDS}
    assert set(ranges.foreign_names()) <= own_names
    words = [word for words in ranges.foreign_names().values() for word in words]
    assert len(set(words)) == len(words)
    assert not set(words) & set(keys_at_the_top()), "a word of ours means something else"


def keys_at_the_top() -> list[str]:
    return [*plugins.KINDS, *(key.name for key in keys.read("", "config").keys if "." not in key.name)]


@pytest.mark.parametrize("model", [GCN, GraphSAGE, GAT, GIN, lambda a, b, **keys: GINE(a, b, 1, **keys)])
@pytest.mark.parametrize(
    ("key", "value"),
    [("hidden", -4), ("hidden", 2.5), ("num_layers", 0), ("num_layers", 10**6), ("dropout", math.nan), ("dropout", 1)],
)
def test_models_made_from_python_check_their_numbers(model: Callable[..., Any], key: str, value: Any) -> None:
    assert error_of(lambda: model(3, 2, **{key: value})).startswith(f"model.{key}={value} must be ")


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: GAT(3, 2, heads=True), "model.heads=True must be"),
        (lambda: GAT(3, 2, negative_slope=math.inf), "model.negative_slope=inf must be finite"),
        (lambda: GraphSAGE(3, 2, aggregator="min"), "model.aggregator=min is not known"),  # type: ignore[arg-type]
        (lambda: PageRank(damping=1), "model.damping=1 must be"),
        (lambda: PageRank(tolerance=math.nan), "model.tolerance=nan must be"),
        (lambda: LabelPropagation(max_iterations=0), "model.max_iterations=0 must be"),
        (lambda: VertexCentric(0), "strategy.local_iterations=0 must be"),
        (lambda: IndividualSample(batch_size=2.5), "strategy.batch_size=2.5 must be"),  # type: ignore[arg-type]
        (lambda: IndividualSample(batching="even"), "strategy.options.batching=even is not known"),
        (lambda: LeaderSync("men"), "sync.average=men is not known: did you mean mean?"),  # type: ignore[arg-type]
    ],
)
def test_constructors_refuse_from_python_what_the_command_refuses(make: Callable[[], Any], expected: str) -> None:
    assert error_of(make).startswith(expected)


def test_annotations_are_spelt_in_words() -> None:
    def function(sizes: list[int], rate: float | None = None) -> None: ...

    line = error_of(lambda: plugins.check_arguments(function, {"sizes": 3}, "model"))
    assert line == "model.sizes=3 must be a list, each entry a whole number"
    line = error_of(lambda: plugins.check_arguments(function, {"sizes": [3], "rate": "fast"}, "model"))
    assert line == "model.rate=fast must be a number or null"


@pytest.mark.parametrize("url", ["s3://bucket/run", "hdfs://host/run", "file:///run", "gs:/bucket"])
def test_a_url_is_no_path(url: str) -> None:
    with pytest.raises(UserError, match=rf"^output={url} is a URL, but gnnkit reads and writes local files only"):
        local_path("output", url)


@pytest.mark.parametrize("path", ["run", "./a:b", "C:/runs", "~/run", "2026-01-01/12:00", "a/s3://b"])
def test_a_path_is_taken_as_it_is(path: str) -> None:
    assert local_path("output", path) == Path(path)


def test_a_list_of_names_is_cut_between_names() -> None:
    assert shown_names(["a", "b"]) == "a, b"
    assert shown_names(["1 in column 'games'"] * 3) == "1 in column 'games', 1 in column 'games', ..."
    assert shown_names(["x" * 70, "b"]) == "x" * 57 + "..."
    assert shown_names(range(10_000)).endswith(", ...")
    assert shown_names([]) == ""
