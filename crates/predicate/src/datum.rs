//! Typed values.

use std::borrow::Cow;
use std::cmp::Ordering;

use crate::datetime::Interval;
use crate::numeric::Numeric;

/// A value of a supported type. The type itself is known from the expression.
#[derive(Clone, Debug)]
pub(crate) enum Datum<'a> {
    Null,
    Bool(bool),
    /// int2, int4, int8
    Int(i64),
    /// float4, whose values are floats of double precision as well, and float8
    Float(f64),
    Numeric(Cow<'a, Box<Numeric>>),
    /// text, varchar, bpchar with its blanks, name, and the text form of enums and opaque types
    Text(Cow<'a, str>),
    Uuid([u8; 16]),
    Date(i32),
    Time(i64),
    /// timestamp and timestamptz
    Timestamp(i64),
    Interval(Interval),
    Array(Cow<'a, Box<ArrayValue>>),
}

/// An array of any number of dimensions; without dimensions it is empty.
#[derive(Clone, Debug, Default)]
pub(crate) struct ArrayValue {
    pub(crate) dimensions: Vec<Dimension>,
    /// The items in row-major order.
    pub(crate) items: Vec<Datum<'static>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dimension {
    pub(crate) len: i32,
    pub(crate) lower: i32,
}

/// How two values of one type are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Natural,
    /// Trailing blanks do not count.
    Bpchar,
}

impl Datum<'_> {
    pub(crate) fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    pub(crate) fn into_owned(self) -> Datum<'static> {
        match self {
            Self::Null => Datum::Null,
            Self::Bool(value) => Datum::Bool(value),
            Self::Int(value) => Datum::Int(value),
            Self::Float(value) => Datum::Float(value),
            Self::Numeric(value) => Datum::Numeric(Cow::Owned(value.into_owned())),
            Self::Text(value) => Datum::Text(Cow::Owned(value.into_owned())),
            Self::Uuid(value) => Datum::Uuid(value),
            Self::Date(value) => Datum::Date(value),
            Self::Time(value) => Datum::Time(value),
            Self::Timestamp(value) => Datum::Timestamp(value),
            Self::Interval(value) => Datum::Interval(value),
            Self::Array(value) => Datum::Array(Cow::Owned(value.into_owned())),
        }
    }

    /// The same value, borrowed.
    pub(crate) fn borrowed(&self) -> Datum<'_> {
        match self {
            Self::Numeric(value) => Datum::Numeric(Cow::Borrowed(value)),
            Self::Text(value) => Datum::Text(Cow::Borrowed(value)),
            Self::Array(value) => Datum::Array(Cow::Borrowed(value)),
            Self::Null => Datum::Null,
            Self::Bool(value) => Datum::Bool(*value),
            Self::Int(value) => Datum::Int(*value),
            Self::Float(value) => Datum::Float(*value),
            Self::Uuid(value) => Datum::Uuid(*value),
            Self::Date(value) => Datum::Date(*value),
            Self::Time(value) => Datum::Time(*value),
            Self::Timestamp(value) => Datum::Timestamp(*value),
            Self::Interval(value) => Datum::Interval(*value),
        }
    }

    pub(crate) fn text(value: impl Into<String>) -> Self {
        Self::Text(Cow::Owned(value.into()))
    }

    pub(crate) fn numeric(value: Numeric) -> Self {
        Self::Numeric(Cow::Owned(Box::new(value)))
    }

    pub(crate) fn array(value: ArrayValue) -> Self {
        Self::Array(Cow::Owned(Box::new(value)))
    }
}

/// NaN equals itself and follows all numbers; -0 equals 0.
pub(crate) fn compare_floats(left: f64, right: f64) -> Ordering {
    match (left.is_nan(), right.is_nan()) {
        (false, false) => left.partial_cmp(&right).unwrap_or(Ordering::Equal),
        (left, right) => left.cmp(&right),
    }
}

/// Order of two values of one type that are not NULL. A date is compared with a timestamp as well.
pub(crate) fn compare(left: &Datum<'_>, right: &Datum<'_>, order: Order) -> Ordering {
    match (left, right) {
        (Datum::Int(left), Datum::Int(right)) => left.cmp(right),
        (Datum::Text(left), Datum::Text(right)) if order == Order::Bpchar => {
            left.trim_end_matches(' ').as_bytes().cmp(right.trim_end_matches(' ').as_bytes())
        }
        (Datum::Text(left), Datum::Text(right)) => left.as_bytes().cmp(right.as_bytes()),
        (Datum::Bool(left), Datum::Bool(right)) => left.cmp(right),
        (Datum::Float(left), Datum::Float(right)) => compare_floats(*left, *right),
        (Datum::Numeric(left), Datum::Numeric(right)) => left.compare(right),
        (Datum::Uuid(left), Datum::Uuid(right)) => left.cmp(right),
        (Datum::Date(left), Datum::Date(right)) => left.cmp(right),
        (Datum::Time(left), Datum::Time(right)) | (Datum::Timestamp(left), Datum::Timestamp(right)) => left.cmp(right),
        (Datum::Date(left), Datum::Timestamp(right)) => crate::datetime::date_rank(*left).cmp(&i128::from(*right)),
        (Datum::Timestamp(left), Datum::Date(right)) => i128::from(*left).cmp(&crate::datetime::date_rank(*right)),
        (Datum::Interval(left), Datum::Interval(right)) => left.span().cmp(&right.span()),
        (Datum::Array(left), Datum::Array(right)) => compare_arrays(left, right, order),
        // The checker gives both operands one type.
        _ => Ordering::Equal,
    }
}

/// Items first (NULL is equal to NULL and after all values), then the number of items, dimensions and their bounds.
fn compare_arrays(left: &ArrayValue, right: &ArrayValue, order: Order) -> Ordering {
    for (left, right) in left.items.iter().zip(&right.items) {
        let ordering = match (left.is_null(), right.is_null()) {
            (false, false) => compare(left, right, order),
            (left, right) => left.cmp(&right),
        };
        if ordering != Ordering::Equal {
            return ordering;
        }
    }
    let shape = |array: &ArrayValue| (array.items.len(), array.dimensions.len());
    shape(left).cmp(&shape(right)).then_with(|| {
        let key = |array: &ArrayValue| {
            let lens: Vec<i32> = array.dimensions.iter().map(|dimension| dimension.len).collect();
            let lowers: Vec<i32> = array.dimensions.iter().map(|dimension| dimension.lower).collect();
            (lens, lowers)
        };
        key(left).cmp(&key(right))
    })
}

/// Arrays are equal if their items, dimensions and bounds are.
pub(crate) fn arrays_equal(left: &ArrayValue, right: &ArrayValue, order: Order) -> bool {
    left.dimensions == right.dimensions && compare_arrays(left, right, order) == Ordering::Equal
}
