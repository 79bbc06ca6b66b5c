//! Text to value: literals, casts and the values of rows.

use crate::catalog::{
    BOOL, BPCHAR, DATE, FLOAT4, FLOAT8, INT2, INT4, INT8, INTERVAL, NAME, NUMERIC, Oid, TEXT, TIME, TIMESTAMP,
    TIMESTAMPTZ, UUID, VARCHAR, catalog,
};
use crate::datum::{ArrayValue, Datum, Dimension};
use crate::error::EvalError;
use crate::input_datetime;
use crate::numeric::Numeric;

const NAME_LEN_MAX: usize = 63;
const ARRAY_ITEMS_MAX: usize = 134_217_727;
const DIMENSIONS_MAX: usize = 6;

/// The outcome for a text that is no value of the type.
pub(crate) fn invalid(oid: Oid, text: &str) -> EvalError {
    let end = (0..=text.len().min(100)).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    EvalError::InvalidText { type_name: catalog().type_name(oid), text: text[..end].to_owned() }
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r' | '\x0b' | '\x0c')
}

/// Reads a literal, or the text of a cast, as the type's input function does.
///
/// # Errors
/// [`EvalError::InvalidText`], [`EvalError::OutOfRange`], and [`EvalError::Unsupported`] for forms that Postgres' versions or
/// settings read differently.
pub(crate) fn read_literal(text: &str, oid: Oid) -> Result<Datum<'static>, EvalError> {
    let is_infinite = |value: &Datum<'_>| matches!(value, Datum::Interval(span) if span.is_infinite());
    let value = read(text, oid)?;
    let infinite = match &value {
        Datum::Array(array) => array.items.iter().any(is_infinite),
        other => is_infinite(other),
    };
    // Postgres has infinite intervals since version 17.
    if infinite { Err(EvalError::Unsupported("an infinite interval")) } else { Ok(value) }
}

/// Reads the text form of a value of a row, as the type's input function does.
///
/// # Errors
/// As for [`read_literal`].
pub(crate) fn read(text: &str, oid: Oid) -> Result<Datum<'static>, EvalError> {
    Ok(match oid {
        BOOL => Datum::Bool(boolean(text).ok_or_else(|| invalid(oid, text))?),
        INT2 | INT4 | INT8 => Datum::Int(integer(text, oid)?),
        FLOAT4 | FLOAT8 => Datum::Float(float(text, oid)?),
        NUMERIC => Datum::numeric(decimal(text)?),
        NAME => Datum::text(cut_name(text)),
        TEXT | VARCHAR | BPCHAR => Datum::text(text),
        UUID => Datum::Uuid(uuid(text).ok_or_else(|| invalid(oid, text))?),
        DATE => Datum::Date(input_datetime::date(text)?),
        TIME => Datum::Time(input_datetime::time(text)?),
        TIMESTAMP => Datum::Timestamp(input_datetime::timestamp(text, false)?),
        TIMESTAMPTZ => Datum::Timestamp(input_datetime::timestamp(text, true)?),
        INTERVAL => Datum::Interval(input_datetime::interval(text)?),
        _ => match catalog().element(oid) {
            Some(element) => Datum::array(array(text, element)?),
            None => Datum::text(text),
        },
    })
}

/// A name has at most 63 bytes.
pub(crate) fn cut_name(text: &str) -> &str {
    let end = (0..=text.len().min(NAME_LEN_MAX)).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    &text[..end]
}

fn boolean(text: &str) -> Option<bool> {
    let word = text.trim_matches(is_space).to_ascii_lowercase();
    let is_prefix_of = |whole: &str, len_min: usize| word.len() >= len_min && whole.starts_with(&word);
    if is_prefix_of("true", 1) || is_prefix_of("yes", 1) || word == "on" || word == "1" {
        Some(true)
    } else if is_prefix_of("false", 1) || is_prefix_of("no", 1) || is_prefix_of("off", 2) || word == "0" {
        Some(false)
    } else {
        None
    }
}

fn integer(text: &str, oid: Oid) -> Result<i64, EvalError> {
    let trimmed = text.trim_matches(is_space);
    let digits = trimmed.strip_prefix(['-', '+']).unwrap_or(trimmed);
    if digits.starts_with(|c: char| c.is_ascii_digit()) && digits.contains(['_', 'x', 'X', 'o', 'O', 'b', 'B']) {
        return Err(EvalError::Unsupported("an integer with a base or with underscores"));
    }
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(invalid(oid, text));
    }
    let number: i64 = trimmed.parse().map_err(|_| integer_range(oid))?;
    checked_integer(number, oid)
}

fn integer_range(oid: Oid) -> EvalError {
    EvalError::OutOfRange(match oid {
        INT2 => "smallint",
        INT4 => "integer",
        _ => "bigint",
    })
}

/// `number`, if the integer type can hold it.
pub(crate) fn checked_integer(number: i64, oid: Oid) -> Result<i64, EvalError> {
    let fits = match oid {
        INT2 => i16::try_from(number).is_ok(),
        INT4 => i32::try_from(number).is_ok(),
        _ => true,
    };
    if fits { Ok(number) } else { Err(integer_range(oid)) }
}

fn decimal(text: &str) -> Result<Numeric, EvalError> {
    let digits = text.trim_matches(is_space).trim_start_matches(['-', '+']);
    if digits.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && digits.contains(['_', 'x', 'X', 'o', 'O', 'b', 'B'])
    {
        return Err(EvalError::Unsupported("a number with a base or with underscores"));
    }
    Numeric::parse(text).ok_or_else(|| invalid(NUMERIC, text))?
}

/// A float of `oid`'s precision.
pub(crate) fn float(text: &str, oid: Oid) -> Result<f64, EvalError> {
    let trimmed = text.trim_matches(is_space);
    let unsigned = trimmed.strip_prefix(['-', '+']).unwrap_or(trimmed);
    if unsigned.eq_ignore_ascii_case("nan") {
        return if unsigned.len() == trimmed.len() {
            Ok(f64::NAN)
        } else {
            Err(EvalError::Unsupported("a signed NaN"))
        };
    }
    if unsigned.eq_ignore_ascii_case("infinity") || unsigned.eq_ignore_ascii_case("inf") {
        return Ok(if trimmed.starts_with('-') { f64::NEG_INFINITY } else { f64::INFINITY });
    }
    if unsigned.starts_with("0x") || unsigned.starts_with("0X") {
        return Err(EvalError::Unsupported("a hexadecimal float"));
    }
    if !unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.') || unsigned.ends_with(['e', 'E', '+', '-']) {
        return Err(invalid(oid, text));
    }
    let (value, range) = match oid {
        FLOAT4 => (trimmed.parse::<f32>().map(f64::from), EvalError::OutOfRange("real")),
        _ => (trimmed.parse::<f64>(), EvalError::OutOfRange("double precision")),
    };
    let value = value.map_err(|_| invalid(oid, text))?;
    let mantissa = unsigned.split(['e', 'E']).next().unwrap_or("");
    let vanished = value == 0.0 && mantissa.contains(|c: char| ('1'..='9').contains(&c));
    if value.is_infinite() || vanished { Err(range) } else { Ok(value) }
}

/// 32 hexadecimal digits, with a hyphen after any group of four, perhaps in braces.
fn uuid(text: &str) -> Option<[u8; 16]> {
    let bytes = text.as_bytes();
    let braces = bytes.first() == Some(&b'{');
    let mut rest = if braces { &bytes[1..] } else { bytes };
    let mut value = [0; 16];
    for (at, byte) in value.iter_mut().enumerate() {
        let digit = |position: usize| rest.get(position).and_then(|byte| char::from(*byte).to_digit(16));
        *byte = (digit(0)? * 16 + digit(1)?) as u8;
        rest = &rest[2..];
        if at % 2 == 1 && at < 15 && rest.first() == Some(&b'-') {
            rest = &rest[1..];
        }
    }
    if braces { (rest == b"}").then_some(value) } else { rest.is_empty().then_some(value) }
}

/// Reads `{1,2}`, `{{1},{2}}`, `{"a b",NULL}` and explicit bounds `[2:3]={1,2}`.
fn array(text: &str, element: Oid) -> Result<ArrayValue, EvalError> {
    let bad = || EvalError::InvalidText { type_name: "array", text: text.chars().take(100).collect() };
    let mut rest = text.trim_start_matches(is_space);
    let mut bounds = Vec::new();
    while let Some(after) = rest.strip_prefix('[') {
        let (inside, after) = after.split_once(']').ok_or_else(bad)?;
        let (lower, upper) = inside.split_once(':').unwrap_or(("1", inside));
        let number = |text: &str| text.parse::<i32>().map_err(|_| bad());
        let (lower, upper) = (number(lower)?, number(upper)?);
        let len = upper.checked_sub(lower).and_then(|len| len.checked_add(1)).filter(|len| *len >= 0);
        if len == Some(0) {
            return Err(EvalError::Unsupported("an array literal with an upper bound below the lower one"));
        }
        bounds.push(Dimension { lower, len: len.ok_or_else(bad)? });
        rest = after.trim_start_matches(is_space);
    }
    if !bounds.is_empty() {
        rest = rest.strip_prefix('=').ok_or_else(bad)?.trim_start_matches(is_space);
    }
    let mut reader =
        ArrayReader { text: rest, at: 0, element, items: Vec::new(), lens: Vec::new(), depth: 0, empty: false };
    reader.braces().ok_or_else(bad)??;
    if !rest[reader.at..].trim_start_matches(is_space).is_empty() {
        return Err(bad());
    }
    if reader.empty || reader.items.is_empty() {
        if reader.lens.len() > 1 {
            return Err(EvalError::Unsupported("an array literal of empty arrays"));
        }
        return if bounds.is_empty() { Ok(ArrayValue::default()) } else { Err(bad()) };
    }
    let lens: Vec<i32> = reader.lens.iter().map(|len| len.unwrap_or(0) as i32).collect();
    if !bounds.is_empty() && bounds.iter().map(|bound| bound.len).ne(lens.iter().copied()) {
        return Err(bad());
    }
    let lower = |at: usize| bounds.get(at).map_or(1, |bound: &Dimension| bound.lower);
    let dimensions = lens.iter().enumerate().map(|(at, len)| Dimension { len: *len, lower: lower(at) }).collect();
    Ok(ArrayValue { dimensions, items: reader.items })
}

struct ArrayReader<'a> {
    text: &'a str,
    at: usize,
    element: Oid,
    items: Vec<Datum<'static>>,
    /// Number of members of each nesting level, once known.
    lens: Vec<Option<usize>>,
    depth: usize,
    empty: bool,
}

impl ArrayReader<'_> {
    fn skip_spaces(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start_matches(is_space).len();
    }

    fn take(&mut self, expected: char) -> bool {
        self.skip_spaces();
        let found = self.text[self.at..].starts_with(expected);
        if found {
            self.at += expected.len_utf8();
        }
        found
    }

    /// Reads a pair of braces. `None` is a malformed literal.
    fn braces(&mut self) -> Option<Result<(), EvalError>> {
        if !self.take('{') || self.depth >= DIMENSIONS_MAX {
            return None;
        }
        let level = self.depth;
        self.depth += 1;
        if self.lens.len() == level {
            // A level below plain members.
            if !self.items.is_empty() {
                return None;
            }
            self.lens.push(None);
        }
        let mut members = 0;
        if self.take('}') {
            self.empty = true;
        } else {
            loop {
                self.skip_spaces();
                if self.text[self.at..].starts_with('{') {
                    if let Err(error) = self.braces()? {
                        return Some(Err(error));
                    }
                } else {
                    if self.lens.len() != self.depth {
                        return None;
                    }
                    match self.item()? {
                        Ok(item) => self.items.push(item),
                        Err(error) => return Some(Err(error)),
                    }
                }
                members += 1;
                if self.items.len() > ARRAY_ITEMS_MAX {
                    return Some(Err(EvalError::OutOfRange("array size")));
                }
                if self.take('}') {
                    break;
                }
                if !self.take(',') {
                    return None;
                }
            }
        }
        self.depth = level;
        match self.lens[level] {
            Some(len) if len != members => None,
            _ => {
                self.lens[level] = Some(members);
                Some(Ok(()))
            }
        }
    }

    fn item(&mut self) -> Option<Result<Datum<'static>, EvalError>> {
        let mut value = String::new();
        // Length of `value` up to which trailing blanks are kept.
        let mut kept = 0;
        let mut quoted = false;
        let mut escaped = false;
        let mut letters = self.text[self.at..].char_indices();
        let end = loop {
            let (offset, letter) = letters.next()?;
            match letter {
                '"' if value.is_empty() && !quoted && !escaped => {
                    quoted = true;
                    loop {
                        match letters.next()?.1 {
                            '"' => break,
                            '\\' => value.push(letters.next()?.1),
                            other => value.push(other),
                        }
                    }
                    kept = value.len();
                }
                '"' | '{' => return None,
                '\\' if !quoted => {
                    escaped = true;
                    value.push(letters.next()?.1);
                    kept = value.len();
                }
                ',' | '}' => break offset,
                other if is_space(other) => {
                    if !quoted {
                        value.push(other);
                    }
                }
                _ if quoted => return None,
                other => {
                    value.push(other);
                    kept = value.len();
                }
            }
        };
        self.at += end;
        value.truncate(kept);
        if value.is_empty() && !quoted && !escaped {
            return None;
        }
        if !quoted && !escaped && value.eq_ignore_ascii_case("null") {
            return Some(Ok(Datum::Null));
        }
        Some(read(&value, self.element))
    }
}
