"""The relational GCN multiplies wide rows before it averages them."""

from __future__ import annotations

import pytest
from gnnkit_testing.ranks import ONE
from torch import nn

from gnnkit.model.rgcn import RGCN
from gnnkit.testing import check_model

_RELATIONS = 3  # of the graph of `check_model`, whose rows have 5 columns


@pytest.mark.parametrize(
    "keys",
    [
        {"hidden": 1, "bases": 1},
        {"hidden": 2, "bases": 2, "inverse": False, "dropout": 0.3},
        {"hidden": 1, "inverse": False, "blocks": 1, "self_loop": False},
    ],
    ids=str,
)
def test_sparse_rows_are_multiplied_before_the_means(keys: dict[str, object]) -> None:
    def make(in_features: int, num_classes: int) -> nn.Module:
        model = RGCN(in_features, num_classes, num_relations=_RELATIONS, **keys)  # type: ignore[arg-type]
        assert model.reads_sparse
        return model

    check_model(make, [ONE])


def test_a_hidden_layer_with_few_outputs_multiplies_first() -> None:
    check_model(lambda width, classes: RGCN(width, classes, num_relations=_RELATIONS, hidden=16, bases=1))


@pytest.mark.parametrize("keys", [{"hidden": 1}, {"hidden": 16, "bases": 1}, {"one_hot": True, "bases": 1}], ids=str)
def test_rows_stay_dense_where_products_would_be_wider(keys: dict[str, object]) -> None:
    width = 2 * 16 if "one_hot" in keys else 6  # `hidden` columns for the basis and for W_0
    assert not RGCN(width, 4, num_relations=_RELATIONS, **keys).reads_sparse  # type: ignore[arg-type]
