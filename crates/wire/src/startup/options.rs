//! The startup parameter `options`: settings as command-line arguments.

use crate::error::{DecodeError, DecodeErrorKind};

/// Parses `-c name=value`, `-cname=value` and `--name=value`, separated by white space. A backslash escapes the next
/// byte. In names a `-` stands for `_`. These are the rules of `pg_split_opts` and `ParseLongOption` in Postgres.
///
/// # Errors
/// [`DecodeErrorKind::CommandLine`] for any other option, [`DecodeErrorKind::NotUtf8`]; the offset is that of the
/// option.
///
/// ```
/// let settings = tidegate_wire::startup::parse_options(br"-c geqo=off --work-mem=4\ MB")?;
/// assert_eq!(settings, [("geqo".into(), "off".into()), ("work_mem".into(), "4 MB".into())]);
/// # Ok::<(), tidegate_wire::DecodeError>(())
/// ```
pub fn parse_options(options: &[u8]) -> Result<Vec<(String, String)>, DecodeError> {
    let mut words = Words { bytes: options, at: 0 };
    let mut settings = Vec::new();
    while let Some((at, word)) = words.next() {
        let setting = match word.as_slice() {
            b"-c" => words.next().ok_or(DecodeError::new(at, DecodeErrorKind::CommandLine))?.1,
            [b'-', b'c' | b'-', setting @ ..] => setting.to_vec(),
            _ => return Err(DecodeError::new(at, DecodeErrorKind::CommandLine)),
        };
        settings.push(parse_setting(setting, at)?);
    }
    Ok(settings)
}

fn parse_setting(setting: Vec<u8>, at: usize) -> Result<(String, String), DecodeError> {
    let text = String::from_utf8(setting).map_err(|_| DecodeError::new(at, DecodeErrorKind::NotUtf8))?;
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.replace('-', "_"), value.to_owned())),
        _ => Err(DecodeError::new(at, DecodeErrorKind::CommandLine)),
    }
}

/// Arguments with resolved escapes, and their offsets.
struct Words<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Iterator for Words<'_> {
    type Item = (usize, Vec<u8>);

    fn next(&mut self) -> Option<Self::Item> {
        while self.peek().is_some_and(is_space) {
            self.at += 1;
        }
        let start = self.at;
        self.peek()?;
        let mut word = Vec::new();
        while let Some(byte) = self.peek().filter(|byte| !is_space(*byte)) {
            self.at += 1;
            match byte {
                // A backslash at the end escapes nothing.
                b'\\' => word.extend(self.take()),
                _ => word.push(byte),
            }
        }
        Some((start, word))
    }
}

impl Words<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn take(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }
}

/// `isspace` of C, which includes the vertical tab.
const fn is_space(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn every_form_of_a_setting_is_parsed() {
        let cases: &[(&str, &[(&str, &str)])] = &[
            ("", &[]),
            ("  \t\n\x0b ", &[]),
            ("-c a=b", &[("a", "b")]),
            ("-ca=b", &[("a", "b")]),
            ("--a-b=c-d", &[("a_b", "c-d")]),
            ("-c search_path=a,b --work_mem=1", &[("search_path", "a,b"), ("work_mem", "1")]),
            (r"-c a=b\ c\\d", &[("a", r"b c\d")]),
            (r"--a=\", &[("a", "")]),
            ("-c a=b=c", &[("a", "b=c")]),
            ("-c a=", &[("a", "")]),
            ("-c endpoint=x -c a=1", &[("endpoint", "x"), ("a", "1")]),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_options(text.as_bytes()), Ok(pairs(expected)), "{text:?}");
        }
    }

    #[test]
    fn other_options_are_refused_with_their_offset() {
        for (text, offset) in
            [("-c", 0), ("-c a", 0), ("-c a=1 -B 5", 7), ("a=b", 0), ("--", 0), ("--=x", 0), (" -", 1)]
        {
            let expected = DecodeError::new(offset, DecodeErrorKind::CommandLine);
            assert_eq!(parse_options(text.as_bytes()), Err(expected), "{text:?}");
        }
        assert_eq!(parse_options(b"-c a=\xff"), Err(DecodeError::new(0, DecodeErrorKind::NotUtf8)));
    }
}
