//! Functions of text: LIKE, case, length, trimming, concatenation.

use std::borrow::Cow;

use super::Function;
use crate::datum::Datum;
use crate::error::EvalError;

fn text<'d>(datum: &'d Datum<'_>) -> &'d str {
    if let Datum::Text(value) = datum { value } else { "" }
}

/// Whether `value` matches a LIKE pattern (`MatchText` of `src/backend/utils/adt/like_match.c`).
///
/// Only the last `%` is retried: text that an earlier one skips can be skipped by the last one as well.
///
/// # Errors
/// The pattern ends with an escape character that is reached.
pub(crate) fn like(value: &str, pattern: &str) -> Result<bool, EvalError> {
    let dangling = EvalError::InvalidArgument("LIKE pattern must not end with escape character");
    let (text, pattern) = (value.as_bytes(), pattern.as_bytes());
    if pattern == b"%" {
        return Ok(true);
    }
    let (mut t, mut p) = (0, 0);
    // Pattern after the last `%`, its first byte, and the text at which it was tried.
    let mut retry: Option<(usize, u8, usize)> = None;
    loop {
        let mut failed = false;
        while t < text.len() && p < pattern.len() {
            match pattern[p] {
                b'\\' => {
                    p += 1;
                    failed = *pattern.get(p).ok_or_else(|| dangling.clone())? != text[t];
                }
                b'%' => {
                    p += 1;
                    while let Some(b'%' | b'_') = pattern.get(p) {
                        if pattern[p] == b'_' {
                            if t >= text.len() {
                                return Ok(false);
                            }
                            t = next_char(text, t);
                        }
                        p += 1;
                    }
                    let Some(&first) = pattern.get(p) else { return Ok(true) };
                    let first =
                        if first == b'\\' { *pattern.get(p + 1).ok_or_else(|| dangling.clone())? } else { first };
                    match find_char(text, t, first) {
                        Some(at) => t = at,
                        None => return Ok(false),
                    }
                    retry = Some((p, first, t));
                    continue;
                }
                b'_' => {
                    t = next_char(text, t);
                    p += 1;
                    continue;
                }
                byte => failed = byte != text[t],
            }
            if failed {
                break;
            }
            t += 1;
            p += 1;
        }
        if !failed && t >= text.len() {
            return Ok(pattern[p.min(pattern.len())..].iter().all(|byte| *byte == b'%'));
        }
        // A mismatch, or text after the end of the pattern.
        let Some((restart, first, tried)) = retry else { return Ok(false) };
        let Some(at) = find_char(text, next_char(text, tried), first) else { return Ok(false) };
        (p, t) = (restart, at);
        retry = Some((restart, first, at));
    }
}

fn next_char(text: &[u8], at: usize) -> usize {
    let mut next = at + 1;
    while text.get(next).is_some_and(|byte| byte & 0xc0 == 0x80) {
        next += 1;
    }
    next
}

/// The next start of a character with this first byte.
fn find_char(text: &[u8], from: usize, first: u8) -> Option<usize> {
    text.get(from..)?.iter().position(|byte| *byte == first).map(|offset| from + offset)
}

fn like_with<'a>(args: &[Datum<'a>], insensitive: bool, negated: bool) -> Result<Datum<'a>, EvalError> {
    let (value, pattern) = (text(&args[0]), text(&args[1]));
    let matches = if insensitive {
        like(&value.to_ascii_lowercase(), &pattern.to_ascii_lowercase())?
    } else {
        like(value, pattern)?
    };
    Ok(Datum::Bool(matches != negated))
}

/// Translates a pattern with another escape character to one with a backslash.
fn like_escape<'a>(args: &[Datum<'a>]) -> Result<Datum<'a>, EvalError> {
    let (pattern, escape) = (text(&args[0]), text(&args[1]));
    let mut letters = escape.chars();
    let escape = match (letters.next(), letters.next()) {
        (None, _) => return Ok(Datum::text(pattern.replace('\\', "\\\\"))),
        (Some('\\'), None) => return Ok(Datum::text(pattern)),
        (Some(letter), None) => letter,
        _ => return Err(EvalError::InvalidArgument("invalid escape string")),
    };
    let mut out = String::with_capacity(pattern.len() * 2);
    let mut escaped = false;
    for letter in pattern.chars() {
        if letter == escape && !escaped {
            out.push('\\');
            escaped = true;
            continue;
        }
        if letter == '\\' && !escaped {
            out.push('\\');
        }
        out.push(letter);
        escaped = false;
    }
    Ok(Datum::text(out))
}

fn count<'a>(number: usize) -> Result<Datum<'a>, EvalError> {
    Ok(Datum::Int(number as i64))
}

/// Removes characters of a set, by default blanks, from the chosen ends.
fn trim<'a>(args: &[Datum<'a>], left: bool, right: bool) -> Result<Datum<'a>, EvalError> {
    let set = args.get(1).map_or(" ", |set| text(set));
    let mut rest = text(&args[0]);
    if left {
        rest = rest.trim_start_matches(|letter| set.contains(letter));
    }
    if right {
        rest = rest.trim_end_matches(|letter| set.contains(letter));
    }
    Ok(Datum::text(rest))
}

/// Number of the character at which `needle` starts, counted from 1, or 0.
fn position<'a>(args: &[Datum<'a>]) -> Result<Datum<'a>, EvalError> {
    let (hay, needle) = (text(&args[0]), text(&args[1]));
    count(hay.find(needle).map_or(0, |at| hay[..at].chars().count() + 1))
}

/// NULL counts as nothing; the arguments are texts already.
fn concat<'a>(args: &[Datum<'a>]) -> Result<Datum<'a>, EvalError> {
    Ok(Datum::text(args.iter().map(text).collect::<String>()))
}

fn cat<'a>(args: &[Datum<'a>]) -> Result<Datum<'a>, EvalError> {
    Ok(Datum::Text(Cow::Owned([text(&args[0]), text(&args[1])].concat())))
}

pub(super) fn function(source: &str) -> Option<Function> {
    Some(match source {
        "textlike" | "namelike" => |args| like_with(args, false, false),
        "textnlike" | "namenlike" => |args| like_with(args, false, true),
        "texticlike" | "nameiclike" => |args| like_with(args, true, false),
        "texticnlike" | "nameicnlike" => |args| like_with(args, true, true),
        "like_escape" => like_escape,
        "lower" => |args| Ok(Datum::text(text(&args[0]).to_ascii_lowercase())),
        "upper" => |args| Ok(Datum::text(text(&args[0]).to_ascii_uppercase())),
        "textlen" => |args| count(text(&args[0]).chars().count()),
        "bpcharlen" => |args| count(text(&args[0]).trim_end_matches(' ').chars().count()),
        "textoctetlen" | "bpcharoctetlen" => |args| count(text(&args[0]).len()),
        "btrim" | "btrim1" => |args| trim(args, true, true),
        "ltrim" | "ltrim1" => |args| trim(args, true, false),
        "rtrim" => |args| trim(args, false, true),
        "textpos" => position,
        "text_starts_with" => |args| Ok(Datum::Bool(text(&args[0]).starts_with(text(&args[1])))),
        "text_concat" => concat,
        "textcat" => cat,
        _ => return None,
    })
}
