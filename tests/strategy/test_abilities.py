"""What strategies declare, beside the batches that they provide."""

from __future__ import annotations

from typing import get_type_hints

import pytest

from gnnkit import strategy
from gnnkit.errors import UserError
from gnnkit.strategy import Ability, EdgeTask, ExecutionStrategy, LearnedInputs, MovableNodes, MovableSeeds, MovableWork
from gnnkit.strategy.individual_sample import IndividualSample
from gnnkit.strategy.vertex_centric import VertexCentric
from gnnkit.task.link_prediction import LinkPrediction


class Plain(VertexCentric):
    """A strategy of another package that declares nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.supports = ()


class Able(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.supports = (EdgeTask("share"), LearnedInputs(but="has a reason"), MovableSeeds())


def test_a_strategy_lacks_what_it_does_not_declare() -> None:
    for kind in (EdgeTask, LearnedInputs, MovableWork):
        assert Plain().lacks(kind) == kind.lacking
        assert Plain().ability(kind) is None


def test_a_strategy_has_what_it_declares_unless_it_says_why_not() -> None:
    able = Able()
    assert able.lacks(EdgeTask) is None
    assert able.ability(EdgeTask) == EdgeTask("share")
    assert (able.lacks(LearnedInputs), able.ability(LearnedInputs)) == ("has a reason", None)
    assert (able.lacks(MovableWork), able.lacks(MovableSeeds)) == (None, None)
    assert able.lacks(MovableNodes) == MovableWork.lacking


def test_a_task_asks_the_ability() -> None:
    LinkPrediction().check(Able(), None)
    with pytest.raises(UserError, match=r"^task=link_prediction: this strategy provides rows of nodes only"):
        LinkPrediction().check(Plain(), None)
    with pytest.raises(UserError, match=r"^task=link_prediction: strategy.options.batching=balanced evens out"):
        LinkPrediction().check(IndividualSample(batching="balanced"), None)


def test_authors_find_all_abilities_in_the_public_names() -> None:
    kinds = set(_below(Ability))
    assert kinds == {kind for kind in kinds if getattr(strategy, kind.__name__, None) is kind}
    names = {"reads", "steps", "supports", "tally", "finishes", "phases", "has_whole_steps", "shares"}
    assert set(get_type_hints(ExecutionStrategy)) == names


def _below(kind: type[Ability]) -> list[type[Ability]]:
    return [each for direct in kind.__subclasses__() for each in (direct, *_below(direct))]
