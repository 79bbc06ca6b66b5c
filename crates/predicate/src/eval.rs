//! Evaluation of a checked expression on a row.

use std::borrow::Cow;
use std::cmp::Ordering;

use crate::catalog::{BOOL, BPCHAR, INT2, INT4, INT8, NAME, Oid, TEXT, VARCHAR, catalog};
use crate::datum::{ArrayValue, Datum, Dimension, Order, arrays_equal, compare};
use crate::error::EvalError;
use crate::expr::{Comparison, ElementOperator, Expr, ExprSubscript, Quantified, SubscriptExpr};
use crate::input::read;
use crate::value_set::ValueSet;

/// Gives the values of a row.
pub(crate) trait RowSource {
    /// The value of a column of this type.
    fn column(&self, index: usize, oid: Oid) -> Result<Datum<'_>, EvalError>;

    /// The result of a subquery; none if it is not known.
    fn values(&self, _subquery: u32) -> Option<&ValueSet> {
        None
    }
}

/// A row, and the results of the subqueries of its predicate.
pub(crate) struct RowWithSets<'r> {
    pub(crate) row: &'r dyn RowSource,
    pub(crate) sets: &'r [ValueSet],
}

impl RowSource for RowWithSets<'_> {
    fn column(&self, index: usize, oid: Oid) -> Result<Datum<'_>, EvalError> {
        self.row.column(index, oid)
    }

    fn values(&self, subquery: u32) -> Option<&ValueSet> {
        self.sets.get(subquery as usize)
    }
}

/// A row in text format, whose values are read on each use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TextFormatRow<'r>(pub(crate) &'r [Option<&'r [u8]>]);

/// A row without columns, for constants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoRow;

impl RowSource for TextFormatRow<'_> {
    fn column(&self, index: usize, oid: Oid) -> Result<Datum<'_>, EvalError> {
        let value = self.0.get(index).ok_or(EvalError::ShortRow { got: self.0.len(), column: index })?;
        value.map_or(Ok(Datum::Null), |bytes| decode(bytes, index, oid))
    }
}

impl RowSource for NoRow {
    fn column(&self, index: usize, _: Oid) -> Result<Datum<'_>, EvalError> {
        Err(EvalError::ShortRow { got: 0, column: index })
    }
}

/// Reads a column's value. Types that are not supported are read as text, for IS NULL and enums.
pub(crate) fn decode(bytes: &[u8], column: usize, oid: Oid) -> Result<Datum<'_>, EvalError> {
    let bad = || EvalError::BadRow { column, type_name: catalog().type_name(oid) };
    match oid {
        INT2 | INT4 | INT8 => decode_integer(bytes).map(Datum::Int).ok_or_else(bad),
        BOOL => match bytes {
            b"t" | b"true" => Ok(Datum::Bool(true)),
            b"f" | b"false" => Ok(Datum::Bool(false)),
            _ => Err(bad()),
        },
        _ => {
            let text = str::from_utf8(bytes).map_err(|_| bad())?;
            if [TEXT, VARCHAR, BPCHAR, NAME].contains(&oid) {
                return Ok(Datum::Text(Cow::Borrowed(text)));
            }
            read(text, oid).map_err(|error| match error {
                EvalError::InvalidText { .. } | EvalError::OutOfRange(_) => bad(),
                other => other,
            })
        }
    }
}

fn decode_integer(bytes: &[u8]) -> Option<i64> {
    let (negative, digits) = match bytes {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || digits.len() > 19 {
        return None;
    }
    let mut value = 0_i64;
    for byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        // Negative, so that the smallest number fits.
        value = value.checked_mul(10)?.checked_sub(i64::from(digit))?;
    }
    if negative { Some(value) } else { value.checked_neg() }
}

type Value<'a> = Result<Datum<'a>, EvalError>;

/// The value of an expression.
pub(crate) fn evaluate<'a>(expr: &'a Expr, row: &'a dyn RowSource) -> Value<'a> {
    match expr {
        Expr::Const(value, _) => Ok(value.borrowed()),
        Expr::Column(index, oid) => row.column(*index as usize, *oid),
        Expr::Relabel(arg, _) => evaluate(arg, row),
        Expr::Compare(operator, order, pair) => {
            let left = evaluate(&pair.0, row)?;
            let right = evaluate(&pair.1, row)?;
            if left.is_null() || right.is_null() {
                return Ok(Datum::Null);
            }
            Ok(Datum::Bool(compare_by(*operator, *order, &left, &right)))
        }
        Expr::And(args) => connective(args, row, false),
        Expr::Or(args) => connective(args, row, true),
        Expr::Not(arg) => Ok(match evaluate(arg, row)? {
            Datum::Bool(value) => Datum::Bool(!value),
            _ => Datum::Null,
        }),
        Expr::IsNull(arg, negated) => Ok(Datum::Bool(evaluate(arg, row)?.is_null() != *negated)),
        Expr::IsBool(arg, value, negated) => {
            let found = match evaluate(arg, row)? {
                Datum::Bool(found) => Some(found),
                _ => None,
            };
            Ok(Datum::Bool((found == *value) != *negated))
        }
        Expr::IsDistinct(order, pair, negated) => {
            let left = evaluate(&pair.0, row)?;
            let right = evaluate(&pair.1, row)?;
            Ok(Datum::Bool(same(&left, &right, *order) == *negated))
        }
        Expr::Call(call) => {
            let mut args = Vec::with_capacity(call.args.len());
            for arg in &call.args {
                args.push(evaluate(arg, row)?);
            }
            if call.strict && args.iter().any(Datum::is_null) {
                return Ok(Datum::Null);
            }
            call.builtin.apply(&args)
        }
        Expr::Quantified(quantified) => evaluate_quantified(quantified, row),
        Expr::InSubquery(query) => {
            let set = row.values(query.number).ok_or(EvalError::Unsupported("a subquery"))?;
            Ok(set.contains(&evaluate(&query.left, row)?).map_or(Datum::Null, Datum::Bool))
        }
        Expr::Coalesce(args, _) => {
            for arg in args {
                let value = evaluate(arg, row)?;
                if !value.is_null() {
                    return Ok(value);
                }
            }
            Ok(Datum::Null)
        }
        Expr::Extreme(greatest, order, args, _) => extreme(*greatest, *order, args, row),
        Expr::NullIf(order, pair, _) => {
            let left = evaluate(&pair.0, row)?;
            let right = evaluate(&pair.1, row)?;
            let equal = !left.is_null() && !right.is_null() && same(&left, &right, *order);
            Ok(if equal { Datum::Null } else { left })
        }
        Expr::Array(items, _, nested) => construct(items, *nested, row),
        Expr::Subscript(subscript) => evaluate_subscript(subscript, row),
        Expr::CastElements(pair, _) => cast_elements(&pair.0, &pair.1, row),
        Expr::Element(_) => row.column(0, 0),
    }
}

/// Whether the comparison holds. Arrays are equal only if their bounds are.
fn compare_by(operator: Comparison, order: Order, left: &Datum<'_>, right: &Datum<'_>) -> bool {
    if let (Datum::Array(left), Datum::Array(right)) = (left, right) {
        match operator {
            Comparison::Equal => return arrays_equal(left, right, order),
            Comparison::NotEqual => return !arrays_equal(left, right, order),
            _ => {}
        }
    }
    operator.holds(compare(left, right, order))
}

/// Equality in which NULL equals NULL.
fn same(left: &Datum<'_>, right: &Datum<'_>, order: Order) -> bool {
    match (left.is_null(), right.is_null()) {
        (false, false) => compare_by(Comparison::Equal, order, left, right),
        (left, right) => left == right,
    }
}

/// AND, or OR if `decisive` is true: the first argument with that value decides.
fn connective<'a>(args: &'a [Expr], row: &'a dyn RowSource, decisive: bool) -> Value<'a> {
    let mut unknown = false;
    for arg in args {
        match evaluate(arg, row)? {
            Datum::Bool(value) if value == decisive => return Ok(Datum::Bool(decisive)),
            Datum::Bool(_) => {}
            _ => unknown = true,
        }
    }
    Ok(if unknown { Datum::Null } else { Datum::Bool(!decisive) })
}

fn evaluate_quantified<'a>(quantified: &'a Quantified, row: &'a dyn RowSource) -> Value<'a> {
    let left = evaluate(&quantified.left, row)?;
    let right = evaluate(&quantified.right, row)?;
    let Datum::Array(array) = &right else { return Ok(Datum::Null) };
    if array.items.is_empty() {
        return Ok(Datum::Bool(!quantified.any));
    }
    if left.is_null() {
        return Ok(Datum::Null);
    }
    let mut unknown = false;
    for item in &array.items {
        let value = match quantified.operator {
            _ if item.is_null() => Datum::Null,
            ElementOperator::Compare(operator, order) => Datum::Bool(compare_by(operator, order, &left, item)),
            ElementOperator::Call(builtin, _) => builtin.apply(&[left.borrowed(), item.borrowed()])?.into_owned(),
        };
        match value {
            Datum::Bool(value) if value == quantified.any => return Ok(Datum::Bool(value)),
            Datum::Bool(_) => {}
            _ => unknown = true,
        }
    }
    Ok(if unknown { Datum::Null } else { Datum::Bool(!quantified.any) })
}

/// GREATEST and LEAST ignore NULL.
fn extreme<'a>(greatest: bool, order: Order, args: &'a [Expr], row: &'a dyn RowSource) -> Value<'a> {
    let better = if greatest { Ordering::Greater } else { Ordering::Less };
    let mut chosen = Datum::Null;
    for arg in args {
        let value = evaluate(arg, row)?;
        if !value.is_null() && (chosen.is_null() || compare(&value, &chosen, order) == better) {
            chosen = value;
        }
    }
    Ok(chosen)
}

fn construct<'a>(items: &'a [Expr], nested: bool, row: &'a dyn RowSource) -> Value<'a> {
    let mismatch =
        EvalError::InvalidArgument("multidimensional arrays must have array expressions with matching dimensions");
    let mut values = Vec::with_capacity(items.len());
    for item in items {
        values.push(evaluate(item, row)?.into_owned());
    }
    if !nested {
        let dimension = Dimension { len: values.len() as i32, lower: 1 };
        let dimensions = if values.is_empty() { Vec::new() } else { vec![dimension] };
        return Ok(Datum::array(ArrayValue { dimensions, items: values }));
    }
    let mut inner: Option<Vec<Dimension>> = None;
    let mut result = ArrayValue::default();
    let (mut count, mut empty) = (0, false);
    for value in values {
        match value {
            Datum::Array(array) if !array.dimensions.is_empty() => {
                if inner.get_or_insert_with(|| array.dimensions.clone()) != &array.dimensions {
                    return Err(mismatch);
                }
                count += 1;
                result.items.extend(array.into_owned().items);
            }
            _ => empty = true,
        }
    }
    match inner {
        Some(_) if empty => Err(mismatch),
        Some(inner) if inner.len() >= 6 => {
            Err(EvalError::InvalidArgument("number of array dimensions exceeds the maximum allowed (6)"))
        }
        Some(inner) => {
            result.dimensions.push(Dimension { len: count, lower: 1 });
            result.dimensions.extend(inner);
            Ok(Datum::array(result))
        }
        None => Ok(Datum::array(result)),
    }
}

/// The bound of a subscript; `None` inside is NULL.
fn bound(expr: &Expr, row: &dyn RowSource) -> Result<Option<i64>, EvalError> {
    Ok(match evaluate(expr, row)? {
        Datum::Int(value) => Some(value),
        _ => None,
    })
}

fn evaluate_subscript<'a>(subscript: &'a SubscriptExpr, row: &'a dyn RowSource) -> Value<'a> {
    let arg = evaluate(&subscript.arg, row)?;
    let Datum::Array(array) = &arg else { return Ok(Datum::Null) };
    let is_slice = subscript.subscripts.iter().any(|part| matches!(part, ExprSubscript::Slice(..)));
    let mut ranges = Vec::with_capacity(subscript.subscripts.len());
    for (at, part) in subscript.subscripts.iter().enumerate() {
        let dimension = array.dimensions.get(at).copied().unwrap_or(Dimension { len: 0, lower: 1 });
        let last = i64::from(dimension.lower) + i64::from(dimension.len) - 1;
        let (lower, upper) = match part {
            // `[n]` means `[1:n]` if another subscript is a slice.
            ExprSubscript::Index(index) if is_slice => (Some(1), bound(index, row)?),
            ExprSubscript::Index(index) => {
                let index = bound(index, row)?;
                (index, index)
            }
            ExprSubscript::Slice(lower, upper) => (
                lower.as_ref().map_or(Ok(Some(i64::from(dimension.lower))), |lower| bound(lower, row))?,
                upper.as_ref().map_or(Ok(Some(last)), |upper| bound(upper, row))?,
            ),
        };
        let (Some(lower), Some(upper)) = (lower, upper) else { return Ok(Datum::Null) };
        ranges.push((lower, upper));
    }
    if is_slice {
        return Ok(Datum::array(slice(array, &ranges)));
    }
    if ranges.len() != array.dimensions.len() {
        return Ok(Datum::Null);
    }
    let mut position = 0;
    for (dimension, (index, _)) in array.dimensions.iter().zip(ranges) {
        let offset = index - i64::from(dimension.lower);
        if !(0..i64::from(dimension.len)).contains(&offset) {
            return Ok(Datum::Null);
        }
        position = position * dimension.len as usize + offset as usize;
    }
    Ok(array.items[position].clone())
}

/// The part of an array within the ranges; further dimensions are whole.
fn slice(array: &ArrayValue, ranges: &[(i64, i64)]) -> ArrayValue {
    if array.dimensions.is_empty() || ranges.len() > array.dimensions.len() {
        return ArrayValue::default();
    }
    let mut offsets = Vec::with_capacity(array.dimensions.len());
    for (at, dimension) in array.dimensions.iter().enumerate() {
        let first = i64::from(dimension.lower);
        let last = first + i64::from(dimension.len) - 1;
        let (lower, upper) =
            ranges.get(at).map_or((first, last), |(lower, upper)| ((*lower).max(first), (*upper).min(last)));
        if lower > upper {
            return ArrayValue::default();
        }
        offsets.push((lower - first) as usize..(upper - first + 1) as usize);
    }
    let dimensions = offsets.iter().map(|range| Dimension { len: range.len() as i32, lower: 1 }).collect();
    let inside = |mut position: usize| {
        array.dimensions.iter().zip(&offsets).rev().all(|(dimension, range)| {
            let offset = position % dimension.len as usize;
            position /= dimension.len as usize;
            range.contains(&offset)
        })
    };
    let items = array
        .items
        .iter()
        .enumerate()
        .filter(|(position, _)| inside(*position))
        .map(|(_, item)| item.clone())
        .collect();
    ArrayValue { dimensions, items }
}

/// A row whose only column is an element of an array.
struct ElementRow<'r>(Datum<'r>);

impl RowSource for ElementRow<'_> {
    fn column(&self, _: usize, _: Oid) -> Result<Datum<'_>, EvalError> {
        Ok(self.0.borrowed())
    }
}

fn cast_elements<'a>(arg: &'a Expr, cast: &'a Expr, row: &'a dyn RowSource) -> Value<'a> {
    let value = evaluate(arg, row)?;
    let Datum::Array(array) = &value else { return Ok(Datum::Null) };
    let mut items = Vec::with_capacity(array.items.len());
    for item in &array.items {
        items.push(evaluate(cast, &ElementRow(item.borrowed()))?.into_owned());
    }
    Ok(Datum::array(ArrayValue { dimensions: array.dimensions.clone(), items }))
}

/// Whether a type's order ignores trailing blanks.
pub(crate) fn order_of(oid: Oid) -> Order {
    let element = catalog().element(oid).unwrap_or(oid);
    if element == BPCHAR { Order::Bpchar } else { Order::Natural }
}
