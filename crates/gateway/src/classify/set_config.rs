//! Calls of `set_config`, as far as their text says what is left of them.

use super::{
    Pins, is_temporary_path, trim_end, trim_start,
    words::{is_of_name, skip_token},
};

/// What every server says of itself when it changes (`GUC_REPORT` in all versions from 14 on), so that it need not be read here.
const REPORTED: [&str; 6] =
    ["timezone", "datestyle", "intervalstyle", "client_encoding", "application_name", "standard_conforming_strings"];

/// What a call leaves behind on its server, by the text behind the function's name.
///
/// Nothing, if it is for its transaction alone (`true`), or sets what the server reports. Whatever is harder to read than
/// `('name', value, true)` counts as a setting that nobody knows.
pub(super) fn pins_of_set_config(behind: &[u8]) -> Pins {
    let Some([name, value, is_local]) = arguments(behind) else { return Pins::SETTING };
    let name = literal(name);
    if is_local.eq_ignore_ascii_case(b"true") {
        // One of which the name is not known may be the search path as well.
        let may_be_path = name.is_none_or(|name| name.eq_ignore_ascii_case(b"search_path"));
        return if may_be_path { pins_of_path(value) } else { Pins::default() };
    }
    let is_reported = |name: &[u8]| REPORTED.iter().any(|known| known.as_bytes().eq_ignore_ascii_case(name));
    let is_followed = is_local.eq_ignore_ascii_case(b"false") && name.is_some_and(is_reported);
    if is_followed { Pins::default() } else { Pins::SETTING }
}

/// What is created under a search path may be temporary, and outlive it. That of a parameter is taken not to be.
fn pins_of_path(value: &[u8]) -> Pins {
    match literal(value) {
        Some(path) if is_temporary_path(path) => Pins::TEMP,
        None if !is_parameter(value) => Pins::SETTING,
        _ => Pins::default(),
    }
}

/// The text within quotes, if there is nothing else, and no quote in it.
fn literal(argument: &[u8]) -> Option<&[u8]> {
    let inside = argument.strip_prefix(b"'")?.strip_suffix(b"'")?;
    (!inside.contains(&b'\'')).then_some(inside)
}

/// `$1`, or with a cast, `$1::text`.
fn is_parameter(argument: &[u8]) -> bool {
    let is_of_cast = |byte: &u8| is_of_name(*byte) || *byte == b':';
    argument.len() > 1 && argument[0] == b'$' && argument[1].is_ascii_digit() && argument.iter().all(is_of_cast)
}

/// The three arguments of a call. None if there are more or fewer, or comments, or a backslash, behind which a string may end
/// elsewhere.
fn arguments(behind: &[u8]) -> Option<[&[u8]; 3]> {
    let text = trim_start(behind).strip_prefix(b"(")?;
    let (mut found, mut count, mut from, mut at, mut depth) = ([&text[..0]; 3], 0, 0, 0, 0_usize);
    loop {
        let byte = *text.get(at)?;
        let ends = depth == 0 && matches!(byte, b',' | b')');
        if ends {
            *found.get_mut(count)? = trim_end(trim_start(&text[from..at]));
            (count, from) = (count + 1, at + 1);
            if byte == b')' {
                return (count == found.len()).then_some(found);
            }
        }
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth = depth.checked_sub(1)?,
            b'-' | b'/' if matches!(text.get(at + 1), Some(b'-' | b'*')) => return None,
            _ => {}
        }
        let next = skip_token(text, at);
        if memchr::memchr(b'\\', &text[at..next]).is_some() {
            return None;
        }
        at = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pins(call: &str) -> String {
        let at = call.find("set_config").map_or(0, |at| at + "set_config".len());
        pins_of_set_config(&call.as_bytes()[at..]).to_string()
    }

    #[test]
    fn what_ends_with_its_transaction_leaves_nothing() {
        for call in [
            "set_config('app.user', 'ann', true)",
            "set_config ( 'app.user' , $1 , TRUE )",
            "set_config('request.jwt.claims', json_build_object('a', array[1, 2], 'b', ')')::text, true), 1",
            "set_config('search_path', '\"public\", extensions', true)",
            "set_config('search_path', $2::text, true)",
            "set_config($1, $2, true)",
            "set_config($1::text, 'x, y', true)",
            "set_config('a.b', $a$ it's (, $a$, true)",
            "set_config('role', $1, true), set_config('request.jwt.claims', $2, true)",
        ] {
            assert_eq!(pins(call), "", "{call}");
        }
    }

    #[test]
    fn what_the_server_reports_is_followed() {
        for call in ["set_config('TimeZone', 'UTC', false)", "set_config('client_encoding', $1, FALSE)"] {
            assert_eq!(pins(call), "", "{call}");
        }
    }

    #[test]
    fn what_stays_or_is_hard_to_read_keeps_its_server() {
        for call in [
            "set_config('work_mem', '7MB', false)",
            "set_config('work_mem', '7MB', $1)",
            "set_config('work_mem', '7MB', not true)",
            "set_config('work_mem', '7MB', is_local => false)",
            "set_config($1, $2, false)",
            "set_config('TimeZone' || '', 'UTC', false)",
            "set_config('a.b', 'c', /* false */ true)",
            "set_config('a.b', 'c' -- ', true)\n, false)",
            "set_config('a.b', E'\\', true)', false)",
            "set_config(''a.b'', ''c'', true)",
            "set_config('search_path', current_setting('a.b'), true)",
            "set_config('a.b', 'c', false, true)",
            "set_config('a.b', true)",
            "set_config('a.b', ']', [true)",
            "set_config('a.b', 'c', true",
            "set_config",
            "set_config\"('a.b', 'c', true)",
        ] {
            assert_eq!(pins(call), "setting", "{call}");
        }
        assert_eq!(pins("set_config('search_path', 'pg_temp, public', true)"), "temp");
        assert_eq!(pins("set_config($1, 'pg_temp', true)"), "temp");
    }
}
