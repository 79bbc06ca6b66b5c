//! Conditions on one column that a hash index answers.

use std::hash::{Hash, Hasher};

use crate::datum::{Datum, Order, compare};
use crate::expr::{Comparison, ElementOperator, Expr};

/// A value as a key of a hash index: values of one column are equal keys exactly if Postgres finds them equal.
#[derive(Clone, Debug)]
pub struct IndexKey {
    pub(crate) value: Datum<'static>,
    pub(crate) order: Order,
}

impl PartialEq for IndexKey {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order && is_same(&self.value, &other.value, self.order)
    }
}

impl Eq for IndexKey {}

impl Hash for IndexKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        hash_value(&self.value, self.order, state);
    }
}

/// Equality of two values of one type.
pub(crate) fn is_same(left: &Datum<'_>, right: &Datum<'_>, order: Order) -> bool {
    std::mem::discriminant(left) == std::mem::discriminant(right) && compare(left, right, order).is_eq()
}

/// Hash that is equal for values that are the same.
pub(crate) fn hash_value<H: Hasher>(value: &Datum<'_>, order: Order, state: &mut H) {
    match value {
        Datum::Null | Datum::Array(_) => {}
        Datum::Bool(value) => value.hash(state),
        Datum::Int(value) | Datum::Time(value) | Datum::Timestamp(value) => value.hash(state),
        Datum::Float(value) if value.is_nan() => f64::NAN.to_bits().hash(state),
        // -0 equals 0.
        Datum::Float(value) => (value + 0.0).to_bits().hash(state),
        Datum::Numeric(value) => value.normalised().to_string().hash(state),
        Datum::Text(value) if order == Order::Bpchar => value.trim_end_matches(' ').hash(state),
        Datum::Text(value) => value.hash(state),
        Datum::Uuid(value) => value.hash(state),
        Datum::Date(value) => value.hash(state),
        Datum::Interval(value) => value.span().hash(state),
    }
}

/// A condition `column = one of keys`. Without keys it is never true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexConjunct {
    /// Number of the column, counted from zero.
    pub column: usize,
    /// The values for which the condition is true, each once.
    pub keys: Vec<IndexKey>,
}

/// The conditions that hold wherever the expression is true.
pub(crate) fn index_conjuncts(expr: &Expr) -> Vec<IndexConjunct> {
    match expr {
        Expr::And(args) => args.iter().filter_map(conjunct).collect(),
        other => conjunct(other).into_iter().collect(),
    }
}

/// Whether the expression is true exactly where its only condition is.
pub(crate) fn is_index_conjunct(expr: &Expr) -> bool {
    !matches!(expr, Expr::And(_)) && conjunct(expr).is_some()
}

fn key(value: &Datum<'static>, order: Order) -> Option<IndexKey> {
    let indexable = !value.is_null() && !matches!(value, Datum::Array(_));
    indexable.then(|| IndexKey { value: value.clone(), order })
}

/// The column, if values of the constant's representation can be looked up by it.
fn column_of(expr: &Expr) -> Option<usize> {
    match expr.without_relabels() {
        Expr::Column(index, _) => Some(*index as usize),
        _ => None,
    }
}

fn conjunct(expr: &Expr) -> Option<IndexConjunct> {
    let boolean = |arg: &Expr, value: bool| {
        let column = column_of(arg)?;
        Some(IndexConjunct { column, keys: vec![key(&Datum::Bool(value), Order::Natural)?] })
    };
    match expr {
        Expr::Compare(Comparison::Equal, order, pair) => {
            let (column, value) = match (&pair.0, &pair.1) {
                (arg, Expr::Const(value, _)) | (Expr::Const(value, _), arg) => (column_of(arg)?, value),
                _ => return None,
            };
            Some(IndexConjunct { column, keys: vec![key(value, *order)?] })
        }
        Expr::Column(..) => boolean(expr, true),
        Expr::Not(arg) => boolean(arg, false),
        Expr::IsBool(arg, Some(value), false) => boolean(arg, *value),
        Expr::Quantified(quantified) if quantified.any => {
            let ElementOperator::Compare(Comparison::Equal, order) = quantified.operator else { return None };
            let Expr::Const(Datum::Array(array), _) = &quantified.right else { return None };
            let column = column_of(&quantified.left)?;
            let mut keys = Vec::with_capacity(array.items.len());
            // NULL never makes the condition true.
            for item in array.items.iter().filter(|item| !item.is_null()) {
                keys.push(key(item, order)?);
            }
            Some(IndexConjunct { column, keys: without_repeats(keys) })
        }
        Expr::Or(args) => disjunction(args),
        _ => None,
    }
}

fn without_repeats(keys: Vec<IndexKey>) -> Vec<IndexKey> {
    let mut seen = std::collections::HashSet::with_capacity(keys.len());
    keys.into_iter().filter(|key| seen.insert(key.clone())).collect()
}

/// An OR of conditions on one column.
fn disjunction(args: &[Expr]) -> Option<IndexConjunct> {
    let mut all: Option<IndexConjunct> = None;
    for arg in args.iter().filter(|arg| !arg.is_null_const()) {
        let part = conjunct(arg)?;
        match &mut all {
            Some(all) if all.column == part.column => all.keys.extend(part.keys),
            Some(_) => return None,
            None => all = Some(part),
        }
    }
    all.map(|all| IndexConjunct { keys: without_repeats(all.keys), ..all })
}
