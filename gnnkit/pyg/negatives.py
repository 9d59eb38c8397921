"""Negative sampling from a generator of one's own."""

from __future__ import annotations

import copy
from typing import Literal

import torch
from torch import Tensor
from torch_geometric.sampler import NegativeSampling


class SeededNegatives(NegativeSampling):  # type: ignore[misc]  # PyG is untyped
    """PyG's negative sampling, whose draws follow from a generator."""

    generator: torch.Generator

    @staticmethod
    def of(rule: NegativeSampling, generator: torch.Generator) -> SeededNegatives:
        seeded: SeededNegatives = copy.copy(rule)
        seeded.__class__ = SeededNegatives
        seeded.generator = generator
        return seeded

    def sample(self, num_samples: int, endpoint: Literal["src", "dst"], num_nodes: int | None = None) -> Tensor:
        weight = self.src_weight if endpoint == "src" else self.dst_weight
        size = num_nodes if weight is None else weight.numel()
        if size is None or num_nodes not in (None, size):
            raise ValueError(f"neg_sampling: {endpoint}_weight has {size} entries, expected one per node, {num_nodes}")
        if weight is None:
            return torch.randint(size, (num_samples,), generator=self.generator)
        return torch.multinomial(weight, num_samples, replacement=True, generator=self.generator)
