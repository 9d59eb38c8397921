"""Sampling by random walks that do not favour hubs."""

from __future__ import annotations

import copy
import warnings
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from gnnkit import _core
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Floats, Ids
from gnnkit.graph.types import offsets_of
from gnnkit.sampler.base import NativeSampler, Preference, Reading, wrap
from gnnkit.sampler.fanouts import FanoutsLike
from gnnkit.utils.checks import FLOAT32_MAX, finite, floats, int64s, numbers, whole
from gnnkit.utils.ranges import one_of, real, shown
from gnnkit.utils.storage import array_or_file

_MAX_WALKS = 2**16
_MAX_STEPS = 2**24  # total for all walks of a node
_SIMILARITY = "similarity"
_MIN_FLOOR = 1e-9  # its power _MAX_SHARPNESS is still a normal number
_MAX_SHARPNESS = 32
_SYMMETRIC: WeakKeyDictionary[CSC, CSC | None] = WeakKeyDictionary()  # None: the graph is already symmetric and simple


class MetropolisHastingsSampler(NativeSampler):
    """Samples the nodes most visited by random walks, without favouring hubs.

    At u, a neighbour v is proposed uniformly and accepted with probability min(1,
    target(v) / target(u) (d(u) / d(v))^alpha) (Metropolis et al., 1953, and Hastings,
    1970). If v is rejected, the walk stays and u counts again. Within a connected
    component, nodes are thus visited in proportion to target d^(1 - alpha), which is
    uniform by default.

    With `target="similarity"`, walks from s prefer nodes similar to s. The target is
    then (floor + max(0, cosine of the features of v and s))^sharpness. Dissimilar nodes
    keep a positive weight, so walks reach every node of the component. With a sharpness
    of 1, distant nodes outweigh the neighbours, because there are more of them. A zero
    row, such as an empty bag of words, is similar to no row. The start s is not drawn.
    Its weight is the mean weight of its neighbours, or of about 32 of them, because
    walks would otherwise stay at s.

    As in PinSAGE (Ying et al., KDD 2018), a node's neighbourhood consists of the
    `fanout` other nodes that its walks visit most. Importance weights are the visits,
    as counts (sum) or shares (mean). Edges are walked in both directions, and parallel
    edges count once. Blocks have no edge ids.
    """

    draws_edges = False
    by_relation = False

    def __init__(
        self,
        fanouts: FanoutsLike,
        *,
        walk_length: int = 10,
        num_walks: int = 10,
        alpha: float = 1.0,
        target: npt.ArrayLike | str | None = None,
        floor: float | None = None,
        sharpness: int | None = None,
        embeddings: npt.ArrayLike | str | None = None,
        redraw: bool = False,
        importance: str | None = None,
        threads: int | None = None,
    ) -> None:
        """Takes the arguments of `NativeSampler`, and parameters of the walks.

        Args:
            fanouts: [num_hops] most visited nodes kept per node, from the seeds
                outward. -1 keeps all visited nodes, 0 none.
            walk_length: Steps per walk, 1 to 65536.
            num_walks: Walks per node, 1 to 65536, with at most 2^24 steps in total.
            alpha: Exponent on the degree ratio. 0 is a plain walk.
            target: [num_nodes] non-negative preference for each node, or "similarity".
                Default: uniform.
            floor: Number added to the cosine, at least 1e-9. Only for similarity, where
                None means 0.1.
            sharpness: Exponent of the sum, 1 to 32. Only for similarity, where None
                means 8.
            embeddings: [num_nodes, columns] rows compared by similarity, or path of an
                .npy file. Default: features, from a `Loader` or `with_features`.
            redraw: Whether all nodes of the batch walk again at every hop.
            importance: mean, sum or None.
            threads: Threads per batch. Default: all available cores.
        """
        super().__init__(fanouts, redraw=redraw, importance=importance, threads=threads)
        self.walk_length = whole("sampler.options.walk_length", walk_length, 1, _MAX_WALKS)
        self.num_walks = whole("sampler.options.num_walks", num_walks, 1, _MAX_WALKS)
        self.alpha = finite("sampler.options.alpha", alpha)
        self.preference = _preference(target, floor, sharpness)  # None: walks do not compare rows
        self.target = None if target is None or self.preference is not None else _target(target)
        self.embeddings = None if embeddings is None else _embeddings(embeddings, self.preference)
        if self.walk_length * self.num_walks > _MAX_STEPS:
            steps = f"sampler.options.num_walks={num_walks} times sampler.options.walk_length={walk_length}"
            raise UserError(f"{steps} must be at most {_MAX_STEPS} steps per node")

    def native(self) -> _core.Sampler:
        return _core.Sampler.metropolis_hastings(self.fanouts.default, self._walks(), self.redraw, self.importance)

    @property
    def reads_features(self) -> bool:
        return self.preference is not None and self.embeddings is None

    def with_features(self, features: Floats | None) -> MetropolisHastingsSampler:
        if not self.reads_features:
            return self
        if features is None or features.shape[1:] == (0,):
            raise UserError(
                "sampler.target=similarity compares node features, but the graph has none: set sampler.options.embeddings"
            )
        comparing = copy.copy(self)
        comparing.embeddings = _in_core(numbers("features", features, (None, None)))
        return comparing

    def reading(self, graph: CSC) -> Reading:
        if self.preference is None:
            return Reading(_symmetric(graph), wanted=self.target)
        if self.embeddings is None:
            raise UserError(
                "sampler.target=similarity compares node features: pass them to with_features, use a Loader, or set "
                "sampler.options.embeddings"
            )
        if len(self.embeddings) != graph.num_nodes:
            raise UserError(
                f"sampler.options.embeddings has {len(self.embeddings)} rows, but the graph has {graph.num_nodes} nodes"
            )
        return Reading(_symmetric(graph), features=self.embeddings, preference=self.preference)

    def walk(self, graph: CSC, starts: Ids, *, key: int) -> Ids:  # [num_starts, num_walks, walk_length + 1]
        """Returns the nodes on the walks from each start, beginning with the start.

        `draw` counts these nodes.

        Args:
            graph: The graph. Edges are walked in both directions.
            starts: [num_starts] node ids.
            key: Any integer, modulo 2^64.
        """
        ids = int64s("starts", starts)
        walks = _core.visited(self.reading(graph), ids, self._walks(), wrap(key))
        return walks.reshape(len(ids), self.num_walks, self.walk_length + 1)

    def _walks(self) -> tuple[int, int, float]:
        return self.walk_length, self.num_walks, self.alpha


def _target(values: npt.ArrayLike) -> npt.NDArray[np.float64]:  # [num_nodes]
    target = np.ascontiguousarray(floats("sampler.target", values, (None,)), np.float64)
    negative = np.flatnonzero(target < 0)
    if len(negative):
        raise UserError(f"sampler.target[{negative[0]}] = {target[negative[0]]} must not be negative")
    return target


def _preference(target: object, floor: float | None, sharpness: int | None) -> Preference | None:
    """Returns the similarity parameters, or None for another target."""
    if isinstance(target, str):
        one_of("sampler.target", target, (_SIMILARITY,))
        floor = real("sampler.options.floor", 0.1 if floor is None else floor, _MIN_FLOOR)
        sharpness = 8 if sharpness is None else sharpness
        return Preference(floor, whole("sampler.options.sharpness", sharpness, 1, _MAX_SHARPNESS))
    for key, value in (("floor", floor), ("sharpness", sharpness)):
        if value is not None:
            raise UserError(
                f"sampler.options.{key}={shown(value)} requires sampler.target=similarity: set it, or remove the key"
            )
    return None


def _embeddings(values: npt.ArrayLike | str, preference: Preference | None) -> Floats:  # [num_nodes, columns]
    if preference is None:
        raise UserError("sampler.options.embeddings requires sampler.target=similarity: set it, or remove the key")
    table = array_or_file("sampler.options.embeddings", values)
    rows = floats("sampler.options.embeddings", table, (None, None), bound=FLOAT32_MAX)
    if rows.shape[1] == 0:
        raise UserError(f"sampler.options.embeddings has shape {list(rows.shape)}, expected at least one column")
    return _in_core(rows)


def _in_core(rows: Floats) -> Floats:
    """Converts rows to float32 or float64, as the core requires."""
    return rows.astype(np.promote_types(rows.dtype, np.float32), copy=False)


def _symmetric(graph: CSC) -> CSC:
    """Returns the graph's symmetric, simple form, computed once per graph."""
    if graph not in _SYMMETRIC:
        symmetric, _ = graph.symmetrize()
        if symmetric.num_edges != graph.num_edges:
            message = "metropolis_hastings walks the edges of this directed graph in both directions"
            warnings.warn(message, stacklevel=5)
        simple = _without_parallel_edges(symmetric)
        _SYMMETRIC[graph] = simple if simple.num_edges != graph.num_edges else None
    return _SYMMETRIC[graph] or graph


def _without_parallel_edges(graph: CSC) -> CSC:
    """Removes repeated edges. A node's in-edges must be sorted by source."""
    first = np.ones(graph.num_edges + 1, np.bool_)
    first[1:-1] = graph.indices[1:] != graph.indices[:-1]
    first[graph.indptr] = True
    if first.all():
        return graph
    before = offsets_of(first[:-1])
    return CSC(before[graph.indptr], graph.indices[first[:-1]])
