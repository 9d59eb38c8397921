"""The keys of `preset_workload`, and their valid combinations."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from gnnkit import plugins
from gnnkit.errors import UserError
from gnnkit.partition import Partitioner
from gnnkit.partition.buffered import Buffered
from gnnkit.utils.ranges import MAX_COUNT, one_of, switch, whole

# Values implied by a correction for unset keys, and by other values.
_IMPLIED: dict[str, tuple[dict[str, str], str]] = {
    "halo": ({"coverage": "none"}, "one_hop"),
    "average": ({"llcg": "parameters"}, "gradients"),
    "split": ({"coverage": "dynamic"}, "fixed"),
}
_CHOICES: dict[str, tuple[str, ...]] = {
    "halo": ("none", "one_hop", "cluster"),
    "degrees": ("global", "local"),
    "average": ("gradients", "parameters"),
    "split": ("fixed", "dynamic"),
    "correction": ("none", "llcg", "coverage"),
}
# Counts that are only used with one value of another key, and their defaults.
_COUNTS: dict[str, tuple[str, str, int]] = {
    "clusters": ("halo", "cluster", 32),
    "clusters_per_batch": ("halo", "cluster", 4),
    "chunks": ("split", "dynamic", 16),
    "resplit_every": ("split", "dynamic", 1),
    "correction_steps": ("correction", "llcg", 2),
    "correction_batch_size": ("correction", "llcg", 1024),
}
# All keys that are only used with one value of another key.
_READ_WITH: dict[str, tuple[str, str]] = {
    **{name: (key, value) for name, (key, value, _) in _COUNTS.items()},
    "clusters_by": ("halo", "cluster"),
    "control_variates": ("average", "parameters"),
}
# A choice, a key that must then have one of some values, and the reason.
_RULES: tuple[tuple[str, str, tuple[Any, ...], str], ...] = (
    ("correction=llcg", "average", ("parameters",), "correcting steps follow an average of parameters"),
    ("correction=coverage", "split", ("dynamic",), "chunks meet in turn"),
    ("correction=coverage", "average", ("gradients",), "only the mean of weighted gradients is unbiased"),
    ("correction=coverage", "halo", ("none",), "a worker holds two whole chunks"),
    ("correction=coverage", "degrees", ("global",), "weights estimate the sums over all in-edges"),
    ("split=dynamic", "sync_every", ("epoch", 1), "workers meet before nodes are dealt out anew"),
    ("exchange_every", "halo", ("one_hop",), "the in-neighbours' rows are the ones that move"),
    ("exchange_every", "split", ("fixed",), "workers hold the edges into the nodes that they own"),
    ("exchange_every", "correction", ("none",), "no edge is dropped"),
    ("exchange_every", "degrees", ("global",), "no edge is dropped"),
)


@dataclass(slots=True)
class PresetKeys:
    """The strategy's keys, checked and completed with defaults by the constructor.

    `PresetWorkload` documents them.
    """

    halo: Any
    clusters: Any
    clusters_per_batch: Any
    clusters_by: Any
    degrees: str
    sync_every: Any
    average: Any
    control_variates: Any
    split: Any
    resplit_every: Any
    chunks: Any
    correction: str
    correction_steps: Any
    correction_batch_size: Any
    exchange_every: Any

    def __post_init__(self) -> None:
        for name, (by_correction, usual) in _IMPLIED.items():
            if getattr(self, name) is None:
                setattr(self, name, by_correction.get(self.correction, usual))
        for name, known in _CHOICES.items():
            one_of(f"strategy.{name}", getattr(self, name), known)
        for name in (*_COUNTS, "exchange_every"):
            if getattr(self, name) is not None:
                whole(f"strategy.{name}", getattr(self, name), 1, MAX_COUNT)
        if self.control_variates is not None:
            switch("strategy.control_variates", self.control_variates, what="true, false or null")
        if self.sync_every is None:
            self.sync_every = 1 if self.halo == "cluster" and self.average == "gradients" else "epoch"
        if self.sync_every != "epoch":
            whole("strategy.sync_every", self.sync_every, 1, MAX_COUNT, what="epoch or a whole number")
        self._check_unread()
        self.control_variates = self.average == "parameters" and self.control_variates is not False
        self._check_together()
        for count, (_, _, number) in _COUNTS.items():
            setattr(self, count, number if getattr(self, count) is None else getattr(self, count))
        if self.halo == "cluster" and self.clusters_per_batch > self.clusters:
            raise UserError(
                f"strategy.clusters_per_batch={self.clusters_per_batch} must be at most "
                f"strategy.clusters={self.clusters}"
            )

    @property
    def covers(self) -> bool:
        """Whether the split rotates, rather than following measured times."""
        return self.correction == "coverage"

    @property
    def is_exact(self) -> bool:
        """Whether steps equal one worker's, given an exact exchange."""
        return self.exchange_every == 1 and self.average == "gradients" and self.period == 1

    @property
    def approximation(self) -> tuple[str, str]:
        """The key that makes steps approximate, and the reason."""
        without, alone = self.halo == "none", self.average == "parameters"
        cut, drift = "edges between shares are missing", "workers step alone between two averages"
        choices = (
            (self.covers, "correction=coverage", "a step reads the nodes of two workers"),
            (self.correction == "llcg", "correction=llcg", drift),
            (self.halo == "cluster", "halo=cluster", "a step lacks the edges to other clusters"),
            (alone and not self.control_variates, "control_variates=false", drift),
            (alone and without, "average=parameters", f"{cut} and {drift}"),
            (alone, "average=parameters", drift),
            (without, "halo=none", cut),
            (
                (self.exchange_every or 1) > 1,
                f"exchange_every={self.exchange_every}",
                "rows of other workers are stale",
            ),
            (True, f"halo={self.halo}", cut),
        )
        key, why = next(choice for holds, *choice in choices if holds)
        return f"strategy.{key}", why

    @property
    def num_steps(self) -> int:
        """Number of steps per epoch, without correction steps."""
        return -(-self.clusters // self.clusters_per_batch) if self.halo == "cluster" else 1

    @property
    def period(self) -> int:
        """Number of steps between synchronisations."""
        return self.num_steps if self.sync_every == "epoch" else int(self.sync_every)

    def cutter(self) -> Partitioner:
        """Creates the partitioner of clusters.

        Raises `UserError` if it requires arguments.
        """
        if self.clusters_by is None:
            return Buffered()
        name = one_of("strategy.clusters_by", self.clusters_by, plugins.names("partition"))
        cls = plugins.load("partition", name)
        for key, parameter in inspect.signature(cls).parameters.items():
            if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
                raise UserError(f"strategy.clusters_by={name} wants {key}: choose a partitioner that needs no argument")
        partitioner: Partitioner = cls()
        return partitioner

    def _check_unread(self) -> None:
        """Raises `UserError` for a key that has no effect with the other keys."""
        for name, (key, value) in _READ_WITH.items():
            if (key_value := getattr(self, name)) is not None and getattr(self, key) != value:
                setting = f"strategy.{name}={str(key_value).lower() if isinstance(key_value, bool) else key_value}"
                raise UserError(f"{setting} is read with strategy.{key}={value} only: leave the key out")
        if self.chunks is not None and self.covers:
            raise UserError(f"strategy.chunks={self.chunks}: with strategy.correction=coverage a worker has one chunk")

    def _check_together(self) -> None:
        """Raises `UserError` for contradicting keys, with the reason."""
        chosen = {f"correction={self.correction}", f"split={self.split}"}
        chosen |= set() if self.exchange_every is None else {"exchange_every"}
        for choice, key, allowed, reason in _RULES:
            if choice in chosen and getattr(self, key) not in allowed:
                raise UserError(
                    f"strategy.{key}={getattr(self, key)} does not go with strategy.{choice}: {reason}, "
                    f"choose strategy.{key}={allowed[0]}"
                )
