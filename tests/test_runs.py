"""What tests compose from a memory of sections is what Hydra composes."""

from __future__ import annotations

import pytest

from gnnkit.config import compose
from gnnkit.errors import UserError
from gnnkit.plugins import KINDS, SEVERAL, conf_folders, options
from tests.cases import few
from tests.runs import _joined, compose_once

CHOICES = {kind: sorted(options(kind, conf_folders())) for kind in KINDS}
VALUES = [
    "workers=3",
    "trainer.lr=0.1",
    "comm.timeout=6.0",
    "write=[predictions,'logits']",
    "++embedding=null",
    "output=/tmp/run",
    "report=false",
]


@pytest.mark.slow
@few("number", range(max(map(len, CHOICES.values()))), default=(0, 3))
def test_every_option_is_composed_as_by_hydra(number: int) -> None:
    overrides = [f"{kind}={names[number % len(names)]}" for kind, names in CHOICES.items()]
    actual = _joined([*overrides, *VALUES])
    if actual is None:
        with pytest.raises(UserError, match="is missing"):
            compose([*overrides, *VALUES])
    else:
        right = compose([*overrides, *VALUES])
        assert actual == right
        assert [*actual] == [*right]


@pytest.mark.parametrize("kind", SEVERAL)
def test_several_options_of_a_kind_are_composed_by_hydra(kind: str) -> None:
    overrides = ["strategy=auto", f"{kind}=[{','.join(CHOICES[kind][:2])}]"]
    assert compose_once(overrides) == compose(overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        ["strategy=vertex_centric", "model=gat", "~model.heads", "model.hidden=8"],
        ["strategy=vertex_centric", "dataset=npz", "dataset.root='/a/b c'"],
        ["strategy=vertex_centric", "exchange=quantized", "trainer.lr=1e-3"],
        ["strategy=vertex_centric", "seed=5", "output=runs/${seed}"],
        ["+experiment=cora_gcn", "dataset.root=/a/b", "model.hidden=8"],
    ],
    ids=str,
)
def test_what_has_no_section_of_its_own_is_composed_by_hydra(overrides: list[str]) -> None:
    assert compose_once(overrides) == compose(overrides)


@pytest.mark.slow
def test_errors_are_those_of_the_composition_as_a_whole() -> None:
    for wrong in (
        ["model=gcm"],
        ["strategy=vertex_centric", "model=gat", "model.head=2"],
        ["strategy=a", "strategy=b"],
    ):
        with pytest.raises(UserError) as right:
            compose(wrong)
        with pytest.raises(UserError) as actual:
            compose_once(wrong)
        assert str(actual.value) == str(right.value)


def test_a_result_may_be_changed() -> None:
    compose_once(["strategy=vertex_centric", "model=gat"])["model"]["heads"] = "changed"
    assert compose_once(["strategy=vertex_centric", "model=gat"])["model"]["heads"] != "changed"
