//! Implementations of operators, functions and casts, by the name of Postgres' C function.

mod arrays;
mod casts;
mod dates;
mod numbers;
mod texts;

use std::collections::HashSet;
use std::sync::OnceLock;

use crate::catalog::{Oid, Routine};
use crate::datum::Datum;
use crate::error::EvalError;
use crate::expr::Comparison;

pub(crate) use casts::reads_text_exactly;
pub(crate) use dates::is_utc;
pub(crate) use numbers::{FloatOperator, IntegerOperator};

/// Arguments in, result out. NULL is among the arguments of a function that is not strict only.
pub(crate) type Function = for<'a> fn(&[Datum<'a>]) -> Result<Datum<'a>, EvalError>;

/// An implementation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Builtin {
    /// Integer arithmetic with the result's type.
    Integer(IntegerOperator, Oid),
    /// Float arithmetic with the result's type.
    Float(FloatOperator, Oid),
    /// Output function of this type.
    ToText(Oid),
    /// Input function of this type.
    FromText(Oid),
    Plain(Function),
}

impl Builtin {
    /// Applies the function to arguments that suit it.
    pub(crate) fn apply<'a>(self, args: &[Datum<'a>]) -> Result<Datum<'a>, EvalError> {
        match self {
            Self::Integer(operator, oid) => numbers::integer(operator, oid, args),
            Self::Float(operator, oid) => numbers::float(operator, oid, args),
            Self::ToText(oid) => Ok(Datum::text(crate::output::to_text(&args[0], oid))),
            Self::FromText(oid) => casts::from_text(&args[0], oid),
            Self::Plain(function) => function(args),
        }
    }
}

/// Property of the arguments' collation on which a routine depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CollationNeed {
    Nothing,
    /// Equality is equality of bytes.
    Deterministic,
    /// Only ASCII letters have case.
    AsciiCase,
}

/// The implementation of an operator, a function or a cast; none if it is not supported.
pub(crate) fn builtin(source: &str, result: Oid) -> Option<Builtin> {
    let integer = source.strip_prefix("int").and_then(numbers::integer_operator);
    if let Some(operator) = integer {
        return Some(Builtin::Integer(operator, result));
    }
    if let Some(operator) = numbers::float_operator(source) {
        return Some(Builtin::Float(operator, result));
    }
    let function = casts::function(source)
        .or_else(|| numbers::function(source))
        .or_else(|| texts::function(source))
        .or_else(|| dates::function(source))
        .or_else(|| arrays::function(source))?;
    Some(Builtin::Plain(function))
}

/// Types of comparison functions; a function of two types has `eq` and the like between or after their names.
const COMPARED: [&str; 32] = [
    "bool",
    "int2",
    "int4",
    "int8",
    "int24",
    "int28",
    "int42",
    "int48",
    "int82",
    "int84",
    "float4",
    "float8",
    "float48",
    "float84",
    "text",
    "bpchar",
    "name",
    "numeric",
    "uuid",
    "date",
    "time",
    "timestamp",
    "interval",
    "array",
    "nametext",
    "textname",
    "datetimestamp",
    "timestampdate",
    "timestamptzdate",
    "datetimestamptz",
    "timestamptimestamptz",
    "timestamptztimestamp",
];

/// Names of all comparison functions, without underscores.
fn comparison_names() -> &'static HashSet<String> {
    static NAMES: OnceLock<HashSet<String>> = OnceLock::new();
    NAMES.get_or_init(|| {
        let mut names = HashSet::new();
        for types in COMPARED {
            for operation in ["eq", "ne", "lt", "le", "gt", "ge"] {
                names.extend((1..=types.len()).map(|at| format!("{}{operation}{}", &types[..at], &types[at..])));
            }
        }
        names
    })
}

/// The comparison that a routine is.
pub(crate) fn comparison(routine: &Routine) -> Option<Comparison> {
    let comparison = match routine.name {
        "=" => Comparison::Equal,
        "<>" => Comparison::NotEqual,
        "<" => Comparison::Less,
        "<=" => Comparison::LessOrEqual,
        ">" => Comparison::Greater,
        ">=" => Comparison::GreaterOrEqual,
        _ => return None,
    };
    comparison_names().contains(&routine.source.replace('_', "")).then_some(comparison)
}

/// Properties that the collation must have for the result to be that of Postgres.
pub(crate) fn collation_need(source: &str) -> CollationNeed {
    match source {
        "lower" | "upper" | "texticlike" | "texticnlike" | "nameiclike" | "nameicnlike" => CollationNeed::AsciiCase,
        "textlike" | "textnlike" | "namelike" | "namenlike" | "text_starts_with" | "textpos" => {
            CollationNeed::Deterministic
        }
        _ => CollationNeed::Nothing,
    }
}
