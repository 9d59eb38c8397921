"""model.skip adds a perceptron of each node's own input row to the outputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from gnnkit.errors import UserError
from gnnkit.model.base import ConvModel
from gnnkit.model.gat import GAT
from gnnkit.model.gcn import GCN
from gnnkit.model.gin import GIN, GINE
from gnnkit.model.rgat import RGAT
from gnnkit.model.rgcn import RGCN
from gnnkit.model.sage import GraphSAGE
from gnnkit.testing import check_model
from tests.cases import few

_MODELS: list[Callable[..., ConvModel]] = [
    partial(GCN, hidden=3),
    partial(GCN, hidden=9, norm="layer"),
    partial(GCN, num_layers=1),
    partial(GraphSAGE, hidden=3, num_layers=3, norm="batch"),
    partial(GraphSAGE, aggregator="max"),
    partial(GIN, hidden=4, num_layers=3),
    partial(GINE, edge_width=2),
    partial(GAT, hidden=2, heads=2),
    partial(RGCN, num_relations=3, hidden=3),
    partial(RGCN, num_relations=3, bases=2, num_layers=1),
    partial(RGCN, num_relations=3, hidden=4, project=True, norm="layer"),
    partial(RGAT, num_relations=3, hidden=2, heads=2),
    partial(RGAT, num_relations=3, hidden=2, heads=2, project=False, num_layers=3),
]


@pytest.mark.slow
@few("make", _MODELS, default=4)
def test_it_is_exact_on_all_grids(make: Callable[..., nn.Module]) -> None:
    check_model(lambda width, classes: make(width, classes, skip=True))


def test_outputs_are_a_sum_and_a_model_without_it_has_no_such_weights() -> None:
    torch.manual_seed(0)
    full_model = GraphSAGE(5, 3, hidden=7, num_layers=3, skip=True).eval()
    alone = GraphSAGE(5, 3, hidden=7, num_layers=3).eval()
    missing, further = alone.load_state_dict(full_model.state_dict(), strict=False)
    assert not missing
    assert {name.partition(".")[0] for name in further} == {"skip"}
    x, edge_index = torch.randn(20, 5), torch.randint(0, 20, (2, 60))
    perceptron = nn.Sequential(full_model.skip[0], nn.ReLU(), full_model.skip[1])
    torch.testing.assert_close(full_model(x, edge_index), alone(x, edge_index) + perceptron(x))


def test_only_a_boolean_is_valid() -> None:
    with pytest.raises(UserError, match=r"model.skip=1 must be true or false"):
        GCN(5, 3, skip=1)  # type: ignore[arg-type]
