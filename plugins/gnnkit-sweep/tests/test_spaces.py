"""The grammar of sweeps: ranges, choices, globs, and lists as values."""

from __future__ import annotations

import pytest
from gnnkit_sweep.spaces import expand, spaces


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("seed=range(3)", ("0", "1", "2")),
        ("seed=range(6,0,-3)", ("6", "3")),
        ("trainer.lr=range(0,1,0.5)", ("0.0", "0.5")),
        ("partition=1d,2d", ("1d", "2d")),
        ("model.options.x=choice('a b',c)", ("a\\ b", "c")),
        ("partition=glob([1*,2*],exclude=1.5*)", ("1d", "2d", "2psl")),
        ("sampler.fanouts=[5,5],[10]", ("[5,5]", "[10]")),
        ("seed=sort(3,1,2)", ("1", "2", "3")),
    ],
)
def test_the_grammar_of_sweeps_is_hydras(text: str, expected: tuple[str, ...]) -> None:
    key = text.partition("=")[0]
    assert expand([text]) == [(f"{key}={value}",) for value in expected]
    assert spaces([text, "workers=2"])[0] == ["workers=2"]
