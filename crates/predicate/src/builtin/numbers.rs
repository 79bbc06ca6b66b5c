//! Arithmetic.

use super::Function;
use crate::catalog::{FLOAT4, INT2, INT4, INT8, Oid};
use crate::datum::Datum;
use crate::error::EvalError;
use crate::input::checked_integer;
use crate::numeric::Numeric;

/// An operator on integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IntegerOperator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
    Not,
    Negate,
    Plus,
    Abs,
}

/// An operator on floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FloatOperator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Negate,
    Plus,
    Abs,
}

/// Reads what follows `int` in a function's name: sizes, then the operation.
pub(super) fn integer_operator(rest: &str) -> Option<IntegerOperator> {
    let operation = rest.trim_start_matches(['2', '4', '8']);
    if operation.len() == rest.len() {
        return None;
    }
    Some(match operation {
        "pl" => IntegerOperator::Add,
        "mi" => IntegerOperator::Subtract,
        "mul" => IntegerOperator::Multiply,
        "div" => IntegerOperator::Divide,
        "mod" => IntegerOperator::Remainder,
        "and" => IntegerOperator::And,
        "or" => IntegerOperator::Or,
        "xor" => IntegerOperator::Xor,
        "shl" => IntegerOperator::ShiftLeft,
        "shr" => IntegerOperator::ShiftRight,
        "not" => IntegerOperator::Not,
        "um" => IntegerOperator::Negate,
        "up" => IntegerOperator::Plus,
        "abs" => IntegerOperator::Abs,
        _ => return None,
    })
}

pub(super) fn float_operator(source: &str) -> Option<FloatOperator> {
    let rest = source.strip_prefix("float")?;
    let operation = rest.trim_start_matches(['4', '8']);
    Some(match operation {
        "pl" => FloatOperator::Add,
        "mi" => FloatOperator::Subtract,
        "mul" => FloatOperator::Multiply,
        "div" => FloatOperator::Divide,
        "um" => FloatOperator::Negate,
        "up" => FloatOperator::Plus,
        "abs" => FloatOperator::Abs,
        _ => return None,
    })
}

fn int(datum: &Datum<'_>) -> i64 {
    if let Datum::Int(value) = datum { *value } else { 0 }
}

/// Arguments are integers; a unary operator has one.
pub(super) fn integer<'a>(operator: IntegerOperator, oid: Oid, args: &[Datum<'a>]) -> Result<Datum<'a>, EvalError> {
    let left = int(&args[0]);
    let right = args.get(1).map_or(0, int);
    let value = match operator {
        IntegerOperator::Add => left.checked_add(right),
        IntegerOperator::Subtract => left.checked_sub(right),
        IntegerOperator::Multiply => left.checked_mul(right),
        IntegerOperator::Divide | IntegerOperator::Remainder if right == 0 => return Err(EvalError::DivisionByZero),
        IntegerOperator::Divide => left.checked_div(right),
        IntegerOperator::Remainder => Some(left.wrapping_rem(right)),
        IntegerOperator::And => Some(left & right),
        IntegerOperator::Or => Some(left | right),
        IntegerOperator::Xor => Some(left ^ right),
        IntegerOperator::ShiftLeft | IntegerOperator::ShiftRight => Some(shift(operator, oid, left, right)?),
        IntegerOperator::Not => Some(!left),
        IntegerOperator::Negate => left.checked_neg(),
        IntegerOperator::Plus => Some(left),
        IntegerOperator::Abs => left.checked_abs(),
    };
    let range = EvalError::OutOfRange(if oid == INT8 { "bigint" } else { "integer" });
    checked_integer(value.ok_or(range)?, oid).map(Datum::Int)
}

/// The processor decides what a shift by more than the width is; bits that leave the type are lost.
fn shift(operator: IntegerOperator, oid: Oid, left: i64, right: i64) -> Result<i64, EvalError> {
    let width = if oid == INT8 { 64 } else { 32 };
    if !(0..width).contains(&right) {
        return Err(EvalError::Unsupported("a shift by a negative number or by more than the width of the type"));
    }
    let value = if operator == IntegerOperator::ShiftLeft { left << right } else { left >> right };
    Ok(match oid {
        INT2 => i64::from(value as i16),
        INT4 => i64::from(value as i32),
        _ => value,
    })
}

fn double(datum: &Datum<'_>) -> f64 {
    if let Datum::Float(value) = datum { *value } else { 0.0 }
}

fn overflow() -> EvalError {
    EvalError::OutOfRange("float (overflow)")
}

fn underflow() -> EvalError {
    EvalError::OutOfRange("float (underflow)")
}

/// Arguments are floats; `oid` determines the precision of the operation.
pub(super) fn float<'a>(operator: FloatOperator, oid: Oid, args: &[Datum<'a>]) -> Result<Datum<'a>, EvalError> {
    let left = double(&args[0]);
    let right = args.get(1).map_or(0.0, double);
    let single = |value: f64| value as f32;
    let value = match (operator, oid == FLOAT4) {
        (FloatOperator::Add, false) => left + right,
        (FloatOperator::Add, true) => f64::from(single(left) + single(right)),
        (FloatOperator::Subtract, false) => left - right,
        (FloatOperator::Subtract, true) => f64::from(single(left) - single(right)),
        (FloatOperator::Multiply, false) => left * right,
        (FloatOperator::Multiply, true) => f64::from(single(left) * single(right)),
        (FloatOperator::Divide, _) if right == 0.0 && !left.is_nan() => return Err(EvalError::DivisionByZero),
        (FloatOperator::Divide, false) => left / right,
        (FloatOperator::Divide, true) => f64::from(single(left) / single(right)),
        (FloatOperator::Negate, _) => -left,
        (FloatOperator::Plus, _) => left,
        (FloatOperator::Abs, _) => left.abs(),
    };
    let dividing = operator == FloatOperator::Divide;
    let multiplying = operator == FloatOperator::Multiply;
    if value.is_infinite() && !left.is_infinite() && (dividing || !right.is_infinite()) {
        return Err(overflow());
    }
    let vanished = value == 0.0 && left != 0.0;
    if vanished && (dividing && !right.is_infinite() || multiplying && right != 0.0) {
        return Err(underflow());
    }
    Ok(Datum::Float(value))
}

pub(super) fn float8_to_float4(value: f64) -> Result<f64, EvalError> {
    let narrow = value as f32;
    if narrow.is_infinite() && value.is_finite() {
        return Err(overflow());
    }
    if narrow == 0.0 && value != 0.0 {
        return Err(underflow());
    }
    Ok(f64::from(narrow))
}

fn numeric<'d>(datum: &'d Datum<'_>) -> &'d Numeric {
    static ZERO: std::sync::OnceLock<Numeric> = std::sync::OnceLock::new();
    if let Datum::Numeric(value) = datum { value } else { ZERO.get_or_init(|| Numeric::from(0)) }
}

fn unary<'a>(args: &[Datum<'a>], operation: impl Fn(&Numeric) -> Numeric) -> Result<Datum<'a>, EvalError> {
    Ok(Datum::numeric(operation(numeric(&args[0]))))
}

type NumericOperation = fn(&Numeric, &Numeric) -> Result<Numeric, EvalError>;

fn binary<'a>(args: &[Datum<'a>], operation: NumericOperation) -> Result<Datum<'a>, EvalError> {
    operation(numeric(&args[0]), numeric(&args[1])).map(Datum::numeric)
}

fn square_root<'a>(args: &[Datum<'a>]) -> Result<Datum<'a>, EvalError> {
    let value = double(&args[0]);
    if value < 0.0 {
        return Err(EvalError::InvalidArgument("cannot take square root of a negative number"));
    }
    Ok(Datum::Float(value.sqrt()))
}

fn sign<'a>(args: &[Datum<'a>]) -> Result<Datum<'a>, EvalError> {
    let value = double(&args[0]);
    // NaN is neither above nor below zero.
    let sign = if value > 0.0 {
        1.0
    } else if value < 0.0 {
        -1.0
    } else {
        0.0
    };
    Ok(Datum::Float(sign))
}

pub(super) fn function(source: &str) -> Option<Function> {
    Some(match source {
        "numeric_add" => |args| binary(args, Numeric::add),
        "numeric_sub" => |args| binary(args, Numeric::subtract),
        "numeric_mul" => |args| binary(args, Numeric::multiply),
        "numeric_div" => |args| binary(args, Numeric::divide),
        "numeric_mod" => |args| binary(args, Numeric::remainder),
        "numeric_uminus" => |args| unary(args, Numeric::negate),
        "numeric_uplus" => |args| unary(args, Numeric::clone),
        "numeric_abs" => |args| unary(args, Numeric::abs),
        "numeric_sign" => |args| unary(args, Numeric::signum),
        "dsqrt" => square_root,
        "dsign" => sign,
        _ => return None,
    })
}
