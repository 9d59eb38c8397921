"""Decoders, which score a node pair from two embeddings."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Function

from gnnkit.graph import Ids
from gnnkit.sampler.links import Links
from gnnkit.utils.checks import Array

_PIECE = 2**11  # pairs at a time


def dot(outputs: Tensor) -> Tensor:  # [..., 2, width] -> [...]
    """Scores embedding pairs by their dot product."""
    sources, destinations = outputs.unbind(-2)  # one gradient of both, where two indices would make two
    return (sources * destinations).sum(-1)


class PairDots(Function):
    """Scores pairs [k, 2] of rows [n, width] by dot products, on a CPU.

    Pairs are processed in pieces that stay in the cache. Copies of all pairs' rows
    would take several times as long, most of it for memory.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, pairs: Tensor) -> Tensor:  # [k]
        ctx.save_for_backward(x, pairs)
        return torch.cat([
            torch.linalg.vecdot(x.index_select(0, source), x.index_select(0, destination))
            for source, destination in (piece.unbind(1) for piece in torch.split(pairs, _PIECE))
        ])  # fmt: skip

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        x, pairs = ctx.saved_tensors
        total = torch.zeros_like(x)
        for piece, factor in zip(torch.split(pairs, _PIECE), torch.split(grad[:, None], _PIECE), strict=True):
            for target, source in (piece.unbind(1), piece.flip(1).unbind(1)):
                total.index_add_(0, target, x.index_select(0, source) * factor)
        return total, None


def score_all(sources: Tensor, items: Tensor, ids: Ids, head: nn.Module | None) -> Tensor:  # [b, num_items]
    """Scores all items for each source.

    Args:
        sources: [b, width] embeddings.
        items: [num_items, width] embeddings.
        ids: [b] ids of the sources, which are not read.
        head: The decoder. If None, dot products.
    """
    if head is None:
        return sources @ items.t()
    shape = len(sources), len(items), -1
    scores: Tensor = head(torch.stack([sources[:, None].expand(shape), items[None].expand(shape)], 2))
    return scores


def score_all_at(
    sources: Tensor, items: Tensor, ids: Ids, score: Callable[[Tensor, Tensor], Tensor], now: int, first_item: int
) -> Tensor:  # [b, num_items]
    """Scores all items for each source as of a time, some items at a time.

    Args:
        sources: [b, width] embeddings.
        items: [num_items, width] embeddings.
        ids: [b] ids of the sources.
        score: Scores embedding pairs [b, k, 2, width] of events [b, k, 3].
        now: The time.
        first_item: Id of the first item.
    """
    parts, (at, columns) = [], (torch.from_numpy(ids).to(sources.device)[:, None], torch.split(items, _PIECE))
    for column, rows in enumerate(columns):
        shape = len(sources), len(rows)
        places = first_item + column * _PIECE + torch.arange(len(rows), device=sources.device)
        events = torch.stack([at.expand(shape), places.expand(shape), torch.full(shape, now, device=at.device)], 2)
        pairs = torch.stack([sources[:, None].expand(*shape, -1), rows.expand(*shape, -1)], 2)
        parts.append(score(pairs, events))
    return torch.cat(parts, 1)


class EventDecoder(nn.Module):
    """Scores pairs at a time, of a split by time.

    Choose this base class for a model's attribute `decoder`, which then takes the place
    of `task.decoder`. A score may read all earlier events, also held-out ones.
    """

    def fit(self, links: Links) -> None:
        """Sets buffers from the training edges, before training.

        Args:
            links: The edges to predict, with `events` if they are split by time.
        """

    @abstractmethod
    def forward(self, outputs: Tensor, events: Tensor | None, links: Links) -> Tensor:  # [...]
        """Scores pairs.

        Args:
            outputs: [..., 2, width] embeddings of sources and destinations.
            events: [..., 3] their sources, destinations and times. If None, edges are
                not split by time.
            links: The edges to predict.
        """


class EdgeMLP(nn.Module):
    """Computes an edge's outputs from the embeddings of its ends and its features.

    The two-layer MLP reads both embeddings, their elementwise product, and the
    standardised features. NaN in a feature is read as the training edges' mean.
    """

    mean: Tensor | None  # [edge_width] of the training edges' features, or None without features
    deviation: Tensor | None  # [edge_width]

    def __init__(self, width: int, edge_width: int, num_outputs: int, unit: tuple[Array, Array] | None = None) -> None:
        """Initialises the parameters from torch's generator.

        Args:
            width: Embedding size, and size of the hidden layer.
            edge_width: Number of edge features.
            num_outputs: Number of outputs.
            unit: [edge_width] mean and deviation of the features. If None, 0 and 1.
        """
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3 * width + edge_width, width), nn.ReLU(), nn.Linear(width, num_outputs))
        mean, deviation = (np.zeros(edge_width), np.ones(edge_width)) if unit is None else unit
        for name, values in (("mean", mean), ("deviation", np.where(deviation > 0, deviation, 1))):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32) if edge_width else None)

    def forward(self, outputs: Tensor, features: Tensor | None = None) -> Tensor:  # [k, num_outputs]
        """Computes edges' outputs.

        Args:
            outputs: [k, 2, width] embeddings of sources and destinations.
            features: [k, edge_width] features as stored, or None.
        """
        source, destination = outputs.unbind(-2)
        parts = [source, destination, source * destination]
        if features is not None and self.mean is not None and self.deviation is not None:
            parts.append(((features.to(outputs.dtype) - self.mean) / self.deviation).nan_to_num())
        result: Tensor = self.layers(torch.cat(parts, -1))
        return result


class ProductMLP(nn.Module):
    """Scores pairs by a two-layer MLP on the embeddings' elementwise product.

    As in OGB's examples, a pair and its reverse have the same score.
    """

    def __init__(self, width: int) -> None:
        """Initialises the parameters from torch's generator.

        Args:
            width: Embedding size, and size of the hidden layer.
        """
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, outputs: Tensor) -> Tensor:  # [..., 2, width] -> [...]
        """Scores embedding pairs."""
        scores: Tensor = self.layers(outputs[..., 0, :] * outputs[..., 1, :])
        return scores.squeeze(-1)
