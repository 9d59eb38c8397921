"""Gradients of all workers become one gradient, by a rule that has a name."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gnnkit.errors import UserError
from gnnkit.plugins import names
from gnnkit.sync import Aggregation
from gnnkit.sync.aggregation import Mean, Median, TrimmedMean, Weighted, aggregation

SHARES = torch.tensor([0.4, 0.1, 0.2, 0.3, 0.0], dtype=torch.float64)
MEANS = torch.tensor([[1.0, 9.0], [2.0, -1.0], [100.0, 3.0], [4.0, 5.0], [0.0, 0.0]], dtype=torch.float64)
PARTS = MEANS * SHARES[:, None]


def test_each_rule_is_its_formula() -> None:
    def close(found: Tensor, expected: list[float]) -> None:
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))

    close(Weighted().combine(PARTS, SHARES), [0.4 + 0.2 + 20 + 1.2, 3.6 - 0.1 + 0.6 + 1.5])
    close(Mean().combine(PARTS, SHARES), [107 / 4, 16 / 4])
    close(Median().combine(PARTS, SHARES), [(2 + 4) / 2, (3 + 5) / 2])
    close(Median().combine(PARTS[1:], SHARES[1:]), [4, 3])
    close(TrimmedMean(0.25).combine(PARTS, SHARES), [3, 4])
    close(TrimmedMean(0.1).combine(PARTS, SHARES), [3, 4])
    close(TrimmedMean(0).combine(PARTS, SHARES), [107 / 4, 4])


@pytest.mark.parametrize("name", names("aggregation"))
def test_equal_mean_gradients_give_the_exact_gradient(name: str) -> None:
    parts = torch.tensor([3.0, -7.0], dtype=torch.float64) * SHARES[:, None]
    actual = aggregation(name).combine(parts, SHARES)
    torch.testing.assert_close(actual, torch.tensor([3.0, -7.0], dtype=torch.float64))


@pytest.mark.parametrize("name", names("aggregation"))
@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_workers_and_workers_without_rows_give_finite_gradients(name: str, count: int) -> None:
    for shares in (torch.full((count,), 1 / count), torch.zeros(count)):
        actual = aggregation(name).combine(torch.zeros(count, 4), shares)
        assert torch.equal(actual, torch.zeros(4))


class Largest(Aggregation):
    """An aggregation of somebody else."""

    def combine(self, gradients: Tensor, shares: Tensor) -> Tensor:
        return gradients[gradients.norm(dim=1).argmax()]


def test_an_aggregation_of_another_package_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "gnnkit.sync.aggregation.load", lambda kind, name: {("aggregation", "largest"): Largest}[kind, name]
    )
    assert torch.equal(aggregation("largest").combine(PARTS, SHARES), PARTS[2])


def test_names_and_arguments_are_checked() -> None:
    with pytest.raises(UserError, match=r"^sync.average=medain is not known: did you mean median\?"):
        aggregation("medain")
    with pytest.raises(UserError, match=r"^trim=0.5 must be"):
        TrimmedMean(0.5)
