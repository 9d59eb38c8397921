"""Number of draws per node, by hop and relation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from gnnkit.errors import UserError
from gnnkit.utils.memory import check_memory
from gnnkit.utils.ranges import shown, shown_names, whole

MAX_FANOUT = 2**31 - 1
MAX_REPLACED = 2**20  # with replacement, the degree does not bound draws
MAX_HOPS = 1000
DRAW_BYTES = 128  # of a draw: its edge, and what finds and numbers it
DEFAULT = "default"  # key for the relations that a mapping does not name
KEY = "sampler.fanouts"


@dataclass(frozen=True, slots=True)
class Fanouts(Sequence[int]):  # noqa: PLW1641 (mappings have no hash)
    """Draws per node at each hop, from the seeds outward.

    -1 takes all in-edges, 0 none. Where a sampler draws by relation, a node draws this
    number from its in-edges of each relation, as in PyG, so one list applies to every
    relation. As a sequence, fanouts contain the default draws.

    Examples:
        >>> from gnnkit.sampler import Fanouts
        >>> fanouts = Fanouts.parse({"default": [10, 5], "author-writes-paper": [3, 0]})
        >>> list(fanouts), fanouts.of("author-writes-paper")
        ([10, 5], (3, 0))
    """

    default: tuple[int, ...]  # [num_hops] for relations that are not in `by_relation`
    by_relation: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # [num_hops] each

    @classmethod
    def parse(cls, value: FanoutsLike, key: str = KEY) -> Fanouts:
        """Checks fanouts given in a configuration.

        Raises `UserError` with the key, relation and hop.

        Args:
            value: [num_hops] integers, or a mapping from relation names, and `default`,
                to such sequences of equal length. PyG's edge types are names too.
            key: Configuration key or argument, for the message.
        """
        if isinstance(value, Fanouts):
            return value
        if not isinstance(value, Mapping):
            return cls(_per_hop(key, value))
        by_name = {"-".join(name) if isinstance(name, tuple) else str(name): fanouts for name, fanouts in value.items()}
        by_relation = {name: _per_hop(f"{key}.{name}", fanouts) for name, fanouts in by_name.items()}
        if DEFAULT not in by_relation:
            raise UserError(f"{key}={shown(dict(value))} must have an entry {DEFAULT}, for all other relations")
        default = by_relation.pop(DEFAULT)
        for name, fanouts in by_relation.items():
            if len(fanouts) != len(default):
                raise UserError(
                    f"{key}.{name} has {len(fanouts)} hops, but {key}.{DEFAULT} has {len(default)}: use the same number for all"
                )
        return cls(default, by_relation)

    @classmethod
    def all(cls, num_hops: int) -> Fanouts:
        """Takes all in-edges at each of `num_hops` hops."""
        return cls((-1,) * num_hops)

    @property
    def num_hops(self) -> int:
        return len(self.default)

    @property
    def same_at_every_hop(self) -> bool:
        """Whether a node draws the same number of edges at every hop."""
        return all(len(set(fanouts)) == 1 for fanouts in self._lists())

    def of(self, relation: str) -> tuple[int, ...]:  # [num_hops]
        """Returns the draws per node for one relation's edges."""
        return self.by_relation.get(relation, self.default)

    def alike(self, reason: str) -> Fanouts:
        """Returns these fanouts, which must not differ between relations.

        Raises `UserError` for the first relation with separate fanouts.

        Args:
            reason: Why only one list is supported, for the message.
        """
        for name, fanouts in self.by_relation.items():
            raise UserError(
                f"{KEY}.{name}={_format_list(fanouts)}: {reason}; use one list, {KEY}={_format_list(self.default)}"
            )
        return self

    def by_hop(self, relations: Sequence[str]) -> list[list[int]]:
        """Returns the draws per node by hop, and then by relation.

        Raises `UserError` if the fanouts name an unknown relation.

        Args:
            relations: [num_relations] names of the graph's relations, in order.
        """
        for name in self.by_relation:
            if name not in relations:
                raise UserError(
                    f"{KEY}.{name} is not a relation of the graph: expected {DEFAULT} or one of {shown_names(relations)}"
                )
        lists = [self.of(name) for name in relations]
        return [[fanouts[hop] for fanouts in lists] for hop in range(self.num_hops)]

    def resized(self, num_hops: int) -> Fanouts:
        """Truncates to a number of hops, or repeats the last hop."""

        def resize(fanouts: tuple[int, ...]) -> tuple[int, ...]:
            return (*fanouts[:num_hops], *fanouts[-1:] * (num_hops - len(fanouts)))

        by_relation = {name: resize(fanouts) for name, fanouts in self.by_relation.items()}
        return Fanouts(resize(self.default), by_relation)

    def as_plain(self) -> list[int] | dict[str, list[int]]:
        """Returns the fanouts as written in a configuration and in `result.json`."""
        by_relation = {name: list(fanouts) for name, fanouts in self.by_relation.items()}
        return {DEFAULT: list(self.default), **by_relation} if by_relation else list(self.default)

    def __str__(self) -> str:
        entries = [f"{name}:{_format_list(fanouts)}" for name, fanouts in self.by_relation.items()]
        default = _format_list(self.default)
        return "{" + ",".join([f"{DEFAULT}:{default}", *entries]) + "}" if entries else default

    def __len__(self) -> int:
        return len(self.default)

    def __getitem__(self, hop: Any) -> Any:
        return self.default[hop]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Fanouts):
            return self.default == other.default and self.by_relation == other.by_relation
        return not self.by_relation and isinstance(other, list | tuple) and self.default == tuple(other)

    def _lists(self) -> list[tuple[int, ...]]:
        return [self.default, *self.by_relation.values()]


FanoutsLike: TypeAlias = Sequence[int] | Mapping[Any, Sequence[int]]  # argument of `Fanouts.parse`


_Counts: TypeAlias = Mapping[str, int]  # by node type


def check_draws(
    key: str,
    relations: Sequence[tuple[str, str, Sequence[int], float]],
    seeds: _Counts,
    num_nodes: _Counts,
    num_batches: int,
) -> None:
    """Raises `UserError` if draws with replacement may need too much memory.

    Without replacement, degrees bound the draws.

    Args:
        key: Configuration key or argument, and its value, for the message.
        relations: [num_relations] node types of sources and destinations, draws per
            node [num_hops], and the mean in-degree, which stands for draws of -1.
        seeds: Largest number of seeds of a batch, by node type.
        num_nodes: Nodes that draw at a hop, at most, by node type.
        num_batches: Batches that are drawn at the same time.
    """
    total, rows = 0.0, {name: float(count) for name, count in seeds.items()}
    for hop in range(max((len(fanouts) for _, _, fanouts, _ in relations), default=0)):
        draws = dict.fromkeys(num_nodes, 0.0)
        for source, destination, fanouts, degree in relations:
            count, fanout = rows.get(destination, 0), fanouts[hop]
            draws[source] += count * (degree if fanout < 0 else fanout)
            total += count * max(fanout, 0)
        rows = {name: min(count, num_nodes[name]) for name, count in draws.items()}
    subject = f"{key} with replacement, for {max(seeds.values(), default=0)} seeds"
    check_memory(subject, num_batches * total * DRAW_BYTES)


def _per_hop(key: str, value: object) -> tuple[int, ...]:
    try:
        entries = list(value)  # type: ignore[call-overload]
    except TypeError as error:
        raise UserError(f"{key}={shown(value)} must be a list of whole numbers, one per hop") from error
    if not 1 <= len(entries) <= MAX_HOPS:
        raise UserError(f"{key} has {len(entries)} hops, expected 1 to {MAX_HOPS}, one per layer")
    return tuple(whole(f"{key}[{hop}]", entry, -1, MAX_FANOUT) for hop, entry in enumerate(entries))


def _format_list(fanouts: Sequence[int]) -> str:
    return f"[{','.join(map(str, fanouts))}]"
