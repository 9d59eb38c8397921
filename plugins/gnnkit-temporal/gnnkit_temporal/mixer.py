"""A model of links in time, which reads the latest events of both ends."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from gnnkit.engine import Adjacency
from gnnkit.errors import UserError
from gnnkit.model.base import GraphModel
from gnnkit.sampler.links import Links
from gnnkit.task.decoder import EventDecoder
from gnnkit.utils.ranges import MAX_WIDTH, switch, whole
from gnnkit_temporal.history import NUM_STATISTICS, EndEvents, Ids

FREQUENCIES = 12  # of the time encoding, between the mean time between two events and all of the training time


class Mixer(GraphModel):
    """Scores links in time by the latest events of both ends.

    Choose this model for events that are split by time (`dataset.split={by: time}`).
    As in GraphMixer (Cong et al., ICLR 2023), an end's latest events are tokens with a
    fixed time encoding, which an MLP-mixer combines. The decoder also reads how often
    and when the pair, its reverse and its ends have occurred, without which counting is
    better than learning. Features of earlier events are part of their tokens, and those
    of the predicted event are not read. A pair is scored as of its time, so an
    evaluation reads all earlier events, also held-out ones. Messages are not passed: an
    embedding is a linear function of the node's own features.

    Args:
        in_features: Number of input features.
        num_classes: Embedding size.
        events: Number of latest events of each end.
        hidden: Number of hidden features.
        pairs: Whether the decoder reads counts and times of the pair and its ends.
        edge_width: Number of edge features. 0: none.
    """

    num_layers = 1

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        events: int = 20,
        hidden: int = 32,
        pairs: bool = True,
        edge_width: int = 0,
    ) -> None:
        super().__init__()
        whole("model.events", events, 1, MAX_WIDTH)
        whole("model.hidden", hidden, 1, MAX_WIDTH)
        self.embed = nn.Linear(in_features, num_classes) if in_features else None
        self.embedding_size = num_classes
        width = num_classes if in_features else 0
        self.decoder = MixerDecoder(width, events, hidden, edge_width, pairs=switch("model.pairs", pairs))

    def layer(self, index: int, x: Tensor, adjacency: Adjacency) -> Tensor:
        rows = x[: adjacency.num_dst]
        return rows.new_zeros(len(rows), self.embedding_size) if self.embed is None else self.embed(rows)


class MixerDecoder(EventDecoder):
    """Scores pairs from both ends' mixed events, embeddings and statistics.

    Args:
        width: Embedding size, or 0 to ignore embeddings.
        events: Number of latest events of each end.
        hidden: Number of hidden features.
        edge_width: Number of features of an event.
        pairs: Whether to read the statistics of `EndEvents`.
    """

    periods: Tensor  # [2] float64 mean time between training events, and time from the first to the last one
    unit: Tensor | None  # [2, edge_width] mean and standard deviation of the training events' features

    def __init__(self, width: int, events: int, hidden: int, edge_width: int, *, pairs: bool) -> None:
        super().__init__()
        self.width, self.num_events, self.pairs = width, events, pairs
        self.read = nn.Linear(FREQUENCIES + 3 + edge_width, hidden)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(3))
        self.over_events = nn.Sequential(nn.Linear(events, events), nn.GELU(), nn.Linear(events, events))
        self.over_columns = nn.Sequential(nn.Linear(hidden, 2 * hidden), nn.GELU(), nn.Linear(2 * hidden, hidden))
        columns = 3 * hidden + width + (NUM_STATISTICS if pairs else 0)
        layers = [nn.Linear(columns, 2 * hidden), nn.ReLU(), nn.Linear(2 * hidden, hidden), nn.ReLU()]
        self.score = nn.Sequential(*layers, nn.Linear(hidden, 1))
        self.register_buffer("periods", torch.ones(2, dtype=torch.float64))
        unit = torch.stack([torch.zeros(edge_width), torch.ones(edge_width)])
        self.register_buffer("unit", unit if edge_width else None)
        self._history: tuple[Links, EndEvents] | None = None

    def fit(self, links: Links) -> None:
        if links.timeline.train_time is None:
            raise UserError(
                "model=mixer scores pairs at a time, and the edges are not split by time: use "
                "dataset.split='{by: time, shares: [0.7,0.15,0.15]}'"
            )
        times = np.asarray(links.timeline.train_time)[links.trains()]
        span = max(float(np.ptp(times)), 1.0) if len(times) else 1.0
        self.periods.copy_(torch.tensor([span / max(len(times), 1), span]))
        features, events = links.timeline.event_features, links.timeline.events
        if self.unit is not None and features is not None and events is not None and len(times):
            rows = features[events[:, 2] <= times.max()].astype(np.float64)
            deviation = rows.std(0)
            self.unit.copy_(torch.from_numpy(np.stack([rows.mean(0), np.where(deviation > 0, deviation, 1)])))

    def forward(self, outputs: Tensor, events: Tensor | None, links: Links) -> Tensor:  # [...]
        if events is None:
            self.fit(links)  # raises the error
            raise AssertionError
        history, rows = self._read(links), events.reshape(-1, 3).cpu().numpy()
        ends, places = np.unique(np.concatenate([rows[:, [0, 2]], rows[:, [1, 2]]]), axis=0, return_inverse=True)
        sources, destinations = self._mix(history, ends)[torch.from_numpy(places.reshape(2, -1)).to(outputs.device)]
        parts = [sources, destinations, sources * destinations]
        if self.width:
            parts.append(outputs.prod(-2).reshape(len(rows), self.width))
        if self.pairs:
            statistics = torch.from_numpy(history.statistics(rows, float(self.periods[0])))
            parts.append(statistics.to(sources))
        scores: Tensor = self.score(torch.cat(parts, 1))
        return scores.reshape(events.shape[:-1])

    def _read(self, links: Links) -> EndEvents:
        """Returns the events of `links`, sorted once."""
        if self._history is None or self._history[0] is not links:
            self._history = links, EndEvents(links)
        return self._history[1]

    def _mix(self, history: EndEvents, ends: Ids) -> Tensor:  # [n, hidden]
        """Summarises the latest events of nodes before a time.

        Args:
            history: All events.
            ends: [n, 2] nodes and times.
        """
        weight, (low, high) = self.read.weight, self.periods.tolist()
        tokens = history.tokens(ends[:, 0], ends[:, 1], self.num_events)
        age, exists, sent = (
            torch.from_numpy(column).to(weight)[..., None] for column in (tokens.age, tokens.exists, tokens.sent)
        )
        frequencies = torch.logspace(-math.log10(high), -math.log10(low), FREQUENCIES).to(weight)
        columns = [torch.cos(age * frequencies), torch.log1p(age / low), sent, exists]
        if self.unit is not None and tokens.features is not None:
            columns.append((torch.from_numpy(tokens.features).to(weight) - self.unit[0]) / self.unit[1])
        x = self.read(torch.cat(columns, -1) * exists)
        x = x + self.over_events(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        x = self.norms[2](x + self.over_columns(self.norms[1](x)))
        mean: Tensor = (x * exists).sum(1) / exists.sum(1).clamp(min=1)
        return mean
