"""The native core: NumPy arrays in, NumPy arrays out.

Bad input raises `gnnkit.errors.UserError`, which names the argument, the value and its
place. An argument of another type raises `TypeError`, which names the argument. Counts have
bounds, and an allocation that cannot be made is an error too.
"""

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

from gnnkit.graph import CSC
from gnnkit.sampler.base import Reading

_Ids = npt.NDArray[np.integer[Any]]
_Floats = npt.NDArray[np.floating[Any]]
_Bytes = npt.NDArray[np.uint8]

__version__: str

# graph
def check_csc(indptr: _Ids, indices: _Ids, num_sources: int) -> None: ...
def csc_from_edges(
    src: _Ids, dst: _Ids, num_nodes: int, num_sources: int, positions: bool, threads: int | None = None
) -> tuple[_Ids, _Ids, _Ids]: ...
def csc_transpose(
    indptr: _Ids, indices: _Ids, num_sources: int, threads: int | None = None
) -> tuple[_Ids, _Ids, _Ids]: ...
def csc_symmetrize(indptr: _Ids, indices: _Ids, threads: int | None = None) -> tuple[_Ids, _Ids, _Ids]: ...
def csc_degrees(
    indptr: _Ids, indices: _Ids, num_sources: int, weight: _Floats | None
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]: ...

# border
def min_words(
    indptr: _Ids, indices: _Ids, node_rank: npt.NDArray[np.int32], grid: tuple[int, int, int], max_imbalance: float
) -> tuple[npt.NDArray[np.int32], int]: ...

# generate
def generate_rmat(num_nodes: int, num_edges: int, key: int, threads: int | None = None) -> tuple[_Ids, _Ids, _Ids]: ...
def generate_block_model(
    num_nodes: int, num_edges: int, num_blocks: int, in_block: float, key: int, threads: int | None = None
) -> tuple[_Ids, _Ids, _Ids]: ...
def generate_lattice(num_nodes: int, side: int, dims: int, threads: int | None = None) -> tuple[_Ids, _Ids, _Ids]: ...
def generate_labels(num_nodes: int, num_classes: int, key: int | None = None) -> npt.NDArray[np.int64]: ...
def generate_features(
    labels: npt.NDArray[np.int64], width: int, noise: float, key: int, threads: int | None = None
) -> npt.NDArray[np.float32]: ...

# gather
def gather_rows(source: _Bytes, ids: _Ids, out: _Bytes, threads: int) -> None:
    """Writes row `ids[i]` of `source` [num_rows, row_bytes] to row i of `out` [len(ids), row_bytes]; both C-contiguous."""

# aggregate
@final
class Aggregator:
    """Sums, maxima and dot products over the in-edges of each destination, float32 and float64.

    Holds an own, validated copy of the edges (4 bytes each, 8 when transposed; at most 2^32 - 1). The arrays passed in
    are C-contiguous and of one float type; results are written to `out`, which must not share memory with the rest.
    x is [num_sources, ...], weights and edge results are [num_edges] or [num_edges, heads]: the columns of a row divide
    evenly into heads, so [n, heads, d] and [n, heads * d] are the same.

    The edges of a destination are taken in the order given, by one thread, and products are rounded before they are
    added: the same bits on any number of threads and any machine.
    """

    def __new__(cls, indptr: _Ids, indices: _Ids, num_sources: int) -> Aggregator: ...
    @property
    def num_sources(self) -> int: ...
    @property
    def num_destinations(self) -> int: ...
    @property
    def num_edges(self) -> int: ...
    def transpose(self) -> Aggregator:
        """The edges by source, ascending in destination, for the backward; weights stay in the original's order."""

    def sum(self, x: _Floats, out: _Floats, threads: int = 1) -> None:
        """out[v] = sum of x[u] over the edges u -> v."""

    def weighted_sum(self, weight: _Floats, x: _Floats, out: _Floats, threads: int = 1) -> None:
        """out[v, h] = sum of weight[e, h] * x[u, h] over the edges e = u -> v, for each head h."""

    def edge_dot(self, x: _Floats, grad: _Floats, out: _Floats, threads: int = 1) -> None:
        """out[e, h] = x[u, h] . grad[v, h] for edges e = u -> v: the gradient of the weights. Not on a transpose."""

    def max(self, x: _Floats, out: _Floats, arg: npt.NDArray[np.int64], threads: int = 1) -> None:
        """out[v] = maximum of x[u] over the edges u -> v; arg[v] = position of the first edge given that has it.

        Without edges -inf and -1. NaN counts as larger than any number.
        """

    def max_backward(self, grad: _Floats, arg: npt.NDArray[np.int64], out: _Floats, threads: int = 1) -> None:
        """The gradient of `max`, on the transpose: out[u] = sum of grad[v] over edges e = u -> v where arg[v] is e."""

# balance
def tree_sizes(
    indptr: _Ids, indices: _Ids, fanouts: Sequence[int], replace: bool, seeds: _Ids, threads: int
) -> npt.NDArray[np.float64]: ...
def even_order(
    costs: npt.NDArray[np.float64], num_workers: int, batch_size: int, window: int, key: int
) -> npt.NDArray[np.int64]: ...
def shuffled_order(ids: _Ids, key: int) -> npt.NDArray[np.int64]: ...

# sample
Batch = tuple[_Ids, list[int], _Ids, _Ids, _Ids, _Floats | None]

class Sampler:
    @staticmethod
    def neighbor(fanouts: Sequence[int], replace: bool, redraw: bool, importance: str | None) -> Sampler: ...
    @staticmethod
    def weighted(fanouts: Sequence[int], replace: bool, redraw: bool, importance: str | None) -> Sampler: ...
    @staticmethod
    def balanced(
        fanouts: Sequence[int], least: int, most: int | None, redraw: bool, importance: str | None
    ) -> Sampler: ...
    @staticmethod
    def labor(fanouts: Sequence[int], redraw: bool, importance: str | None) -> Sampler: ...
    @staticmethod
    def metropolis_hastings(
        fanouts: Sequence[int], walks: tuple[int, int, float], redraw: bool, importance: str | None
    ) -> Sampler: ...
    @staticmethod
    def cluster(num_hops: int) -> Sampler: ...
    def draw(
        self, reading: Reading, nodes: _Ids, hop: int, key: int, threads: int
    ) -> tuple[_Ids, _Ids, _Ids, _Floats | None]: ...
    def sample(self, reading: Reading, seeds: _Ids, key: int, threads: int) -> Batch: ...

def visited(reading: Reading, starts: _Ids, walks: tuple[int, int, float], key: int) -> _Ids: ...
def water_fill(degrees: _Ids, budget: int, least: int, most: int | None) -> npt.NDArray[np.int64]: ...

class Numbering:
    def __init__(self, seeds: _Ids, num_nodes: int) -> None: ...
    def add(self, ids: _Ids) -> _Ids: ...
    def nodes(self) -> _Ids: ...

# dropout
def dropout(
    x: _Floats, ids: _Ids, p: float, key: int, out: _Floats, gate: _Floats | None = None, threads: int = 1
) -> None:
    """Writes x [len(ids), ...] to `out`, each element kept and scaled, or 0 with probability `p` (in steps of 2^-16).

    What is kept follows from `key` (0..2^64-1), the id of the row and the column alone: element j of id i is kept iff the
    (j mod 4)-th 16 bits, lowest first, of word(derive(key, i), j // 4) are at least t = floor(65536 p + 0.5); the scale is
    65536 / (65536 - t), rounded to x's type. On 64 bits, wrapping around, with G = 0x9e3779b97f4a7c15:

        mix(z):  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9; z = (z ^ z >> 27) * 0x94d049bb133111eb; return z ^ z >> 31
        derive(key, i) = mix(key ^ mix(i + G)); word(s, k) = mix(s + G * (k + 1))

    Where `gate` (shaped like x) is given, elements whose gate is 0 or less become 0 too: `gate=x` is a ReLU first. The
    gradient is the same call on the gradient, with the same gate.
    """

# loader
@final
class Loader:
    """One rank's batches of an epoch, made ahead on threads.

    Step i has the seeds `seeds[offsets[i] : offsets[i + 1]]` and the key `derive(key, i)`.

    Args:
        graph: The reading of a native sampler, or the graph of a sampler in Python.
        sampler: A native sampler, or an object with a method `sample`.
        steps: Seeds, offsets, number of the first step, and key.
        table: [num_rows, row_bytes] rows to gather for the input nodes of each batch.
        allocate: Returns an array of uint8 for a number of bytes. Nobody else may hold the
            array or its memory. The loader uses it again when no view of it is left.
        threads: 1 to 1024 threads.
        depth: 1 to 65536 batches that are made ahead.
    """

    def __new__(
        cls,
        graph: Reading | CSC,
        sampler: object,
        steps: tuple[_Ids, Sequence[int], int, int],
        table: _Bytes | None,
        allocate: Callable[[int], _Bytes],
        threads: int,
        depth: int,
    ) -> Loader: ...
    def take(self) -> tuple[Any, _Bytes | None]:
        """The next batch and the buffer that begins with its rows. What a thread raised is raised here; `RuntimeError`
        after the last batch, after `close` and after a fork."""

    def close(self) -> None:
        """Ends the threads, after the batches that they are at."""

def derive(key: int, value: int) -> int: ...
