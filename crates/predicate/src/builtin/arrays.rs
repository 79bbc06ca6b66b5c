//! Functions of arrays.

use super::Function;
use crate::datum::{ArrayValue, Datum, Dimension, Order, compare};
use crate::error::EvalError;

fn array<'d>(datum: &'d Datum<'_>) -> Option<&'d ArrayValue> {
    if let Datum::Array(value) = datum { Some(value) } else { None }
}

fn has_item(array: &ArrayValue, item: &Datum<'_>) -> bool {
    array.items.iter().any(|other| !other.is_null() && compare(other, item, Order::Natural).is_eq())
}

/// Whether all items of `part` are in `whole`; NULL is in no array.
fn contains<'a>(whole: &Datum<'a>, part: &Datum<'a>) -> Result<Datum<'a>, EvalError> {
    let (Some(whole), Some(part)) = (array(whole), array(part)) else { return Ok(Datum::Null) };
    Ok(Datum::Bool(part.items.iter().all(|item| !item.is_null() && has_item(whole, item))))
}

fn overlaps<'a>(args: &[Datum<'a>]) -> Result<Datum<'a>, EvalError> {
    let (Some(left), Some(right)) = (array(&args[0]), array(&args[1])) else { return Ok(Datum::Null) };
    Ok(Datum::Bool(right.items.iter().any(|item| !item.is_null() && has_item(left, item))))
}

fn incompatible() -> EvalError {
    EvalError::InvalidArgument("cannot concatenate incompatible arrays")
}

fn one_dimension() -> EvalError {
    EvalError::InvalidArgument("argument must be empty or one-dimensional array")
}

/// Not strict: NULL counts as an empty array.
fn cat<'a>(args: &[Datum<'a>]) -> Result<Datum<'a>, EvalError> {
    let (left, right) = match (array(&args[0]), array(&args[1])) {
        (Some(left), Some(right)) => (left, right),
        (Some(_), None) => return Ok(args[0].clone()),
        (None, _) => return Ok(args[1].clone()),
    };
    if left.dimensions.is_empty() || right.dimensions.is_empty() {
        return Ok(if left.dimensions.is_empty() { args[1].clone() } else { args[0].clone() });
    }
    let (left_depth, right_depth) = (left.dimensions.len(), right.dimensions.len());
    let mut dimensions = if left_depth >= right_depth { left.dimensions.clone() } else { right.dimensions.clone() };
    let fits = match left_depth as i64 - right_depth as i64 {
        0 => {
            dimensions[0].len += right.dimensions[0].len;
            left.dimensions[1..] == right.dimensions[1..]
        }
        1 => {
            dimensions[0].len += 1;
            left.dimensions[1..] == right.dimensions[..]
        }
        -1 => {
            dimensions[0].len += 1;
            right.dimensions[1..] == left.dimensions[..]
        }
        _ => false,
    };
    if !fits {
        return Err(incompatible());
    }
    let items = left.items.iter().chain(&right.items).cloned().collect();
    Ok(Datum::array(ArrayValue { dimensions, items }))
}

/// Not strict: NULL counts as an empty array, and a NULL item is added.
fn add_item<'a>(list: &Datum<'a>, item: &Datum<'a>, at_start: bool) -> Result<Datum<'a>, EvalError> {
    let mut value = array(list).cloned().unwrap_or_default();
    match value.dimensions.as_mut_slice() {
        [] => value.dimensions.push(Dimension { len: 1, lower: 1 }),
        [only] => only.len += 1,
        _ => return Err(one_dimension()),
    }
    let at = if at_start { 0 } else { value.items.len() };
    value.items.insert(at, item.clone().into_owned());
    Ok(Datum::array(value))
}

fn dimension_count<'a>(args: &[Datum<'a>]) -> Result<Datum<'a>, EvalError> {
    Ok(match array(&args[0]) {
        Some(value) if !value.dimensions.is_empty() => Datum::Int(value.dimensions.len() as i64),
        _ => Datum::Null,
    })
}

fn length<'a>(args: &[Datum<'a>]) -> Result<Datum<'a>, EvalError> {
    let (Some(value), Datum::Int(number)) = (array(&args[0]), &args[1]) else { return Ok(Datum::Null) };
    let dimension = usize::try_from(*number - 1).ok().and_then(|at| value.dimensions.get(at));
    Ok(dimension.map_or(Datum::Null, |dimension| Datum::Int(i64::from(dimension.len))))
}

fn cardinality<'a>(args: &[Datum<'a>]) -> Result<Datum<'a>, EvalError> {
    Ok(array(&args[0]).map_or(Datum::Null, |value| Datum::Int(value.items.len() as i64)))
}

pub(super) fn function(source: &str) -> Option<Function> {
    Some(match source {
        "arraycontains" => |args| contains(&args[0], &args[1]),
        "arraycontained" => |args| contains(&args[1], &args[0]),
        "arrayoverlap" => overlaps,
        "array_cat" => cat,
        "array_append" => |args| add_item(&args[0], &args[1], false),
        "array_prepend" => |args| add_item(&args[1], &args[0], true),
        "array_ndims" => dimension_count,
        "array_length" => length,
        "array_cardinality" => cardinality,
        _ => return None,
    })
}
