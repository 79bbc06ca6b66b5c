//! Formats of durations, sizes and counts, and escapes for terminals.

use std::borrow::Cow;

use tidegate_config::escape::is_unsafe;

/// Formats as `123 µs`, `1.23 ms`, `45.6 s` or `3 h 05 min`.
#[must_use]
pub fn duration(micros: u64) -> String {
    let seconds = micros / 1_000_000;
    match micros {
        0..1_000 => format!("{micros} µs"),
        1_000..999_500 => digits(micros as f64 / 1e3, "ms"),
        999_500..99_950_000 => digits(micros as f64 / 1e6, "s"),
        _ if seconds < 3_600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ if seconds < 172_800 => format!("{} h {:02} min", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{} d {:02} h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

/// Formats as `123 B`, `1.23 KiB` or `45.6 MiB`.
#[must_use]
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let (mut number, mut at) = (bytes as f64 / 1024.0, 0);
    while number >= 999.5 && at + 1 < UNITS.len() {
        number /= 1024.0;
        at += 1;
    }
    digits(number, UNITS[at])
}

/// Three significant digits, or more if the integer part has more.
fn digits(number: f64, unit: &str) -> String {
    let places = if number < 9.995 { 2 } else { usize::from(number < 99.95) };
    format!("{number:.places$} {unit}")
}

/// Groups digits: `1 234 567`.
#[must_use]
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

/// A count with its noun: `1 record`, `2 records`.
pub(super) fn count_noun(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(number), if number == 1 { "" } else { "s" })
}

/// Formats as `12.5 %`.
pub(super) fn percent(part: u64, of: u64) -> String {
    let share = if of == 0 { 0.0 } else { 100.0 * part as f64 / of as f64 };
    format!("{share:.1} %")
}

/// The text on one line, with control characters escaped: clients choose the text of statements.
#[must_use]
pub fn one_line(text: &str) -> Cow<'_, str> {
    let is_plain = |text: &str| !text.contains(is_unsafe) && !text.contains("  ");
    if is_plain(text) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut blank = false;
    for c in text.chars() {
        if c.is_whitespace() {
            blank = true;
            continue;
        }
        if std::mem::take(&mut blank) {
            out.push(' ');
        }
        if is_unsafe(c) { out.extend(c.escape_unicode()) } else { out.push(c) }
    }
    Cow::Owned(out)
}

/// Columns of the terminal on standard output; `None` if it is none.
pub(super) fn terminal_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Truncates to at most `chars` characters, the last of them `…`.
#[must_use]
pub fn truncate(text: &str, chars: usize) -> Cow<'_, str> {
    match text.char_indices().nth(chars) {
        None => Cow::Borrowed(text),
        Some(_) => {
            let kept: String = text.chars().take(chars.saturating_sub(1)).collect();
            Cow::Owned(kept + "…")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_have_three_digits() {
        for (micros, expected) in [
            (0, "0 µs"),
            (999, "999 µs"),
            (1_000, "1.00 ms"),
            (12_340, "12.3 ms"),
            (999_499, "999 ms"),
            (999_500, "1.00 s"),
            (99_949_999, "99.9 s"),
            (100_000_000, "1 min 40 s"),
            (11_100_000_000, "3 h 05 min"),
            (200_000_000_000, "2 d 07 h"),
        ] {
            assert_eq!(duration(micros), expected);
        }
        for (number, expected) in [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (1 << 20, "1.00 MiB")] {
            assert_eq!(bytes(number), expected);
        }
        assert_eq!((count(12), count(1_234_567).as_str()), ("12".to_owned(), "1 234 567"));
        assert_eq!((count_noun(1, "record"), percent(1, 8)), ("1 record".to_owned(), "12.5 %".to_owned()));
    }

    #[test]
    fn a_statement_cannot_write_on_the_terminal() {
        assert_eq!(one_line("select 1"), "select 1");
        assert_eq!(one_line("select\n\t 1\u{1b}[2J\u{202e}"), "select 1\\u{1b}[2J\\u{202e}");
        assert_eq!((truncate("abcdef", 3), truncate("abc", 3)), (Cow::Borrowed("ab…"), Cow::Borrowed("abc")));
    }
}
