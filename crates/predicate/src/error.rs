//! Errors of a predicate's text, and of its evaluation on a row.

use std::fmt;

/// Prefix that `location` of a syntax error counts as well. Electric's server parses `SELECT 1 WHERE <text>`, and its
/// clients' tests compare the location.
const SYNTAX_PREFIX: usize = 15;

/// The reason why a predicate's text is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PredicateErrorKind {
    /// The text is not an expression of Postgres' grammar.
    Syntax,
    /// A column, operator, function, cast or type does not exist for these arguments.
    Undefined,
    /// More than one operator or function fits the arguments equally well.
    Ambiguous,
    /// A literal or parameter is not a value of its type.
    BadLiteral,
    /// A parameter is missing, or is used with two types.
    BadParameter,
    /// The predicate is not of type boolean, or an argument has the wrong type.
    WrongType,
    /// A constant part of the predicate fails, such as `1/0`.
    ConstantFails,
    /// Valid in Postgres, and not evaluated here because the exact result is not known.
    Unsupported,
    /// The text is longer, or nested deeper, than the limits.
    TooComplex,
}

/// A predicate's text is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct PredicateError {
    /// The reason, for programs.
    pub kind: PredicateErrorKind,
    /// Byte offset in the predicate's text.
    pub offset: Option<usize>,
    /// The reason, for people.
    pub message: String,
}

impl PredicateError {
    pub(crate) fn new(kind: PredicateErrorKind, offset: usize, message: impl Into<String>) -> Self {
        Self { kind, offset: Some(offset), message: message.into() }
    }

    pub(crate) fn without_location(kind: PredicateErrorKind, message: impl Into<String>) -> Self {
        Self { kind, offset: None, message: message.into() }
    }

    pub(crate) fn unsupported(offset: usize, message: impl Into<String>) -> Self {
        Self::new(PredicateErrorKind::Unsupported, offset, message)
    }

    /// The number after "At location" in the error text: for syntax errors counted from the `SELECT 1 WHERE ` that
    /// Electric's server puts in front, else from the start of the predicate.
    #[must_use]
    pub fn location(&self) -> Option<usize> {
        let prefix = if self.kind == PredicateErrorKind::Syntax { SYNTAX_PREFIX } else { 0 };
        self.offset.map(|offset| offset + prefix)
    }
}

impl fmt::Display for PredicateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.location() {
            Some(location) => write!(f, "At location {location}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

/// The evaluation of a predicate fails on a row, where Postgres raises an error as well.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EvalError {
    /// A number, date or interval exceeds its type.
    #[error("{0} out of range")]
    OutOfRange(&'static str),
    /// Division or remainder by zero.
    #[error("division by zero")]
    DivisionByZero,
    /// A function is not defined for its argument, such as the square root of a negative number.
    #[error("{0}")]
    InvalidArgument(&'static str),
    /// A text is not a value of the type to which it is cast.
    #[error("invalid input syntax for type {type_name}: \"{text}\"")]
    InvalidText {
        /// Postgres' name of the type.
        type_name: &'static str,
        /// The text, cut to 100 bytes.
        text: String,
    },
    /// A text may be a value of the type, in a form that depends on settings or is not known here.
    #[error("this form of a value of type {type_name} is not supported: \"{text}\"")]
    UnknownForm {
        /// Postgres' name of the type.
        type_name: &'static str,
        /// The text, cut to 100 characters.
        text: String,
    },
    /// Postgres may have a value for this, and this crate does not know it.
    #[error("{0} cannot be evaluated outside of Postgres")]
    Unsupported(&'static str),
    /// The row has fewer columns than its table.
    #[error("the row has {got} columns and the predicate reads column {column}")]
    ShortRow {
        /// Number of columns of the row.
        got: usize,
        /// Number of the column, counted from zero.
        column: usize,
    },
    /// A value of the row is not in the text form of its column's type.
    #[error("column {column} is not a value of type {type_name}")]
    BadRow {
        /// Number of the column, counted from zero.
        column: usize,
        /// Postgres' name of the type.
        type_name: &'static str,
    },
}
