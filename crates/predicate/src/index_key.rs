//! Conditions on one column that a hash index answers.

/// A value as a key of a hash index: values of one type are equal keys exactly if Postgres finds them equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IndexKey(pub(crate) Box<[u8]>);

/// A condition `column = one of keys`. Without keys it is never true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexConjunct {
    /// Number of the column, counted from zero.
    pub column: usize,
    /// The values for which the condition is true.
    pub keys: Vec<IndexKey>,
}
