//! `numeric`: decimal numbers with a scale (`src/backend/utils/adt/numeric.c`).

use std::cmp::Ordering;
use std::fmt;

use num_bigint::{BigInt, Sign};

use crate::error::EvalError;

/// Digits before the point.
const WEIGHT_DIGITS_MAX: i64 = 131_072;
/// Digits after the point.
const SCALE_MAX: u32 = 16_383;
/// Digits after the point that a division shows at most, and significant digits that it shows at least.
const DISPLAY_SCALE_MAX: i64 = 1000;
const SIGNIFICANT_DIGITS_MIN: i64 = 16;

const OVERFLOW: EvalError = EvalError::OutOfRange("numeric value");

/// A number. Equality of the type is that of the representation; SQL's is [`Numeric::compare`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Numeric {
    NegativeInfinity,
    /// `coefficient` / 10^`scale`
    Finite {
        coefficient: BigInt,
        scale: u32,
    },
    Infinity,
    NaN,
}

use Numeric::{Finite, Infinity, NaN, NegativeInfinity};

fn power_of_ten(exponent: u32) -> BigInt {
    BigInt::from(10).pow(exponent)
}

/// Number of decimal digits; 0 has none.
fn digit_count(number: &BigInt) -> i64 {
    if number.sign() == Sign::NoSign { 0 } else { number.magnitude().to_string().len() as i64 }
}

/// `number` / 10^`digits`, rounded half away from zero.
fn shift_right(number: &BigInt, digits: u32) -> BigInt {
    let divisor = power_of_ten(digits);
    divide_rounded(number, &divisor)
}

fn divide_rounded(number: &BigInt, divisor: &BigInt) -> BigInt {
    let quotient = number / divisor;
    let remainder = number - &quotient * divisor;
    if remainder.magnitude() * 2_u32 < *divisor.magnitude() {
        return quotient;
    }
    if (number.sign() == Sign::Minus) == (divisor.sign() == Sign::Minus) { quotient + 1 } else { quotient - 1 }
}

impl From<i64> for Numeric {
    fn from(number: i64) -> Self {
        Finite { coefficient: number.into(), scale: 0 }
    }
}

impl Numeric {
    /// Reads the text form; none if it is not a number. `Err` if it exceeds the type.
    pub(crate) fn parse(text: &str) -> Option<Result<Self, EvalError>> {
        let text = text.trim_matches(|c: char| c.is_ascii_whitespace() || c == '\x0b');
        let (negative, digits) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        if text.eq_ignore_ascii_case("nan") {
            return Some(Ok(NaN));
        }
        if digits.eq_ignore_ascii_case("infinity") || digits.eq_ignore_ascii_case("inf") {
            return Some(Ok(if negative { NegativeInfinity } else { Infinity }));
        }
        let (mantissa, exponent) = match digits.find(['e', 'E']) {
            Some(at) => (&digits[..at], Some(&digits[at + 1..])),
            None => (digits, None),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if !all_digits(whole) || !all_digits(fraction) || whole.len() + fraction.len() == 0 {
            return None;
        }
        let exponent: i64 = match exponent {
            None => 0,
            Some(text) => {
                let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
                if digits.is_empty() || !all_digits(digits) {
                    return None;
                }
                match text.parse() {
                    Ok(exponent) if (-1_000_000..=1_000_000).contains(&exponent) => exponent,
                    _ => return Some(Err(OVERFLOW)),
                }
            }
        };
        Some(Self::assemble(negative, whole, fraction, exponent))
    }

    fn assemble(negative: bool, whole: &str, fraction: &str, exponent: i64) -> Result<Self, EvalError> {
        let significant = whole.trim_start_matches('0').len() + fraction.len();
        if significant as i64 > WEIGHT_DIGITS_MAX + i64::from(SCALE_MAX) {
            return Err(OVERFLOW);
        }
        let joined = format!("{whole}{fraction}");
        let mut coefficient = BigInt::parse_bytes(joined.as_bytes(), 10).unwrap_or_default();
        if negative {
            coefficient = -coefficient;
        }
        let scale = fraction.len() as i64 - exponent;
        if scale < 0 {
            let shift = u32::try_from(-scale).map_err(|_| OVERFLOW)?;
            if i64::from(shift) > WEIGHT_DIGITS_MAX && coefficient.sign() != Sign::NoSign {
                return Err(OVERFLOW);
            }
            if coefficient.sign() != Sign::NoSign {
                coefficient *= power_of_ten(shift);
            }
            return Self::checked(coefficient, 0);
        }
        Self::checked(coefficient, u32::try_from(scale).map_err(|_| OVERFLOW)?)
    }

    /// Rounds to the largest scale, and refuses what has too many digits.
    fn checked(coefficient: BigInt, scale: u32) -> Result<Self, EvalError> {
        let (coefficient, scale) = match scale.checked_sub(SCALE_MAX) {
            Some(surplus) if surplus > 0 => (shift_right(&coefficient, surplus), SCALE_MAX),
            _ => (coefficient, scale),
        };
        // Cheap for all but huge numbers: three bits hold less than a digit.
        if coefficient.bits() / 4 > WEIGHT_DIGITS_MAX as u64 / 2
            && digit_count(&coefficient) - i64::from(scale) > WEIGHT_DIGITS_MAX
        {
            return Err(OVERFLOW);
        }
        Ok(Finite { coefficient, scale })
    }

    /// Order of SQL: NaN equals itself and follows all numbers.
    pub(crate) fn compare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Finite { coefficient: left, scale: left_scale }, Finite { coefficient: right, scale: right_scale }) => {
                match left_scale.cmp(right_scale) {
                    Ordering::Equal => left.cmp(right),
                    _ if left.sign() != right.sign() => left.sign().cmp(&right.sign()),
                    Ordering::Less => (left * power_of_ten(right_scale - left_scale)).cmp(right),
                    Ordering::Greater => left.cmp(&(right * power_of_ten(left_scale - right_scale))),
                }
            }
            _ => self.rank().cmp(&other.rank()),
        }
    }

    fn rank(&self) -> u8 {
        match self {
            NegativeInfinity => 0,
            Finite { .. } => 1,
            Infinity => 2,
            NaN => 3,
        }
    }

    /// A form that is equal for numbers that compare equal.
    pub(crate) fn normalised(&self) -> Self {
        let Finite { coefficient, scale } = self else { return self.clone() };
        let digits = coefficient.to_string();
        let zeros = digits.len() - digits.trim_end_matches('0').len();
        if coefficient.sign() == Sign::NoSign {
            return Self::from(0);
        }
        let surplus = u32::try_from(zeros).unwrap_or(u32::MAX).min(*scale);
        Finite { coefficient: coefficient / power_of_ten(surplus), scale: scale - surplus }
    }

    fn sign(&self) -> Ordering {
        match self {
            NegativeInfinity => Ordering::Less,
            Infinity | NaN => Ordering::Greater,
            Finite { coefficient, .. } => match coefficient.sign() {
                Sign::Minus => Ordering::Less,
                Sign::NoSign => Ordering::Equal,
                Sign::Plus => Ordering::Greater,
            },
        }
    }

    pub(crate) fn signum(&self) -> Self {
        match (self, self.sign()) {
            (NaN, _) => NaN,
            (_, sign) => Self::from(sign as i64),
        }
    }

    pub(crate) fn negate(&self) -> Self {
        match self {
            NegativeInfinity => Infinity,
            Infinity => NegativeInfinity,
            NaN => NaN,
            Finite { coefficient, scale } => Finite { coefficient: -coefficient, scale: *scale },
        }
    }

    pub(crate) fn abs(&self) -> Self {
        if self.sign() == Ordering::Less { self.negate() } else { self.clone() }
    }

    fn aligned(left: (&BigInt, u32), right: (&BigInt, u32)) -> (BigInt, BigInt, u32) {
        let scale = left.1.max(right.1);
        (left.0 * power_of_ten(scale - left.1), right.0 * power_of_ten(scale - right.1), scale)
    }

    pub(crate) fn add(&self, other: &Self) -> Result<Self, EvalError> {
        match (self, other) {
            (Finite { coefficient: left, scale: left_scale }, Finite { coefficient: right, scale: right_scale }) => {
                let (left, right, scale) = Self::aligned((left, *left_scale), (right, *right_scale));
                Self::checked(left + right, scale)
            }
            (NaN, _) | (_, NaN) | (Infinity, NegativeInfinity) | (NegativeInfinity, Infinity) => Ok(NaN),
            (Finite { .. }, infinite) | (infinite, _) => Ok(infinite.clone()),
        }
    }

    pub(crate) fn subtract(&self, other: &Self) -> Result<Self, EvalError> {
        self.add(&other.negate())
    }

    pub(crate) fn multiply(&self, other: &Self) -> Result<Self, EvalError> {
        match (self, other) {
            (Finite { coefficient: left, scale: left_scale }, Finite { coefficient: right, scale: right_scale }) => {
                Self::checked(left * right, left_scale + right_scale)
            }
            (NaN, _) | (_, NaN) => Ok(NaN),
            _ => Ok(match (self.sign(), other.sign()) {
                (Ordering::Equal, _) | (_, Ordering::Equal) => NaN,
                (left, right) if left == right => Infinity,
                _ => NegativeInfinity,
            }),
        }
    }

    /// Weight of the first digit in base 10,000, and that digit.
    fn first_digit(coefficient: &BigInt, scale: u32) -> (i64, i64) {
        if coefficient.sign() == Sign::NoSign {
            return (0, 0);
        }
        let digits = coefficient.magnitude().to_string();
        let exponent = digits.len() as i64 - 1 - i64::from(scale);
        let weight = exponent.div_euclid(4);
        let len = exponent.rem_euclid(4) as usize + 1;
        let shown = &digits[..len.min(digits.len())];
        let padding = 10_i64.pow((len - shown.len()) as u32);
        (weight, shown.parse::<i64>().unwrap_or(0) * padding)
    }

    /// Scale of a quotient (`select_div_scale`).
    fn quotient_scale(left: (&BigInt, u32), right: (&BigInt, u32)) -> u32 {
        let (left_weight, left_digit) = Self::first_digit(left.0, left.1);
        let (right_weight, right_digit) = Self::first_digit(right.0, right.1);
        let weight = left_weight - right_weight - i64::from(left_digit <= right_digit);
        let scale = (SIGNIFICANT_DIGITS_MIN - weight * 4).max(left.1.into()).max(right.1.into());
        scale.clamp(0, DISPLAY_SCALE_MAX) as u32
    }

    pub(crate) fn divide(&self, other: &Self) -> Result<Self, EvalError> {
        match (self, other) {
            (NaN, _) | (_, NaN) => Ok(NaN),
            (Finite { coefficient: left, scale: left_scale }, Finite { coefficient: right, scale: right_scale }) => {
                if right.sign() == Sign::NoSign {
                    return Err(EvalError::DivisionByZero);
                }
                let scale = Self::quotient_scale((left, *left_scale), (right, *right_scale));
                let dividend = left * power_of_ten(scale + right_scale);
                let divisor = right * power_of_ten(*left_scale);
                Self::checked(divide_rounded(&dividend, &divisor), scale)
            }
            (_, Finite { .. }) => match (self.sign(), other.sign()) {
                (_, Ordering::Equal) => Err(EvalError::DivisionByZero),
                (left, right) => Ok(if left == right { Infinity } else { NegativeInfinity }),
            },
            (Finite { .. }, _) => Ok(Self::from(0)),
            _ => Ok(NaN),
        }
    }

    pub(crate) fn remainder(&self, other: &Self) -> Result<Self, EvalError> {
        match (self, other) {
            (NaN, _) | (_, NaN) => Ok(NaN),
            (_, Finite { coefficient, .. }) if coefficient.sign() == Sign::NoSign => Err(EvalError::DivisionByZero),
            (Finite { coefficient: left, scale: left_scale }, Finite { coefficient: right, scale: right_scale }) => {
                let (left, right, scale) = Self::aligned((left, *left_scale), (right, *right_scale));
                Self::checked(left % right, scale)
            }
            (Finite { .. }, _) => Ok(self.clone()),
            _ => Ok(NaN),
        }
    }

    /// Rounds to a whole number, half away from zero.
    pub(crate) fn to_i64(&self) -> Result<i64, EvalError> {
        match self {
            Finite { coefficient, scale } => {
                i64::try_from(shift_right(coefficient, *scale)).map_err(|_| EvalError::OutOfRange("integer"))
            }
            NaN => Err(EvalError::InvalidArgument("cannot convert NaN to an integer")),
            _ => Err(EvalError::InvalidArgument("cannot convert infinity to an integer")),
        }
    }

    /// The cast to `numeric(precision, scale)`.
    pub(crate) fn rounded(&self, precision: u32, scale: u32) -> Result<Self, EvalError> {
        match self {
            Finite { coefficient, scale: own } => {
                let coefficient = match own.checked_sub(scale) {
                    Some(surplus) => shift_right(coefficient, surplus),
                    None => coefficient * power_of_ten(scale - own),
                };
                if digit_count(&coefficient) > i64::from(precision) {
                    return Err(EvalError::OutOfRange("numeric field"));
                }
                Ok(Finite { coefficient, scale })
            }
            NaN => Ok(NaN),
            _ => Err(EvalError::OutOfRange("numeric field")),
        }
    }
}

impl fmt::Display for Numeric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (coefficient, scale) = match self {
            NegativeInfinity => return f.write_str("-Infinity"),
            Infinity => return f.write_str("Infinity"),
            NaN => return f.write_str("NaN"),
            Finite { coefficient, scale } => (coefficient, *scale as usize),
        };
        let digits = coefficient.magnitude().to_string();
        if coefficient.sign() == Sign::Minus {
            f.write_str("-")?;
        }
        if scale == 0 {
            return f.write_str(&digits);
        }
        let padded = format!("{digits:0>width$}", width = scale + 1);
        let (whole, fraction) = padded.split_at(padded.len() - scale);
        write!(f, "{whole}.{fraction}")
    }
}
