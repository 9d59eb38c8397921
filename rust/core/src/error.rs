//! Errors of input, with the numbers inside.

/// The first thing found wrong with the caller's arrays.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An array's length does not follow from the others.
    #[error("{name} has {actual} entries, expected {expected}")]
    Length {
        /// Which array.
        name: &'static str,
        /// Its length.
        actual: usize,
        /// The length it must have.
        expected: usize,
    },
    /// `indptr` must start with 0.
    #[error("indptr[0] = {0}, expected 0")]
    IndptrStart(i64),
    /// `indptr` must not decrease.
    #[error("indptr[{position}] = {value} is below indptr[{}] = {previous}", position - 1)]
    IndptrDecreases {
        /// Position of the smaller value.
        position: usize,
        /// Value there.
        value: i64,
        /// Value before it.
        previous: i64,
    },
    /// Texts must stand one behind the other.
    #[error("offsets[{position}] = {value} is below offsets[{}] = {previous}", position - 1)]
    OffsetsDecrease {
        /// Position of the smaller value.
        position: usize,
        /// Value there.
        value: i64,
        /// Value before it.
        previous: i64,
    },
    /// An id lies outside of its range.
    #[error("{name}[{position}] = {value} is out of range for {bound} {of}")]
    OutOfRange {
        /// Which array.
        name: &'static str,
        /// Position of the value.
        position: usize,
        /// The value.
        value: i64,
        /// Valid values are `0..bound`.
        bound: usize,
        /// The things that the ids count: nodes, edges.
        of: &'static str,
    },
    /// A number is NaN or infinite.
    #[error("{name}[{position}] = {value} is not finite")]
    NotFinite {
        /// Which array.
        name: &'static str,
        /// Position of the value.
        position: usize,
        /// The value.
        value: f64,
    },
    /// A count asks for more memory than can be had.
    #[error("{name} = {value} needs more memory than there is")]
    TooLarge {
        /// Which count.
        name: &'static str,
        /// Its value.
        value: usize,
    },
    /// A count lies outside of its bounds.
    #[error("{name} = {value} must be within {low}..={high}")]
    Count {
        /// Which count.
        name: &'static str,
        /// Its value.
        value: usize,
        /// The smallest possible.
        low: usize,
        /// The largest possible.
        high: usize,
    },
    /// Columns do not divide into heads.
    #[error("{width} columns do not divide into {heads} heads")]
    Heads {
        /// Number of columns.
        width: usize,
        /// Number of heads.
        heads: usize,
    },
    /// Rows are too narrow.
    #[error("{name} has {columns} columns, {width} are asked for")]
    Narrow {
        /// Which array.
        name: &'static str,
        /// Its columns.
        columns: usize,
        /// The columns asked for.
        width: usize,
    },
    /// More than 32 bits can count.
    #[error("{actual} {name} are more than the limit of {limit}")]
    TooMany {
        /// The things that are counted.
        name: &'static str,
        /// How many there are.
        actual: usize,
        /// How many there may be.
        limit: usize,
    },
    /// Only the edges in their own order have dot products.
    #[error("edge_dot of a transposed aggregator: call it on the original one, with x and grad exchanged")]
    Transposed,
    /// A result and its gradient need the edges in opposite directions.
    #[error("{function} of {name} needs the {wanted} aggregator")]
    Direction {
        /// The function that was called.
        function: &'static str,
        /// Its rows.
        name: &'static str,
        /// original or transposed.
        wanted: &'static str,
    },
    /// Destinations must be among the sources to have a row of their own.
    #[error("out: the {num_destinations} destinations are not the first of {num_sources} sources")]
    NotPrefix {
        /// Destinations of the edges.
        num_destinations: usize,
        /// Sources of the edges.
        num_sources: usize,
    },
    /// The edges of a node are not a range of the edges that there are.
    #[error("indptr[{node}..={}] = {start}, {end} is not a range of {num_edges} edges", node + 1)]
    EdgeRange {
        /// Destination of the edges.
        node: usize,
        /// `indptr[node]`.
        start: i64,
        /// `indptr[node + 1]`.
        end: i64,
        /// Edges that there are.
        num_edges: usize,
    },
    /// A node that draws by relation draws from all in-edges of each relation.
    #[error("{name} does not apply to draws by relation")]
    ByRelation {
        /// The array or law.
        name: &'static str,
    },
    /// The law reads edges that are later than a node sees.
    #[error("{name} does not draw by time: use neighbor or weighted")]
    ByTime {
        /// The law.
        name: &'static str,
    },
    /// Draws with replacement, which no degree bounds.
    #[error(
        "num_neighbors={fanout} with replacement, for {num_rows} nodes of a batch, needs more memory than there is"
    )]
    Draws {
        /// Draws per node.
        fanout: usize,
        /// Nodes that draw.
        num_rows: usize,
    },
    /// The in-edges of a relation must be some of the node's own.
    #[error("relations.starts[{at}..] = {begin}, {end} is not within the in-edges {first}..{last} of node {node}")]
    RowRange {
        /// Number of the relation's edges among all groups.
        at: usize,
        /// The node.
        node: usize,
        /// Where its edges to draw from begin.
        begin: i64,
        /// Where they end.
        end: i64,
        /// Its first in-edge.
        first: usize,
        /// The end of its in-edges.
        last: usize,
    },
    /// Ids that must be distinct are not.
    #[error("{name}[{position}] = {value} repeats {name}[{first}]")]
    Repeated {
        /// Which array.
        name: &'static str,
        /// Position of the second occurrence.
        position: usize,
        /// Position of the first one.
        first: usize,
        /// The value.
        value: i64,
    },
    /// A weight is negative, NaN or infinite.
    #[error("{name}[{position}] = {value} is not a finite number of at least 0")]
    Weight {
        /// Which array.
        name: &'static str,
        /// Position of the value.
        position: usize,
        /// The value.
        value: f64,
    },
    /// A number is negative, NaN or infinite.
    #[error("{name} = {value} is not a finite number of at least 0")]
    Amount {
        /// Which argument.
        name: &'static str,
        /// The value.
        value: f64,
    },
    /// Weights that are finite one by one are not so together.
    #[error("the weights of the edges into node {node} sum to infinity")]
    WeightSum {
        /// Destination of the edges.
        node: usize,
    },
    /// A law drew what the node may not draw.
    #[error("the law drew {value} for node {node}, which is none of its in-edges")]
    Drawn {
        /// The node that draws.
        node: usize,
        /// Position of an edge, or a node.
        value: i64,
    },
    /// A law removed what earlier rows had drawn.
    #[error("the law of node {node} removed draws of other nodes")]
    Withdrawn {
        /// The node that draws.
        node: usize,
    },
    /// A fanout is neither a number of neighbours nor -1.
    #[error("fanouts[{hop}] = {fanout} is below -1 (-1 means all neighbours)")]
    Fanout {
        /// Hop, 0 is the seeds' own.
        hop: usize,
        /// The value.
        fanout: i64,
    },
    /// There is no such hop.
    #[error("hop {hop} is out of range for {num_hops} hops")]
    Hop {
        /// Hop asked for.
        hop: usize,
        /// Hops that there are.
        num_hops: usize,
    },
    /// Sources are numbered apart from destinations, so a hop cannot follow a hop.
    #[error(
        "the graph has {num_sources} sources and {num_nodes} destinations: its sources cannot be the next hop's nodes"
    )]
    NotSquare {
        /// Number of destinations.
        num_nodes: usize,
        /// Number of sources.
        num_sources: usize,
    },
    /// No pair of nodes without an edge is left to draw.
    #[error("no pair without an edge was found for the edge {edge:?}: nearly all pairs are edges")]
    NoPair {
        /// Source and destination of the edge.
        edge: [i64; 2],
    },
    /// Bytes of a file cannot be read.
    #[error("{path}: byte {at}: {why}")]
    Read {
        /// The file.
        path: String,
        /// The place in the file.
        at: u64,
        /// The system's reason.
        why: String,
    },
    /// A probability outside of [0, 1].
    #[error("p = {0} is not a probability")]
    Probability(f64),
}

pub(crate) fn check_length(name: &'static str, actual: usize, expected: usize) -> Result<(), Error> {
    if actual == expected {
        return Ok(());
    }
    Err(Error::Length { name, actual, expected })
}

pub(crate) fn check_count(name: &'static str, actual: usize, limit: usize) -> Result<(), Error> {
    if actual <= limit {
        return Ok(());
    }
    Err(Error::TooMany { name, actual, limit })
}
