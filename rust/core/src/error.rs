//! What can be wrong with input, with the numbers inside.

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
        /// What the ids count: nodes, edges.
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
    /// Columns do not divide into heads.
    #[error("{width} columns do not divide into {heads} heads")]
    Heads {
        /// Number of columns.
        width: usize,
        /// Number of heads.
        heads: usize,
    },
    /// More than 32 bits can count.
    #[error("{actual} {name} are more than the limit of {limit}")]
    TooMany {
        /// What is counted.
        name: &'static str,
        /// How many there are.
        actual: usize,
        /// How many there may be.
        limit: usize,
    },
    /// Only the edges in their own order have dot products.
    #[error("edge_dot of a transposed aggregator: call it on the original one, with x and grad exchanged")]
    Transposed,
}
