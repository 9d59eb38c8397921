"""The native core: NumPy arrays in, NumPy arrays out.

Bad input raises `gnnkit.errors.UserError` with the argument, the value and the place.
An argument of another type raises `TypeError` with the argument. Counts have bounds.
An allocation that cannot be made is an error too.
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
def csc_with_tags(
    src: _Ids, dst: npt.NDArray[np.int32], tags: _Ids, num_nodes: int, num_sources: int, threads: int | None = None
) -> tuple[_Ids, _Ids, _Ids]:
    """Sorts edges by destination and source, equal ones in their order.

    Returns indptr, sources in the type of `src`, and the tag of each edge.
    """

def csc_crossing(
    indptr: _Ids,
    indices: _Ids,
    owner: npt.NDArray[np.int32],
    grid: tuple[int, int, int],
    edge_cell: npt.NDArray[np.int32] | None = None,
    threads: int | None = None,
) -> tuple[
    int,
    npt.NDArray[np.bool_],
    npt.NDArray[np.bool_],
    npt.NDArray[np.int64],
    npt.NDArray[np.int64],
    npt.NDArray[np.int64],
    int,
]:
    """Counts the edges between owners, and the rows that cells exchange.

    Returns the edges between owners, [num_nodes] whether a node has one, [ranks *
    ranks] whether owners of destination and source have one, [cells] held edges, [cells
    * cells] sources of a cell's edges that another owns, [cells * cells] destinations
    that a cell owns of another's edges, and pairs of a node and a cell with it.
    """

def csc_cuthill_mckee(indptr: _Ids, indices: _Ids, num_sources: int) -> npt.NDArray[np.int64]:
    """Returns the nodes in the reversed order of Cuthill and McKee."""

def csc_missed_rows(
    indptr: _Ids, indices: _Ids, num_sources: int, slots: tuple[int, int], order: _Ids | None = None
) -> int:
    """Counts edges whose source's row a cache has lost, over caches of `slots` rows.

    Nodes read in an `order` of 0..num_nodes-1, and each of them must be a source. None:
    0, 1, ... Of more than 16 million edges, 16 stretches of a million are counted.
    """

def csc_edges(indptr: _Ids, indices: _Ids) -> npt.NDArray[np.int64]:
    """Returns sources and then destinations of all edges, [2 * num_edges]."""

def csc_transpose(
    indptr: _Ids, indices: _Ids, num_sources: int, threads: int | None = None
) -> tuple[_Ids, _Ids, _Ids]: ...
def csc_symmetrize(indptr: _Ids, indices: _Ids, threads: int | None = None) -> tuple[_Ids, _Ids, _Ids]: ...
def csc_degrees(
    indptr: _Ids, indices: _Ids, num_sources: int, weight: _Floats | None
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]: ...

# buckets
def count_bins(ids: _Ids, shift: int, num_bins: int, threads: int | None = None) -> npt.NDArray[np.int64]: ...
def bucket_order(
    ids: _Ids, shift: int, buckets: npt.NDArray[np.int32], num_buckets: int, threads: int | None = None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns the positions of ids by (bucket, position), and the size of each bucket.

    Args:
        ids: [k] ids.
        shift: The bin of an id is `id >> shift`.
        buckets: [num_bins] bucket of each bin.
        num_buckets: Number of buckets.
        threads: Threads. Default: the cores at hand.
    """

@final
class IdTable:
    """Finds the number of each of many distinct texts."""

    def __new__(cls, data: _Bytes, offsets: _Ids) -> IdTable:
        """Copies the texts `data[offsets[i]:offsets[i + 1]]`, by number i.

        Raises `UserError` for a text that is there twice, and for 2^32 - 1 texts.
        """

    def find(self, data: _Bytes, offsets: _Ids, threads: int | None = None) -> npt.NDArray[np.int64]:
        """Returns the number of each text, -1 for one that the table lacks."""

# border
def min_words(
    indptr: _Ids, indices: _Ids, node_rank: npt.NDArray[np.int32], grid: tuple[int, int, int], max_imbalance: float
) -> tuple[npt.NDArray[np.int32], int]: ...

# links
def negative_pairs(
    pairs: _Ids,
    ids: _Ids,
    num_nodes: int,
    known: _Ids | None,
    among: _Ids | None,
    count: int,
    key: int,
    threads: int,
    ends: tuple[int, int, int, int] | None = None,
) -> npt.NDArray[np.int64]:
    """Draws pairs of nodes for each edge, with another source or destination.

    Args:
        pairs: [k, 2] edges.
        ids: [k] a number of each edge.
        num_nodes: Number of nodes, at most 3,037,000,499.
        known: [num_known] ascending codes `destination * num_nodes + source` of pairs
            that are not drawn. Codes in another order are not found.
        among: [num_candidates] nodes that are drawn. None: all nodes.
        count: Pairs for each edge.
        key: Key of all draws.
        threads: Threads that draw.
        ends: First and last position among the candidates of sources, then of
            destinations, the last ones excluded. Pairs then have another destination,
            unless all are excluded. None: either end is any candidate.

    Returns:
        Pairs [k * count * 2].
    """

def pair_draws(pairs: _Ids, num_nodes: int, key: int, threads: int) -> npt.NDArray[np.float64]:
    """Draws a number in [0, 1) for each pair, for its reverse the same.

    Args:
        pairs: [k, 2] edges.
        num_nodes: Number of nodes, at most 3,037,000,499.
        key: Key of all draws.
        threads: Threads that draw.
    """

def edges_without(
    indptr: _Ids, indices: _Ids, src_nodes: _Ids, excluded: _Ids, num_nodes: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Finds the edges of a block that join no excluded pair, in either direction.

    Args:
        indptr: [num_dst + 1]
        indices: [num_edges] source of each edge, as a place in `src_nodes`.
        src_nodes: [num_src] global ids, destinations first.
        excluded: [k] ascending codes `larger end * num_nodes + smaller end`.
        num_nodes: Number of nodes, at most 3,037,000,499.

    Returns:
        Where the edges of each destination start and end [num_dst + 1], and their
        places in the block.
    """

# streaming
def stream_nodes(
    indptr: _Ids,
    indices: _Ids,
    num_parts: int,
    score: str,
    order: str,
    key: int,
    max_imbalance: float,
    passes: int,
) -> npt.NDArray[np.int32]: ...
def buffer_nodes(
    indptr: _Ids, indices: _Ids, num_parts: int, buffer: int, max_imbalance: float, passes: int
) -> npt.NDArray[np.int32]: ...
def stream_edges(
    indptr: _Ids, indices: _Ids, num_parts: int, max_imbalance: float, balance: float | None
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]: ...
def cover_cells(
    indptr: _Ids, indices: _Ids, node_cell: npt.NDArray[np.int32], num_cells: int, max_imbalance: float
) -> npt.NDArray[np.int32]: ...

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
    """Writes row `ids[i]` of `source` to row i of `out`.

    Args:
        source: [num_rows, row_bytes] C-contiguous.
        ids: [num_ids] rows wanted.
        out: [num_ids, row_bytes] C-contiguous.
        threads: Threads that copy.
    """

# row_file
_Counts = tuple[int, int, int, int]  # rows in memory, and rows, bytes and reads of the file

@final
class RowFile:
    """Rows of a file, read by position, of which some stay in memory.

    Args:
        path: The file.
        begin: Place of the first row, in bytes.
        num_rows: Rows of the file.
        row_bytes: Bytes of a row.
        policy: exact, lru or static.
        capacity: Most rows that stay.
        direct: Whether reads pass by the system's cache of files.
        ring: Whether io_uring reads, which Linux has. Else threads do.
    """

    def __new__(
        cls,
        path: str,
        begin: int,
        num_rows: int,
        row_bytes: int,
        policy: str,
        capacity: int,
        direct: bool,
        ring: bool,
    ) -> RowFile: ...
    def read(self, ids: _Ids, out: _Bytes) -> _Counts:
        """Writes row `ids[i]` to row i of `out`, beside the rows that stay."""

    def fill(self, rows: _Ids) -> _Counts:
        """Reads rows that stay, under policy static."""

    def announce(self, rows: _Ids) -> None:
        """Tells the rows of a further batch, each once."""

    def forget(self) -> None:
        """Forgets the announced batches."""

    def take(self, out: _Bytes) -> _Counts:
        """Writes the rows of the first announced batch."""

    def count(self) -> _Counts:
        """Counts what `take` would read, and reads nothing."""

# aggregate
@final
class Aggregator:
    """Sums, maxima and dot products over the in-edges of each destination.

    Holds a validated copy of the edges: 4 bytes each, 8 when transposed, and at most
    2^32 - 1 edges. Arrays are C-contiguous and of one float type, float32 or float64.
    Sums also take rows of bfloat16, as uint16. Weights then are float32, sums are
    computed in float32, and rounded once.

    Results are written to `out`. `out` must not share memory with other arrays. x is
    [num_sources, ...]. Weights and edge results are [num_edges] or [num_edges, heads].
    The columns of a row divide evenly into heads, so [n, heads, d] and [n, heads * d]
    are the same.

    One thread takes the edges of a destination in the order given, and rounds products
    before adding. So bits are the same on any number of threads and any machine.
    """

    def __new__(cls, indptr: _Ids, indices: _Ids, num_sources: int) -> Aggregator: ...
    @property
    def num_sources(self) -> int: ...
    @property
    def num_destinations(self) -> int: ...
    @property
    def num_edges(self) -> int: ...
    def transpose(self) -> Aggregator:
        """Returns the edges by source, ascending in destination, for a backward pass.

        Weights stay in the order of the original.
        """

    def sum(
        self,
        x: _Floats,
        out: _Floats,
        threads: int = 1,
        *,
        weight: _Floats | None = None,
        source: _Floats | None = None,
        destination: _Floats | None = None,
        own: float = 0,
        add: bool = False,
        width: int | None = None,
    ) -> None:
        """Computes out[v] = destination[v] * sum of factor * x[u] + own * x[v].

        The sum is over the edges e = u -> v. The factor is weight[e], for each head, or
        source[u]. A factor that is not given is 1.

        Args:
            x: [num_sources, ...]
            out: [num_destinations, ...]
            threads: Threads that compute.
            weight: [num_edges] or [num_edges, heads]
            source: [num_sources], not beside `weight`.
            destination: [num_destinations]
            own: Factor of the destination's own row. The destinations are the first
                sources then.
            add: Whether the result is added to `out`.
            width: Columns that are read and written, from the first on. Default: all,
                of which `x` and `out` have equally many.
        """

    def sum_beside(
        self,
        x: _Floats,
        out: _Floats,
        threads: int = 1,
        *,
        weight: _Floats | None = None,
        source: _Floats | None = None,
        destination: _Floats | None = None,
        kept: npt.NDArray[np.uint32] | None = None,
        p: float = 0,
    ) -> None:
        """Computes out[v] = [sum | x[v]], with the sums of `sum`.

        The destinations are the first sources. With `kept`, `x` stands for the rows
        that `dropout` makes of `x`, which are not written anywhere.

        Args:
            x: [num_sources, f]
            out: [num_destinations, 2 f]
            threads: Threads that compute.
            weight: [num_edges]
            source: [num_sources], not beside `weight`.
            destination: [num_destinations]
            kept: [num_sources, f / 32 rounded up] from `dropout_kept`. Default: no
                dropout.
            p: Probability given to `dropout_kept`.
        """

    def sum_beside_backward(
        self,
        grad: _Floats,
        out: _Floats,
        threads: int = 1,
        *,
        weight: _Floats | None = None,
        source: _Floats | None = None,
        destination: _Floats | None = None,
    ) -> None:
        """Computes out[u] = b[u] + sum of a[v], where grad[v] = [a[v] | b[v]].

        The gradient of `sum_beside`, over the transposed edges. Rows of `out` beyond
        those of `grad` have no b.

        Args:
            grad: [num_sources, 2 f]
            out: [num_destinations, f]
            threads: Threads that compute.
            weight: [num_edges] in the order of the original.
            source: [num_sources], the factors of the original's destinations.
            destination: [num_destinations], the factors of the original's sources.
        """

    def drop_stored(self, values: _Floats, ids: _Ids, p: float, key: int, out: _Floats, threads: int = 1) -> None:
        """Writes what `dropout` makes of numbers that are stored without the zeros.

        Edge e = u -> v is the number `values[e]` in column u of row v. The row's id is
        `ids[v]`.

        Args:
            values: [num_edges] float32 or float64.
            ids: [num_destinations] ids of the rows.
            p: Probability of 0, in steps of 2^-16.
            key: 0 to 2^64 - 1.
            out: [num_edges]
            threads: Threads that compute.
        """

    def edge_dot(self, x: _Floats, grad: _Floats, out: _Floats, threads: int = 1) -> None:
        """Computes out[e, h] = x[u, h] . grad[v, h] for edges e = u -> v.

        This is the gradient of the weights. Not on a transpose.

        Args:
            x: [num_sources, ...]
            grad: [num_destinations, ...] gradient of the sums.
            out: [num_edges] or [num_edges, heads]
            threads: Threads that compute.
        """

    def max(self, x: _Floats, out: _Floats, arg: npt.NDArray[np.int64], threads: int = 1) -> None:
        """Computes out[v] = maximum of x[u] over the edges u -> v.

        Without edges the maximum is -inf. NaN counts as larger than any number.

        Args:
            x: [num_sources, ...]
            out: [num_destinations, ...]
            arg: [num_destinations, ...] position of the first edge with the maximum, or
                -1 without edges.
            threads: Threads that compute.
        """

    def max_backward(self, grad: _Floats, arg: npt.NDArray[np.int64], out: _Floats, threads: int = 1) -> None:
        """Computes the gradient of `max`, on the transpose.

        out[u] = sum of grad[v] over the edges e = u -> v with arg[v] = e.

        Args:
            grad: [num_destinations, ...] gradient of the maxima.
            arg: [num_destinations, ...] from `max`.
            out: [num_sources, ...]
            threads: Threads that compute.
        """

# attention
def attend(
    edges: Aggregator,
    x: _Floats,
    source: _Floats,
    destination: _Floats,
    slope: float,
    out: _Floats,
    stats: _Floats,
    bent: _Floats | None = None,
    edge: _Floats | None = None,
    ids: npt.NDArray[np.int64] | None = None,
    p: float = 0,
    key: int = 0,
    threads: int = 1,
) -> None:
    """Computes out[v, h] = sum of weight[e, h] * x[u, h] over the edges e = u -> v.

    The weights are the softmax of leaky_relu(source[u] + destination[v] + edge[e]) over
    the edges into v, after dropout keyed by `ids`. Without edges the sum is 0.

    Args:
        edges: Not a transpose.
        x: [num_sources, heads, d]
        source: [num_sources, heads]
        destination: [num_destinations, heads]
        slope: Slope of the leaky ReLU below 0.
        out: [num_destinations, heads, d]
        stats: [num_destinations, 3, heads] largest score, 1 / sum of powers, and the
            sum of weights times slopes, written for the backward pass.
        bent: [num_destinations, heads, d] sums of weights times slopes, written for the
            backward pass. Default: not wanted.
        edge: [num_edges, heads]. Default: 0.
        ids: [num_edges] ids of the edges. Default: no dropout.
        p: Probability that a weight is zeroed.
        key: Key of all draws.
        threads: Threads that compute.
    """

def attend_destinations(
    destination: _Floats,
    grad: _Floats,
    out: _Floats,
    bent: _Floats,
    stats: _Floats,
    info: _Floats,
    slopes: _Floats,
    threads: int = 1,
) -> None:
    """Computes the gradient of `destination`, the first part of the backward pass.

    Args:
        destination: [num_destinations, heads]
        grad: [num_destinations, heads, d] gradient of `out`.
        out: from `attend`.
        bent: from `attend`.
        stats: from `attend`.
        info: [num_destinations, 4, heads] written, read by the other parts.
        slopes: [num_destinations, heads] gradient of `destination`, written.
        threads: Threads that compute.
    """

def attend_backward(
    edges: Aggregator,
    x: _Floats,
    source: _Floats,
    grad: _Floats,
    info: _Floats,
    slope: float,
    out: _Floats,
    slopes: _Floats,
    edge: _Floats | None = None,
    ids: npt.NDArray[np.int64] | None = None,
    p: float = 0,
    key: int = 0,
    threads: int = 1,
) -> None:
    """Computes the gradients of `x`, to `out`, and of `source`, to `slopes`.

    `edges` is a transpose. The other arguments are those of `attend`, in the order of
    the original edges, and `grad` and `info` those of `attend_destinations`.
    """

def attend_edges(
    edges: Aggregator,
    x: _Floats,
    source: _Floats,
    info: _Floats,
    slope: float,
    out: _Floats,
    edge: _Floats | None = None,
    ids: npt.NDArray[np.int64] | None = None,
    p: float = 0,
    key: int = 0,
    threads: int = 1,
) -> None:
    """Computes the gradient of `edge` from `Aggregator.edge_dot`, in place in `out`."""

# balance
def tree_sizes(
    indptr: _Ids, indices: _Ids, fanouts: Sequence[int], replace: bool, seeds: _Ids, threads: int
) -> npt.NDArray[np.float64]: ...
def even_order(
    costs: npt.NDArray[np.float64], num_workers: int, batch_size: int, window: int, key: int
) -> npt.NDArray[np.int64]: ...
def shuffled_order(ids: _Ids, key: int) -> npt.NDArray[np.int64]: ...

# sample
Batch = tuple[_Ids, list[int], _Ids, _Ids, _Ids, _Floats | None, _Ids | None]

class Sampler:
    @staticmethod
    def neighbor(fanouts: Sequence[int], replace: bool, redraw: bool, importance: str | None) -> Sampler: ...
    @staticmethod
    def weighted(fanouts: Sequence[int], replace: bool, redraw: bool, importance: str | None) -> Sampler: ...
    @staticmethod
    def equal(fanouts: Sequence[int], redraw: bool, importance: str | None) -> Sampler: ...
    @staticmethod
    def balanced(fanouts: Sequence[int], redraw: bool, importance: str | None) -> Sampler: ...
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
    ) -> tuple[_Ids, _Ids, _Ids, _Floats | None, _Ids | None]: ...
    def sample(self, reading: Reading, seeds: _Ids, key: int, threads: int) -> Batch: ...

def grow(
    edge_types: Sequence[tuple[Sampler, Reading, int, int]],
    seeds: Sequence[tuple[_Ids, _Ids, int]],
    trees: tuple[_Ids, _Ids | None, tuple[_Ids, int, int, bool] | None] | None,
    num_hops: int,
    key: int,
    *,
    induced: bool,
    most_draws: int,
    threads: int,
) -> tuple[
    list[tuple[_Ids, _Ids, list[int]]],
    list[tuple[_Ids, _Ids, _Ids, _Floats | None, _Ids | None]],
    npt.NDArray[np.int64],
]:
    """Draws all hops of a batch of several types.

    All edge types of a hop draw in turn for the nodes known when the hop begins.

    Args:
        edge_types: Sampler, edges, and the node types of sources and destinations. The
            draws of type i have the key `derive(key, i)`.
        seeds: Seeds, their trees, and number of nodes of each node type.
        trees: A number per tree that keys its draws, and the latest time that each tree
            sees, or None. Without trees, those of seeds are empty, and seeds that
            repeat draw independently. The third element bounds what nodes see by the
            time of the edge to them: each tree's time, how long before it a tree sees
            edges, the factor from times to keys, and whether seeds' trees are apart.
        num_hops: At most the number of fanouts.
        key: The batch's key.
        induced: Whether to return all visible edges among the nodes.
        most_draws: The most draws with replacement of an edge type in a hop.
        threads: Number of threads.

    Returns:
        Nodes, their trees, and how many were known at each hop, by node type. `indptr`,
        local sources, edge ids, weights and relations, by edge type. The time of each
        tree, if edges bound what nodes see.
    """

def visited(reading: Reading, starts: _Ids, walks: tuple[int, int, float], key: int) -> _Ids: ...
def water_fill(degrees: _Ids, budget: int) -> npt.NDArray[np.int64]: ...

class Numbering:
    def __init__(self, seeds: _Ids, num_nodes: int) -> None: ...
    def add(self, ids: _Ids) -> _Ids: ...
    def nodes(self) -> _Ids: ...

# dropout
def dropout(
    x: _Floats, ids: _Ids, p: float, key: int, out: _Floats, gate: _Floats | None = None, threads: int = 1
) -> None:
    """Writes `x` to `out`, each element kept and scaled, or 0 with probability `p`.

    The draw of an element follows from `key`, the id of the row and the column alone.
    Element j of id i is kept iff the (j mod 4)-th 16 bits, lowest first, of
    word(derive(key, i), j // 4) are at least t = floor(65536 p + 0.5). The scale is
    65536 / (65536 - t), rounded to the type of `x`. On 64 bits, wrapping around, with
    G = 0x9e3779b97f4a7c15:

        derive(key, i) = mix(key ^ mix(i + G))
        word(s, k) = mix(s + G * (k + 1))
        mix(z):
            z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9
            z = (z ^ z >> 27) * 0x94d049bb133111eb
            return z ^ z >> 31

    The gradient is the same call on the gradient, with the same gate.

    Args:
        x: [num_ids, ...] float32, float64, or bfloat16 as uint16.
        ids: [num_ids] ids of the rows.
        p: Probability of 0, in steps of 2^-16.
        key: 0 to 2^64 - 1.
        out: [num_ids, ...]
        gate: [num_ids, ...] elements with a gate of 0 or less become 0 too. `gate=x` is
            a ReLU first. Default: no gate.
        threads: Threads that compute.
    """

def dropout_kept(ids: _Ids, width: int, p: float, key: int, kept: npt.NDArray[np.uint32], threads: int = 1) -> None:
    """Writes a bit for each element of `width` columns: whether `dropout` keeps it.

    Bit j % 32 of `kept[row, j // 32]` is of element j of the row.

    Args:
        ids: [num_ids] ids of the rows.
        width: Columns.
        p: Probability of 0, in steps of 2^-16.
        key: 0 to 2^64 - 1.
        kept: [num_ids, width / 32 rounded up]
        threads: Threads that compute.
    """

def rectify(
    x: _Floats, ids: _Ids, p: float, key: int, out: _Floats, kept: npt.NDArray[np.uint32], threads: int = 1
) -> None:
    """Writes `dropout(x, ids, p, key, out, gate=x)`, and a bit for each element.

    Bit j % 32 of `kept[row, j // 32]` says whether element j of the row is kept.

    Args:
        x: [num_ids, f]
        ids: [num_ids] ids of the rows.
        p: Probability of 0, in steps of 2^-16.
        key: 0 to 2^64 - 1.
        out: [num_ids, f]
        kept: [num_ids, f / 32 rounded up]
        threads: Threads that compute.
    """

def rectify_backward(grad: _Floats, kept: npt.NDArray[np.uint32], p: float, out: _Floats, threads: int = 1) -> None:
    """Writes the gradient of `rectify`: kept elements of `grad`, scaled.

    Args:
        grad: [num_rows, f]
        kept: [num_rows, f / 32 rounded up] from `rectify`.
        p: Probability given to `rectify`.
        out: [num_rows, f]
        threads: Threads that compute.
    """

# loader
@final
class Loader:
    """One rank's batches of an epoch, made ahead on threads.

    Step i has seeds `seeds[offsets[i] : offsets[i + 1]]` and the key `derive(key, i)`.

    Args:
        graph: The reading of a native sampler, or the graph of a sampler in Python.
        sampler: A native sampler, or an object with a method `sample`.
        steps: Seeds, offsets, number of the first step, and key.
        tables: [num_nodes, row_bytes] rows to gather for each batch's input nodes.
        allocate: Returns an array of uint8 for a number of bytes. Nobody else may hold
            the array or the memory. The loader uses the memory again when no view is
            left.
        threads: 1 to 1024 threads.
        depth: 1 to 65536 batches that are made ahead.
    """

    def __new__(
        cls,
        graph: Reading | CSC,
        sampler: object,
        steps: tuple[_Ids, Sequence[int], int, int],
        tables: Sequence[_Bytes],
        allocate: Callable[[int], _Bytes],
        threads: int,
        depth: int,
    ) -> Loader: ...
    def take(self) -> tuple[Any, list[_Bytes]]:
        """Returns the next batch, and a buffer for each table.

        A buffer begins with the rows of the batch.

        Raises the error of a thread. Raises `RuntimeError` after the last batch, after
        `close` and after a fork.
        """

    def last_work(self) -> tuple[int, float, float, float]:
        """Returns how the last batch taken was made.

        Returns:
            Number of the thread, and seconds since the loader was made at which the
            thread began, had drawn the batch, and had gathered the rows.
        """

    def close(self) -> None:
        """Ends the threads, after the current batches."""

def derive(key: int, value: int) -> int: ...
